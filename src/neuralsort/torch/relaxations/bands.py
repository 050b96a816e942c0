r"""The band engine: products with a relaxed permutation in O(n) memory, at any temperature.

Everything here lives in sorted coordinates, largest score first, and has no autograd. A batch of
lists is one long list whose lists are separated by gaps that no weight crosses. Row i of the matrix
is, up to its normaliser,

$$E_{ij} = \exp(b_j + 2\, r_i\, d_j)$$

where $d_j$ is the distance of item j from a centre, in temperatures, and $r_i$ the coordinate of
row i about that centre. Rows fall off quadratically, so a block of neighbouring rows needs only a
window of columns; and over a block the sums $\sum_j E_{ij} x_j$ are, as functions of $r_i$, so
smooth that a few Chebyshev rows give all the others. Hence two ways to shorten the work, both
bounded whatever the gaps are:

- *window*: columns below $e^{-T}$ of the row's peak are left out, with $T = \log(n / \text{tol})$,
  so that less than `tol` of a row's mass is skipped;
- *nodes*: blocks are so small that interpolation from `nodes` Chebyshev rows errs by less than
  `tol` of a row's mass, for NeuralSort with up to 10^6 items. The worst case, which grows in
  proportion to n, is a crowd of ties at the most harmful distance; rounding comes on top.

Blocks are the largest aligned dyadic intervals of rows that satisfy the second bound, so their
size follows the local density of the scores and the cost per row does not depend on temperature.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

from .blocks import BilinearGradient, Block, EntropyGradient, LogitGradient
from .ordering import WALL

# Rows of the smallest block. Its exponents are formed in float64, so it may be arbitrarily hard.
SMALLEST = 16
# Entries of the largest temporary: few enough to stay in cache, enough to keep the cores busy.
BUDGET = 1 << 20


@dataclass(frozen=True)
class Accuracy:
    """What is skipped, as a share of a row's mass, and what that takes."""

    tol: float
    nodes: int
    reach: float  # |2 r d| allowed where a block's own neighbourhood ends


ACCURACY = {
    torch.float32: Accuracy(tol=1e-7, nodes=32, reach=6.0),
    torch.float64: Accuracy(tol=1e-14, nodes=44, reach=6.0),
}


Sums = Callable[[Tensor], Tensor]
Gradients = tuple[Tensor, Tensor, Tensor]  # (size,), (lists, 1), (d, size)
Visit = Callable[[Block, Tensor, Tensor], tuple[Tensor | None, Tensor | None]]


