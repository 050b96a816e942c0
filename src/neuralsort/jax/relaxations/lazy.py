"""Relaxed permutations of scores: dense for short lists, matrix-free for long ones."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from ... import _options
from .. import _checks
from ..permutation import (
    HardPermutation,
    RelaxedPermutation,
    entries,
    inverse,
    matmul,
    pytree,
    take_rows,
    working,
)
from .blocks import Kernel, Sweep, normalised
from .ordering import Ordered, descending, order

# Lists up to this length are multiplied as a matrix.
LONGEST_DENSE = 512
# Rows that are summed outwards from the diagonal together when a matrix is written.
TILE = 32


def relaxed(
    name: str,
    kernel: Any,
    scores: Array,
    tau: float | Array,
    mask: Array | None,
    bandwidth: int | None,
) -> RelaxedPermutation:
    """Checks what relaxations of scores share, and makes the operator."""
    scores = _checks.scores(f"{name}(scores)", scores)
    tau = _checks.tau(tau, scores)
    mask = _checks.mask(mask, scores.shape)
    bandwidth = _options.bandwidth(bandwidth)
    if not isinstance(tau, Array) and tau == 0:
        return HardPermutation(descending(scores, mask), scores.shape[-1], scores.dtype)
    lists = (*scores.shape[:-1], 1)  # every leaf has the batch in front, as vmap expects
    tau = jnp.broadcast_to(jnp.asarray(tau, working(scores.dtype)), lists)
    return ScorePermutation(name, kernel, scores, tau, mask, scores.shape[-1], bandwidth)


@pytree("_scores", "_tau", "_mask", static=("_name", "_kernel", "_rows", "_bandwidth"))
class ScorePermutation(RelaxedPermutation):
    """The relaxed permutation that sorts scores, largest first."""

    def __init__(
        self,
        name: str,
        kernel: Kernel,
        scores: Array,
        tau: Array,
        mask: Array | None,
        rows: int,
        bandwidth: int | None,
    ) -> None:
        self._name, self._kernel, self._rows, self._bandwidth = name, kernel, rows, bandwidth
        self._scores, self._tau, self._mask = scores, tau, mask

    @property
    def shape(self) -> tuple[int, ...]:
        """`(..., n, n)`, or `(..., k, n)` after `top(k)`."""
        return (*self._scores.shape[:-1], self._rows, self._scores.shape[-1])

    @property
    def dtype(self) -> jnp.dtype:
        """The dtype of the scores, and of what comes out."""
        return self._scores.dtype

    def _kind(self) -> str:
        return f"{self._name}, {'matrix-free' if self._long() else 'dense'}"

    def _long(self) -> bool:
        return self.shape[-1] > LONGEST_DENSE

    def _lists(self) -> tuple[Array, Array, Array | None]:
        return self._scores, self._tau, self._mask

    def _matrix(self) -> Array:
        return _matrix(self._kernel, self._rows, *self._lists())

    def permutation(self) -> Array:
        """The stable descending sort of the scores, `(..., n)`."""
        return descending(self._scores, self._mask)[..., : self._rows]

    def is_unimodal(self) -> Array:
        """True by the paper's theorem, for every list without a NaN."""
        return ~jnp.isnan(order(*self._lists()).poison[..., 0])

    def _top(self, k: int) -> RelaxedPermutation:
        lists = self._lists()
        return type(self)(self._name, self._kernel, *lists, k, self._bandwidth)

    def sort(self, x: Array) -> Array:
        """Values in the order of P; its hard counterpart is `x[permutation]`.

        Args:
            x: `(..., n)`. One value per item; `P.sort(scores)` is the soft sort.

        Returns:
            `(..., n)`, the value at each position. Items that are absent or infinitely high or
            low take no part in any other place, so whatever `x` holds for them stays there.
        """
        x = _checks.list_values(x, self.shape[-1], "P.sort(x)")
        apart = jnp.isinf(self._scores)
        if self._mask is not None:
            apart = apart | ~self._mask
        alone = apart & ~jnp.isfinite(x)
        soft = super().sort(jnp.where(alone, 0.0, x))
        perm = jnp.broadcast_to(self.permutation(), soft.shape)
        own = jnp.take_along_axis(jnp.broadcast_to(x, alone.shape), perm, -1).astype(soft.dtype)
        return jnp.where(jnp.take_along_axis(alone, perm, -1), own, soft)

    def skipped_mass(self) -> Array:
        """Bound on the mass of each row outside the bandwidth, `(..., n)`; 0 without one.

        Products take this as a test: where it exceeds 1e-7 (1e-14 in float64) in any row, they
        visit every item, and skip nothing.
        """
        if not self._long():
            return jnp.zeros(self.shape[:-1], working(self.dtype))
        return _skipped(self._kernel, self._rows, self._bandwidth, *self._lists())

    # -- products, in sorted coordinates ---------------------------------------------------------

    def _product(self, x: Array) -> Array:
        return self._multiply(_product if self._long() else _dense_product, x)

    def _transposed(self, y: Array) -> Array:
        return self._multiply(_transposed if self._long() else _dense_transposed, y)

    def _multiply(self, multiply: Any, x: Array) -> Array:
        lists, extra = self._scores.shape[:-1], x.shape[:-2]
        options = self._kernel, self._rows, self._bandwidth
        if np.prod(lists, dtype=int) == 1 and np.prod(extra, dtype=int) != 1:
            # One P, many payloads: more columns of one payload.
            folded = jnp.moveaxis(x, -2, 0).reshape(x.shape[-2], -1)
            one = multiply(*options, *self._lists(), folded).reshape(-1, *extra, x.shape[-1])
            one = jnp.moveaxis(one, 0, -2)
            return jnp.broadcast_to(one, (*np.broadcast_shapes(extra, lists), *one.shape[-2:]))
        return multiply(*options, *self._lists(), x)

    def _rank(self) -> Array:
        rank = _rank if self._long() else _dense_rank
        return rank(self._kernel, self._bandwidth, *self._lists())

    def _log_prob(self, perm: Array) -> Array:
        log_prob = _log_prob if self._long() else _dense_log_prob
        return log_prob(self._kernel, self._rows, *self._lists(), perm)

    def _entropy(self) -> Array:
        entropy = _entropy if self._long() else _dense_entropy
        return entropy(self._kernel, self._rows, self._bandwidth, *self._lists())


