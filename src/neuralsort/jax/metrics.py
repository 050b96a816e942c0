"""Metrics of orders and rankings: the hard counterparts of the losses, without gradient.

Lists may be padded: `mask` is True where the item exists. `reduction` is `"mean"` over the lists,
`"sum"`, or `"none"` for one value per list.
"""

import jax.numpy as jnp
from jax import Array, lax

from .. import _options
from . import _checks
from .arrays import inverse, spoilt_unless, working
from .losses import beside, count_present, reduced
from .relaxations.ordering import Ordered, descending, order, share_ties, tie_groups
from .retrieval import average_precision as average_precision
from .retrieval import precision_at_k as precision_at_k
from .retrieval import recall_at_k as recall_at_k
from .retrieval import reciprocal_rank as reciprocal_rank

__all__ = [
    "average_precision",
    "element_wise",
    "exact_match",
    "kendall_tau",
    "mean_reciprocal_rank",
    "ndcg",
    "precision_at_k",
    "recall_at_k",
    "reciprocal_rank",
    "spearman",
]

# -- permutations ----------------------------------------------------------------------------------


def exact_match(
    perm: Array, target: Array, *, mask: Array | None = None, reduction: str = "mean"
) -> Array:
    """How many lists are in the right order from the first place to the last.

    Args:
        perm: `(..., n)` integers. The item predicted at each position, as `P.permutation()` gives.
        target: `(..., n)` integers. The item that belongs there.
        mask: `(..., n)` boolean, True where the item exists. With m items present, the first m
            places count.
        reduction: `"mean"`, `"sum"` or `"none"`, over lists.

    Returns:
        The share of lists, or per list 1 or 0. An empty list is in the right order.

    Raises:
        TypeError: If the permutations are not integers, or `mask` not boolean.
        ValueError: If the shapes differ.

    Example:
        >>> exact_match(jnp.array([[0, 1, 2], [2, 1, 0]]), jnp.array([[0, 1, 2], [2, 0, 1]])).round(
        ...     4
        ... )
        Array(0.5, dtype=float32)
    """
    right, counted = _places(perm, target, mask)
    return reduced((right | ~counted).all(-1).astype(float), reduction)


def element_wise(
    perm: Array, target: Array, *, mask: Array | None = None, reduction: str = "mean"
) -> Array:
    """Which share of the places holds the right item.

    Args:
        perm: `(..., n)` integers. The item predicted at each position, as `P.permutation()` gives.
        target: `(..., n)` integers. The item that belongs there.
        mask: `(..., n)` boolean, True where the item exists. With m items present, the first m
            places count.
        reduction: `"mean"`, `"sum"` or `"none"`, over lists.

    Returns:
        The share of right places of a list, 1 for an empty one, reduced over lists.

    Raises:
        TypeError: If the permutations are not integers, or `mask` not boolean.
        ValueError: If the shapes differ.

    Example:
        >>> element_wise(
        ...     jnp.array([[0, 1, 2], [2, 1, 0]]), jnp.array([[0, 1, 2], [2, 0, 1]])
        ... ).round(4)
        Array(0.6667, dtype=float32)
    """
    right, counted = _places(perm, target, mask)
    wrong = (~right & counted).sum(-1) / jnp.maximum(counted.sum(-1), 1)
    return reduced(1 - wrong, reduction)


def _places(perm: Array, target: Array, mask: Array | None) -> tuple[Array, Array]:
    """Which places are right, and which count."""
    perm = _checks.permutations("perm", perm)
    target = _checks.permutations("target", target, perm.shape)
    n = perm.shape[-1]
    present = count_present(_checks.mask(mask, perm.shape), n)
    return perm == target, jnp.broadcast_to(jnp.arange(n) < present, perm.shape)


# -- rankings by relevance -------------------------------------------------------------------------


LARGE = 64
"""A relevance whose gain is in range for every dtype, also summed and squared."""


def gains(relevance: Array, mask: Array | None, dtype: jnp.dtype) -> Array:
    """What an item is worth, 2^relevance - 1; nothing if it is absent.

    Lists with a relevance past `LARGE` count in a larger unit, where nothing overflows.
    """
    relevance = relevance.astype(dtype)
    if mask is not None:
        relevance = jnp.where(mask, relevance, 0.0)
    unit = relevance.max(-1, keepdims=True, initial=LARGE) - LARGE
    return jnp.exp2(relevance - unit) - jnp.exp2(-unit)


def discounts(k: int, dtype: jnp.dtype) -> Array:
    """What the first k places weigh, 1 / log2(1 + place)."""
    return 1 / jnp.log2(jnp.arange(2, k + 2, dtype=dtype))


