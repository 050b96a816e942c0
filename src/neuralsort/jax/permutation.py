"""Relaxed permutations: the lazy operator that everything else consumes."""

from typing import Any, overload

import jax
import jax.numpy as jnp
from jax import Array, lax

from .. import _options
from . import _checks
from .arrays import entries, inverse, matmul, spoilt_unless, take_rows, working
from .gradients import straight_through
from .hardening import harden, is_permutation, row_argmax
from .matrixlike import Matrixlike
from .pytrees import described, pytree


@pytree("_dense", "_perm")
class RelaxedPermutation(Matrixlike):
    r"""A soft permutation matrix `(..., n, n)`: row = position, column = item, rows sum to 1.

    `P @ X` weighs the items `X` for every position, largest first; its hard counterpart is
    `X[permutation]`. The class is a lazy linear operator and a pytree: it passes through `jit`,
    `vmap` and `grad`, and relaxations of scores multiply without writing the matrix down when lists
    are long. It is indexed like its matrix. Make one with a relaxation such as
    `neuralsort(scores)`, or wrap any matrix with `RelaxedPermutation.from_dense(matrix)`.

    Example:
        >>> P = RelaxedPermutation.from_dense(jnp.array([[0.1, 0.9], [0.8, 0.2]]))
        >>> P @ jnp.array([1.0, 2.0])
        Array([1.9, 1.2], dtype=float32)
        >>> P[0, 1]
        Array(0.9, dtype=float32)
        >>> P.permutation()
        Array([1, 0], dtype=int32)
    """

    def __init__(self, matrix: Array, perm: Array | None = None) -> None:
        self._dense = matrix
        self._perm = perm

    @classmethod
    def from_dense(cls, matrix: Array) -> "RelaxedPermutation":
        """Wraps a row-stochastic matrix.

        Args:
            matrix: `(..., n, n)`. Rows are positions, columns are items, rows sum to 1.

        Returns:
            The operator. Its `permutation()` is the row-wise argmax, ties going to the smallest
            unused item, where that is a permutation, and the assignment of largest total weight
            where it is not.

        Raises:
            TypeError: If the matrix is not floating point.
            ValueError: If it is not square.

        Example:
            >>> RelaxedPermutation.from_dense(jnp.eye(3)).shape
            (3, 3)
        """
        return RelaxedPermutation(_checks.matrix(matrix))

    # -- what it is ------------------------------------------------------------------------------

    @property
    def shape(self) -> tuple[int, ...]:
        """`(..., n, n)`, or `(..., k, n)` after `top(k)`."""
        return self._dense.shape

    @property
    def dtype(self) -> jnp.dtype:
        """The dtype of the scores, and of what comes out."""
        return self._dense.dtype

    def __repr__(self) -> str:
        """Kind, shape, dtype."""

        def describe() -> str:
            return f"RelaxedPermutation({self._kind()}, shape={self.shape}, dtype={self.dtype})"

        return described(self, describe)

    def _kind(self) -> str:
        return "dense"

    def _matrix(self) -> Array:
        """The matrix in the dtype of the computation, float32 or float64."""
        return self._dense.astype(working(self.dtype))

    def to_dense(self) -> Array:
        """The matrix `(..., n, n)`, in the dtype of the scores."""
        return self._matrix().astype(self.dtype)

    # -- products --------------------------------------------------------------------------------

    @overload
    def __matmul__(self, x: Array) -> Array: ...
    @overload
    def __matmul__(self, x: "RelaxedPermutation") -> "RelaxedPermutation": ...
    def __matmul__(self, x: Any) -> Any:
        """`P @ x` by the rules of `jnp.matmul`: `(n,)`, `(n, d)` or `(..., n, d)`.

        `P @ Q` for two relaxed permutations is one again: that which sorts by Q, and then by P.
        """
        if isinstance(x, RelaxedPermutation):
            return Composed(self, x)
        x = _checks.payload(x, self.shape, "P @ x")
        if x.ndim == 1:
            return (self @ x[:, None])[..., 0]
        out = jnp.promote_types(self.dtype, x.dtype)
        return self._product(x.astype(working(out))).astype(out)

    def __rmatmul__(self, x: Array) -> Array:
        """`x @ P` by the rules of `jnp.matmul`: `(n,)`, `(m, n)` or `(..., m, n)`."""
        return _from_the_left(x, self, self.mT, "x @ P")

    @property
    def mT(self) -> "Transposed":  # noqa: N802 - the arrays' name
        """The transpose, an operator as well: `P.mT @ y`."""
        return Transposed(self)

    def _product(self, x: Array) -> Array:
        """`P @ x` for `(..., n, d)`."""
        return matmul(self._matrix(), x)

    def _transposed(self, y: Array) -> Array:
        """`P.mT @ y` for `(..., n, d)`."""
        return matmul(self._matrix().mT, y)

    def sort(self, x: Array) -> Array:
        """Values in the order of P; its hard counterpart is `x[permutation]`.

        Args:
            x: `(..., n)`. One value per item; `P.sort(scores)` is the soft sort.

        Returns:
            `(..., n)`, the value at each position. In relaxations of this library a value that is
            not finite counts only where its item has weight: whatever `x` holds for items that are
            absent, or infinitely high or low, stays in their own places.
        """
        x = _checks.list_values(x, self.shape, "P.sort(x)")
        out = jnp.promote_types(self.dtype, x.dtype)
        return self._sort(x.astype(working(out))).astype(out)

    def _sort(self, x: Array) -> Array:
        return self._product(x[..., None])[..., 0]

    def rank(self) -> Array:
        """Soft ranks `(..., n)`: the mean position of each item, from 1 for the largest.

        Columns are renormalised: item j has rank `sum_i i P[i, j] / sum_i P[i, j]`. Its hard
        counterpart is `argsort(permutation) + 1`.
        """
        if self.shape[-2] != self.shape[-1]:
            raise ValueError(
                f"`rank` needs all {self.shape[-1]} rows, got an operator with {self.shape[-2]}. "
                "Call it before `top(k)`."
            )
        return self._rank().astype(self.dtype)

    def _rank(self) -> Array:
        matrix = self._matrix()
        place = jnp.arange(1, self.shape[-1] + 1, dtype=matrix.dtype)
        return matmul(place, matrix) / matrix.sum(-2)

    def top(self, k: int) -> "RelaxedPermutation":
        """The first k rows, an operator of shape `(..., k, n)`."""
        _checks.static(k=k)
        return self._top(_options.k(k, self.shape[-2]))

    def _top(self, k: int) -> "RelaxedPermutation":
        return RelaxedPermutation(self._dense[..., :k, :], self.permutation()[..., :k])

    def memberships(self, k: int | Array) -> Array:
        """How much of each item the first k positions hold: sums of k rows, `(..., n)`.

        They sum to k, and lie between 0 and 1 where the columns of P sum to 1. Their hard
        counterpart is the 0/1 mask of the k largest items.

        Args:
            k: How many: a number, or an integer array that broadcasts to the batch `(...)`.
        """
        k = _checks.k_per_list(k, (*self.shape[:-2], self.shape[-2]))
        return self._memberships(k).astype(self.dtype)

    def _memberships(self, k: Array) -> Array:
        first = (jnp.arange(self.shape[-2]) < k[..., None]).astype(working(self.dtype))
        return self._transposed(first[..., None])[..., 0]

    # -- what it says of single places ------------------------------------------------------------

    def log_prob(self, perm: Array) -> Array:
        """`log P[i, perm[i]]`, what a cross-entropy with a known order needs.

        Args:
            perm: `(..., n)` integers from 0 to n - 1. The item at each position.

        Returns:
            `(..., n)`, finite wherever the weight, however small, is not exactly 0.

        Raises:
            TypeError: If `perm` is not integer.
            ValueError: If its shape does not fit, or an item is out of range. Traced values cannot
                be read: there the result is NaN.
        """
        return self._checked_log_prob("log_prob", perm).astype(self.dtype)

    def _checked_log_prob(self, name: str, perm: Array) -> Array:
        """The same in the dtype of the computation; `name` is who asks."""
        n = self.shape[-1]
        perm = _checks.positions(name, perm, self.shape[-2])
        _checks.in_range(name, perm, n)
        _checks.same_batch(name, perm.shape[:-1], self.shape)
        known = (perm >= 0) & (perm < n)
        return self._log_prob(jnp.where(known, perm, 0)) * spoilt_unless(known)

    def _log_prob(self, perm: Array) -> Array:
        weight = entries(self._matrix(), perm)
        small = weight < jnp.finfo(weight.dtype).tiny  # whose gradient, 1 / weight, overflows
        known = jnp.log(lax.stop_gradient(weight))
        return jnp.where(small, known, jnp.log(jnp.where(small, 1.0, weight)))

    def entropy(self) -> Array:
        """Entropy of each row in nats, `(..., n)`: 0 for a hard row, `log(n)` for a flat one."""
        return self._entropy().astype(self.dtype)

    def _entropy(self) -> Array:
        matrix = self._matrix()
        return -(matrix * jnp.log(jnp.maximum(matrix, jnp.finfo(matrix.dtype).tiny))).sum(-1)

    # -- hardening --------------------------------------------------------------------------------

    def permutation(self) -> Array:
        """The hard permutation `(..., n)`: the item at each position, as integers.

        For relaxations of scores this is the stable descending sort, which is the paper's row-wise
        argmax with ties going to the smallest unused item. For other matrices it is that argmax
        where it is a permutation, else the assignment of largest total weight.
        """
        return harden(lax.stop_gradient(self._dense)) if self._perm is None else self._perm

    def is_unimodal(self) -> Array:
        """Whether each matrix is unimodal row-stochastic as the paper defines it, `(...)` bool.

        Entries are not negative, rows sum to 1 within rounding, and the row-wise argmax, ties
        going to the smallest unused item, is a permutation.
        """
        matrix = lax.stop_gradient(self.to_dense())
        off = jnp.abs(matrix.astype(working(self.dtype)).sum(-1) - 1)
        tolerance = 8 * float(jnp.finfo(self.dtype).eps) * max(self.shape[-1], 1) ** 0.5
        fair = (matrix >= 0).all((-1, -2)) & (off <= tolerance).all(-1)
        return fair & is_permutation(row_argmax(matrix))

    def straight_through(self) -> "RelaxedPermutation":
        """The exact permutation in the forward pass, this relaxation's gradient in the backward."""
        return StraightThrough(self)

    # -- what it leaves out -----------------------------------------------------------------------

    def skipped_mass(self) -> Array:
        """Bound on the share of each row's weight that products may skip, `(..., n)`.

        It is 0 but for long lists with a `bandwidth`. There it bounds the weight of all items
        outside the window of the row: where it exceeds 1e-7 (1e-14 in float64) in any row of any
        list, products visit every item, and skip nothing.
        """
        return jnp.zeros(self.shape[:-1], working(self.dtype))


