"""Scores in sorted order: what every relaxation of a sort starts from."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax

from ..arrays import working
from ..gradients import straight_through


class Ordered(NamedTuple):
    """Lists in descending order, in the dtype of the computation.

    Differences of scores are taken pair by pair where they are needed, so an offset of the scores
    costs no digits, in float32 either. Items that must not mix (absent ones, infinite ones, lists
    with a temperature of 0) stand in different rooms. Ties keep the order of their indices; absent
    items come last.

    Attributes:
        values: `(..., n)`. Sorted scores, with gradient; infinite ones, and all of a list that
            holds a NaN, are at 0.
        perm: `(..., n)`. The item at each position.
        room: `(..., n)`. Items mix with those of the same number.
        tau: `(..., 1)`. Positive, with gradient.
        poison: `(..., 1)`. A factor for results: NaN for lists that hold a NaN, else 1.
    """

    values: Array
    perm: Array
    room: Array
    tau: Array
    poison: Array


def order(scores: Array, tau: Array, mask: Array | None) -> Ordered:
    """Sorts lists `(..., n)` with temperatures `(..., 1)`, of which some may be 0."""
    perm = descending(scores, mask)
    values = jnp.take_along_axis(scores.astype(working(scores.dtype)), perm, -1)
    fixed = lax.stop_gradient(values)
    endless = jnp.isinf(fixed)
    hard, known = lax.stop_gradient(tau) == 0, lax.stop_gradient(tau) >= 0
    wall = (fixed[..., 1:] != fixed[..., :-1]) & (endless[..., 1:] | endless[..., :-1]) | hard
    absent = jnp.zeros(scores.shape, bool)
    if mask is not None:
        absent = ~jnp.take_along_axis(mask, perm, -1)
        wall = wall | absent[..., 1:]
    wall = jnp.broadcast_to(wall, (*scores.shape[:-1], max(scores.shape[-1] - 1, 0)))
    room = jnp.cumsum(jnp.pad(wall, [*[(0, 0)] * (wall.ndim - 1), (1, 0)]), -1)
    spoilt = (jnp.isnan(fixed) & ~absent).any(-1, keepdims=True) | ~known
    # Compiled exponentials may lose a NaN: none goes in, and results are spoilt at the end. Its
    # gradient does go through.
    values = straight_through(jnp.where(spoilt, 0.0, fixed), values)
    return Ordered(
        values=jnp.where(endless | absent, 0.0, values),
        perm=perm,
        room=room[..., : scores.shape[-1]],
        tau=jnp.where(hard | ~known, 1.0, tau),
        poison=jnp.where(spoilt, jnp.nan, 1.0).astype(values.dtype),
    )


def descending(scores: Array, mask: Array | None = None) -> Array:
    """The stable descending sort `(..., n)`, absent items last in index order."""
    scores = lax.stop_gradient(scores)
    if mask is None:
        return jnp.argsort(scores, axis=-1, stable=True, descending=True)
    perm = jnp.argsort(jnp.where(mask, scores, 0), axis=-1, stable=True, descending=True)
    last = jnp.argsort(~jnp.take_along_axis(mask, perm, -1), axis=-1, stable=True)
    perm = jnp.take_along_axis(perm, last, -1)
    present = mask.sum(-1, keepdims=True)
    # Absent items stand where their scores put them among each other: put them in index order.
    index = jnp.argsort(~mask, axis=-1, stable=True)
    return jnp.where(jnp.arange(scores.shape[-1]) < present, perm, index)


def tie_groups(values: Array, room: Array) -> tuple[Array, Array]:
    """First and last position of the run of equal scores around each position, (..., n)."""
    n = values.shape[-1]
    if not n:
        return room, room
    index = jnp.broadcast_to(jnp.arange(n), values.shape)
    values = lax.stop_gradient(values)
    apart = (values[..., 1:] != values[..., :-1]) | (room[..., 1:] != room[..., :-1])
    edge = [(0, 0)] * (values.ndim - 1)
    starts = jnp.pad(apart, [*edge, (1, 0)], constant_values=True)
    ends = jnp.pad(apart, [*edge, (0, 1)], constant_values=True)
    axis = values.ndim - 1
    first = lax.cummax(jnp.where(starts, index, 0), axis=axis)
    last = lax.cummin(jnp.where(ends, index, n - 1), axis=axis, reverse=True)
    return first, last


def share_ties(x: Array, ties: tuple[Array, Array]) -> Array:
    """The mean of x over the run of equal scores around each position, (..., n)."""
    first, last = ties
    until = jnp.cumsum(jnp.pad(x, [*[(0, 0)] * (x.ndim - 1), (1, 0)]), -1)
    total = jnp.take_along_axis(until, last + 1, -1) - jnp.take_along_axis(until, first, -1)
    return jnp.where(first == last, x, total / (last - first + 1))


@jax.custom_jvp
def linked(values: Array, tau: Array) -> Array:
    """Values over a temperature that gets no gradient, but changes the one to the values.

    For functions of the scores over `tau` whose gradient to `tau` is known by itself: second
    derivatives still see how `tau` scales the first.
    """
    return values / tau


@linked.defjvp
def _(primals: tuple[Array, Array], tangents: tuple[Array, Array]) -> tuple[Array, Array]:
    return linked(*primals), tangents[0] / primals[1]
