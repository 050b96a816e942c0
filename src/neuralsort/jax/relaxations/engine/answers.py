"""What NeuralSort's matrix is asked, and the gradients of what it answers, by the band engine."""

from collections.abc import Callable
from typing import Any

import jax.numpy as jnp
from jax import Array, lax

from .bands import Bands
from .sweeps import over_columns, over_rows


def product(gaps: Array, x: Array, rows: int) -> tuple[Array, Array, Array]:
    """P x for x `(lists, d, n)`; the mass of rows `(lists, n)`; and levels `(lists, chunks)`."""
    bands = Bands(gaps, rows)
    payload = bands.in_chunks(jnp.concatenate([x, jnp.ones_like(gaps)[:, None]], 1))

    def offset(level: Array) -> Array:
        return bands.typical(payload, level).at[:, -1].set(0.0)

    def sums(level: Array) -> Array:
        return over_columns(bands, level, payload, offset(level))

    def halve(carry: tuple[Array, ...]) -> tuple[Array, ...]:
        """Halves blocks in which rounding would show, and sums again."""
        level, wrong, _, _ = carry
        level = level - wrong
        found = sums(level)
        wrong = bands.lopsided(found[:, -1], level)
        return level, wrong.astype(level.dtype), found, wrong.any()

    level = bands.levels()
    if gaps.dtype == jnp.float32:
        start = level, jnp.zeros_like(level), jnp.zeros_like(payload), jnp.array(True)
        level, _, found, _ = lax.while_loop(lambda carry: carry[3], halve, start)
    else:
        found = sums(level)
    mass = jnp.where(found[:, -1:] > 0, found[:, -1:], 1.0)
    y = found[:, :-1] / mass + offset(level)[:, :-1]
    return bands.in_lists(y), bands.in_lists(mass)[:, 0], level.reshape(bands.lists, -1)


def product_gradient(
    gaps: Array, x: Array, y: Array, mass: Array, level: Array, grad: Array, tempered: bool
) -> tuple[Array, Array, Array, Array]:
    """Gradients of `sum(grad * P x)`, given what `product` found.

    Returns:
        To the offset and the slope of logits, `(lists, n)` each; to the logarithm of the
        temperature, `(lists, 1)`; and to x.
    """
    bands = Bands(gaps, grad.shape[-1])
    level, d = level.reshape(-1), x.shape[1]
    payload = bands.in_chunks(x)
    offset = bands.typical(payload, level)
    grad, y = bands.in_chunks(grad), bands.in_chunks(y)
    mean = (grad * (y - offset)).sum(1, keepdims=True)
    by_row = jnp.concatenate([grad, mean], 1) / _by_chunk(bands, mass)

    def factors(x: Array, _: Array) -> Array:
        return x

    found = _to_logits(bands, level, by_row, payload, offset, factors, tempered)
    to_offset, to_slope, heat = found[:, 0], found[:, 1], found[:, -1:].sum(-1)
    return to_offset, to_slope, heat, found[:, 2 : 2 + d]


def _by_chunk(bands: Bands, mass: Array) -> Array:
    """The mass of rows, `(lists, n)`, by chunk, and 1 where there are none."""
    mass = bands.in_chunks(mass[:, None])
    return jnp.where(mass > 0, mass, 1.0)


def _to_logits(
    bands: Bands,
    level: Array,
    a: Array,
    x: Array,
    offset: Array,
    factors: Callable[[Array, Array], Array],
    tempered: bool,
) -> Array:
    """Sums over rows of the gradient to logits, `P[i, j] (a_i . b_j - s_i)`.

    Args:
        bands: The blocks.
        level: `(chunks,)`. Their levels.
        a: `(chunks, d + 1, nodes)`. By row, over its mass; the last is s.
        x: `(chunks, ..., nodes)`. By column.
        offset: `(chunks, ..., 1)`. By block.
        factors: From `x - offset` of columns and their ranks from the middle of the block to b.
        tempered: Whether the gradient to the temperature is wanted.

    Returns:
        `(lists, 2 + d, n)`: the sums; those of `2 (j - i)` times it; `P^T a`; and, if it is wanted,
        those of minus the logarithm of the weight times it.
    """
    d = a.shape[1] - 1

    def summed(sums: Array, b: Array) -> Array:
        return (b * sums[:, :d]).sum(1, keepdims=True) - sums[:, d : d + 1]

    def each(sums: Array, lever: Array, spread: Any, x: Array, position: Array) -> Array:
        b = factors(x, position)
        parts = [summed(sums, b), 2 * summed(lever, b), sums[:, :d]]
        return jnp.concatenate([*parts, *([] if spread is None else [summed(spread, b)])], 1)

    return bands.in_lists(over_rows(bands, level, a, x, offset, each, tempered))


