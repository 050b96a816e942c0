"""Metrics of retrieval, where an item is relevant or not: are the relevant ones found early?

Public in `metrics`. Lists may be padded: `mask` is True where the item exists. `reduction` is
`"mean"` over the lists, `"sum"`, or `"none"` for one value per list. Several cutoffs k in one call
give as many values, in a last dimension.
"""

from collections.abc import Sequence

import jax.numpy as jnp
from jax import Array, lax

from .. import _options
from . import _checks
from .arrays import working
from .losses import beside, reduced
from .relaxations.ordering import Ordered, order, share_ties, tie_groups

Cutoffs = int | Sequence[int]


def precision_at_k(
    scores: Array,
    relevance: Array,
    *,
    k: Cutoffs,
    mask: Array | None = None,
    reduction: str = "mean",
) -> Array:
    """Which share of the first k places holds relevant items.

    Tied scores share their places: the expectation over their orders.

    Args:
        scores: `(..., n)`. Larger ranks first.
        relevance: `(..., n)`, of any real dtype. An item is relevant if this is above 0.
        k: How many of the first places count, or several such numbers. Places that a list does not
            have hold nothing relevant.
        mask: `(..., n)` boolean, True where the item exists.
        reduction: `"mean"`, `"sum"` or `"none"`, over lists.

    Returns:
        Between 0 and 1, for several k in a last dimension.

    Raises:
        TypeError: If `scores` is not floating point, `mask` not boolean, or `k` no whole number.
        ValueError: If a shape does not fit or a k is not positive.

    Example:
        >>> scores, relevance = jnp.array([0.4, 0.3, 0.2, 0.1]), jnp.array([0, 1, 0, 2])
        >>> precision_at_k(scores, relevance, k=(1, 2, 4))
        Array([0. , 0.5, 0.5], dtype=float32)

    Time: O(n log n).
    """
    found, _, sizes = _found("precision_at_k", scores, relevance, k, mask)
    return _reduced(found / jnp.array(sizes), k, reduction)


def recall_at_k(
    scores: Array,
    relevance: Array,
    *,
    k: Cutoffs,
    mask: Array | None = None,
    reduction: str = "mean",
) -> Array:
    """Which share of the relevant items stands in the first k places.

    Tied scores share their places: the expectation over their orders.

    Args:
        scores: `(..., n)`. Larger ranks first.
        relevance: `(..., n)`, of any real dtype. An item is relevant if this is above 0.
        k: How many of the first places count, or several such numbers. Lists may be shorter.
        mask: `(..., n)` boolean, True where the item exists.
        reduction: `"mean"`, `"sum"` or `"none"`, over lists.

    Returns:
        Between 0 and 1, for several k in a last dimension; 0 for a list in which nothing is
        relevant.

    Raises:
        TypeError: If `scores` is not floating point, `mask` not boolean, or `k` no whole number.
        ValueError: If a shape does not fit or a k is not positive.

    Example:
        >>> scores, relevance = jnp.array([0.4, 0.3, 0.2, 0.1]), jnp.array([0, 1, 0, 2])
        >>> recall_at_k(scores, relevance, k=(1, 2, 4))
        Array([0. , 0.5, 1. ], dtype=float32)

    Time: O(n log n).
    """
    found, total, _ = _found("recall_at_k", scores, relevance, k, mask)
    return _reduced(found / jnp.maximum(total, 1), k, reduction)


def average_precision(
    scores: Array,
    relevance: Array,
    *,
    k: Cutoffs | None = None,
    mask: Array | None = None,
    reduction: str = "mean",
) -> Array:
    r"""The mean over the relevant items of the precision at their places.

    $$\text{AP@}k = \frac{1}{\min(k, |R|)} \sum_{i \le k,\, [i] \in R} \text{precision@}i$$

    Tied scores rank in the order of their indices.

    Args:
        scores: `(..., n)`. Larger ranks first.
        relevance: `(..., n)`, of any real dtype. An item is relevant if this is above 0.
        k: How many of the first places count, or several such numbers; None is all.
        mask: `(..., n)` boolean, True where the item exists.
        reduction: `"mean"`, `"sum"` or `"none"`, over lists.

    Returns:
        Between 0 and 1, for several k in a last dimension; 0 for a list in which nothing is
        relevant.

    Raises:
        TypeError: If `scores` is not floating point, `mask` not boolean, or `k` no whole number.
        ValueError: If a shape does not fit or a k is not positive.

    Example:
        >>> scores, relevance = jnp.array([0.4, 0.3, 0.2, 0.1]), jnp.array([0, 1, 0, 2])
        >>> f"{average_precision(scores, relevance):.4f}"
        '0.5000'

    Reference: as scikit-learn's `average_precision_score` where no scores are tied.
    Time: O(n log n).
    """
    hits, o = _ordered("average_precision", scores, relevance, mask)
    sizes = _sizes(k, hits.shape[-1])
    gained = _until(hits * jnp.cumsum(hits, -1) / jnp.arange(1, hits.shape[-1] + 1), sizes)
    most = jnp.minimum(hits.sum(-1, keepdims=True), jnp.array(sizes))
    return _reduced(gained / jnp.maximum(most, 1) * o.poison, k, reduction)


