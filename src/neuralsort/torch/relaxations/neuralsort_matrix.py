"""NeuralSort's matrix written down, for short lists: values and derivatives in few passes."""

import math
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad, threshold

from ..arrays import matmul
from .engine.between import all_falls
from .ordering import Ordered, inverse, tie_groups

# Lists up to this length are compared pair by pair: fewer operations than sorting them.
PAIRWISE = 32
# Scores may be this many temperatures large there: sums over pairs round by 1e-16 of them.
WIDEST = 1e4
# Entries of the largest float64 temporary of the sorted form.
CHUNK = 1 << 18


def neuralsort_matrix(ordered: Ordered, dtype: torch.dtype, rows: int) -> Tensor:
    """The first rows of NeuralSort's matrix, `(..., rows, n)`."""
    # Graphs are not to depend on whether lists are that short.
    few = not torch.compiler.is_compiling() and ordered.n <= PAIRWISE
    if few and dtype != ordered.exact and ordered.tame(WIDEST):
        return _pairwise(ordered, dtype, rows)
    unit, gaps = ordered.unit(), ordered.gaps
    unit = gaps.new_zeros(()) if unit is None else unit
    matrix = _apply_sorted(ordered.linked(), unit, gaps, ordered.perm, dtype, rows)
    if ordered.n > 1 or not ordered.tempered:
        return matrix
    return matrix + ordered.poison().unsqueeze(-1).to(dtype)  # no gap tells a lone item


def _apply_sorted(*args: Any) -> Tensor:
    """The sorted form; compiled graphs take no Function that has forward-mode derivatives."""
    return (_Sorted if torch.compiler.is_compiling() else _SortedForward).apply(*args)  # pyright: ignore


def _to_logits(matrix: Tensor, grad: Tensor) -> Tensor:
    """Gradient to the logits of a softmax over rows, from the gradient to the matrix."""
    weighted = matrix * grad
    return torch.addcmul(weighted, matrix, weighted.sum(-1, keepdim=True), value=-1)


def _pairwise(ordered: Ordered, dtype: torch.dtype, rows: int) -> Tensor:
    """The matrix of short lists as the equation has it, but in float64.

    Plain operations, and few: for short lists each costs as much as its call. With the signs of
    `s_j - s_k` held fixed, the logits are linear in the scores.
    """
    s = ordered.scores.to(ordered.exact)
    if isinstance(ordered.tau, Tensor):  # an offset would drown the gradient to it
        s = s - s.detach().mean(-1, keepdim=True)
    if isinstance(ordered.tau, Tensor) or ordered.tau != 1:
        s = s / ordered.tau
    row = s.unsqueeze(-2)
    n = s.shape[-1]
    slope = torch.arange(n - 1, n - 1 - 2 * rows, -2, dtype=s.dtype, device=s.device).unsqueeze(-1)
    if ordered.differentiable:
        fixed = row.detach()
        signs = (fixed.mT - fixed).sign_()
        slope = slope - signs.sum(-1).unsqueeze(-2)
        level = (signs * row).sum(-1)
    else:  # fewer operations, and right in forward mode, but slower to differentiate backwards
        level = -(row.mT - row).abs().sum(-1)
    logits = torch.addcmul(level.unsqueeze(-2), slope, row)
    return torch.softmax(logits - logits.detach().amax(-1, keepdim=True), -1, dtype=dtype)


def _write_exact(gaps: Tensor, perm: Tensor, out: Tensor) -> Tensor:
    """Rows from falls that are sums of gaps: none is below 0, so no item outweighs a row's own."""
    if torch.compiler.is_compiling():
        rank = inverse(perm).unsqueeze(-2).expand(out.shape)
        return torch.softmax(-all_falls(gaps, 0, out.shape[-2]), -1).gather(-1, rank)
    for i, j in _strips(gaps, out.shape[-2], out.shape[-2]):
        weights = all_falls(gaps, i, j).neg_().exp_()
        weights = weights / weights.sum(-1, keepdim=True)
        out[..., i:j, :].scatter_(-1, perm.unsqueeze(-2).expand_as(weights), weights)
    return out


