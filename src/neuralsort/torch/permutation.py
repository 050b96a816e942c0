"""Relaxed permutations: the lazy operator that everything else consumes."""

from abc import abstractmethod
from typing import Any, final, overload

import torch
from torch import Tensor

from .. import _options
from . import _checks
from .arrays import inferring, matmul, times_column, working
from .gradients import straight_through
from .hardening import harden, is_permutation, row_argmax
from .matrixlike import Matrixlike
from .pytrees import pytree


class RelaxedPermutation(Matrixlike):
    r"""A soft permutation matrix `(..., n, n)`: row = position, column = item, rows sum to 1.

    `P @ X` weighs the items `X` for every position, largest first; its hard counterpart is
    `X[permutation]`. The class is a lazy linear operator: relaxations of scores multiply without
    writing the matrix down when lists are long. It is indexed like its matrix, moved and copied
    like a tensor, and passes through `vmap` and `torch.func`. Make one with a relaxation such as
    `neuralsort(scores)`, or wrap any matrix with `RelaxedPermutation.from_dense(matrix)`; the class
    itself is abstract.

    Example:
        >>> P = RelaxedPermutation.from_dense(torch.tensor([[0.1, 0.9], [0.8, 0.2]]))
        >>> P @ torch.tensor([1.0, 2.0])
        tensor([1.9000, 1.2000])
        >>> P[0, 1]
        tensor(0.9000)
        >>> P.permutation()
        tensor([1, 0])
    """

    @classmethod
    def from_dense(cls, matrix: Tensor) -> "RelaxedPermutation":
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
            >>> RelaxedPermutation.from_dense(torch.eye(3)).shape
            torch.Size([3, 3])
        """
        return DensePermutation(_checks.matrix(matrix))

    # -- what it is ------------------------------------------------------------------------------

    def __repr__(self) -> str:
        """Kind, shape, dtype."""
        return f"RelaxedPermutation({self._kind()}, shape={tuple(self.shape)}, dtype={self.dtype})"

    @abstractmethod
    def _kind(self) -> str:
        """What it says of itself in its repr."""

    @abstractmethod
    def _matrix(self) -> Tensor:
        """The matrix in the dtype of the computation, float32 or float64."""

    def to_dense(self) -> Tensor:
        """The matrix `(..., n, n)`, in the dtype of the scores."""
        matrix = self._matrix()
        return matrix if matrix.dtype == self.dtype else matrix.to(self.dtype)

    # -- products --------------------------------------------------------------------------------

    @overload
    def __matmul__(self, x: Tensor) -> Tensor: ...
    @overload
    def __matmul__(self, x: "RelaxedPermutation") -> "RelaxedPermutation": ...
    def __matmul__(self, x: Any) -> Any:
        """`P @ x` by the rules of `torch.matmul`: `(n,)`, `(n, d)` or `(..., n, d)`.

        `P @ Q` for two relaxed permutations is one again: that which sorts by Q, and then by P.
        """
        if isinstance(x, RelaxedPermutation):
            return Composed(self, x)
        x = _checks.payload(x, self.shape[-1], "P @ x")
        if x.dim() == 1:
            return self.__matmul__(x.unsqueeze(-1)).squeeze(-1)
        _checks.same_batch("P @ x", x.shape[:-2], self.shape)
        out = torch.promote_types(self.dtype, x.dtype)
        return self._product(x.to(working(out))).to(out)

    def __rmatmul__(self, x: Tensor) -> Tensor:
        """`x @ P` by the rules of `torch.matmul`: `(n,)`, `(m, n)` or `(..., m, n)`."""
        return _from_the_left(x, self, self.mT, "x @ P")

    @property
    def mT(self) -> "Transposed":  # noqa: N802 - torch's name
        """The transpose, an operator as well: `P.mT @ y`."""
        return Transposed(self)

    def _product(self, x: Tensor) -> Tensor:
        """`P @ x` for `(..., n, d)`."""
        matrix = self._matrix()
        # Inductor (torch 2.13) makes code of it that does not compile in one method, sinkhorn_sort.
        if torch.compiler.is_compiling() or x.shape[-1] != 1:
            return matmul(matrix, x)
        return times_column(matrix, x)

    def _transposed(self, y: Tensor) -> Tensor:
        """`P.mT @ y` for `(..., n, d)`."""
        # From the left, so that the gradient to the matrix has its layout: added to others it is
        # faster so, and a compiled loop over both layouts is wrong with torch 2.13 on a CPU
        # (https://github.com/pytorch/pytorch/issues/185702).
        return matmul(y.mT, self._matrix()).mT

    def sort(self, x: Tensor) -> Tensor:
        """Values in the order of P; its hard counterpart is `x.gather(-1, permutation)`.

        Args:
            x: `(..., n)`. One value per item; `P.sort(scores)` is the soft sort.

        Returns:
            `(..., n)`, the value at each position.
        """
        x = _checks.list_values(x, self.shape, "P.sort(x)")
        return self.__matmul__(x.unsqueeze(-1)).squeeze(-1)

    def rank(self) -> Tensor:
        """Soft ranks `(..., n)`: the mean position of each item, from 1 for the largest.

        Columns are renormalised: item j has rank `sum_i i P[i, j] / sum_i P[i, j]`. Its hard
        counterpart is `argsort(permutation) + 1`.
        """
        if self.shape[-2] != self.shape[-1]:
            raise ValueError(
                f"`rank` needs all {self.shape[-1]} rows, got an operator with {self.shape[-2]}. "
                "Call it before `top(k)`."
            )
        return self._rank().to(self.dtype)

    def _rank(self) -> Tensor:
        matrix = self._matrix()
        place = torch.arange(1, self.shape[-1] + 1, dtype=matrix.dtype, device=matrix.device)
        return matmul(place, matrix) / matrix.sum(-2)

    def top(self, k: int) -> "RelaxedPermutation":
        """The first k rows, an operator of shape `(..., k, n)`."""
        k = _options.k(k, self.shape[-2])
        return self._top(k)

    @abstractmethod
    def _top(self, k: int) -> "RelaxedPermutation":
        """The first k rows, for a k that was checked."""

    def memberships(self, k: int | Tensor) -> Tensor:
        """How much of each item the first k positions hold: sums of k rows, `(..., n)`.

        They sum to k, and lie between 0 and 1 where the columns of P sum to 1. Their hard
        counterpart is the 0/1 mask of the k largest items.

        Args:
            k: How many: a number, or an integer tensor that broadcasts to the batch `(...)`.
        """
        lists = torch.Size((*self.shape[:-2], self.shape[-2]))
        return self._memberships(_checks.k_per_list(k, lists, self.device)).to(self.dtype)

    def _memberships(self, k: Tensor) -> Tensor:
        row = torch.arange(self.shape[-2], device=self.device)
        first = (row < k.unsqueeze(-1)).to(working(self.dtype))
        return self._transposed(first.unsqueeze(-1)).squeeze(-1)

    # -- what it says of single places ------------------------------------------------------------

    def log_prob(self, perm: Tensor) -> Tensor:
        """`log P[i, perm[i]]`, what a cross-entropy with a known order needs.

        Args:
            perm: `(..., n)` integers. The item at each position.

        Returns:
            `(..., n)`, finite wherever the weight, however small, is not exactly 0.
        """
        perm = _checks.positions("log_prob", perm, self.shape)
        return self._log_prob(perm).to(self.dtype)

    def _log_prob(self, perm: Tensor) -> Tensor:
        matrix = self._matrix()
        batch = torch.broadcast_shapes(perm.shape[:-1], matrix.shape[:-2])
        matrix, perm = (
            matrix.expand(*batch, *matrix.shape[-2:]),
            perm.expand(*batch, perm.shape[-1]),
        )
        weight = matrix.gather(-1, perm.unsqueeze(-1)).squeeze(-1)
        small = weight < torch.finfo(weight.dtype).tiny  # whose gradient, 1 / weight, overflows
        return torch.where(small, weight.detach().log(), weight.masked_fill(small, 1.0).log())

    def entropy(self) -> Tensor:
        """Entropy of each row in nats, `(..., n)`: 0 for a hard row, `log(n)` for a flat one."""
        return self._entropy().to(self.dtype)

    def _entropy(self) -> Tensor:
        matrix = self._matrix()
        return -(matrix * matrix.clamp(min=torch.finfo(matrix.dtype).tiny).log()).sum(-1)

    # -- hardening --------------------------------------------------------------------------------

    @abstractmethod
    def permutation(self) -> Tensor:
        """The hard permutation `(..., n)`: the item at each position, as int64.

        For relaxations of scores this is the stable descending sort, which is the paper's row-wise
        argmax with ties going to the smallest unused item. For other matrices it is that argmax
        where it is a permutation, else the assignment of largest total weight.
        """

    def is_unimodal(self) -> Tensor:
        """Whether each matrix is unimodal row-stochastic as the paper defines it, `(...)` bool.

        Entries are not negative, rows sum to 1 within rounding, and the row-wise argmax, ties
        going to the smallest unused item, is a permutation.
        """
        matrix = self._matrix().detach()
        off = (matrix.sum(-1) - 1).abs().amax(-1) if matrix.numel() else matrix.sum((-1, -2))
        tolerance = 8 * torch.finfo(self.dtype).eps * max(self.shape[-1], 1) ** 0.5
        perm = row_argmax(self.to_dense().detach())
        return (matrix >= 0).all(-1).all(-1) & (off <= tolerance) & is_permutation(perm)

    def straight_through(self) -> "RelaxedPermutation":
        """The exact permutation in the forward pass, this relaxation's gradient in the backward."""
        return StraightThrough(self)


