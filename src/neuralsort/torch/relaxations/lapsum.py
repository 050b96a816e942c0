r"""LapSum: positions are intervals of a line on which every item is a Laplace distribution.

The distribution functions F of all items, summed, rise from 0 to n. Where the sum passes a whole
number one position ends and the next begins, so that every position holds mass 1, and every item
leaves mass 1: the matrix is doubly stochastic. Everything lives in sorted coordinates, largest item
first, in units of the temperature, and in float64.
"""

import math

import torch
from torch import Tensor
from torch.nn.functional import pad

from ..._blur import between
from .. import _checks
from ..arrays import matmul
from ..gradients import straight_through
from ..permutation import RelaxedPermutation
from ..softness import row_entropy, temperature
from ..tracing import count_up_to
from .engine.recurrence import recurrence
from .ordering import WALL, Ordered
from .scored import LONGEST_DENSE, LazyKernel, relaxed
from .thresholds import laplace, memberships

# Stands for a sum over no items: small, but with room for its inverse and the square of that.
NONE = 1e-100


def lapsum(
    scores: Tensor, *, tau: _checks.Tau = 1.0, mask: Tensor | None = None
) -> RelaxedPermutation:
    r"""Relaxes the permutation that sorts `scores` in descending order, by sums of Laplace cdfs.

    $$\widehat P_{ij} = F\Big(\frac{b_i + s_j}{\tau}\Big) - F\Big(\frac{b_{i-1} + s_j}{\tau}\Big),
      \qquad \sum_j F\Big(\frac{b_i + s_j}{\tau}\Big) = i$$

    where F is the distribution function of the Laplace distribution. The thresholds $b_i$ have a
    closed form. Rows and columns sum to one. As `tau` tends to 0 this becomes the hard permutation
    matrix of `torch.argsort(scores, descending=True)` for distinct scores.

    Args:
        scores: `(..., n)`. Values to sort; leading dimensions are batch.
        tau: Temperature: a number, a `Blur`, or a tensor that broadcasts against `scores` with a
            last dimension of 1; it may require gradients. In units of the scores: smaller is
            harder, 0 is the hard permutation.
        mask: `(..., n)` boolean, True where the item exists. Absent items take no part; the last
            rows place them in index order.

    Returns:
        The relaxed permutation `(..., n, n)`. Its `permutation()` is the stable descending sort.

    Raises:
        TypeError: If `scores` is not floating point, or `mask` not boolean.
        ValueError: If `tau` is negative or a shape does not fit.

    Example:
        >>> scores = torch.tensor([1.0, 3.0, 2.0])
        >>> lapsum(scores, tau=0.05).sort(scores).round(decimals=2)
        tensor([3., 2., 1.])

    Reference: Struski et al. (2025), section 3. Time and memory: O(n^2) per list up to 32 items
    (512 on an accelerator and in compiled code), then O(n log n) time and O(n) memory; `entropy()`
    always takes the matrix.
    """
    scores = _checks.scores("lapsum(scores)", scores)
    mask = _checks.mask(mask, scores)
    tau = temperature(tau, scores, mask, of_blur=between)
    return relaxed(LapSumKernel(), scores, tau, mask)


class LapSumKernel(LazyKernel):
    """Weights that are the mass of an item between two thresholds. They need not be unimodal."""

    name = "lapsum"
    needs_float64 = True
    dense_share = 1 / 16  # 32 items

    def matrix(self, ordered: Ordered, dtype: torch.dtype, rows: int) -> Tensor:
        rank = ordered.rank().reshape(math.prod(ordered.batch), ordered.n)
        weights = Thresholds(ordered, dtype, rows).matrix(rank)
        weights = weights.view(*ordered.batch, rows, ordered.n)
        return (weights + ordered.poison().unsqueeze(-1)).to(dtype)

    def fall(self, ordered: Ordered, place: Tensor) -> Tensor:
        rows = place.shape[-1]
        thresholds = Thresholds(ordered, ordered.exact, rows)
        flat = place.reshape(math.prod(place.shape[:-1]), rows)
        own = torch.arange(rows, device=place.device).expand(flat.shape)
        fall = thresholds.log_weight(own) - thresholds.log_weight(flat)
        return fall.reshape(place.shape)

    def memberships(self, ordered: Ordered, k: Tensor) -> Tensor:
        tau = ordered.tau if ordered.hard is None else torch.where(ordered.hard, 0.0, ordered.tau)
        return memberships(laplace, ordered.scores, tau, ordered.mask, k)

    def operator(self, ordered: Ordered, dtype: torch.dtype, rows: int) -> "Thresholds":
        return Thresholds(ordered, dtype, rows)


