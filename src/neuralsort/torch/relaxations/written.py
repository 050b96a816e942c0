"""Relaxed permutations of scores that have no cheaper form than their matrix."""

from typing import Protocol

import torch
from torch import Tensor

from ..permutation import RelaxedPermutation
from .lazy import ScorePermutation
from .ordering import Ordered


class Written(Protocol):
    """What a relaxation must answer that is always written down."""

    def matrix(self, ordered: Ordered, dtype: torch.dtype, rows: int) -> Tensor:
        """The first rows of the matrix, columns in the order of the items."""
        ...


class WrittenPermutation(ScorePermutation):
    """Dense at every length; unimodal or not, `permutation()` is the sort of the scores."""

    def __init__(
        self,
        name: str,
        kernel: Written,
        ordered: Ordered,
        dtype: torch.dtype,
        rows: int | None = None,
    ) -> None:
        super().__init__(name, kernel, ordered, dtype, rows)  # pyright: ignore

    def _long(self) -> bool:
        return False

    def is_unimodal(self) -> Tensor:
        return RelaxedPermutation(self.to_dense().detach()).is_unimodal()

    def _top(self, k: int) -> RelaxedPermutation:
        return type(self)(self._name, self._kernel, self._ordered, self._dtype, k)

    _log_prob = RelaxedPermutation._log_prob
