"""Losses for learning to rank: scores against relevance, or values against a target order.

Lists may be padded: `mask` is True where the item exists, and what the other places hold changes
neither value nor gradient. A list from which nothing can be learned (no items, one item, relevance
or target all equal) has loss 0 and no gradient. Losses of half precision are float32.
"""

from collections.abc import Callable
from typing import Protocol

import jax
import jax.numpy as jnp
from jax import Array

from .. import _options
from .._blur import logistic, twice_logistic
from . import _checks
from .arrays import spoilt_unless, working
from .losses import beside, reduced
from .metrics import average_ranks, discounts, gains, ideal_dcg
from .operators import Relaxation, relaxed
from .permutation import RelaxedPermutation
from .relaxations import neuralsort
from .softness import temperature


class Ranks(Protocol):
    """Values and a temperature to ranks from 1 for the smallest; with a mask, `mask=` as well."""

    def __call__(self, x: Array, /, *, tau: _checks.Tau) -> Array:
        """Ranks `(..., n)` of `x` (..., n)."""
        ...


def neural_ndcg(
    scores: Array,
    relevance: Array,
    *,
    tau: _checks.Tau,
    k: int | None = None,
    iterations: int = 10,
    mask: Array | None = None,
    relax: Relaxation = neuralsort,
    reduction: str = "mean",
) -> Array:
    r"""NeuralNDCG: one minus the NDCG of a relaxed order.

    $$1 - \frac{1}{\text{ideal DCG@}k} \sum_{i=1}^{k} \frac{(\widetilde P g)_i}{\log_2(1+i)},
      \qquad g_j = 2^{r_j} - 1$$

    where $\widetilde P$ is the relaxed permutation of the scores, its rows and columns scaled in
    turn (Sinkhorn) so that both sum to 1: no item is counted more than once. The scaling needs
    products with $\widehat P$ alone, and the matrix is not written down where they do without. Its
    hard counterpart, which it tends to as `tau` tends to 0, is `1 - metrics.ndcg(scores,
    relevance, k=k)`.

    Args:
        scores: `(..., n)`. Larger ranks first.
        relevance: `(..., n)`, of any real dtype, not negative.
        tau: Temperature, as in `relax`.
        k: How many of the first places count; None is all. Lists may be shorter.
        iterations: How often columns and rows are scaled. With 0 columns keep their sums, each
            step costs one product instead of `2 * iterations + 1`, and the loss may fall below 0.
        mask: `(..., n)` boolean, True where the item exists.
        relax: The relaxation: `neuralsort`, `softsort`, or a `functools.partial` of one.
        reduction: `"mean"` or `"sum"` over lists, or `"none"`.

    Returns:
        A scalar, or one loss per list for `"none"`. A list in which nothing is relevant has loss 0.

    Raises:
        TypeError: If `scores` is not floating point, or `mask` not boolean.
        ValueError: If a shape does not fit, `k` is not positive, or `reduction` is not known.

    Example:
        >>> scores = jnp.array([0.3, 0.2, 0.1])
        >>> loss = neural_ndcg(scores, jnp.array([1, 0, 2]), tau=0.1)
        >>> f"{loss:.4f}"
        '0.3061'

    Reference: Pobrotyn and Białobrzeski (2021); without the scaling, with NeuralSort, Swezey et al.
    (2021). Time and memory: those of `2 * iterations + 1` products with `relax`.
    """
    scores, relevance, mask = beside("neural_ndcg", "scores", "relevance", scores, relevance, mask)
    _checks.static(k=k, iterations=iterations)
    k = _options.cutoff(k, scores.shape[-1])
    worth = gains(relevance, mask, working(scores.dtype))
    P = relaxed(scores.astype(working(scores.dtype)), tau, mask, relax)
    if _options.iterations(iterations):
        soft = _doubly_scaled(P, worth, iterations)[..., :k]
    else:
        soft = P.top(k).sort(worth)
    found = (soft * discounts(k, worth.dtype)).sum(-1)
    return reduced(_one_minus_share(found, ideal_dcg(worth, k)), reduction)


def _doubly_scaled(P: RelaxedPermutation, x: Array, iterations: int) -> Array:
    """`diag(rows) P diag(columns) x`, with the scales that make rows and columns sum to 1."""
    rows = jnp.ones((*P.shape[:-1], 1), x.dtype)
    columns = rows
    for _ in range(iterations):
        columns = 1 / (P.mT @ rows)
        rows = 1 / (P @ columns)
    return (rows * (P @ (columns * x[..., None])))[..., 0]


