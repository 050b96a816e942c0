"""What lets an operator be used like the matrix it stands for: its shape and its entries.

Whatever needs the matrix itself, such as sums and functions of its entries, is refused, with an
error that says how to write it down.
"""

import math
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, NoReturn

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from . import _checks
from .arrays import working
from .indexing import ALL, Selection, enumerated, one_hot, selection, wanted


class Matrixlike(ABC):
    """A linear operator `(..., rows, columns)`."""

    __array_ufunc__ = None  # so that NumPy does not take `x @ P` apart

    @property
    @abstractmethod
    def shape(self) -> tuple[int, ...]:
        """That of the matrix."""

    @property
    @abstractmethod
    def dtype(self) -> jnp.dtype:
        """The dtype of the scores, and of what comes out."""

    @property
    def ndim(self) -> int:
        """How many dimensions the matrix has, those of the batch included."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """How many entries the matrix has, as for arrays."""
        return math.prod(self.shape)

    @abstractmethod
    def to_dense(self) -> Array:
        """The matrix."""

    def _written(self) -> bool:
        """Whether an answer may take the whole matrix."""
        return True

    @abstractmethod
    def _product(self, x: Array) -> Array:
        """The operator times `(..., columns, d)`."""

    @abstractmethod
    def _transposed(self, y: Array) -> Array:
        """Its transpose times `(..., rows, d)`."""

    def __getitem__(self, key: Any) -> Any:
        """Entries as `P.to_dense()[key]` has them; `P[b]`, for lists of a batch, is an operator.

        A row, a column or an entry of a long list is computed without the others.
        """
        chosen = selection(key, self.shape)
        if chosen.whole:
            every = all(isinstance(item, slice) and item == ALL for item in chosen.batch)
            return self if every else jax.tree.map(lambda leaf: leaf[chosen.batch], self)
        return self.to_dense()[chosen.key] if self._written() else self._entries(chosen)

    def _entries(self, chosen: Selection) -> Array:
        """Rows or columns, whichever are fewer, as products with one-hot vectors."""
        *_, rows, columns = self.shape
        row, column = chosen.row, chosen.column
        if wanted(row, rows) <= wanted(column, columns):
            index, row = enumerated(row, rows)
            block = self._transposed(one_hot(index, rows, working(self.dtype))).mT
        else:
            index, column = enumerated(column, columns)
            block = self._product(one_hot(index, columns, working(self.dtype)))
        return block.astype(self.dtype)[(*chosen.batch, row, column)]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        """The matrix for NumPy."""
        return np.asarray(self.to_dense(), dtype)

    if not TYPE_CHECKING:  # where it would stand for every name

        def __getattr__(self, name: str) -> NoReturn:
            """Says of methods that only arrays have how to get an array."""
            if not name.startswith("_") and hasattr(Array, name):
                raise AttributeError(_checks.matrix_needed(f"P.{name}"))
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")


def _refused(name: str) -> Any:
    def refuse(self: Matrixlike, *_: Any) -> NoReturn:
        raise TypeError(_checks.matrix_needed(name))

    return refuse


for _name in ("add", "sub", "mul", "truediv", "pow"):
    setattr(Matrixlike, f"__{_name}__", _refused(_name))
    setattr(Matrixlike, f"__r{_name}__", _refused(_name))
for _name in ("neg", "abs", "float", "lt", "le", "gt", "ge"):
    setattr(Matrixlike, f"__{_name}__", _refused(_name))
