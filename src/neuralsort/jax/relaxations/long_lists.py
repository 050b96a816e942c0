"""Products of long lists: matrix-free where there is a way, else in blocks of rows."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array, lax

from ..arrays import entries, inverse, matmul, take_rows
from . import banded
from .engine.blocks import SKIPPED, Kernel, Plan, normalised, weighted_mean
from .ordering import Ordered, order

_jit = functools.partial(jax.jit, static_argnums=(0, 1, 2))


def row_log_prob(fall: Array, place: Array) -> Array:
    """Log-weight of the item at each row's place, `(..., rows)`."""
    return -entries(fall, place) - jnp.log(jnp.exp(-fall).sum(-1))


def position_sums(weights: Array, rows: Array, columns: Array) -> Array:
    """`(2, ..., n)`: column sums, and column sums of the distance from the item's own position."""
    lever = (rows[:, None] - columns).astype(weights.dtype)
    return jnp.stack([weights.sum(-2), (weights * lever).sum(-2)])


def row_entropy(fall: Array) -> Array:
    """Entropies of rows, `(..., rows)`, in nats."""
    weights = jnp.exp(-fall)
    norm = weights.sum(-1)
    return jnp.log(norm) + (weights * jnp.where(jnp.isinf(fall), 0.0, fall)).sum(-1) / norm


def _planned(kernel: Kernel, rows: int, bandwidth: int | None, batch: Any, lists: Any) -> Any:
    """Lists in order, for a batch at least that large; their columns; and the plan."""
    scores, tau, mask = lists
    batch = jnp.broadcast_shapes(scores.shape[:-1], batch)
    n = scores.shape[-1]
    o = order(scores, tau, mask)
    o = Ordered(*(jnp.broadcast_to(x, (*batch, x.shape[-1])) for x in o))
    return o, kernel.columns(o), Plan.of(kernel, batch, n, rows, bandwidth)


def _is_banded(kernel: Kernel, bandwidth: int | None, batch: tuple[Any, ...]) -> bool:
    """Whether the band engine answers; exported functions may not know their batch yet."""
    known = all(isinstance(size, int) and size > 0 for size in batch)
    return kernel.banded and bandwidth is None and known


# -- products --------------------------------------------------------------------------------------


@functools.cache
def _product_of(kernel: Kernel, rows: int, bandwidth: int | None) -> Callable[..., Array]:
    """P x by blocks, from columns `(..., n)` and x `(..., d, n)`."""

    def each(fall: Array, _: Array, x: Array) -> Array:
        weights = jnp.exp(-fall)
        return matmul(x, weights.mT) / weights.sum(-1)[..., None, :]

    def by_blocks(*args: Array) -> Array:
        columns, x = kernel.packed(*args[:-1]), args[-1]
        batch, n = columns.values.shape[:-1], columns.values.shape[-1]
        return Plan.of(kernel, batch, n, rows, bandwidth).rows_of(each, columns, x)

    return by_blocks


def _multiplied(kernel: Kernel, rows: int, bandwidth: int | None, columns: Any, x: Array) -> Array:
    by_blocks = _product_of(kernel, rows, bandwidth)
    if _is_banded(kernel, bandwidth, columns.values.shape[:-1]):
        return banded.asked(banded.product(by_blocks, rows), columns, x)
    return by_blocks(*columns, x)


@_jit
def product(kernel: Kernel, rows: int, bandwidth: int | None, *args: Any) -> Array:
    """`P @ x`."""
    *lists, x = args
    o, columns, _ = _planned(kernel, rows, bandwidth, x.shape[:-2], lists)
    x = take_rows(x, o.perm).mT  # (..., d, n)
    out = _multiplied(kernel, rows, bandwidth, columns, x)
    return (out * o.poison[..., None]).mT


@_jit
def sort(kernel: Kernel, rows: int, bandwidth: int | None, *args: Any) -> Array:
    """`P @ x` for values that may have an offset, or be infinite for items that are apart."""
    *lists, x = args
    o, columns, plan = _planned(kernel, rows, bandwidth, x.shape[:-2], lists)
    x = take_rows(x, o.perm).mT  # (..., d, n)

    def each(fall: Array, _: Array, x: Array, own: Array) -> Array:
        return weighted_mean(normalised(fall)[..., None, :, :], x, own)

    if not _is_banded(kernel, bandwidth, o.values.shape[:-1]):
        out = plan.rows_of(each, columns, x, x[..., :rows])
        return (out * o.poison[..., None]).mT

    def multiplied(x: Array) -> Array:
        return _multiplied(kernel, rows, bandwidth, columns, x)

    tame = jnp.isfinite(x)

    def beyond(x: Array) -> Array:
        """Values that are not finite, where they have weight."""
        kinds = [(x == jnp.inf), (x == -jnp.inf), jnp.isnan(x)]
        marks = multiplied(jnp.concatenate(kinds, -2).astype(x.dtype)) != 0
        above, below, neither = jnp.split(marks, 3, -2)
        both = jnp.where(above, jnp.inf, 0.0) + jnp.where(below, -jnp.inf, 0.0)
        return jnp.where(neither, jnp.nan, both).astype(x.dtype)

    fixed = lax.stop_gradient(x)
    more = lax.cond(tame.all(), lambda: jnp.zeros_like(fixed[..., :rows]), lambda: beyond(fixed))
    out = multiplied(jnp.where(tame, x, 0.0)) + lax.stop_gradient(more)
    return (out * o.poison[..., None]).mT


