r"""Soft sorting and ranking by projection onto the permutahedron: values only, no matrix.

The permutahedron of w is the convex hull of the permutations of w. For z and w in descending order
its point nearest to z is an isotonic regression: neighbours that would come out in the wrong order
are pooled into blocks B, and within a block

$$y = z - \operatorname{mean}_B(z) + \operatorname{mean}_B(w), \qquad\text{or}\qquad
  y = z - \operatorname{lse}_B(z) + \operatorname{lse}_B(w)$$

for quadratic and for entropic regularisation, lse being the logarithm of summed exponentials. Only
the search for the blocks is written by hand. Given the blocks, all is plain operations, and
derivatives of every order are autograd's.
"""

import math
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from .. import _options
from . import _checks
from .arrays import longest
from .pooling import ordinary, soft_ranks, soft_values
from .relaxations.ordering import Ordered, share_ties, tie_groups
from .tracing import exporting, running_max, running_min, stable_sort

# Rounds in which all neighbours in the wrong order are pooled at once. What they leave is pooled
# pair by pair, each pair once, so that no list takes quadratic time.
ROUNDS = 8
# Lists up to this length are pooled at once where values cannot be read in passing.
LONGEST_AT_ONCE = 512
# Values of blocks that differ by less, of their own size, are one block.
ROUNDING = 1e-13

# Temperatures below this one, but not 0, count as it: they are as good as 0, and would overflow.
WEAKEST = 1e-290

REGULARIZATIONS = {"l2": "quadratic", "kl": "entropic"}


def fast_soft_sort(
    x: Tensor,
    *,
    tau: float | Tensor | None = None,
    strength: float | None = None,
    regularization: str = "l2",
    dim: int = -1,
    descending: bool = False,
    mask: Tensor | None = None,
) -> Tensor:
    r"""Differentiable sort of values, without a relaxed permutation.

    $$\text{fast\_soft\_sort}(x) = \operatorname*{arg\,min}_{y \in \mathcal P(x)}
      \big\| y - \rho / \varepsilon \big\|^2, \qquad \rho = (1, \dots, n)$$

    where $\mathcal P(x)$ is the convex hull of the permutations of x and $\varepsilon$ the
    temperature; `"kl"` measures the Kullback-Leibler divergence of exponentials instead. Its hard
    counterpart is `torch.sort(x, dim, descending).values`, which it tends to as `tau` tends to
    0, and equals as soon as $1/\varepsilon$ exceeds every gap between neighbours under `"l2"`.

    Args:
        x: Values, any shape.
        tau: Temperature $\varepsilon$, not negative, in units of 1 / x; 1 unless given. Larger is
            softer; 0 is the hard sort. A number, or a tensor as in `soft_sort`, which may require
            gradients.
        strength: The same, a number, under its name in the literature.
        regularization: `"l2"`, quadratic, or `"kl"`, entropic.
        dim: The dimension that holds the lists.
        descending: Largest first.
        mask: Boolean, the shape of `x`, True where the item exists. Absent items come last, in
            index order.

    Returns:
        The shape of `x`. Lists come out in order, and with `"l2"` keep their sum.

    Raises:
        TypeError: If `x` is not floating point, or `mask` not boolean.
        ValueError: If `tau` is negative or given twice, `regularization` unknown, `dim` out of
            range, or a shape does not fit.

    Example:
        >>> fast_soft_sort(torch.tensor([5.0, 1.0, 2.0]), tau=1.0)
        tensor([1.6667, 2.6667, 3.6667])
        >>> fast_soft_sort(torch.tensor([5.0, 1.0, 2.0]), tau=0.1)
        tensor([1., 2., 5.])

    Reference: Blondel et al. (2020), Eq. 5. Time: O(n log n); memory: O(n).
    """
    x = _checks.scores("fast_soft_sort(x)", x)
    dim = _options.dim(dim, tuple(x.shape))
    entropic = _options.choice("regularization", regularization, REGULARIZATIONS) == "kl"
    if longest(x.device) is torch.float32:  # a device without float64: on the host
        options: dict[str, Any] = {"tau": tau, "strength": strength, "mask": mask}
        options = {k: v.cpu() if isinstance(v, Tensor) else v for k, v in options.items()}
        kind: dict[str, Any] = {"descending": descending, "regularization": regularization}
        return fast_soft_sort(x.cpu(), dim=dim, **kind, **options).to(x.device)
    lists, there = _lists(x, dim, mask)
    unit = _unit(tau, strength, lists)
    if x.device.type == "meta":  # a shape without values, which decide what is pooled
        return x.clone()
    values = None if entropic or there is not None else ordinary(lists, unit)
    soft = None if values is None else soft_values(lists, values, unit, descending)  # pyright: ignore
    if soft is not None:
        return soft.movedim(-1, dim)
    sign = 1 if descending else -1
    if there is None:
        s = sign * stable_sort(_exact(lists), descending=descending)[0]
        apart, walls = s.isinf(), _walls(s)
    else:
        s, perm = _beside_absent(sign * lists, there)
        absent = ~there.gather(-1, perm)
        apart, walls = s.isinf() | absent, _walls(s) | absent
    if unit is not None:
        soft = _project(_countdown(s) / unit, s.masked_fill(apart, 0.0), entropic, walls)
        s = torch.where(apart, s, soft)
    return _spoil(sign * s, lists, there).to(x.dtype).movedim(-1, dim)


