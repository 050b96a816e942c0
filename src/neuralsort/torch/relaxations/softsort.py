"""SoftSort: rows weigh items by their distance from the score that belongs there."""

import math

import torch
from torch import Tensor
from torch.nn.functional import pad

from ... import _options
from .. import _checks
from ..gradients import straight_through
from ..permutation import HardPermutation, RelaxedPermutation
from .bands import Bands, Sums, chebyshev
from .blocks import Block, LogitGradient
from .lazy import ScorePermutation
from .matrix_free import BandOperator
from .ordering import Ordered, share_ties, tie_groups
from .scan import recurrence


def softsort(
    scores: Tensor, *, tau: float | Tensor = 1.0, power: float = 1.0, mask: Tensor | None = None
) -> RelaxedPermutation:
    r"""Relaxes the permutation that sorts `scores` in descending order, by distances of scores.

    $$\widehat P_{i,:} = \operatorname{softmax}\big[-|s_{[i]} - s|^p/\tau\big]$$

    where $s_{[i]}$ is the i-th largest score. Rows sum to one, and the row-wise argmax is the
    stable descending sort. As `tau` tends to 0 this becomes the hard permutation matrix of
    `torch.argsort(scores, descending=True)`.

    Args:
        scores: `(..., n)`. Values to sort; leading dimensions are batch.
        tau: Temperature, a number or a tensor that broadcasts against `scores` with a last
            dimension of 1; it may require gradients. It has the unit of `scores` to the power
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
    tau = _checks.tau(tau, scores)
    power = _options.power(power)
    mask = _checks.mask(mask, scores)
    if not isinstance(tau, Tensor) and tau == 0:
        return HardPermutation(Ordered(scores, 1.0, mask).perm, scores.shape[-1], scores.dtype)
    ordered = Ordered(scores, tau, mask, power)
    return ScorePermutation("softsort", SoftSortKernel(power), ordered, scores.dtype)


class SoftSortKernel:
    """Log-weights that fall by the distance of scores, or by its square."""

    def __init__(self, power: float) -> None:
        self.power = power

    def _fall(self, ordered: Ordered, row: Tensor, column: Tensor) -> Tensor:
        distance = row - column
        fall = distance.abs() if self.power == 1 else distance.square()
        return ordered.shrink(fall, self.power)

    def matrix(self, ordered: Ordered, dtype: torch.dtype, rows: int) -> Tensor:
        row, column = _places(ordered, ordered.distance())
        by_item = column.gather(-1, ordered.rank()).unsqueeze(-2)
        logits = self._fall(ordered, row[..., :rows].unsqueeze(-1), by_item).neg()
        return torch.softmax(logits, -1, dtype=dtype)

    def fall(self, ordered: Ordered, place: Tensor) -> Tensor:
        gaps = ordered.open_gaps
        walls = gaps.isinf()
        distance = pad(gaps.masked_fill(walls, 0.0)[..., :-1].cumsum(-1), (1, 0))[..., : ordered.n]
        row, column = _places(ordered, distance)
        fall = self._fall(ordered, row[..., : place.shape[-1]], column.gather(-1, place))
        room = pad(walls[..., :-1].cumsum(-1), (1, 0))[..., : ordered.n]
        beyond = room.gather(-1, place) != room[..., : place.shape[-1]]
        return fall.masked_fill(beyond, torch.inf)

    def matrix_free(
        self, ordered: Ordered, dtype: torch.dtype, rows: int
    ) -> "BandOperator | ScanOperator":
        if self.power == 2:
            return BandOperator(SoftSortBands, ordered, dtype, rows)
        return ScanOperator(ordered, dtype, rows)


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
        self.lists, self.n = ordered.batch.numel(), ordered.n
        self.dtype = dtype
        gaps = ordered.gaps.nan_to_num(nan=0.0)
        distance = pad(gaps[..., :-1].cumsum(-1), (1, 0))
        row, column = _places(ordered, distance)
        row, column = ordered.shrink(row), ordered.shrink(column)
        self.row, self.column = row.reshape(-1, 1), column.reshape(-1, 1)  # (size, 1)
        self.gaps = gaps.reshape(-1)
        first, last = tie_groups(gaps.reshape(self.lists, self.n))
        base = torch.arange(0, len(self.gaps), self.n, device=gaps.device).unsqueeze(-1)
        self.first, self.last = (first + base).reshape(-1), (last + base).reshape(-1)
        index = torch.arange(self.n, dtype=gaps.dtype, device=gaps.device)
        self.index = index.repeat(self.lists).unsqueeze(-1)
        self.wanted = (self.index < rows).to(gaps.dtype)

    def _sides(self, x: Tensor, of: Tensor, at: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Sums of K x, for x (size, d) at the places `of`, seen from the places `at`.

        Over larger items, over ties and over smaller items.
        """
        decay = straight_through(self.gaps[:-1], (of[:-1] - of[1:]).squeeze(-1)).neg().exp()
        larger = recurrence(decay, decay.unsqueeze(-1) * x[:-1])[self.first]
        back = recurrence(decay.flip(0), decay.flip(0).unsqueeze(-1) * x[1:].flip(0))
        smaller = back.flip(0)[self.last]
        # From the end of a run of ties to each of them is no distance, but it has a gradient.
        larger = larger * (at - of[self.first]).exp()
        smaller = smaller * (of[self.last] - at).exp()
        until = pad(x.cumsum(0), (0, 0, 1, 0))
        tied = until[self.last + 1] - until[self.first]
        return larger, torch.where((self.first == self.last).unsqueeze(-1), x, tied), smaller

    def _rows(self, x: Tensor) -> Tensor:
        return sum(self._sides(x, self.column, self.row))  # pyright: ignore

    def _columns(self, y: Tensor) -> Tensor:
        return sum(self._sides(y / self._norm(), self.row, self.column))  # pyright: ignore

    def _norm(self) -> Tensor:
        return self._rows(torch.ones_like(self.row))

    def _flat(self, x: Tensor) -> Tensor:
        return x.to(self.gaps.dtype).flatten(1).mT  # (d, lists, n) -> (size, d)

    def _lists(self, x: Tensor) -> Tensor:
        return x.mT.reshape(x.shape[1], self.lists, self.n).to(self.dtype)

    def product(self, x: Tensor) -> Tensor:
        return self._lists(self._rows(self._flat(x)) / self._norm())

    def transposed(self, y: Tensor) -> Tensor:
        return self._lists(self._columns(self._flat(y)))

    def position_sums(self) -> Tensor:
        total, first = self._columns(torch.cat([self.wanted, self.wanted * self.index], 1)).split(
            1, 1
        )
        return self._lists(torch.cat([total, first - self.index * total], 1))

    def log_norm(self) -> Tensor:
        return self._lists(self._norm().log())[0]

    def entropy(self) -> Tensor:
        norm, row = self._norm(), self.row
        both = torch.cat([torch.ones_like(norm), self.column], 1)
        larger, _, smaller = self._sides(both, self.column, row)
        spread = larger[:, 1:] - row * larger[:, :1] + row * smaller[:, :1] - smaller[:, 1:]
        return self._lists(norm.log() + spread / norm)[0]