class Thresholds:
    """Where positions end, and products with the matrix by sums that pass along the line.

    Args:
        ordered: The lists.
        dtype: Of what comes out; inside, all is float64.
        rows: How many leading rows are wanted.
    """

    def __init__(self, ordered: Ordered, dtype: torch.dtype, rows: int) -> None:
        lists = (math.prod(ordered.batch), ordered.n)
        self.dtype, self.rows, self.n = dtype, rows, ordered.n
        gaps = ordered.gaps.nan_to_num(nan=0.0).reshape(lists)
        gaps = torch.where(gaps < WALL, gaps, 2 * WALL)  # a wall on both sides of a threshold
        distance = pad(gaps[:, :-1].cumsum(-1), (1, 0))[:, : self.n]
        # Items on the line, with gradient; values come from the gaps, which are exact.
        line = straight_through(distance, -ordered.scaled().reshape(lists))
        self.item = ordered.shrink(line.view(*ordered.batch, self.n)).reshape(lists)  # (lists, n)
        self.gap = straight_through(gaps[:, :-1], self.item.diff(dim=-1))
        self.room = ordered.room().reshape(lists)
        self._solve()

    def _solve(self) -> None:
        """Thresholds 1 to n - 1: the interval each lies in, and its distance from both ends.

        Between two items, with A and B the sums of exponentials over the items ahead and behind,
        the equation is quadratic in the exponential of the threshold.
        """
        ones = torch.ones_like(self.item).unsqueeze(0)
        behind, ahead = (x.squeeze(0) for x in _sums(ones, self.gap))  # intervals 0, ..., n
        place = torch.arange(self.n, device=self.item.device)
        here = place + (1 - behind[:, 1:] + ahead[:, :-1]) / 2  # the sum of all F at each item
        k = torch.arange(1, self.n, dtype=here.dtype, device=here.device).expand(here.shape[0], -1)
        self.interval = count_up_to(here.detach(), k)
        excess = k - self.interval
        gap = pad(self.gap, (1, 1), value=WALL).gather(-1, self.interval)
        b = behind.clamp(min=NONE).gather(-1, self.interval)
        a = ahead.clamp(min=NONE).gather(-1, self.interval)
        both = (a.log() + b.log() - gap) / 2
        apart = excess.masked_fill(excess == 0, 1.0)
        log = (apart.abs() + (apart.square() + (2 * both).exp()).sqrt()).log()  # at most n
        log = torch.where(excess == 0, both, log)
        self.after = torch.where(excess < 0, b.log() - log, gap + log - a.log())  # from the left
        self.before = torch.where(excess < 0, gap - b.log() + log, a.log() - log)  # to the right
        left, right = self.item[:, :1] - WALL, self.item[:, -1:] + WALL
        start = torch.cat([left, self.item], -1).gather(-1, self.interval)
        end = torch.cat([self.item, right], -1).gather(-1, self.interval)
        at = torch.where(excess < 0, start + self.after, end - self.before)
        self.threshold = torch.cat([left, at, right], -1)  # (lists, n + 1)

    # -- entries -------------------------------------------------------------------------------

    def matrix(self, place: Tensor) -> Tensor:
        """The weights on the items at `place`, `(lists, n)`: `(lists, rows, n)`.

        Of items on one side of a threshold, the tails are as far apart as the distribution
        functions. Tails that are small have small errors. Thresholds are at least 2 / n apart,
        since no sum of n functions F rises faster: a difference loses few digits.
        """
        item, room = (x.gather(-1, place).unsqueeze(-2) for x in (self.item, self.room))
        beyond = self.threshold[:, : self.rows + 1].unsqueeze(-1) - item
        above = beyond > 0
        tail = torch.where(above, -beyond, beyond).exp() / 2
        weights = torch.where(above, -tail, tail).diff(dim=-2) + (above[:, 1:] & ~above[:, :-1])
        return weights.masked_fill(self.room[:, : self.rows].unsqueeze(-1) != room, 0.0)

    def log_matrix(self) -> Tensor:
        """Logarithms of the weights, `(lists, rows, n)` in sorted coordinates."""
        item = self.item.unsqueeze(-2)
        edge = self.threshold[:, : self.rows + 1].unsqueeze(-1)
        log = _log_mass(edge[:, :-1] - item, edge[:, 1:] - item)
        apart = self.room[:, : self.rows].unsqueeze(-1) != self.room.unsqueeze(-2)
        return log.masked_fill(apart, -torch.inf)

    def log_weight(self, place: Tensor) -> Tensor:
        """Logarithms of the weights of row i on the item at `place[i]`, `(lists, rows)`."""
        item, rows = self.item.gather(-1, place), place.shape[-1]
        log = _log_mass(self.threshold[:, :rows] - item, self.threshold[:, 1 : rows + 1] - item)
        return log.masked_fill(self.room.gather(-1, place) != self.room[:, :rows], -torch.inf)

    # -- what a matrix is asked, `(d, lists, n)` in sorted coordinates ----------------------------

    def product(self, x: Tensor) -> Tensor:
        """P x: the mass of x below each threshold, and its differences."""
        x = x.to(self.item.dtype)
        at = self.interval.expand(x.shape[0], *self.interval.shape)
        behind, ahead = (s.gather(-1, at) for s in _sums(x, self.gap))
        below = pad(x.cumsum(-1), (1, 0))
        mass = (
            below.gather(-1, at) + (ahead * (-self.before).exp() - behind * (-self.after).exp()) / 2
        )
        mass = torch.cat([torch.zeros_like(x[..., :1]), mass, below[..., -1:]], -1)
        return mass.diff(dim=-1).to(self.dtype)

    def transposed(self, y: Tensor) -> Tensor:
        """P^T y: F at every threshold, weighed by how much y falls there."""
        y = y.to(self.item.dtype)
        fall = -y.diff(dim=-1)
        place = torch.arange(self.n, device=y.device).expand(self.item.shape)
        row = count_up_to(self.interval, place)  # it stands in
        since = (self.threshold.gather(-1, row) - self.item).exp()
        until = (self.item - self.threshold.gather(-1, row + 1)).exp()
        at = row.expand(y.shape[0], *row.shape)
        inner = self.threshold[:, 1:-1].diff(dim=-1)
        behind, ahead = (s.gather(-1, at) for s in _sums(fall, inner))
        return (y.gather(-1, at) + (behind * since - ahead * until) / 2).to(self.dtype)

    def position_sums(self) -> Tensor:
        index = torch.arange(self.n, device=self.item.device, dtype=self.item.dtype)
        index = index.expand(self.item.shape)
        wanted = (index < self.rows).to(index.dtype)
        total, first = self.transposed(torch.stack([wanted, wanted * index]))
        return torch.stack([total, first - total * index.to(total.dtype)])

    def log_norm(self) -> Tensor:
        own = torch.arange(self.n, device=self.item.device).expand(self.item.shape)
        rows = self.rows
        return pad(-self.log_weight(own[:, :rows]), (0, self.n - rows)).to(self.dtype).unsqueeze(0)

    def entropy(self) -> Tensor:
        entropy = row_entropy(self.log_matrix())
        return pad(entropy, (0, self.n - self.rows)).to(self.dtype).unsqueeze(0)