def fast_soft_rank(
    x: Tensor,
    *,
    tau: float | Tensor | None = None,
    strength: float | None = None,
    regularization: str = "l2",
    dim: int = -1,
    descending: bool = False,
    mask: Tensor | None = None,
) -> Tensor:
    r"""Differentiable ranks, from 1, without a relaxed permutation.

    $$\text{fast\_soft\_rank}(x) = \operatorname*{arg\,min}_{y \in \mathcal P(\rho)}
      \big\| y - x / \varepsilon \big\|^2, \qquad \rho = (1, \dots, n)$$

    where $\mathcal P(\rho)$ is the convex hull of the permutations of $\rho$ and $\varepsilon$ the
    temperature; `"kl"` measures the Kullback-Leibler divergence from $\exp(x / \varepsilon)$
    instead. Its hard counterpart is `scipy.stats.rankdata(x)`, which it tends to as `tau` tends to
    0: the smallest value has rank 1, ties share the mean of their ranks.

    Args:
        x: Values, any shape.
        tau: Temperature $\varepsilon$, not negative, in units of x; 1 unless given. Larger is
            softer; 0 gives the hard ranks, without gradient. A number, or a tensor as in
            `soft_rank`, which may require gradients.
        strength: The same, a number, under its name in the literature.
        regularization: `"l2"`, quadratic, or `"kl"`, entropic.
        dim: The dimension that holds the lists.
        descending: Count from the largest.
        mask: Boolean, the shape of `x`, True where the item exists. Absent items have the last
            ranks, in index order.

    Returns:
        The shape of `x`, between 1 and n; ranks sum to `n (n + 1) / 2`.

    Raises:
        TypeError: If `x` is not floating point, or `mask` not boolean.
        ValueError: If `tau` is negative or given twice, `regularization` unknown, `dim` out of
            range, or a shape does not fit.

    Example:
        >>> fast_soft_rank(torch.tensor([5.0, 1.0, 2.0]), tau=2.0)
        tensor([3.0000, 1.2500, 1.7500])
        >>> fast_soft_rank(torch.tensor([5.0, 1.0, 2.0]), tau=0.1)
        tensor([3., 1., 2.])

    Reference: Blondel et al. (2020), Eq. 6. Time: O(n log n); memory: O(n).
    """
    x = _checks.scores("fast_soft_rank(x)", x)
    dim = _options.dim(dim, tuple(x.shape))
    entropic = _options.choice("regularization", regularization, REGULARIZATIONS) == "kl"
    if longest(x.device) is torch.float32:  # a device without float64: on the host
        options: dict[str, Any] = {"tau": tau, "strength": strength, "mask": mask}
        options = {k: v.cpu() if isinstance(v, Tensor) else v for k, v in options.items()}
        kind: dict[str, Any] = {"descending": descending, "regularization": regularization}
        return fast_soft_rank(x.cpu(), dim=dim, **kind, **options).to(x.device)
    lists, there = _lists(x, dim, mask)
    unit = _unit(tau, strength, lists)
    if x.device.type == "meta":  # a shape without values, which decide what is pooled
        return x.clone()
    values = None if entropic or there is not None else ordinary(lists, unit)
    soft = None if values is None else soft_ranks(lists, values, unit, descending)  # pyright: ignore
    if soft is not None:
        return soft.movedim(-1, dim)
    if there is None:
        s, perm = stable_sort(_exact(-lists if descending else lists), descending=True)
        w, absent = _countdown(s), torch.zeros_like(perm, dtype=torch.bool)
    else:
        s, perm = _beside_absent(-lists if descending else lists, there)
        absent = ~there.gather(-1, perm)
        s = s.masked_fill(absent, -torch.inf)
        place = torch.arange(1, s.shape[-1] + 1, dtype=s.dtype, device=s.device)
        w = torch.where(absent, place, there.sum(-1, keepdim=True) + 1 - place)
    if unit is not None or not s.shape[-1]:
        s = s if unit is None else s / unit
        z = s.masked_fill(s.isinf(), 0.0)
        y = _project(z, w.log() if entropic else w, entropic, _walls(s) | absent)
        y = torch.where(absent, w, y.exp() if entropic else y)
    else:
        differ = (s[..., :-1] != s[..., 1:]) | absent[..., 1:]
        ties = tie_groups(pad(differ, (0, 1), value=True).to(w.dtype))
        y = share_ties(w, ties) + 0 * s.masked_fill(s.isinf(), 0.0)
    rank = torch.zeros_like(y).scatter(-1, perm, y)
    return _spoil(rank, lists, there).to(x.dtype).movedim(-1, dim)