@pytree
@final
class DensePermutation(RelaxedPermutation):
    """A matrix that is given."""

    def __init__(self, matrix: Tensor, perm: Tensor | None = None) -> None:
        self._dense = matrix
        self._perm = perm
        self._hardened = self._version()

    @property
    def shape(self) -> torch.Size:
        return self._dense.shape

    @property
    def dtype(self) -> torch.dtype:
        return self._dense.dtype

    @property
    def device(self) -> torch.device:
        return self._dense.device

    def _taken_apart(self) -> tuple[list[Tensor], None]:
        return [self._dense] if self._perm is None else [self._dense, self._perm], None

    @classmethod
    def _put_together(cls, parts: list[Tensor], rest: None) -> "DensePermutation":
        return cls(*parts)

    def _cast(self, dtype: torch.dtype) -> "DensePermutation":
        return DensePermutation(self._dense.to(dtype))

    def _kind(self) -> str:
        return "dense"

    def _matrix(self) -> Tensor:
        return self._dense.to(working(self.dtype))

    def _top(self, k: int) -> RelaxedPermutation:
        perm = self._perm
        if perm is None and k < self.shape[-2]:
            perm = self.permutation()
        return DensePermutation(self._dense[..., :k, :], None if perm is None else perm[..., :k])

    def _version(self) -> int:
        """How often the matrix was changed in place, where that is counted."""
        if torch.compiler.is_compiling() or self._dense.is_inference():
            return 0
        return self._dense._version

    def permutation(self) -> Tensor:
        if self._perm is not None and self._hardened == self._version():
            return self._perm
        perm = harden(self._dense.detach())
        if not inferring():
            self._perm, self._hardened = perm, self._version()
        return perm


