"""What stands in the brackets of `P[...]`, and the one-hot vectors that pick it."""

import math
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
from jax import Array

from . import _checks

ALL = slice(None)


@dataclass(frozen=True)
class Selection:
    """A key, taken apart: a number, a slice or an array of integers for each dimension."""

    batch: tuple[Any, ...]
    row: Any
    column: Any

    @property
    def key(self) -> tuple[Any, ...]:
        """The whole of it, for arrays."""
        return (*self.batch, self.row, self.column)

    @property
    def whole(self) -> bool:
        """Whether it leaves the matrices as they are, and chooses among the lists alone."""
        return all(isinstance(item, slice) and item == ALL for item in (self.row, self.column))


def selection(key: Any, shape: tuple[int, ...]) -> Selection:
    """Reads a key for a matrix of this shape; refuses what only arrays take."""
    items = list(key) if isinstance(key, tuple) else [key]
    dots = [i for i, item in enumerate(items) if item is Ellipsis]
    _checks.index_count(len(items) - len(dots), len(shape))
    at = dots[0] if dots else len(items)
    missing = [ALL] * (len(shape) - len(items) + len(dots))
    items = items[:at] + missing + items[at + 1 :]
    read = [_checks.index(item, size) for item, size in zip(items, shape, strict=True)]
    return Selection(tuple(read[:-2]), *read[-2:])


def wanted(item: Any, size: int) -> int:
    """How many places of a dimension an index asks for."""
    if isinstance(item, slice):
        return len(range(*item.indices(size)))
    return math.prod(jnp.shape(item))


def enumerated(item: Any, size: int) -> tuple[Array, Any]:
    """The places an index asks for, `(m,)`, and the index that then asks for these m in turn."""
    if isinstance(item, slice):
        return jnp.arange(*item.indices(size)), ALL
    flat = jnp.reshape(jnp.asarray(item), -1)
    turn = jnp.arange(len(flat)).reshape(jnp.shape(item)) if jnp.ndim(item) else 0
    return jnp.where(flat < 0, flat + size, flat), turn


def one_hot(index: Array, size: int, dtype: Any) -> Array:
    """A column for each place, `(size, m)`."""
    return (jnp.arange(size)[:, None] == index).astype(dtype)
