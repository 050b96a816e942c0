"""Random numbers: one place decides how Gumbel noise is drawn."""

import tensorflow as tf

from . import _checks


def sample_gumbel(
    shape: tuple[int, ...] | tf.Tensor,
    *,
    dtype: tf.DType = tf.float32,
    seed: tuple[int, int] | tf.Tensor | None = None,
) -> tf.Tensor:
    r"""Standard Gumbel noise, $-\log E$ with $E \sim \text{Exponential}(1)$.

    Drawn in float64 whatever it is cast to: float32 exponentials come in steps of 1e-7, which among
    a million items ties the smallest of them, and these decide who comes first.

    Args:
        shape: Of the noise; every entry is a draw of its own.
        dtype: Of the result.
        seed: Two integers, for a draw that depends on nothing else; None draws from TensorFlow's
            global generator.

    Returns:
        Independent draws, all finite.

    Raises:
        TypeError: If `seed` is not two integers.

    Example:
        >>> sample_gumbel((2, 3), seed=(0, 1)).shape
        TensorShape([2, 3])
    """
    seed = _checks.seed(seed)
    if seed is None:
        uniform = tf.random.uniform(shape, dtype=tf.float64)
    else:
        uniform = tf.random.stateless_uniform(shape, seed, dtype=tf.float64)
    exponential = tf.maximum(-tf.math.log1p(-uniform), 2.0**-1022)
    return tf.cast(-tf.math.log(exponential), dtype)
