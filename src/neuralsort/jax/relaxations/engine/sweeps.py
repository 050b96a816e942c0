"""Sums over the columns and over the rows of all blocks: what every answer is made of.

Arrays are in chunks, `(chunks, channels, nodes)`, as `Bands` has them.
"""

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from ...arrays import matmul
from .bands import TOGETHER, WIDTH, Bands, Unit

Each = Callable[[Array, Array, Array | None, Array, Array], Array]


def over_columns(
    bands: Bands, level: Array, x: Array, offset: Array, levered: bool = False
) -> Array:
    """Sums of weights times `x - offset` over the columns of each row, `(chunks, d, nodes)`.

    Weights are in units of their block: divide by those of 1.

    Args:
        bands: The blocks.
        level: `(chunks,)`. Their levels.
        x: `(chunks, d, nodes)`. By column.
        offset: `(chunks, d, 1)`. By block.
        levered: Whether one more is wanted, the last times the column's ranks from the middle of
            the block.
    """

    def seen(x: Array, position: Array) -> Array:
        return jnp.concatenate([x, x[:, -1:] * position], 1) if levered else x

    line, place = bands.line(level)
    payload = bands.both_ways(x)

    def take(state: Any, unit: Unit) -> Any:
        """Runs come one after the other: of those before, only the one in progress is looked at."""
        total, high, low = state
        columns = seen(_window(payload, unit) - offset[unit.block], unit.position[:, None])
        sums = jnp.einsum("ukj,udj->ukd", jnp.exp(unit.exponent), columns, precision="highest")
        sums = jnp.einsum("ur,ukd->rkd", unit.run, sums, precision="highest")
        high, rest = _added(high, sums[0])
        low = low + rest
        total = lax.dynamic_update_slice_in_dim(total, sums.at[0].set(high + low), unit.first, 0)
        ahead = jnp.pad(sums, ((0, 1), (0, 0), (0, 0)))[unit.ended]
        return total, jnp.where(unit.ended > 0, ahead, high), jnp.where(unit.ended > 0, 0.0, low)

    empty = jnp.zeros((len(line.until), bands.nodes, x.shape[1] + levered), bands.dtype)
    sums, _, _ = bands.turns(line, take, (empty, empty[0], empty[0]))

    def rows(chunk: Array, level: Array, x: Array) -> Array:
        first = chunk >> level << level
        right, left = jnp.moveaxis(sums[place[first]], 1, 0)
        out = matmul(_interpolation(bands, chunk, level), right + left[:, ::-1]).mT
        x = seen(x - offset[first], bands.row(chunk, level)[:, None])
        return out + _smallest(bands, chunk, level, lambda fall: matmul(x, jnp.exp(-fall).mT), out)

    return in_groups(bands, rows, level, x)


def over_rows(
    bands: Bands, level: Array, y: Array, x: Array, offset: Array, each: Each, spread: bool
) -> Array:
    """Sums over rows of weights times y, as `each` makes them of a block's share in them.

    Args:
        bands: The blocks.
        level: `(chunks,)`. Their levels.
        y: `(chunks, c, nodes)`. By row, over the row's mass.
        x: `(chunks, d, nodes)`. By column.
        offset: `(chunks, d, 1)`. By block.
        each: From sums of weights times y `(m, c, w)`, the same times (column - row), the same
            times minus the weight's logarithm, if wanted, `x - offset` `(m, d, w)`, and ranks
            `(m, 1, w)` from the middle of the block, to what columns get, `(m, channels, w)`.
        spread: Whether the third are wanted.

    Returns:
        `(chunks, channels, nodes)`.
    """
    c, index = y.shape[1], np.arange(bands.nodes)

    def rows(chunk: Array, level: Array, y: Array, x: Array) -> tuple[Array, Array]:
        row = bands.row(chunk, level)[:, None]
        x = x - offset[chunk >> level << level]

        def own(fall: Array) -> Array:
            weights = jnp.exp(-fall)
            lever = matmul(y, weights * bands.fixed(index - index[:, None]))
            moved = matmul(y, weights * fall) if spread else None
            return each(matmul(y, weights), lever, moved, x, row)

        wanted = jax.eval_shape(own, jnp.zeros((len(chunk), bands.nodes, bands.nodes), y.dtype))
        at_nodes = matmul(jnp.concatenate([y, y * row], 1), _interpolation(bands, chunk, level))
        return _smallest(bands, chunk, level, own, jnp.zeros_like(wanted)), at_nodes

    own, at_nodes = in_groups(bands, rows, level, y, x)
    at_nodes = bands.by_blocks(at_nodes, jnp.add)  # (tiles, 2 c, nodes)
    line, _ = bands.line(level)
    payload = bands.both_ways(x)

    def take(total: Array, unit: Unit) -> Array:
        y = at_nodes[bands.tile(unit.block, unit.level)]
        mirrored, smallest = unit.mirrored[:, None, None], unit.level[:, None, None] == 0
        y, side = jnp.where(mirrored, y[..., ::-1], y), jnp.where(mirrored, -1, 1).astype(y.dtype)
        # Ranks outwards, of a smallest block from its last row: levers are sums, not differences.
        lever = jnp.where(smallest, y[:, :c] * bands.fixed(index - index[-1]), side * y[:, c:])
        position = unit.position[:, None]
        outward = jnp.abs(position) - jnp.where(smallest, (bands.nodes - 1) / 2, 0)
        weights = jnp.exp(unit.exponent)
        sums = matmul(jnp.concatenate([y[:, :c], lever], 1), weights)
        moved = matmul(y[:, :c], -weights * unit.exponent) if spread else None
        sums, lever = sums[:, :c], side * (outward * sums[:, :c] - sums[:, c:])
        columns = _window(payload, unit) - offset[unit.block]
        return _put(total, unit, each(sums, lever, moved, columns, position))

    empty = jnp.zeros((2 * bands.chunks + WIDTH, *own.shape[1:]), bands.dtype)
    return own + bands.one_way(bands.turns(line, take, empty))