@pytree("_perm", static=("_n", "_dtype"))
class HardPermutation(RelaxedPermutation):
    """A permutation as an operator: products are gathers, and nothing is relaxed."""

    def __init__(self, perm: Array, n: int, dtype: jnp.dtype) -> None:
        self._perm = perm
        self._n, self._dtype = n, dtype

    @property
    def shape(self) -> tuple[int, ...]:
        return (*self.permutation().shape, self._n)

    @property
    def dtype(self) -> jnp.dtype:
        return self._dtype

    def _kind(self) -> str:
        return "hard"

    def _written(self) -> bool:
        return False

    def _matrix(self) -> Array:
        return self._one_hot()

    def _one_hot(self) -> Array:
        return jax.nn.one_hot(self.permutation(), self._n, dtype=working(self.dtype))

    def _product(self, x: Array) -> Array:
        return take_rows(x, self.permutation())

    def _transposed(self, y: Array) -> Array:
        perm = self.permutation()
        if perm.shape[-1] == self._n:
            return take_rows(y, inverse(perm))
        return matmul(self._one_hot().mT, y)

    def _rank(self) -> Array:
        return inverse(self.permutation()).astype(working(self.dtype)) + 1

    def _top(self, k: int) -> RelaxedPermutation:
        return HardPermutation(self.permutation()[..., :k], self._n, self.dtype)

    def _log_prob(self, perm: Array) -> Array:
        return jnp.log((self.permutation() == perm).astype(working(self.dtype)))

    def _entropy(self) -> Array:
        return jnp.zeros(self.permutation().shape, working(self.dtype))

    def is_unimodal(self) -> Array:
        return jnp.ones(self.shape[:-2], bool)

    def straight_through(self) -> RelaxedPermutation:
        return self


