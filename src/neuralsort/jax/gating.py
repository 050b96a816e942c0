"""Gates: a soft 0/1 mask of the k largest items of a list."""

from typing import Protocol

import jax.numpy as jnp
from jax import Array, lax

from .. import _options
from . import _checks
from .gradients import straight_through
from .relaxations import lapsum
from .relaxations.thresholds import chosen


class Members(Protocol):
    """What a gate asks of a relaxed permutation, or of a threshold."""

    def memberships(self, k: int | Array) -> Array:
        """How much of each item the k largest hold, `(..., n)`."""
        ...


class Gate(Protocol):
    """Scores and a temperature to memberships; for lists with a mask it is called with `mask=`."""

    def __call__(self, scores: Array, /, *, tau: _checks.Tau) -> Members:
        """Relaxes the choice of the k largest of `scores` (..., n)."""
        ...


def soft_topk_mask(
    x: Array,
    k: int | Array,
    *,
    tau: _checks.Tau = 1.0,
    dim: int = -1,
    largest: bool = True,
    mask: Array | None = None,
    hard: bool = False,
    relax: Gate = lapsum,
) -> Array:
    r"""A soft mask of the k largest: weights between 0 and 1 that sum to k.

    $$w_j = F\Big(\frac{x_j - t}{\tau}\Big), \qquad \sum_j w_j = k$$

    with the distribution function F of the Laplace distribution and the one threshold t that makes
    the sum k; `relax` may have another F. Its hard counterpart, which it tends to as `tau` tends to
    0, is the 0/1 mask of `jax.lax.top_k(x, k)`.

    Args:
        x: Scores, any shape.
        k: How many: a number, or an integer array with one per list, which broadcasts to the shape
            of `x` without `dim`.
        tau: Temperature, as in `relax`: with the default one in units of what is sorted; smaller is
            harder. An array broadcasts with the list dimension last.
        dim: The dimension that holds the lists.
        largest: Choose the largest; else the smallest.
        mask: Boolean, the shape of `x`, True where the item exists. Absent items have weight 0; of
            a list with fewer than k items all are chosen.
        hard: Exactly k ones and else zeros in the forward pass, ties going to the smallest
            index, with the gradient of the soft weights.
        relax: `lapsum`; `sparse_threshold`, whose weights are exactly 0 or 1 but for a few items;
            `midpoint_threshold`, whose weights sum to k only roughly; or a relaxation whose columns
            sum to 1, such as `sinkhorn_sort`. With the others weights may exceed 1.

    Returns:
        The shape of `x`: between 0 and 1, of sum k along `dim`.

    Raises:
        TypeError: If `x` is not floating point, `k` not whole, or `mask` not boolean.
        ValueError: If `k` exceeds the length of the lists, `dim` is out of range, `tau` negative,
            or a shape does not fit.

    Example:
        >>> x = jnp.array([1.0, 4.0, 2.0, 3.0])
        >>> [f"{weight:.2f}" for weight in soft_topk_mask(x, 2, tau=0.5)]
        ['0.02', '0.98', '0.18', '0.82']
        >>> soft_topk_mask(x, 2, tau=0.5, hard=True)
        Array([0., 1., 0., 1.], dtype=float32)

    Reference: Struski et al. (2025), section 3, for `lapsum`. Time: O(n log n); memory: O(n).
    """
    x = _checks.scores("soft_topk_mask(x)", x)
    _checks.static(dim=dim, largest=largest, hard=hard)
    dim = _options.dim(dim, x.shape)
    mask = _checks.mask(mask, x.shape)
    lists = jnp.moveaxis(x, dim, -1)
    scores = lists if largest else -lists
    k = _checks.k_per_list(k, scores.shape)
    options: dict = {"tau": tau}
    if mask is not None:
        mask = jnp.moveaxis(mask, dim, -1)
        k = jnp.minimum(k, mask.sum(-1))
        options["mask"] = mask
    weights = _options.memberships(relax, scores, options).memberships(k)
    if hard:
        weights = straight_through(chosen(lax.stop_gradient(scores), mask, k), weights)
    return jnp.moveaxis(weights, -1, dim)
