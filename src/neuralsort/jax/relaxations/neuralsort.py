"""NeuralSort: the paper's relaxation of sorting to unimodal row-stochastic matrices."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax

from .. import _checks
from ..permutation import RelaxedPermutation
from .engine.blocks import cut, per_item
from .ordering import Ordered, linked, tie_groups
from .scored import relaxed_by

# Scores farther apart than this many temperatures are as good as this far; times n it is a number.
FAR = 1e30


def neuralsort(
    scores: Array,
    *,
    tau: _checks.Tau = 1.0,
    mask: Array | None = None,
    bandwidth: int | None = None,
) -> RelaxedPermutation:
    r"""Relaxes the permutation that sorts `scores` in descending order.

    $$\widehat P_{i,:} = \operatorname{softmax}\big[\big((n+1-2i)\,s - A_s\mathbf 1\big)/\tau\big],
      \qquad (A_s)_{jk} = |s_j - s_k|$$

    Rows sum to one, and the row-wise argmax is the stable descending sort, in every dtype and at
    every length: logits are sums of gaps of one sign, relative to the peak of their row. As `tau`
    tends to 0 this becomes the hard permutation matrix of `jnp.argsort(scores, descending=True)`.

    Args:
        scores: `(..., n)`. Values to sort; leading dimensions are batch.
        tau: Temperature: a number, a `Blur`, or an array that broadcasts against `scores` with a
            last dimension of 1; it may have gradients. In units of the scores: smaller is harder, 0
            is the hard permutation.
        mask: `(..., n)` boolean, True where the item exists. Absent items take no part; the last
            rows place them in index order.
        bandwidth: Ranks to either side beyond which rows of long lists are expected to hold no
            weight; then products visit no others. The expectation is tested whenever a product
            runs: where more than 1e-7 of a row's mass (1e-14 in float64) could lie outside, every
            item is visited instead. `P.skipped_mass()` reports it. Products are quick without.

    Returns:
        The relaxed permutation `(..., n, n)`. Row `i` weighs the items for position `i`, largest
        first.

    Raises:
        TypeError: If `scores` is not floating point, or `mask` not boolean.
        ValueError: If `tau` is negative or a shape does not fit.

    Example:
        >>> scores = jnp.array([1.0, 3.0, 2.0])
        >>> P = neuralsort(scores, tau=0.1)
        >>> P.sort(scores).round(2)
        Array([3., 2., 1.], dtype=float32)
        >>> P.permutation()
        Array([1, 2, 0], dtype=int32)

    Reference: Grover et al. (2019), Eq. 5. Time and memory: O(n^2) per list up to 256 items, then
    O(n log n) time and O(n) memory for products, ranks and their gradients; entropies, `log_prob`
    and second derivatives take O(n^2) time.
    """
    return relaxed_by("neuralsort", NeuralSortKernel(), scores, tau, mask, bandwidth)


class Columns(NamedTuple):
    """Items in sorted order, `(..., n)`, or a window of them.

    Attributes:
        values: Scores; for their values.
        room: Which items mix.
        slope: Scores in units of the temperature; for their gradient, as the next.
        offset: What NeuralSort's logit has beside its slope, from the place of the item.
        tau: `(..., 1)`.
    """

    values: Array
    room: Array
    slope: Array
    offset: Array
    tau: Array


@dataclass(frozen=True)
class NeuralSortKernel:
    """Log-weights that fall by the gaps between, each times twice its rank distance."""

    banded: ClassVar[bool] = True
    dense_share: ClassVar[float] = 0.25
    packed: ClassVar[Callable[..., Any]] = Columns

    def columns(self, o: Ordered) -> Columns:
        """The logit of row i is `offset_j + 2 (j - i) slope_j`, with `sign(0) = 0` among ties."""
        slope = linked(o.values, o.tau)
        first, last = tie_groups(o.values, o.room)
        index = jnp.arange(o.values.shape[-1])
        until = jnp.cumsum(slope, -1)
        larger = jnp.take_along_axis(until - slope, first, -1)
        not_smaller = jnp.take_along_axis(until, last, -1)
        offset = (first + last - 2 * index) * slope - larger - not_smaller
        return Columns(lax.stop_gradient(o.values), o.room, slope, offset, o.tau)

    def edges(self, columns: Columns, at: Array, size: int) -> tuple[Array, Array]:
        """Least fall of the rows `at, ..., at + size - 1` to the window's first and last column."""
        fall, _ = _beyond(columns, at, size)
        return fall[..., 0], fall[..., -1]

    def fall(self, columns: Columns, at: Array, size: int) -> Array:
        r"""How far logits lie below their row's peak, `(..., size, w)`.

        For i <= l <= j, $f_i(j) = f_i(l) + f_l(j) + 2 (l - i)(s_l - s_j) / \tau$, all terms of one
        sign: a block of rows needs the fall of its last row, one outer product, and a tile.
        """
        fixed = Columns(*map(lax.stop_gradient, columns))
        w = columns.values.shape[-1]
        base, distance = _beyond(fixed, at, size)
        tile = _tile(per_item(fixed, lambda x: cut(x, at, size)))
        row, index = jnp.arange(size), jnp.arange(w)
        distance = distance[..., None, :]
        to_last, to_first = 2 * (size - 1 - row)[:, None], 2 * row[:, None]
        down, up = tile[..., -1:] + to_last * distance, tile[..., :1] + to_first * distance
        value = base[..., None, :] + jnp.where(index >= at, down, up)
        value = lax.dynamic_update_slice_in_dim(value, tile, at, -1)
        lever = (index - (at + row)[:, None]).astype(value.dtype)
        own = cut(columns.offset, at, size)
        return _carried(value, own, columns.offset, columns.slope, lever, jnp.log(columns.tau))


