"""NeuralSort's matrix written down, for short lists: values and derivatives in few passes."""

import math
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from ..arrays import constant, matmul, seen
from .engine.between import all_falls
from .ordering import Ordered, inverse, tie_groups

# Matrices of so many entries are formed all at once, in few parallel regions; larger ones in strips
# of half as many, for which memory need not be asked for anew.
CHUNK = 1 << 20
# Rows that are summed in float32.
PIECE = 32


def neuralsort_matrix(ordered: Ordered, dtype: torch.dtype, rows: int) -> Tensor:
    """The first rows of NeuralSort's matrix, `(..., rows, n)`."""
    unit, gaps = ordered.unit(), ordered.gaps
    unit = gaps.new_zeros(()) if unit is None else unit
    matrix = _apply_sorted(ordered.linked(), unit, gaps, ordered.perm, dtype, rows)
    if ordered.n > 1 or not ordered.tempered:
        return matrix
    return matrix + ordered.poison().unsqueeze(-1).to(dtype)  # no gap tells a lone item


def _apply_sorted(*args: Any) -> Tensor:
    """The sorted form; compiled graphs take no Function that has forward-mode derivatives."""
    return (_Sorted if torch.compiler.is_compiling() else _SortedForward).apply(*args)  # pyright: ignore


# -- values ----------------------------------------------------------------------------------------


def _write_exact(gaps: Tensor, perm: Tensor, out: Tensor) -> Tensor:
    """Rows from falls that are sums of gaps: none is below 0, so no item outweighs a row's own."""
    if torch.compiler.is_compiling():
        rank = inverse(perm).unsqueeze(-2).expand(out.shape)
        return torch.softmax(-all_falls(gaps, 0, out.shape[-2]), -1).gather(-1, rank)
    for i, j in _strips(gaps.numel(), out.shape[-2]):
        weights = all_falls(gaps, i, j).neg_().exp_()
        weights = weights / weights.sum(-1, keepdim=True)
        out[..., i:j, :].scatter_(-1, perm.unsqueeze(-2).expand_as(weights), weights)
    return out


def _write_gaps(gaps: Tensor, perm: Tensor, dtype: torch.dtype, rows: int) -> Tensor:
    """Rows from running sums of gaps: fewer passes, and exact to the digits that float32 keeps."""
    n = gaps.shape[-1]
    twice = torch.arange(1 - n, n, 2, dtype=gaps.dtype, device=gaps.device)
    before = pad(gaps[..., :-1] / math.log(_base()), (1, 0))  # before each position
    place, level = before.cumsum(-1), (before * (1 - twice)).cumsum(-1)
    peak = torch.addcmul(level, twice, place)
    place, level = (torch.empty_like(x).scatter_(-1, perm, x) for x in (place, level))
    return write(twice, place, level, peak, dtype, rows)


def write(
    row: Tensor, place: Tensor, level: Tensor, peak: Tensor, dtype: torch.dtype, rows: int
) -> Tensor:
    """Weights `b^(row_i place_j + level_j - peak_i)`, over their sums: `(..., rows, n)`.

    Here b is `_base()`. Logits are formed in float64, and nowhere kept: all of them would be twice
    the matrix.
    """
    place, level, peak, row = (
        place.unsqueeze(-2),
        level.unsqueeze(-2),
        peak.unsqueeze(-1),
        row.unsqueeze(-1),
    )
    strips = _strips(place.numel(), rows)
    if strips == [(0, rows)]:
        weights = _weights(row[:rows], place, level, peak[..., :rows, :], dtype)
        return weights.div_(weights.sum(-1, keepdim=True))
    shape = (*level.shape[:-2], rows, level.shape[-1])
    out = torch.empty(shape, dtype=dtype, device=level.device)
    for i, j in strips:
        weights = _weights(row[i:j], place, level, peak[..., i:j, :], dtype)
        torch.div(weights, weights.sum(-1, keepdim=True), out=out[..., i:j, :])
    return out


def _weights(row: Tensor, place: Tensor, level: Tensor, peak: Tensor, dtype: torch.dtype) -> Tensor:
    logits = (level - peak).addcmul_(row, place).to(dtype)
    # What underflows is slow, here and in all that is multiplied by it.
    least = math.log(16 * torch.finfo(dtype).tiny, _base())
    weights = torch.threshold_(logits, least, -torch.inf)
    return weights.exp2_() if _base() == 2 else weights.exp_()


