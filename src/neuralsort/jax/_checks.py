"""Every rule for arrays, one message each: what was expected, what came, what to do.

Shapes, dtypes and plain Python numbers are checked, also while tracing. Of the values inside arrays
only indices and quantiles are read, and only where they exist: under `jit` and `vmap` they do not
yet, and what is out of range gives NaN.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array
from jax.core import Tracer

from .. import _options


def traced(value: Any) -> bool:
    """Whether the values of an array do not exist yet."""
    return isinstance(value, Tracer)


def static(**options: Any) -> None:
    """Options that shapes and programs depend on are plain Python values."""
    for name, value in options.items():
        if traced(value):
            raise TypeError(
                f"`{name}` must be known when the function is traced, got a traced value. Name it "
                f'in jax.jit(..., static_argnames="{name}"), or fix it with functools.partial.'
            )


def _floating(what: str, value: Any) -> None:
    if not _is(value, jnp.floating):
        raise TypeError(
            f"`{what}` expects a floating-point array, got {_came(value)}. "
            "Convert it with .astype(float)."
        )


def _came(value: Any) -> str:
    return str(value.dtype) if isinstance(value, Array | np.ndarray) else type(value).__name__


def _is(value: Any, kind: Any) -> bool:
    return isinstance(value, Array | np.ndarray) and jnp.issubdtype(value.dtype, kind)


def scores(name: str, value: Array) -> Array:
    """Floating-point array with at least one dimension."""
    if not isinstance(value, Array | np.ndarray):
        raise TypeError(
            f"`{name}` expects an array, got {type(value).__name__}. "
            "Wrap the values with jnp.asarray(...)."
        )
    _floating(name, value)
    if value.dtype.itemsize < 2:
        raise TypeError(
            f"`{name}` expects float16, bfloat16, float32 or float64, got {value.dtype}, which has "
            "no arithmetic of its own. Convert it with .astype(jnp.float32)."
        )
    if value.ndim == 0:
        raise ValueError(
            f"`{name}` expects at least one dimension (..., n), got a 0-d array. "
            "A list of one item has shape (1,)."
        )
    return jnp.asarray(value)


def tau(value: float | Array, scores: Array) -> float | Array:
    """Non-negative number, or an array with one temperature per list.

    A number that is not 0 does not become 0 in the dtype of the computation.
    """
    if not isinstance(value, Array | np.ndarray):
        number = _options.temperature(value)
        smallest = jnp.finfo(jnp.promote_types(scores.dtype, jnp.float32)).tiny
        return max(number, float(smallest)) if number else number
    if not _is(value, jnp.floating):
        raise TypeError(
            f"`tau` expects a number or a floating-point array, got {value.dtype}. "
            "Convert it with .astype(float)."
        )
    lists = (*scores.shape[:-1], 1)
    try:
        fits = jnp.broadcast_shapes(value.shape, lists) == lists
    except ValueError:
        fits = False
    if not fits:
        raise ValueError(
            f"`tau` must be one number or one temperature per list: a shape that broadcasts to "
            f"{lists} for scores {scores.shape}, got {value.shape}. "
            "For a batch of temperatures use tau[..., None]."
        )
    return jnp.asarray(value)


def positive_tau(value: float | Array, scores: Array) -> float | Array:
    """A temperature that divides; the value of an array is not read."""
    value = tau(value, scores)
    if not isinstance(value, Array) and value == 0:
        raise ValueError(
            "`tau` must be positive for a loss over pairs of items, got 0. "
            "For the hard value use the metric, for a gradient a small temperature."
        )
    return value


def mask(value: Array | None, shape: tuple[int, ...]) -> Array | None:
    """Boolean array that broadcasts to the lists, True where the item exists."""
    if value is None:
        return None
    if not _is(value, jnp.bool_):
        raise TypeError(
            f"`mask` expects a boolean array, True where the item exists, got {_came(value)}. "
            "Convert it with mask.astype(bool)."
        )
    try:
        return jnp.broadcast_to(value, shape)
    except ValueError:
        raise ValueError(
            f"`mask` must have the shape of the scores, {shape}, or broadcast to it, got "
            f"{value.shape}. Give one flag per item."
        ) from None


def payload(value: Array, shape: tuple[int, ...], what: str) -> Array:
    """Floating-point operand of a product with P, or what is of its shape."""
    _floating(what, value)
    n = shape[-1]
    where = -1 if value.ndim == 1 else -2
    if value.ndim == 0 or value.shape[where] != n:
        raise ValueError(
            f"`{what}` expects {n} items in dimension {where}, got shape {value.shape}. "
            "The payload needs one row per item, as in jnp.matmul."
        )
    same_batch(what, value.shape[:-2], shape)
    return jnp.asarray(value)


def list_values(value: Array, shape: tuple[int, ...], what: str) -> Array:
    """One floating-point value per item, in lists of the right length."""
    _floating(what, value)
    n = shape[-1]
    if value.ndim == 0 or value.shape[-1] != n:
        raise ValueError(
            f"`{what}` expects lists of {n} values, shape (..., {n}), got {value.shape}. "
            "Give one value per item."
        )
    same_batch(what, value.shape[:-1], shape)
    return jnp.asarray(value)


def positions(name: str, value: Array, rows: int) -> Array:
    """One item index per row of P."""
    if not _is(value, jnp.integer):
        raise TypeError(
            f"`{name}` expects integer item indices, got {_came(value)}. "
            "Pass a permutation such as jnp.argsort(x, descending=True)."
        )
    if value.ndim == 0 or value.shape[-1] != rows:
        raise ValueError(
            f"`{name}` expects one item per row, shape (..., {rows}), got {value.shape}. "
            "For the first k places give P.top(k)."
        )
    return jnp.asarray(value)


def same_batch(what: str, lists: tuple[int, ...], operator: tuple[int, ...]) -> None:
    """Lists for an operator `(..., k, n)`: as many as it has, or what broadcasts to them."""
    try:
        jnp.broadcast_shapes(lists, operator[:-2])
    except ValueError:
        raise ValueError(
            f"`{what}` expects a batch that broadcasts against {operator[:-2]}, that of P of shape "
            f"{operator}, got {lists}. Give every list its own, or one for all of them."
        ) from None


def in_range(name: str, value: Array, n: int) -> None:
    """Indices from 0 to n - 1. Reads values, unless they are traced."""
    if traced(value):
        return
    values = np.asarray(value)
    outside = values[(values < 0) | (values >= n)]
    if outside.size:
        raise ValueError(
            f"`{name}` expects indices from 0 to {n - 1}, got {outside[0]}. "
            "Count from 0, and mark items that do not exist with `mask`."
        )


def matrix(value: Array) -> Array:
    """Square floating-point matrices."""
    _floating("from_dense", value)
    if value.ndim < 2 or value.shape[-1] != value.shape[-2]:
        raise ValueError(
            f"`from_dense` expects square matrices (..., n, n), got shape {value.shape}. "
            "Rows are positions and columns are items."
        )
    return jnp.asarray(value)


def logits(name: str, value: Array) -> Array:
    """Square floating-point matrices of affinities."""
    value = scores(name, value)
    if value.ndim < 2 or value.shape[-1] != value.shape[-2]:
        raise ValueError(
            f"`{name}` expects square matrices (..., n, n), got shape {value.shape}. Rows are "
            "positions and columns are items; for one score per item use sinkhorn_sort."
        )
    return value


def keyed_values(values: Array, key: Array) -> Array:
    """Values whose leading dimensions are those of the key."""
    if not _is(values, jnp.floating):
        raise TypeError(
            f"`soft_sort_by` expects floating-point values, got {_came(values)}. "
            "Convert them with .astype(float)."
        )
    if values.shape[: key.ndim] != key.shape:
        raise ValueError(
            f"`soft_sort_by` expects values of shape key.shape + payload, key.shape being "
            f"{key.shape}, got {values.shape}. Move the payload's dimensions last."
        )
    return jnp.asarray(values)


def quantile(value: float | Array) -> Array:
    """Number in [0, 1], or a 0-d or 1-d array of them. Reads values, unless they are traced."""
    try:
        q = jnp.asarray(value, dtype=float)
    except (TypeError, ValueError):
        raise TypeError(
            f"`q` expects a number in [0, 1] or a 1-d array of them, got {value!r}. "
            "The median is q=0.5."
        ) from None
    if q.ndim > 1:
        raise ValueError(
            f"`q` must be a number or a 1-d array, got shape {q.shape}. Flatten it first."
        )
    values = np.asarray(0.0 if traced(value) else value)
    if not np.all((values >= 0) & (values <= 1)):
        raise ValueError(f"`q` must lie in [0, 1], got {value}. The median is q=0.5.")
    return q


def per_item(name: str, value: Array, shape: tuple[int, ...]) -> Array:
    """One real number or flag per item, of any dtype that has an order."""
    if not isinstance(value, Array | np.ndarray) or _is(value, jnp.complexfloating):
        raise TypeError(
            f"`{name}` expects an array of real numbers, got {_came(value)}. "
            "Wrap the values with jnp.asarray(...)."
        )
    try:
        return jnp.broadcast_to(value, shape)
    except ValueError:
        raise ValueError(
            f"`{name}` must have the shape of the lists, {shape}, or broadcast to it, got "
            f"{value.shape}. Give one value per item."
        ) from None


def flags(name: str, value: Array, shape: tuple[int, ...]) -> Array:
    """One flag per item, or one weight in floating point: labels are neither."""
    flag = per_item(name, value, shape)
    if _is(value, jnp.integer):
        raise TypeError(
            f"`{name}` expects booleans, or weights in floating point, got {_came(value)}. Compare "
            "the labels: labels == label_of_the_query."
        )
    return flag


def permutations(name: str, value: Array, shape: tuple[int, ...] | None = None) -> Array:
    """One item index per position, of the shape of the other permutations."""
    if not _is(value, jnp.integer):
        raise TypeError(
            f"`{name}` expects integer item indices, got {_came(value)}. "
            "Pass P.permutation() or jnp.argsort(x, descending=True)."
        )
    if value.ndim == 0 or (shape is not None and value.shape != shape):
        expected = "(..., n)" if shape is None else str(shape)
        raise ValueError(
            f"`{name}` expects one item index per position, shape {expected}, got {value.shape}. "
            "Give every list its own permutation."
        )
    return jnp.asarray(value)


def labels(value: Array, logits: Array) -> Array:
    """One class index per list of logits."""
    if not _is(value, jnp.integer):
        raise TypeError(
            f"`labels` expects integer class indices, got {_came(value)}. "
            "Convert them with .astype(int)."
        )
    if value.shape != logits.shape[:-1]:
        raise ValueError(
            f"`labels` expects one class per list, shape {logits.shape[:-1]} for logits "
            f"{logits.shape}, got {value.shape}. Give indices, not one-hot rows."
        )
    in_range("labels", value, logits.shape[-1])
    return jnp.asarray(value)


def ranking(value: Array, n: int) -> Array:
    """Item indices from the first place down, at most one per item."""
    if not _is(value, jnp.integer):
        raise TypeError(
            f"`ranking` expects integer item indices, got {_came(value)}. "
            "Pass items from the first place down, such as jnp.argsort(x, descending=True)."
        )
    if value.ndim == 0 or value.shape[-1] > n:
        raise ValueError(
            f"`ranking` expects shape (..., k) with at most k = {n} places, one per item, got "
            f"{value.shape}. Its last dimension lists items from the first place down."
        )
    return jnp.asarray(value)


def distinct_items(valid: Array, ranking: Array, n: int) -> None:
    """Rankings in which no item repeats and none is absent. Reads values, unless traced."""
    if not traced(valid) and not np.all(valid):
        raise ValueError(
            f"`ranking` must list distinct items, from 0 to {n - 1} and present under the mask, "
            f"got {ranking}. Items stand in the order of their places."
        )


def full_ranking(value: Array, n: int) -> Array:
    """A ranking of all items."""
    value = ranking(value, n)
    if value.shape[-1] != n:
        raise ValueError(
            f"`ranking` must list all {n} items here, got {value.shape[-1]} places. "
            "Only `log_prob` takes the first places alone."
        )
    return value


def batch_of_rankings(value: Array, batch: tuple[int, ...]) -> tuple[int, ...]:
    """The batch shape of rankings together with that of the distribution."""
    try:
        return jnp.broadcast_shapes(value.shape[:-1], batch)
    except ValueError:
        raise ValueError(
            f"`ranking` must have a batch shape that broadcasts against {batch}, that of "
            f"the logits, got {value.shape[:-1]}. Give one ranking per list."
        ) from None


def key(value: Array | None) -> Array:
    """A source of randomness."""
    if isinstance(value, Array) and (
        _is(value, jax.dtypes.prng_key) or (_is(value, jnp.uint32) and value.ndim == 1)
    ):
        return value
    raise TypeError(
        f"`key` expects a random key, got {_came(value)}. "
        "Make one with jax.random.key(seed), and split it for every use."
    )


def costs(value: Array, shape: tuple[int, ...]) -> Array:
    """One cost per sample and list."""
    if not isinstance(value, Array | np.ndarray) or value.shape != shape:
        came = value.shape if isinstance(value, Array | np.ndarray) else type(value).__name__
        raise ValueError(
            f"`cost` must give one number per sample and list, shape {shape}, got {came}. "
            "It takes P of shape (samples, ..., n, n) and returns (samples, ...)."
        )
    return jnp.asarray(value)


def sampled_costs(cost: Array, log_prob: Array) -> None:
    """Costs and log-probabilities of the same samples."""
    _floating("cost", cost)
    if cost.shape != log_prob.shape or cost.ndim == 0:
        raise ValueError(
            f"`score_function_loss(log_prob, cost)` expects two arrays of one shape (S, ...), got "
            f"{log_prob.shape} and {cost.shape}. Samples come first."
        )


def subset(value: Array, shape: tuple[int, ...]) -> Array:
    """A boolean mask of chosen items per list."""
    if not _is(value, jnp.bool_):
        raise TypeError(
            f"`value` expects a boolean array, True for the items of the subset, got "
            f"{_came(value)}. Convert it with value.astype(bool)."
        )
    try:
        fits = value.ndim and jnp.broadcast_shapes(value.shape, shape)[-1] == value.shape[-1]
    except ValueError:
        fits = False
    if not fits:
        raise ValueError(
            f"`value` expects one flag per item, a shape that broadcasts against {shape}, got "
            f"{value.shape}. Give one subset per list."
        )
    return jnp.asarray(value)


def list_of_numbers(name: str, value: Array) -> Array:
    """Lists of real numbers of any dtype."""
    value = per_item(name, value, getattr(value, "shape", ()))
    if value.ndim == 0:
        raise ValueError(
            f"`{name}` expects at least one dimension (..., n), got a 0-d array. "
            "A list of one item has shape (1,)."
        )
    return value


def per_sample(value: Array, shape: tuple[int, ...]) -> Array:
    """Something for every sample and list."""
    came = tuple(value.shape) if isinstance(value, Array | np.ndarray) else type(value).__name__
    if not isinstance(value, Array | np.ndarray) or value.shape[: len(shape)] != shape:
        raise ValueError(
            f"`function` must give something for every sample and list, a shape that begins with "
            f"{tuple(shape)}, got {came}. It takes scores (samples, ..., n)."
        )
    return value


def same_shape(name: str, value: Array, shape: tuple[int, ...]) -> Array:
    """An answer for every item of every sample and list."""
    came = tuple(value.shape) if isinstance(value, Array | np.ndarray) else type(value).__name__
    if not isinstance(value, Array | np.ndarray) or value.shape != shape:
        raise ValueError(
            f"`{name}` must answer with one number per item, shape {tuple(shape)}, got {came}. "
            "A mask of the largest, or ranks that rise with the scores, are such answers."
        )
    return value
