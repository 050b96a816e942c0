r"""The band engine: products with a relaxed permutation in O(n) memory, at any temperature.

Everything here lives in sorted coordinates, largest score first, and has no autograd. Row i of the
matrix is, up to its normaliser,

$$E_{ij} = \exp(b_j + 2\, r_i\, d_j)$$

where $d_j$ is the distance of item j from a centre, in temperatures, and $r_i$ the coordinate of
row i about that centre. Rows fall off quadratically, so a block of neighbouring rows needs only a
window of columns; and over a block the sums $\sum_j E_{ij} x_j$ are, as functions of $r_i$, so
smooth that a few Chebyshev rows give all the others. Hence two ways to shorten the work, both
bounded whatever the gaps are:

- *window*: columns below $e^{-T}$ of the row's peak are left out, with $T = \log(n / \text{tol})$,
  so that less than `tol` of a row's mass is skipped;
- *nodes*: blocks are so small that interpolation errs by less than `tol` of a row's mass.

Blocks are the largest aligned dyadic intervals of rows that satisfy the second bound, so their
size follows the local density of the scores and the cost per row does not depend on temperature.
Every list has blocks of its own, and no block sees another list. docs/numerics.md derives it.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from ...._interpolation import fewest_nodes
from .blocks import LONGEST_SUM, SMALLEST_PIECE, Block, LogitGradient, Workspace
from .tiles import SMALLEST, Tiles

# Entries of the largest temporary: few enough to stay in cache, enough to keep the cores busy.
BUDGET = 1 << 21
# Entries of the blocks that are kept for the next sweep, such as that of the gradient: all of lists
# of some ten thousand items, and of longer ones a share that costs no more memory.
KEPT = 1 << 23

TOLERANCE = {torch.float32: 1e-7, torch.float64: 1e-14}
"""What is skipped, as a share of a row's mass."""

REACH = 6.0
"""The exponent |2 r d| allowed where a block's own neighbourhood ends."""

Sums = Callable[[Tensor], Tensor]
Gradients = tuple[Tensor, Tensor, Tensor]  # (lists, n), (lists, 1), (d, lists, n)
Visit = Callable[[Block, Tensor, Tensor], tuple[Tensor | None, Tensor | None]]
Local = Callable[[Block, Tensor, Tensor], LogitGradient]


