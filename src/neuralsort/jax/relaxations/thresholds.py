r"""Thresholds: how much of each item the k largest hold, without an order among them.

Every item is let through by a distribution function F of its distance from a threshold t,

$$w_j = F\Big(\frac{s_j - t}{\tau}\Big), \qquad \sum_j w_j = k,$$

so that weights are between 0 and 1 and, where t solves the equation, sum to k. The sum falls as t
rises, and between two neighbouring scores (or kinks of F) t has a closed form. Running sums over
the sorted list say which two; the closed form needs no more than that, and is exact in float32 too,
since distances are taken from these neighbours and never from t.
"""

import functools
import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import Array, lax

from ..._blur import logistic
from .. import _checks
from ..arrays import inverse, working
from ..pytrees import pytree
from ..softness import temperature
from .ordering import descending

# Distances beyond this many temperatures are as good as this one: exp(-1e4) is 0 in float64.
FAR = 1e4
# Stands for a sum over no items: small, but with room for its logarithm's gradient in float32.
NONE = 1e-30

Weigh = Callable[[Array, Array, Array, Array], Array]
"""Items `(..., n)`, temperatures `(..., 1)`, who counts, and k `(..., 1)` to weights `(..., n)`."""


@pytree("_scores", "_tau", "_mask", static=("_weigh",))
class Threshold:
    """Lists and a rule for the threshold: what `soft_topk_mask` asks for memberships."""

    def __init__(self, weigh: Weigh, scores: Array, tau: Array, mask: Array | None) -> None:
        self._weigh, self._scores, self._tau, self._mask = weigh, scores, tau, mask

    def memberships(self, k: int | Array) -> Array:
        """How much of each item the k largest hold, `(..., n)`, between 0 and 1.

        Args:
            k: How many: a number, or an integer array that broadcasts to the batch `(...)`.
        """
        k = _checks.k_per_list(k, self._scores.shape)
        return memberships(self._weigh, self._scores, self._tau, self._mask, k)


def sparse_threshold(
    scores: Array, *, tau: _checks.Tau = 1.0, mask: Array | None = None
) -> Threshold:
    r"""Top-k memberships that are exactly 0 or 1 for all but a few items.

    $$w = \operatorname*{arg\,min}_{w \in [0, 1]^n,\ \sum_j w_j = k}
      \tfrac12 \big\| w - s / \tau \big\|^2
      \quad\Longleftrightarrow\quad w_j = \min\big(\max\big((s_j - t)/\tau,\, 0\big),\, 1\big)$$

    For `soft_topk_mask(x, k, relax=sparse_threshold)`. As `tau` tends to 0 the memberships become
    the 0/1 mask of `jax.lax.top_k`, and reach it as soon as `tau` is below the gap between the k-th
    and the next score. Items further than `tau` from the threshold have no gradient.

    Args:
        scores: `(..., n)`. Leading dimensions are batch.
        tau: Temperature: a number, a `Blur`, or one per list, `(..., 1)`: over so wide a range
            of scores the memberships rise from 0 to 1.
        mask: `(..., n)` boolean, True where the item exists. Absent items have weight 0.

    Returns:
        What has `memberships(k)`, `(..., n)`: between 0 and 1, of sum k.

    Raises:
        TypeError: If `scores` is not floating point, or `mask` not boolean.
        ValueError: If `tau` is negative or a shape does not fit.

    Example:
        >>> sparse_threshold(jnp.array([1.0, 3.0, 2.0, 2.5])).memberships(2)
        Array([0.  , 1.  , 0.25, 0.75], dtype=float32)

    Reference: Sander et al. (2023), with p = 2. Time: O(n log n); memory: O(n).
    """
    return _threshold("sparse_threshold", uniform, scores, tau, mask)


