"""Relaxed permutations: the lazy operator that everything else consumes."""

import operator
from abc import ABC, abstractmethod
from typing import Any, final

import torch
from torch import Tensor

from .. import _options
from . import _checks
from .arrays import inferring, matmul, working
from .gradients import straight_through
from .hardening import harden, is_permutation, row_argmax


class _Operator:
    """What multiplies from the left: `A @ x`, and `torch.matmul(A, x)`."""

    def __matmul__(self, x: Tensor) -> Tensor:
        raise NotImplementedError

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: tuple = (), kwargs: Any = None) -> Any:
        if kwargs or len(args) != 2:
            return NotImplemented
        if func is torch.matmul and isinstance(args[0], _Operator):
            return args[0].__matmul__(args[1])
        if torch.compiler.is_compiling() and getattr(func, "__name__", "") == "matmul":
            return _matmul_compiled(func in (torch.matmul, operator.matmul), *args)
        return NotImplemented


class RelaxedPermutation(_Operator, ABC):
    r"""A row-stochastic `(..., n, n)` that relaxes a permutation: row = position, column = item.

    `P @ X` weighs the items `X` for every position, largest first; its hard counterpart is
    `X[permutation]`. The class is a lazy linear operator: relaxations of scores multiply without
    writing the matrix down when lists are long. Make one with a relaxation such as
    `neuralsort(scores)`, or wrap any matrix with `RelaxedPermutation.from_dense(matrix)`; the class
    itself is abstract.

    Example:
        >>> P = RelaxedPermutation.from_dense(torch.tensor([[0.1, 0.9], [0.8, 0.2]]))
        >>> P @ torch.tensor([1.0, 2.0])
        tensor([1.9000, 1.2000])
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

    @property
    @abstractmethod
    def shape(self) -> torch.Size:
        """`(..., n, n)`, or `(..., k, n)` after `top(k)`."""

    @property
    @abstractmethod
    def dtype(self) -> torch.dtype:
        """The dtype of the scores, and of what comes out."""

    @property
    @abstractmethod
    def device(self) -> torch.device:
        """Where it lives."""

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

    def __matmul__(self, x: Tensor) -> Tensor:
        """`P @ x` by the rules of `torch.matmul`: `(n,)`, `(n, d)` or `(..., n, d)`."""
        x = _checks.payload(x, self.shape[-1], "P @ x")
        if x.dim() == 1:
            return self.__matmul__(x.unsqueeze(-1)).squeeze(-1)
        _checks.same_batch("P @ x", x.shape[:-2], self.shape)
        out = torch.promote_types(self.dtype, x.dtype)
        return self._product(x.to(working(out))).to(out)

    @property
    def mT(self) -> "Transposed":  # noqa: N802 - torch's name
        """The transpose, an operator as well: `P.mT @ y`."""
        return Transposed(self)

    def _product(self, x: Tensor) -> Tensor:
        """`P @ x` for `(..., n, d)`."""
        return matmul(self._matrix(), x)

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


@final
class DensePermutation(RelaxedPermutation):
    """A matrix that is given."""

    def __init__(self, matrix: Tensor, perm: Tensor | None = None) -> None:
        self._dense = matrix
        self._perm = perm

    @property
    def shape(self) -> torch.Size:
        return self._dense.shape

    @property
    def dtype(self) -> torch.dtype:
        return self._dense.dtype

    @property
    def device(self) -> torch.device:
        return self._dense.device

    def _kind(self) -> str:
        return "dense"

    def _matrix(self) -> Tensor:
        return self._dense.to(working(self.dtype))

    def _top(self, k: int) -> RelaxedPermutation:
        perm = self._perm
        if perm is None and k < self.shape[-2]:
            perm = self.permutation()
        return DensePermutation(self._dense[..., :k, :], None if perm is None else perm[..., :k])

    def permutation(self) -> Tensor:
        if self._perm is not None:
            return self._perm
        perm = harden(self._dense.detach())
        if not inferring():
            self._perm = perm
        return perm


class HardPermutation(RelaxedPermutation):
    """A permutation as an operator: products are gathers, and nothing is relaxed."""

    def __init__(self, perm: Tensor, n: int, dtype: torch.dtype) -> None:
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


@final
class StraightThrough(HardPermutation):
    """Values of the hard permutation, gradients to the scores of the relaxed one."""

    def __init__(self, soft: RelaxedPermutation) -> None:
        super().__init__(soft.permutation(), soft.shape[-1], soft.dtype)
        self._soft = soft

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


class Transposed(_Operator):
    """The transpose of a relaxed permutation: row = item, column = position."""

    def __init__(self, permutation: RelaxedPermutation) -> None:
        self._of = permutation

    @property
    def shape(self) -> torch.Size:
        """`(..., n, n)`, or `(..., n, k)` after `top(k)`."""
        *batch, rows, cols = self._of.shape
        return torch.Size((*batch, cols, rows))

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

    def to_dense(self) -> Tensor:
        """The matrix `(..., n, n)`."""
        return self._of.to_dense().mT

    def __repr__(self) -> str:
        """Says what it transposes."""
        return f"{self._of!r}.mT"


def _matmul_compiled(in_order: bool, x: Any, y: Any) -> Tensor:
    """`x @ A`, or `A @ x` which a compiler hands on as `x @ A`: where both fit, nobody can tell.

    Args:
        in_order: Whether the operands come as they were written.
        x: A tensor, or the operator of `A @ x` in order.
        y: The operator.
    """
    if isinstance(x, _Operator):
        return x.__matmul__(y)
    rows, columns = y.shape[-2:]
    before, after = x.shape[-1] == rows, x.shape[max(-2, -x.dim())] == columns
    if before and (in_order or not after):
        return matmul(x, y.to_dense())
    if in_order:
        return NotImplemented
    if before and after:
        _checks.one_side_only(tuple(x.shape), (rows, columns))
    return y.__matmul__(x)


def _add_gradient(value: Tensor, soft: Tensor) -> Tensor:
    """`value`, to the bit, with the gradient of `soft` added to its own."""
    return value + straight_through(torch.zeros_like(soft), soft).to(value.dtype)
