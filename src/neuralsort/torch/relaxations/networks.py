r"""Sorting networks whose comparators swap by degrees.

A sorting network is a fixed sequence of layers, each comparing disjoint pairs of wires and swapping
those in the wrong order. Relaxed, a pair (a, b) swaps by a share $\beta$ that depends on b - a,

$$a' = a + \beta\,(b - a), \qquad b' = b - \beta\,(b - a),$$

so a layer is a symmetric doubly stochastic matrix and the network their product. That product is
not formed: P multiplies layer by layer, and its transpose by the layers in reverse.
"""

import math
from typing import final

import torch
from torch import Tensor
from torch.nn.functional import pad

from ... import _options
from ..._blur import Blur
from .. import _checks
from ..arrays import inferring, matmul, working
from ..gradients import straight_through
from ..permutation import RelaxedPermutation
from ..pytrees import pytree
from ..softness import looked_for, temperature
from ..tracing import arctangent, exporting, is_open, room_for, stable_sort
from .layers import Swap, bitonic, compare, mix, next_power, odd_even
from .on_host import lacks_float64, on_host
from .ordering import Ordered
from .scored import Kernel, ScorePermutation, unrelaxed

# Scores beyond this many temperatures are as good as this many, and infinite ones stand farther
# off: so far that pairs of them and others, which lie beyond, swap wholly or not at all.
ENDLESS, BEYOND, FAR = 1e290, 1e295, 1e300
# From here on the share of a pair with the reciprocal swap is rounded to 0 or 1.
WHOLE = 1e17

KINDS = {"odd_even": "n layers of neighbours", "bitonic": "O(log^2 n) layers, far pairs first"}


def _cauchy(v: Tensor) -> Tensor:
    return arctangent(v).div_(math.pi).add_(0.5)


def _reciprocal(v: Tensor) -> Tensor:
    v = v.clamp(-WHOLE, WHOLE)  # of larger ones the derivative would be infinity times 0
    return (v / (2 + v.abs()) + 1) / 2


def _optimal(v: Tensor) -> Tensor:
    """A straight line through the middle, then a hyperbola: no monotone swap errs less."""
    tail = (0.0625 / v.abs().clamp(min=0.25)).masked_fill(v.abs() > BEYOND, 0.0)
    return torch.where(v.abs() <= 0.25, v + 0.5, torch.where(v > 0, 1 - tail, tail))


SWAPS = {
    "logistic": Swap(torch.sigmoid, lambda v, share: share * (1 - share)),
    "cauchy": Swap(_cauchy, lambda v, _: (v * v).add_(1).mul_(math.pi).reciprocal_()),
    "reciprocal": Swap(_reciprocal, lambda v, _: 1 / (2 + v.abs()) ** 2),
    "optimal": Swap(_optimal, lambda v, _: 0.0625 / v.abs().clamp(min=0.25) ** 2),
}

TAILS = {
    "logistic": "exponential",
    "cauchy": "heavy",
    "reciprocal": "as heavy and quick to compute",
    "optimal": "as heavy with the least error",
    "error_free": "hard in values and optimal in gradients",
}