@functools.cache
def _transposed_of(kernel: Kernel, rows: int, bandwidth: int | None) -> Callable[..., Array]:
    """P^T y by blocks, from columns `(..., n)` and y `(..., d, rows)`."""

    def each(fall: Array, index: Array, rows: Array, y: Array) -> Array:
        return matmul(y, normalised(fall))

    def by_blocks(*args: Array) -> Array:
        columns, y = kernel.packed(*args[:-1]), args[-1]
        batch, n = columns.values.shape[:-1], columns.values.shape[-1]
        return Plan.of(kernel, batch, n, rows, bandwidth).columns_of(each, columns, y)

    return by_blocks


@_jit
def transposed(kernel: Kernel, rows: int, bandwidth: int | None, *args: Any) -> Array:
    """`P.mT @ y`."""
    *lists, y = args
    o, columns, _ = _planned(kernel, rows, bandwidth, y.shape[:-2], lists)
    y = jnp.broadcast_to(y, (*o.tau.shape[:-1], *y.shape[-2:])).mT
    by_blocks = _transposed_of(kernel, rows, bandwidth)
    if _is_banded(kernel, bandwidth, o.tau.shape[:-1]):
        out = banded.asked(banded.transposed(by_blocks), columns, y)
    else:
        out = by_blocks(*columns, y)
    return take_rows((out * o.poison[..., None]).mT, inverse(o.perm))


@functools.cache
def _position_sums_of(kernel: Kernel, bandwidth: int | None) -> Callable[..., Array]:
    """Column sums and those of (row - own position) by blocks, `(..., 2, n)`."""

    def each(fall: Array, index: Array, rows: Array, y: Array) -> Array:
        return position_sums(normalised(fall) * y[..., None], rows, index)

    def by_blocks(*args: Array) -> Array:
        columns = kernel.packed(*args)
        batch, n = columns.values.shape[:-1], columns.values.shape[-1]
        plan = Plan.of(kernel, batch, n, n, bandwidth)
        ones = jnp.ones((n,), columns.values.dtype)
        return jnp.moveaxis(plan.columns_of(each, columns, ones), 0, -2)

    return by_blocks


@functools.partial(jax.jit, static_argnums=(0, 1))
def rank(kernel: Kernel, bandwidth: int | None, *lists: Any) -> Array:
    """`P.rank()`."""
    n = lists[0].shape[-1]
    o, columns, _ = _planned(kernel, n, bandwidth, (), lists)
    by_blocks = _position_sums_of(kernel, bandwidth)
    if _is_banded(kernel, bandwidth, o.tau.shape[:-1]):
        sums = banded.asked(banded.position_sums(by_blocks), columns)
    else:
        sums = by_blocks(*columns)
    total, moment = sums[..., 0, :], sums[..., 1, :]
    ranks = (jnp.arange(1, n + 1) + moment / total) * o.poison
    return jnp.take_along_axis(ranks, inverse(o.perm), -1)


@_jit
def log_prob(kernel: Kernel, rows: int, bandwidth: int | None, *args: Any) -> Array:
    """`P.log_prob(perm)`, in blocks of rows."""
    *lists, perm = args
    o, columns, plan = _planned(kernel, rows, bandwidth, perm.shape[:-1], lists)

    def each(fall: Array, index: Array, place: Array) -> Array:
        return row_log_prob(fall, place - index[0])

    place = entries(inverse(o.perm)[..., None, :], perm)
    return plan.rows_of(each, columns, by_row=place, places=place) * o.poison


@_jit
def entropy(kernel: Kernel, rows: int, bandwidth: int | None, *lists: Any) -> Array:
    """`P.entropy()`, in blocks of rows."""
    o, columns, plan = _planned(kernel, rows, bandwidth, (), lists)

    def each(fall: Array, _: Array) -> Array:
        return row_entropy(fall)

    return plan.rows_of(each, columns) * o.poison


@_jit
def skipped(kernel: Kernel, rows: int, bandwidth: int | None, *lists: Any) -> Array:
    """A bound on what products leave out of each row's mass."""
    o, columns, plan = _planned(kernel, rows, bandwidth, (), lists)
    if _is_banded(kernel, bandwidth, o.tau.shape[:-1]):
        most = jnp.full((*o.tau.shape[:-1], rows), SKIPPED[str(o.tau.dtype)], o.tau.dtype)
        return most * o.poison
    return plan.skipped(columns) * o.poison
