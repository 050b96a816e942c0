r"""Sums over all subsets of k items, in logarithms: one item at a time, O(n k).

With weights $w_j = e^{l_j}$, the sum over subsets of size r of the first j items obeys

$$e_r(j) = e_r(j - 1) + w_j\, e_{r - 1}(j - 1).$$

An item may be certain, in or out, at a logit of plus or minus infinity. Its impossible branch
weighs nothing: a finite number, far below every other, stands for the logarithm of 0, so that
derivatives stay numbers.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax

from .rankings import largest


class Branches(NamedTuple):
    """Log-weights `(..., n)` of taking each item, and of leaving it."""

    taken: Array
    left: Array


def nothing(dtype: jnp.dtype) -> float:
    """The logarithm of 0."""
    return float(jnp.finfo(dtype).min) / 64


def branches(logits: Array) -> Branches:
    """What it weighs to take or leave each item; the largest finite logit counts as 0."""
    always, never = logits == jnp.inf, logits == -jnp.inf
    certain, low = always | never, nothing(logits.dtype)
    logits = jnp.where(certain, 0.0, logits) - largest(logits)  # an offset costs no digits
    return Branches(
        taken=jnp.where(always, 0.0, jnp.where(never, low, logits)),
        left=jnp.where(always, low, jnp.zeros_like(logits)),
    )


def log_sums(weights: Branches, k: int) -> Array:
    """`(n + 1, ..., k + 1)` for the first 0, 1, ... items: log-sums over subsets of each size."""
    low = nothing(weights.taken.dtype)
    empty = jnp.full((*weights.taken.shape[:-1], k + 1), low, weights.taken.dtype)
    empty = empty.at[..., 0].set(0.0)

    def add(before: Array, item: Branches) -> tuple[Array, Array]:
        after = jnp.maximum(_log_add(*_either(before, item)), low)
        return after, after

    found = lax.scan(add, empty, _by_item(weights))[1]
    return jnp.concatenate([empty[None], found])


def log_odds(sums: Array, weights: Branches) -> Array:
    """`(n, ..., k + 1)`: of each item's being in a random subset of it and those before it."""
    left, taken = jax.vmap(_either)(sums[:-1], _by_item(weights))
    return taken - left


def _by_item(weights: Branches) -> Branches:
    return Branches(*(jnp.moveaxis(x, -1, 0) for x in weights))


def _either(before: Array, item: Branches) -> tuple[Array, Array]:
    """Log-sums over the subsets without an item and over those with it, for each size."""
    low = nothing(before.dtype)
    smaller = _shifted(before, low)
    return before + item.left[..., None], smaller + item.taken[..., None]


def _shifted(x: Array, first: float) -> Array:
    return jnp.pad(x[..., :-1], [*[(0, 0)] * (x.ndim - 1), (1, 0)], constant_values=first)


def mean_cost(odds: Array, taken: Array, left: Array, nothing: Array) -> Array:
    """The mean over random subsets of what it costs to take or to leave each item, `(..., k + 1)`.

    Odds and costs `(n, ..., k + 1)` depend on how many items are still to be chosen; with no item
    it costs nothing, zeros `(..., k + 1)`. Where costs are not negative, no terms cancel.
    """

    def add(mean: Array, item: tuple[Array, Array, Array]) -> tuple[Array, None]:
        d, taken, left = item
        smaller = _shifted(mean, 0.0)
        mean = jax.nn.sigmoid(d) * (smaller + taken) + jax.nn.sigmoid(-d) * (mean + left)
        return mean, None

    return lax.scan(add, nothing, (odds, taken, left))[0]


def log_inclusion(weights: Branches, k: int) -> tuple[Array, Array]:
    """Log-sums over the subsets with each item `(..., n)`, and over all of them `(...)`.

    From both ends: those with item j join a subset of the items before it to one of those after.
    """
    before = log_sums(weights, k)
    total = before[-1][..., k]
    if not weights.taken.shape[-1] or not k:
        return jnp.full_like(weights.taken, nothing(weights.taken.dtype)), total
    after = log_sums(Branches(*(jnp.flip(x, -1) for x in weights)), k)[::-1]
    both = before[:-1, ..., :k] + jnp.flip(after[1:, ..., :k], -1)  # sizes that add up to k - 1
    return jnp.moveaxis(jax.nn.logsumexp(both, -1), 0, -1) + weights.taken, total


def _log_add(a: Array, b: Array) -> Array:
    """`jnp.logaddexp`, with second derivatives that are numbers however far apart a and b are."""
    first = a >= b
    high, low = jnp.where(first, a, b), jnp.where(first, b, a)
    return high + jax.nn.softplus(low - high)