def sorting_network(
    scores: Tensor,
    *,
    tau: _checks.Tau = 0.1,
    kind: str = "odd_even",
    swap: str = "cauchy",
    mask: Tensor | None = None,
) -> RelaxedPermutation:
    r"""Relaxes the permutation that sorts `scores` in descending order, by a sorting network.

    $$\widehat P = L_k \cdots L_1, \qquad \beta = \sigma\big((a - b) / \tau\big)$$

    for layers $L$ that swap by shares $\beta$ every pair whose wires hold a and b and should end in
    ascending order; $\sigma$ is the distribution function of the logistic or Cauchy distribution,
    the reciprocal $v \mapsto (v / (2 + |v|) + 1) / 2$, or the optimal $v \mapsto v + 1/2$ for
    $|v| \le 1/4$ and $1 - 1 / (16 v)$ beyond, mirrored for negative v. Rows and columns sum to
    one. As `tau` tends to 0 this becomes the hard permutation matrix of
    `torch.argsort(scores, descending=True)` for distinct scores. The network sees the order of the
    items: permuting them permutes the columns only in that limit.

    With the error-free swap every comparator swaps wholly or not at all, and has the derivatives of
    the optimal one: P is the hard permutation at every temperature, and layers compare values that
    nothing has mixed. It is for costs of what is sorted, or of the matrix; a cross-entropy wants
    the weights of `"optimal"`.

    Args:
        scores: `(..., n)`. Values to sort; leading dimensions are batch, n is any number.
        tau: Temperature: a number, a `Blur`, or a tensor that broadcasts against `scores` with a
            last dimension of 1; it may require gradients. In units of the scores; its inverse is
            known as steepness; 0 is the hard permutation.
        kind: `"odd_even"`, n layers of neighbours, or `"bitonic"`, O(log^2 n) layers.
        swap: `"logistic"`, `"cauchy"`, `"reciprocal"`, `"optimal"` or `"error_free"`. With the
            middle three, no sorted value falls when a score rises; with the first it may.
        mask: `(..., n)` boolean, True where the item exists. Absent items take no part; the last
            rows place them in index order.

    Returns:
        The relaxed permutation `(..., n, n)`. Its `permutation()` is the stable descending sort.

    Raises:
        TypeError: If `scores` is not floating point, or `mask` not boolean.
        ValueError: If `tau` is negative, `kind` or `swap` unknown, or a shape does not fit.

    Example:
        >>> scores = torch.tensor([1.0, 3.0, 2.0])
        >>> sorting_network(scores, tau=1e-3, kind="bitonic").sort(scores).round(decimals=2)
        tensor([3., 2., 1.])

    Reference: Petersen et al. (2021), Eqs. 2-4; Petersen et al. (2022) for the Cauchy, the
    reciprocal and the optimal swap; Kim et al. (2024) for the error-free one. Time per payload
    column: O(n^2) for odd-even, O(n log^2 n) for bitonic; the matrix itself is n such columns.
    Memory: O(n) per layer and column.
    """
    scores = _checks.scores("sorting_network(scores)", scores)
    _options.choice("kind", kind, KINDS)
    _options.choice("swap", swap, TAILS)
    mask = _checks.mask(mask, scores)
    ranks = tau.ranks if isinstance(tau, Blur) else None
    tau = temperature(tau, scores, mask, of_blur=lambda ranks: ranks / 8)

    exact = swap == "error_free"
    network, soft = (ErrorFreeNetwork, "optimal") if exact else (Network, swap)

    def make(scores: Tensor, tau: float | Tensor, mask: Tensor | None) -> RelaxedPermutation:
        if inferring():  # its wires may serve gradients when that has ended
            with torch.inference_mode(False):
                return make(scores, tau, mask)
        ordered = Ordered(scores, tau, mask)
        return NetworkPermutation(network(kind, soft, ordered), ordered, scores.dtype)

    def at(tau: float | Tensor) -> RelaxedPermutation:
        if lacks_float64(scores.device):
            return on_host(make, scores.device, scores, tau, mask)
        return make(scores, tau, mask)

    if (hard := unrelaxed(scores, tau, mask)) is not None:
        return hard
    if ranks is not None and isinstance(tau, Tensor):
        tau = looked_for(ranks, tau, lambda tau: at(tau).entropy(), mask)
    return at(tau).straight_through() if exact else at(tau)