def _lists(x: Tensor, dim: int, mask: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """Lists with their items last, and which of these are there."""
    mask = _checks.mask(mask, x)
    return x.movedim(dim, -1), None if mask is None else mask.movedim(dim, -1)


def _unit(
    tau: float | Tensor | None, strength: float | None, lists: Tensor
) -> float | Tensor | None:
    """What divides: a number, or one per list; None where nothing is softened."""
    unit = _checks.softness(tau, strength, lists)
    if isinstance(unit, Tensor):
        return _exact(unit).clamp(min=_exact(unit.new_full((), WEAKEST)))
    return max(unit, WEAKEST) if unit else None


def _beside_absent(lists: Tensor, there: Tensor) -> tuple[Tensor, Tensor]:
    """Lists in descending order, absent items last, and the item at each place."""
    perm = Ordered(lists.detach(), 1.0, there).perm
    return _exact(lists).gather(-1, perm), perm


def _exact(x: Tensor) -> Tensor:
    return x.to(torch.float64)


def _countdown(s: Tensor) -> Tensor:
    """n, ..., 1 for every list."""
    n = s.shape[-1]
    return torch.arange(n, 0, -1, dtype=s.dtype, device=s.device).expand(s.shape)


def _walls(s: Tensor) -> Tensor:
    """Where a block must begin, `(..., n)`: at the start, and beside other values at infinity."""
    end = s[..., 1:].isinf() | s[..., :-1].isinf()
    return pad(end & (s[..., 1:] != s[..., :-1]), (1, 0), value=True)[..., : s.shape[-1]]


def _spoil(y: Tensor, lists: Tensor, there: Tensor | None) -> Tensor:
    """A NaN spoils its own list, if its item is there."""
    unknown = lists.isnan() if there is None else lists.isnan() & there
    return y.masked_fill(unknown.any(-1, keepdim=True), torch.nan)


def _project(z: Tensor, w: Tensor, entropic: bool, walls: Tensor) -> Tensor:
    """The point of the permutahedron of w nearest to z, both in descending order `(..., n)`."""
    first = _blocks(z.detach(), w.detach(), walls, entropic)  # pyright: ignore

    def total(x: Tensor) -> Tensor:
        """Sums of x over the block of each item."""
        return torch.zeros_like(x).scatter_add(-1, first, x).gather(-1, first)

    # From the largest of each block, so that a large z costs no digits.
    top = z.detach().gather(-1, first)
    z = z - top
    if entropic:
        high = w.detach().gather(-1, first)
        return z - total(z.exp()).log() + (high + total((w - high).exp()).log())
    count = total(torch.ones_like(z))
    return z - total(z) / count + total(w) / count


# -- isotonic regression ---------------------------------------------------------------------------


def _blocks(z: Tensor, w: Tensor, walls: Tensor, entropic: bool) -> Tensor:
    """The first position of the block around each position, `(..., n)`."""
    if exporting() and z.shape[-1] <= LONGEST_AT_ONCE:  # to run where there is no such operation
        return _blocks_at_once(z, w, walls, entropic)
    if torch.compiler.is_compiling():
        return _blocks_untraced(z, w, walls, entropic)
    return _Blocks.apply(z, w, walls, entropic)  # pyright: ignore


# How often to pool depends on data: one operation of compiled graphs, which do not look inside.
@torch.library.custom_op("neuralsort::isotonic_blocks", mutates_args=())
def _blocks_untraced(z: Tensor, w: Tensor, walls: Tensor, entropic: bool) -> Tensor:
    return _Blocks.forward(z, w, walls, entropic)


@_blocks_untraced.register_fake
def _(z: Tensor, w: Tensor, walls: Tensor, entropic: bool) -> Tensor:
    return torch.empty_like(z, dtype=torch.int64)


class _Blocks(torch.autograd.Function):
    """A constant almost everywhere; a function of autograd for its rule under vmap alone."""

    @staticmethod
    def forward(z: Tensor, w: Tensor, walls: Tensor, entropic: bool) -> Tensor:
        if z.device.type != "cpu" and z.shape[-1] <= LONGEST_AT_ONCE:
            return _blocks_at_once(z, w, walls, entropic)
        pool = (_EntropicPool if entropic else _QuadraticPool)(z.reshape(-1), w.reshape(-1))
        start, wall = torch.arange(z.numel(), device=z.device), walls.reshape(-1)
        for turn in range(ROUNDS):
            keep = _in_order(pool.value) | wall
            if turn == 0:  # ties stay together also where z is so large that w drowns in it
                keep &= _apart(z.reshape(-1)) | wall
            if keep.all():
                break
            pool.merge(keep)
            start, wall = start[keep], wall[keep]
        else:
            start = start[_pair_by_pair(pool, wall)]
        flat = torch.zeros(z.numel(), dtype=torch.int64, device=z.device)
        flat[start] = start
        return flat.cummax(0).values.view(z.shape) % max(z.shape[-1], 1)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple, output: Tensor) -> None:
        ctx.mark_non_differentiable(output)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple:  # pyright: ignore
        return (None,) * 4

    @staticmethod
    def vmap(info: Any, in_dims: tuple, *args: Any) -> tuple[Tensor, int]:
        tensors = [
            x.movedim(d, 0) if d is not None else x.expand(info.batch_size, *x.shape)
            for x, d in zip(args[:3], in_dims[:3], strict=True)
        ]
        return _blocks(*tensors, args[3]), 0  # pyright: ignore


