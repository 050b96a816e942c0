"""Rankings as arrays: how probable they are, and values in their strict order.

A ranking `(..., k)` holds items from the first place down. Under a mask with m items present only
the first m places count; what later places hold is ignored.
"""

import jax.numpy as jnp
from jax import Array, lax

from . import _checks
from .arrays import put


def ranking_from(relevance: Array, mask: Array | None = None) -> Array:
    """The ranking that puts more relevant items first.

    Its hard counterpart is itself: `jnp.argsort(relevance, descending=True, stable=True)`, but
    for absent items. It is what `plackett_luce_nll` and `permutation_cross_entropy` learn from.

    Args:
        relevance: `(..., n)`, of any real dtype. Tied items keep the order of their indices; for a
            random order of ties add noise that is smaller than their steps.
        mask: `(..., n)` boolean, True where the item exists.

    Returns:
        `(..., n)` integers: the item at each place, from the first down. Absent items come last, in
        the order of their indices.

    Raises:
        TypeError: If `relevance` is not a array of real numbers, or `mask` not boolean.
        ValueError: If it has no dimension, or a shape does not fit.

    Example:
        >>> ranking_from(jnp.array([0, 2, 1, 2]))
        Array([1, 3, 2, 0], dtype=int32)
        >>> mask = jnp.array([True, False, True, True])
        >>> ranking_from(jnp.array([0, 2, 1, 2]), mask)
        Array([3, 2, 0, 1], dtype=int32)

    Time: O(n log n).
    """
    relevance = _checks.list_of_numbers("ranking_from(relevance)", relevance)
    mask = _checks.mask(mask, relevance.shape)
    if mask is None:
        return jnp.argsort(relevance, axis=-1, descending=True, stable=True)
    known = jnp.where(mask, relevance, 0)  # whatever absent items hold, they tie
    first = jnp.argsort(known, axis=-1, descending=True, stable=True)
    last = jnp.argsort(~jnp.take_along_axis(mask, first, -1), axis=-1, stable=True)
    return jnp.take_along_axis(first, last, -1)


def largest(x: Array, mask: Array | None = None) -> Array:
    """The largest finite value of each list `(..., 1)` that is there, without gradient; else 0."""
    x = lax.stop_gradient(x)
    there = jnp.isfinite(x) if mask is None else jnp.isfinite(x) & mask
    top = jnp.where(there, x, -jnp.inf).max(-1, keepdims=True, initial=-jnp.inf)
    return jnp.where(top == -jnp.inf, 0.0, top)


def reversed_logcumsumexp(x: Array) -> Array:
    """`log sum_{j >= i} exp(x_j)` for each i."""
    return lax.cumlogsumexp(x, axis=x.ndim - 1, reverse=True)


def _places_that_count(present: Array, places: int) -> Array:
    """The first m of the places, for m items present."""
    return jnp.arange(places) < present.sum(-1, keepdims=True)


def _listed(ranking: Array, counts: Array, n: int) -> Array:
    """Which of the n items stand in the places that count, (..., n) boolean."""
    items = jnp.where(counts, ranking, n)  # places that do not count list an item n: none
    return put(items, jnp.ones(items.shape, bool), n + 1)[..., :n]


def lists_distinct_items(ranking: Array, present: Array) -> Array:
    """Whether the places that count list distinct items that are there, `(...)` boolean."""
    n = present.shape[-1]
    counts = _places_that_count(present, ranking.shape[-1])
    known = counts & (ranking >= 0) & (ranking < n)
    return (_listed(ranking, known, n) & present).sum(-1) == counts.sum(-1)


def log_density(logits: Array, ranking: Array, mask: Array | None) -> Array:
    """Log-probability that rankings begin with the given places, `(...)`."""
    n, k = logits.shape[-1], ranking.shape[-1]
    logits = logits - largest(logits, mask)  # an offset costs no digits
    if k == n and mask is None:
        chosen = jnp.take_along_axis(logits, ranking, -1)
        return (chosen - reversed_logcumsumexp(chosen)).sum(-1) if n else chosen.sum(-1)
    # Below every logit by so much that its exponential is 0, but finite: gradients stay numbers.
    absent = jnp.finfo(logits.dtype).min / 4
    present = jnp.ones(logits.shape, bool) if mask is None else mask
    counts = _places_that_count(present, k)
    others = jnp.where(_listed(ranking, counts, n) | ~present, absent, logits)
    peak = lax.stop_gradient(others.max(-1, keepdims=True, initial=absent))
    unlisted = jnp.log(jnp.exp(others - peak).sum(-1, keepdims=True)) + peak
    chosen = jnp.take_along_axis(logits, jnp.where(counts, ranking, 0), -1)
    chosen = jnp.where(counts, chosen, absent)
    rest = reversed_logcumsumexp(jnp.concatenate([chosen, unlisted], -1))[..., :k]
    return jnp.where(counts, chosen - rest, 0.0).sum(-1)


def strictly_descending(x: Array) -> Array:
    """Moves each value at least one unit in the last place below the one before it."""
    whole = jnp.int64 if x.dtype == jnp.float64 else jnp.int32
    lowest = jnp.iinfo(whole).min
    # Floats as integers in the same order, where one unit in the last place is 1.
    bits = lax.bitcast_convert_type(x, whole)
    step = jnp.where(bits < 0, lowest - bits, bits)
    place = jnp.arange(x.shape[-1], dtype=whole)
    step = lax.cummin(step + place, axis=x.ndim - 1) - place
    return lax.bitcast_convert_type(jnp.where(step < 0, lowest - step, step), x.dtype)