def approx_ndcg(
    scores: Array,
    relevance: Array,
    *,
    tau: _checks.Tau,
    mask: Array | None = None,
    reduction: str = "mean",
) -> Array:
    r"""ApproxNDCG: one minus the NDCG at ranks smoothed by sigmoids of differences.

    $$1 - \frac{1}{\text{ideal DCG}} \sum_j \frac{2^{r_j} - 1}{\log_2(1 + \pi_j)}, \qquad
      \pi_j = 1 + \sum_{u \ne j} \sigma\Big(\frac{s_u - s_j}{\tau}\Big)$$

    Its hard counterpart, which it tends to as `tau` tends to 0, is `1 - metrics.ndcg(scores,
    relevance)`.

    Args:
        scores: `(..., n)`. Larger ranks first.
        relevance: `(..., n)`, of any real dtype, not negative.
        tau: Temperature, positive: a difference of scores that is to count as clear.
        mask: `(..., n)` boolean, True where the item exists.
        reduction: `"mean"` or `"sum"` over lists, or `"none"`.

    Returns:
        A scalar, or one loss per list for `"none"`. A list in which nothing is relevant has loss 0.

    Raises:
        TypeError: If `scores` is not floating point, or `mask` not boolean.
        ValueError: If a shape does not fit, `tau` is not positive, or `reduction` is not known.

    Example:
        >>> scores = jnp.array([0.3, 0.2, 0.1])
        >>> f"{approx_ndcg(scores, jnp.array([1, 0, 2]), tau=0.1):.4f}"
        '0.3348'

    Reference: Qin, Liu and Li (2010). Time and memory: O(n^2).
    """
    scores, relevance, mask = beside("approx_ndcg", "scores", "relevance", scores, relevance, mask)
    worth = gains(relevance, mask, working(scores.dtype))
    # [j, u]: how far u ranks before j.
    above = jax.nn.sigmoid(-differences(scores, tau, mask, logistic))
    if mask is not None:
        above = jnp.where(mask[..., None, :], above, 0.0)
    rank = above.sum(-1) + 0.5  # each item counts as half before itself
    found = (worth / jnp.log2(1 + rank)).sum(-1)
    ideal = ideal_dcg(worth, scores.shape[-1])
    return reduced(_one_minus_share(found, ideal), reduction)


def spearman_loss(
    x: Array,
    target: Array,
    *,
    tau: _checks.Tau,
    mask: Array | None = None,
    weights: Array | None = None,
    relax: Relaxation = neuralsort,
    rank: Ranks | None = None,
    reduction: str = "mean",
) -> Array:
    r"""One minus Spearman's correlation, with soft ranks in place of ranks.

    $$1 - \operatorname{corr}\big(\text{soft\_rank}(x),\, \text{rank}(\text{target})\big)$$

    The ranks of the target are hard, ties sharing their mean. The loss lies between 0 and 2; its
    hard counterpart, which it tends to as `tau` tends to 0, is `1 - metrics.spearman(x, target)`.

    Args:
        x: `(..., n)`.
        target: `(..., n)`, of any real dtype: only its order counts. It gets no gradient.
        tau: Temperature, as in `relax` or `rank`.
        mask: `(..., n)` boolean, True where the item exists.
        weights: `(..., n)`, not negative. How much each item counts in the correlation; its rank is
            among all of them.
        relax: The relaxation: `neuralsort`, `softsort`, or a `functools.partial` of one.
        rank: A function from values to ranks in place of those of `relax`, such as
            `fast_soft_rank`, from 1 for the smallest; called with `tau=`, and `mask=` where given.
        reduction: `"mean"` or `"sum"` over lists, or `"none"`.

    Returns:
        A scalar, or one loss per list for `"none"`. A list whose target is all tied has loss 0. One
        whose `x` is all tied, where the correlation jumps, has loss 1, and neither has a gradient.

    Raises:
        TypeError: If `x` is not floating point, or `mask` not boolean.
        ValueError: If a shape does not fit, or `reduction` is not known.

    Example:
        >>> x = jnp.array([1.0, 2.0, 3.0])
        >>> f"{spearman_loss(x, jnp.array([10, 30, 20]), tau=0.1):.4f}"
        '0.5000'

    Reference: Blondel et al. (2020) for the idea. Time and memory: those of `relax`,
    or of `rank`: with `fast_soft_rank` O(n log n) and O(n).
    """
    x, target, mask = beside("spearman_loss", "x", "target", x, target, mask)
    count = _weights("spearman_loss", weights, x, mask)
    soft = _centred(_soft_ranks(x, tau, mask, relax, rank), count)
    hard = _centred(average_ranks(target, mask, soft.dtype), count)
    spread, wanted = (count * soft**2).sum(-1), (count * hard**2).sum(-1)
    rounding = 8 * float(jnp.finfo(soft.dtype).eps)
    tied = spread <= count.sum(-1) * (x.shape[-1] * rounding) ** 2
    scale = jnp.sqrt(jnp.where(tied, 1.0, spread) * jnp.where(wanted == 0, 1.0, wanted))
    correlation = jnp.where(tied, 0.0, (count * soft * hard).sum(-1) / scale)
    return reduced(jnp.where(wanted == 0, 0.0, 1 - correlation), reduction)


