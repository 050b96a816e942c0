"""Every rule for tensors, one message each: what was expected, what came, what to do."""

# The stubs of TensorFlow do not know `x[..., 1:]`.
# pyright: reportArgumentType=false

from typing import Any

import keras
import numpy as np
import tensorflow as tf

from .. import _options
from .._blur import Blur

Tensor = tf.Tensor


def _tensor(name: str, value: Any) -> Tensor:
    """A tensor of a known number of dimensions: also of variables, NumPy arrays and lists."""
    try:
        value = tf.convert_to_tensor(value)
    except (TypeError, ValueError) as error:
        raise TypeError(
            f"`{name}` expects a tensor, got {type(value).__name__}. Pass a tf.Tensor or lists of "
            "one length; in a Keras model use the layer NeuralSort."
        ) from error
    if value.shape.rank is None:
        raise ValueError(
            f"`{name}` expects a known number of dimensions, got a tensor of unknown shape. "
            "Name them, as in tf.TensorSpec([None, None]) or tf.ensure_shape(x, [None, None])."
        )
    return value


def _fits(shape: tf.TensorShape, target: tf.TensorShape) -> bool:
    """Whether one shape may broadcast to the other, as far as they are known."""
    try:
        return tf.broadcast_static_shape(shape, target).is_compatible_with(target)
    except ValueError:
        return False


def scores(name: str, value: Any) -> Tensor:
    """Floating-point tensor with at least one dimension."""
    value = _tensor(name, value)
    if not value.dtype.is_floating:
        raise TypeError(
            f"`{name}` expects a floating-point tensor, got {value.dtype.name}. "
            "Convert it with tf.cast(..., tf.float32)."
        )
    if value.dtype.size < 2:
        raise TypeError(
            f"`{name}` expects float16, bfloat16, float32 or float64, got {value.dtype.name}, "
            "which has no arithmetic of its own. Convert it with tf.cast(..., tf.float32)."
        )
    if value.shape.rank == 0:
        raise ValueError(
            f"`{name}` expects at least one dimension (..., n), got a 0-d tensor. "
            "A list of one item has shape (1,)."
        )
    return value


def tau(value: Any, scores: Tensor) -> float | Tensor | Blur:
    """Non-negative number, a tensor with one temperature per list, or a blur."""
    if isinstance(value, Blur):
        return value
    if not tf.is_tensor(value) and not isinstance(value, keras.Variable | np.ndarray):
        return _options.temperature(value)
    value = _tensor("tau", value)
    if not value.dtype.is_floating:
        raise TypeError(
            f"`tau` expects a number or a floating-point tensor, got {value.dtype.name}. "
            "Convert it with tf.cast(..., tf.float32)."
        )
    if not _fits(value.shape, tf.TensorShape([*scores.shape[:-1], 1])):
        raise ValueError(
            f"`tau` must be one number or one temperature per list: a shape that broadcasts to "
            f"{(*scores.shape[:-1], 1)} for scores {tuple(scores.shape)}, got "
            f"{tuple(value.shape)}. For a batch of temperatures use tau[..., None]."
        )
    if readable(value) and bool(tf.reduce_any(value < 0)):
        raise ValueError(
            f"`tau` must not be negative, got a tensor with {float(tf.reduce_min(value))}. Learn "
            "its logarithm: tf.exp(theta) stays positive."
        )
    # Where shapes are not known before the graph runs, TensorFlow compares them then.
    return tf.broadcast_to(value, tf.concat([tf.shape(scores)[:-1], [1]], 0))


def readable(value: Tensor) -> bool:
    """Whether a rule may look at values: not in graphs, nor where an accelerator must wait."""
    return tf.executing_eagerly() and "CPU" in value.device.upper()


def saved_tau(value: float | Blur) -> float | Blur:
    """Temperature of a layer, which is saved with it."""
    if isinstance(value, Blur):
        return value
    if tf.is_tensor(value) or isinstance(value, keras.Variable):
        raise TypeError(
            "`NeuralSort(tau)` expects a number, which is saved with the layer, got a tensor. "
            "Pass float(tau); to learn it, call neuralsort(scores, tau=tau) in a layer of your own."
        )
    return _options.temperature(value)


def mask(value: Any, scores: Tensor) -> Tensor | None:
    """Boolean tensor that broadcasts to the scores, True where the item exists."""
    if value is None:
        return None
    value = _tensor("mask", value)
    if value.dtype != tf.bool:
        raise TypeError(
            f"`mask` expects a boolean tensor, True where the item exists, got {value.dtype.name}. "
            "Convert it with tf.cast(mask, tf.bool)."
        )
    if not _fits(value.shape, scores.shape):
        raise ValueError(
            f"`mask` must have the shape of the scores, {tuple(scores.shape)}, or broadcast to it, "
            f"got {tuple(value.shape)}. Give one flag per item."
        )
    return tf.broadcast_to(value, tf.shape(scores))


def seed(value: Any) -> Tensor | None:
    """Two integers, or None for the global generator."""
    if value is None:
        return None
    pair = _tensor("seed", value)
    if pair.dtype not in (tf.int32, tf.int64) or not pair.shape.is_compatible_with([2]):
        raise TypeError(
            f"`seed` expects two integers, got {pair.dtype.name} of shape {tuple(pair.shape)}. "
            "Pass a pair such as (0, 1), or None for the global generator."
        )
    return pair


def same_shape(hard: Tensor, soft: Tensor) -> None:
    """Discrete values and their relaxation."""
    if not hard.shape.is_compatible_with(soft.shape):
        raise ValueError(
            f"`straight_through(hard, soft)` expects two tensors of one shape, got "
            f"{tuple(hard.shape)} and {tuple(soft.shape)}. Broadcast them first."
        )


def ranking(value: Any, n: int | None) -> Tensor:
    """Item indices from the first place down, at most one per item."""
    value = _tensor("ranking", value)
    if not value.dtype.is_integer:
        raise TypeError(
            f"`ranking` expects integer item indices, got {value.dtype.name}. "
            "Pass items from the first place down, such as permutation(x)."
        )
    places = value.shape[-1] if value.shape.rank else None
    if value.shape.rank == 0 or (n is not None and places is not None and places > n):
        raise ValueError(
            f"`ranking` expects shape (..., k) with at most k = {n} places, one per item, got "
            f"{tuple(value.shape)}. Its last dimension lists items from the first place down."
        )
    return tf.cast(value, tf.int32)


def batch_of_rankings(value: Tensor, logits: Tensor) -> Tensor:
    """The batch shape of rankings together with that of the logits."""
    ours, theirs = value.shape[:-1], logits.shape[:-1]
    try:
        tf.broadcast_static_shape(ours, theirs)
    except ValueError:
        raise ValueError(
            f"`ranking` must have a batch shape that broadcasts against {tuple(theirs)}, that of "
            f"the logits, got {tuple(ours)}. Give one ranking per list."
        ) from None
    return tf.broadcast_dynamic_shape(tf.shape(value)[:-1], tf.shape(logits)[:-1])


def distinct_items(valid: Tensor, ranking: Tensor, n: Tensor) -> Tensor:
    """A factor for results: 1 for distinct items that exist; NaN where a graph cannot raise."""
    if tf.executing_eagerly() and not bool(tf.reduce_all(valid)):
        raise ValueError(
            f"`ranking` must list distinct items, from 0 to {int(n) - 1} and present under the "
            f"mask, got {ranking.numpy()}. Items stand in the order of their places."
        )
    return tf.where(valid, tf.constant(1.0, tf.float64), tf.constant(float("nan"), tf.float64))
