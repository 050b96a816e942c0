"""What NeuralSort's matrix is asked, and the gradients of what it answers, by the band engine."""

import jax.numpy as jnp
from jax import Array, lax

from .bands import Bands
from .sweeps import over_columns, over_rows


def product(gaps: Array, x: Array, rows: int) -> tuple[Array, Array, Array]:
    """P x for x `(lists, d, n)`; the mass of rows `(lists, n)`; and levels `(lists, chunks)`."""
    bands = Bands(gaps, rows)
    payload = bands.in_chunks(jnp.concatenate([x, jnp.ones_like(x[:, :1])], 1))

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
    grad, y, mass = (bands.in_chunks(part) for part in (grad, y, mass[:, None]))
    mass = jnp.where(mass > 0, mass, 1.0)
    share = jnp.concatenate([grad, (grad * (y - offset)).sum(1, keepdims=True)], 1) / mass
    both = jnp.concatenate([share, share * bands.row(bands.chunk, level)[:, None]], 1)

    def to_logits(sums: Array, x: Array) -> Array:
        """Sums over rows of the gradient to a column's logits."""
        return (x * sums[:, :d]).sum(1, keepdims=True) - sums[:, d : d + 1]

    def each(sums: Array, spread: Array | None, x: Array, position: Array) -> Array:
        total, moment = to_logits(sums[:, : d + 1], x), to_logits(sums[:, d + 1 :], x)
        parts = [total, 2 * (position * total - moment), sums[:, :d]]
        return jnp.concatenate([*parts, *([] if spread is None else [to_logits(spread, x)])], 1)

    found = bands.in_lists(over_rows(bands, level, both, payload, offset, each, tempered))
    heat = found[:, -1:].sum(-1) if tempered else jnp.zeros_like(gaps[:, :1])
    return found[:, 0], found[:, 1], heat, found[:, 2 : 2 + d]
