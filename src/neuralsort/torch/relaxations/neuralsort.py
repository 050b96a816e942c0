"""NeuralSort: the paper's relaxation of sorting to unimodal row-stochastic matrices."""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad, threshold

from .. import _checks
from ..gradients import straight_through
from ..permutation import HardPermutation, RelaxedPermutation, matmul
from .bands import ACCURACY, SMALLEST, Bands, Sums, chebyshev
from .blocks import Block, LogitGradient
from .lazy import ScorePermutation
from .matrix_free import BandOperator
from .ordering import WALL, Ordered, tie_groups

# Lists up to this length are compared pair by pair: fewer operations than sorting them.
PAIRWISE = 32
# Scores beyond this many temperatures would overflow there: they are as good as infinite.
ENDLESS = 1e290
# Entries of the largest float64 temporary of the dense form.
CHUNK = 1 << 18


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
        if 0 < ordered.n <= PAIRWISE and ordered.mask is None and not ordered.tempered:
            return _pairwise(ordered, dtype, rows)
        unit, gaps = ordered.unit(), ordered.gaps
        unit = gaps.new_zeros(()) if unit is None else unit
        return _apply_matrix(ordered.linked(), unit, gaps, ordered.perm, dtype, rows)

    def fall(self, ordered: Ordered, place: Tensor) -> Tensor:
        rows = place.shape[-1]
        index = torch.arange(ordered.n, dtype=ordered.exact, device=place.device)
        own = torch.arange(rows, device=place.device).expand_as(place)
        gaps = ordered.open_gaps
        walls = gaps.isinf()
        distance, moment = _prefixes(gaps.masked_fill(walls, 0.0), index)

        def value(j: Tensor) -> Tensor:
            return moment.gather(-1, j) - 2 * index[:rows] * distance.gather(-1, j)

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

        fall = straight_through(value(place) - value(own), carrier(own) - carrier(place))
        room = pad(walls[..., :-1].cumsum(-1), (1, 0))
        beyond = room.gather(-1, place) != room.gather(-1, own)
        return ordered.shrink(fall).masked_fill(beyond, torch.inf)

    def matrix_free(self, ordered: Ordered, dtype: torch.dtype, rows: int) -> BandOperator:
        return BandOperator(NeuralSortBands, ordered, dtype, rows)


def _pairwise(ordered: Ordered, dtype: torch.dtype, rows: int) -> Tensor:
    """The matrix of short lists, as the equation has it but in float64.

    Plain operations, and few: for short lists each costs as much as its call.
    """
    s = ordered.scores.to(ordered.exact)
    if ordered.tau != 1:
        s = s / ordered.tau
    fixed = s.detach()
    endless = fixed.abs() > ENDLESS
    wall = fixed.masked_fill(endless, 0.0).abs().amax(-1, keepdim=True) + WALL
    far = fixed.clamp(-wall, wall)
    # From the first item, so that an offset of the scores costs no digits.
    s = torch.where(endless, far, s) - far[..., :1]
    spread = (s.unsqueeze(-1) - s.unsqueeze(-2)).abs().sum(-1)
    n = s.shape[-1]
    coefficient = torch.arange(n - 1, n - 1 - 2 * rows, -2, dtype=s.dtype, device=s.device)
    logits = torch.addcmul(-spread.unsqueeze(-2), coefficient.unsqueeze(-1), s.unsqueeze(-2))
    return torch.softmax(logits - logits.detach().amax(-1, keepdim=True), -1, dtype=dtype)


def _prefixes(gaps: Tensor, index: Tensor) -> tuple[Tensor, Tensor]:
    """Sums over the gaps before each position: of the gaps, and of gaps times (2 m + 1)."""
    inner = gaps[..., :-1]
    weights = torch.stack([torch.ones_like(index), 2 * index + 1])[:, :-1]
    sums = pad((inner.unsqueeze(-2) * weights).cumsum(-1), (1, 0))
    return sums[..., 0, :], sums[..., 1, :]


