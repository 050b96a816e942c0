"""Relaxed permutations of scores: dense for short lists, matrix-free for long ones."""

import functools
from collections.abc import Callable
from typing import Any, Protocol

import jax
import jax.numpy as jnp
from jax import Array

from ... import _options
from ..._blur import gaussian
from .. import _checks
from ..arrays import entries, inverse, matmul, take_rows, working
from ..permutation import HardPermutation, RelaxedPermutation
from ..pytrees import pytree
from ..softness import temperature
from . import long_lists
from .engine.blocks import Kernel, Sweep, normalised, weighted_mean
from .long_lists import position_sums, row_entropy, row_log_prob
from .ordering import Ordered, descending, order

# Lists up to this length are multiplied as a matrix.
LONGEST_DENSE = 1024
# Rows that are summed outwards from the diagonal together when a matrix is written.
TILE = 32


class Make(Protocol):
    """Scores `(..., n)`, temperatures `(..., 1)` and a mask to a relaxed permutation."""

    def __call__(self, scores: Array, tau: Array, mask: Array | None, /) -> RelaxedPermutation:
        """Relaxes the descending sort."""
        ...


def relaxed(
    name: str,
    make: Make,
    scores: Array,
    tau: _checks.Tau,
    mask: Array | None,
    *,
    of_blur: Callable[[float], float] = gaussian,
    power: float = 1.0,
) -> RelaxedPermutation:
    """Checks scores, temperature and mask, and makes the operator."""
    scores = _checks.scores(f"{name}(scores)", scores)
    mask = _checks.mask(mask, scores.shape)
    tau = temperature(tau, scores, mask, of_blur=of_blur, power=power)
    if not isinstance(tau, Array) and tau == 0:
        return HardPermutation(descending(scores, mask), scores.shape[-1], scores.dtype)
    lists = (*scores.shape[:-1], 1)  # every leaf has the batch in front, as vmap expects
    return make(scores, jnp.broadcast_to(jnp.asarray(tau, working(scores.dtype)), lists), mask)


@pytree("_scores", "_tau", "_mask", static=("_rows",))
class ScorePermutation(RelaxedPermutation):
    """A relaxed permutation that sorts scores, largest first."""

    def __init__(self, scores: Array, tau: Array, mask: Array | None, rows: int) -> None:
        self._scores, self._tau, self._mask = scores, tau, mask
        self._rows = rows

    @property
    def shape(self) -> tuple[int, ...]:
        """`(..., n, n)`, or `(..., k, n)` after `top(k)`."""
        return (*self._scores.shape[:-1], self._rows, self._scores.shape[-1])

    @property
    def dtype(self) -> jnp.dtype:
        """The dtype of the scores, and of what comes out."""
        return self._scores.dtype

    def _lists(self) -> tuple[Array, Array, Array | None]:
        return self._scores, self._tau, self._mask

    def permutation(self) -> Array:
        """The stable descending sort of the scores, `(..., n)`."""
        return descending(self._scores, self._mask)[..., : self._rows]


def relaxed_by(
    name: str,
    kernel: Kernel,
    scores: Array,
    tau: _checks.Tau,
    mask: Array | None,
    bandwidth: int | None,
    **of_tau: Any,
) -> RelaxedPermutation:
    """The relaxed permutation whose weights a kernel makes."""
    _checks.static(bandwidth=bandwidth)
    bandwidth = _options.bandwidth(bandwidth)

    def make(scores: Array, tau: Array, mask: Array | None) -> RelaxedPermutation:
        rows = scores.shape[-1]
        return KernelPermutation(name, kernel, scores, tau, mask, rows, bandwidth)

    return relaxed(name, make, scores, tau, mask, **of_tau)