def in_groups(bands: Bands, rows: Callable[..., Any], *by_chunk: Array) -> Any:
    """`rows(chunk, ...)` for so many chunks at a time."""
    size = math.gcd(bands.chunks, TOGETHER)
    parts = tuple(
        x.reshape(bands.chunks // size, size, *x.shape[1:]) for x in (bands.chunk, *by_chunk)
    )
    out = lax.map(lambda part: rows(*part), parts)
    return jax.tree.map(lambda x: x.reshape(bands.chunks, *x.shape[2:]), out)


def _interpolation(bands: Bands, chunk: Array, level: Array) -> Array:
    """The matrices `(m, nodes, nodes)` from the nodes of blocks to the rows of chunks."""
    row = bands.row(chunk, level) / (bands.half(level) - 0.5)[:, None]
    index = np.arange(bands.nodes)
    weight = np.sin((index + 0.5) * math.pi / bands.nodes) * (-1.0) ** index
    apart = row[..., None] - bands.node
    share = bands.fixed(weight) / jnp.where(apart == 0, 1e-30, apart)
    share = share / share.sum(-1, keepdims=True)
    return jnp.where(level[:, None, None] == 0, bands.fixed(np.eye(bands.nodes)), share)


def _falls(bands: Bands, chunk: Array) -> Array:
    """Falls among the items of chunks, summed outwards from the diagonal, `(m, nodes, nodes)`."""
    i, j, gap = np.ogrid[: bands.nodes, : bands.nodes, : bands.nodes]
    after = np.where((i < gap) & (gap <= j), 2 * (gap - i) - 1, 0)
    before = np.where((j < gap) & (gap <= i), 2 * (i - gap) + 1, 0)
    lever = (after + before).reshape(-1, bands.nodes).T
    fall = matmul(bands.tiles.before[chunk], bands.fixed(lever))
    return fall.reshape(-1, bands.nodes, bands.nodes)


def _smallest(
    bands: Bands, chunk: Array, level: Array, own: Callable[[Array], Array], empty: Array
) -> Array:
    """What the rows of smallest blocks have to do with each other; 0 for others."""

    def some() -> Array:
        return jnp.where(level[:, None, None] == 0, own(_falls(bands, chunk)), 0.0)

    return lax.cond((level == 0).any(), some, lambda: jnp.zeros_like(empty))


def _window(x: Array, unit: Unit) -> Array:
    """Chunks `(all, d, nodes)` in the windows of units, `(units, d, columns)`."""
    chunk = unit.chunk[:, None] + jnp.arange(WIDTH, dtype=jnp.int32)
    parts = jnp.moveaxis(x[chunk], 1, 2)  # (units, d, WIDTH, nodes)
    return parts.reshape(*parts.shape[:2], WIDTH * x.shape[-1])


def _put(total: Array, unit: Unit, shares: Array) -> Array:
    """Adds what the columns of units get, `(units, channels, columns)`, to all chunks."""
    shares = shares.reshape(*shares.shape[:2], WIDTH, -1)
    shares = jnp.moveaxis(shares, 2, 1)  # (units, WIDTH, channels, nodes)
    dims = lax.ScatterDimensionNumbers((1, 2, 3), (), (0,))
    return lax.scatter_add(total, unit.chunk[:, None], shares, dims)


def _added(a: Array, b: Array) -> tuple[Array, Array]:
    """The sum of two numbers, and what rounding it lost."""
    total = a + b
    more = total - a
    return total, (a - (total - more)) + (b - more)