class SoftSortBands(Bands):
    """SoftSort with squared distances: `E = exp(-(d_j - d_i)^2)`, so `r_i = d_i`."""

    power = 2.0
    row_channels = 1

    def _fits(self, start: Tensor, size: int) -> Tensor:
        return self.distance[start + size - 1] - self.distance[start] <= self.accuracy.reach / 2

    def _windows(self, start: Tensor, size: int, tiles: int) -> tuple[Tensor, Tensor]:
        reach = math.sqrt(self.threshold)
        last = (start + size - 1).clamp(max=self.size - 1)
        begin = torch.searchsorted(self.distance, self.distance[start] - reach)
        end = torch.searchsorted(self.distance, self.distance[last] + reach).clamp(max=self.size)
        tile = start // size
        left = (start - begin + size - 1) // size
        right = (end - last + size - 2) // size
        return torch.minimum(left, tile), torch.minimum(right.clamp(min=0), tiles - 1 - tile)

    def _block(self, gaps: Tensor, size: int, left: int) -> Block:
        slope = self._outward(gaps, left + size // 2).unsqueeze(1)  # (B, 1, W)
        row = slope[..., left : left + size]
        node, interpolate = row, None
        if size > self.accuracy.nodes:
            middle, half = (row[..., -1:] + row[..., :1]) / 2, (row[..., -1:] - row[..., :1]) / 2
            half = half.clamp(min=torch.finfo(half.dtype).tiny)
            t, interpolate = chebyshev(((row - middle) / half).squeeze(1), self.accuracy.nodes)
            node, interpolate = middle + half * t, interpolate.to(self.dtype)
        lever = (slope - node.mT).to(self.dtype)
        return Block(lever.square().neg_().exp_(), interpolate, left, lever=lever)

    def _sums(self, block: Block, gradient: LogitGradient) -> tuple[list[Tensor], list[Tensor]]:
        to_columns, to_rows = gradient.levered()
        return [-2 * to_rows], [2 * to_columns]

    def _to_scores(self, rows: Tensor, cols: Tensor) -> Tensor:
        lists = (self.lists, self.n)
        ties = tie_groups(self.gaps.view(lists))
        return share_ties(rows[0].view(lists), ties).reshape(-1) + cols[0]

    @staticmethod
    def compose(gaps: Tensor, place: Tensor, total: Tensor, columns: Sums, rows: Sums) -> Tensor:
        shared = share_ties(rows(place), tie_groups(gaps))
        return 2 * (columns(place) - place * total + shared)