# -- short lists -----------------------------------------------------------------------------------


def falls(kernel: Any, o: Ordered, rows: int) -> Array:
    """Falls `(..., rows, n)` of all rows from their peaks, in sorted coordinates."""
    n = o.values.shape[-1]
    columns = kernel.columns(o)
    if n <= TILE:
        return kernel.fall(columns, jnp.zeros((), int), n)[..., :rows, :]
    starts = jnp.arange(0, rows, TILE)
    sweep = Sweep(kernel, n, rows, TILE, None)
    columns = sweep._fill(columns)
    blocks = jax.vmap(lambda at: kernel.fall(columns, at, TILE))(starts)  # (blocks, ..., tile, w)
    rows_of_all = jnp.moveaxis(blocks, 0, -3).reshape(*o.values.shape[:-1], -1, blocks.shape[-1])
    return rows_of_all[..., :rows, :n]


_jit = functools.partial(jax.jit, static_argnums=(0, 1, 2))


def _short(kernel: Any, rows: int, *lists: Any) -> tuple[Ordered, Array]:
    o = order(*lists)
    if not rows or not o.values.shape[-1]:
        return o, jnp.zeros((*o.values.shape[:-1], rows, o.values.shape[-1]), o.values.dtype)
    return o, normalised(falls(kernel, o, rows)) * o.poison[..., None]


@functools.partial(jax.jit, static_argnums=(0, 1))
def _matrix(kernel: Any, rows: int, *lists: Any) -> Array:
    o, weights = _short(kernel, rows, *lists)
    return jnp.take_along_axis(weights, inverse(o.perm)[..., None, :], -1)


@_jit
def _dense_product(kernel: Any, rows: int, _: Any, *args: Any) -> Array:
    *lists, x = args
    o, weights = _short(kernel, rows, *lists)
    return matmul(weights, take_rows(x, o.perm))


@_jit
def _dense_transposed(kernel: Any, rows: int, _: Any, *args: Any) -> Array:
    *lists, y = args
    o, weights = _short(kernel, rows, *lists)
    return take_rows(matmul(weights.mT, y), inverse(o.perm))


@functools.partial(jax.jit, static_argnums=(0, 1))
def _dense_rank(kernel: Any, _: Any, *lists: Any) -> Array:
    n = lists[0].shape[-1]
    o, weights = _short(kernel, n, *lists)
    total, moment = _position_sums(weights, jnp.arange(n), jnp.arange(n))
    ranks = jnp.arange(1, n + 1) + moment / total
    return jnp.take_along_axis(ranks, inverse(o.perm), -1)


@functools.partial(jax.jit, static_argnums=(0, 1))
def _dense_log_prob(kernel: Any, rows: int, *args: Any) -> Array:
    *lists, perm = args
    o = order(*lists)
    fall = falls(kernel, o, rows)
    return _row_log_prob(fall, entries(inverse(o.perm)[..., None, :], perm)) * o.poison


@_jit
def _dense_entropy(kernel: Any, rows: int, _: Any, *lists: Any) -> Array:
    o = order(*lists)
    return _row_entropy(falls(kernel, o, rows)) * o.poison


