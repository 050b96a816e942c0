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
# Sums here have at most some hundred rounded steps, each 1.1e-16 of the result.
ROUNDING = 1e-13


class Sums:
    """Sums over tiles, seen from one end: `total[level]` and `moment[level]`, `(tiles,)` each.

    The total adds the gaps of a tile. The moment adds them times 1, 3, 5, ... from the near end:
    how far NeuralSort's log-weight falls across the tile, for the row that stands just before it.

    Args:
        gaps: `(lists, tiles, SMALLEST)`, where the number of tiles is a power of two.
        near: 0 if tiles are seen from their first item, -1 if from their last.
    """

    def __init__(self, gaps: Tensor, near: int) -> None:
        odd = torch.arange(1, 2 * SMALLEST, 2, dtype=gaps.dtype, device=gaps.device)
        weights = torch.stack([torch.ones_like(odd), odd if near == 0 else odd.flip(0)], 1)
        total, moment = (gaps.reshape(-1, SMALLEST) @ weights).unbind(1)
        if near != 0:
            total, moment = total.flip(0), moment.flip(0)
        self.total, self.moment = [total], [moment]
        size = SMALLEST
        while size < gaps.shape[1] * SMALLEST:
            near_total, far_total = total.view(-1, 2).unbind(1)
            near_moment, far_moment = moment.view(-1, 2).unbind(1)
            moment = near_moment + far_moment + 2 * size * far_total
            total = near_total + far_total
            self.total.append(total)
            self.moment.append(moment)
            size *= 2

    def walk(self, level: int, tile: Tensor, gap: Tensor, within: float, ranked: bool) -> Tensor:
        """How many tiles behind each of the given ones hold an item within this fall.

        Climbs to larger and larger tiles while they fit, then descends to smaller ones.

        Args:
            level: Tiles have `SMALLEST << level` items.
            tile: `(m,)`. The tiles to start behind, whose end is where the row stands.
            gap: `(m,)`. The gap to the next item, the first of the next tile.
            within: How far the log-weight may fall; or the distance may grow.
            ranked: Whether gaps count by their distance in ranks, as in NeuralSort, or once.

        Returns:
            `(m,)`, never too few.
        """
        within = within * (1 + ROUNDING)
        size = SMALLEST << level
        fall, at = gap, tile + 1

        def beyond(step: int) -> Tensor:
            """The fall to the end of the next tile that is `1 << step` times as large."""
            node = (at >> step).clamp(max=len(self.total[level + step]) - 1)
            total = self.total[level + step][node]
            if not ranked:
                return fall + total
            ranks = 1 + (at - tile - 1) * size  # from the row to the first of these gaps
            return fall + self.moment[level + step][node] + 2 * ranks * total

        def move(allowed: Tensor, step: int) -> Tensor:
            nonlocal fall, at
            further = beyond(step)
            moved = allowed & (further < within)
            fall, at = torch.where(moved, further, fall), torch.where(moved, at + (1 << step), at)
            return moved

        climbing = fall < within
        step, steps = 0, len(self.total) - level
        while step < steps and bool(climbing.any()):
            second = (at >> step) % 2 == 1  # of its pair; a first one is part of a larger tile
            climbing = climbing & (move(climbing & second, step) | ~second)
            step += 1
        for smaller in reversed(range(step)):
            move(at % (1 << smaller) == 0, smaller)
        return (gap < within) + (at - tile - 1)


class Tiles:
    """The gaps of a batch of lists by tiles.

    Every list has tiles of its own, as many as the next power of two; those past its end lie
    behind a wall.

    Args:
        gaps: `(lists, n)` float64, the gap after each item in units; the last is a wall.
        hidden: Gaps as wide as this hide whatever is behind them.
    """

    def __init__(self, gaps: Tensor, hidden: float) -> None:
        self.lists, self.n = gaps.shape
        self.whole = 1 << (-(-self.n // SMALLEST) - 1).bit_length()  # tiles of a list
        short = self.whole * SMALLEST - self.n
        shape = (self.lists, self.whole, SMALLEST)
        after = pad(gaps, (0, short), value=WALL).view(shape)
        before = pad(gaps[:, :-1], (1, short), value=WALL).view(shape)
        self.after, self.before = after, before
        self.rightward, self.leftward = Sums(after, 0), Sums(before, -1)
        self.open = [torch.where(after < hidden, after, 0.0).sum(-1)]  # (lists, tiles)
        self.inner = [after[..., :-1].sum(-1)]  # without the last gap of the tile
        for total in self.rightward.total[:-1]:
            first, second = self.open[-1].view(self.lists, -1, 2).unbind(-1)
            self.open.append(first + second)
            first = total.view(self.lists, -1, 2)[..., 0]
            self.inner.append(first + self.inner[-1].view(self.lists, -1, 2)[..., 1])

    def reach(self, level: int, tile: Tensor, within: float, ranked: bool) -> tuple[Tensor, Tensor]:
        """How many tiles left and right of each tile `(m,)` hold an item within this fall.

        Tiles are counted through all lists, `whole >> level` to a list.
        """
        inner = 1 << level  # tiles of the smallest size
        last = self.after.view(-1, SMALLEST)[(tile + 1) * inner - 1, -1]
        first = self.before.view(-1, SMALLEST)[tile * inner, 0]
        mirrored = len(self.leftward.total[level]) - 1 - tile
        return (
            self.leftward.walk(level, mirrored, first, within, ranked),
            self.rightward.walk(level, tile, last, within, ranked),
        )