def reciprocal_rank(
    scores: Array,
    relevance: Array,
    *,
    k: Cutoffs | None = None,
    mask: Array | None = None,
    reduction: str = "mean",
) -> Array:
    """One over the place of the first relevant item; its mean over lists is known as MRR.

    Tied scores rank in the order of their indices.

    Args:
        scores: `(..., n)`. Larger ranks first.
        relevance: `(..., n)`, of any real dtype. An item is relevant if this is above 0.
        k: How many of the first places count, or several such numbers; None is all.
        mask: `(..., n)` boolean, True where the item exists.
        reduction: `"mean"`, `"sum"` or `"none"`, over lists.

    Returns:
        Between 0 and 1, for several k in a last dimension; 0 for a list without a relevant item in
        its first k places.

    Raises:
        TypeError: If `scores` is not floating point, `mask` not boolean, or `k` no whole number.
        ValueError: If a shape does not fit or a k is not positive.

    Example:
        >>> scores, relevance = jnp.array([0.4, 0.3, 0.2, 0.1]), jnp.array([0, 1, 0, 2])
        >>> reciprocal_rank(scores, relevance, k=(1, 10))
        Array([0. , 0.5], dtype=float32)

    Time: O(n log n).
    """
    hits, o = _ordered("reciprocal_rank", scores, relevance, mask)
    first = (jnp.cumsum(hits, -1) == 1) & (hits > 0)
    gained = jnp.where(first, 1 / jnp.arange(1, hits.shape[-1] + 1), 0.0).astype(hits.dtype)
    return _reduced(_until(gained, _sizes(k, hits.shape[-1])) * o.poison, k, reduction)


# -- what they share -------------------------------------------------------------------------------


def _ordered(
    metric: str, scores: Array, relevance: Array, mask: Array | None
) -> tuple[Array, Ordered]:
    """1 for relevant items and 0 for others, in the order of the scores, and that order."""
    scores, relevance, mask = beside(metric, "scores", "relevance", scores, relevance, mask)
    scores = lax.stop_gradient(scores)
    o = order(scores, jnp.ones((*scores.shape[:-1], 1), working(scores.dtype)), mask)
    relevant = relevance > 0 if mask is None else (relevance > 0) & mask
    return jnp.take_along_axis(relevant, o.perm, -1).astype(o.values.dtype), o


def _found(
    metric: str, scores: Array, relevance: Array, k: Cutoffs, mask: Array | None
) -> tuple[Array, Array, tuple[int, ...]]:
    """Relevant items in the first k places `(..., cutoffs)`, in all, and the cutoffs."""
    hits, o = _ordered(metric, scores, relevance, mask)
    sizes = _sizes(k, hits.shape[-1])
    shared = share_ties(hits, tie_groups(o.values, o.room))
    return _until(shared, sizes) * o.poison, hits.sum(-1, keepdims=True), sizes


def _sizes(k: Cutoffs | None, n: int) -> tuple[int, ...]:
    """The cutoffs."""
    _checks.static(k=k)
    return (max(n, 1),) if k is None else _options.cutoffs(k)


def _until(gained: Array, sizes: tuple[int, ...]) -> Array:
    """What the first places have gained `(..., cutoffs)`."""
    total = jnp.pad(jnp.cumsum(gained, -1), [*[(0, 0)] * (gained.ndim - 1), (1, 0)])
    return total[..., jnp.array([min(size, gained.shape[-1]) for size in sizes])]


def _reduced(values: Array, k: Cutoffs | None, reduction: str) -> Array:
    """Over lists, and without the dimension of the cutoffs where there is one number k."""
    if k is None or not isinstance(k, Sequence):
        return reduced(values[..., 0], reduction)
    if _options.reduction(reduction) == "none":
        return values
    lists = values.reshape(-1, values.shape[-1])
    return lists.mean(0) if reduction == "mean" else lists.sum(0)
