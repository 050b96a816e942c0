"""Rows in blocks: what a long relaxed permutation does without its matrix.

A block of rows is formed, used and forgotten: over all columns, or over a window of them. The
backward pass forms it again. So memory is that of one block, for any data. Arrays have the list in
their last dimension, in sorted order.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import jax
import jax.numpy as jnp
from jax import Array, lax

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


@dataclass(frozen=True)
class Sweep:
    """A plan: which blocks, how large, over which windows. Static, so that shapes are.

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
    width: int | None

    @classmethod
    def of(cls, kernel: Kernel, batch: tuple[int, ...], n: int, rows: int, bandwidth: int | None):
        """Blocks as large as their share of memory allows."""
        size, lists = MOST, max(1, math.prod(batch))
        while size > FEWEST and size * n * lists > ENTRIES:
            size //= 2
        width = None if bandwidth is None else size + 2 * bandwidth
        if width is not None and width >= n:
            width = None
        return cls(kernel, n, rows, size, width)

    @property
    def _padded(self) -> int:
        return -(-self.n // self.size) * self.size

    def _starts(self) -> Array:
        return jnp.arange(0, max(self.rows, 1), self.size)

    def _begins(self) -> Array:
        """Where windows begin: around their rows, and within the list."""
        assert self.width is not None
        around = self._starts() - (self.width - self.size) // 2
        return jnp.clip(around, 0, self._padded - self.width)

    def _windows(self, x: Array) -> Array:
        """Windows `(blocks, ..., width)` of `(..., n)`."""
        assert self.width is not None
        index = self._begins()[:, None] + jnp.arange(self.width)
        return jnp.moveaxis(x[..., index], -2, 0)

    def _fill(self, columns: Any) -> Any:
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
        columns = self._fill(jax.tree.map(lax.stop_gradient, columns))
        width = self.width
        if width is None:
            return jnp.zeros((len(self._starts()), *columns.tau.shape[:-1]), columns.tau.dtype)

        def bound(at: Array, begin: Array, window: Any) -> Array:
            left, right = self.kernel.edges(window._replace(tau=columns.tau), at, self.size)
            after = jnp.maximum(self.n - begin - width, 0)
            inside = jnp.exp(-left) * begin + jnp.exp(-right) * after
            return jnp.minimum(inside, 1.0).astype(columns.tau.dtype)

        begins = self._begins()
        windows = per_item(columns, self._windows)._replace(tau=begins)
        return lax.map(lambda x: bound(*x), (self._starts() - begins, begins, windows))

    def _sufficient(self, columns: Any) -> Array:
        skipped = self.skipped(columns)
        return (skipped <= SKIPPED[str(skipped.dtype)]).all()

    def _either(self, columns: Any, narrow: Callable[[], Any], wide: Callable[[], Any]) -> Any:
        if self.width is None:
            return wide()
        return lax.cond(self._sufficient(columns), narrow, wide)

    # -- rows out --------------------------------------------------------------------------------

    def rows_of(self, each: Callable[..., Array], columns: Any, x: Array, y: Array) -> Array:
        """`each(fall, x, y, index)` for every block, joined: `(..., rows)`.

        Args:
            each: From the fall `(..., size, w)`, the block's part of x and of y, and the places
                of the columns `(w,)`, to `(..., size)`.
            columns: Of the kernel.
            x: `(..., n)`. One entry per column.
            y: `(..., rows)`. One entry per row.
        """
        columns, x = self._fill(columns), pad_items(x, self._padded)
        y = pad_items(y, self._padded)

        @jax.checkpoint
        def block(start: Array, begin: Array, columns: Any, x: Array) -> Array:
            fall = self.kernel.fall(columns, start - begin, self.size)
            index = begin + jnp.arange(fall.shape[-1])
            return each(fall, x, cut(y, start, self.size), index)

        def narrow() -> Array:
            windows = per_item(columns, self._windows)._replace(tau=self._begins())
            parts = self._starts(), self._begins(), windows, self._windows(x)
            return lax.map(lambda p: block(p[0], p[1], p[2]._replace(tau=columns.tau), p[3]), parts)

        def wide() -> Array:
            return lax.map(
                lambda start: block(start, jnp.zeros_like(start), columns, x), self._starts()
            )

        out = jnp.moveaxis(self._either(columns, narrow, wide), 0, -2)
        return out.reshape(*out.shape[:-2], -1)[..., : self.rows]

    # -- columns out -----------------------------------------------------------------------------

    def columns_of(self, each: Callable[..., Array], columns: Any, y: Array) -> Array:
        """The sum over blocks of `each(fall, y, rows, index)`: `(..., n)`.

        Args:
            each: From the fall `(..., size, w)`, the block's part of y, and the places of its rows
                `(size,)` and columns `(w,)`, to `(..., w)`. Rows that are not wanted have y = 0.
            columns: Of the kernel.
            y: `(..., rows)`. One entry per row.
        """
        columns, y = self._fill(columns), pad_items(y, self._padded)

        @jax.checkpoint
        def block(start: Array, begin: Array, columns: Any) -> Array:
            fall = self.kernel.fall(columns, start - begin, self.size)
            rows = start + jnp.arange(self.size)
            return each(fall, cut(y, start, self.size), rows, begin + jnp.arange(fall.shape[-1]))

        def wide_block(start: Array) -> Array:
            return block(start, jnp.zeros_like(start), columns)

        shape = jax.eval_shape(wide_block, self._starts()[0])
        zeros = jnp.zeros(shape.shape, shape.dtype)

        def narrow() -> Array:
            def add(total: Array, part: Any) -> tuple[Array, None]:
                start, begin, window = part
                index = begin + jnp.arange(self.width)
                more = block(start, begin, window._replace(tau=columns.tau))
                return total.at[..., index].add(more), None

            windows = per_item(columns, self._windows)._replace(tau=self._begins())
            return lax.scan(add, zeros, (self._starts(), self._begins(), windows))[0]

        def wide() -> Array:
            def add(total: Array, start: Array) -> tuple[Array, None]:
                return total + wide_block(start), None

            return lax.scan(add, zeros, self._starts())[0]

        return self._either(columns, narrow, wide)[..., : self.n]
