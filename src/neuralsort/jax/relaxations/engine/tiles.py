"""Sums of gaps over aligned tiles of a list, blocks of rows, and how far their weights reach.

Gaps are not negative. So sums of them are as exact as their terms, in float32 too, as long as
nothing is subtracted. Everything here is in chunks of as many items as a block has nodes, twice:
once in order, and once mirrored, so that what lies to the left of a row lies to the right of it.
"""

import math
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from ...._interpolation import neuralsort_error
from .blocks import SKIPPED

NODES = {"float32": 32, "float64": 48}
"""Items of a chunk, which are the rows of the smallest block and the nodes of every other."""

REACH = 6.0
"""The most that the exponent |2 r d| may be where a block's own neighbourhood ends."""

# What a gap that nothing passes counts: no exponent makes up for it, and a million of them, each
# times a million ranks, still add up to a number in float32.
HIDDEN = 1e20


def threshold(dtype: jnp.dtype, n: int) -> float:
    """The fall from which on items are left out."""
    return math.log(max(n, 2) / SKIPPED[str(dtype)])


def reach(dtype: jnp.dtype, n: int) -> float:
    """The largest reach up to `REACH` for which the nodes are enough."""
    name, steps = str(dtype), 8
    tol = SKIPPED[name] / max(n, 2)
    allowed = (REACH * k / steps for k in range(steps, 0, -1))
    return next(r for r in allowed if neuralsort_error(NODES[name], r) <= tol)


class Tiles(NamedTuple):
    """Gaps of all lists in chunks, `(chunks, nodes)`, in order and then mirrored; and their sums.

    A chunk begins at a boundary of its number. Between boundaries p < q lie the gaps before the
    items of the chunks p, ..., q - 1. Lists have a power of two of chunks each.

    Attributes:
        before: The gap before each item.
        total: The gaps of the chunk up to this item.
        moment: The same, each times twice its place in the chunk.
        near: `(levels, 2, chunks + 1)`. Gaps up to the next multiple of `1 << level`, and times
            twice their distance from the boundary.
        far: The same since the last multiple, and from there.
    """

    before: Array
    total: Array
    moment: Array
    near: Array
    far: Array

    @property
    def chunks(self) -> int:
        """Of all lists, in one direction."""
        return self.before.shape[0] // 2

    def between(self, p: Array, q: Array) -> tuple[Array, Array]:
        """Gaps between boundaries p <= q of a list: added up, and times twice their rank from p.

        Of all boundaries behind p and up to q one is a multiple of the highest power of two. Sums
        up to there and from there on are kept.
        """
        levels, _, width = self.near.shape
        level = jnp.minimum(31 - lax.clz(jnp.maximum(p ^ q, 1)), levels - 1)
        middle = (q >> level) << level
        near, far = (x.reshape(-1) for x in (self.near, self.far))
        at, other = level * 2 * width + p, level * 2 * width + q
        crossed, outward = far[other], far[other + width]
        steps = ((middle - p) * (2 * self.before.shape[1])).astype(near.dtype)
        distance, fall = near[at] + crossed, near[at + width] + outward + steps * crossed
        same = p == q
        return jnp.where(same, 0.0, distance), jnp.where(same, 0.0, fall)


