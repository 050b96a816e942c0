"""Losses of scores against relevance by pairs or by shares, each with the metric that it softens.

The rules for padding, for lists that teach nothing and for half precision are those of
`ranking_losses`.
"""

from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jax import Array, lax

from .. import _options
from .._blur import laplace, logistic
from . import _checks
from .arrays import inverse, spoilt_unless, working
from .losses import beside, reduced
from .metrics import discounts, gains, ideal_dcg
from .ranking_losses import differences
from .relaxations.ordering import descending
from .softness import temperature


def listnet_loss(
    scores: Array,
    relevance: Array,
    *,
    tau: _checks.Tau = 1.0,
    mask: Array | None = None,
    reduction: str = "mean",
) -> Array:
    r"""ListNet: cross-entropy between the softmax of the relevance and that of the scores.

    $$-\sum_j \operatorname{softmax}(r)_j \log \operatorname{softmax}(s / \tau)_j$$

    Both are the chances of each item to come first, under Plackett-Luce. It is smallest where the
    scores over `tau` are the relevance plus a constant; its hard counterpart is whether the most
    relevant item is first.

    Args:
        scores: `(..., n)`. Larger ranks first.
        relevance: `(..., n)`, of any real dtype: here also its size counts.
        tau: Temperature, positive, or a `Blur`: the unit of the scores.
        mask: `(..., n)` boolean, True where the item exists.
        reduction: `"mean"` or `"sum"` over lists, or `"none"`.

    Returns:
        A scalar, or one loss per list for `"none"`. A list of equal relevance has loss 0.

    Raises:
        TypeError: If `scores` is not floating point, or `mask` not boolean.
        ValueError: If a shape does not fit, `tau` is not positive, or `reduction` is not known.

    Example:
        >>> scores = jnp.array([1.0, 2.0, 3.0])
        >>> f"{listnet_loss(scores, jnp.array([0, 2, 1])):.4f}"
        '1.2529'

    Reference: Cao et al. (2007). Time and memory: O(n).
    """
    scores, relevance, mask = beside("listnet_loss", "scores", "relevance", scores, relevance, mask)
    tau = temperature(_checks.positive_tau(tau, scores), scores, mask, of_blur=laplace)
    present = jnp.ones(scores.shape, bool) if mask is None else mask
    dtype = working(scores.dtype)
    wanted = relevance.astype(dtype)
    teaches = _varies(wanted, present)
    # Lists without an item get one, so that no sum is empty; they count 0 below.
    first = jnp.arange(scores.shape[-1]) == 0
    counted = present | (~present.any(-1, keepdims=True) & first)
    wanted = jnp.where(counted, jnp.where(present, wanted, 0.0), -jnp.inf)
    wanted = jax.nn.softmax(wanted, -1)
    logits = jnp.where(present, scores.astype(dtype), 0.0) / tau
    found = jax.nn.log_softmax(logits, -1, where=counted)
    cost = -jnp.where(counted & (wanted != 0), wanted * found, 0.0).sum(-1)
    return reduced(jnp.where(teaches, cost, 0.0), reduction)


