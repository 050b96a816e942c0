"""SoftSort: rows weigh items by their distance from the score that belongs there."""

import math
from typing import Any

import torch
from numpy import ndarray
from torch import Tensor
from torch.nn.functional import pad

from ... import _options
from ..._blur import gaussian, laplace
from ..._interpolation import softsort_error
from .. import _checks
from ..arrays import plain
from ..gradients import straight_through
from ..permutation import RelaxedPermutation
from ..softness import temperature
from .engine.bands import REACH, Bands, Sums, outward
from .engine.blocks import INVERSE_LOG_2, Block, LogitGradient, Workspace, in_pieces
from .engine.chebyshev import chebyshev
from .engine.differentiate import BandOperator
from .engine.recurrence import recurrence
from .engine.tiles import Tiles
from .neuralsort_matrix import to_matrix
from .ordering import Ordered, share_ties, tie_groups
from .scored import LazyKernel, relaxed

# A distance whose square carries no weight: exp(-900) is 0 in float64.
FAR = 30.0
# A distance that carries no weight, and whose square is a number in float32.
ENDLESS = 1e15
# A unit that has an inverse in float32, and the square of it too.
TINY = 1e-18


def softsort(
    scores: Tensor, *, tau: _checks.Tau = 1.0, power: float = 1.0, mask: Tensor | None = None
) -> RelaxedPermutation:
    r"""Relaxes the permutation that sorts `scores` in descending order, by distances of scores.

    $$\widehat P_{i,:} = \operatorname{softmax}\big[-|s_{[i]} - s|^p/\tau\big]$$

    where $s_{[i]}$ is the i-th largest score. Rows sum to one, and the row-wise argmax is the
    stable descending sort. As `tau` tends to 0 this becomes the hard permutation matrix of
    `torch.argsort(scores, descending=True)`.

    Args:
        scores: `(..., n)`. Values to sort; leading dimensions are batch.
        tau: Temperature: a number, a `Blur`, or a tensor that broadcasts against `scores` with a
            last dimension of 1; it may require gradients. It has the unit of `scores` to the power
            `power`; 0 is the hard permutation.
        power: 1 for absolute distances, 2 for squared ones.
        mask: `(..., n)` boolean, True where the item exists. Absent items take no part; the last
            rows place them in index order.

    Returns:
        The relaxed permutation `(..., n, n)`. Row `i` weighs the items for position `i`, largest
        first.

    Raises:
        TypeError: If `scores` is not floating point, or `mask` not boolean.
        ValueError: If `tau` is negative, `power` is neither 1 nor 2, or a shape does not fit.

    Example:
        >>> scores = torch.tensor([1.0, 3.0, 2.0])
        >>> softsort(scores, tau=0.1).sort(scores).round(decimals=2)
        tensor([3., 2., 1.])

    Reference: Prillo and Eisenschlos (2020), Eq. 3. Time and memory: O(n^2) per list up to 512
    items, then O(n log n) time and O(n) memory.
    """
    scores = _checks.scores("softsort(scores)", scores)
    power = _options.power(power)
    mask = _checks.mask(mask, scores)
    of_blur = laplace if power == 1 else gaussian
    tau = temperature(tau, scores, mask, of_blur=of_blur, power=power)
    return relaxed(SoftSortKernel(power), scores, tau, mask, power)


