"""What stands in the brackets of `P[...]`, and the one-hot vectors that pick it."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from . import _checks

ALL = slice(None)


@dataclass(frozen=True)
class Selection:
    """A key, taken apart: a number, a slice or a tensor of integers for each dimension."""

    batch: tuple[Any, ...]
    row: Any
    column: Any

    @property
    def key(self) -> tuple[Any, ...]:
        """The whole of it, for tensors."""
        return (*self.batch, self.row, self.column)

    @property
    def whole(self) -> bool:
        """Whether it leaves the matrices as they are, and chooses among the lists alone."""
        return all(isinstance(item, slice) and item == ALL for item in (self.row, self.column))


def selection(key: Any, shape: torch.Size, device: torch.device) -> Selection:
    """Reads a key for a matrix of this shape; refuses what only tensors take."""
    items = list(key) if isinstance(key, tuple) else [key]
    dots = [i for i, item in enumerate(items) if item is Ellipsis]
    _checks.index_count(len(items) - len(dots), len(shape))
    at = dots[0] if dots else len(items)
    missing = [ALL] * (len(shape) - len(items) + len(dots))
    items = items[:at] + missing + items[at + 1 :]
    read = [_checks.index(item, size, device) for item, size in zip(items, shape, strict=True)]
    return Selection(tuple(read[:-2]), *read[-2:])


def wanted(item: Any, size: int) -> int:
    """How many places of a dimension an index asks for."""
    if isinstance(item, Tensor):
        return item.numel()
    return len(range(*item.indices(size))) if isinstance(item, slice) else 1


def enumerated(item: Any, size: int, device: torch.device) -> tuple[Tensor, Any]:
    """The places an index asks for, `(m,)`, and the index that then asks for these m in turn."""
    if isinstance(item, Tensor):
        flat = item.reshape(-1)
        turn = torch.arange(len(flat), device=device).view(item.shape)
        return torch.where(flat < 0, flat + size, flat), turn
    if isinstance(item, slice):
        return torch.arange(*item.indices(size), device=device), ALL
    return torch.full((1,), item % size, device=device), 0


def one_hot(index: Tensor, size: int, dtype: torch.dtype) -> Tensor:
    """A column for each place, `(size, m)`."""
    place = torch.arange(size, device=index.device).unsqueeze(-1)
    return (place == index).to(dtype)
