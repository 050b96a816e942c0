"""Rows in blocks: what a long relaxed permutation does without its matrix.

A block of rows is formed, used and forgotten: over all columns, or over a window of them. The
backward pass forms it again. So memory is that of one block, for any data. Arrays have the list in
their last dimension, in sorted order.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import jax
import jax.numpy as jnp
from jax import Array, lax

from ...arrays import matmul

# Entries of the largest array that a block forms, and the most and fewest rows of one.
ENTRIES = 1 << 22
MOST, FEWEST = 128, 8

SKIPPED = {"float32": 1e-7, "float64": 1e-14}
"""The most of a row's mass that a window may leave out."""


class Kernel(Protocol):
    """What a relaxation of scores must answer for lists in sorted order.

    `columns` are a named tuple of arrays `(..., n)`, with gradient, and of `tau` `(..., 1)`; or a
    window of these. `at` is where in the window the rows begin.
    """

    banded: ClassVar[bool]  # whether the band engine answers for it
    dense_share: ClassVar[
        float
    ]  # of the longest list that is a matrix, up to which one is worth it
    packed: ClassVar[Callable[..., Any]]  # columns of these arrays

    def columns(self, o: Any) -> Any:
        """All that the weights depend on."""
        ...

    def fall(self, columns: Any, at: Array, size: int) -> Array:
        """How far logits lie below their row's peak, `(..., size, w)`."""
        ...

    def edges(self, columns: Any, at: Array, size: int) -> tuple[Array, Array]:
        """Least fall of these rows to the first and the last column of the window."""
        ...


def cut(x: Array, at: Array, size: int) -> Array:
    """Entries `at, ..., at + size - 1` of the last dimension."""
    return lax.dynamic_slice_in_dim(x, at, size, -1)


def per_item(columns: Any, change: Callable[[Array], Array]) -> Any:
    """Columns with every array changed but `tau`, which has no entries for items."""
    fields = columns._asdict()
    return columns._replace(**{k: change(x) for k, x in fields.items() if k != "tau"})


def pad_items(x: Array, n: int) -> Array:
    """`x` with zeros after its last item, up to n."""
    return jnp.pad(x, [*[(0, 0)] * (x.ndim - 1), (0, n - x.shape[-1])])


def normalised(fall: Array) -> Array:
    """Weights that sum to 1 in every row; the peak is at 0, so nothing overflows."""
    weights = jnp.exp(-fall)
    return weights / weights.sum(-1, keepdims=True)


def weighted_mean(weights: Array, x: Array, own: Array) -> Array:
    """Means `(..., rows)` of values `(..., n)` under weights `(..., rows, n)` that sum to 1.

    Differences from `own` `(..., rows)`, a value typical of the row, are averaged, so an offset of
    the values costs no digits, in gradients either. Values that are not finite count where they
    have weight, and get no gradient.
    """
    x = x[..., None, :]
    wild, seen = ~jnp.isfinite(x), lax.stop_gradient(weights) != 0
    centre = lax.stop_gradient(jnp.where(jnp.isfinite(own), own, 0.0))
    near = jnp.where(wild | ~seen, 0.0, x - centre[..., None])
    beyond = jnp.where(wild & seen, lax.stop_gradient(x), 0.0).sum(-1)
    ones = jnp.ones((x.shape[-1], 1), weights.dtype)  # a product sums more exactly than `sum`
    return centre + matmul(weights * near, ones)[..., 0] + beyond