class SoftSortKernel(LazyKernel):
    """Log-weights that fall by the distance of scores, or by its square."""

    name = "softsort"
    unimodal = True

    def __init__(self, power: float) -> None:
        self.power = power

    def options(self) -> tuple[float]:
        return (self.power,)

    def _fall(self, ordered: Ordered, distance: Tensor) -> Tensor:
        fall = distance.abs() if self.power == 1 else distance.square()
        return ordered.shrink(fall, self.power)

    def matrix(self, ordered: Ordered, dtype: torch.dtype, rows: int) -> Tensor:
        matrix = self._plain(ordered, dtype, rows)
        if matrix is not None:
            return matrix
        row, column = _places(ordered, ordered.distance())
        by_item = column.gather(-1, ordered.rank()).unsqueeze(-2)
        distance = row[..., :rows].unsqueeze(-1) - by_item
        if ordered.exact is torch.float32:  # where sums of gaps have too few digits
            distance = straight_through(_differences(ordered, rows), distance)
        logits = self._fall(ordered, distance).neg()
        return torch.softmax(logits, -1, dtype=dtype)

    def _plain(self, ordered: Ordered, dtype: torch.dtype, rows: int) -> Tensor | None:
        """As the equation has it: a difference of two scores is exact to its last digit.

        Among ties it would not do: their rows are one score, and share its gradient. None for
        these, and where one cannot tell.
        """
        scores = ordered.scores
        if not plain(scores) or ordered.tempered or ordered.mask is not None:
            return None
        scale = float(ordered.scale())
        if scale < TINY:
            return None
        scores = scores.to(dtype).contiguous()
        values, perm = torch.sort(scores.detach(), descending=True)
        if not _apart(values.numpy(), ENDLESS * scale):
            return None
        if rows < ordered.n:
            values, perm = values[..., :rows], perm[..., :rows]
        return _Plain.apply(scores, values, perm, scale, self.power)  # pyright: ignore

    def fall(self, ordered: Ordered, place: Tensor) -> Tensor:
        rows = place.shape[-1]
        scores = ordered.values.detach().to(ordered.exact)
        above, below = scores[..., :rows], scores.gather(-1, place)
        # From the scores themselves: sums of gaps would lose the narrow ones beside a wide one.
        value = torch.where(above == below, 0.0, above - below) / ordered.scale()
        row, column = _places(ordered, torch.zeros_like(scores))
        distance = straight_through(value, row[..., :rows] - column.gather(-1, place))
        room = ordered.room()
        beyond = room.gather(-1, place) != room[..., :rows]
        # Before the square, whose slope there would be infinite, and 0 times infinity NaN.
        distance = distance.masked_fill(beyond, 0.0)
        return self._fall(ordered, distance).masked_fill(beyond, torch.inf)

    def operator(
        self, ordered: Ordered, dtype: torch.dtype, rows: int
    ) -> "BandOperator | ScanOperator":
        if self.power == 2:
            return BandOperator(SoftSortBands, ordered, dtype, rows)
        return ScanOperator(ordered, dtype, rows)


class _Plain(torch.autograd.Function):
    """`apply(scores, values, perm, scale, power)`, with the scores in order and the order.

    The largest weight of a row is that of its own item, 1, so no maximum has to be looked for.
    """

    @staticmethod
    def forward(
        ctx: Any, scores: Tensor, values: Tensor, perm: Tensor, scale: float, power: float
    ) -> Tensor:
        distance = values.unsqueeze(-1) - scores.unsqueeze(-2)
        fall = distance.abs_() if power == 1 else distance.div_(scale).square_()
        logits = fall.mul_(-INVERSE_LOG_2 / (scale if power == 1 else 1.0))
        # What underflows is slow, here and in all that is multiplied by it.
        least = math.log2(16 * torch.finfo(logits.dtype).tiny)
        weights = torch.threshold_(logits, least, -torch.inf).exp2_()
        matrix = weights.div_(weights.sum(-1, keepdim=True))
        ctx.scale, ctx.power = scale, power
        ctx.save_for_backward(matrix, scores, values, perm)
        ctx.save_for_forward(matrix, scores, values, perm)
        return matrix

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore
        matrix, scores, values, perm = ctx.saved_tensors
        weighted = matrix * grad
        total = weighted.sum(-1, keepdim=True)
        if torch.is_grad_enabled():
            moved = (weighted - matrix * total) * _slopes(ctx, scores.gather(-1, perm), scores)
        else:  # in place: to ask for memory takes longer than to compute
            slopes = _slopes(ctx, values, scores)
            moved = weighted.addcmul_(matrix, total, value=-1).mul_(slopes)
        to_scores = moved.sum(-2).scatter_add(-1, perm, moved.sum(-1).neg())
        to_scores = to_scores if ctx.scale == 1 else to_scores / ctx.scale
        return to_scores, None, None, None, None

    @staticmethod
    def jvp(ctx: Any, tangent: Tensor, *_: None) -> Tensor:  # pyright: ignore
        matrix, scores, values, perm = ctx.saved_tensors
        change = (tangent.unsqueeze(-2) - tangent.gather(-1, perm).unsqueeze(-1)) / ctx.scale
        return to_matrix(matrix, _slopes(ctx, values, scores) * change)


def _slopes(ctx: Any, values: Tensor, scores: Tensor) -> Tensor:
    """Of falls in the distance of a row's score from an item's, both in units: `(..., rows, n)`."""
    distance = values.unsqueeze(-1) - scores.unsqueeze(-2)
    if torch.is_grad_enabled():
        return distance.sign() if ctx.power == 1 else distance * (2 / ctx.scale)
    return distance.sign_() if ctx.power == 1 else distance.mul_(2 / ctx.scale)


