"""Conformal prediction: the quantile of scores that covers new ones with a wanted probability."""

import torch
from torch import Tensor

from .. import _options
from . import _checks
from .arrays import longest
from .operators import Relaxation, soft_sort
from .relaxations import neuralsort


def conformal_quantile(
    scores: Tensor,
    alpha: float,
    *,
    tau: _checks.Tau = 1.0,
    dim: int = -1,
    mask: Tensor | None = None,
    relax: Relaxation = neuralsort,
) -> Tensor:
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
        tau: Temperature, as in `relax`. A tensor broadcasts with the list dimension last.
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
        >>> conformal_quantile(torch.arange(1.0, 101.0), 0.1, tau=0.1).round()
        tensor(91.)

    Reference: Vovk et al. (2005); Stutz et al. (2022) for training. Time and memory: those of
    `relax`.
    """
    scores = _checks.scores("conformal_quantile(scores)", scores)
    alpha = _options.alpha(alpha)
    dim = _options.dim(dim, tuple(scores.shape))
    _options.some_items("conformal_quantile", dim, tuple(scores.shape))
    ordered = soft_sort(scores, tau=tau, dim=dim, mask=mask, relax=relax).movedim(dim, -1)
    if mask is None:
        return ordered[..., _options.conformal_place(scores.shape[dim], alpha) - 1]
    count = mask.expand(scores.shape).sum(dim).unsqueeze(-1)
    # More than a rounding below what it is: ceil of 9.000000000000002 would be 10.
    total = (count + 1).to(longest(scores.device))
    rounding = 1e-9 + 4 * torch.finfo(total.dtype).eps * total
    place = (total * (1 - alpha) - rounding).ceil().long()
    place = torch.minimum(place, count).clamp(min=1) - 1
    value = ordered.gather(-1, place).squeeze(-1)
    return value.masked_fill(count.squeeze(-1) == 0, torch.nan)
