"""What tensors need everywhere: the dtype of a computation, exact products, a look at values."""

import math
from collections.abc import Callable
from typing import Any

import numpy
import torch
from numpy import ndarray
from torch import Tensor

# Constants that are kept, at most.
MOST_KEPT = 256
_kept: dict[tuple, Any] = {}


def working(dtype: torch.dtype) -> torch.dtype:
    """The dtype of the computation: float64 for float64, float32 for everything shorter."""
    return torch.float64 if dtype is torch.float64 else torch.float32


def longest(device: torch.device) -> torch.dtype:
    """The longest dtype of a device: float64, but for Apple's GPUs, which have none."""
    return torch.float32 if device.type == "mps" else torch.float64


def matmul(a: Tensor, b: Tensor) -> Tensor:
    """`torch.matmul` in the longer dtype of the two, which autocast does not shorten."""
    if a.dtype != b.dtype:
        common = torch.promote_types(a.dtype, b.dtype)
        a, b = a.to(common), b.to(common)
    if a.is_meta or not torch.is_autocast_enabled(a.device.type):
        return torch.matmul(a, b)
    with torch.autocast(a.device.type, enabled=False):
        return torch.matmul(a, b)


def times_column(a: Tensor, b: Tensor) -> Tensor:
    """The same for one column b, `(..., n, 1)`: of many short lists it takes a quarter of the time.

    Batches of products with a vector are slow, and their gradients slower.
    """
    return (a * b.mT).sum(-1, keepdim=True)


def inferring() -> bool:
    """Whether what is made now serves no gradient later. Compiled graphs are asked from outside."""
    return not torch.compiler.is_compiling() and torch.is_inference_mode_enabled()


def seen(value: Tensor, question: Callable[[Tensor], Tensor]) -> float | None:
    """The one number that answers a question about a tensor; None where one may not look.

    Not while a function is compiled, traced or mapped: then there are no values yet. And not on
    accelerators, which would have to finish all they are doing first.
    """
    if torch.compiler.is_compiling() or value.device.type != "cpu":
        return None
    try:
        return question(value.detach()).item()
    except RuntimeError:  # of vmap, and of tensors without values
        return None


def known_finite(*tensors: Tensor) -> bool:
    """Whether no tensor holds an infinity or a NaN, as far as one may look."""
    sums = (seen(x, torch.sum) for x in tensors)
    return all(total is not None and math.isfinite(total) for total in sums)


def transforming() -> bool:
    """Whether a function is being mapped or differentiated by `torch.func`, or written down."""
    return torch._C._are_functorch_transforms_active() or torch._C._len_torch_dispatch_stack() > 0


def plain(lists: Tensor) -> bool:
    """Whether lists are on the CPU, there are some, and one may look at their values."""
    if torch.compiler.is_compiling() or transforming() or not lists.is_cpu:
        return False
    return type(lists) in (Tensor, torch.nn.Parameter) and lists.numel() > 0


def in_numpy(lists: Tensor) -> ndarray | None:
    """The values of lists on the CPU, `(lists, n)` in float32; None where one may not look."""
    if not plain(lists):
        return None
    values = lists.detach().to(torch.float32).numpy(force=True)
    return values.reshape(-1, lists.shape[-1])


def sorted_in_numpy(x: ndarray, descending: bool) -> tuple[ndarray, ndarray]:
    """Lists of float32 `(lists, n)` in order, and the item at each position; ties keep theirs.

    Several times as fast as `torch.sort`: every value and its index are packed into one whole
    number, with the value in front, and NumPy sorts these in vectors. Zeros lose their sign. A NaN
    may come first or last, as its sign has it.
    """
    bits = (x + numpy.float32(0)).view(numpy.int32)  # one zero for both
    # As whole numbers, floats below 0 are in the wrong order. Their own bits turned over, they are
    # in the right one; all bits turned over, the order is the other way round.
    key = bits ^ ((bits >> 31) & 0x7FFFFFFF)
    packed = (~key if descending else key).astype(numpy.int64) << 32
    packed |= numpy.arange(x.shape[-1])
    packed.sort(-1)
    key = (packed >> 32).astype(numpy.int32)
    key = ~key if descending else key
    packed &= 0xFFFFFFFF
    return (key ^ ((key >> 31) & 0x7FFFFFFF)).view(numpy.float32), packed


def gradient_in_numpy(grad: Tensor) -> ndarray | None:
    """The values of a gradient; None if it is mapped, or will itself be differentiated."""
    if torch.is_grad_enabled() or transforming():
        return None
    try:
        return grad.numpy()
    except RuntimeError:  # of `torch.autograd.grad(is_grads_batched=True)`
        return None


def constant(like: Tensor, make: Callable[..., Any], *options: Any) -> Any:
    """`make(*options, like.device)`, tensors that are not to be changed in place.

    It is kept on the CPU: for short lists, making it anew takes as long as what it is for.
    """
    plain = type(like) in (Tensor, torch.nn.Parameter) and like.device.type == "cpu"
    if torch.compiler.is_compiling() or not plain or transforming():
        return make(*options, like.device)
    key = (make, *options)
    kept = _kept.get(key)
    if kept is None:
        if len(_kept) >= MOST_KEPT:
            _kept.clear()
        with torch.inference_mode(False):
            kept = _kept[key] = make(*options, like.device)
    return kept
