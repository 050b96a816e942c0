"""NeuralSort's matrix of ordinary short lists on the CPU: what counts here is how much is called.

Lists are ordinary if all items exist, all scores are finite and of moderate size, and, from 33
items on, the temperature is a number; others take the way of `neuralsort_matrix`, and give the
same to rounding.
"""

import functools
import math
from typing import Any

import numpy
import torch
from numpy import ndarray
from torch import Tensor
from torch.autograd import forward_ad
from torch.nn.functional import pad

from ..arrays import gradient_in_numpy, in_numpy, known_finite, plain, times_column
from .neuralsort_matrix import column_sums, tangent_of, to_matrix, to_sorted, write
from .ordering import Ordered

# Scores may be so many temperatures large, times the length's square: logits, which are formed from
# running sums of them in float64, then round by less than 1e-7.
WIDEST = 1e8
# Of a logit up to this, the exponential is a number in float64, and so are sums of them.
HIGHEST = 600.0
# Lists up to this length are compared pair by pair: fewer operations than sorting them.
PAIRWISE = 32


def ordinary_matrix(ordered: Ordered, dtype: torch.dtype, rows: int) -> Tensor | None:
    """The first rows of the matrix, `(..., rows, n)`; None for lists that are not ordinary."""
    if not plain(ordered.scores):
        return None
    if ordered.n <= PAIRWISE:
        low = _logits_are_low(ordered, dtype, rows)
        return None if low is None else _pairwise(ordered, rows, low)
    scale = _least(ordered)
    if dtype is not torch.float32 or ordered.mask is not None or scale is None or not rows:
        return None
    x = in_numpy(ordered.scores)
    if x is None or not float(max(x.max(), -x.min())) < WIDEST * scale / ordered.n**2:
        return None
    return _OfScores.apply(ordered.scores, x, scale, rows)  # pyright: ignore


def ordinary_sort(ordered: Ordered, x: Tensor, rows: int) -> Tensor | None:
    """The product with finite values x, `(..., n) -> (..., rows)`, where none is better known.

    In float64, so that what all values have in common need not be taken out.
    """
    scores, tau = ordered.scores, ordered.tau
    if not plain(scores):
        return None
    if ordered.n > PAIRWISE or isinstance(tau, Tensor) or x.shape != scores.shape:
        return None
    if forward_ad._current_level >= 0:  # tangents go by the matrix
        return None
    low = _logits_are_low(ordered, x.dtype, rows)
    if low is None or not plain(x) or not (x is scores or known_finite(x)):
        return None
    return _PairwiseSort.apply(scores, x, tau, rows, low)  # pyright: ignore


def _logits_are_low(ordered: Ordered, dtype: torch.dtype, rows: int) -> bool | None:
    """Whether logits of lists compared pair by pair are below `HIGHEST`; None if not ordinary."""
    scores, scale = ordered.scores, _least(ordered)
    if dtype is not torch.float32 or ordered.mask is not None or scale is None or not rows:
        return None
    largest = float(torch.linalg.vector_norm(scores.detach(), math.inf))
    if not largest < WIDEST * scale / ordered.n**2:
        return None
    return 3 * ordered.n * largest < HIGHEST * scale  # what a logit is at most


def _least(ordered: Ordered) -> float | None:
    """The lowest temperature; None where it cannot be seen, or a list is hard.

    A tensor is looked at for lists that are compared pair by pair alone.
    """
    scale = ordered.scale()
    if not isinstance(scale, Tensor):
        return scale
    if ordered.n > PAIRWISE or ordered.hard is None:
        return None
    known, hard = (in_numpy(x.reshape(1, -1)) for x in (scale, ordered.hard))
    return None if known is None or hard is None or hard.any() else float(known.min())


def _pairwise(ordered: Ordered, rows: int, low: bool) -> Tensor:
    """The matrix as the equation has it, but in float64; `low` if logits are below `HIGHEST`."""
    tau = ordered.tau
    if not isinstance(tau, Tensor):
        return _Pairwise.apply(ordered.scores, tau, rows, low)  # pyright: ignore
    s = ordered.scores.to(torch.float64)
    s = (s - s.detach().mean(-1, keepdim=True)) / tau  # an offset would drown the gradient to it
    row, slope = s.unsqueeze(-2), _slopes(s.shape[-1], rows)
    sums = (row.mT - row).abs().sum(-1)
    fall = torch.addcmul(sums.unsqueeze(-2), slope, row)  # of the logits, from 0
    return torch.softmax(fall.detach().amin(-1, keepdim=True) - fall, -1, dtype=torch.float32)