def ideal_dcg(worth: Array, k: int) -> Array:
    """The largest discounted sum of gains that an order can have, `(...)`."""
    return (lax.top_k(worth, k)[0] * discounts(k, worth.dtype)).sum(-1)


def ndcg(
    scores: Array,
    relevance: Array,
    *,
    k: int | None = None,
    mask: Array | None = None,
    reduction: str = "mean",
) -> Array:
    r"""Normalised discounted cumulative gain of the items ranked by their scores.

    $$\text{NDCG@}k = \frac{\sum_{i \le k} (2^{r_{[i]}} - 1) / \log_2(1 + i)}
      {\text{the same in the order of the relevance}}$$

    where $r_{[i]}$ is the relevance of the item with the i-th largest score. Tied scores share the
    mean of their gains: the expectation over their orders.

    Args:
        scores: `(..., n)`. Larger ranks first.
        relevance: `(..., n)`, of any real dtype, not negative. 0 is not relevant.
        k: How many of the first places count; None is all. Lists may be shorter.
        mask: `(..., n)` boolean, True where the item exists.
        reduction: `"mean"`, `"sum"` or `"none"`, over lists.

    Returns:
        Between 0 and 1; 0 for a list in which nothing is relevant.

    Raises:
        TypeError: If `scores` is not floating point, or `mask` not boolean.
        ValueError: If a shape does not fit or `k` is not positive.

    Example:
        >>> f"{ndcg(jnp.array([0.3, 0.2, 0.1]), jnp.array([1, 0, 2])):.4f}"
        '0.6885'

    Reference: Järvelin and Kekäläinen (2002); gains of Burges et al. (2005). Time: O(n log n).
    """
    scores, relevance, mask = _hard("ndcg", "scores", "relevance", scores, relevance, mask)
    _checks.static(k=k)
    k = _options.cutoff(k, scores.shape[-1])
    o = _ordered(scores, mask)
    worth = gains(relevance, mask, o.values.dtype)
    ideal = ideal_dcg(worth, k)
    shared = share_ties(jnp.take_along_axis(worth, o.perm, -1), tie_groups(o.values, o.room))
    found = (shared[..., :k] * discounts(k, shared.dtype)).sum(-1) * o.poison[..., 0]
    value = jnp.where(ideal > 0, found / jnp.where(ideal > 0, ideal, 1.0), 0.0)
    return reduced(value, reduction)


def mean_reciprocal_rank(
    scores: Array,
    relevance: Array,
    *,
    k: int | None = None,
    mask: Array | None = None,
    reduction: str = "mean",
) -> Array:
    """One over the rank of the first relevant item, averaged over lists.

    Tied scores rank in the order of their indices.

    Args:
        scores: `(..., n)`. Larger ranks first.
        relevance: `(..., n)`, of any real dtype. An item is relevant if this is above 0.
        k: How many of the first places count; None is all. Lists may be shorter.
        mask: `(..., n)` boolean, True where the item exists.
        reduction: `"mean"`, `"sum"` or `"none"`, over lists.

    Returns:
        Between 0 and 1; 0 for a list without a relevant item in its first k places.

    Raises:
        TypeError: If `scores` is not floating point, or `mask` not boolean.
        ValueError: If a shape does not fit or `k` is not positive.

    Example:
        >>> f"{mean_reciprocal_rank(jnp.array([0.3, 0.2, 0.1]), jnp.array([0, 1, 2])):.4f}"
        '0.5000'

    Time: O(n log n).
    """
    scores, relevance, mask = _hard(
        "mean_reciprocal_rank", "scores", "relevance", scores, relevance, mask
    )
    _checks.static(k=k)
    k = _options.cutoff(k, scores.shape[-1])
    o = _ordered(scores, mask)
    relevant = relevance > 0 if mask is None else (relevance > 0) & mask
    relevant = jnp.take_along_axis(relevant, o.perm, -1)[..., :k]
    place = jnp.arange(1, k + 1, dtype=o.values.dtype)
    value = jnp.where(relevant, 1 / place, 0.0).max(-1, initial=0.0)
    return reduced(value * o.poison[..., 0], reduction)


def _ordered(scores: Array, mask: Array | None) -> Ordered:
    """Scores in sorted order, without a temperature."""
    return order(scores, jnp.ones((*scores.shape[:-1], 1), working(scores.dtype)), mask)


def _hard(
    metric: str, first: str, second: str, x: Array, other: Array, mask: Array | None
) -> tuple[Array, Array, Array | None]:
    """The same without gradient."""
    x, other, mask = beside(metric, first, second, x, other, mask)
    return lax.stop_gradient(x), other, mask