@dataclass(frozen=True)
class Level:
    """Blocks of one size, sorted by the width of their windows.

    Tiles are counted through all lists. One more, the last, stands for all outside a list.
    """

    size: int
    lists: int
    tiles: int  # of this size in a list
    block: Tensor  # (m,) which tiles they are
    left: Tensor  # (m,) tiles left of the block that carry weight
    right: Tensor  # (m,) and right of it

    def batches(self, per_column: int) -> Iterator["Batch"]:
        """Runs of blocks with windows of similar width that fit the budget together."""
        lefts, rights = self.left.tolist(), self.right.tolist()
        begin = 0
        while begin < len(lefts):
            count = len(lefts) - begin
            while True:
                widest = max(rights[begin : begin + count])
                width = self.size * (lefts[begin + count - 1] + widest + 1)
                allowed = max(1, BUDGET // (width * per_column))
                if count <= allowed:
                    break
                count = max(allowed, count // 2)
            left = lefts[begin + count - 1]
            if width > LONGEST_SUM:  # then it is cut into pieces, which should not be small
                widest += -(left + widest + 1) % max(1, SMALLEST_PIECE // self.size)
            block = self.block[begin : begin + count]
            yield Batch(block, self.window(block, left, widest), left * self.size)
            begin += count

    def window(self, block: Tensor, left: int, right: int) -> Tensor:
        """The tiles around each block, `(m, left + 1 + right)`."""
        offset = torch.arange(-left, right + 1, device=block.device)
        place = (block % self.tiles).unsqueeze(1) + offset
        inside = (place >= 0) & (place < self.tiles)
        return torch.where(inside, block.unsqueeze(1) + offset, self.lists * self.tiles)

    def by_tile(self, x: Tensor, beyond: float) -> Tensor:
        """`(d, lists, n)` cut into tiles, `(tiles of all lists + 1, d, size)`."""
        d, lists, n = x.shape
        short = self.tiles * self.size - n
        # The last item once more: behind a wall it weighs nothing.
        whole = torch.cat([x, x[..., -1:].expand(d, lists, short)], -1) if short else x
        split = x.new_empty(lists * self.tiles + 1, d, self.size)
        split[:-1] = whole.reshape(d, lists * self.tiles, self.size).transpose(0, 1)
        split[-1].fill_(beyond)
        return split

    def by_list(self, x: Tensor, n: int) -> Tensor:
        """Undoes `by_tile`."""
        return x[:-1].transpose(0, 1).reshape(x.shape[1], self.lists, -1)[..., :n]


@dataclass
class Batch:
    """Blocks of one size whose windows are as wide, visited together."""

    block: Tensor  # (B,) which tiles they are
    window: Tensor  # (B, tiles) which tiles they see
    left: int  # columns before their own
    norm: Tensor | None = None  # (B, 1, S) the mass of their rows, once it is known
    made: Block | None = None  # their weights, if they are kept


class Bands(ABC):
    """Blocks of rows and their windows for lists with the given gaps.

    Args:
        gaps: `(lists, n)` float64, the gap after each item in temperatures, at most `WALL`;
            the last of each list is `WALL`.
        dtype: float32 or float64, in which the weights are computed.
        rows: How many leading rows of each list are wanted.
        tempered: Whether gradients to the unit of the gaps are wanted.
    """

    power: ClassVar[float]  # log-weights shrink with the unit to this power
    ranked: ClassVar[bool]  # whether a gap counts by its distance in ranks
    error: ClassVar[tuple[Callable[[int, float], float], float]]  # of a column, and its argument
    hiding: ClassVar[float]  # as what blocks see a gap that nothing passes
    row_channels = 0  # sums that a gradient needs from each row
    col_channels = 1  # and from each column

    def __init__(
        self, gaps: Tensor, dtype: torch.dtype, rows: int | None = None, tempered: bool = False
    ) -> None:
        self.lists, self.n = gaps.shape
        self.gaps = gaps
        self.dtype = dtype
        self.tempered = tempered
        self.rows = self.n if rows is None else rows
        tol = TOLERANCE[dtype] / max(self.n, 2)  # of one column
        self.threshold = -math.log(tol)
        self.nodes = fewest_nodes(*self.error, tol)
        self.levels = list(self._partition(Tiles(gaps, self.threshold)))
        self._batches: dict[int, list[list[Batch]]] = {}  # of every level, by entries per column
        self._room = KEPT

    # -- geometry ------------------------------------------------------------------------------

    @abstractmethod
    def fits(self, tiles: Tiles, level: int) -> Tensor:
        """Whether blocks of this level are smooth enough to interpolate, for all its tiles."""

    @abstractmethod
    def within(self) -> float:
        """The fall, or the distance, behind which columns are left out."""

    def _partition(self, tiles: Tiles) -> Iterator[Level]:
        """Maximal aligned dyadic blocks, with their windows."""
        count = -(-self.n // SMALLEST)
        fits = [(torch.arange(tiles.whole, device=self.gaps.device) < count).expand(self.lists, -1)]
        while self.lists and SMALLEST << len(fits) <= self.n:
            level = len(fits)
            whole = torch.arange(tiles.whole >> level, device=self.gaps.device)
            fit = self.fits(tiles, level).view(self.lists, -1)
            fit = fit & (whole < self.n // (SMALLEST << level))
            if not fit.any():
                break
            fits.append(fit)
        chosen = []
        for level, fit in enumerate(fits):
            if level + 1 < len(fits):
                fit = fit & ~fits[level + 1].repeat_interleave(2, -1)
            if self.rows < self.n:
                start = torch.arange(fit.shape[-1], device=fit.device) * (SMALLEST << level)
                fit = fit & (start < self.rows)
            chosen.append(fit.reshape(-1).nonzero().squeeze(-1))
        counts = [len(tile) for tile in chosen]
        levels = torch.arange(len(chosen), device=self.gaps.device)
        levels = levels.repeat_interleave(torch.tensor(counts, device=levels.device))
        reach = tiles.reach(levels, torch.cat(chosen), self.within(), self.ranked)
        lefts, rights = (x.split(counts) for x in reach)
        for level, (tile, left, right) in enumerate(zip(chosen, lefts, rights, strict=True)):
            if len(tile):
                size, of_list = SMALLEST << level, tile // (tiles.whole >> level)
                per_list = -(-self.n // size)
                order = torch.argsort(left * (per_list + 1) + right)
                block = of_list * per_list + tile % (tiles.whole >> level)
                ends = left[order], right[order]
                yield Level(size, self.lists, per_list, block[order], *ends)

    # -- weights -------------------------------------------------------------------------------

    @abstractmethod
    def seen(self) -> Tensor:
        """The gaps as blocks are to see them, `(lists, n)`: those that nothing passes, harmless."""

    @abstractmethod
    def block(
        self, gaps: Tensor, size: int, left: int, dtype: torch.dtype, space: Workspace | None = None
    ) -> Block:
        """Weights of a batch of blocks from the gaps seen in their windows, (B, W).

        In `space` if that is given: then they last until the next ones are made.
        """

    # -- the sweep -----------------------------------------------------------------------------

    def sweep(
        self,
        visit: Visit,
        *,
        rows: Tensor | None = None,
        cols: Tensor | None = None,
        rows_out: int = 0,
        cols_out: int = 0,
    ) -> tuple[Tensor, Tensor]:
        """Visits every block once with what its rows and columns hold.

        Args:
            visit: Given a block, its rows `(B, a, S)` and columns `(B, b, W)`, returns values for
                its rows `(B, rows_out, S)` and shares for its columns `(B, cols_out, W)`.
            rows: `(a, lists, n)`. Values of rows, if there are any.
            cols: `(b, lists, n)`. Values of columns, if there are any.
            rows_out: Channels of the rows' result.
            cols_out: Channels of the columns' result.

        Returns:
            `(rows_out, lists, n)` and `(cols_out, lists, n)`.
        """
        kind = {"dtype": self.dtype, "device": self.gaps.device}
        none = torch.zeros(0, self.lists, self.n, **kind)
        rows, cols = (none if x is None else x.to(self.dtype) for x in (rows, cols))
        channels = max(len(rows) + rows_out, len(cols), cols_out, 1)
        row_result = torch.zeros(rows_out, self.lists, self.n, **kind)
        col_result = torch.zeros(cols_out, self.lists, self.n, **kind)
        seen = self.seen().unsqueeze(0)
        for level, batches in zip(self.levels, self._in_batches(channels), strict=True):
            size = level.size
            row_tiles, col_tiles = level.by_tile(rows, 0.0), level.by_tile(cols, 0.0)
            row_sums = torch.zeros(len(row_tiles), rows_out, size, **kind)
            col_sums = torch.zeros(len(row_tiles), cols_out, size, **kind)
            for batch, block in zip(batches, self._made(level, batches, seen), strict=True):
                held = row_tiles[batch.block], _windowed(col_tiles, batch.window)
                to_rows, to_cols = visit(block, *(x.to(block.weights.dtype) for x in held))
                if to_rows is not None:
                    row_sums[batch.block] = to_rows.to(self.dtype)
                if to_cols is not None:
                    share = to_cols.to(self.dtype).unflatten(-1, (-1, size)).transpose(1, 2)
                    col_sums.index_add_(0, batch.window.view(-1), share.flatten(0, 1))
            if rows_out:
                row_result += level.by_list(row_sums, self.n)
            if cols_out:
                col_result += level.by_list(col_sums, self.n)
        return row_result, col_result

    def _in_batches(self, channels: int) -> list[list[Batch]]:
        """The batches of every level, for so many values of each row and column."""
        key = max(channels, SMALLEST)  # no block has fewer rows
        if key not in self._batches:
            self._batches[key] = [
                list(level.batches(max(min(level.size, self.nodes), channels)))
                for level in self.levels
            ]
        return self._batches[key]

    def _made(self, level: Level, batches: list[Batch], seen: Tensor) -> Iterator[Block]:
        """Their weights, one batch after the other: kept ones, or made anew in one place."""
        tiles, space = None, Workspace()
        for batch in batches:
            block = batch.made
            if block is None:
                if tiles is None:
                    tiles = level.by_tile(seen, self.hiding)
                gaps = _windowed(tiles, batch.window).squeeze(1)
                entries = gaps.numel() * min(level.size, self.nodes)
                used_up = None if entries <= self._room else space
                if batch.norm is not None:
                    block = self.block(gaps, level.size, batch.left, batch.norm.dtype, used_up)
                    block.norm = batch.norm
                else:
                    block = self.block(gaps, level.size, batch.left, self.dtype, used_up)
                    if block.lopsided():
                        block = self.block(gaps, level.size, batch.left, gaps.dtype)
                    batch.norm = block.norm
                if used_up is None and block.entries <= self._room:
                    self._room -= block.entries
                    batch.made = block
            yield block

    # -- gradients: to the scores, to the unit, to the payload -----------------------------------

    def gradient(self, local: Local, rows: Tensor, cols: Tensor, payload: int = 0) -> Gradients:
        """Gradients of a sum over blocks, given the gradient to a block's logits."""

        def visit(block: Block, rows: Tensor, cols: Tensor) -> tuple[Tensor, Tensor]:
            gradient = local(block, rows, cols)
            to_rows, to_cols = self.sums(block, gradient)
            if self.tempered:
                to_rows.append(gradient.tempered())
            to_rows = torch.cat([block.norm[:, :0], *to_rows], 1)  # which may be none
            return to_rows, torch.cat([gradient.payload[:, :payload], *to_cols], 1)

        row_sums, col_sums = self.sweep(
            visit,
            rows=rows,
            cols=cols,
            rows_out=self.row_channels + self.tempered,
            cols_out=payload + self.col_channels,
        )
        to_scores = self.to_scores(row_sums[: self.row_channels], col_sums[payload:])
        to_unit = self.gaps.new_zeros(self.lists, 1)
        if self.tempered:  # log-weights shrink by the unit to the power of their distance
            to_unit = -self.power * row_sums[-1].to(to_unit).sum(-1, keepdim=True)
        return to_scores, to_unit, col_sums[:payload]

    @abstractmethod
    def sums(self, block: Block, gradient: LogitGradient) -> tuple[list[Tensor], list[Tensor]]:
        """What a block's gradient adds to rows and columns, (B, 1, S) and (B, 1, W) each."""

    @abstractmethod
    def to_scores(self, rows: Tensor, cols: Tensor) -> Tensor:
        """The gradient to the scores, `(lists, n)`, from the sums over all blocks."""

    @staticmethod
    @abstractmethod
    def compose(gaps: Tensor, place: Tensor, total: Tensor, columns: Sums, rows: Sums) -> Tensor:
        """The gradient to the scores from differentiable sums of dL over rows and columns.

        Args:
            gaps: `(lists, n)`.
            place: `(lists, n)`. The sorted scores, differentiable.
            total: `(lists, n)`. Sums over rows of `dL[i, j]`.
            columns: Given z, sums over rows of `z[i] dL[i, j]`.
            rows: Given v, sums over columns of `v[j] dL[i, j]`.
        """


def _windowed(x: Tensor, window: Tensor) -> Tensor:
    """`(all tiles, d, size)` in the windows `(B, tiles)` of blocks, `(B, d, W)`."""
    return x[window].transpose(1, 2).flatten(2)


def outward(gaps: Tensor, centre: int) -> Tensor:
    """Sums of gaps `(..., W)` from the centre column outward, so that nothing cancels."""
    sums = torch.empty_like(gaps)
    sums[..., centre].zero_()
    torch.cumsum(gaps[..., centre:-1], -1, out=sums[..., centre + 1 :])
    sums[..., :centre] = gaps[..., :centre].flip(-1).cumsum(-1).flip(-1)
    return sums