@pytree("_soft")
class StraightThrough(HardPermutation):
    """Values of the hard permutation, gradients to the scores of the relaxed one."""

    def __init__(self, soft: RelaxedPermutation) -> None:
        self._soft = soft

    @property
    def shape(self) -> tuple[int, ...]:
        return self._soft.shape

    @property
    def dtype(self) -> jnp.dtype:
        return self._soft.dtype

    @property
    def _n(self) -> int:
        return self._soft.shape[-1]

    def permutation(self) -> Array:
        return self._soft.permutation()

    def _kind(self) -> str:
        return f"straight-through {self._soft._kind()}"

    def _matrix(self) -> Array:
        return straight_through(self._one_hot(), self._soft._matrix())

    def _product(self, x: Array) -> Array:
        return _add_gradient(super()._product(x), self._soft._product(lax.stop_gradient(x)))

    def _sort(self, x: Array) -> Array:
        hard = super()._product(x[..., None])[..., 0]
        return _add_gradient(hard, self._soft._sort(lax.stop_gradient(x)))

    def _transposed(self, y: Array) -> Array:
        return _add_gradient(super()._transposed(y), self._soft._transposed(lax.stop_gradient(y)))

    def _rank(self) -> Array:
        return straight_through(super()._rank(), self._soft._rank())

    def _log_prob(self, perm: Array) -> Array:
        soft = self._soft._log_prob(perm)
        return straight_through(jnp.broadcast_to(super()._log_prob(perm), soft.shape), soft)

    def _entropy(self) -> Array:
        return straight_through(super()._entropy(), self._soft._entropy())

    def _top(self, k: int) -> RelaxedPermutation:
        return StraightThrough(self._soft.top(k))

    def skipped_mass(self) -> Array:
        return self._soft.skipped_mass()


