"""Random numbers: one place decides how Gumbel noise is drawn."""

import jax
import jax.numpy as jnp
from jax import Array

from . import _checks


def gumbel(key: Array, shape: tuple[int, ...], dtype: jnp.dtype) -> Array:
    r"""Standard Gumbel noise, $-\log E$ with $E \sim \text{Exponential}(1)$.

    Args:
        key: Source of randomness.
        shape: Of the noise; every entry is a draw of its own.
        dtype: float32 or float64.

    Returns:
        Independent draws, all finite.
    """
    return -jnp.log(exponential(key, shape, dtype))


def exponential(key: Array, shape: tuple[int, ...], dtype: jnp.dtype) -> Array:
    """Standard exponential noise, never exactly 0.

    Uniform numbers come in steps of the last place of 1, 1.2e-7 in float32, which among a million
    items ties the smallest exponentials, and these decide who comes first. A second draw fills the
    steps.
    """
    coarse, fine = jax.random.split(_checks.key(key))
    step = float(jnp.finfo(dtype).eps)
    uniform = jax.random.uniform(coarse, shape, dtype)
    uniform = uniform + step * jax.random.uniform(fine, shape, dtype)
    draws = -jnp.log1p(-jnp.minimum(uniform, 1 - step))
    return jnp.maximum(draws, jnp.finfo(dtype).tiny)