@dataclass(frozen=True)
class Sweep:
    """One way over the rows: blocks of one size, over windows of one width. Static, as shapes are.

    Attributes:
        kernel: Makes the weights.
        n: Items per list.
        rows: Leading rows that are wanted.
        size: Rows of a block.
        width: Columns of a window, or None for all.
    """

    kernel: Kernel
    n: int
    rows: int
    size: int
    width: int | None = None

    @property
    def _padded(self) -> int:
        return -(-self.n // self.size) * self.size

    def _starts(self) -> Array:
        return jnp.arange(0, max(self.rows, 1), self.size)

    def _begin(self, start: Array) -> Array:
        """Where the window of a block begins: around its rows, and within the list."""
        if self.width is None:
            return jnp.zeros_like(start)
        return jnp.clip(start - (self.width - self.size) // 2, 0, self._padded - self.width)

    def _window(self, x: Array, start: Array) -> Array:
        return x if self.width is None else cut(x, self._begin(start), self.width)

    def fill(self, columns: Any) -> Any:
        """Columns up to a whole number of blocks; those added are alone in their rooms."""
        filled = per_item(columns, lambda x: pad_items(x, self._padded))
        index = jnp.arange(self._padded)
        room = jnp.where(index < self.n, filled.room, -1 - index)
        return filled._replace(room=room)

    def skipped(self, columns: Any) -> Array:
        """Bound on the mass that windows leave out of the rows of each block, `(blocks, ...)`.

        Falls grow with the distance from the peak, so nothing outside weighs more than the last
        column inside.
        """
        columns = self.fill(jax.tree.map(lax.stop_gradient, columns))
        width = self.width
        if width is None:
            return jnp.zeros((len(self._starts()), *columns.tau.shape[:-1]), columns.tau.dtype)

        def bound(start: Array) -> Array:
            begin = self._begin(start)
            window = per_item(columns, lambda x: self._window(x, start))
            left, right = self.kernel.edges(window, start - begin, self.size)
            after = jnp.maximum(self.n - begin - width, 0)
            inside = jnp.exp(-left) * begin + jnp.exp(-right) * after
            return jnp.minimum(inside, 1.0).astype(columns.tau.dtype)

        return lax.map(bound, self._starts())

    def covers(self, place: Array) -> Array:
        """Whether all places `(..., rows)` lie in the windows of their rows."""
        start = jnp.arange(self.rows) // self.size * self.size
        begin = self._begin(start)
        return ((place >= begin) & (place < begin + (self.width or self._padded))).all()

    def rows_of(
        self,
        each: Callable[..., Array],
        columns: Any,
        by_column: Array | None = None,
        by_row: Array | None = None,
    ) -> Array:
        """`each(fall, index, ...)` for every block, joined: `(..., rows)`.

        Args:
            each: From the fall `(..., size, w)`, the places of the columns `(w,)`, and the block's
                part of what else is given, to `(..., size)`.
            columns: Of the kernel.
            by_column: `(..., n)`.
            by_row: `(..., rows)`.
        """
        columns = self.fill(columns)

        @jax.checkpoint
        def block(start: Array) -> Array:
            parts = []
            if by_column is not None:
                parts.append(self._window(pad_items(by_column, self._padded), start))
            if by_row is not None:
                parts.append(cut(pad_items(by_row, self._padded), start, self.size))
            return each(*self._fall(columns, start), *parts)

        out = jnp.moveaxis(lax.map(block, self._starts()), 0, -2)
        return out.reshape(*out.shape[:-2], -1)[..., : self.rows]

    def columns_of(self, each: Callable[..., Array], columns: Any, by_row: Array) -> Array:
        """The sum over blocks of `each(fall, index, rows, part)`: `(..., n)`.

        Args:
            each: From the fall `(..., size, w)`, the places of its columns `(w,)` and rows
                `(size,)`, and the block's part of what is given by row, to `(..., w)`. Rows that
                are not wanted have 0 for it.
            columns: Of the kernel.
            by_row: `(..., rows)`.
        """
        columns, by_row = self.fill(columns), pad_items(by_row, self._padded)

        @jax.checkpoint
        def block(start: Array) -> Array:
            rows, part = start + jnp.arange(self.size), cut(by_row, start, self.size)
            return each(*self._fall(columns, start), rows, part)

        def add(total: Array, start: Array) -> tuple[Array, None]:
            begin = self._begin(start)
            more = cut(total, begin, self.width or self._padded) + block(start)
            return lax.dynamic_update_slice_in_dim(total, more, begin, -1), None

        shape = jax.eval_shape(block, self._starts()[0])
        total = jnp.zeros((*shape.shape[:-1], self._padded), shape.dtype)
        return lax.scan(add, total, self._starts())[0][..., : self.n]

    def _fall(self, columns: Any, start: Array) -> tuple[Array, Array]:
        """The fall of a block over its window, and the places of the window's columns."""
        begin = self._begin(start)
        window = per_item(columns, lambda x: self._window(x, start))
        fall = self.kernel.fall(window, start - begin, self.size)
        return fall, begin + jnp.arange(fall.shape[-1])


@dataclass(frozen=True)
class Plan:
    """Over windows where these hold the weights, and over every item where they do not."""

    wide: Sweep
    narrow: Sweep | None

    @classmethod
    def of(
        cls,
        kernel: Kernel,
        batch: tuple[int, ...],
        n: int,
        rows: int,
        bandwidth: int | None,
    ) -> "Plan":
        """Blocks as large as their share of memory allows."""
        lists = max(1, math.prod(batch))
        wide = Sweep(kernel, n, rows, _size(lambda size: n, lists))
        if bandwidth is None:
            return cls(wide, None)
        size = _size(lambda size: size + 2 * bandwidth, lists)
        width = size + 2 * bandwidth
        return cls(wide, None if width >= n else Sweep(kernel, n, rows, size, width))

    def skipped(self, columns: Any) -> Array:
        """Bound on the mass that is left out of each row, `(..., rows)`."""
        sweep = self.narrow or self.wide
        by_block = jnp.moveaxis(sweep.skipped(columns), 0, -1)
        return jnp.repeat(by_block, sweep.size, axis=-1)[..., : sweep.rows]

    def rows_of(
        self,
        each: Callable[..., Array],
        columns: Any,
        by_column: Array | None = None,
        by_row: Array | None = None,
        places: Array | None = None,
    ) -> Array:
        """`Sweep.rows_of`; windows must also hold the `places` `(..., rows)`, where given."""

        def go(way: Sweep) -> Array:
            return way.rows_of(each, columns, by_column, by_row)

        return self._choose(go, columns, places)

    def columns_of(self, each: Callable[..., Array], columns: Any, by_row: Array) -> Array:
        """`Sweep.columns_of`."""
        return self._choose(lambda way: way.columns_of(each, columns, by_row), columns, None)

    def _choose(self, go: Callable[[Sweep], Array], columns: Any, places: Array | None) -> Array:
        wide, narrow = self.wide, self.narrow
        if narrow is None:
            return go(wide)
        skipped = narrow.skipped(columns)
        enough = (skipped <= SKIPPED[str(skipped.dtype)]).all()
        if places is not None:
            enough = enough & narrow.covers(places)
        return lax.cond(enough, lambda: go(narrow), lambda: go(wide))


def _size(width: Callable[[int], int], lists: int) -> int:
    """Rows of a block: as many as its entries, over the width of its window, allow."""
    size = MOST
    while size > FEWEST and size * width(size) * lists > ENTRIES:
        size //= 2
    return size