class Bands:
    """Blocks of rows and their windows for lists with the given gaps.

    Args:
        gaps: `(lists, n)` float64, the gap after each item in temperatures, at most `WALL`;
            the last of each list is `WALL`.
        dtype: float32 or float64, in which the weights are computed.
        rows: How many leading rows of each list are wanted.
        tempered: Whether gradients to the unit of the gaps are wanted.
    """

    power: float  # log-weights shrink with the unit to this power
    row_channels = 0  # sums that a gradient needs from each row
    col_channels = 1  # and from each column

    def __init__(
        self, gaps: Tensor, dtype: torch.dtype, rows: int | None = None, tempered: bool = False
    ) -> None:
        self.lists, self.n = gaps.shape
        self.size = self.lists * self.n
        self.gaps = gaps.reshape(-1)
        self.dtype = dtype
        self.tempered = tempered
        self.accuracy = ACCURACY[dtype]
        self.rows = self.n if rows is None else rows
        self.threshold = math.log(max(self.n, 2) / self.accuracy.tol)
        self.distance = pad(self.gaps.cumsum(0), (1, 0))  # (size + 1,)
        self.levels = list(self._partition())

    # -- geometry ------------------------------------------------------------------------------

    def _fits(self, start: Tensor, size: int) -> Tensor:
        """Whether blocks of this size are smooth enough to interpolate."""
        raise NotImplementedError

    def _windows(self, start: Tensor, size: int, tiles: int) -> tuple[Tensor, Tensor]:
        """How many tiles left and right of each block carry weight."""
        raise NotImplementedError

    def _partition(self) -> Iterator[tuple[int, Tensor, Tensor, Tensor]]:
        """Maximal aligned dyadic blocks: size, tile numbers, tiles to the left, to the right."""
        device = self.gaps.device
        fits = [torch.ones(-(-self.size // SMALLEST), dtype=torch.bool, device=device)]
        size = 2 * SMALLEST
        while size <= self.size:
            start = torch.arange(0, self.size - size + 1, size, device=device)  # whole blocks
            fit = self._fits(start, size)
            if not fit.any():
                break
            fits.append(pad(fit, (0, -(-self.size // size) - len(fit))))
            size *= 2
        for level, fit in enumerate(fits):
            size = SMALLEST << level
            start = torch.arange(0, self.size, size, device=device)
            if level + 1 < len(fits):
                fit = fit & ~fits[level + 1].repeat_interleave(2)[: len(fit)]
            if self.rows < self.n:
                last = (start + size - 1).clamp(max=self.size - 1)
                fit = fit & ((start % self.n < self.rows) | (last % self.n < last - start))
            tile = fit.nonzero().squeeze(-1)
            if len(tile):
                left, right = self._windows(tile * size, size, len(start))
                order = torch.argsort(left * (len(start) + 1) + right)
                yield size, tile[order], left[order], right[order]

    def _batches(
        self, size: int, left: Tensor, right: Tensor, channels: int
    ) -> Iterator[tuple[slice, int, int]]:
        """Runs of blocks with windows of similar width that fit the budget together."""
        lefts, rights = left.tolist(), right.tolist()
        per_column = max(min(size, self.accuracy.nodes), channels)
        begin = 0
        while begin < len(lefts):
            count = len(lefts) - begin
            while True:
                widest = max(rights[begin : begin + count])
                width = size * (lefts[begin + count - 1] + widest + 1)
                allowed = max(1, BUDGET // (width * per_column))
                if count <= allowed:
                    break
                count = max(allowed, count // 2)
            yield slice(begin, begin + count), lefts[begin + count - 1], widest
            begin += count

    # -- weights -------------------------------------------------------------------------------

    def _block(self, gaps: Tensor, size: int, left: int) -> Block:
        """Weights of a batch of blocks from the gaps in their windows, (B, W)."""
        raise NotImplementedError

    def _outward(self, gaps: Tensor, centre: int) -> Tensor:
        """Signed distances from the centre column, summed outward so that nothing cancels."""
        rightward = gaps[:, centre:-1].cumsum(1)
        leftward = gaps[:, :centre].flip(1).cumsum(1).flip(1)
        return torch.cat([-leftward, torch.zeros_like(gaps[:, :1]), rightward], 1)

    # -- the sweep -----------------------------------------------------------------------------

    def sweep(
        self,
        visit: Visit,
        rows: Tensor,
        cols: Tensor,
        *,
        rows_out: int = 0,
        cols_out: int = 0,
    ) -> tuple[Tensor, Tensor]:
        """Visits every block once with what its rows and columns hold.

        Args:
            visit: Given a block, its rows `(B, a, S)` and columns `(B, b, W)`, returns values for
                its rows `(B, rows_out, S)` and shares for its columns `(B, cols_out, W)`.
            rows: `(a, size)`. Values of rows, a may be 0.
            cols: `(b, size)`. Values of columns, b may be 0.
            rows_out: Channels of the rows' result.
            cols_out: Channels of the columns' result.

        Returns:
            `(rows_out, size)` and `(cols_out, size)`.
        """
        device = self.gaps.device
        kind = {"dtype": self.dtype, "device": device}
        rows, cols = rows.to(self.dtype), cols.to(self.dtype)
        channels = max(len(rows) + rows_out, len(cols), cols_out, 1)
        row_result = torch.zeros(rows_out, self.size, **kind)
        col_result = torch.zeros(cols_out, self.size, **kind)
        for size, tile, left, right in self.levels:
            tiles = -(-self.size // size)
            beyond = (tiles + 1) * size - self.size  # one more tile stands for all outside

            def by_tile(x: Tensor, value: float = 0.0) -> Tensor:
                split = pad(x, (0, beyond), value=value).view(len(x), tiles + 1, size)  # noqa: B023
                return split.transpose(0, 1).contiguous()

            gap_tiles = by_tile(self.gaps.unsqueeze(0), WALL)
            row_tiles, col_tiles = by_tile(rows), by_tile(cols)
            row_sums = torch.zeros(tiles + 1, rows_out, size, **kind)
            col_sums = torch.zeros(tiles + 1, cols_out, size, **kind)
            for batch, wide_left, wide_right in self._batches(size, left, right, channels):
                mine = tile[batch]
                window = mine.unsqueeze(1) + torch.arange(-wide_left, wide_right + 1, device=device)
                window = torch.where((window < 0) | (window > tiles), tiles, window)  # (B, tiles)

                def windowed(x: Tensor) -> Tensor:
                    return x[window].transpose(1, 2).flatten(2)  # noqa: B023

                gaps = windowed(gap_tiles).squeeze(1)
                block = self._block(gaps, size, wide_left * size)
                to_rows, to_cols = visit(block, row_tiles[mine], windowed(col_tiles))
                if to_rows is not None:
                    row_sums[mine] = to_rows
                if to_cols is not None:
                    share = to_cols.unflatten(-1, (-1, size)).transpose(1, 2)
                    col_sums.index_add_(0, window.view(-1), share.flatten(0, 1))
            if rows_out:
                row_result += row_sums.transpose(0, 1).reshape(rows_out, -1)[:, : self.size]
            if cols_out:
                col_result += col_sums.transpose(0, 1).reshape(cols_out, -1)[:, : self.size]
        return row_result, col_result

    # -- what a matrix is asked ----------------------------------------------------------------

    def product(self, x: Tensor) -> Tensor:
        """P x for x of shape `(d, size)`."""

        def visit(block: Block, _: Tensor, cols: Tensor) -> tuple[Tensor, None]:
            values, offset = block.centred(cols)
            return block.product(values) + offset, None

        return self.sweep(visit, x[:0], x, rows_out=len(x))[0]

    def transposed(self, y: Tensor) -> Tensor:
        """P^T y for y of shape `(d, size)`."""

        def visit(block: Block, rows: Tensor, _: Tensor) -> tuple[None, Tensor]:
            return None, block.transposed(rows)

        return self.sweep(visit, y, y[:0], cols_out=len(y))[1]

    def position_sums(self) -> Tensor:
        """`(2, size)`: for each column its sum, and its sum of (row - own position)."""

        def visit(block: Block, rows: Tensor, _: Tensor) -> tuple[None, Tensor]:
            sums = block.transposed(torch.cat([rows, rows * block.row], 1))
            total, first = sums.split(1, 1)
            return None, torch.cat([total, first - total * block.position], 1)

        wanted = self._wanted()
        return self.sweep(visit, wanted, wanted[:0], cols_out=2)[1]

    def log_norm(self) -> Tensor:
        """`(size,)`: minus the log of each row's weight on its own item."""

        def visit(block: Block, _rows: Tensor, _cols: Tensor) -> tuple[Tensor, None]:
            log = block.norm.log()
            return log if block.peak is None else log - block.peak, None

        none = self.gaps.new_zeros(0, self.size)
        return self.sweep(visit, none, none, rows_out=1)[0][0]

    def entropy(self) -> Tensor:
        """`(size,)`: the entropy of each row in nats."""

        def visit(block: Block, _rows: Tensor, _cols: Tensor) -> tuple[Tensor, None]:
            return block.norm.log() + block.mean(torch.special.entr(block.weights)), None

        none = self.gaps.new_zeros(0, self.size)
        return self.sweep(visit, none, none, rows_out=1)[0][0]

    # -- and its gradients: to the scores, to the unit, to the payload -------------------------

    def product_gradient(self, a: Tensor, b: Tensor) -> Gradients:
        """Gradient of `sum(a * (P b))` for `(d, size)` each."""
        return self._gradient(BilinearGradient, a, b, len(a))

    def position_gradient(self, alpha: Tensor, beta: Tensor) -> Gradients:
        """Gradient of `sum(alpha * sums[0] + beta * sums[1])`, of `position_sums`."""

        def local(block: Block, rows: Tensor, cols: Tensor) -> LogitGradient:
            a = torch.cat([rows, rows * block.row], 1)
            alpha, beta = cols.split(1, 1)
            return BilinearGradient(block, a, torch.cat([alpha - beta * block.position, beta], 1))

        return self._gradient(local, self._wanted(), torch.stack([alpha, beta]), 0)

    def log_norm_gradient(self, w: Tensor) -> Gradients:
        """Gradient of `-sum(w * log_norm)`."""

        def local(block: Block, rows: Tensor, cols: Tensor) -> LogitGradient:
            return BilinearGradient(block, rows[:, :0], cols, rows)

        return self._gradient(local, w.unsqueeze(0), w.unsqueeze(0)[:0], 0)

    def entropy_gradient(self, w: Tensor) -> Gradients:
        """Gradient of `sum(w * entropy)`."""

        def local(block: Block, rows: Tensor, _: Tensor) -> LogitGradient:
            return EntropyGradient(block, rows)

        return self._gradient(local, w.unsqueeze(0), w.unsqueeze(0)[:0], 0)

    def _wanted(self) -> Tensor:
        """`(1, size)`: 1 for the rows that are wanted."""
        row = torch.arange(self.n, device=self.gaps.device) < self.rows
        return row.to(self.dtype).repeat(self.lists).unsqueeze(0)

    def _gradient(
        self, local: Callable[..., LogitGradient], rows: Tensor, cols: Tensor, payload: int
    ) -> Gradients:
        """The same, given the gradient to a block's logits."""

        def visit(block: Block, rows: Tensor, cols: Tensor) -> tuple[Tensor, Tensor]:
            gradient = local(block, rows, cols)
            to_rows, to_cols = self._sums(block, gradient)
            if self.tempered:
                to_rows.append(gradient.tempered())
            empty = block.norm[:, :0]
            return torch.cat([empty, *to_rows], 1), torch.cat(
                [gradient.payload[:, :payload], *to_cols], 1
            )

        row_sums, col_sums = self.sweep(
            visit,
            rows,
            cols,
            rows_out=self.row_channels + self.tempered,
            cols_out=payload + self.col_channels,
        )
        to_scores = self._to_scores(row_sums[: self.row_channels], col_sums[payload:])
        to_unit = self.gaps.new_zeros(self.lists, 1)
        if self.tempered:  # log-weights shrink by the unit to the power of their distance
            to_unit = row_sums[-1].view(self.lists, self.n).to(to_unit).sum(-1, keepdim=True)
            to_unit = -self.power * to_unit
        return to_scores, to_unit, col_sums[:payload]

    def _sums(self, block: Block, gradient: LogitGradient) -> tuple[list[Tensor], list[Tensor]]:
        """What a block's gradient adds to rows and columns, (B, 1, S) and (B, 1, W) each."""
        raise NotImplementedError

    def _to_scores(self, rows: Tensor, cols: Tensor) -> Tensor:
        """The gradient to the scores, `(size,)`, from the sums over all blocks."""
        raise NotImplementedError

    @staticmethod
    def compose(gaps: Tensor, place: Tensor, total: Tensor, columns: Sums, rows: Sums) -> Tensor:
        """The gradient to the scores from differentiable sums of dL over rows and columns.

        Args:
            gaps: `(lists, n)`.
            place: `(lists, n)`. The sorted scores, differentiable.
            total: `(lists, n)`. Sums over rows of `dL[i, j]`.
            columns: Given z, sums over rows of `z[i] dL[i, j]`.
            rows: Given v, sums over columns of `v[j] dL[i, j]`.
        """
        raise NotImplementedError


def chebyshev(t: Tensor, nodes: int) -> tuple[Tensor, Tensor]:
    """Chebyshev nodes in (-1, 1), and the barycentric matrix from nodes to the points t."""
    angle = (torch.arange(nodes, dtype=t.dtype, device=t.device) + 0.5) * (math.pi / nodes)
    node, weight = angle.cos(), angle.sin()
    weight[1::2] *= -1
    difference = t.unsqueeze(-1) - node
    tiny = 1e-15  # a point on a node takes that node's value
    difference = torch.where(difference.abs() < tiny, tiny, difference)
    share = weight / difference
    return node, share / share.sum(-1, keepdim=True)