def _row_log_prob(fall: Array, place: Array) -> Array:
    """Log-weight of the item at each row's place, `(..., rows)`."""
    return -entries(fall, place) - jnp.log(jnp.exp(-fall).sum(-1))


def _position_sums(weights: Array, rows: Array, columns: Array) -> Array:
    """`(2, ..., n)`: column sums, and column sums of the distance from the item's own position."""
    lever = (rows[:, None] - columns).astype(weights.dtype)
    return jnp.stack([weights.sum(-2), (weights * lever).sum(-2)])


def _row_entropy(fall: Array) -> Array:
    weights = jnp.exp(-fall)
    norm = weights.sum(-1)
    return jnp.log(norm) + (weights * jnp.where(jnp.isinf(fall), 0.0, fall)).sum(-1) / norm


# -- long lists ------------------------------------------------------------------------------------


def _planned(kernel: Any, rows: int, bandwidth: int | None, batch: Any, lists: Any) -> Any:
    """Lists in order, for a batch at least that large; their columns; and the plan."""
    scores, tau, mask = lists
    batch = np.broadcast_shapes(scores.shape[:-1], batch)
    n = scores.shape[-1]
    o = order(scores, tau, mask)
    o = Ordered(*(jnp.broadcast_to(x, (*batch, x.shape[-1])) for x in o))
    return o, kernel.columns(o), Sweep.of(kernel, batch, n, rows, bandwidth)


@_jit
def _product(kernel: Any, rows: int, bandwidth: int | None, *args: Any) -> Array:
    *lists, x = args
    o, columns, sweep = _planned(kernel, rows, bandwidth, x.shape[:-2], lists)

    def each(fall: Array, x: Array, y: Array, index: Array) -> Array:
        weights = jnp.exp(-fall)
        return matmul(x, weights.mT) / weights.sum(-1)[..., None, :]

    x = take_rows(x, o.perm).mT  # (..., d, n)
    out = sweep.rows_of(each, columns, x, jnp.zeros((rows,), x.dtype))
    return (out * o.poison[..., None]).mT


@_jit
def _transposed(kernel: Any, rows: int, bandwidth: int | None, *args: Any) -> Array:
    *lists, y = args
    o, columns, sweep = _planned(kernel, rows, bandwidth, y.shape[:-2], lists)

    def each(fall: Array, y: Array, rows: Array, index: Array) -> Array:
        return matmul(y, normalised(fall))

    y = jnp.broadcast_to(y, (*o.tau.shape[:-1], *y.shape[-2:])).mT
    out = sweep.columns_of(each, columns, y)
    return take_rows((out * o.poison[..., None]).mT, inverse(o.perm))


@functools.partial(jax.jit, static_argnums=(0, 1))
def _rank(kernel: Any, bandwidth: int | None, *lists: Any) -> Array:
    n = lists[0].shape[-1]
    o, columns, sweep = _planned(kernel, n, bandwidth, (), lists)

    def each(fall: Array, y: Array, rows: Array, index: Array) -> Array:
        return _position_sums(normalised(fall) * y[..., None], rows, index)

    total, moment = sweep.columns_of(each, columns, jnp.ones((n,), o.values.dtype))
    ranks = (jnp.arange(1, n + 1) + moment / total) * o.poison
    return jnp.take_along_axis(ranks, inverse(o.perm), -1)


@functools.partial(jax.jit, static_argnums=(0, 1))
def _log_prob(kernel: Any, rows: int, *args: Any) -> Array:
    *lists, perm = args
    o, columns, sweep = _planned(kernel, rows, None, perm.shape[:-1], lists)

    def each(fall: Array, x: Array, y: Array, index: Array) -> Array:
        return _row_log_prob(fall, y)

    place = entries(inverse(o.perm)[..., None, :], perm)
    return sweep.rows_of(each, columns, jnp.zeros(sweep.n), place) * o.poison


@_jit
def _entropy(kernel: Any, rows: int, bandwidth: int | None, *lists: Any) -> Array:
    o, columns, sweep = _planned(kernel, rows, bandwidth, (), lists)

    def each(fall: Array, x: Array, y: Array, index: Array) -> Array:
        return _row_entropy(fall)

    return sweep.rows_of(each, columns, jnp.zeros(sweep.n), jnp.zeros(rows)) * o.poison


@_jit
def _skipped(kernel: Any, rows: int, bandwidth: int | None, *lists: Any) -> Array:
    o, columns, sweep = _planned(kernel, rows, bandwidth, (), lists)
    by_block = jnp.moveaxis(sweep.skipped(columns), 0, -1)
    return jnp.repeat(by_block, sweep.size, axis=-1)[..., :rows] * o.poison
