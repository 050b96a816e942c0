r"""LapSum: positions are intervals of a line on which every item is a Laplace distribution.

The mass of an item up to the end of position i is its membership among the i largest, for which
there is one threshold; a position holds what one membership has more than the one before.
"""

import jax.numpy as jnp
from jax import Array

from ..._blur import between
from .. import _checks
from ..arrays import take_rows, working
from ..permutation import RelaxedPermutation
from ..pytrees import pytree
from .engine.blocks import weighted_mean
from .scored import ScorePermutation, relaxed
from .thresholds import laplace, memberships


def lapsum(
    scores: Array, *, tau: _checks.Tau = 1.0, mask: Array | None = None
) -> RelaxedPermutation:
    r"""Relaxes the permutation that sorts `scores` in descending order, by sums of Laplace cdfs.

    $$\widehat P_{ij} = F\Big(\frac{b_i + s_j}{\tau}\Big) - F\Big(\frac{b_{i-1} + s_j}{\tau}\Big),
      \qquad \sum_j F\Big(\frac{b_i + s_j}{\tau}\Big) = i$$

    where F is the distribution function of the Laplace distribution. The thresholds $b_i$ have a
    closed form. Rows and columns sum to one. As `tau` tends to 0 this becomes the hard permutation
    matrix of `jnp.argsort(scores, descending=True)` for distinct scores.

    Args:
        scores: `(..., n)`. Values to sort; leading dimensions are batch.
        tau: Temperature, a number or an array that broadcasts against `scores` with a last
            dimension of 1; it may have gradients. In units of the scores: smaller is harder, 0 is
            the hard permutation.
        mask: `(..., n)` boolean, True where the item exists. Absent items take no part; the last
            rows place them in index order.

    Returns:
        The relaxed permutation `(..., n, n)`. Its `permutation()` is the stable descending sort.

    Raises:
        TypeError: If `scores` is not floating point, or `mask` not boolean.
        ValueError: If `tau` is negative or a shape does not fit.

    Example:
        >>> scores = jnp.array([1.0, 3.0, 2.0])
        >>> lapsum(scores, tau=0.05).sort(scores).round(2)
        Array([3., 2., 1.], dtype=float32)

    Reference: Struski et al. (2025), section 3. Time and memory: O(n^2 log n) and O(n^2) per list;
    `memberships(k)` of the whole takes O(n log n) and O(n). Weights are differences of numbers up
    to 1, and smaller than a rounding of these nothing is left of them.
    """
    return relaxed("lapsum", LapSumPermutation.of, scores, tau, mask, of_blur=between)


@pytree("_scores", "_tau", "_mask", static=("_rows",))
class LapSumPermutation(ScorePermutation):
    """Rows that are differences of memberships."""

    @classmethod
    def of(cls, scores: Array, tau: Array, mask: Array | None) -> "LapSumPermutation":
        """All rows."""
        return cls(scores, tau, mask, scores.shape[-1])

    def _kind(self) -> str:
        return "lapsum"

    def _matrix(self) -> Array:
        scores, tau, mask = self._scores, self._tau, self._mask
        rows = self._rows
        x = scores.astype(working(scores.dtype))
        count = jnp.arange(rows + 1)
        batch = (*scores.shape[:-1], rows + 1)

        def each(leaf: Array) -> Array:
            return jnp.broadcast_to(leaf[..., None, :], (*batch, leaf.shape[-1]))

        there = None if mask is None else each(mask)
        held = memberships(laplace, each(x), each(tau), there, jnp.broadcast_to(count, batch))
        matrix = jnp.maximum(held[..., 1:, :] - held[..., :-1, :], 0.0)
        matrix = jnp.where(jnp.isnan(tau)[..., None], jnp.nan, matrix)  # also of a single item
        if mask is None:
            return matrix
        place = mask.sum(-1, keepdims=True) + jnp.cumsum(~mask, -1) - 1
        own = ~mask[..., None, :] & (jnp.arange(rows)[:, None] == place[..., None, :])
        return jnp.where(own, 1.0, matrix)

    def _sort(self, x: Array) -> Array:
        own = take_rows(x[..., None], self.permutation())[..., 0]
        return weighted_mean(self._matrix(), x, own)

    def _memberships(self, k: Array) -> Array:
        scores, tau, mask = self._lists()
        return memberships(laplace, scores, tau, mask, k)

    def _top(self, k: int) -> RelaxedPermutation:
        return LapSumPermutation(self._scores, self._tau, self._mask, k)
