"""NeuralSort: the paper's relaxation of sorting to unimodal row-stochastic matrices."""

import torch
from torch import Tensor
from torch.nn.functional import pad

from ..._interpolation import neuralsort_error
from .. import _checks
from ..gradients import is_traced_for_second_derivatives, straight_through
from ..permutation import RelaxedPermutation
from ..softness import temperature
from .engine.bands import REACH, Bands, Sums, outward
from .engine.between import all_falls, fall_between
from .engine.blocks import INVERSE_LOG_2, Block, LogitGradient, Workspace, combined, in_pieces
from .engine.chebyshev import chebyshev
from .engine.differentiate import BandOperator
from .engine.tiles import SMALLEST, Tiles
from .neuralsort_matrix import neuralsort_matrix, untie
from .neuralsort_short import ordinary_matrix, ordinary_sort
from .ordering import Ordered, tie_groups
from .scored import LONGEST_DENSE, LazyKernel, relaxed

# What a gap that nothing passes counts: no exponent makes up for it, and a billion of them, each
# times a billion ranks, still add up to a number in float32.
HIDDEN = 1e20


def neuralsort(
    scores: Tensor, *, tau: _checks.Tau = 1.0, mask: Tensor | None = None
) -> RelaxedPermutation:
    r"""Relaxes the permutation that sorts `scores` in descending order.

    $$\widehat P_{i,:} = \operatorname{softmax}\big[\big((n+1-2i)\,s - A_s\mathbf 1\big)/\tau\big],
      \qquad (A_s)_{jk} = |s_j - s_k|$$

    Rows sum to one, and the row-wise argmax is the stable descending sort, in every dtype and at
    every length: logits are computed from sorted gaps, relative to the peak of their row. As `tau`
    tends to 0 this becomes the hard permutation matrix of `torch.argsort(scores, descending=True)`.

    Long lists are never written as a matrix. Products then leave out less than 1e-7 of each row's
    mass in float32, and less than 1e-14 in float64.

    Args:
        scores: `(..., n)`. Values to sort; leading dimensions are batch.
        tau: Temperature: a number, a `Blur`, or a tensor that broadcasts against `scores` with a
            last dimension of 1; it may require gradients. In units of the scores: smaller is
            harder, 0 is the hard permutation.
        mask: `(..., n)` boolean, True where the item exists. Absent items take no part; the last
            rows place them in index order.

    Returns:
        The relaxed permutation `(..., n, n)`. Row `i` weighs the items for position `i`, largest
        first.

    Raises:
        TypeError: If `scores` is not floating point, or `mask` not boolean.
        ValueError: If `tau` is negative or a shape does not fit.

    Example:
        >>> scores = torch.tensor([1.0, 3.0, 2.0])
        >>> P = neuralsort(scores, tau=0.1)
        >>> P.sort(scores).round(decimals=2)
        tensor([3., 2., 1.])
        >>> P.permutation()
        tensor([1, 2, 0])

    Reference: Grover et al. (2019), Eq. 5. Time and memory: O(n^2) per list up to 512 items, then
    O(n log n) time and O(n) memory.
    """
    scores = _checks.scores("neuralsort(scores)", scores)
    mask = _checks.mask(mask, scores)
    tau = temperature(tau, scores, mask)
    return relaxed(NeuralSortKernel(), scores, tau, mask)


