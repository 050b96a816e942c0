"""NeuralSort's answers by the band engine, in their three forms.

Inputs are the columns of `NeuralSortKernel` and a payload, all with their lists in front.
"""

import functools
import math
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
from jax import Array

from .engine import answers
from .engine.accelerated import Answer
from .engine.tiles import HIDDEN

Slow = Callable[..., Array]


def asked(answer: Answer, columns: Any, *payload: Array) -> Array:
    """The answer for columns `(..., n)` and payloads `(..., d, n)` of the same batch."""
    batch = columns.values.shape[:-1]
    lists = math.prod(batch)
    flat = [x.reshape(lists, x.shape[-1]) for x in columns]
    out = answer(*flat, *(x.reshape(lists, *x.shape[-2:]) for x in payload))
    return out.reshape(*batch, *out.shape[1:])


def gaps(values: Array, room: Array, tau: Array) -> Array:
    """The gap before each item in temperatures, hidden between items that do not mix."""
    gap = jnp.maximum(values[:, :-1] - values[:, 1:], 0.0) / tau
    gap = jnp.where(room[:, 1:] == room[:, :-1], gap, HIDDEN)
    return jnp.pad(gap, ((0, 0), (1, 0)), constant_values=HIDDEN)


def _apart(*channels: Array) -> tuple[list[Array], list[Array]]:
    """Channels `(lists, d, n)` without those that hold a NaN or an infinity; and NaN for these.

    Lists are summed side by side, where 0 times NaN would reach the others.
    """
    good = [jnp.isfinite(x).all(-1, keepdims=True) for x in channels]
    clean = [jnp.where(ok, x, 0.0) for ok, x in zip(good, channels, strict=True)]
    return clean, [
        jnp.where(ok, 0.0, jnp.nan).astype(x.dtype) for ok, x in zip(good, clean, strict=True)
    ]


def _spoilt(found: Any, *spoils: Array) -> list[Array]:
    """What was found for each list, NaN for those of which a channel was left out."""
    spoil = jnp.concatenate([x.sum((1, 2))[None] for x in spoils]).sum(0)  # (lists,)
    return [x + spoil.reshape(-1, *[1] * (x.ndim - 1)) for x in found]


@functools.cache
def product(slow: Slow, rows: int) -> Answer:
    """P x."""

    def quick(values: Array, room: Array, _: Any, __: Any, tau: Array, x: Array) -> Any:
        (x,), (spoil,) = _apart(x)
        y, mass, level = answers.product(gaps(values, room, tau), x, rows)
        return y[..., :rows] + spoil, mass, level

    def pull(*args: Array, moved: tuple[bool, ...]) -> list[Array]:
        values, room, _, _, tau, x, y, mass, level, grad = args
        (x, y, grad), spoils = _apart(x, y, grad)
        of_gaps = gaps(values, room, tau)
        found = answers.product_gradient(of_gaps, x, y, mass, level, grad, tempered=moved[4])
        return _wanted(args, _spoilt(found, *spoils), moved)

    return Answer(slow, quick, pull)


@functools.cache
def transposed(slow: Slow) -> Answer:
    """P^T y."""

    def quick(values: Array, room: Array, _: Any, __: Any, tau: Array, y: Array) -> Any:
        (y,), (spoil,) = _apart(y)
        out, *rest = answers.transposed(gaps(values, room, tau), y)
        return out + spoil, *rest

    def pull(*args: Array, moved: tuple[bool, ...]) -> list[Array]:
        values, room, _, _, tau, y, _, mass, level, grad = args
        of_gaps = gaps(values, room, tau)
        (y, grad), spoils = _apart(y, grad)
        found = answers.transposed_gradient(of_gaps, y, mass, level, grad, tempered=moved[4])
        return _wanted(args, _spoilt(found, *spoils), moved)

    return Answer(slow, quick, pull)


@functools.cache
def position_sums(slow: Slow) -> Answer:
    """Column sums, and those of (row - own position)."""

    def quick(values: Array, room: Array, _: Any, __: Any, tau: Array) -> Any:
        return answers.position_sums(gaps(values, room, tau))

    def pull(*args: Array, moved: tuple[bool, ...]) -> list[Array]:
        values, room, _, _, tau, _, mass, level, grad = args
        of_gaps = gaps(values, room, tau)
        (grad,), spoils = _apart(grad)
        found = answers.position_sums_gradient(of_gaps, mass, level, grad, tempered=moved[4])
        return _wanted(args, _spoilt(found, *spoils), moved)

    return Answer(slow, quick, pull)


def _wanted(args: Any, found: Any, moved: tuple[bool, ...]) -> list[Array]:
    """Gradients to the inputs that move, from those to offset, slope, log tau and payload.

    Values are there for their differences, and rooms are numbers: neither has a gradient.
    """
    to_offset, to_slope, heat, *to_payload = found
    tau = args[4]
    every = (jnp.zeros_like(args[0]), args[1], to_slope, to_offset, heat / tau, *to_payload)
    return [x for x, m in zip(every, moved, strict=True) if m]