class _Pairwise(torch.autograd.Function):
    """`apply(scores, tau, rows, low)`: few operations, since for such lists each costs its call."""

    @staticmethod
    def forward(ctx: Any, scores: Tensor, tau: float, rows: int, low: bool) -> Tensor:
        weights, apart = _weights(scores, tau, rows, low)
        matrix = weights.to(torch.float32)
        matrix = matrix if scores.dim() == 2 else matrix.view(*scores.shape[:-1], *matrix.shape[1:])
        ctx.tau, ctx.dtype = tau, scores.dtype
        ctx.save_for_backward(matrix, apart)
        ctx.save_for_forward(matrix, apart)
        return matrix

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore
        matrix, apart = ctx.saved_tensors
        weighted = matrix * grad
        to_logits = torch.addcmul(weighted, matrix, weighted.sum(-1, keepdim=True), value=-1)
        to_logits = to_logits.to(torch.float64)
        to_logits = to_logits if matrix.dim() == 3 else to_logits.reshape(-1, *matrix.shape[-2:])
        to_scores = _to_scores(to_logits, apart, ctx.tau).to(ctx.dtype)
        return to_scores.view(*matrix.shape[:-2], matrix.shape[-1]), None, None, None

    @staticmethod
    def jvp(ctx: Any, tangent: Tensor, *_: None) -> Tensor:  # pyright: ignore
        matrix, apart = ctx.saved_tensors
        rows, n = matrix.shape[-2:]
        t = tangent.to(torch.float64).reshape(-1, n) / ctx.tau
        sign = apart.sign()
        level = t * sign.sum(-1) - torch.bmm(sign, t.unsqueeze(-1)).squeeze(-1)
        logits = -torch.addcmul(level.unsqueeze(-2), _slopes(n, rows), t.unsqueeze(-2))
        return to_matrix(matrix, logits.to(matrix.dtype).view_as(matrix))


class _PairwiseSort(torch.autograd.Function):
    """`apply(scores, x, tau, rows, low)`: the product of that matrix with values x."""

    @staticmethod
    def forward(ctx: Any, scores: Tensor, x: Tensor, tau: float, rows: int, low: bool) -> Tensor:
        weights, apart = _weights(scores, tau, rows, low)
        values = x.to(torch.float64).reshape(-1, 1, x.shape[-1])
        y = torch.bmm(weights, values.mT)
        ctx.options = tau, rows, low
        ctx.save_for_backward(scores, x, weights, apart, values, y)
        return y.to(torch.float32).view(*x.shape[:-1], rows)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:  # pyright: ignore
        scores, x, weights, apart, values, y = ctx.saved_tensors
        if torch.is_grad_enabled():  # by way of the matrix, which knows its second derivatives
            both = [one.view_as(one) for one in (scores, x)]  # they may be one and the same
            matrix = _Pairwise.apply(both[0], *ctx.options)  # pyright: ignore
            near = both[1] - x.detach().mean(-1, keepdim=True)  # an offset would cost digits
            y = times_column(matrix, near.unsqueeze(-1)).squeeze(-1)
            wanted = [one for one in both if one.requires_grad]
            found = iter(torch.autograd.grad(y, wanted, grad, create_graph=True))
            return *(next(found) if one.requires_grad else None for one in both), None, None, None
        grad = grad.to(torch.float64).reshape(-1, 1, y.shape[1])
        to_logits = (values - y) * weights * grad.mT
        to_scores = _to_scores(to_logits, apart, ctx.options[0]).to(scores.dtype).view_as(scores)
        to_x = torch.bmm(grad, weights).to(x.dtype).view_as(x) if ctx.needs_input_grad[1] else None
        return to_scores, to_x, None, None, None


def _weights(scores: Tensor, tau: float, rows: int, low: bool) -> tuple[Tensor, Tensor]:
    """The matrix of all lists in float64, and the differences of scores in units of tau.

    Torch's softmax of so short rows would take as long as all the rest.
    """
    n = scores.shape[-1]
    s = scores.to(torch.float64).contiguous()
    s = s if s.dim() == 2 else s.reshape(-1, n)
    s = s if tau == 1 else s / tau
    row = s.unsqueeze(1)
    apart = s.unsqueeze(2) - row
    level = apart.abs().sum(-1).neg_().unsqueeze(1)
    logits = torch.addcmul(level, _slopes(n, rows), row, value=-1)
    if not low:  # else exponentials are numbers as they are
        logits = logits - logits.amax(-1, keepdim=True)
    weights = logits.exp_()
    return weights.div_(weights.sum(-1, keepdim=True)), apart


def _to_scores(to_logits: Tensor, apart: Tensor, tau: float) -> Tensor:
    """Gradient to the scores from that to the logits, `-slope_i s_j - sum_k |s_j - s_k|`.

    Among ties `sign(0) = 0`.
    """
    lists, rows, n = to_logits.shape
    total, moment = torch.bmm(_sums_over_rows(lists, n, rows), to_logits).unbind(1)
    sign = apart.sign()
    moment = torch.addcmul(moment, sign.sum(-1), total)
    to_scores = torch.baddbmm(moment.unsqueeze(-1), sign, total.unsqueeze(-1))
    return to_scores if tau == 1 else to_scores / tau