def _blocks_at_once(z: Tensor, w: Tensor, walls: Tensor, entropic: bool) -> Tensor:
    """The same without a look at any value, in O(n^2).

    For devices that would have to be awaited, and for exported programs.

    The value at i is the least over all starts a <= i of the largest over all ends b >= i of the
    value of the block from a to b.
    """
    n = z.shape[-1]
    index = torch.arange(n, device=z.device)
    ahead = index >= index.unsqueeze(-1)  # (a, b)
    room = walls.cumsum(-1)
    inside = ahead & (room.unsqueeze(-1) == room.unsqueeze(-2))
    if entropic:
        value = _running_log(z, inside) - _running_log(w, inside)
    else:
        count = (index - index.unsqueeze(-1) + 1).clamp(min=1)
        value = (z - w).unsqueeze(-2).masked_fill(~inside, 0.0).cumsum(-1) / count
    value = value.masked_fill(~inside, -torch.inf)
    largest = running_max(value.flip(-1)).flip(-1)
    least = largest.masked_fill(~inside, torch.inf).amin(-2) if n else z
    before, here = least[..., :-1], least[..., 1:]
    falls = before - here > ROUNDING * (before.abs() + here.abs())
    falls = falls & (z[..., :-1] != z[..., 1:])  # ties stay together
    starts = pad(falls, (1, 0), value=True)[..., :n] | walls
    if not n:
        return index.expand(z.shape)
    # Blocks of one value stay apart: where what is before a place is worth what is after it.
    first = running_max(torch.where(starts, index, 0))
    ends = pad(starts[..., 1:], (0, 1), value=True)
    last = running_min(torch.where(ends, index, n - 1).flip(-1)).flip(-1)
    so_far = value[..., :-1].gather(-2, first[..., 1:].unsqueeze(-2)).squeeze(-2)
    from_here = value[..., 1:, :].gather(-1, last[..., 1:].unsqueeze(-1)).squeeze(-1)
    equal = from_here - so_far <= ROUNDING * (from_here.abs() + so_far.abs())
    starts = starts | pad(equal & (z[..., :-1] != z[..., 1:]), (1, 0))
    return running_max(torch.where(starts, index, 0))


