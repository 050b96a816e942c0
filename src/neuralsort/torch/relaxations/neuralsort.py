"""NeuralSort: the paper's relaxation of sorting to unimodal row-stochastic matrices."""

import math
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import pad

from .. import _checks
from ..gradients import straight_through
from ..permutation import HardPermutation, RelaxedPermutation
from .bands import ACCURACY, SMALLEST, Bands, Sums, chebyshev
from .blocks import Block, LogitGradient
from .lazy import ScorePermutation
from .matrix_free import BandOperator
from .neuralsort_matrix import neuralsort_matrix, untie
from .ordering import Ordered, tie_groups

# Gaps in units of tau, by how many digits of float64 their sums leave to the others.
NARROW, WIDE = 1e4, 1e12


def neuralsort(
    scores: Tensor, *, tau: float | Tensor = 1.0, mask: Tensor | None = None
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
        tau: Temperature, a number or a tensor that broadcasts against `scores` with a last
            dimension of 1; it may require gradients. Smaller is harder; 0 is the hard permutation.
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
    tau = _checks.tau(tau, scores)
    mask = _checks.mask(mask, scores)
    if not isinstance(tau, Tensor) and tau == 0:
        return HardPermutation(Ordered(scores, 1.0, mask).perm, scores.shape[-1], scores.dtype)
    ordered = Ordered(scores, tau, mask)
    return ScorePermutation("neuralsort", NeuralSortKernel(), ordered, scores.dtype)


class NeuralSortKernel:
    """Log-weights that fall by the gaps between, each times twice its rank distance."""

    def matrix(self, ordered: Ordered, dtype: torch.dtype, rows: int) -> Tensor:
        return neuralsort_matrix(ordered, dtype, rows)

    def fall(self, ordered: Ordered, place: Tensor) -> Tensor:
        rows = place.shape[-1]
        index = torch.arange(ordered.n, dtype=ordered.exact, device=place.device)
        own = torch.arange(rows, device=place.device).expand_as(place)
        gaps = ordered.open_gaps
        walls = gaps.isinf()
        # Wide gaps apart from narrow ones, whose sums they would absorb.
        near = gaps < NARROW
        far = ~near & (gaps < WIDE)
        parts = [_prefixes(torch.where(part, gaps, 0.0), index) for part in (near, far)]
        parts.append(_prefixes(gaps.masked_fill(near | far | walls, 0.0), index))

        def between(distance: Tensor, moment: Tensor) -> Tensor:
            moved = distance.gather(-1, place) - distance.gather(-1, own)
            return moment.gather(-1, place) - moment.gather(-1, own) - 2 * index[:rows] * moved

        # The same in the scores, with sign(0) = 0 among ties: linear, so only its gradient counts.
        first, last = tie_groups(gaps)
        s = ordered.scaled()
        before = s.cumsum(-1) - s
        larger = before.gather(-1, first)
        smaller = s.sum(-1, keepdim=True) - (before + s).gather(-1, last)
        both = (first + last).to(s.dtype)

        def carrier(j: Tensor) -> Tensor:
            slope = both.gather(-1, j) - 2 * index[:rows]
            return slope * s.gather(-1, j) + (smaller - larger).gather(-1, j)

        value = sum((between(*part) for part in parts[1:]), between(*parts[0]))
        fall = straight_through(value, carrier(own) - carrier(place))
        room = pad(walls[..., :-1].cumsum(-1), (1, 0))
        beyond = room.gather(-1, place) != room.gather(-1, own)
        return ordered.shrink(fall).masked_fill(beyond, torch.inf)

    def matrix_free(self, ordered: Ordered, dtype: torch.dtype, rows: int) -> BandOperator:
        return BandOperator(NeuralSortBands, ordered, dtype, rows)


def _prefixes(gaps: Tensor, index: Tensor) -> tuple[Tensor, Tensor]:
    """Sums over the gaps before each position: of the gaps, and of gaps times (2 m + 1)."""
    inner = gaps[..., :-1]
    weights = torch.stack([torch.ones_like(index), 2 * index + 1])[:, :-1]
    sums = pad((inner.unsqueeze(-2) * weights).cumsum(-1), (1, 0))
    return sums[..., 0, :], sums[..., 1, :]


class NeuralSortBands(Bands):
    """NeuralSort: rows are positions, `r_i = i`, and `b_j` sums gaps times their rank distance."""

    power = 1.0

    def __init__(
        self, gaps: Tensor, dtype: torch.dtype, rows: int | None = None, tempered: bool = False
    ) -> None:
        index = torch.arange(gaps.numel(), dtype=gaps.dtype, device=gaps.device)
        flat = gaps.reshape(-1)
        self.moment = pad((flat * (2 * index + 1)).cumsum(0), (1, 0))
        threshold = math.log(max(gaps.shape[-1], 2) / ACCURACY[dtype].tol)
        self.open_distance = pad(torch.where(flat < threshold, flat, 0.0).cumsum(0), (1, 0))
        self.ties = bool((gaps[:, :-1] == 0).any())
        self.col_channels = 3 if self.ties else 1
        super().__init__(gaps, dtype, rows, tempered)

    def _fits(self, start: Tensor, size: int) -> Tensor:
        # With h = size / 2, a gap g at rank distance m from the centre adds 2 h g to |2 r d| but
        # 2 m g to the fall of the weight. Inside m < 2h the first must be small; outside, the
        # second wins twice over. A gap as wide as the threshold outside the block hides all behind.
        def within(distance: Tensor, reach: int) -> Tensor:
            middle = start + size // 2
            here = distance[middle]
            right = distance[(middle + reach).clamp(max=self.size)] - here
            left = here - distance[(middle - reach).clamp(min=0)]
            return size * torch.maximum(left, right)

        reach = self.accuracy.reach
        last_gap_belongs_outside = self.distance[start + size - 1] - self.distance[start]
        inside = size * last_gap_belongs_outside <= reach
        near = within(self.open_distance, size // 2) <= reach / 2
        return inside & near & (within(self.open_distance, size) <= reach)

    def _fall(self, i: Tensor, j: Tensor) -> Tensor:
        """How far the log-weight of item j lies below the peak of row i."""
        moved = self.distance[j] - self.distance[i]
        return self.moment[j] - self.moment[i] - 2 * i * moved

    def _windows(self, start: Tensor, size: int, tiles: int) -> tuple[Tensor, Tensor]:
        tile = start // size
        last = (start + size - 1).clamp(max=self.size - 1)

        def right(q: Tensor) -> Tensor:
            return self._fall(last, (start + q * size).clamp(max=self.size - 1)) < self.threshold

        def left(q: Tensor) -> Tensor:
            return (
                self._fall(start, (start - (q - 1) * size - 1).clamp(0, self.size - 1))
                < self.threshold
            )

        return _count(left, tile), _count(right, tiles - 1 - tile)

    def _block(self, gaps: Tensor, size: int, left: int) -> Block:
        centre = left + size // 2
        index = torch.arange(gaps.shape[1], dtype=gaps.dtype, device=gaps.device)
        slope = self._outward(gaps, centre).unsqueeze(1)  # (B, 1, W)
        base = self._outward(gaps * (2 * (index - centre + 1).abs()), centre).abs().neg()
        base = base.unsqueeze(1)
        row = torch.arange(size, dtype=gaps.dtype, device=gaps.device) - (size - 1) / 2
        own = slice(left, left + size)
        peak = base[..., own] + 2 * row * slope[..., own]  # (B, 1, S)
        node, interpolate = row, None
        if size > self.accuracy.nodes:
            t, interpolate = chebyshev(row / row[-1], self.accuracy.nodes)
            node, interpolate = t * row[-1], interpolate.to(self.dtype)
        node = (2 * node).unsqueeze(-1)
        if size == SMALLEST:  # neighbouring rows may differ without bound: float64, from the peak
            exponent = torch.addcmul(base - peak.mT, node, slope).to(self.dtype)
            peak = None
        else:
            base, node = base.to(self.dtype), node.to(self.dtype)
            exponent = torch.addcmul(base, node, slope.to(self.dtype))
            peak = peak.to(self.dtype)
        return Block(exponent.exp_(), interpolate, left, peak)

    def _sums(self, block: Block, gradient: LogitGradient) -> tuple[list[Tensor], list[Tensor]]:
        total, moment = gradient.columns([torch.ones_like(block.row), block.row])
        local_gradient = 2 * (block.position * total - moment)
        before = total.cumsum(-1, dtype=self.gaps.dtype).to(total.dtype) - total
        if self.ties:
            return [], [local_gradient, total, before]
        return [], [local_gradient + total + 2 * before]

    def _to_scores(self, rows: Tensor, cols: Tensor) -> Tensor:
        if not self.ties:
            return cols[0]
        lists = (self.lists, self.n)
        parts = (x.view(lists).to(self.gaps.dtype) for x in cols)
        return untie(*parts, ties=tie_groups(self.gaps.view(lists))).reshape(-1)

    @staticmethod
    def compose(gaps: Tensor, place: Tensor, total: Tensor, columns: Sums, rows: Sums) -> Tensor:
        index = torch.arange(gaps.shape[-1], dtype=gaps.dtype, device=gaps.device).expand_as(gaps)
        local_gradient = 2 * (index * total - columns(index))
        before = total.cumsum(-1) - total
        return untie(local_gradient, total, before, ties=tie_groups(gaps))


def _count(holds: Callable[[Tensor], Tensor], limit: Tensor) -> Tensor:
    """The largest q <= limit for which `holds(1), ..., holds(q)`, by bisection."""
    low, high = torch.zeros_like(limit), limit
    for _ in range(int(limit.max()).bit_length()):
        middle = (low + high + 1) // 2
        good = holds(middle) & (middle > low)
        low, high = (
            torch.where(good, middle, low),
            torch.where(good | (middle == low), high, middle - 1),
        )
    return low