def lambda_loss(
    scores: Array,
    relevance: Array,
    *,
    tau: _checks.Tau = 1.0,
    k: int | None = None,
    mask: Array | None = None,
    reduction: str = "mean",
) -> Array:
    r"""LambdaRank as a loss: pairs weigh as much as swapping them would change the NDCG.

    $$\sum_{r_i > r_j} |\Delta\text{NDCG@}k_{ij}|\, \log_2\big(1 + e^{-(s_i - s_j)/\tau}\big)$$

    The weights come from the ranks under the present scores, and carry no gradient. Its hard
    counterpart, of which it is an upper bound, is the weight of the pairs in the wrong order, which
    is 0 where and only where `metrics.ndcg(scores, relevance, k=k)` is 1.

    Args:
        scores: `(..., n)`. Larger ranks first; tied scores rank in the order of their indices.
        relevance: `(..., n)`, of any real dtype, not negative.
        tau: Temperature, positive, or a `Blur`: the unit of the scores.
        k: How many of the first places count; None is all. Lists may be shorter.
        mask: `(..., n)` boolean, True where the item exists.
        reduction: `"mean"` or `"sum"` over lists, or `"none"`.

    Returns:
        A scalar, or one loss per list for `"none"`. A list of equal relevance has loss 0.

    Raises:
        TypeError: If `scores` is not floating point, or `mask` not boolean.
        ValueError: If a shape does not fit, `tau` or `k` is not positive, or `reduction` is not
            known.

    Example:
        >>> scores = jnp.array([1.0, 2.0, 3.0])
        >>> f"{lambda_loss(scores, jnp.array([0, 2, 1])):.4f}"
        '0.4593'

    Reference: Burges et al. (2006) for the weights; Wang et al. (2018) for the loss that they
    belong to. Time and memory: O(n^2).
    """
    scores, relevance, mask = beside("lambda_loss", "scores", "relevance", scores, relevance, mask)
    _checks.static(k=k)
    n, dtype = scores.shape[-1], working(scores.dtype)
    k = _options.cutoff(k, n)
    cost = jax.nn.softplus(-differences(scores, tau, mask, logistic)) / _LOG2
    worth = gains(relevance, mask, dtype)
    ideal = ideal_dcg(worth, k)[..., None, None]
    place = jnp.pad(discounts(k, dtype), (0, n - k))
    fixed = lax.stop_gradient(scores)
    rank = inverse(descending(fixed, mask))
    lost = _pairs(worth) * _pairs(jnp.take(place, rank)) if n else cost  # what a swap would change
    weight = jnp.where(ideal > 0, jnp.abs(lost) / jnp.where(ideal > 0, ideal, 1.0), 0.0)
    decided = relevance[..., None] > relevance[..., None, :]
    unknown = (fixed != fixed) | (relevance != relevance)
    if mask is not None:
        decided = decided & mask[..., None] & mask[..., None, :]
        unknown = unknown & mask
    total = jnp.where(decided, weight * cost, 0.0).sum((-1, -2))
    return reduced(total * spoilt_unless(~unknown.any(-1)), reduction)


def smooth_ap_loss(
    scores: Array,
    relevance: Array,
    *,
    tau: _checks.Tau,
    mask: Array | None = None,
    reduction: str = "mean",
) -> Array:
    r"""Smooth-AP: one minus the average precision at ranks smoothed by sigmoids.

    $$1 - \frac{1}{|R|} \sum_{i \in R}
      \frac{1 + \sum_{j \in R, j \ne i} \sigma((s_j - s_i)/\tau)}
           {1 + \sum_{j \ne i} \sigma((s_j - s_i)/\tau)}, \qquad R = \{i : r_i > 0\}$$

    Its hard counterpart, which it tends to as `tau` tends to 0, is
    `1 - metrics.average_precision(scores, relevance)`.

    Args:
        scores: `(..., n)`. Larger ranks first.
        relevance: `(..., n)`, of any real dtype. An item is relevant if this is above 0.
        tau: Temperature, positive, or a `Blur`: a difference of scores that is clear.
        mask: `(..., n)` boolean, True where the item exists.
        reduction: `"mean"` or `"sum"` over lists, or `"none"`.

    Returns:
        A scalar, or one loss per list for `"none"`. A list in which nothing is relevant, or
        everything, has loss 0.

    Raises:
        TypeError: If `scores` is not floating point, or `mask` not boolean.
        ValueError: If a shape does not fit, `tau` is not positive, or `reduction` is not known.

    Example:
        >>> scores = jnp.array([0.3, 0.2, 0.1])
        >>> f"{smooth_ap_loss(scores, jnp.array([0, 1, 1]), tau=0.01):.4f}"
        '0.4167'

    Reference: Brown et al. (2020). Time and memory: O(n^2).
    """
    scores, relevance, mask = beside(
        "smooth_ap_loss", "scores", "relevance", scores, relevance, mask
    )
    above, relevant = _above(scores, relevance, tau, mask)
    ahead = jnp.where(relevant[..., None, :], above, 0.0).sum(-1)
    precision = (1 + ahead) / (1 + above.sum(-1))
    loss = _one_minus_mean(precision, relevant, mask)
    return reduced(loss * _known(relevance, mask), reduction)