def _base() -> float:
    """What weights are powers of: of 2, which is fast; of e in compiled graphs.

    Inductor keeps an exponential that is used twice, but would compute a power of 2 again.
    """
    return math.e if torch.compiler.is_compiling() else 2.0


def _strips(width: int, rows: int) -> list[tuple[int, int]]:
    """Runs of rows, so wide in all lists together, that are formed together in little memory.

    All at once in compiled graphs: one serves every size, and fuses what it forms.
    """
    if torch.compiler.is_compiling() or width * rows <= CHUNK:
        return [(0, rows)]
    step = max(1, CHUNK // 2 // width)
    return [(i, min(i + step, rows)) for i in range(0, rows, step)]


# -- derivatives -----------------------------------------------------------------------------------


def _to_logits(matrix: Tensor, grad: Tensor) -> Tensor:
    """Gradient to the logits of a softmax over rows, from the gradient to the matrix."""
    if not torch.is_grad_enabled() and not torch.compiler.is_compiling():
        return torch._softmax_backward_data(grad, matrix, -1, matrix.dtype)  # pyright: ignore
    weighted = matrix * grad
    return torch.addcmul(weighted, matrix, weighted.sum(-1, keepdim=True), value=-1)


def column_sums(
    matrix: Tensor, grad: Tensor, exact: torch.dtype, tempered: bool = False
) -> tuple[Tensor, Tensor | None]:
    """Sums over rows of the gradient to the logits, plain and times `-2 i`: `(..., 2, n)`.

    And, for the gradient to the temperature, of its product with the logits: `(..., 1)`.
    """
    sums, heat = [], []
    strips = _strips(matrix.numel() // matrix.shape[-2], matrix.shape[-2])
    for i, j in strips:
        weights = matrix[..., i:j, :] if len(strips) > 1 else matrix
        to_logits = _to_logits(weights, grad[..., i:j, :] if len(strips) > 1 else grad)
        sums.append(_row_sums(to_logits, i, j, exact))
        if tempered:
            log = weights.clamp(min=torch.finfo(matrix.dtype).tiny).log()
            heat.append((to_logits * log).sum((-1, -2)).to(exact).unsqueeze(-1))
    return sum(sums[1:], sums[0]), sum(heat[1:], heat[0]) if heat else None


def _row_sums(x: Tensor, start: int, stop: int, exact: torch.dtype) -> Tensor:
    """Sums over rows i of x, which are `start:stop`, plain and times `-2 i`: `(..., 2, n)`."""
    if torch.compiler.is_compiling():  # added up in float64, and fused with x
        twice = torch.arange(-2 * start, -2 * stop, -2, dtype=exact, device=x.device)
        return torch.stack([x.sum(-2, dtype=exact), (x * twice.unsqueeze(-1)).sum(-2)], -2)
    within, of_pieces = constant(x, _weights_of_rows, start, stop, x.dtype, exact)
    if x.dim() == 3:  # as `matmul` does in the end
        within = within.expand(len(x), *within.shape)
    sums = matmul(within, x).to(exact)
    return sums if of_pieces is None else matmul(of_pieces, sums)


def _weights_of_rows(
    start: int, stop: int, dtype: torch.dtype, exact: torch.dtype, device: torch.device
) -> tuple[Tensor, Tensor | None]:
    """From rows to two sums for each piece of them, and from these to sums over all rows.

    Within a piece, rows are counted from its middle, so that float32 will do: far from an item's
    own row there is no weight, and what is multiplied by a large distance in the end is small.
    """
    if stop <= PIECE:
        row = torch.arange(start, stop, dtype=dtype, device=device)
        return torch.stack([torch.ones_like(row), -2 * row]), None
    row = torch.arange(start, stop, device=device)
    piece = (row - start) // PIECE
    count = -(-(stop - start) // PIECE)
    own = piece == torch.arange(count, device=device).unsqueeze(-1)  # (pieces, rows)
    middle = start + PIECE * torch.arange(count, device=device).unsqueeze(-1) + PIECE // 2
    within = torch.stack([own, -2 * (row - middle) * own], 1).flatten(0, 1).to(dtype)
    one, none = torch.ones_like(middle), torch.zeros_like(middle)
    of_pieces = torch.stack([torch.cat([one, none], 1), torch.cat([-2 * middle, one], 1)])
    return within, of_pieces.flatten(1).to(exact)


def to_sorted(sums: Tensor, perm: Tensor, gaps: Tensor) -> Tensor:
    """Gradient to sorted scores in units, `(..., n)`, from what `column_sums` gives."""
    total, moment = sums.gather(-1, perm.unsqueeze(-2).expand_as(sums)).unbind(-2)
    n = total.shape[-1]
    smallest = seen(gaps[..., : n - 1], torch.min)
    if smallest is not None and smallest > 0:  # no ties, and no NaN that would hide them
        odd = torch.arange(-1, 2 * n - 1, 2, device=total.device)
        return torch.addcmul(moment, total, odd).add_(total.cumsum(-1), alpha=2)
    twice = torch.arange(0, 2 * n, 2, device=total.device)
    before = total.cumsum(-1) - total
    return untie(twice * total + moment, total, before, ties=tie_groups(gaps))


def tangent_of(tangent: Tensor, perm: Tensor, gaps: Tensor, rows: int) -> Tensor:
    """What logits change by where sorted scores in units change: `(..., rows, n)`."""
    first, last = tie_groups(gaps)
    until = pad(tangent.cumsum(-1), (1, 0))
    larger, not_smaller = until.gather(-1, first), until.gather(-1, last + 1)
    level = (first + last) * tangent + until[..., -1:] - not_smaller - larger
    by_item = torch.stack([tangent, level], -2)
    by_item = by_item.scatter(-1, perm.unsqueeze(-2).expand_as(by_item), by_item)
    twice = 2 * torch.arange(rows, device=gaps.device).unsqueeze(-1)
    return by_item[..., 1:, :] - twice * by_item[..., :1, :]


def to_matrix(matrix: Tensor, logits: Tensor) -> Tensor:
    """What a softmax over rows changes by where its logits do."""
    return matrix * (logits - (matrix * logits).sum(-1, keepdim=True))


class _Sorted(torch.autograd.Function):
    """The matrix from sorted gaps: float64 in the logits, the computation's dtype in the weights.

    `apply(scaled, unit, gaps, perm, dtype, rows)` in sorted coordinates, but for the columns of
    the matrix, which are in the order of the items.
    """

    @staticmethod
    def forward(
        scaled: Tensor, unit: Tensor, gaps: Tensor, perm: Tensor, dtype: torch.dtype, rows: int
    ) -> Tensor:
        if dtype != gaps.dtype:
            return _write_gaps(gaps, perm, dtype, rows)
        out = torch.empty(*gaps.shape[:-1], rows, gaps.shape[-1], dtype=dtype, device=gaps.device)
        return _write_exact(gaps, perm, out)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple, output: Tensor) -> None:
        _, unit, gaps, perm, *_ = inputs
        ctx.save_for_backward(output, unit, gaps, perm)
        ctx.save_for_forward(output, unit, gaps, perm)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple:  # pyright: ignore
        matrix, unit, gaps, perm = ctx.saved_tensors
        if not matrix.shape[-2]:
            return (torch.zeros_like(gaps), torch.zeros_like(unit), *[None] * 4)
        sums, heat = column_sums(matrix, grad, gaps.dtype, ctx.needs_input_grad[1])
        return (to_sorted(sums, perm, gaps), None if heat is None else -heat, *[None] * 4)

    @staticmethod
    def vmap(info: Any, in_dims: tuple, *args: Any) -> tuple[Tensor, int]:
        tensors = [
            x.movedim(d, 0) if d is not None else x.expand(info.batch_size, *x.shape)
            for x, d in zip(args[:4], in_dims[:4], strict=True)
        ]
        return _apply_sorted(*tensors, *args[4:]), 0


class _SortedForward(_Sorted):
    """The same, with forward-mode derivatives."""

    @staticmethod
    def jvp(ctx: Any, tangent: Tensor, to_unit: Tensor | None, *_: None) -> Tensor:  # pyright: ignore
        matrix, _, gaps, perm = ctx.saved_tensors
        logits = torch.zeros_like(matrix)
        if tangent is not None:
            logits = tangent_of(tangent, perm, gaps, matrix.shape[-2]).to(matrix.dtype)
        if to_unit is not None:
            log = matrix.clamp(min=torch.finfo(matrix.dtype).tiny).log()
            logits = logits - log * to_unit.unsqueeze(-1).to(matrix.dtype)
        return to_matrix(matrix, logits)


def untie(
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
