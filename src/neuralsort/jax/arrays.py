"""What arrays need everywhere: the dtype of a computation, exact products, gathers by list."""

import math
from typing import Any

import jax.numpy as jnp
from jax import Array, lax


def working(dtype: Any) -> jnp.dtype:
    """The dtype of the computation: float64 for float64, float32 for everything shorter."""
    return jnp.dtype(jnp.float64 if dtype == jnp.float64 else jnp.float32)


def matmul(a: Array, b: Array) -> Array:
    """`jnp.matmul` in the longer dtype of the two, which no accelerator shortens."""
    return jnp.matmul(a, b, precision=lax.Precision.HIGHEST)


def spoilt_unless(valid: Array) -> Array:
    """A factor for results: 1, or NaN where what they were made of is not valid."""
    return jnp.where(valid, 1.0, jnp.nan)


def inverse(perm: Array) -> Array:
    """The position of each item, `(..., n)`."""
    return jnp.argsort(perm, axis=-1)


def take_rows(x: Array, index: Array) -> Array:
    """Rows of `(..., n, d)` in the order of `(..., m)`."""
    batch = jnp.broadcast_shapes(x.shape[:-2], index.shape[:-1])
    x = jnp.broadcast_to(x, (*batch, *x.shape[-2:]))
    index = jnp.broadcast_to(index, (*batch, index.shape[-1]))
    return jnp.take_along_axis(x, index[..., None], axis=-2)


def put(index: Array, values: Array, width: int) -> Array:
    """Zeros `(..., width)` but for values `(..., m)` at the places of an index of that shape."""
    batch, lists = index.shape[:-1], math.prod(index.shape[:-1])
    index, values = (x.reshape(lists, index.shape[-1]) for x in (index, values))
    empty = jnp.zeros((lists, width), values.dtype)
    return empty.at[jnp.arange(lists)[:, None], index].set(values).reshape(*batch, width)


def entries(matrix: Array, columns: Array) -> Array:
    """`matrix[i, columns[i]]` for every row i."""
    batch = jnp.broadcast_shapes(matrix.shape[:-2], columns.shape[:-1])
    matrix = jnp.broadcast_to(matrix, (*batch, *matrix.shape[-2:]))
    columns = jnp.broadcast_to(columns, (*batch, columns.shape[-1]))
    return jnp.take_along_axis(matrix, columns[..., None], axis=-1)[..., 0]