class Network(Kernel):
    """Layers for lists of n items, where the items stand, and by how much their pairs swap.

    Items stand on the last wires, in their order; pairs with a wire that has none, or one that is
    absent, are not compared. Values rise along the wires: positions count from the last one.
    """

    name = "sorting_network"
    needs_float64 = True

    def __init__(self, kind: str, swap: str, ordered: Ordered) -> None:
        n, device = ordered.n, ordered.scores.device
        self._options = kind, swap
        self.swap, self.ordered = SWAPS[swap], ordered
        self.bitonic = kind == "bitonic"
        # Graphs that serve several lengths have wires for the longest, some of them empty.
        self.padded = ordered.mask is not None or is_open(n)
        slots = room_for(n) if is_open(n) else n
        self.layers = bitonic(slots) if self.bitonic else odd_even(slots)
        self.width = next_power(slots) if self.bitonic else slots
        item = slot = torch.arange(n, device=device)
        self.count = torch.full((1,), n, device=device)
        if ordered.mask is not None:  # present items take the first slots
            item = stable_sort(~ordered.mask)[1]
            self.count = ordered.mask.sum(-1, keepdim=True)  # (..., 1)
        end = self._end()
        self.spare = spare = end - self.count
        absent = slot - self.count  # negative for those present
        wire = torch.where(absent < 0, slot + spare, torch.where(absent < spare, absent, slot))
        self.wire_of_item = torch.empty_like(wire).scatter(-1, item.expand_as(wire), wire)
        self.wire_of_row = torch.where(absent < 0, end - 1 - slot, wire)
        self.item_of_wire = self._inverse(self.wire_of_item)
        self.row_of_wire = self._inverse(self.wire_of_row)
        wires = torch.arange(self.width, device=device)
        self.live = (wires >= spare) & (wires < end)  # (..., width)
        self.full = not self.padded and self.width == n
        self._shares: dict[tuple[bool, bool], list[Tensor]] = {}  # apart by mode

    def options(self) -> tuple[str, str]:
        return self._options

    @classmethod
    def of(cls, options: tuple[str, str], ordered: Ordered) -> "Network":
        return cls(*options, ordered)

    def _end(self) -> Tensor:
        """The wire after the last item present: they sort as a shorter list would."""
        if not self.bitonic or not self.width:
            return self.count
        # The next power of two, in operations that export and need nothing from the host:
        # 1 + 1 + 2 + 4 + ... over all powers below.
        end = torch.ones_like(self.count)
        for i in range(self.width.bit_length()):
            end = end + (self.count > 1 << i) * (1 << i)
        return end

    def _inverse(self, wires: Tensor) -> Tensor:
        """What stands on each wire; for empty wires anything, since nothing leaves them."""
        index = torch.arange(wires.shape[-1], device=wires.device).expand_as(wires)
        return wires.new_zeros(*wires.shape[:-1], self.width).scatter(-1, wires, index)

    def shares(self) -> list[Tensor]:
        """By how much the pairs of each layer swap, `(..., runs, distance)`, in float64."""
        mode = self.ordered.mode
        if mode not in self._shares:
            self._shares[mode] = self._compare()
        return self._shares[mode]

    def _compare(self) -> list[Tensor]:
        o = self.ordered
        if not self.layers:
            return []
        poison = torch.where(o.scores.isnan().any(-1, keepdim=True), torch.nan, 0.0)
        x, far = o.scores.to(o.exact), o.scores.isinf()
        # From the median, so that neither an offset of the scores nor a few large ones cost digits.
        centred = x.masked_fill(far, 0.0) - self._median(x.detach(), far)
        scaled = (centred / o.tau).clamp(-ENDLESS, ENDLESS)
        x = torch.where(far, FAR * x.detach().sign(), scaled) + poison
        x = _take(x, self.item_of_wire, -1)
        if o.hard is None and not self.padded and (fast := self._compared(x)) is not None:
            return list(fast)
        hard = None if o.hard is None else (o.hard.unsqueeze(-1) if o.hard.dim() else o.hard)
        shares = []
        for layer in self.layers:
            a, b = layer.split(x, -1)
            directions = layer.directions(self.spare, x.dtype)
            wrong = a - b if directions is None else (a - b) * directions
            share = self.swap.share(wrong)
            if hard is not None:
                share = torch.where(hard, (wrong > 0).to(x.dtype) + poison.unsqueeze(-1), share)
            if not self.full:
                share = share * torch.logical_and(*layer.split(self.live, -1))
            if self.padded:
                share = share * (self.count > layer.longer).unsqueeze(-1)
            x = layer.join(x, *self._swapped(len(shares), a, b, share))
            shares.append(share)
        return shares

    def _compared(self, x: Tensor) -> tuple[Tensor, ...] | None:
        """The shares of all layers for lists whose items all exist, if there is a fast way."""
        return compare(x, self.layers, self.swap, self.width - self.ordered.n)

    def _median(self, x: Tensor, far: Tensor) -> Tensor:
        """The lower median of what is not far off, `(..., 1)`; 0 where there is none."""
        if not exporting():
            return x.masked_fill(far, torch.nan).nanmedian(-1, keepdim=True).values.nan_to_num()
        above = (x == torch.inf).sum(-1, keepdim=True)
        half = (~far).sum(-1, keepdim=True) // 2
        place = (above + half).clamp(max=x.shape[-1] - 1)
        middle = self.ordered.values.detach().to(x.dtype).gather(-1, place)
        return middle.masked_fill(middle.isinf(), 0.0)

    def _swapped(self, at: int, a: Tensor, b: Tensor, share: Tensor) -> tuple[Tensor, Tensor]:
        """The values of pairs after the layer `at`, which the next ones compare."""
        return torch.lerp(a, b, share), torch.lerp(b, a, share)

    def apply(self, x: Tensor, *, back: bool = False) -> Tensor:
        """What stands on the wires `(..., width, d)` after all layers; `back`: the transpose."""
        batch = torch.broadcast_shapes(self.ordered.batch, x.shape[:-2])
        x = x.expand(*batch, *x.shape[-2:])
        unit = _unit(x)
        return self._alone(self._through(x / unit, back) * unit)

    def _through(self, x: Tensor, back: bool) -> Tensor:
        shares, layers = self.shares(), self.layers
        if back:  # a layer is symmetric
            shares, layers = shares[::-1], layers[::-1]
        return mix(x, shares, layers)

    def _alone(self, x: Tensor) -> Tensor:
        """Spoils what passes no layer, `(..., 1, d)`, where the temperature is none."""
        if self.layers or not self.ordered.tempered:
            return x
        return x + self.ordered.poison().unsqueeze(-1).to(x.dtype)

    def matrix(self, ordered: Ordered, dtype: torch.dtype, rows: int) -> Tensor:
        if not self.padded:
            return self._merged(dtype, rows) if self.bitonic else self._layered(dtype, rows)
        wires = self._merged(dtype) if self.bitonic else self._layered(dtype)
        return _take(_take(wires, self.wire_of_row[..., :rows], -2), self.wire_of_item, -1)

    def _layered(self, dtype: torch.dtype, rows: int | None = None) -> Tensor:
        """`apply` of the identity; or its last rows, the last one first."""
        wires = self.apply(torch.eye(self.width, dtype=dtype, device=self.live.device))
        return wires if rows is None else wires.flip(-2)[..., :rows, :]

    def _merged(self, dtype: torch.dtype, rows: int | None = None) -> Tensor:
        """The same by matrices that grow with the runs; with `rows`, no columns of empty wires.

        Before two runs are merged, neither holds anything of the other; and merging them is a
        matrix that grows as well, from its last layer to its first.
        """
        device = self.live.device
        runs = torch.ones(*self.ordered.batch, self.width, 1, 1, dtype=dtype, device=device)
        of_size = {}
        for layer, share in zip(self.layers, self.shares(), strict=True):
            of_size.setdefault(layer.longer, []).insert(0, share.to(dtype))
        for size, shares in of_size.items():
            last = rows is not None and 2 * size == self.width
            merge = None
            for share in shares:
                keep = 1 - share
                if last:  # the rows of every pair the other way round, and the pairs
                    keep, share = share.flip(-2), keep.flip(-2)
                both = torch.stack([keep, share, share, keep], -2)  # (..., pairs, 4, distance)
                both = both.unflatten(-2, (2, 2)).flatten(-4, -3).unsqueeze(-3)
                merge = both if merge is None else merge.unsqueeze(-2) * both
                merge = merge.flatten(-2)  # columns of both runs
                merge = merge.unflatten(-3, (-1, 2)).flatten(-3, -2)
            assert merge is not None  # every size has a layer
            if last:
                merge = merge[..., :rows, :]
            if size == 1:  # of runs of one wire, whose matrices are [[1]]
                runs = merge
                continue
            upper, lower = runs.unflatten(-3, (-1, 2)).unbind(-3)
            left, right = merge.split(size, -1)
            if last:
                upper = upper[..., self.width - self.ordered.n :]
            runs = torch.cat([matmul(left, upper), matmul(right, lower)], -1)
        return self._alone(runs.squeeze(-3))