def _apart(values: ndarray, largest: float) -> bool:
    """Whether values in descending order have no ties, and none is as large as this, or NaN."""
    falling = values[..., 1:] < values[..., :-1]
    return bool(falling.all()) and bool(abs(values).max() < largest)


def _differences(ordered: Ordered, rows: int) -> Tensor:
    """Differences of scores in units, `(..., rows, n)`, each from the two scores themselves."""
    values, rank, room = ordered.values.detach(), ordered.rank(), ordered.room()
    above, below = values[..., :rows].unsqueeze(-1), values.gather(-1, rank).unsqueeze(-2)
    apart = room[..., :rows].unsqueeze(-1) != room.gather(-1, rank).unsqueeze(-2)
    scale = ordered.scale()
    scale = scale.unsqueeze(-1) if isinstance(scale, Tensor) and scale.dim() else scale
    difference = torch.where(above == below, 0.0, above - below).to(ordered.exact) / scale
    return difference.masked_fill(apart, ENDLESS).clamp(-ENDLESS, ENDLESS)


def _places(ordered: Ordered, distance: Tensor) -> tuple[Tensor, Tensor]:
    """Sorted scores in units as rows and as columns, exact from their gaps, with gradient.

    Tied rows are one score that occurs several times: its gradient is shared among them.
    """
    scaled = ordered.scaled()
    shared = share_ties(scaled, tie_groups(ordered.open_gaps))
    return straight_through(-distance, shared), straight_through(-distance, scaled)