@pytree("_scores", "_tau", "_mask", static=("_name", "_kernel", "_rows", "_bandwidth"))
class KernelPermutation(ScorePermutation):
    """The relaxed permutation whose weights depend on sorted scores by a kernel."""

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
        super().__init__(scores, tau, mask, rows)
        self._name, self._kernel, self._bandwidth = name, kernel, bandwidth

    def _kind(self) -> str:
        return f"{self._name}, {'matrix-free' if self._long() else 'dense'}"

    def _long(self) -> bool:
        return self.shape[-1] > LONGEST_DENSE * self._kernel.dense_share

    def _written(self) -> bool:
        return not self._long()

    def _matrix(self) -> Array:
        return _matrix(self._kernel, self._rows, *self._lists())

    def is_unimodal(self) -> Array:
        """True by the paper's theorem, for every list without a NaN."""
        return ~jnp.isnan(order(*self._lists()).poison[..., 0])

    def _top(self, k: int) -> RelaxedPermutation:
        return KernelPermutation(self._name, self._kernel, *self._lists(), k, self._bandwidth)

    def skipped_mass(self) -> Array:
        if not self._long():
            return super().skipped_mass()
        return long_lists.skipped(self._kernel, self._rows, self._bandwidth, *self._lists())

    # -- products, in sorted coordinates ---------------------------------------------------------

    def _product(self, x: Array) -> Array:
        return self._multiply(long_lists.product if self._long() else _dense_product, x)

    def _sort(self, x: Array) -> Array:
        multiply = long_lists.sort if self._long() else _dense_sort
        return self._multiply(multiply, x[..., None])[..., 0]

    def _transposed(self, y: Array) -> Array:
        return self._multiply(long_lists.transposed if self._long() else _dense_transposed, y)

    def _multiply(self, multiply: Any, x: Array) -> Array:
        lists, extra = self._scores.shape[:-1], x.shape[:-2]
        options = self._kernel, self._rows, self._bandwidth
        if _single(lists) and not _single(extra):
            # One P, many payloads: more columns of one payload.
            folded = jnp.moveaxis(x, -2, 0).reshape(x.shape[-2], -1)
            one = multiply(*options, *self._lists(), folded).reshape(-1, *extra, x.shape[-1])
            one = jnp.moveaxis(one, 0, -2)
            return jnp.broadcast_to(one, (*jnp.broadcast_shapes(extra, lists), *one.shape[-2:]))
        return multiply(*options, *self._lists(), x)

    def _rank(self) -> Array:
        rank = long_lists.rank if self._long() else _dense_rank
        return rank(self._kernel, self._bandwidth, *self._lists())

    def _log_prob(self, perm: Array) -> Array:
        log_prob = long_lists.log_prob if self._long() else _dense_log_prob
        return log_prob(self._kernel, self._rows, self._bandwidth, *self._lists(), perm)

    def _entropy(self) -> Array:
        entropy = long_lists.entropy if self._long() else _dense_entropy
        return entropy(self._kernel, self._rows, self._bandwidth, *self._lists())


def _single(batch: tuple[int, ...]) -> bool:
    """Whether a batch is known to hold one list; exported functions may not know its size yet."""
    return all(isinstance(size, int) and size == 1 for size in batch)


# -- short lists -----------------------------------------------------------------------------------


def falls(kernel: Kernel, o: Ordered, rows: int) -> Array:
    """Falls `(..., rows, n)` of all rows from their peaks, in sorted coordinates."""
    n = o.values.shape[-1]
    if not rows or not n:
        return jnp.zeros((*o.values.shape[:-1], rows, n), o.values.dtype)
    columns = kernel.columns(o)
    if n <= TILE:
        return kernel.fall(columns, jnp.zeros((), int), n)[..., :rows, :]
    starts = jnp.arange(0, rows, TILE)
    columns = Sweep(kernel, n, rows, TILE).fill(columns)
    blocks = jax.vmap(lambda at: kernel.fall(columns, at, TILE))(starts)  # (blocks, ..., tile, w)
    rows_of_all = jnp.moveaxis(blocks, 0, -3).reshape(*o.values.shape[:-1], -1, blocks.shape[-1])
    return rows_of_all[..., :rows, :n]


_jit = functools.partial(jax.jit, static_argnums=(0, 1, 2))


def _short(kernel: Kernel, rows: int, *lists: Any) -> tuple[Ordered, Array]:
    o = order(*lists)
    return o, normalised(falls(kernel, o, rows)) * o.poison[..., None]


@functools.partial(jax.jit, static_argnums=(0, 1))
def _matrix(kernel: Kernel, rows: int, *lists: Any) -> Array:
    o, weights = _short(kernel, rows, *lists)
    return jnp.take_along_axis(weights, inverse(o.perm)[..., None, :], -1)


@_jit
def _dense_product(kernel: Kernel, rows: int, _: Any, *args: Any) -> Array:
    *lists, x = args
    o, weights = _short(kernel, rows, *lists)
    return matmul(weights, take_rows(x, o.perm))


@_jit
def _dense_sort(kernel: Kernel, rows: int, _: Any, *args: Any) -> Array:
    *lists, x = args
    o, weights = _short(kernel, rows, *lists)
    x = take_rows(x, o.perm).mT  # (..., d, n)
    return weighted_mean(weights[..., None, :, :], x, x[..., :rows]).mT


@_jit
def _dense_transposed(kernel: Kernel, rows: int, _: Any, *args: Any) -> Array:
    *lists, y = args
    o, weights = _short(kernel, rows, *lists)
    return take_rows(matmul(weights.mT, y), inverse(o.perm))


@functools.partial(jax.jit, static_argnums=(0, 1))
def _dense_rank(kernel: Kernel, _: Any, *lists: Any) -> Array:
    n = lists[0].shape[-1]
    o, weights = _short(kernel, n, *lists)
    total, moment = position_sums(weights, jnp.arange(n), jnp.arange(n))
    ranks = jnp.arange(1, n + 1) + moment / total
    return jnp.take_along_axis(ranks, inverse(o.perm), -1)


@_jit
def _dense_log_prob(kernel: Kernel, rows: int, _: Any, *args: Any) -> Array:
    *lists, perm = args
    o = order(*lists)
    fall = falls(kernel, o, rows)
    return row_log_prob(fall, entries(inverse(o.perm)[..., None, :], perm)) * o.poison


@_jit
def _dense_entropy(kernel: Kernel, rows: int, _: Any, *lists: Any) -> Array:
    o = order(*lists)
    return row_entropy(falls(kernel, o, rows)) * o.poison