@pytree
class HardPermutation(RelaxedPermutation):
    """A permutation as an operator: products are gathers, and nothing is relaxed."""

    _written = False

    def __init__(self, perm: Tensor, n: int, dtype: torch.dtype) -> None:
        if inferring():  # it may serve gradients when that has ended
            with torch.inference_mode(False):
                perm = perm.clone()
        self._perm, self._n, self._dtype = perm, n, dtype

    def permutation(self) -> Tensor:
        return self._perm

    @property
    def shape(self) -> torch.Size:
        return torch.Size((*self.permutation().shape, self._n))

    @property
    def dtype(self) -> torch.dtype:
        return self._dtype

    @property
    def device(self) -> torch.device:
        return self.permutation().device

    def _taken_apart(self) -> tuple[list[Any], Any]:
        return [self._perm], (self._n, self._dtype)

    @classmethod
    def _put_together(cls, parts: list[Any], rest: Any) -> "HardPermutation":
        return HardPermutation(*parts, *rest)

    def _cast(self, dtype: torch.dtype) -> RelaxedPermutation:
        return HardPermutation(self.permutation(), self._n, dtype)

    def _kind(self) -> str:
        return "hard"

    def _matrix(self) -> Tensor:
        item = torch.arange(self._n, device=self.device)
        return (self.permutation().unsqueeze(-1) == item).to(working(self.dtype))

    def _product(self, x: Tensor) -> Tensor:
        perm = self.permutation()
        batch = torch.broadcast_shapes(perm.shape[:-1], x.shape[:-2])
        x = x.expand(*batch, *x.shape[-2:])
        index = perm.unsqueeze(-1).expand(*batch, perm.shape[-1], x.shape[-1])
        return x.gather(-2, index)

    def _transposed(self, y: Tensor) -> Tensor:
        perm = self.permutation()
        batch = torch.broadcast_shapes(perm.shape[:-1], y.shape[:-2])
        y = y.expand(*batch, *y.shape[-2:])
        index = perm.unsqueeze(-1).expand(y.shape)
        return y.new_zeros(*batch, self._n, y.shape[-1]).scatter(-2, index, y)

    def _rank(self) -> Tensor:
        place = torch.arange(1, self._n + 1, device=self.device, dtype=working(self.dtype))
        perm = self.permutation()
        return torch.empty_like(perm, dtype=place.dtype).scatter(-1, perm, place.expand_as(perm))

    def _top(self, k: int) -> RelaxedPermutation:
        return HardPermutation(self.permutation()[..., :k], self._n, self.dtype)

    def _log_prob(self, perm: Tensor) -> Tensor:
        hit = (self.permutation() == perm).to(working(self.dtype))
        return hit.log()

    def _entropy(self) -> Tensor:
        return torch.zeros_like(self.permutation(), dtype=working(self.dtype))

    def is_unimodal(self) -> Tensor:
        return torch.ones(self.shape[:-2], dtype=torch.bool, device=self.device)

    def straight_through(self) -> RelaxedPermutation:
        return self