class NeuralSortKernel(LazyKernel):
    """Log-weights that fall by the gaps between, each times twice its rank distance."""

    name = "neuralsort"
    unimodal = True

    def matrix(self, ordered: Ordered, dtype: torch.dtype, rows: int) -> Tensor:
        if is_traced_for_second_derivatives():
            weights = torch.softmax(-self.falls(ordered)[..., :rows, :], -1, dtype=dtype)
            return weights.gather(-1, ordered.rank().unsqueeze(-2).expand_as(weights))
        matrix = ordinary_matrix(ordered, dtype, rows)
        return neuralsort_matrix(ordered, dtype, rows) if matrix is None else matrix

    def sorted(self, ordered: Ordered, x: Tensor, rows: int) -> Tensor | None:
        return ordinary_sort(ordered, x, rows)

    def fall(self, ordered: Ordered, place: Tensor) -> Tensor:
        value = _fall_between(ordered.open_gaps, place)
        scores, slope, level = _linear(ordered)
        row = torch.arange(place.shape[-1], device=place.device)

        def logit(j: Tensor) -> Tensor:
            return (slope.gather(-1, j) - 2 * row) * scores.gather(-1, j) + level.gather(-1, j)

        return _attached(ordered, value, logit(row.expand_as(place)) - logit(place))

    def falls(self, ordered: Ordered) -> Tensor:
        """The same for all rows and sorted positions, `(..., n, n)`."""
        value = all_falls(ordered.open_gaps)
        scores, slope, level = (x.unsqueeze(-2) for x in _linear(ordered))
        row = torch.arange(ordered.n, device=value.device).unsqueeze(-1)
        logit = torch.addcmul(level, slope - 2 * row, scores)
        own = logit.diagonal(dim1=-2, dim2=-1).unsqueeze(-1)
        return _attached(ordered, value, own - logit)

    def operator(self, ordered: Ordered, dtype: torch.dtype, rows: int) -> BandOperator:
        return BandOperator(NeuralSortBands, ordered, dtype, rows)


def _attached(ordered: Ordered, value: Tensor, linear: Tensor) -> Tensor:
    """Falls as their gaps have them, with the gradient of what is linear in the scores."""
    beyond = value.isinf()
    fall = straight_through(value.masked_fill(beyond, 0.0), linear)
    return ordered.shrink(fall).masked_fill(beyond, torch.inf)


def _fall_between(gaps: Tensor, place: Tensor) -> Tensor:
    """`fall_between`, in compiled graphs of short lists by way of all falls.

    The former takes as many steps as the length has digits, and so as many graphs.
    """
    if torch.compiler.is_compiling() and gaps.shape[-1] <= LONGEST_DENSE:
        falls = all_falls(gaps, 0, place.shape[-1])
        return falls.gather(-1, place.unsqueeze(-1)).squeeze(-1)
    return fall_between(gaps, place)


def _linear(ordered: Ordered) -> tuple[Tensor, Tensor, Tensor]:
    """The logits of row i, `(slope_j - 2 i) s_j + level_j`, in the scores: only for their gradient.

    Among ties `sign(0) = 0`. Returns sorted scores, slopes and levels, `(..., n)` each.
    """
    first, last = tie_groups(ordered.open_gaps)
    scores = ordered.scaled()
    before = scores.cumsum(-1) - scores
    larger = before.gather(-1, first)
    smaller = scores.sum(-1, keepdim=True) - (before + scores).gather(-1, last)
    return scores, (first + last).to(scores.dtype), smaller - larger


