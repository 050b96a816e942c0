"""Relaxed permutations of scores that have no cheaper form than their matrix."""

from ..permutation import RelaxedPermutation
from .lazy import ScorePermutation


class WrittenPermutation(ScorePermutation):
    """Dense at every length; unimodal or not, `permutation()` is the sort of the scores."""

    def _long(self) -> bool:
        return False

    def is_unimodal(self):
        return RelaxedPermutation(self.to_dense().detach()).is_unimodal()

    def _top(self, k: int) -> RelaxedPermutation:
        return type(self)(self._name, self._kernel, self._ordered, self._dtype, k)

    _log_prob = RelaxedPermutation._log_prob