@functools.lru_cache(maxsize=64)
def _sums_over_rows(lists: int, n: int, rows: int) -> Tensor:
    """What sums rows, plain and times their factors, with a minus: `(lists, 2, rows)`."""
    with torch.inference_mode(False):
        factors = -_slopes(n, rows).mT
        return torch.cat([-torch.ones_like(factors), factors]).expand(lists, 2, rows)


@functools.lru_cache(maxsize=64)
def _slopes(n: int, rows: int) -> Tensor:
    """The factors `2 i - n - 1` of the rows i = 1, 2, ..., `(rows, 1)`."""
    with torch.inference_mode(False):
        return torch.arange(1 - n, 1 - n + 2 * rows, 2, dtype=torch.float64).unsqueeze(-1)


@functools.lru_cache(maxsize=64)
def _constants(lists: int, n: int) -> tuple[ndarray, ndarray, Tensor, ndarray]:
    """Where lists begin, j + 1/2, the rows i, and 2 j - 1."""
    with torch.inference_mode(False):
        row = torch.arange(n, dtype=torch.float64)
    return (
        n * numpy.arange(lists)[:, None],
        numpy.arange(0.5, n),
        row,
        numpy.arange(-1, 2 * n - 1, 2),
    )


class _OfScores(torch.autograd.Function):
    """`apply(scores, x, scale, rows)`, with the scores in NumPy as well: its calls take less time.

    With scores s in descending order, in units of -scale / 2, and their running sums c, the logits
    are `i s_j + (c_j - (j + 1/2) s_j) - (c_i - s_i / 2)`, counted from 0: 0 for a row's own item,
    and below 0 for all others.
    """

    @staticmethod
    def forward(ctx: Any, scores: Tensor, x: ndarray, scale: float, rows: int) -> Tensor:
        n = x.shape[-1]
        starts, halves, row, _ = _constants(*x.shape)
        place = numpy.multiply(x, -2 / (scale * math.log(2)), dtype=numpy.float64)  # of powers of 2
        order = place.argsort(-1)  # ties in any order: their weights are the same
        order += starts
        values = place.take(order)
        sums = values.cumsum(-1)
        level, peak = numpy.empty_like(sums), sums - values * 0.5
        level.reshape(-1)[order] = sums - values * halves
        vectors = (torch.from_numpy(x) for x in (place, level, peak))
        matrix = write(row, *vectors, dtype=torch.float32, rows=rows)
        matrix = matrix if scores.dim() == 2 else matrix.view(*scores.shape[:-1], rows, n)
        ctx.order, ctx.values, ctx.scale, ctx.dtype = order, values, scale, scores.dtype
        ctx.save_for_backward(matrix)
        ctx.save_for_forward(matrix)
        return matrix

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple:  # pyright: ignore
        (matrix,) = ctx.saved_tensors
        sums, _ = column_sums(matrix, grad, torch.float64)
        values, order = ctx.values, ctx.order
        known = gradient_in_numpy(sums)
        if known is not None and not (values[:, 1:] == values[:, :-1]).any():
            known = known.reshape(-1, 2, known.shape[-1])
            total, moment = known[:, 0].reshape(-1)[order], known[:, 1].reshape(-1)[order]
            moment += _constants(*order.shape)[-1] * total
            moment += 2 * total.cumsum(-1)
            to_scores = numpy.empty_like(moment)
            to_scores.reshape(-1)[order] = moment
            to_scores = torch.from_numpy(to_scores).view(*matrix.shape[:-2], -1)
        else:
            perm, gaps = _sorted(ctx, matrix)
            to_scores = to_sorted(sums, perm, gaps)
            to_scores = torch.empty_like(to_scores).scatter(-1, perm, to_scores)
        to_scores = to_scores if ctx.scale == 1 else to_scores / ctx.scale
        return to_scores.to(ctx.dtype), None, None, None

    @staticmethod
    def jvp(ctx: Any, tangent: Tensor, *_: None) -> Tensor:  # pyright: ignore
        (matrix,) = ctx.saved_tensors
        perm, gaps = _sorted(ctx, matrix)
        tangent = tangent.to(gaps.dtype).gather(-1, perm) / ctx.scale
        logits = tangent_of(tangent, perm, gaps, matrix.shape[-2])
        return to_matrix(matrix, logits.to(matrix.dtype))


def _sorted(ctx: Any, matrix: Tensor) -> tuple[Tensor, Tensor]:
    """The item at each position, and the gap after it in some unit: `(..., n)` each."""
    lists = (*matrix.shape[:-2], matrix.shape[-1])
    perm = torch.from_numpy(ctx.order).view(lists) % matrix.shape[-1]
    return perm, pad(torch.from_numpy(ctx.values).view(lists).diff(dim=-1), (0, 1), value=1.0)