class NeuralSortBands(Bands):
    """NeuralSort: rows are positions, `r_i = i`, and `b_j` sums gaps times their rank distance."""

    power = 1.0
    ranked = True
    error = (neuralsort_error, REACH)
    hiding = HIDDEN

    def __init__(
        self, gaps: Tensor, dtype: torch.dtype, rows: int | None = None, tempered: bool = False
    ) -> None:
        self.ties = bool((gaps[:, :-1] == 0).any())
        self.col_channels = 3 if self.ties else 1
        self._kept: dict[tuple[int, torch.dtype], tuple[Tensor, Tensor]] = {}
        super().__init__(gaps, dtype, rows, tempered)

    def seen(self) -> Tensor:
        return self.gaps.masked_fill(self.gaps >= self.threshold, HIDDEN)

    def within(self) -> float:
        return self.threshold

    def fits(self, tiles: Tiles, level: int) -> Tensor:
        # With h = size / 2, a gap g at rank distance m from the centre adds 2 h g to |2 r d| but
        # 2 m g to the fall of the weight. Inside m < 2h the first must be small; outside, the
        # second wins twice over. A gap as wide as the threshold outside the block hides all behind.
        size = SMALLEST << level
        halves = tiles.narrow[level - 1].view(tiles.lists, -1, 2)
        left, right = halves.unbind(-1)  # of the centre
        before, after = pad(right, (1, 0))[:, :-1], pad(left, (0, 1))[:, 1:]
        near = torch.maximum(left, right)
        around = torch.maximum(left + before, right + after)
        inside = tiles.inner[level].view_as(near)
        return (size * inside <= REACH) & (size * near <= REACH / 2) & (size * around <= REACH)

    def block(
        self, gaps: Tensor, size: int, left: int, dtype: torch.dtype, space: Workspace | None = None
    ) -> Block:
        centre = left + size // 2
        index = torch.arange(gaps.shape[1], dtype=gaps.dtype, device=gaps.device)
        ranks = 2 * (index - centre + 1).abs()
        row = torch.arange(size, dtype=gaps.dtype, device=gaps.device) - (size - 1) / 2
        own = slice(left, left + size)
        apart = size == SMALLEST and bool((gaps[:, left : left + size - 1] == HIDDEN).any())
        # A hidden gap that rows of one block lie on both sides of is left out of the sums, where it
        # would take the digits of the narrow ones. Elsewhere it adds 2 m to the fall and, at
        # Chebyshev nodes, at most (1 - c) 2 m to what the slope makes up for, with c > 1e-4 for up
        # to 100 nodes: in float32 too the fall wins.
        narrow = gaps.masked_fill(gaps == HIDDEN, 0.0) if apart else gaps
        slope, base = outward(torch.stack([narrow, narrow * ranks]), centre)  # (B, W)
        slope[:, :centre].neg_()
        base.neg_()
        peak = torch.addcmul(base[:, own], 2 * row, slope[:, own]).unsqueeze(1)  # (B, 1, S)
        slope, base = in_pieces(slope) * INVERSE_LOG_2, in_pieces(base) * INVERSE_LOG_2
        if size == SMALLEST:  # neighbouring rows may differ without bound: float64, from the peak
            above = peak.unsqueeze(-1) * INVERSE_LOG_2
            exponent = combined(base - above, 2 * row.unsqueeze(-1), slope, space)
            if apart:
                room = pad((gaps == HIDDEN)[:, :-1].cumsum(1), (1, 0))
                exponent.masked_fill_(room[:, None, own, None] != in_pieces(room), -torch.inf)
            return Block(exponent.to(dtype).exp2_(), None, left)
        node, interpolate = row, None
        if size > self.nodes:
            node, interpolate = self._interpolation(row, dtype)
        node = (2 * node).unsqueeze(-1).to(dtype)
        exponent = combined(base.to(dtype), node, slope.to(dtype), space)
        return Block(exponent.exp2_(), interpolate, left, peak.to(dtype))

    def _interpolation(self, row: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """Nodes among equally spaced rows, and the matrix from nodes to rows.

        Blocks come by size, so those of one size are all that is worth keeping.
        """
        size = len(row)
        if (size, dtype) not in self._kept:
            node, interpolate = chebyshev(row / row[-1], self.nodes)
            of_size = {at: kept for at, kept in self._kept.items() if at[0] == size}
            self._kept = of_size | {(size, dtype): (node * row[-1], interpolate.to(dtype))}
        return self._kept[size, dtype]

    def sums(self, block: Block, gradient: LogitGradient) -> tuple[list[Tensor], list[Tensor]]:
        total, moment = gradient.columns([torch.ones_like(block.row), block.row])
        local_gradient = 2 * (block.position * total - moment)
        before = total.cumsum(-1, dtype=self.gaps.dtype).to(total.dtype) - total
        if self.ties:
            return [], [local_gradient, total, before]
        return [], [local_gradient + total + 2 * before]

    def to_scores(self, rows: Tensor, cols: Tensor) -> Tensor:
        if not self.ties:
            return cols[0]
        return untie(*cols.to(self.gaps.dtype), ties=tie_groups(self.gaps))

    @staticmethod
    def compose(gaps: Tensor, place: Tensor, total: Tensor, columns: Sums, rows: Sums) -> Tensor:
        index = torch.arange(gaps.shape[-1], dtype=gaps.dtype, device=gaps.device).expand_as(gaps)
        local_gradient = 2 * (index * total - columns(index))
        before = total.cumsum(-1) - total
        return untie(local_gradient, total, before, ties=tie_groups(gaps))
