r"""Projections onto the permutahedron for ordinary lists on the CPU, quadratic, by NumPy.

Blocks are found and averaged by a few calls over all lists at once, and the derivative is written
by hand: within a block of the sorted list ranks change by what their items do, less the mean of it,
and sorted values change by that mean. Lists are ordinary if all items exist, all values are finite
and of moderate size, and the temperature is a number. `permutahedron` has what others need.
"""

from typing import Any

import numpy
import torch
from numpy import ndarray
from torch import Tensor

from .arrays import gradient_in_numpy, in_numpy, sorted_in_numpy

# Numbers up to this size are subtracted in float64 and lose nothing that float32 would keep.
LARGEST = 1e7
# Rounds in which all neighbours in the wrong order are pooled at once; few lists need more.
ROUNDS = 8


def ordinary(lists: Tensor, unit: Any) -> ndarray | None:
    """The values of the lists `(lists, n)` in NumPy; None for lists that are not ordinary."""
    if not isinstance(unit, float) or lists.dtype is torch.float64:
        return None
    x = in_numpy(lists)
    if x is None or not max(x.max(), -x.min(), x.shape[-1]) < LARGEST * min(unit, 1.0):
        return None
    return x


def soft_ranks(lists: Tensor, x: ndarray, unit: float, descending: bool) -> Tensor | None:
    """Ranks of lists `(..., n)` from 1, the smallest first or the largest."""
    unit = -unit if descending else unit
    s, order = _sorted(x, descending=not descending)
    s = s.astype(numpy.float64)
    s /= unit
    blocks = _Blocks.of(s - numpy.arange(s.shape[-1], 0, -1))
    return blocks and _Ranks.apply(lists, s, order, blocks, unit)  # pyright: ignore


def soft_values(lists: Tensor, x: ndarray, unit: float, descending: bool) -> Tensor | None:
    """Values of lists `(..., n)` in ascending or descending order."""
    sign = 1 if descending else -1
    s, order = _sorted(x, descending)
    target = numpy.arange(x.shape[-1], 0, -1) / unit
    blocks = _Blocks.of(target - sign * s.astype(numpy.float64))
    return blocks and _Values.apply(lists, sign * target, order, blocks, sign)  # pyright: ignore


def _sorted(x: ndarray, descending: bool) -> tuple[ndarray, ndarray]:
    """Lists in order, and where their items stand among all items: `(lists, n)` each."""
    values, order = sorted_in_numpy(x, descending)
    if len(x) > 1:
        order += x.shape[-1] * numpy.arange(len(x))[:, None]
    return values, order


class _Blocks:
    """Runs of neighbours that are pooled: where they start in all lists, how long they are."""

    def __init__(self, starts: ndarray, total: ndarray, shape: tuple[int, ...]) -> None:
        self.starts, self.shape = starts, shape
        self.count = numpy.diff(starts, append=shape[0] * shape[1])
        self.value = total / self.count

    @staticmethod
    def of(d: ndarray) -> "_Blocks | None":
        """Blocks of `(lists, n)` whose means do not rise; None where that takes many rounds."""
        flat, n = d.reshape(-1), d.shape[-1]
        starts, value, total = numpy.arange(flat.size), flat, flat
        for _ in range(ROUNDS):
            keep = starts % n == 0
            keep[1:] |= value[1:] <= value[:-1]
            if keep.all():
                return _Blocks(starts, total, d.shape)
            total = numpy.add.reduceat(total, keep.nonzero()[0])
            starts = starts[keep]
            value = total / numpy.diff(starts, append=flat.size)
        return None

    def spread(self, value: ndarray) -> ndarray:
        """What every block has for each of its items, `(lists, n)`."""
        return numpy.repeat(value, self.count).reshape(self.shape)

    def means(self, g: ndarray) -> ndarray:
        """The mean over its block for each item, `(lists, n)`."""
        return self.spread(numpy.add.reduceat(g.reshape(-1), self.starts) / self.count)

    def means_of(self, g: Tensor) -> Tensor:
        """The same in plain operations of PyTorch."""
        block = torch.from_numpy(self.spread(numpy.arange(len(self.starts)))).reshape(-1)
        total = g.new_zeros(len(self.starts)).index_add(0, block, g.reshape(-1))
        return (total / torch.from_numpy(self.count).to(g.dtype))[block].view(self.shape)


class _Ranks(torch.autograd.Function):
    """`apply(lists, s, order, blocks, unit)`, with s sorted, descending and in units."""

    @staticmethod
    def forward(
        ctx: Any, lists: Tensor, s: ndarray, order: ndarray, blocks: _Blocks, unit: float
    ) -> Tensor:
        ctx.order, ctx.blocks, ctx.unit = order, blocks, unit
        ranks = numpy.empty(s.shape, numpy.float32)
        ranks.reshape(-1)[order] = s - blocks.spread(blocks.value)
        return torch.from_numpy(ranks).view(lists.shape).to(lists.dtype)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple:  # pyright: ignore
        values = gradient_in_numpy(grad.to(torch.float32))
        if values is None:
            order = torch.from_numpy(ctx.order)
            g = grad.to(torch.float64).reshape(-1)[order]
            g = (g - ctx.blocks.means_of(g)) / ctx.unit
            back = torch.zeros_like(g).view(-1).index_copy(0, order.view(-1), g.reshape(-1))
            return back.view(grad.shape).to(grad.dtype), *[None] * 4
        g = values.take(ctx.order).astype(numpy.float64)
        g -= ctx.blocks.means(g)
        back = numpy.empty(g.shape, numpy.float32)
        back.reshape(-1)[ctx.order] = g if ctx.unit == 1 else g / ctx.unit
        return torch.from_numpy(back).view(grad.shape).to(grad.dtype), *[None] * 4

    @staticmethod
    def jvp(ctx: Any, tangent: Tensor, *_: None) -> Tensor:  # pyright: ignore
        return _Ranks.backward(ctx, tangent)[0]  # a projection: its derivative is symmetric


class _Values(torch.autograd.Function):
    """`apply(lists, target, order, blocks, sign)`, with the target sorted."""

    @staticmethod
    def forward(
        ctx: Any, lists: Tensor, target: ndarray, order: ndarray, blocks: _Blocks, sign: int
    ) -> Tensor:
        ctx.order, ctx.blocks = order, blocks
        y = target - sign * blocks.spread(blocks.value)
        return torch.from_numpy(y).view(lists.shape).to(lists.dtype)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple:  # pyright: ignore
        order = torch.from_numpy(ctx.order).view(-1)
        g = grad.to(torch.float64)
        values = gradient_in_numpy(g)
        if values is None:
            mean = ctx.blocks.means_of(g)
        else:
            mean = torch.from_numpy(ctx.blocks.means(values))
        back = torch.zeros_like(mean).view(-1).index_copy(0, order, mean.reshape(-1))
        return back.view(grad.shape).to(grad.dtype), *[None] * 4

    @staticmethod
    def jvp(ctx: Any, tangent: Tensor, *_: None) -> Tensor:  # pyright: ignore
        order = torch.from_numpy(ctx.order)
        mean = ctx.blocks.means_of(tangent.to(torch.float64).reshape(-1)[order])
        return mean.view(tangent.shape).to(tangent.dtype)