def transposed(gaps: Array, y: Array) -> tuple[Array, Array, Array]:
    """P^T y for y `(lists, d, rows)`, and mass and levels as in `product`."""
    _, mass, level = product(gaps, gaps[:, None][:, :0], y.shape[-1])
    return _over_mass(gaps, y, mass, level, levered=False), mass, level


def _over_mass(gaps: Array, y: Array, mass: Array, level: Array, levered: bool) -> Array:
    """P^T y; or, of y that is 1, column sums and those of the row's distance from the column."""
    bands = Bands(gaps, y.shape[-1])
    level = level.reshape(-1)
    by_row = bands.in_chunks(y) / _by_chunk(bands, mass)
    nothing = jnp.zeros((bands.chunks, 0, bands.nodes), gaps.dtype)

    def each(sums: Array, lever: Array, *_: Any) -> Array:
        return jnp.concatenate([sums, -lever], 1) if levered else sums

    found = over_rows(bands, level, by_row, nothing, nothing[..., :1], each, False)
    return bands.in_lists(found)


def transposed_gradient(
    gaps: Array, y: Array, mass: Array, level: Array, grad: Array, tempered: bool
) -> tuple[Array, Array, Array, Array]:
    """Gradients of `sum(grad * P^T y)`, as `product_gradient` has them; the last to y."""
    bands = Bands(gaps, y.shape[-1])
    flat, payload = level.reshape(-1), bands.in_chunks(grad)
    offset = bands.typical(payload, flat)
    found = over_columns(bands, flat, payload, offset) / _by_chunk(bands, mass) + offset
    moved = bands.in_lists(found)[..., : y.shape[-1]]
    *to_logits, _ = product_gradient(gaps, grad, moved, mass, level, y, tempered)
    return *to_logits, moved  # pyright: ignore


def position_sums(gaps: Array) -> tuple[Array, Array, Array]:
    """`(lists, 2, n)`: column sums, and those of (row - own position); mass; and levels."""
    ones = jnp.ones_like(gaps)[:, None]
    _, mass, level = product(gaps, ones[:, :0], gaps.shape[-1])
    return _over_mass(gaps, ones, mass, level, levered=True), mass, level


def position_sums_gradient(
    gaps: Array, mass: Array, level: Array, grad: Array, tempered: bool
) -> tuple[Array, Array, Array]:
    """Gradients of `sum(grad * position_sums)`, as `product_gradient` has them."""
    bands = Bands(gaps, gaps.shape[-1])
    level, mass, x = level.reshape(-1), _by_chunk(bands, mass), bands.in_chunks(grad)
    row = bands.row(bands.chunk, level)[:, None]
    offset = bands.typical(x, level).at[:, 1].set(0.0)
    # The logits' gradient is P[i, j] (alpha_j + beta_j (i - j) - s_i), with s its mean over j.
    alpha, beta, lever = jnp.split(over_columns(bands, level, x, offset, levered=True), 3, 1)
    mean = (alpha + row * beta - lever) / mass
    by_row = jnp.concatenate([jnp.ones_like(row), row, mean], 1) / mass

    def factors(x: Array, position: Array) -> Array:
        return jnp.concatenate([x[:, :1] - position * x[:, 1:], x[:, 1:]], 1)

    found = _to_logits(bands, level, by_row, x, offset, factors, tempered)
    return found[:, 0], found[:, 1], found[:, -1:].sum(-1)
