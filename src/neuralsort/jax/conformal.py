"""Conformal prediction: the quantile of scores that covers new ones with a wanted probability."""

import jax.numpy as jnp
from jax import Array

from .. import _options
from . import _checks
from .operators import Relaxation, soft_sort
from .relaxations import neuralsort


def conformal_quantile(
    scores: Array,
    alpha: float,
    *,
    tau: _checks.Tau = 1.0,
    dim: int = -1,
    mask: Array | None = None,
    relax: Relaxation = neuralsort,
) -> Array:
    r"""The soft value below which a new score lies with probability at least `1 - alpha`.

    $$\hat q = s_{(j)}, \qquad j = \min\big(\lceil (n + 1)(1 - \alpha) \rceil,\, n\big)$$

    with $s_{(j)}$ the j-th smallest score, softly: the quantile at level $(n+1)(1-\alpha)/n$. If
    the n scores of a calibration set and a new one are exchangeable, the hard value covers the new
    one with probability between $1 - \alpha$ and $1 - \alpha + 1/(n+1)$. Where
    $\alpha < 1/(n+1)$ no score of the set is large enough for that: j is **clamped** to n, the
    largest score is returned, and the promise is void. Its hard counterpart, which it tends to as
    `tau` tends to 0, is `numpy.quantile(scores, min(ceil((n + 1) * (1 - alpha)) / n, 1),
    method="inverted_cdf")`. Train through the soft value; predict with `tau=0`.

    Args:
        scores: Nonconformity scores, any shape, with at least one along `dim`. Larger is stranger.
        alpha: Share of new scores that may lie above, between 0 and 1.
        tau: Temperature, as in `relax`: with the default one in units of what is sorted; smaller is
            harder. An array broadcasts with the list dimension last.
        dim: The dimension that holds the lists.
        mask: Boolean, the shape of `scores`, True where the score exists. Absent ones do not count;
            a list of none but these gives NaN.
        relax: The relaxation: `neuralsort`, `softsort`, or a `functools.partial` of one.

    Returns:
        The shape of `scores` without `dim`.

    Raises:
        TypeError: If `scores` is not floating point, `alpha` no number, or `mask` not boolean.
        ValueError: If `alpha` is not between 0 and 1, `dim` is out of range, or lists are empty.

    Example:
        >>> conformal_quantile(jnp.arange(1.0, 101.0), 0.1, tau=0.1).round()
        Array(91., dtype=float32)

    Reference: Vovk et al. (2005); Stutz et al. (2022) for training. Time and memory: those of
    `relax`.
    """
    scores = _checks.scores("conformal_quantile(scores)", scores)
    _checks.static(alpha=alpha, dim=dim)
    alpha = _options.alpha(alpha)
    dim = _options.dim(dim, scores.shape)
    _options.some_items("conformal_quantile", dim, scores.shape)
    ordered = soft_sort(scores, tau=tau, dim=dim, mask=mask, relax=relax)
    ordered = jnp.moveaxis(ordered, dim, -1)
    n = scores.shape[dim]
    if mask is None:
        return ordered[..., _options.conformal_place(n, alpha) - 1]
    count = jnp.broadcast_to(mask, scores.shape).sum(dim)[..., None]
    # Of every length in advance, by exact arithmetic that float32 has not.
    places = jnp.array([0, *(_options.conformal_place(m, alpha) - 1 for m in range(1, n + 1))])
    value = jnp.take_along_axis(ordered, places[count], -1)[..., 0]
    return jnp.where(count[..., 0] == 0, jnp.nan, value)
