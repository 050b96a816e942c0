"""From a matrix to a hard permutation: the appendix's argmax, and the best assignment."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax


def row_argmax(matrix: Array) -> Array:
    """Row-wise argmax; ties go to the smallest item that no earlier row has, else the smallest."""
    if not matrix.shape[-1]:
        return jnp.zeros(matrix.shape[:-1], int)
    tied = matrix == matrix.max(-1, keepdims=True)

    def pick(used: Array, row: Array) -> tuple[Array, Array]:
        free = row & ~used
        best = jnp.where(free.any(-1, keepdims=True), free, row).argmax(-1)
        return used | jax.nn.one_hot(best, row.shape[-1], dtype=bool), best

    start = jnp.zeros((*matrix.shape[:-2], matrix.shape[-1]), bool)
    return jnp.moveaxis(lax.scan(pick, start, jnp.moveaxis(tied, -2, 0))[1], 0, -1)


def is_permutation(perm: Array) -> Array:
    """Whether no item is picked twice: a permutation, or the first places of one."""
    picks = jnp.sort(perm, axis=-1)
    return (picks[..., 1:] != picks[..., :-1]).all(-1)


def harden(matrix: Array) -> Array:
    """The appendix's argmax where it is a permutation, the best assignment where it is not."""
    perm = row_argmax(matrix)
    valid = is_permutation(perm)

    def assign(*_: Any) -> Array:
        shape = jax.ShapeDtypeStruct(perm.shape, perm.dtype)
        best = jax.pure_callback(_assignments, shape, matrix, vmap_method="expand_dims")
        return jnp.where(valid[..., None], perm, best)

    return lax.cond(valid.all(), lambda: perm, assign)


def _assignments(matrix: Any) -> np.ndarray:
    """The assignments of largest total weight, on the host."""
    from scipy.optimize import linear_sum_assignment  # which JAX depends on

    weights = np.nan_to_num(np.asarray(matrix, np.float64), nan=0.0)
    flat = weights.reshape(-1, *weights.shape[-2:])
    columns = [linear_sum_assignment(one, maximize=True)[1] for one in flat]
    dtype = np.dtype(jnp.zeros((), int).dtype)
    return np.asarray(columns, dtype).reshape(weights.shape[:-1])
