"""What a relaxation does first with the `tau` it is given: one temperature per list."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import Array, lax

from .._blur import Blur, gaussian
from . import _checks
from .arrays import working

TRIED = 12
"""Temperatures that are tried where the right one has to be looked for."""

OCTAVES = 9.0
"""How far on either side of a first guess it is looked for."""

# A blur has no leaves: it passes through transforms as it is.
jax.tree_util.register_static(Blur)


def temperature(
    tau: _checks.Tau,
    scores: Array,
    mask: Array | None,
    *,
    of_blur: Callable[[float], float] = gaussian,
    power: float = 1.0,
) -> float | Array:
    """The temperature of checked lists: a number, or an array that is NaN where it is negative.

    Args:
        tau: What the user gave.
        scores: `(..., n)`.
        mask: `(..., n)`, or None.
        of_blur: From ranks to a temperature in units of the gap to that power.
        power: The power of the scores' unit that the temperature has.
    """
    tau = _checks.tau(tau, scores)
    if isinstance(tau, Blur):
        return at_gap(scores, mask, of_blur(tau.ranks), power)
    return spoilt_if_negative(tau)


def spoilt_if_negative(tau: float | Array) -> float | Array:
    """NaN in place of negative temperatures, where the rules could not look at them."""
    return jnp.where(tau < 0, jnp.nan, tau) if isinstance(tau, Array) else tau


def at_gap(scores: Array, mask: Array | None, factor: float, power: float = 1.0) -> Array:
    """So many times the mean gap in the middle half of each list, `(..., 1)`, without gradient.

    It is 1 for lists of fewer than two finite items, 0 where the middle half of a list is tied, and
    never infinite.
    """
    scores = lax.stop_gradient(scores).astype(working(scores.dtype))
    there = jnp.isfinite(scores) if mask is None else jnp.isfinite(scores) & mask
    last = there.sum(-1, keepdims=True) - 1
    if scores.shape[-1] == 0:
        return jnp.ones(last.shape, scores.dtype)
    ordered = jnp.sort(jnp.where(there, scores, jnp.inf), -1)
    low = jnp.maximum(last, 0) // 4
    high = jnp.maximum(last, 0) - low
    # In halves, since a difference may overflow.
    half = jnp.take_along_axis(ordered, high, -1) / 2 - jnp.take_along_axis(ordered, low, -1) / 2
    half = half / jnp.maximum(high - low, 1).astype(scores.dtype)
    tau = factor * (2 * half if power == 1 else (2 * half) ** power)
    tau = jnp.where(last < 1, 1.0, jnp.minimum(tau, jnp.finfo(tau.dtype).max))
    unknown = jnp.isnan(scores) if mask is None else jnp.isnan(scores) & mask
    return jnp.where(unknown.any(-1, keepdims=True), jnp.nan, tau).astype(scores.dtype)


# -- methods whose rows have no known shape --------------------------------------------------------


def looked_for(
    ranks: float, guess: Array, entropy: Callable[[Array], Array], mask: Array | None
) -> Array:
    """The temperature `(..., 1)` at which as many items share a place as at that blur.

    On the mean over the rows of a list, against a list of equal gaps and as many items.

    Args:
        ranks: The blur.
        guess: `(..., 1)`. Where to look; lists where it is 0 keep it.
        entropy: From temperatures `(..., 1)` to entropies of rows, `(..., n)`.
        mask: `(..., n)`, or None.
    """
    rows = jax.eval_shape(entropy, guess).shape
    counted = jnp.ones(rows, bool)
    if mask is not None:  # the first m rows, for m items present
        counted = jnp.broadcast_to(jnp.arange(rows[-1]) < mask.sum(-1, keepdims=True), rows)
    wanted = _mean_items(_gaussian_entropy(ranks, counted), counted)

    def halve(_: int, ends: tuple[Array, Array]) -> tuple[Array, Array]:
        low, high = ends
        tau = jnp.sqrt(low) * jnp.sqrt(high)
        softer = _mean_items(entropy(tau), counted) < wanted
        return jnp.where(softer, tau, low), jnp.where(softer, high, tau)

    guess = lax.stop_gradient(guess)
    low, high = lax.fori_loop(0, TRIED, halve, (guess * 2**-OCTAVES, guess * 2**OCTAVES))
    return lax.stop_gradient(jnp.sqrt(low) * jnp.sqrt(high))


def _mean_items(entropy: Array, counted: Array) -> Array:
    """Items that share a place, effectively: the mean over rows, `(..., 1)`."""
    items = jnp.where(counted, jnp.exp(entropy), 0.0).sum(-1, keepdims=True)
    return items / jnp.maximum(counted.sum(-1, keepdims=True), 1)


def _gaussian_entropy(ranks: float, counted: Array) -> Array:
    """Entropies of the rows of NeuralSort on lists of equal gaps and so many items, `(..., n)`."""
    place = jnp.arange(counted.shape[-1], dtype=jnp.float32)
    fall = (place[:, None] - place) ** 2 / (2 * ranks**2)
    log = jax.nn.log_softmax(jnp.where(counted[..., None, :], -fall, -jnp.inf), -1)
    return row_entropy(log)


def row_entropy(log: Array) -> Array:
    """Entropies in nats of rows that are known by the logarithms of their weights, `(..., n)`."""
    return -(jnp.exp(log) * jnp.where(jnp.isinf(log), 0.0, log)).sum(-1)
