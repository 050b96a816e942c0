"""What relaxations of scores share: their checks, their order, and the hard permutation."""

from typing import Protocol

import jax.numpy as jnp
from jax import Array

from .. import _checks
from ..arrays import working
from ..permutation import HardPermutation, RelaxedPermutation
from ..pytrees import pytree
from .ordering import descending


class Make(Protocol):
    """Scores `(..., n)`, temperatures `(..., 1)` and a mask to a relaxed permutation."""

    def __call__(self, scores: Array, tau: Array, mask: Array | None, /) -> RelaxedPermutation:
        """Relaxes the descending sort."""
        ...


def relaxed(
    name: str, make: Make, scores: Array, tau: float | Array, mask: Array | None
) -> RelaxedPermutation:
    """Checks scores, temperature and mask, and makes the operator."""
    scores = _checks.scores(f"{name}(scores)", scores)
    tau = _checks.tau(tau, scores)
    mask = _checks.mask(mask, scores.shape)
    if not isinstance(tau, Array) and tau == 0:
        return HardPermutation(descending(scores, mask), scores.shape[-1], scores.dtype)
    lists = (*scores.shape[:-1], 1)  # every leaf has the batch in front, as vmap expects
    return make(scores, jnp.broadcast_to(jnp.asarray(tau, working(scores.dtype)), lists), mask)


@pytree("_scores", "_tau", "_mask", static=("_rows",))
class ScorePermutation(RelaxedPermutation):
    """A relaxed permutation that sorts scores, largest first."""

    def __init__(self, scores: Array, tau: Array, mask: Array | None, rows: int) -> None:
        self._scores, self._tau, self._mask = scores, tau, mask
        self._rows = rows

    @property
    def shape(self) -> tuple[int, ...]:
        """`(..., n, n)`, or `(..., k, n)` after `top(k)`."""
        return (*self._scores.shape[:-1], self._rows, self._scores.shape[-1])

    @property
    def dtype(self) -> jnp.dtype:
        """The dtype of the scores, and of what comes out."""
        return self._scores.dtype

    def _lists(self) -> tuple[Array, Array, Array | None]:
        return self._scores, self._tau, self._mask

    def permutation(self) -> Array:
        """The stable descending sort of the scores, `(..., n)`."""
        return descending(self._scores, self._mask)[..., : self._rows]
