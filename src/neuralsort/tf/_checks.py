"""Every rule for tensors, one message each: what was expected, what came, what to do."""

from typing import Any

import tensorflow as tf

from .. import _options

Tensor = tf.Tensor


def _came(value: Any) -> str:
    return value.dtype.name if tf.is_tensor(value) else type(value).__name__


def scores(name: str, value: Tensor) -> Tensor:
    """Floating-point tensor with at least one dimension."""
    if not tf.is_tensor(value) and not isinstance(value, tf.Variable):
        raise TypeError(
            f"`{name}` expects a tf.Tensor, got {type(value).__name__}. "
            "Wrap the values with tf.convert_to_tensor(...)."
        )
    if not value.dtype.is_floating:
        raise TypeError(
            f"`{name}` expects a floating-point tensor, got {value.dtype.name}. "
            "Convert it with tf.cast(..., tf.float32)."
        )
    if value.shape.rank == 0:
        raise ValueError(
            f"`{name}` expects at least one dimension (..., n), got a 0-d tensor. "
            "A list of one item has shape (1,)."
        )
    return tf.convert_to_tensor(value)


def tau(value: Any, scores: Tensor) -> float | Tensor:
    """Non-negative number, or a tensor with one temperature per list."""
    if not tf.is_tensor(value) and not isinstance(value, tf.Variable):
        return _options.temperature(value)
    if not value.dtype.is_floating:
        raise TypeError(
            f"`tau` expects a number or a floating-point tensor, got {value.dtype.name}. "
            "Convert it with tf.cast(..., tf.float32)."
        )
    try:
        lists = tf.TensorShape([*scores.shape[:-1], 1])
        fits = tf.broadcast_static_shape(value.shape, lists).is_compatible_with(lists)
    except ValueError:
        fits = False
    if not fits:
        raise ValueError(
            f"`tau` must be one number or one temperature per list: a shape that broadcasts to "
            f"{(*scores.shape[:-1], 1)} for scores {tuple(scores.shape)}, got "
            f"{tuple(value.shape)}. For a batch of temperatures use tau[..., None]."
        )
    return tf.convert_to_tensor(value)


def mask(value: Tensor | None, scores: Tensor) -> Tensor | None:
    """Boolean tensor that broadcasts to the scores, True where the item exists."""
    if value is None:
        return None
    if not tf.is_tensor(value) or value.dtype != tf.bool:
        raise TypeError(
            f"`mask` expects a boolean tensor, True where the item exists, got {_came(value)}. "
            "Convert it with tf.cast(mask, tf.bool)."
        )
    try:
        fits = tf.broadcast_static_shape(value.shape, scores.shape).is_compatible_with(scores.shape)
    except ValueError:
        fits = False
    if not fits:
        raise ValueError(
            f"`mask` must have the shape of the scores, {tuple(scores.shape)}, or broadcast to it, "
            f"got {tuple(value.shape)}. Give one flag per item."
        )
    return tf.broadcast_to(value, tf.shape(scores))


def same_shape(hard: Tensor, soft: Tensor) -> None:
    """Discrete values and their relaxation."""
    if not hard.shape.is_compatible_with(soft.shape):
        raise ValueError(
            f"`straight_through(hard, soft)` expects two tensors of one shape, got "
            f"{tuple(hard.shape)} and {tuple(soft.shape)}. Broadcast them first."
        )


def ranking(value: Tensor, n: int | None) -> Tensor:
    """Item indices from the first place down, at most one per item."""
    if not tf.is_tensor(value) or not value.dtype.is_integer:
        raise TypeError(
            f"`ranking` expects integer item indices, got {_came(value)}. "
            "Pass items from the first place down, such as permutation(x)."
        )
    places = value.shape[-1] if value.shape.rank else None
    if value.shape.rank == 0 or (n is not None and places is not None and places > n):
        raise ValueError(
            f"`ranking` expects shape (..., k) with at most k = {n} places, one per item, got "
            f"{tuple(value.shape)}. Its last dimension lists items from the first place down."
        )
    return tf.cast(value, tf.int32)
