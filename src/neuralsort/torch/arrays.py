"""What tensors need everywhere: the dtype of a computation, and exact products."""

import math

import torch
from torch import Tensor


def working(dtype: torch.dtype) -> torch.dtype:
    """The dtype of the computation: float64 for float64, float32 for everything shorter."""
    return torch.float64 if dtype is torch.float64 else torch.float32


def longest(device: torch.device) -> torch.dtype:
    """The longest dtype of a device: float64, but for Apple's GPUs, which have none."""
    return torch.float32 if device.type == "mps" else torch.float64


def matmul(a: Tensor, b: Tensor) -> Tensor:
    """`torch.matmul` in the longer dtype of the two, which autocast does not shorten."""
    common = torch.promote_types(a.dtype, b.dtype)
    a, b = a.to(common), b.to(common)
    if a.is_meta or not torch.is_autocast_enabled(a.device.type):
        return torch.matmul(a, b)
    with torch.autocast(a.device.type, enabled=False):
        return torch.matmul(a, b)


def inferring() -> bool:
    """Whether what is made now serves no gradient later. Compiled graphs are asked from outside."""
    return not torch.compiler.is_compiling() and torch.is_inference_mode_enabled()


def known_finite(*tensors: Tensor) -> bool:
    """Whether no tensor holds an infinity or a NaN, as far as that can be seen for nothing.

    Asked on the CPU alone: reading a value would stall an accelerator, and has no place in a graph.
    """
    if torch.compiler.is_compiling() or any(x.device.type != "cpu" for x in tensors):
        return False
    try:
        return all(math.isfinite(x.detach().sum().item()) for x in tensors)
    except RuntimeError:  # vmap hides values
        return False
