"""Gradients for discrete things: the straight-through estimator."""

from typing import Any

import tensorflow as tf

from . import _checks


def straight_through(hard: tf.Tensor, soft: tf.Tensor) -> tf.Tensor:
    r"""Uses `hard` in the forward pass and the gradient of `soft` in the backward pass.

    $$\text{value} = \text{hard}, \qquad
      \partial_\theta\,\text{value} := \partial_\theta\,\text{soft}$$

    Its hard counterpart is `hard` itself, through which no gradient flows.

    Args:
        hard: The discrete values, any shape. They receive no gradient.
        soft: Their relaxation, of the same shape and dtype.

    Returns:
        A tensor equal to `hard`, to the bit, whose gradient goes to `soft`.

    Raises:
        ValueError: If the shapes differ.

    Example:
        >>> soft = tf.constant([0.7, 0.3])
        >>> with tf.GradientTape() as tape:
        ...     tape.watch(soft)
        ...     hard = straight_through(tf.constant([1.0, 0.0]), soft)
        ...     loss = tf.reduce_sum(hard * tf.constant([2.0, 5.0]))
        >>> hard.numpy(), tape.gradient(loss, soft).numpy()
        (array([1., 0.], dtype=float32), array([2., 5.], dtype=float32))

    Reference: Bengio et al. (2013). Time and memory: those of the two arguments.
    """
    _checks.same_shape(hard, soft)
    return _straight_through(tf.stop_gradient(tf.cast(hard, soft.dtype)), soft)


@tf.custom_gradient
def _straight_through(hard: tf.Tensor, soft: tf.Tensor) -> Any:
    def gradient(upstream: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        return tf.zeros_like(upstream), upstream

    return tf.identity(hard), gradient