@pytree
@final
class StraightThrough(HardPermutation):
    """Values of the hard permutation, gradients to the scores of the relaxed one."""

    def __init__(self, soft: RelaxedPermutation) -> None:
        super().__init__(soft.permutation(), soft.shape[-1], soft.dtype)
        self._soft = soft

    def _taken_apart(self) -> tuple[list[RelaxedPermutation], None]:
        return [self._soft], None

    @classmethod
    def _put_together(cls, parts: list[RelaxedPermutation], rest: None) -> "StraightThrough":
        return cls(*parts)

    def _cast(self, dtype: torch.dtype) -> RelaxedPermutation:
        return StraightThrough(self._soft.to(dtype))

    def _kind(self) -> str:
        return f"straight-through {self._soft._kind()}"

    def _matrix(self) -> Tensor:
        return straight_through(super()._matrix(), self._soft._matrix())

    def _product(self, x: Tensor) -> Tensor:
        return _add_gradient(super()._product(x), self._soft._product(x.detach()))

    def _transposed(self, y: Tensor) -> Tensor:
        return _add_gradient(super()._transposed(y), self._soft._transposed(y.detach()))

    def sort(self, x: Tensor) -> Tensor:
        x = _checks.list_values(x, self.shape, "P.sort(x)")
        hard = HardPermutation(self.permutation(), self._n, self.dtype).sort(x)
        return _add_gradient(hard, self._soft.sort(x.detach()))

    def _rank(self) -> Tensor:
        return straight_through(super()._rank(), self._soft._rank())

    def _log_prob(self, perm: Tensor) -> Tensor:
        return straight_through(super()._log_prob(perm), self._soft._log_prob(perm))

    def _entropy(self) -> Tensor:
        return straight_through(super()._entropy(), self._soft._entropy())

    def _top(self, k: int) -> RelaxedPermutation:
        return StraightThrough(self._soft.top(k))