@pytree("_left", "_right")
class Composed(RelaxedPermutation):
    """`P @ Q`: what Q sorts, sorted by P. Products pass through both."""

    def __init__(self, left: RelaxedPermutation, right: RelaxedPermutation) -> None:
        _checks.operand_rows(left.shape, right.shape)
        batch = jnp.broadcast_shapes(left.shape[:-2], right.shape[:-2])
        self._left, self._right = _expanded(left, batch), _expanded(right, batch)

    @property
    def shape(self) -> tuple[int, ...]:
        return (*self._left.shape[:-1], self._right.shape[-1])

    @property
    def dtype(self) -> jnp.dtype:
        return jnp.promote_types(self._left.dtype, self._right.dtype)

    def _kind(self) -> str:
        return f"{self._left._kind()} @ {self._right._kind()}"

    def _written(self) -> bool:
        return False

    def _matrix(self) -> Array:
        return self._left._product(self._right._matrix().astype(working(self.dtype)))

    def _product(self, x: Array) -> Array:
        return self._left._product(self._right._product(x))

    def _transposed(self, y: Array) -> Array:
        return self._right._transposed(self._left._transposed(y))

    def _rank(self) -> Array:
        place = jnp.arange(1, self.shape[-1] + 1, dtype=working(self.dtype))
        both = self._transposed(jnp.stack([place, jnp.ones_like(place)], -1))
        return both[..., 0] / both[..., 1]

    def _top(self, k: int) -> RelaxedPermutation:
        return Composed(self._left.top(k), self._right)

    def permutation(self) -> Array:
        """The two hard permutations, one after the other."""
        first, then = self._right.permutation(), self._left.permutation()
        return jnp.take_along_axis(first, then, -1)


def _expanded(operator: RelaxedPermutation, batch: tuple[int, ...]) -> RelaxedPermutation:
    """The same operator for a larger batch."""
    width = operator.ndim - 2
    if operator.shape[:-2] == batch:
        return operator
    return jax.tree.map(lambda x: jnp.broadcast_to(x, (*batch, *x.shape[width:])), operator)


@pytree("_of")
class Transposed(Matrixlike):
    """The transpose of a relaxed permutation: row = item, column = position."""

    def __init__(self, permutation: RelaxedPermutation) -> None:
        self._of = permutation

    @property
    def shape(self) -> tuple[int, ...]:
        """`(..., n, n)`, or `(..., n, k)` after `top(k)`."""
        *batch, rows, cols = self._of.shape
        return (*batch, cols, rows)

    @property
    def dtype(self) -> jnp.dtype:
        """The dtype of the scores, and of what comes out."""
        return self._of.dtype

    def _written(self) -> bool:
        return self._of._written()

    def _product(self, x: Array) -> Array:
        return self._of._transposed(x)

    def _transposed(self, y: Array) -> Array:
        return self._of._product(y)

    @property
    def mT(self) -> RelaxedPermutation:  # noqa: N802 - the arrays' name
        """The relaxed permutation itself."""
        return self._of

    def __matmul__(self, x: Array) -> Array:
        """`P.mT @ y` by the rules of `jnp.matmul`: `(n,)`, `(n, d)` or `(..., n, d)`."""
        y = _checks.payload(x, self.shape, "P.mT @ y")
        if y.ndim == 1:
            return (self @ y[:, None])[..., 0]
        out = jnp.promote_types(self._of.dtype, y.dtype)
        return self._of._transposed(y.astype(working(out))).astype(out)

    def __rmatmul__(self, x: Array) -> Array:
        """`x @ P.mT` by the rules of `jnp.matmul`: `(n,)`, `(m, n)` or `(..., m, n)`."""
        return _from_the_left(x, self, self._of, "x @ P.mT")

    def to_dense(self) -> Array:
        """The matrix `(..., n, n)`."""
        return self._of.to_dense().mT

    def __repr__(self) -> str:
        """Says what it transposes."""
        return f"{self._of!r}.mT"


def _from_the_left(x: Array, operator: Matrixlike, transpose: Any, what: str) -> Array:
    """`x @ operator`, by its transpose."""
    x = _checks.left_operand(x, operator.shape, what)
    return transpose @ x if x.ndim < 2 else (transpose @ x.mT).mT


def _add_gradient(value: Array, soft: Array) -> Array:
    """`value`, to the bit, with the gradient of `soft` added to its own."""
    return value + straight_through(jnp.zeros_like(soft), soft)
