r"""The band engine: NeuralSort's matrix in O(n) memory and O(n log n) time, at any temperature.

What it does is derived in docs/numerics.md. Blocks of rows follow the density of the scores; the
smallest are written row by row, and of larger ones a few Chebyshev rows, the nodes, give all
others. A block sees a window of columns to either side, which comes in units of a few chunks. The
units of all blocks wait in one line, and a loop takes so many of them at a time: shapes are known
to the compiler, and only the number of turns depends on the scores.

A unit's weights are $\exp(A_k - F_j + \rho_k D_j)$ for node k and column j, with $D_j \ge 0$ the
distance from an anchor and $F_j \ge 0$ the fall:

- in a block that is interpolated the anchor is its centre, and $\rho_k = 2 r_k$;
- in one that is not it is the block's last row, and neither $\rho_k$ nor $A_k$ is positive: all
  terms are of one sign, and float32 has all its digits.

Rows on the left are rows on the right of the mirrored list.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from ...arrays import matmul
from .tiles import HIDDEN, NODES, Tiles, fitting, threshold, tiles, window_end

# Chunks of a unit, units that are taken in one turn, and chunks whose rows are formed together.
WIDTH, TURN, TOGETHER = 4, 64, 128
# How many times the mass of a row that of another of its block may be, for float32 to do.
LOPSIDED = 16.0


class Line(NamedTuple):
    """Runs of units: one for each block and side that sees anything, `(runs,)` each.

    Attributes:
        anchor: The boundary at which it begins.
        end: That at which its window ends.
        level: Of the block.
        block: Its first chunk, in order.
        until: Units up to the end of this run.
        count: Units of the run.
    """

    anchor: Array
    end: Array
    level: Array
    block: Array
    until: Array
    count: Array


class Unit(NamedTuple):
    """Units of one turn.

    Attributes:
        first: The first run of this turn.
        ended: How many of its runs end with it.
        run: `(units, runs)`. 1 for the run to which a unit belongs, among those of this turn.
        chunk: `(units,)`. The first of its columns, in order or mirrored.
        block: `(units,)`. The first chunk of its block.
        level: `(units,)`. Of its block.
        mirrored: `(units,)`. Whether it lies to the left.
        position: `(units, columns)`. Ranks from the middle of the block.
        exponent: `(units, nodes, columns)`.
    """

    first: Array
    ended: Array
    run: Array
    chunk: Array
    block: Array
    level: Array
    mirrored: Array
    position: Array
    exponent: Array


class Bands:
    """Blocks of rows and their windows for lists with the given gaps.

    Args:
        gaps: `(lists, n)`. The gap before each item in temperatures.
        rows: Leading rows of each list that are wanted.
    """

    def __init__(self, gaps: Array, rows: int) -> None:
        self.lists, self.n = gaps.shape
        self.rows, self.dtype = rows, gaps.dtype
        self.nodes = NODES[str(gaps.dtype)]
        self.per_list = 1 << (-(-self.n // self.nodes) - 1).bit_length()
        self.within = threshold(gaps.dtype, self.n)
        short = self.per_list * self.nodes - self.n
        gaps = jnp.where(gaps < self.within, gaps, HIDDEN)
        gaps = jnp.pad(gaps, ((0, 0), (0, short)), constant_values=HIDDEN)
        self.tiles: Tiles = tiles(gaps)
        self.chunks = self.tiles.chunks
        self.chunk = jnp.arange(self.chunks, dtype=jnp.int32)
        row = np.arange(self.nodes)
        lever = np.maximum(2 * (row[:, None] - row) - 1, 0)  # of the gap before an item, by row
        self.edge = matmul(self.tiles.before, self.fixed(lever))
        self.node = self.fixed(-np.cos((row + 0.5) * math.pi / self.nodes))

    def fixed(self, x: Any) -> Array:
        return jnp.asarray(np.asarray(x), self.dtype)

    def levels(self) -> Array:
        """Of the largest blocks that nodes interpolate, by chunk."""
        return fitting(self.tiles, self.lists, self.n)

    # -- chunks ------------------------------------------------------------------------------------

    def in_chunks(self, x: Array) -> Array:
        """`(lists, d, n)` as `(chunks, d, nodes)`, with zeros after the last item of a list."""
        x = jnp.pad(x, ((0, 0), (0, 0), (0, self.per_list * self.nodes - x.shape[-1])))
        x = x.reshape(self.lists, x.shape[1], self.per_list, self.nodes)
        return jnp.moveaxis(x, 2, 1).reshape(self.chunks, x.shape[1], self.nodes)

    def in_lists(self, x: Array) -> Array:
        """Undoes `in_chunks`."""
        x = jnp.moveaxis(x.reshape(self.lists, self.per_list, x.shape[1], self.nodes), 1, 2)
        return x.reshape(self.lists, x.shape[1], self.per_list * self.nodes)[..., : self.n]

    def both_ways(self, x: Array) -> Array:
        """`(chunks, d, nodes)` in order and then mirrored, with a unit's worth of chunks behind."""
        return jnp.pad(jnp.concatenate([x, x[::-1, :, ::-1]]), ((0, WIDTH), (0, 0), (0, 0)))

    def one_way(self, x: Array) -> Array:
        """Adds what is in order and what is mirrored."""
        return x[: self.chunks] + x[self.chunks : 2 * self.chunks][::-1, :, ::-1]

    def half(self, level: Array) -> Array:
        """Ranks from the middle of a block to its end, of a smallest one as well."""
        return (1 << level).astype(self.dtype) * (self.nodes / 2)

    def row(self, chunk: Array, level: Array) -> Array:
        """Ranks of the rows of chunks from the middle of their block, `(m, nodes)`."""
        begin = ((chunk - (chunk >> level << level)) * self.nodes).astype(self.dtype)
        return (begin - self.half(level))[:, None] + self.fixed(np.arange(self.nodes) + 0.5)

    def typical(self, x: Array, level: Array) -> Array:
        """A value of the middle of each chunk's block that one huge value does not move.

        `(chunks, d, nodes)` to `(chunks, d, 1)`. Rows sum to 1, so it may be taken out of a payload
        and put back: no digits go to an offset.
        """
        a, b, c = (x[..., self.nodes * k // 4, None] for k in (1, 2, 3))
        median = jnp.maximum(jnp.minimum(a, b), jnp.minimum(jnp.maximum(a, b), c))
        return median[self._first(level) + (1 << level >> 1)]

    def _first(self, level: Array) -> Array:
        """The first chunk of each chunk's block."""
        return self.chunk >> level << level

    def by_blocks(self, x: Array, join: Callable[[Array, Array], Array]) -> Array:
        """Joins what the chunks of a block hold: `(chunks, ...)` to all tiles, by level."""
        joined = [x]
        for _ in range(self.per_list.bit_length() - 1):
            pairs = joined[-1].reshape(-1, 2, *x.shape[1:])
            joined.append(lax.optimization_barrier(join(pairs[:, 0], pairs[:, 1])))
        return jnp.concatenate(joined)

    def tile(self, block: Array, level: Array) -> Array:
        """Where `by_blocks` has a block."""
        return 2 * self.chunks - (2 * self.chunks >> level) + (block >> level)

    def lopsided(self, mass: Array, level: Array) -> Array:
        """Whether rounding at heavy nodes would show in light rows, `(chunks,)`."""
        tile = self.tile(self._first(level), level)
        heavy = self.by_blocks(mass.max(1), jnp.maximum)[tile]
        light = self.by_blocks(mass.min(1), jnp.minimum)[tile]
        return (level > 0) & self._wanted(level) & ~(heavy < LOPSIDED * light)

    def _wanted(self, level: Array) -> Array:
        return self._first(level) % self.per_list * self.nodes < self.rows

    # -- the line of units -------------------------------------------------------------------------

    def line(self, level: Array) -> tuple[Line, Array]:
        """The runs of all blocks whose rows are wanted; and where they are by block, `(chunks, 2)`.

        Right and left run of a block stand side by side; blocks that see nothing have none.
        """
        chunk, size, end = self.chunk, 1 << level, 2 * self.chunks
        middle = chunk + (size >> 1)
        wanted = (chunk % size == 0) & self._wanted(level)
        behind = chunk + size
        begin = jnp.stack([behind, end - chunk], 1)
        anchor = jnp.where(level[:, None] > 0, jnp.stack([middle, end - middle], 1), begin)
        begin = jnp.where(wanted[:, None], begin, 1).reshape(-1)
        until = window_end(self.tiles, self.lists, begin, self.within).reshape(anchor.shape)
        count = jnp.where(wanted[:, None], -(-(until - anchor) // WIDTH), 0).reshape(-1)
        seen = jnp.nonzero(count > 0, size=end, fill_value=end)[0].astype(jnp.int32)
        place = jnp.full(end + 1, end, jnp.int32).at[seen].set(jnp.arange(end, dtype=jnp.int32))
        both = (jnp.repeat(level, 2), jnp.repeat(chunk, 2))
        parts = (anchor.reshape(-1), until.reshape(-1), *both, count)
        parts = [jnp.pad(x, (0, 1))[seen] for x in parts]
        count = parts.pop()
        total = jnp.cumsum(count, dtype=jnp.int32)
        spare = [jnp.pad(x, (0, TURN)) for x in (*parts, count)]
        line = Line(*spare[:4], jnp.pad(total, (0, TURN), mode="edge"), spare[4])
        return line, place[:-1].reshape(-1, 2)

    def turns(self, line: Line, take: Callable[[Any, Unit], Any], state: Any) -> Any:
        """Takes all units in turns: `take(state, units)` to the next state."""

        def turn(carry: tuple[Array, Array, Any]) -> tuple[Array, Array, Any]:
            begin, first, state = carry
            unit = self._units(line, begin, first)
            return begin + TURN, first + unit.ended, take(state, unit)

        start = jnp.int32(0), jnp.int32(0), state
        return lax.while_loop(lambda carry: carry[0] < line.until[-1], turn, start)[2]

    def _units(self, line: Line, begin: Array, first: Array) -> Unit:
        """The next units, from run `first` on."""
        t, nodes, last = self.tiles, self.nodes, 2 * self.chunks - 1
        line = Line(*(lax.dynamic_slice_in_dim(x, first, TURN) for x in line))
        ended = (line.until <= begin + TURN).sum(dtype=jnp.int32)
        index = begin + jnp.arange(TURN, dtype=jnp.int32)
        mine = (line.until <= index[:, None]).sum(1, dtype=jnp.int32)
        run = Line(*(x[jnp.minimum(mine, TURN - 1)][:, None] for x in line))
        begin = run.anchor + (index[:, None] - (run.until - run.count)) * WIDTH
        begin = jnp.where(mine[:, None] < TURN, begin, last + 1)
        chunk = begin + jnp.arange(WIDTH, dtype=jnp.int32)
        seen = chunk < run.end
        near = jnp.where(seen, chunk, run.anchor)
        distance, fall = t.between(run.anchor, near)
        ranks = ((near - run.anchor) * (2 * nodes)).astype(self.dtype)
        inner = run.level > 0
        fall = jnp.where(inner, fall, fall + distance)
        ranks = jnp.where(inner, ranks, ranks + 1)[..., None]
        near = jnp.minimum(near, last)
        total, moment = t.total[near], t.moment[near]  # (units, WIDTH, nodes)
        fall = jnp.where(seen, fall, HIDDEN)[..., None] + ranks * total + moment
        distance = distance[..., None] + total
        half = self.half(run.level)
        row = (half - 0.5) * self.node
        slope = jnp.where(inner, 2 * row, self.fixed(2 * np.arange(1 - nodes, 1)))
        gap = t.before[jnp.minimum(run.anchor, last), 0]
        above = jnp.where(inner, row * gap, self.edge[run.anchor[:, 0] - 1])
        parts = fall.reshape(TURN, 1, -1), distance.reshape(TURN, 1, -1), slope, above
        fall, distance, slope, above = lax.optimization_barrier(parts)  # so each is formed once
        ranks = (begin - run.anchor) * nodes + jnp.arange(WIDTH * nodes, dtype=jnp.int32)
        position = ranks.astype(self.dtype) + 0.5 + jnp.where(inner, 0, half)
        mirrored = run.anchor > self.chunks
        return Unit(
            first,
            ended,
            (mine[:, None] == jnp.arange(TURN)).astype(self.dtype),
            begin[:, 0],
            run.block[:, 0],
            run.level[:, 0],
            mirrored[:, 0],
            jnp.where(mirrored, -position, position),
            slope[..., None] * distance - (fall + above[..., None]),
        )