def _gaps(columns: Columns) -> Array:
    """The gap after each column in units of the temperature; 0 after the last."""
    ahead = jnp.concatenate([columns.values[..., 1:], columns.values[..., -1:]], -1)
    return jnp.maximum(columns.values - ahead, 0.0) / columns.tau


def _beyond(columns: Columns, at: Array, size: int) -> tuple[Array, Array]:
    """Outside a block: falls of its nearest row, and distances from that row's own item."""
    index = jnp.arange(columns.values.shape[-1])
    gaps, axis = _gaps(columns), columns.values.ndim - 1
    last = at + size - 1
    behind = jnp.where(index >= last, (2 * (index - last) + 1) * gaps, 0.0)
    ahead = jnp.where(index < at, (2 * (at - index) - 1) * gaps, 0.0)
    down = jnp.concatenate([jnp.zeros_like(behind[..., :1]), behind[..., :-1]], -1)
    fall = lax.cumsum(down, axis=axis) + lax.cumsum(ahead, axis=axis, reverse=True)
    first_value, last_value = cut(columns.values, at, 1), cut(columns.values, last, 1)
    after = index > last
    distance = jnp.where(after, last_value - columns.values, columns.values - first_value)
    room = jnp.where(after, cut(columns.room, last, 1), cut(columns.room, at, 1))
    fall = jnp.where((room != columns.room) & (after | (index < at)), jnp.inf, fall)
    return fall, jnp.clip(distance / columns.tau, 0.0, FAR)


def _tile(columns: Columns) -> Array:
    """Falls among the rows of one block, summed outwards from the diagonal."""
    index = jnp.arange(columns.values.shape[-1])
    lever = 2 * (index - index[:, None]) + 1
    steps = jnp.abs(lever) * _gaps(columns)[..., None, :]
    axis = steps.ndim - 1
    behind = jnp.where(lever > 0, steps, 0.0)
    behind = jnp.concatenate([jnp.zeros_like(behind[..., :1]), behind[..., :-1]], -1)
    ahead = jnp.where(lever < 0, steps, 0.0)
    fall = lax.cumsum(behind, axis=axis) + lax.cumsum(ahead, axis=axis, reverse=True)
    return jnp.where(columns.room[..., None] == columns.room[..., None, :], fall, jnp.inf)


@jax.custom_jvp
def _carried(
    fall: Array, own: Array, offset: Array, slope: Array, lever: Array, unit: Array
) -> Array:
    """The fall, with the gradient of the equation: linear in the scores, homogeneous in tau.

    Args:
        fall: `(..., rows, w)`, without gradient.
        own: `(..., rows)`. Offsets of the rows' own items.
        offset: `(..., w)`.
        slope: `(..., w)`.
        lever: `(rows, w)`. Columns minus rows.
        unit: `(..., 1)`. Logarithm of the temperature.
    """
    return fall


@_carried.defjvp
def _(primals: tuple[Array, ...], tangents: tuple[Any, ...]) -> tuple[Array, Array]:
    fall, lever = _carried(*primals), primals[4]
    _, own, offset, slope, _, unit = tangents
    change = own[..., None] - offset[..., None, :] - 2 * lever * slope[..., None, :]
    return fall, change - jnp.where(jnp.isinf(fall), 0.0, fall) * unit[..., None]