def kendall_loss(
    x: Array,
    target: Array,
    *,
    tau: _checks.Tau,
    mask: Array | None = None,
    weights: Array | None = None,
    reduction: str = "mean",
) -> Array:
    r"""One minus Kendall's correlation, with soft signs in place of signs.

    $$1 - \frac{1}{|D|} \sum_{(i, j) \in D} \tanh\Big(\frac{x_i - x_j}{\tau}\Big), \qquad
      D = \{(i, j) : \text{target}_i > \text{target}_j\}$$

    The loss lies between 0 and 2. Its hard counterpart, which it tends to as `tau` tends to 0, is
    `1 - scipy.stats.somersd(target, x).statistic`, which for a target without ties is
    `1 - metrics.kendall_tau(x, target)`.

    Args:
        x: `(..., n)`.
        target: `(..., n)`, of any real dtype: only its order counts. It gets no gradient.
        tau: Temperature, positive: a difference of `x` that is to count as clear.
        mask: `(..., n)` boolean, True where the item exists.
        weights: `(..., n)`, not negative. How much each item counts; a pair counts the product.
        reduction: `"mean"` or `"sum"` over lists, or `"none"`.

    Returns:
        A scalar, or one loss per list for `"none"`. A list whose target is all tied has loss 0.

    Raises:
        TypeError: If `x` is not floating point, or `mask` not boolean.
        ValueError: If a shape does not fit, `tau` is not positive, or `reduction` is not known.

    Example:
        >>> x = jnp.array([1.0, 2.0, 3.0])
        >>> f"{kendall_loss(x, jnp.array([10, 30, 20]), tau=0.1):.4f}"
        '0.6667'

    Reference: Kendall (1938) and Somers (1962) for the statistics. Time and memory: O(n^2).
    """
    x, target, mask = beside("kendall_loss", "x", "target", x, target, mask)
    agreement = jnp.tanh(differences(x, tau, mask, twice_logistic))
    count = _weights("kendall_loss", weights, x, mask)
    return reduced(_mean_over_decided(1 - agreement, target, mask, count), reduction)


def ranknet_loss(
    scores: Array,
    relevance: Array,
    *,
    tau: _checks.Tau = 1.0,
    mask: Array | None = None,
    weights: Array | None = None,
    reduction: str = "mean",
) -> Array:
    r"""RankNet: logistic loss over the pairs whose relevance differs.

    $$\frac{1}{|D|} \sum_{(i, j) \in D} \log\big(1 + e^{-(s_i - s_j)/\tau}\big), \qquad
      D = \{(i, j) : r_i > r_j\}$$

    Its hard counterpart is the share of pairs in the wrong order, of which it is, over log 2, a
    convex upper bound.

    Args:
        scores: `(..., n)`. Larger ranks first.
        relevance: `(..., n)`, of any real dtype: only its order counts.
        tau: Temperature, positive: the unit of the scores.
        mask: `(..., n)` boolean, True where the item exists.
        weights: `(..., n)`, not negative. How much each item counts; a pair counts the product.
        reduction: `"mean"` or `"sum"` over lists, or `"none"`.

    Returns:
        A scalar, or one loss per list for `"none"`. A list of equal relevance has loss 0.

    Raises:
        TypeError: If `scores` is not floating point, or `mask` not boolean.
        ValueError: If a shape does not fit, `tau` is not positive, or `reduction` is not known.

    Example:
        >>> scores = jnp.array([1.0, 2.0, 3.0])
        >>> f"{ranknet_loss(scores, jnp.array([0, 2, 1])):.4f}"
        '0.5845'

    Reference: Burges et al. (2005). Time and memory: O(n^2).
    """
    scores, relevance, mask = beside("ranknet_loss", "scores", "relevance", scores, relevance, mask)
    cost = jax.nn.softplus(-differences(scores, tau, mask, logistic))
    count = _weights("ranknet_loss", weights, scores, mask)
    return reduced(_mean_over_decided(cost, relevance, mask, count), reduction)