class ErrorFreeNetwork(Network):
    """A network whose comparators are hard in values and soft in derivatives.

    Its products are for their gradient alone: `StraightThrough` puts the hard permutation in their
    place. Ties swap as a stable sort has them, whose positions the layers compare.
    """

    def __init__(self, kind: str, swap: str, ordered: Ordered) -> None:
        super().__init__(kind, swap, ordered)
        self.swaps = self._decide(_take(ordered.rank(), self.item_of_wire, -1))

    def _decide(self, place: Tensor) -> list[Tensor]:
        """Which pairs of each layer swap, `(..., runs, distance)`, for places from the largest."""
        swaps = []
        for layer in self.layers:
            a, b = layer.split(place, -1)
            directions = layer.directions(self.spare, self.ordered.exact)
            wrong = a < b if directions is None else torch.where(directions > 0, a < b, a > b)
            wrong = wrong & torch.logical_and(*layer.split(self.live, -1))
            wrong = wrong & (self.count > layer.longer).unsqueeze(-1)
            place = layer.join(place, torch.where(wrong, b, a), torch.where(wrong, a, b))
            swaps.append(wrong)
        return swaps

    def _compared(self, x: Tensor) -> None:
        return None  # what the layers compare is not what their shares would make of it

    def _swapped(self, at: int, a: Tensor, b: Tensor, share: Tensor) -> tuple[Tensor, Tensor]:
        wrong, soft = self.swaps[at], super()._swapped(at, a, b, share)
        hard = torch.where(wrong, b, a), torch.where(wrong, a, b)
        return straight_through(hard[0], soft[0]), straight_through(hard[1], soft[1])

    def _hard(self, x: Tensor, at: int) -> Tensor:
        layer, wrong = self.layers[at], self.swaps[at].unsqueeze(-1)
        a, b = layer.split(x, -2)
        return layer.join(x, torch.where(wrong, b, a), torch.where(wrong, a, b), -2)

    def _through(self, x: Tensor, back: bool) -> Tensor:
        steps = range(len(self.layers))
        for at in reversed(steps) if back else steps:
            x = self._back(x, at) if back else self._forth(x, at)
        return x

    def _forth(self, x: Tensor, at: int) -> Tensor:
        return straight_through(self._hard(x, at), self._soft(x, at))

    def _back(self, x: Tensor, at: int) -> Tensor:
        # The transpose of the above: values go the way of its gradients, and the other way round.
        soft, hard = self._soft(x.detach(), at), self._hard(x, at)
        return soft + straight_through(torch.zeros_like(hard), hard)

    def _soft(self, x: Tensor, at: int) -> Tensor:
        return mix(x, self.shares()[at : at + 1], self.layers[at : at + 1])

    def matrix(self, ordered: Ordered, dtype: torch.dtype, rows: int) -> Tensor:
        wires = self._layered(dtype)
        rows_of, items_of = self.wire_of_row[..., :rows], self.wire_of_item
        return _take(_take(wires, rows_of, -2), items_of, -1)