def tiles(gaps: Array) -> Tiles:
    """Of the gaps before items, `(lists, items)`, as many as fill a power of two of chunks."""
    nodes = NODES[str(gaps.dtype)]
    lists, items = gaps.shape
    levels = (items // nodes).bit_length()
    after = jnp.concatenate([gaps[:, 1:], jnp.full((lists, 1), HIDDEN, gaps.dtype)], 1)
    both = jnp.concatenate([gaps.reshape(-1), after.reshape(-1)[::-1]]).reshape(-1, nodes)
    until = np.triu(np.ones((nodes, nodes)))
    total = _product(both, until)
    moment = _product(both, until * (2 * np.arange(nodes))[:, None])
    near = jnp.pad(jnp.stack([total[:, -1], moment[:, -1]]), ((0, 0), (0, 1)))
    chunk = jnp.arange(near.shape[1], dtype=jnp.int32)

    def double(carry: tuple[Array, Array], level: Array) -> tuple[Any, Any]:
        """Two tiles make one: from the first, the second is seen over the rest of the first."""
        near, far = carry
        second = (chunk >> level) % 2 == 1
        middle = ((chunk >> level) + ~second) << level
        start = jnp.maximum(middle - (1 << level), 0)
        rest = ((middle - chunk) * (2 * nodes)).astype(gaps.dtype)
        behind = near[:, jnp.minimum(middle, len(chunk) - 1)]
        behind = behind + jnp.stack([jnp.zeros_like(rest), rest * behind[0]])
        steps = ((1 << level) * (2 * nodes)).astype(gaps.dtype)
        before = near[:, start] + far + jnp.stack([jnp.zeros_like(far[0]), steps * far[0]])
        new = jnp.where(second, near, near + behind), jnp.where(second, before, far)
        return new, carry

    first = near, jnp.zeros_like(near)
    _, (near, far) = lax.scan(double, first, jnp.arange(levels, dtype=jnp.int32))
    return Tiles(both, total, moment, near, far)


def _product(x: Array, matrix: np.ndarray) -> Array:
    return jnp.matmul(x, jnp.asarray(matrix, x.dtype), precision=lax.Precision.HIGHEST)


def fitting(t: Tiles, lists: int, n: int) -> Array:
    """The level of the largest block around each chunk that nodes interpolate, `(chunks,)`.

    With h half the size of a block, a gap g at rank distance m from its centre adds 2 h g to the
    exponent |2 r d| but 2 m g to the fall. Inside m < 2h the first must be small; outside, the
    second wins twice over. A hidden gap outside the block hides all behind it.
    """
    gaps = t.before[: t.chunks]
    nodes, dtype = gaps.shape[1], gaps.dtype
    allowed = reach(dtype, n)
    inside = gaps[:, 1:].sum(1)
    first = gaps[:, 0]
    narrow = jnp.where(gaps < HIDDEN, gaps, 0.0).sum(1)
    level = jnp.zeros(t.chunks, jnp.int32)
    fits = jnp.ones(t.chunks, bool)
    size = nodes
    while t.chunks // lists > size // nodes:
        size *= 2
        (inside_left, inside_right), (_, centre) = inside.reshape(-1, 2).T, first.reshape(-1, 2).T
        left, right = narrow.reshape(lists, -1, 2).transpose(2, 0, 1)
        before = jnp.pad(right, ((0, 0), (1, 0)))[:, :-1].reshape(-1)
        after = jnp.pad(left, ((0, 0), (0, 1)))[:, 1:].reshape(-1)
        left, right = left.reshape(-1) + centre, right.reshape(-1)
        inside = inside_left + centre + inside_right
        near = jnp.maximum(left, right)
        around = jnp.maximum(left + before, right + after)
        fits = fits.reshape(-1, 2).all(1) & (size * inside <= allowed)
        fits = fits & (2 * size * near <= allowed) & (size * around <= allowed)
        narrow, first = narrow.reshape(-1, 2).sum(1), first.reshape(-1, 2)[:, 0]
        level = level + jnp.repeat(fits, size // nodes).astype(jnp.int32)
        # Fused, all levels would be formed again for each.
        carry = level, fits, inside, narrow, first
        level, fits, inside, narrow, first = lax.optimization_barrier(carry)
    return level


def window_end(t: Tiles, lists: int, begin: Array, within: float) -> Array:
    """The boundary behind the last chunk that begins within a fall of the row before `begin`.

    Args:
        t: The sums.
        lists: How many there are.
        begin: `(m,)`. Boundaries.
        within: The fall.

    Returns:
        `(m,)`, between `begin` and the end of its list.
    """
    nodes, per_list = t.before.shape[1], t.chunks // lists
    first = jnp.pad(t.before[:, 0], (0, 1), constant_values=HIDDEN)
    end = (begin - 1) // per_list * per_list + per_list

    def further(k: Array, at: Array) -> Array:
        step = jnp.int32(per_list) >> k
        last = jnp.minimum(at + step, end) - 1
        distance, fall = t.between(begin, jnp.maximum(last, begin))
        ranks = ((last - begin) * (2 * nodes) + 1).astype(fall.dtype)
        seen = fall + distance + ranks * first[last] < within
        return jnp.where((at + step <= end) & seen, at + step, at)

    return lax.fori_loop(0, per_list.bit_length(), further, begin)