class _Matrix(torch.autograd.Function):
    """The dense matrix: float64 in the logits, the dtype of the computation in the weights.

    `apply(scaled, unit, gaps, perm, dtype, rows)` in sorted coordinates, but for the columns of
    the matrix, which are in the order of the items.
    """

    @staticmethod
    def forward(
        scaled: Tensor, unit: Tensor, gaps: Tensor, perm: Tensor, dtype: torch.dtype, rows: int
    ) -> Tensor:
        n = gaps.shape[-1]
        twice = torch.arange(1 - n, n, 2, dtype=gaps.dtype, device=gaps.device)
        before = pad(gaps[..., :-1], (1, 0))  # the gap before each position
        distance, moment = before.cumsum(-1), (before * (1 - twice)).cumsum(-1)
        peak = torch.addcmul(moment, twice, distance).unsqueeze(-1)
        distance = torch.empty_like(distance).scatter_(-1, perm, distance).unsqueeze(-2)
        moment = torch.empty_like(moment).scatter_(-1, perm, moment).unsqueeze(-2)
        twice = twice.unsqueeze(-1)
        out = torch.empty(*gaps.shape[:-1], rows, n, dtype=dtype, device=gaps.device)
        least = math.log(torch.finfo(dtype).tiny) + 4
        for i, j in _strips(gaps, rows, rows):
            logits = torch.addcmul(moment - peak[..., i:j, :], twice[i:j], distance)
            # Exponentials that underflow are slow: stop them short, and then set them to 0.
            weights = torch.softmax(logits.to(dtype).clamp_(min=least), -1)
            out[..., i:j, :] = threshold(weights, 10 * math.exp(least), 0.0)
        return out

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple, output: Tensor) -> None:
        _, unit, gaps, perm, *_ = inputs
        ctx.save_for_backward(output, unit, gaps, perm)
        ctx.save_for_forward(output, unit, gaps, perm)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple:  # pyright: ignore
        matrix, unit, gaps, perm = ctx.saved_tensors
        exact = gaps.dtype
        tempered = ctx.needs_input_grad[1]
        sums, heat = [], []
        for i, j in _strips(gaps, matrix.shape[-2], 32):  # few enough for sums in float32
            weights, g = matrix[..., i:j, :], grad[..., i:j, :]
            to_logits = weights * g
            to_logits = to_logits - weights * to_logits.sum(-1, keepdim=True)
            # Columns summed with 1 and with 2 (row - middle of the strip), so that float32 will do.
            twice = torch.arange(i - j + 1, j - i, 2, dtype=matrix.dtype, device=matrix.device)
            part = matmul(torch.stack([torch.ones_like(twice), twice]), to_logits).to(exact)
            total, moment = part[..., 0, :], part[..., 1, :]
            sums.append(torch.stack([total, moment + (i + j - 1) * total], -2))
            if tempered:
                tiny = torch.finfo(matrix.dtype).tiny
                heat.append((to_logits * weights.clamp(min=tiny).log()).sum((-1, -2)).to(exact))
        if not sums:
            return (torch.zeros_like(gaps), torch.zeros_like(unit), *[None] * 4)
        both = sum(sums[1:], sums[0])
        both = both.gather(-1, perm.unsqueeze(-2).expand_as(both))
        total, moment = both[..., 0, :], both[..., 1, :]
        place = torch.arange(gaps.shape[-1], dtype=exact, device=gaps.device)
        before = total.cumsum(-1) - total
        local_gradient = 2 * place * total - moment
        to_scaled = _untie(local_gradient, total, before, ties=tie_groups(gaps))
        to_unit = -sum(heat[1:], heat[0]).unsqueeze(-1) if tempered else None
        return (to_scaled, to_unit, *[None] * 4)

    @staticmethod
    def vmap(info: Any, in_dims: tuple, *args: Any) -> tuple[Tensor, int]:
        tensors = [
            x.movedim(d, 0) if d is not None else x.expand(info.batch_size, *x.shape)
            for x, d in zip(args[:4], in_dims[:4], strict=True)
        ]
        return _apply_matrix(*tensors, *args[4:]), 0


class _MatrixForward(_Matrix):
    """The same, with forward-mode derivatives, which compiled graphs do not take."""

    @staticmethod
    def jvp(ctx: Any, tangent: Tensor, to_unit: Tensor | None, *_: None) -> Tensor:  # pyright: ignore
        matrix, _, gaps, perm = ctx.saved_tensors
        logits = torch.zeros_like(matrix)
        if tangent is not None:
            first, last = tie_groups(gaps)
            until = pad(tangent.cumsum(-1), (1, 0))
            larger, not_smaller = until.gather(-1, first), until.gather(-1, last + 1)
            constant = (first + last) * tangent + until[..., -1:] - not_smaller - larger
            by_item = torch.stack([tangent, constant], -2)
            by_item = by_item.scatter(-1, perm.unsqueeze(-2).expand_as(by_item), by_item)
            twice = 2 * torch.arange(matrix.shape[-2], device=gaps.device).unsqueeze(-1)
            logits = (by_item[..., 1:, :] - twice * by_item[..., :1, :]).to(matrix.dtype)
        if to_unit is not None:
            log = matrix.clamp(min=torch.finfo(matrix.dtype).tiny).log()
            logits = logits - log * to_unit.unsqueeze(-1).to(matrix.dtype)
        return matrix * (logits - (matrix * logits).sum(-1, keepdim=True))


def _apply_matrix(*args: Any) -> Tensor:
    """The matrix; compiled graphs take no function that has forward-mode derivatives."""
    return (_Matrix if torch.compiler.is_compiling() else _MatrixForward).apply(*args)  # pyright: ignore


def _strips(gaps: Tensor, rows: int, most: int) -> list[tuple[int, int]]:
    """Runs of rows that are formed together, few enough for the cache."""
    step = max(1, min(CHUNK // max(1, gaps.numel()), most))
    return [(i, min(i + step, rows)) for i in range(0, rows, step)]


def _untie(
    local_gradient: Tensor, total: Tensor, before: Tensor, *, ties: tuple[Tensor, Tensor]
) -> Tensor:
    """Gradient of NeuralSort's logits to sorted scores, with `sign(0) = 0` among ties.

    Args:
        local_gradient: `(..., n)`. Sums over rows i of `2 (j - i) dL[i, j]`.
        total: `(..., n)`. Sums over rows of `dL[i, j]`.
        before: `(..., n)`. Sums of `total` over the items before j.
        ties: `(first, last)` of the run of equal scores around each position.

    Returns:
        `(..., n)`.
    """
    first, last = ties
    index = torch.arange(total.shape[-1], device=total.device)
    larger = before.gather(-1, first)
    not_smaller = (before + total).gather(-1, last)
    return local_gradient + (first + last - 2 * index) * total + larger + not_smaller


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
        return _untie(*parts, ties=tie_groups(self.gaps.view(lists))).reshape(-1)

    @staticmethod
    def compose(gaps: Tensor, place: Tensor, total: Tensor, columns: Sums, rows: Sums) -> Tensor:
        index = torch.arange(gaps.shape[-1], dtype=gaps.dtype, device=gaps.device).expand_as(gaps)
        local_gradient = 2 * (index * total - columns(index))
        before = total.cumsum(-1) - total
        return _untie(local_gradient, total, before, ties=tie_groups(gaps))


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