def midpoint_threshold(
    scores: Array, *, tau: _checks.Tau = 1.0, mask: Array | None = None
) -> Threshold:
    r"""Top-k memberships by a sigmoid around the middle between the k-th and the next score.

    $$w_j = \sigma\Big(\frac{s_j - t}{\tau}\Big), \qquad t = \frac{s_{[k]} + s_{[k+1]}}{2}$$

    For `soft_topk_mask(x, k, relax=midpoint_threshold)`. Nothing is solved for, so that the
    memberships **sum to k only roughly**; the k largest are those above one half. As `tau` tends to
    0 they become the 0/1 mask of `jax.lax.top_k`.

    Args:
        scores: `(..., n)`. Leading dimensions are batch.
        tau: Temperature: a number, a `Blur`, or one per list, `(..., 1)`.
        mask: `(..., n)` boolean, True where the item exists. Absent items have weight 0.

    Returns:
        What has `memberships(k)`, `(..., n)`: between 0 and 1.

    Raises:
        TypeError: If `scores` is not floating point, or `mask` not boolean.
        ValueError: If `tau` is negative or a shape does not fit.

    Example:
        >>> weights = midpoint_threshold(jnp.array([1.0, 4.0, 2.0, 3.0])).memberships(2)
        >>> [f"{weight:.2f}" for weight in weights]
        ['0.18', '0.82', '0.38', '0.62']

    Reference: Zhu et al. (2025). Time: O(n log n), that of a sort; memory: O(n).
    """
    return _threshold("midpoint_threshold", midpoint, scores, tau, mask)


def uniform_blur(ranks: float) -> float:
    """The width of the uniform curve whose standard deviation is that of the logistic one."""
    return 2 * math.pi * logistic(ranks)


def _threshold(
    name: str, weigh: Weigh, scores: Array, tau: _checks.Tau, mask: Array | None
) -> Threshold:
    scores = _checks.scores(f"{name}(scores)", scores)
    mask = _checks.mask(mask, scores.shape)
    of_blur = uniform_blur if weigh is uniform else logistic
    tau = per_list(temperature(tau, scores, mask, of_blur=of_blur), scores)
    return Threshold(weigh, scores, tau, mask)


def per_list(tau: float | Array, scores: Array) -> Array:
    """Temperatures `(..., 1)` in the dtype of the computation."""
    lists = (*scores.shape[:-1], 1)
    return jnp.broadcast_to(jnp.asarray(tau, working(scores.dtype)), lists)


# -- what may stand in a list ----------------------------------------------------------------------


def chosen(scores: Array, mask: Array | None, k: Array) -> Array:
    """The 0/1 mask of the k largest `(..., n)`, ties going to the smallest index."""
    there = jnp.ones(scores.shape, bool) if mask is None else mask
    rank = inverse(descending(scores, mask))
    spoilt = (jnp.isnan(scores) & there).any(-1, keepdims=True)
    hard = ((rank < k[..., None]) & there).astype(working(scores.dtype))
    return jnp.where(spoilt, jnp.nan, hard)


def memberships(weigh: Weigh, scores: Array, tau: Array, mask: Array | None, k: Array) -> Array:
    """Weights of finite items by `weigh`; infinite ones are certain, or share what is left."""
    x = scores.astype(working(scores.dtype))
    if not x.shape[-1]:
        return scores
    there = jnp.ones(x.shape, bool) if mask is None else mask
    fixed, k_ = lax.stop_gradient(x), k[..., None]
    frozen = lax.stop_gradient(tau) == 0
    highest, lowest = there & (fixed == jnp.inf), there & (fixed == -jnp.inf)
    finite = there & jnp.isfinite(fixed)
    high, low, some = (which.sum(-1, keepdims=True) for which in (highest, lowest, finite))
    left = jnp.minimum(jnp.maximum(k_ - high, 0), some)
    open_ = (left > 0) & (left < some)  # what else is none or all of them
    k_open = jnp.where(open_, left, 1).astype(x.dtype)
    soft = weigh(jnp.where(finite, x, 0.0), jnp.where(frozen, 1.0, tau), finite, k_open)
    weights = jnp.where(open_ & finite, soft, ((left > 0) & finite).astype(x.dtype))
    share = jnp.minimum(k_, high) / jnp.maximum(high, 1)
    rest = jnp.minimum(jnp.maximum(k_ - high - some, 0), low) / jnp.maximum(low, 1)
    weights = jnp.where(highest, share, jnp.where(lowest, rest, weights)).astype(x.dtype)
    spoilt = (there & jnp.isnan(fixed)).any(-1, keepdims=True)
    weights = jnp.where(spoilt, jnp.nan, weights)
    return jnp.where(frozen, chosen(fixed, mask, k), weights).astype(scores.dtype)