class ScanOperator:
    """Power-1 SoftSort: exponentials of distances on a line, summed by recurrences.

    The kernel `K[i, j] = exp(-|d_i - d_j|)` is symmetric and P = K / (K 1), so every product is two
    recurrences, one from each end; ties, which both must leave out, are summed apart.
    """

    def __init__(self, ordered: Ordered, dtype: torch.dtype, rows: int) -> None:
        lists = (ordered.batch.numel(), ordered.n)
        self.dtype = dtype
        gaps = ordered.gaps.nan_to_num(nan=0.0).reshape(lists)
        distance = pad(gaps[:, :-1].cumsum(-1), (1, 0)).view(*ordered.batch, ordered.n)
        row, column = _places(ordered, distance)
        row, column = ordered.shrink(row), ordered.shrink(column)
        first, last = tie_groups(gaps)
        # Positions come first from here on: (n, lists), and (n, lists, 1) beside payloads.
        self.row, self.column = (x.reshape(lists).mT.unsqueeze(-1) for x in (row, column))
        self.gaps, self.first, self.last = gaps.mT, first.mT, last.mT
        self.alone = (self.first == self.last).unsqueeze(-1)
        index = torch.arange(ordered.n, dtype=gaps.dtype, device=gaps.device)
        self.index = index.view(-1, 1, 1).expand(self.row.shape)
        self.wanted = (self.index < rows).to(gaps.dtype)

    def _steps(self, of: Tensor) -> Tensor:
        """The gaps, (n - 1, lists, 1), with the gradient to these places."""
        return straight_through(self.gaps[:-1].unsqueeze(-1), of[:-1] - of[1:])

    def _sides(self, x: Tensor, of: Tensor, at: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Sums of K x, for x (n, lists, d) at the places `of`, seen from the places `at`.

        Over larger items, over ties and over smaller items.
        """
        weight = self._steps(of).neg().exp()
        decay = weight.squeeze(-1)
        larger = recurrence(decay, weight * x[:-1])
        smaller = recurrence(decay.flip(0), (weight * x[1:]).flip(0)).flip(0)
        first, last = self.first.unsqueeze(-1), self.last.unsqueeze(-1)
        # From the end of a run of ties to each of them is no distance, but it has a gradient.
        larger = _pick(larger, first) * (at - _pick(of, first)).exp()
        smaller = _pick(smaller, last) * (_pick(of, last) - at).exp()
        group = first.expand_as(x)
        tied = torch.zeros_like(x).scatter_add(0, group, x).gather(0, group)
        return larger, torch.where(self.alone, x, tied), smaller

    def _rows(self, x: Tensor) -> Tensor:
        return sum(self._sides(x, self.column, self.row))  # pyright: ignore

    def _columns(self, y: Tensor) -> Tensor:
        return sum(self._sides(y / self._norm(), self.row, self.column))  # pyright: ignore

    def _norm(self) -> Tensor:
        return self._rows(torch.ones_like(self.row))

    def _flat(self, x: Tensor) -> Tensor:
        return x.to(self.gaps.dtype).permute(2, 1, 0)  # (d, lists, n) -> (n, lists, d)

    def _lists(self, x: Tensor) -> Tensor:
        return x.permute(2, 1, 0).to(self.dtype)

    def product(self, x: Tensor) -> Tensor:
        return self._lists(self._rows(self._flat(x)) / self._norm())

    def transposed(self, y: Tensor) -> Tensor:
        return self._lists(self._columns(self._flat(y)))

    def position_sums(self) -> Tensor:
        both = torch.cat([self.wanted, self.wanted * self.index], -1)
        total, first = self._columns(both).split(1, -1)
        return self._lists(torch.cat([total, first - self.index * total], -1))

    def log_norm(self) -> Tensor:
        return self._lists(self._norm().log())

    def entropy(self) -> Tensor:
        norm = self._norm()
        # Distances add up along with the weights, so that none is a difference of large numbers.
        gap = self._steps(self.column)
        spread = self._spread(gap, self.column, self.row, self.first)
        column, row = -self.column.flip(0), -self.row.flip(0)
        last = len(norm) - 1 - self.last.flip(0)
        spread = spread + self._spread(gap.flip(0), column, row, last).flip(0)
        return self._lists(norm.log() + spread / norm)

    def _spread(self, gap: Tensor, of: Tensor, at: Tensor, first: Tensor) -> Tensor:
        """Sums of K times the distance over the items before each run of ties, (n, lists, 1)."""
        decay = (-gap).exp()
        weight = recurrence(decay.squeeze(-1), decay)
        spread = recurrence(decay.squeeze(-1), gap * weight[1:])
        first = first.unsqueeze(-1)
        onward = _pick(of, first) - at  # no distance, but it has a gradient
        return (_pick(spread, first) + _pick(weight, first) * onward) * (-onward).exp()


def _pick(x: Tensor, index: Tensor) -> Tensor:
    """Entries of x `(n, lists, d)` at the positions `(n, lists, 1)`."""
    return x.gather(0, index.expand(*index.shape[:-1], x.shape[-1]))


class SoftSortBands(Bands):
    """SoftSort with squared distances: `E = exp(-(d_j - d_i)^2)`, so `r_i = d_i`."""

    power = 2.0
    ranked = False
    error = (softsort_error, REACH / 4)
    hiding = FAR
    row_channels = 1

    def seen(self) -> Tensor:
        return self.gaps.clamp(max=FAR)  # wider ones would take the digits of narrow ones in sums

    def within(self) -> float:
        return math.sqrt(self.threshold)

    def fits(self, tiles: Tiles, level: int) -> Tensor:
        return tiles.inner[level] <= REACH / 2

    def block(
        self, gaps: Tensor, size: int, left: int, dtype: torch.dtype, space: Workspace | None = None
    ) -> Block:
        centre = left + size // 2
        slope = outward(gaps, centre).unsqueeze(1)  # (B, 1, W)
        slope[..., :centre].neg_()
        row = slope[..., left : left + size]
        node, interpolate = row, None
        if size > self.nodes:
            middle, half = (row[..., -1:] + row[..., :1]) / 2, (row[..., -1:] - row[..., :1]) / 2
            half = half.clamp(min=torch.finfo(half.dtype).tiny)
            t, interpolate = chebyshev(((row - middle) / half).squeeze(1), self.nodes)
            node, interpolate = middle + half * t, interpolate.to(dtype)
        lever = (in_pieces(slope.squeeze(1)) - node.mT.unsqueeze(1)).to(dtype)
        weights = lever.square().mul_(-INVERSE_LOG_2).exp2_()
        return Block(weights, interpolate, left, lever=lever)

    def sums(self, block: Block, gradient: LogitGradient) -> tuple[list[Tensor], list[Tensor]]:
        to_columns, to_rows = gradient.levered()
        return [-2 * to_rows], [2 * to_columns]

    def to_scores(self, rows: Tensor, cols: Tensor) -> Tensor:
        return share_ties(rows[0], tie_groups(self.gaps)) + cols[0]

    @staticmethod
    def compose(gaps: Tensor, place: Tensor, total: Tensor, columns: Sums, rows: Sums) -> Tensor:
        shared = share_ties(rows(place), tie_groups(gaps))
        return 2 * (columns(place) - place * total + shared)