# -- what they share -------------------------------------------------------------------------------


def _weights(loss: str, weights: Array | None, x: Array, mask: Array | None) -> Array:
    """How much each item counts, `(..., n)`: 1 unless given, and 0 for what is absent."""
    if weights is None:
        count = jnp.ones(x.shape, working(x.dtype))
    else:
        count = _checks.per_item(f"{loss}(weights)", weights, x.shape).astype(working(x.dtype))
    return count if mask is None else jnp.where(mask, count, 0.0)


def _soft_ranks(
    x: Array, tau: _checks.Tau, mask: Array | None, relax: Relaxation, rank: Ranks | None
) -> Array:
    """Ranks `(..., n)` that fall as values rise."""
    x = x.astype(working(x.dtype))
    if rank is None:
        return relaxed(x, tau, mask, relax).rank()
    options = {"tau": tau} if mask is None else {"tau": tau, "mask": mask}
    return -_options.ranks(rank, x, options)


def _centred(ranks: Array, count: Array) -> Array:
    """Ranks of the items that count, minus their mean; 0 for the others."""
    ranks = jnp.where(count > 0, ranks, 0.0)
    total = count.sum(-1, keepdims=True)
    mean = (count * ranks).sum(-1, keepdims=True) / jnp.where(total == 0, 1.0, total)
    return jnp.where(count > 0, ranks - mean, 0.0)


def differences(
    x: Array, tau: _checks.Tau, mask: Array | None, of_blur: Callable[[float], float]
) -> Array:
    """`(x_i - x_j) / tau` for all pairs, `(..., n, n)`; absent items stand at 0.

    Equal infinities are 0 apart, without gradient; pairs of equal numbers keep theirs.
    """
    tau = temperature(_checks.positive_tau(tau, x), x, mask, of_blur=of_blur)
    tau = tau[..., None] if isinstance(tau, Array) and tau.ndim else tau
    x = x.astype(working(x.dtype))
    x = x if mask is None else jnp.where(mask, x, 0.0)
    difference = x[..., None] - x[..., None, :]
    level = jnp.isinf(x)[..., None] & (x[..., None] == x[..., None, :])
    difference = jnp.where(level, 0.0, difference)
    endless = jnp.isinf(difference)  # at every temperature, whose gradient is 0 there
    return jnp.where(endless, difference, jnp.where(endless, 0.0, difference) / tau)


def _mean_over_decided(cost: Array, order: Array, mask: Array | None, count: Array) -> Array:
    """The mean cost `(...)` of the pairs (i, j) whose order says i before j."""
    decided = order[..., None] > order[..., None, :]
    if mask is not None:
        decided = decided & mask[..., None] & mask[..., None, :]
    pairs = jnp.where(decided, count[..., None] * count[..., None, :], 0.0)
    total = (pairs * jnp.where(decided & (pairs != 0), cost, 0.0)).sum((-1, -2))
    unknown = order != order  # NaN, which no comparison decides
    if mask is not None:
        unknown = unknown & mask
    weight = pairs.sum((-1, -2))
    return total / jnp.where(weight == 0, 1.0, weight) * spoilt_unless(~unknown.any(-1))


def _one_minus_share(found: Array, ideal: Array) -> Array:
    """`1 - found / ideal`, and 0 where there is nothing to find."""
    nothing = ideal <= 0
    return jnp.where(nothing, 0.0, 1 - found / jnp.where(nothing, 1.0, ideal))