# -- rules for finite items ------------------------------------------------------------------------


def _solved(density: Callable[[Array], Array]) -> Callable[[Weigh], Weigh]:
    """Gives a solver the gradient that solving the equation implies.

    Weights and density, a function of the weights, are functions of (x - t) / tau, and the sum
    stays k: a change of x is centred by the densities. A change of tau is one of the distances,
    since only their quotient counts.
    """

    def decorate(solve: Weigh) -> Weigh:
        solved = jax.custom_jvp(solve)

        @solved.defjvp
        def _(primals: tuple, tangents: tuple) -> tuple[Array, Array]:
            x, tau, _, _ = primals
            weights = solved(*primals)
            v = density(weights)
            total = jnp.maximum(v.sum(-1, keepdims=True), NONE)

            def centred(change: Array) -> Array:
                return v * (change - (v * change).sum(-1, keepdims=True) / total) / tau

            near = jnp.where(v > 0, x, 0.0)
            near = near - lax.stop_gradient((v * near).sum(-1, keepdims=True) / total)
            return weights, centred(tangents[0]) - centred(near) * tangents[1] / tau

        return solved

    return decorate


def _laplace_density(weights: Array) -> Array:
    return jnp.where(weights < 0.5, weights, 1 - weights)


@_solved(_laplace_density)
def laplace(x: Array, tau: Array, there: Array, k: Array) -> Array:
    """F of the Laplace distribution: the sum is a quadratic function of exp(t / tau)."""
    points = jnp.where(there, x, -jnp.inf)
    ordered = _descending(points)
    kth = _at(ordered, k - 1)
    # In temperatures from the k-th score, which the threshold is near unless nothing mixes.
    y, ordered = (points - kth) / tau, (ordered - kth) / tau
    upper, lower, count = _around(ordered, _laplace_mass(ordered, k) < k)
    above = y >= upper
    outside = jnp.minimum(jnp.where(above, y - upper, lower - y), FAR)
    weight = jnp.where(there, jnp.exp(-outside), 0.0)
    ahead, behind = (
        jnp.log(jnp.maximum(jnp.where(side, weight, 0.0).sum(-1, keepdims=True), NONE))
        for side in (above, ~above)
    )
    gap = jnp.minimum(upper - lower, FAR)
    both = (ahead + behind - gap) / 2
    excess = count - k
    root = jnp.log(jnp.abs(excess) + jnp.hypot(excess, jnp.exp(both)))
    root = jnp.where(excess == 0, both, root)
    after = jnp.where(excess < 0, gap - behind + root, ahead - root)  # from upper down to t
    before = jnp.where(excess < 0, behind - root, gap - ahead + root)  # from t down to lower
    tail = weight * (jnp.exp(-jnp.where(above, after, before)) / 2)
    return jnp.where(above, 1 - tail, tail)


def _laplace_mass(y: Array, k: Array) -> Array:
    """The sum of all weights were the threshold at each item, `(..., n)` in descending order.

    Sums over items above and below one are running sums of exponentials. No threshold is further
    than log n from the k-th item or the next: what lies so far out that it adds nothing there is
    drawn in, and so is a wide gap between the two, so that exponentials stay numbers.
    """
    n = y.shape[-1]
    reach = math.log(n) + 16
    next_ = _at(y, jnp.minimum(k, n - 1))
    y = jnp.where(y < 0, y - jnp.minimum(next_ + 32, 0.0), y)
    y = jnp.clip(y, jnp.maximum(next_, -32.0) - reach, reach)
    weight, other = jnp.exp(y), jnp.exp(-y)
    axis = y.ndim - 1
    behind = lax.cumsum(weight, axis=axis, reverse=True) - weight
    place = jnp.arange(1, n + 1)
    return place + (behind * other - lax.cumsum(other, axis=axis) * weight) / 2


