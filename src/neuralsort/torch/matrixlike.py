"""What lets an operator be used like the matrix it stands for: its shape, entries and copies.

Whatever needs the matrix itself, such as sums and functions of its entries, is refused, with an
error that says how to write it down.
"""

import operator
from abc import abstractmethod
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

import torch
from torch import Tensor

from . import _checks
from .arrays import working
from .indexing import ALL, Selection, enumerated, one_hot, selection, wanted
from .pytrees import Tree

Kind = TypeVar("Kind", bound="Matrixlike")


class Matrixlike(Tree):
    """A linear operator `(..., rows, columns)`."""

    _written = True  # whether an answer may take the whole matrix
    __array_ufunc__ = None  # so that NumPy does not take `x @ P` apart

    # -- what it is ------------------------------------------------------------------------------

    @property
    @abstractmethod
    def shape(self) -> torch.Size:
        """That of the matrix."""

    @property
    @abstractmethod
    def dtype(self) -> torch.dtype:
        """The dtype of the scores, and of what comes out."""

    @property
    @abstractmethod
    def device(self) -> torch.device:
        """Where it lives."""

    @property
    def ndim(self) -> int:
        """How many dimensions the matrix has, those of the batch included."""
        return len(self.shape)

    def size(self, dim: int | None = None) -> torch.Size | int:
        """The shape, or its entry at `dim`, as for tensors."""
        return self.shape if dim is None else self.shape[dim]

    @abstractmethod
    def to_dense(self) -> Tensor:
        """The matrix."""

    # -- entries ---------------------------------------------------------------------------------

    @abstractmethod
    def _product(self, x: Tensor) -> Tensor:
        """The operator times `(..., columns, d)`."""

    @abstractmethod
    def _transposed(self, y: Tensor) -> Tensor:
        """Its transpose times `(..., rows, d)`."""

    def __getitem__(self, key: Any) -> Any:
        """Entries as `P.to_dense()[key]` has them; `P[b]`, for lists of a batch, is an operator.

        A row, a column or an entry of a long list is computed without the others.
        """
        chosen = selection(key, self.shape, self.device)
        if chosen.whole:
            return self if chosen.batch == (ALL,) * (self.ndim - 2) else self._of_lists(chosen)
        if self._written:
            return self.to_dense()[chosen.key]
        return self._entries(chosen)

    def _entries(self, chosen: Selection) -> Tensor:
        """Rows or columns, whichever are fewer, as products with one-hot vectors."""
        *_, rows, columns = self.shape
        row, column = chosen.row, chosen.column
        if wanted(row, rows) <= wanted(column, columns):
            index, row = enumerated(row, rows, self.device)
            block = self._transposed(one_hot(index, rows, working(self.dtype))).mT
        else:
            index, column = enumerated(column, columns, self.device)
            block = self._product(one_hot(index, columns, working(self.dtype)))
        return block.to(self.dtype)[(*chosen.batch, row, column)]

    def _of_lists(self, chosen: Selection) -> Any:
        """The operator of some lists of the batch."""
        parts, rest = self._children(), self._taken_apart()[1]
        return type(self)._put_together([part[chosen.batch] for part in parts], rest)

    def _expanded(self: Kind, batch: torch.Size) -> Kind:
        """The same operator for a larger batch."""
        width = self.ndim - 2

        def expand(part: Any) -> Any:
            if isinstance(part, Matrixlike):
                return part._expanded(batch)
            return part.expand(*batch, *part.shape[width:])

        if batch == self.shape[:-2]:
            return self
        parts, rest = self._children(), self._taken_apart()[1]
        return type(self)._put_together([expand(part) for part in parts], rest)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        """The matrix for NumPy: on the host, without gradient, bfloat16 as float32."""
        matrix = self.to_dense().detach().cpu()
        matrix = matrix.float() if matrix.dtype is torch.bfloat16 else matrix
        return matrix.numpy() if dtype is None else matrix.numpy().astype(dtype)

    # -- copies ----------------------------------------------------------------------------------

    def detach(self: Kind) -> Kind:
        """The same operator without gradient to its scores, as `Tensor.detach` has it."""
        return self._mapped(lambda part: part.detach())

    def to(self: Kind, *args: Any, **kwargs: Any) -> Kind:
        """The same operator on another device, or in another floating-point dtype.

        Args:
            *args: As for `Tensor.to`: a device, a dtype, both, or a tensor that has them.
            **kwargs: Likewise.

        Returns:
            An operator that sorts anew in that dtype; gradients reach the scores it came from.

        Raises:
            TypeError: If the dtype is not floating point.
        """
        device, dtype, non_blocking, _ = torch._C._nn._parse_to(*args, **kwargs)  # pyright: ignore
        if dtype is not None:
            _checks.operator_dtype(dtype)
        moved = self
        if device is not None and device != self.device:
            moved = self._moved(device, non_blocking)
        return moved if dtype is None or dtype == self.dtype else moved._cast(dtype)

    def _moved(self, device: torch.device, non_blocking: bool) -> Any:
        """The same operator on another device."""
        return self._mapped(lambda part: part.to(device=device, non_blocking=non_blocking))

    @abstractmethod
    def _cast(self, dtype: torch.dtype) -> Any:
        """The same operator in another dtype."""

    # -- products by the rules of torch, and all that is refused ----------------------------------

    @abstractmethod
    def __matmul__(self, x: Any) -> Any:
        """The operator times a tensor."""

    @abstractmethod
    def __rmatmul__(self, x: Tensor) -> Tensor:
        """A tensor times the operator."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: tuple = (), kwargs: Any = None) -> Any:
        name = getattr(func, "__name__", str(func))
        if len(args) == 2 and not kwargs and name in ("matmul", "linalg_matmul"):
            left, right = args
            if isinstance(left, Matrixlike):
                return left.__matmul__(right)
            if torch.compiler.is_compiling():
                return _compiled_product(func in (torch.matmul, operator.matmul), left, right)
            return right.__rmatmul__(left)
        return _checks.needs_the_matrix(name)

    if not TYPE_CHECKING:  # where it would stand for every name

        def __getattr__(self, name: str) -> NoReturn:
            """Says of methods that only tensors have how to get a tensor."""
            if not name.startswith("_") and hasattr(Tensor, name):
                raise AttributeError(_checks.matrix_needed(f"P.{name}"))
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")


def _compiled_product(in_order: bool, x: Tensor, A: Matrixlike) -> Tensor:
    """`x @ A`, or `A @ x` which a compiler hands on as `x @ A`: where both fit, nobody can tell.

    Args:
        in_order: Whether the operands come as they were written.
        x: A tensor.
        A: The operator.
    """
    rows, columns = A.shape[-2:]
    before, after = x.shape[-1] == rows, x.shape[max(-2, -x.dim())] == columns
    if in_order or (before and not after):
        return A.__rmatmul__(x)
    if before and after:
        _checks.one_side_only(tuple(x.shape), (rows, columns))
    return A.__matmul__(x)


def _refused(name: str) -> Any:
    def refuse(self: Matrixlike, *_: Any) -> NoReturn:
        _checks.needs_the_matrix(name)

    return refuse


for _name in ("add", "sub", "mul", "truediv", "pow"):
    setattr(Matrixlike, f"__{_name}__", _refused(_name))
    setattr(Matrixlike, f"__r{_name}__", _refused(_name))
for _name in ("neg", "abs", "float", "lt", "le", "gt", "ge"):
    setattr(Matrixlike, f"__{_name}__", _refused(_name))