# -- correlations of ranks -------------------------------------------------------------------------


def average_ranks(x: Array, mask: Array | None, dtype: jnp.dtype) -> Array:
    """Ranks `(..., n)` from 1 for the largest, ties sharing their mean; absent items come last.

    Values are compared in their own dtype: large integers are not floats.
    """
    perm = descending(x, mask)
    values, room = jnp.take_along_axis(x, perm, -1), jnp.zeros(x.shape, int)
    if mask is not None:  # absent items tie with none
        room = jnp.cumsum(~jnp.take_along_axis(mask, perm, -1), -1)
    first, last = tie_groups(values, room)
    ranks = (first + last).astype(dtype) / 2 + 1
    return jnp.take_along_axis(ranks, inverse(perm), -1) * _poison(x, mask, dtype)


def _poison(x: Array, mask: Array | None, dtype: jnp.dtype) -> Array:
    """A factor `(..., 1)` for results: NaN for lists that hold a NaN, else 1."""
    unknown = x != x if mask is None else (x != x) & mask
    return spoilt_unless(~unknown.any(-1, keepdims=True)).astype(dtype)


def spearman(
    x: Array, target: Array, *, mask: Array | None = None, reduction: str = "mean"
) -> Array:
    """Spearman's rank correlation: Pearson's correlation of the ranks, ties sharing their mean.

    Args:
        x: `(..., n)`.
        target: `(..., n)`, of any real dtype.
        mask: `(..., n)` boolean, True where the item exists.
        reduction: `"mean"`, `"sum"` or `"none"`, over lists.

    Returns:
        Between -1 and 1, as `scipy.stats.spearmanr`; 0 for a list that is all tied in `x` or in
        `target`, where that is undefined.

    Raises:
        TypeError: If `x` is not floating point, or `mask` not boolean.
        ValueError: If a shape does not fit.

    Example:
        >>> f"{spearman(jnp.array([1.0, 2.0, 3.0]), jnp.array([10, 30, 20])):.4f}"
        '0.5000'

    Time: O(n log n).
    """
    x, target, mask = _hard("spearman", "x", "target", x, target, mask)
    counted = jnp.ones(x.shape, bool) if mask is None else mask
    n = jnp.maximum(counted.sum(-1, keepdims=True), 1)
    a, b = (average_ranks(values, mask, working(x.dtype)) for values in (x, target))
    a, b = (jnp.where(counted, ranks - (n + 1) / 2, 0.0) for ranks in (a, b))
    spread = jnp.sqrt((a**2).sum(-1) * (b**2).sum(-1))
    value = jnp.where(spread == 0, 0.0, (a * b).sum(-1) / jnp.where(spread == 0, 1.0, spread))
    return reduced(value, reduction)


def kendall_tau(
    x: Array, target: Array, *, mask: Array | None = None, reduction: str = "mean"
) -> Array:
    """Kendall's tau-b: agreement of two orders over all pairs of items, corrected for ties.

    Args:
        x: `(..., n)`.
        target: `(..., n)`, of any real dtype.
        mask: `(..., n)` boolean, True where the item exists.
        reduction: `"mean"`, `"sum"` or `"none"`, over lists.

    Returns:
        Between -1 and 1, as `scipy.stats.kendalltau`; 0 for a list that is all tied in `x` or in
        `target`, where that is undefined.

    Raises:
        TypeError: If `x` is not floating point, or `mask` not boolean.
        ValueError: If a shape does not fit.

    Example:
        >>> f"{kendall_tau(jnp.array([1.0, 2.0, 3.0]), jnp.array([10, 30, 20])):.4f}"
        '0.3333'

    Time and memory: O(n^2).
    """
    x, target, mask = _hard("kendall_tau", "x", "target", x, target, mask)
    a, b = (_signs(values, mask, working(x.dtype)) for values in (x, target))
    spread = jnp.sqrt((a**2).sum((-1, -2)) * (b**2).sum((-1, -2)))
    value = (a * b).sum((-1, -2)) / jnp.where(spread == 0, 1.0, spread)
    return reduced(jnp.where(spread == 0, 0.0, value), reduction)


def _signs(x: Array, mask: Array | None, dtype: jnp.dtype) -> Array:
    """Signs of the differences of all pairs `(..., n, n)`; 0 for pairs with an absent item."""
    above = (x[..., None] > x[..., None, :]).astype(dtype)
    if mask is not None:
        above = jnp.where(mask[..., None] & mask[..., None, :], above, 0.0)
    return (above - above.mT) * _poison(x, mask, dtype)[..., None]