def _uniform_density(weights: Array) -> Array:
    return ((weights > 0) & (weights < 1)).astype(weights.dtype)


@_solved(_uniform_density)
def uniform(x: Array, tau: Array, there: Array, k: Array) -> Array:
    """F of the uniform distribution: between neighbouring kinks, the sum is linear in t."""
    points = jnp.where(there, x, -jnp.inf)
    kth = _at(_descending(points), k - 1)
    # In temperatures from the k-th score, the threshold lies between -1 and 0.
    y = jnp.clip((points - kth) / tau, -2.0, 2.0)
    kinks = _descending(jnp.concatenate([y, y - 1], -1))
    upper, _, _ = _around(kinks, _uniform_mass(y, kinks) < k)
    full = y - 1 >= upper
    rising = (y >= upper) & ~full
    total = jnp.where(rising, y, 0.0).sum(-1, keepdims=True)
    count = jnp.maximum(rising.sum(-1, keepdims=True), 1)
    t = (total + (full.sum(-1, keepdims=True) - k)) / count
    return jnp.where(full, 1.0, jnp.where(rising, jnp.clip(y - t, 0.0, 1.0), 0.0))


def _uniform_mass(y: Array, at: Array) -> Array:
    """The sum of all weights for thresholds `(..., m)`: what exceeds each, less what exceeds 1."""
    y = jnp.sort(y, axis=-1)
    total = lax.cumsum(y, axis=y.ndim - 1, reverse=True)
    total = jnp.pad(total, [*[(0, 0)] * (y.ndim - 1), (0, 1)])
    search = functools.partial(jnp.searchsorted, side="right")
    for _ in range(y.ndim - 1):
        search = jax.vmap(search)

    def beyond(t: Array) -> Array:
        place = search(y, t)
        return jnp.take_along_axis(total, place, -1) - (y.shape[-1] - place) * t

    return beyond(at) - beyond(at + 1)


def midpoint(x: Array, tau: Array, there: Array, k: Array) -> Array:
    """F of the logistic distribution, and a threshold in the middle: nothing is solved."""
    fixed = lax.stop_gradient(x)
    points = _descending(jnp.where(there, fixed, -jnp.inf))

    def score(place: Array) -> Array:
        """The score at a place, tied items having the same part in it."""
        value = _at(points, jnp.minimum(place, points.shape[-1] - 1))
        tied = (there & (fixed == value)).astype(x.dtype)
        shared = (x * tied).sum(-1, keepdims=True) / jnp.maximum(tied.sum(-1, keepdims=True), 1)
        return jnp.where(jnp.isfinite(value), value, 0.0) + (shared - lax.stop_gradient(shared))

    apart = (x - score(k - 1)) / 2 + (x - score(k)) / 2
    far = FAR * lax.stop_gradient(tau)  # clipped first: 1 / tau must meet no infinity
    return jax.nn.sigmoid(jnp.clip(apart, -far, far) / tau)


def _descending(x: Array) -> Array:
    return -jnp.sort(-x, axis=-1)


def _at(x: Array, place: Array) -> Array:
    """The entry `(..., 1)` at a place that is a whole number in floating point."""
    return jnp.take_along_axis(x, place.astype(int), -1)


def _around(points: Array, before: Array) -> tuple[Array, Array, Array]:
    """The points `(..., 1)` on both sides of a threshold, and how many stand before it.

    Where there is none on a side, it is infinite.
    """
    count = before.sum(-1, keepdims=True)
    edge = jnp.full((*points.shape[:-1], 1), jnp.inf, points.dtype)
    edges = jnp.concatenate([edge, points, -edge], -1)
    return (
        jnp.take_along_axis(edges, count, -1),
        jnp.take_along_axis(edges, count + 1, -1),
        count.astype(points.dtype),
    )
