"""Sums of gaps over aligned tiles of a list, and how far a weight reaches.

Gaps are not negative. So a sum of them is as exact as its largest partial sum, however it is put
together, while a difference of two running sums is not: far from the start of a long list, or
behind a wide gap, the digits of the narrow gaps are gone. Everything here is put together from
sums over tiles of 16, 32, 64, ... items, as a binary tree has them, and never subtracted.
"""

import torch
from torch import Tensor
from torch.nn.functional import pad

from ..ordering import WALL

# Items of the smallest tile.
SMALLEST = 16
# More than sums here may round: no term of a fall passes through more than 200 rounded steps, even
# in a list of a billion items, and each is 1.1e-16 of the result.
ROUNDING = 1e-13


class Tiles:
    """The gaps of a batch of lists by tiles, at every level: tiles of `SMALLEST << level` items.

    Every list has tiles of its own, as many as the next power of two; those past its end lie
    behind a wall. Tiles are counted through all lists, `whole >> level` to a list.

    Args:
        gaps: `(lists, n)` float64, the gap after each item in units; the last is a wall.
        hidden: Gaps as wide as this hide whatever is behind them.
    """

    def __init__(self, gaps: Tensor, hidden: float) -> None:
        self.lists, self.n = gaps.shape
        self.whole = 1 << (-(-self.n // SMALLEST) - 1).bit_length()  # tiles of a list
        short = self.whole * SMALLEST - self.n
        # Gaps after items, for what lies to the right; gaps before items, mirrored, for the left.
        self.after = pad(gaps, (0, short), value=WALL).view(-1, SMALLEST)
        self.before = pad(gaps[:, :-1], (1, short), value=WALL).view(-1, SMALLEST)
        odd = torch.arange(1, 2 * SMALLEST, 2, dtype=gaps.dtype, device=gaps.device)
        inner = (odd < odd[-1]).to(odd.dtype)
        weights = torch.stack([torch.ones_like(odd), odd, inner], 1)
        total, moment, inner = (self.after @ weights).unbind(1)
        mirrored = (self.before @ weights[:, :2].flip(0)).flip(0).unbind(1)
        # The total adds the gaps of a tile. The moment adds them times 1, 3, 5, ... from the near
        # end: how far NeuralSort's log-weight falls across the tile, seen from just before it.
        totals, moments = [torch.stack([total, mirrored[0]])], [torch.stack([moment, mirrored[1]])]
        self.narrow = [torch.where(self.after < hidden, self.after, 0.0).sum(-1)]  # less wide gaps
        self.inner = [inner]  # without the last gap of the tile
        size = SMALLEST
        while size < self.whole * SMALLEST:
            (near, far), (near_moment, far_moment) = (
                x[-1].unflatten(-1, (-1, 2)).unbind(-1) for x in (totals, moments)
            )
            totals.append(near + far)
            moments.append(near_moment + far_moment + 2 * size * far)
            self.narrow.append(self.narrow[-1].view(-1, 2).sum(-1))
            self.inner.append(near[0] + self.inner[-1].view(-1, 2)[:, 1])
            size *= 2
        self.levels = len(totals)
        # All levels in one row, so that blocks of every size may walk together. Behind each, and
        # wherever there is none, nothing is within reach.
        beyond = gaps.new_full((2, self.lists + 1), torch.inf)
        self._total, self._moment = (  # (2, nodes)
            torch.cat([part for x in of for part in (x, beyond[:, :1])] + [beyond], 1)
            for of in (totals, moments)
        )
        begin = [0]
        for x in totals:
            begin.append(begin[-1] + x.shape[1] + 1)
        begin += begin[-1:] * (self.levels - 1)  # as many steps as there are levels
        nodes = self._total.shape[1]
        self._begin = torch.tensor([begin, [nodes + at for at in begin]], device=gaps.device)

    def reach(
        self, level: Tensor, tile: Tensor, within: float, ranked: bool
    ) -> tuple[Tensor, Tensor]:
        """How many tiles left and right of each tile hold an item within this fall.

        Args:
            level: `(m,)`. The levels of the tiles.
            tile: `(m,)`. Their numbers.
            within: How far the log-weight may fall; or the distance may grow.
            ranked: Whether gaps count by their distance in ranks, as in NeuralSort, or once.

        Returns:
            Two `(m,)`, never too few.
        """
        last = self.after[((tile + 1) << level) - 1, -1]
        first = self.before[tile << level, 0]
        # Mirrored, the tiles to the left are to the right.
        mirrored = (self.lists * self.whole >> level) - 1 - tile
        both = self._walk(
            level.repeat(2),
            torch.cat([tile, mirrored]),
            torch.cat([last, first]),
            within * (1 + ROUNDING),
            ranked,
        )
        right, left = both.chunk(2)
        return left, right

    def _walk(
        self, level: Tensor, tile: Tensor, gap: Tensor, within: float, ranked: bool
    ) -> Tensor:
        """How many tiles behind each tile begin within the fall; the second half is mirrored.

        Climbs to larger and larger tiles while they fit, then descends to smaller ones.
        """
        second_half = torch.arange(2, device=tile.device).repeat_interleave(len(tile) // 2)
        row = second_half * self._begin.shape[1] + level
        begin, total, moment = (x.view(-1) for x in (self._begin, self._total, self._moment))
        highest, size = self.levels - 1 - level, 2 * SMALLEST << level
        fall, start = gap, tile + 1
        at = start

        def move(allowed: Tensor, step: int) -> Tensor:
            """Over the next tile that is `1 << step` times as large, where that is allowed."""
            nonlocal fall, at
            node = begin[row + step] + (at >> step)
            gaps = total[node]
            if ranked:  # twice the ranks from the row to the first of these gaps, times them all
                further = torch.addcmul(fall + moment[node], 2 + (at - start) * size, gaps)
            else:
                further = fall + gaps
            moved = allowed & (further < within)
            fall, at = torch.where(moved, further, fall), torch.where(moved, at + (1 << step), at)
            return moved

        climbing = fall < within
        step = 0
        while bool(climbing.any()):
            second = (at >> step) % 2 == 1  # of its pair; a first one is part of a larger tile
            climbing = climbing & (move(climbing & second, step) | ~second)
            climbing = climbing & (highest > step)
            step += 1
        for smaller in reversed(range(step)):
            move(at % (1 << smaller) == 0, smaller)
        return (gap < within) + (at - start)