def recall_at_k_loss(
    scores: Array,
    relevance: Array,
    *,
    k: int | Sequence[int],
    tau: _checks.Tau,
    rank_tau: float = 1.0,
    mask: Array | None = None,
    reduction: str = "mean",
) -> Array:
    r"""One minus the recall in the first k places, with soft ranks and a soft end of the list.

    $$1 - \frac{1}{|R|} \sum_{i \in R} \sigma\Big(\frac{k + 1/2 - \pi_i}{\tau_\pi}\Big), \qquad
      \pi_i = 1 + \sum_{j \ne i} \sigma\Big(\frac{s_j - s_i}{\tau}\Big), \quad R = \{i : r_i > 0\}$$

    Its hard counterpart, which it tends to as both temperatures tend to 0, is
    `1 - metrics.recall_at_k(scores, relevance, k=k)`. The end lies between place k and the next, so
    that place k counts whole.

    Args:
        scores: `(..., n)`. Larger ranks first.
        relevance: `(..., n)`, of any real dtype. An item is relevant if this is above 0.
        k: How many of the first places count; for several of them, the mean of their losses.
        tau: Temperature of the ranks, positive, or a `Blur`: a difference that is clear.
        rank_tau: Temperature of the end of the list, positive, in ranks.
        mask: `(..., n)` boolean, True where the item exists.
        reduction: `"mean"` or `"sum"` over lists, or `"none"`.

    Returns:
        A scalar, or one loss per list for `"none"`. A list in which nothing is relevant, or
        everything, has loss 0.

    Raises:
        TypeError: If `scores` is not floating point, `mask` not boolean, or `k` no whole number.
        ValueError: If a shape does not fit, a temperature or `k` is not positive, or `reduction` is
            not known.

    Example:
        >>> scores = jnp.array([0.3, 0.2, 0.1])
        >>> f"{recall_at_k_loss(scores, jnp.array([0, 1, 1]), k=2, tau=0.01, rank_tau=0.01):.4f}"
        '0.5000'

    Reference: Patel et al. (2022). Time and memory: O(n^2).
    """
    scores, relevance, mask = beside(
        "recall_at_k_loss", "scores", "relevance", scores, relevance, mask
    )
    _checks.static(k=k, rank_tau=rank_tau)
    ends = jnp.array(_options.cutoffs(k), working(scores.dtype))
    rank_tau = _options.positive("rank_tau", rank_tau)
    above, relevant = _above(scores, relevance, tau, mask)
    rank = 1 + above.sum(-1, keepdims=True)
    found = jax.nn.sigmoid((ends + 0.5 - rank) / rank_tau).mean(-1)
    loss = _one_minus_mean(found, relevant, mask)
    return reduced(loss * _known(relevance, mask), reduction)


# -- what they share -------------------------------------------------------------------------------

_LOG2 = 0.6931471805599453


def _above(
    scores: Array, relevance: Array, tau: _checks.Tau, mask: Array | None
) -> tuple[Array, Array]:
    """How far item j ranks before item i, `[..., i, j]`, and which items are relevant."""
    present = jnp.ones(scores.shape, bool) if mask is None else mask
    other = ~jnp.eye(scores.shape[-1], dtype=bool) & present[..., None, :]
    above = jax.nn.sigmoid(-differences(scores, tau, mask, logistic))
    return jnp.where(other, above, 0.0), (relevance > 0) & present


def _one_minus_mean(value: Array, relevant: Array, mask: Array | None) -> Array:
    """One minus the mean over the relevant items; 0 where none is relevant, or every one."""
    total = jnp.where(relevant, 1 - value, 0.0).sum(-1)
    all_relevant = relevant.all(-1) if mask is None else (relevant == mask).all(-1)
    return jnp.where(all_relevant, 0.0, total / jnp.maximum(relevant.sum(-1), 1))


def _pairs(x: Array) -> Array:
    return x[..., None] - x[..., None, :]


def _varies(relevance: Array, present: Array) -> Array:
    """Whether the items that are there differ, `(...)`; NaN does from everything."""
    high = jnp.where(present, relevance, -jnp.inf).max(-1, initial=-jnp.inf)
    low = jnp.where(present, relevance, jnp.inf).min(-1, initial=jnp.inf)
    return present.any(-1) & (high != low)


def _known(relevance: Array, mask: Array | None) -> Array:
    """1, or NaN for lists with a relevance that is NaN."""
    unknown = relevance != relevance
    if mask is not None:
        unknown = unknown & mask
    return spoilt_unless(~unknown.any(-1))
