"""Operations in the form that exported programs know, and whether one is being made.

`torch.export` keeps any operation of torch, but ONNX has no stable sort, no running maximum and no
binary search. For short lists all of them are comparisons of every item with every other.
"""

from typing import Any

import numpy
import torch
from torch import Tensor
from torch.fx.experimental.symbolic_shapes import has_static_value, statically_known_true
from torch.nn.functional import pad

from .arrays import in_numpy, plain, sorted_in_numpy

# A largest length that was stated is heeded up to here.
LONGEST = 512
# So many numbers are sorted faster by NumPy, with all that has to be done around it.
MANY = 4096
FLOATS = (torch.float32, torch.bfloat16, torch.float16)
# No list is longer in a program that compares every item with every other.
FARTHEST = 1 << 16


def exporting() -> bool:
    """Whether a program is being exported, to run where torch may not be."""
    return torch.compiler.is_compiling() and torch.compiler.is_exporting()


def is_open(n: int) -> bool:
    """Whether a length is a symbol: the graph that is being made serves several."""
    return torch.compiler.is_compiling() and not has_static_value(n)


def room_for(n: int) -> int:
    """A number of places for n items which a graph may fix without fixing n itself.

    The next power of two: of the largest length, where one was stated (`Dim("n", max=64)`), else of
    n, and then the graph serves lengths from half of it to there.
    """
    places = 1
    while places < LONGEST and not statically_known_true(n <= places):
        places *= 2
    if statically_known_true(n <= places):
        return places
    places = 1
    while places < n:
        places *= 2
    return places


def stable_sort(x: Tensor, *, descending: bool = False) -> tuple[Tensor, Tensor]:
    """Sorted values and their indices, `(..., n)` each; ties keep their order, a NaN is largest."""
    if exporting():
        return _count_and_place(x, descending)
    known = _sorted_fast(x, descending)
    return torch.sort(x, dim=-1, descending=descending, stable=True) if known is None else known


def _sorted_fast(x: Tensor, descending: bool) -> tuple[Tensor, Tensor] | None:
    """The same for many numbers of float32 or shorter on the CPU, where none is NaN; else None."""
    if not plain(x) or x.numel() < MANY or x.dtype not in FLOATS:
        return None
    lists = in_numpy(x)
    assert lists is not None
    values, perm = sorted_in_numpy(lists, descending)
    if numpy.isnan(values[:, [0, -1]]).any():
        return None
    values, perm = (torch.from_numpy(one).view(x.shape) for one in (values, perm))
    return _Sorted.apply(x, values.to(x.dtype), perm), perm  # pyright: ignore


class _Sorted(torch.autograd.Function):
    """Values in an order that is known: `apply(x, values, perm)`."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, values: Tensor, perm: Tensor) -> Tensor:
        ctx.save_for_backward(perm)
        ctx.save_for_forward(perm)
        return values.view_as(values)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:  # pyright: ignore
        (perm,) = ctx.saved_tensors
        return torch.empty_like(grad).scatter(-1, perm, grad), None, None

    @staticmethod
    def jvp(ctx: Any, tangent: Tensor, *_: None) -> Tensor:  # pyright: ignore
        (perm,) = ctx.saved_tensors
        return tangent.gather(-1, perm)


def _count_and_place(x: Tensor, descending: bool) -> tuple[Tensor, Tensor]:
    """The same, by counting for each item those that come before it."""
    key = x.to(torch.int32) if x.dtype is torch.bool else x
    mine, other = key.unsqueeze(-1), key.unsqueeze(-2)  # (..., n, n): all others in a row
    first = other > mine if descending else other < mine
    tied = other == mine
    if x.is_floating_point():
        nan, mine_nan = other.isnan(), mine.isnan()
        first = first | (nan & ~mine_nan if descending else mine_nan & ~nan)
        tied = tied | (nan & mine_nan)
    index = torch.arange(x.shape[-1], device=x.device)
    earlier = index < index.unsqueeze(-1)
    place = (first | (tied & earlier)).sum(-1)
    perm = torch.zeros_like(place).scatter(-1, place, index.expand_as(place))
    return x.gather(-1, perm), perm


def running_max(x: Tensor) -> Tensor:
    """The largest of all numbers up to each position, `(..., n)`; integers are positions."""
    if not exporting():
        return x.cummax(-1).values
    n, least = x.shape[-1], -torch.inf if x.is_floating_point() else torch.iinfo(torch.int32).min
    step = 1
    while step < FARTHEST and not statically_known_true(n <= step):  # each looks twice as far back
        x = torch.maximum(x, pad(x, (step, 0), value=least)[..., :n])
        step *= 2
    return x


def running_min(x: Tensor) -> Tensor:
    """The smallest of all numbers up to each position, `(..., n)`."""
    return -running_max(-x) if exporting() else x.cummin(-1).values


def count_up_to(sorted_x: Tensor, limits: Tensor) -> Tensor:
    """How many entries of ascending lists `(..., n)` do not exceed each limit `(..., m)`."""
    if not exporting():
        return torch.searchsorted(sorted_x.contiguous(), limits.contiguous(), right=True)
    return (sorted_x.unsqueeze(-2) <= limits.unsqueeze(-1)).sum(-1)


def arctangent(x: Tensor) -> Tensor:
    """`torch.atan`, which onnxruntime has in float32 only: from there one step of Newton's."""
    if not exporting():
        return torch.atan(x)
    near = torch.atan(x.float()).to(x.dtype)
    return near + (x * near.cos() - near.sin()) / (near.cos() + x * near.sin())