def _log_mass(start: Tensor, end: Tensor) -> Tensor:
    """Logarithm of F(end) - F(start), without the cancellation."""
    outside = torch.where(start > 0, start, -end).clamp(min=0.0)
    beyond = (-torch.expm1(start - end)).log() - outside - math.log(2)
    inside = torch.log1p(-((-end.clamp(min=0.0)).exp() + start.clamp(max=0.0).exp()) / 2)
    return torch.where((start > 0) | (end < 0), beyond, inside)


def _sums(x: Tensor, gap: Tensor) -> tuple[Tensor, Tensor]:
    """For m + 1 intervals between m places, sums of x `(d, lists, m)` that decay towards them.

    Over the places behind an interval, seen from the nearest of them, and over those ahead; `gap`,
    `(lists, m - 1)`, is what lies between places.
    """
    behind = _decaying(x, gap)
    ahead = _decaying(x.flip(-1), gap.flip(-1)).flip(-1)
    return pad(behind, (1, 0)), pad(ahead, (0, 1))


def _decaying(x: Tensor, gap: Tensor) -> Tensor:
    """Running sums of x `(d, lists, m)` that decay along gaps `(lists, m - 1)`."""
    if not x.numel():
        return x
    if torch.compiler.is_compiling() and x.shape[-1] <= LONGEST_DENSE:
        # Every place from every other: one product, in place of steps that would be traced apart.
        index = torch.arange(x.shape[-1], device=x.device)
        since = pad(gap, (1, 0)).unsqueeze(-1).masked_fill(index.unsqueeze(-1) <= index, 0.0)
        reach = since.cumsum(-2).neg().exp().masked_fill(index.unsqueeze(-1) < index, 0.0)
        return matmul(reach, x.movedim(0, -1)).movedim(-1, 0)  # (lists, m, m) times (lists, m, d)
    decay = pad((-gap).exp(), (1, 0)).mT  # every list starts anew
    return recurrence(decay, x.permute(2, 1, 0))[1:].permute(2, 1, 0)