@pytree
@final
class NetworkPermutation(ScorePermutation):
    """The relaxed permutation of a sorting network: products pass through its layers."""

    _kernel: Network  # pyright: ignore
    _written = False

    def _product(self, x: Tensor) -> Tensor:
        if x.dim() == 1:
            return self._product(x.unsqueeze(-1)).squeeze(-1)
        self._ordered.check_unchanged()
        network = self._kernel
        wires = network.apply(_take(x, network.item_of_wire, -2))
        return _take(wires, network.wire_of_row[..., : self._rows], -2)

    def _transposed(self, y: Tensor) -> Tensor:
        if y.dim() == 1:
            return self._transposed(y.unsqueeze(-1)).squeeze(-1)
        self._ordered.check_unchanged()
        network = self._kernel
        rows = pad(y, (0, 0, 0, self.shape[-1] - self._rows))
        wires = network.apply(_take(rows, network.row_of_wire, -2), back=True)
        return _take(wires, network.wire_of_item, -2)

    def _rank(self) -> Tensor:
        place = torch.arange(1, self.shape[-1] + 1, device=self.device)
        return self._transposed(place.to(working(self.dtype)))  # columns sum to 1


def _unit(x: Tensor) -> Tensor:
    """8 for columns of `(..., width, d)` of which differences would overflow, else 1."""
    if not x.shape[-2]:
        return x.new_ones(())
    large = x.detach().abs().amax(-2, keepdim=True) > torch.finfo(x.dtype).max / 8
    return torch.where(large, 8.0, 1.0).to(x.dtype)


def _take(x: Tensor, index: Tensor, dim: int) -> Tensor:
    """Entries of x along a dimension: the same `(m,)` for all lists, or `(..., m)` for each."""
    if index.dim() == 1:
        return x.index_select(dim, index)
    if x.dim() > index.dim() or dim == -2:
        index = index.unsqueeze(-1 if dim == -2 else -2)
        batch = torch.broadcast_shapes(x.shape[:-2], index.shape[:-2])
        x = x.expand(*batch, *x.shape[-2:])
        shape = (index.shape[-2], x.shape[-1]) if dim == -2 else (x.shape[-2], index.shape[-1])
        index = index.expand(*batch, *shape)
    return x.gather(dim, index)
