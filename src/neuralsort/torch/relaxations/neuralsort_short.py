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
from torch.nn.functional import pad

from ..arrays import gradient_in_numpy, in_numpy, plain
from .neuralsort_matrix import column_sums, tangent_of, to_matrix, to_sorted, write
from .ordering import Ordered

# Scores may be so many temperatures large, times the length's square: logits, which are formed from
# running sums of them in float64, then round by less than 1e-7.
WIDEST = 1e8
# Lists up to this length are compared pair by pair: fewer operations than sorting them.
PAIRWISE = 32


def ordinary_matrix(ordered: Ordered, dtype: torch.dtype, rows: int) -> Tensor | None:
    """The first rows of the matrix, `(..., rows, n)`; None for lists that are not ordinary."""
    scores, scale = ordered.scores, _least(ordered)
    if dtype is not torch.float32 or ordered.mask is not None or scale is None or not rows:
        return None
    if not plain(scores):
        return None
    largest = WIDEST * scale / ordered.n**2
    if ordered.n <= PAIRWISE:
        moderate = float(torch.linalg.vector_norm(scores.detach(), math.inf)) < largest
        return _pairwise(ordered, rows) if moderate else None
    x = in_numpy(scores)
    if x is None or not float(max(x.max(), -x.min())) < largest:
        return None
    return _OfScores.apply(scores, x, scale, rows)  # pyright: ignore


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


def _pairwise(ordered: Ordered, rows: int) -> Tensor:
    """The matrix as the equation has it, but in float64.

    Plain operations, and few: for such lists each costs as much as its call.
    """
    s, tau = ordered.scores.to(torch.float64), ordered.tau
    if isinstance(tau, Tensor):  # an offset would drown the gradient to it
        s = s - s.detach().mean(-1, keepdim=True)
    s = s / tau if isinstance(tau, Tensor) or tau != 1 else s
    row, slope = s.unsqueeze(-2), _slopes(s.shape[-1], rows)
    sums = (row.mT - row).abs().sum(-1)
    fall = torch.addcmul(sums.unsqueeze(-2), slope, row)  # of the logits, from 0
    return torch.softmax(fall.detach().amin(-1, keepdim=True) - fall, -1, dtype=torch.float32)


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