def _running_log(x: Tensor, inside: Tensor) -> Tensor:
    """Logarithms of summed exponentials of x from a to b, `(..., a, b)`; x falls from a to b."""
    below = (x.unsqueeze(-2) - x.unsqueeze(-1)).masked_fill(~inside, -torch.inf)
    return x.unsqueeze(-1) + below.exp().cumsum(-1).log()


class _QuadraticPool:
    """Blocks by their sums and sizes; the value of a block is its mean of z - w."""

    def __init__(self, z: Tensor, w: Tensor) -> None:
        self.state = torch.stack([z - w, torch.ones_like(z)])

    @property
    def value(self) -> Tensor:
        return self.state[0] / self.state[1]

    def merge(self, keep: Tensor) -> None:
        """Adds every block that is not kept to the one before."""
        self.state = _run_sums(self.state, keep)

    def merged(self, left: list[float], right: list[float]) -> tuple[list[float], float]:
        """Two blocks as one, and its value."""
        both = [a + b for a, b in zip(left, right, strict=True)]
        return both, both[0] / both[1]


class _EntropicPool:
    """Blocks by their largest z and w and the sums of exponentials relative to these."""

    def __init__(self, z: Tensor, w: Tensor) -> None:
        self.state = torch.stack([z, w, torch.ones_like(z), torch.ones_like(w)])

    @property
    def value(self) -> Tensor:
        top, total = self.state[:2], self.state[2:].log()
        return (top[0] - top[1]) + (total[0] - total[1])

    def merge(self, keep: Tensor) -> None:
        """Adds every block that is not kept to the one before."""
        top, total = self.state[:2], self.state[2:]
        largest = top[:, keep]  # the first block of a run holds its largest items
        run = keep.cumsum(0) - 1
        total = _run_sums(total * (top - largest[:, run]).exp(), keep)
        self.state = torch.cat([largest, total])

    def merged(self, left: list[float], right: list[float]) -> tuple[list[float], float]:
        """Two blocks as one, and its value."""
        a, b, c, d = left
        c, d = c + right[2] * math.exp(right[0] - a), d + right[3] * math.exp(right[1] - b)
        return [a, b, c, d], (a - b) + (math.log(c) - math.log(d))


def _run_sums(x: Tensor, keep: Tensor) -> Tensor:
    """Sums `(k, m)` over runs that begin where `keep` is true."""
    run = keep.cumsum(0) - 1
    return x.new_zeros(len(x), int(run[-1]) + 1).index_add_(1, run, x)


def _apart(z: Tensor) -> Tensor:
    """Whether each entry differs from the one before."""
    return pad(z[1:] != z[:-1], (1, 0), value=True)[: len(z)]


def _in_order(value: Tensor) -> Tensor:
    """Whether each value is no larger than the one before."""
    return pad(value[1:] <= value[:-1], (1, 0), value=True)[: len(value)]


def _pair_by_pair(pool: _QuadraticPool | _EntropicPool, wall: Tensor) -> Tensor:
    """Which blocks are left when neighbours are pooled until all are in order."""
    left = torch.ones_like(wall, device="cpu")
    wrong = (~(_in_order(pool.value) | wall)).nonzero().squeeze(-1).tolist()
    if not wrong:
        return left.to(wall.device)
    # Through NumPy, whose lists are made several times faster.
    state, value = (x.cpu().numpy().tolist() for x in (pool.state.mT, pool.value))
    apart = [*wall.cpu().numpy().tolist(), True]
    before, after = list(range(-1, len(value) - 1)), list(range(1, len(value) + 1))
    gone = []
    for block in wrong:
        while True:
            if not apart[block] and value[block] > value[before[block]]:
                block = before[block]
            elif apart[after[block]] or value[after[block]] <= value[block]:
                break
            other = after[block]
            state[block], value[block] = pool.merged(state[block], state[other])
            after[block] = after[other]
            if after[block] < len(value):
                before[after[block]] = block
            apart[other], after[other] = True, len(value)  # what is gone draws nothing
            gone.append(other)
    left[gone] = False
    return left.to(wall.device)