@pytree
@final
class Composed(RelaxedPermutation):
    """`P @ Q`: what Q sorts, sorted by P. Products pass through both."""

    _written = False

    def __init__(self, left: RelaxedPermutation, right: RelaxedPermutation) -> None:
        _checks.operand_rows(left.shape, right.shape)
        self._left, self._right = left, right

    @property
    def shape(self) -> torch.Size:
        batch = torch.broadcast_shapes(self._left.shape[:-2], self._right.shape[:-2])
        return torch.Size((*batch, self._left.shape[-2], self._right.shape[-1]))

    @property
    def dtype(self) -> torch.dtype:
        return torch.promote_types(self._left.dtype, self._right.dtype)

    @property
    def device(self) -> torch.device:
        return self._left.device

    def _taken_apart(self) -> tuple[list[RelaxedPermutation], None]:
        return [self._left, self._right], None

    @classmethod
    def _put_together(cls, parts: list[RelaxedPermutation], rest: None) -> "Composed":
        return cls(*parts)

    def _children(self) -> list[RelaxedPermutation]:
        batch = self.shape[:-2]
        return [part._expanded(batch) for part in (self._left, self._right)]

    def _cast(self, dtype: torch.dtype) -> "Composed":
        return Composed(self._left.to(dtype), self._right.to(dtype))

    def _kind(self) -> str:
        return f"{self._left._kind()} @ {self._right._kind()}"

    def _matrix(self) -> Tensor:
        matrix = self._left._product(self._right._matrix().to(working(self.dtype)))
        return matrix.expand(self.shape)

    def _product(self, x: Tensor) -> Tensor:
        return self._left._product(self._right._product(x))

    def _transposed(self, y: Tensor) -> Tensor:
        return self._right._transposed(self._left._transposed(y))

    def _rank(self) -> Tensor:
        place = torch.arange(1, self.shape[-1] + 1, dtype=working(self.dtype), device=self.device)
        moment, total = self._transposed(torch.stack([place, torch.ones_like(place)], -1)).unbind(
            -1
        )
        return (moment / total).expand(self.shape[:-1])

    def _top(self, k: int) -> RelaxedPermutation:
        return Composed(self._left.top(k), self._right)

    def permutation(self) -> Tensor:
        """The two hard permutations, one after the other."""
        batch = self.shape[:-2]
        first, then = (part.permutation() for part in (self._right, self._left))
        first, then = (x.expand(*batch, x.shape[-1]) for x in (first, then))
        return first.gather(-1, then)


@pytree
@final
class Transposed(Matrixlike):
    """The transpose of a relaxed permutation: row = item, column = position."""

    def __init__(self, permutation: RelaxedPermutation) -> None:
        self._of = permutation

    @property
    def shape(self) -> torch.Size:
        """`(..., n, n)`, or `(..., n, k)` after `top(k)`."""
        *batch, rows, cols = self._of.shape
        return torch.Size((*batch, cols, rows))

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the scores, and of what comes out."""
        return self._of.dtype

    @property
    def device(self) -> torch.device:
        """Where it lives."""
        return self._of.device

    @property
    def _written(self) -> bool:  # pyright: ignore
        return self._of._written

    def _taken_apart(self) -> tuple[list[RelaxedPermutation], None]:
        return [self._of], None

    @classmethod
    def _put_together(cls, parts: list[RelaxedPermutation], rest: None) -> "Transposed":
        return cls(*parts)

    def _cast(self, dtype: torch.dtype) -> "Transposed":
        return Transposed(self._of.to(dtype))

    def _product(self, x: Tensor) -> Tensor:
        return self._of._transposed(x)

    def _transposed(self, y: Tensor) -> Tensor:
        return self._of._product(y)

    @property
    def mT(self) -> RelaxedPermutation:  # noqa: N802 - torch's name
        """The relaxed permutation itself."""
        return self._of

    def __matmul__(self, x: Tensor) -> Tensor:
        """`P.mT @ y` by the rules of `torch.matmul`: `(n,)`, `(n, d)` or `(..., n, d)`."""
        y = _checks.payload(x, self.shape[-1], "P.mT @ y")
        if y.dim() == 1:
            return self.__matmul__(y.unsqueeze(-1)).squeeze(-1)
        _checks.same_batch("P.mT @ y", y.shape[:-2], self.shape)
        out = torch.promote_types(self._of.dtype, y.dtype)
        return self._of._transposed(y.to(working(out))).to(out)

    def __rmatmul__(self, x: Tensor) -> Tensor:
        """`x @ P.mT` by the rules of `torch.matmul`: `(n,)`, `(m, n)` or `(..., m, n)`."""
        return _from_the_left(x, self, self._of, "x @ P.mT")

    def to_dense(self) -> Tensor:
        """The matrix `(..., n, n)`."""
        return self._of.to_dense().mT

    def __repr__(self) -> str:
        """Says what it transposes."""
        return f"{self._of!r}.mT"


def _from_the_left(x: Tensor, operator: Matrixlike, transpose: Matrixlike, what: str) -> Tensor:
    """`x @ operator`, by its transpose."""
    x = _checks.left_operand(x, operator.shape, what)
    # By the method, not by `@`: in a compiled graph that may not tell the two sides apart.
    return transpose.__matmul__(x) if x.dim() == 1 else transpose.__matmul__(x.mT).mT


def _add_gradient(value: Tensor, soft: Tensor) -> Tensor:
    """`value`, to the bit, with the gradient of `soft` added to its own."""
    return value + straight_through(torch.zeros_like(soft), soft).to(value.dtype)