def _write_short(gaps: Tensor, perm: Tensor, out: Tensor) -> Tensor:
    """Rows from running sums of gaps: fewer passes, and exact to the digits that float32 keeps."""
    n, rows = gaps.shape[-1], out.shape[-2]
    twice = torch.arange(1 - n, n, 2, dtype=gaps.dtype, device=gaps.device)
    before = pad(gaps[..., :-1] / math.log(2), (1, 0))  # before each position; 2^x is fast
    distance, moment = before.cumsum(-1), (before * (1 - twice)).cumsum(-1)
    peak = torch.addcmul(moment, twice, distance).unsqueeze(-1)
    distance = torch.empty_like(distance).scatter_(-1, perm, distance).unsqueeze(-2)
    moment = torch.empty_like(moment).scatter_(-1, perm, moment).unsqueeze(-2)
    twice = twice.unsqueeze(-1)
    least = math.log2(torch.finfo(out.dtype).tiny) + 4
    for i, j in _strips(gaps, rows, rows):
        logits = (moment - peak[..., i:j, :]).addcmul_(twice[i:j], distance)
        # Exponentials that underflow are slow: stop them short, and then set them to 0.
        weights = logits.to(out.dtype).clamp_(min=least).exp2_()
        weights = threshold(weights, 2.0 ** (least + 3), 0.0)
        out[..., i:j, :] = weights / weights.sum(-1, keepdim=True)
    return out


class _Sorted(torch.autograd.Function):
    """The matrix from sorted gaps: float64 in the logits, the computation's dtype in the weights.

    `apply(scaled, unit, gaps, perm, dtype, rows)` in sorted coordinates, but for the columns of
    the matrix, which are in the order of the items.
    """

    @staticmethod
    def forward(
        scaled: Tensor, unit: Tensor, gaps: Tensor, perm: Tensor, dtype: torch.dtype, rows: int
    ) -> Tensor:
        out = torch.empty(*gaps.shape[:-1], rows, gaps.shape[-1], dtype=dtype, device=gaps.device)
        if dtype == gaps.dtype:
            return _write_exact(gaps, perm, out)
        return _write_short(gaps, perm, out)

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
        place = inverse(perm).to(exact)
        for i, j in _strips(gaps, matrix.shape[-2], 32):  # few enough for sums in float32
            weights = matrix[..., i:j, :]
            to_logits = _to_logits(weights, grad[..., i:j, :])
            # From the middle of the strip, so that float32 will do.
            twice = torch.arange(i - j + 1, j - i, 2, dtype=matrix.dtype, device=matrix.device)
            total, moment = _row_sums(to_logits, twice, exact)
            # From the item's own row: far from it there is no weight, so that nothing cancels.
            sums.append(torch.stack([total, (2 * place - (i + j - 1)) * total - moment], -2))
            if tempered:
                tiny = torch.finfo(matrix.dtype).tiny
                heat.append((to_logits * weights.clamp(min=tiny).log()).sum((-1, -2)).to(exact))
        if not sums:
            return (torch.zeros_like(gaps), torch.zeros_like(unit), *[None] * 4)
        both = sum(sums[1:], sums[0])
        both = both.gather(-1, perm.unsqueeze(-2).expand_as(both))
        total, local_gradient = both[..., 0, :], both[..., 1, :]
        before = total.cumsum(-1) - total
        to_scaled = untie(local_gradient, total, before, ties=tie_groups(gaps))
        to_unit = -sum(heat[1:], heat[0]).unsqueeze(-1) if tempered else None
        return (to_scaled, to_unit, *[None] * 4)

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


def _row_sums(x: Tensor, weights: Tensor, exact: torch.dtype) -> tuple[Tensor, Tensor]:
    """Sums over the rows of x, plain and weighted, `(..., n)` each."""
    if torch.compiler.is_compiling():  # of many rows: added up in float64, and fused with x
        weighted = x * weights.unsqueeze(-1)
        return x.sum(-2, dtype=exact), weighted.sum(-2, dtype=exact)
    both = matmul(torch.stack([torch.ones_like(weights), weights]), x).to(exact)
    return both[..., 0, :], both[..., 1, :]


def _strips(gaps: Tensor, rows: int, most: int) -> list[tuple[int, int]]:
    """Runs of rows that are formed together, few enough for the cache.

    All at once in compiled graphs: one serves every size, and fuses what it forms.
    """
    if torch.compiler.is_compiling():
        return [(0, rows)]
    step = max(1, min(CHUNK // max(1, gaps.numel()), most))
    return [(i, min(i + step, rows)) for i in range(0, rows, step)]


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
