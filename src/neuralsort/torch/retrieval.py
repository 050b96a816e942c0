"""Metrics of retrieval, where an item is relevant or not: are the relevant ones found early?

Public in `metrics`. Lists may be padded: `mask` is True where the item exists. `reduction` is
`"mean"` over the lists, `"sum"`, or `"none"` for one value per list. Several cutoffs k in one call
give as many values, in a last dimension.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from .. import _options
from . import _checks
from .arrays import working
from .losses import reduced
from .relaxations.ordering import Ordered, share_ties, tie_groups

Cutoffs = int | Sequence[int]


def precision_at_k(
    scores: Tensor,
    relevance: Tensor,
    *,
    k: Cutoffs,
    mask: Tensor | None = None,
    reduction: str = "mean",
) -> Tensor:
    """Which share of the first k places holds relevant items.

    Tied scores share their places: the expectation over their orders.

    Args:
        scores: `(..., n)`. Larger ranks first.
        relevance: `(..., n)`, of any real dtype. An item is relevant if this is above 0.
        k: How many of the first places count, or several such numbers. Places that a list does not
            have hold nothing relevant.
        mask: `(..., n)` boolean, True where the item exists.
        reduction: `"mean"`, `"sum"` or `"none"`, over lists.

    Returns:
        Between 0 and 1, for several k in a last dimension.

    Raises:
        TypeError: If `scores` is not floating point, `mask` not boolean, or `k` no whole number.
        ValueError: If a shape does not fit or a k is not positive.

    Example:
        >>> scores, relevance = torch.tensor([0.4, 0.3, 0.2, 0.1]), torch.tensor([0, 1, 0, 2])
        >>> precision_at_k(scores, relevance, k=(1, 2, 4))
        tensor([0.0000, 0.5000, 0.5000])

    Time: O(n log n).
    """
    found, _, sizes = _found("precision_at_k", scores, relevance, k, mask)
    return _reduced(found / sizes, k, reduction)


def recall_at_k(
    scores: Tensor,
    relevance: Tensor,
    *,
    k: Cutoffs,
    mask: Tensor | None = None,
    reduction: str = "mean",
) -> Tensor:
    """Which share of the relevant items stands in the first k places.

    Tied scores share their places: the expectation over their orders.

    Args:
        scores: `(..., n)`. Larger ranks first.
        relevance: `(..., n)`, of any real dtype. An item is relevant if this is above 0.
        k: How many of the first places count, or several such numbers. Lists may be shorter.
        mask: `(..., n)` boolean, True where the item exists.
        reduction: `"mean"`, `"sum"` or `"none"`, over lists.

    Returns:
        Between 0 and 1, for several k in a last dimension; 0 for a list in which nothing is
        relevant.

    Raises:
        TypeError: If `scores` is not floating point, `mask` not boolean, or `k` no whole number.
        ValueError: If a shape does not fit or a k is not positive.

    Example:
        >>> scores, relevance = torch.tensor([0.4, 0.3, 0.2, 0.1]), torch.tensor([0, 1, 0, 2])
        >>> recall_at_k(scores, relevance, k=(1, 2, 4))
        tensor([0.0000, 0.5000, 1.0000])

    Time: O(n log n).
    """
    found, total, _ = _found("recall_at_k", scores, relevance, k, mask)
    return _reduced(found / total.clamp(min=1), k, reduction)


def average_precision(
    scores: Tensor,
    relevance: Tensor,
    *,
    k: Cutoffs | None = None,
    mask: Tensor | None = None,
    reduction: str = "mean",
) -> Tensor:
    r"""The mean over the relevant items of the precision at their places.

    $$\text{AP@}k = \frac{1}{\min(k, |R|)} \sum_{i \le k,\, [i] \in R} \text{precision@}i$$

    Tied scores rank in the order of their indices.

    Args:
        scores: `(..., n)`. Larger ranks first.
        relevance: `(..., n)`, of any real dtype. An item is relevant if this is above 0.
        k: How many of the first places count, or several such numbers; None is all.
        mask: `(..., n)` boolean, True where the item exists.
        reduction: `"mean"`, `"sum"` or `"none"`, over lists.

    Returns:
        Between 0 and 1, for several k in a last dimension; 0 for a list in which nothing is
        relevant.

    Raises:
        TypeError: If `scores` is not floating point, `mask` not boolean, or `k` no whole number.
        ValueError: If a shape does not fit or a k is not positive.

    Example:
        >>> scores, relevance = torch.tensor([0.4, 0.3, 0.2, 0.1]), torch.tensor([0, 1, 0, 2])
        >>> average_precision(scores, relevance)
        tensor(0.5000)

    Reference: as scikit-learn's `average_precision_score` where no scores are tied.
    Time: O(n log n).
    """
    hits, poison = _hits("average_precision", scores, relevance, mask)
    place = torch.arange(1, hits.shape[-1] + 1, dtype=hits.dtype, device=hits.device)
    sizes = _sizes(k, hits)
    gained = _until(hits * hits.cumsum(-1) / place, sizes)
    value = gained / torch.minimum(hits.sum(-1, keepdim=True), sizes).clamp(min=1)
    return _reduced(value + poison, k, reduction)


def reciprocal_rank(
    scores: Tensor,
    relevance: Tensor,
    *,
    k: Cutoffs | None = None,
    mask: Tensor | None = None,
    reduction: str = "mean",
) -> Tensor:
    """One over the place of the first relevant item; its mean over lists is known as MRR.

    Tied scores rank in the order of their indices.

    Args:
        scores: `(..., n)`. Larger ranks first.
        relevance: `(..., n)`, of any real dtype. An item is relevant if this is above 0.
        k: How many of the first places count, or several such numbers; None is all.
        mask: `(..., n)` boolean, True where the item exists.
        reduction: `"mean"`, `"sum"` or `"none"`, over lists.

    Returns:
        Between 0 and 1, for several k in a last dimension; 0 for a list without a relevant item in
        its first k places.

    Raises:
        TypeError: If `scores` is not floating point, `mask` not boolean, or `k` no whole number.
        ValueError: If a shape does not fit or a k is not positive.

    Example:
        >>> scores, relevance = torch.tensor([0.4, 0.3, 0.2, 0.1]), torch.tensor([0, 1, 0, 2])
        >>> reciprocal_rank(scores, relevance, k=(1, 10))
        tensor([0.0000, 0.5000])

    Time: O(n log n).
    """
    hits, poison = _hits("reciprocal_rank", scores, relevance, mask)
    place = torch.arange(1, hits.shape[-1] + 1, dtype=hits.dtype, device=hits.device)
    first = (hits.cumsum(-1) == 1) & (hits > 0)
    value = _until(torch.where(first, 1 / place, 0.0), _sizes(k, hits))
    return _reduced(value + poison, k, reduction)


# -- what they share -------------------------------------------------------------------------------


def _ordered(
    metric: str, scores: Tensor, relevance: Tensor, mask: Tensor | None
) -> tuple[Ordered, Tensor, Tensor]:
    """The order of the scores, 1 for relevant items in it and 0 for others, and a NaN or 0."""
    scores = _checks.scores(f"{metric}(scores)", scores).detach()
    relevance = _checks.per_item(f"{metric}(relevance)", relevance, scores.shape).detach()
    mask = _checks.mask(mask, scores)
    order = Ordered(scores, 1.0, mask)
    relevant = relevance > 0 if mask is None else (relevance > 0) & mask
    hits = relevant.gather(-1, order.perm).to(working(scores.dtype))
    return order, hits, order.poison().to(hits.dtype)


def _hits(
    metric: str, scores: Tensor, relevance: Tensor, mask: Tensor | None
) -> tuple[Tensor, Tensor]:
    return _ordered(metric, scores, relevance, mask)[1:]


def _found(
    metric: str, scores: Tensor, relevance: Tensor, k: Cutoffs, mask: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Relevant items in the first k places `(..., cutoffs)`, in all, and the cutoffs."""
    order, hits, poison = _ordered(metric, scores, relevance, mask)
    sizes = _sizes(k, hits)
    shared = share_ties(hits, tie_groups(order.open_gaps)) if hits.shape[-1] else hits
    return _until(shared, sizes) + poison, hits.sum(-1, keepdim=True), sizes


def _sizes(k: Cutoffs | None, hits: Tensor) -> Tensor:
    """The cutoffs `(cutoffs,)`."""
    sizes = (max(hits.shape[-1], 1),) if k is None else _options.cutoffs(k)
    return torch.tensor(sizes, dtype=hits.dtype, device=hits.device)


def _until(gained: Tensor, sizes: Tensor) -> Tensor:
    """What the first places have gained `(..., cutoffs)`."""
    total = torch.nn.functional.pad(gained.cumsum(-1), (1, 0))
    return total[..., sizes.clamp(max=gained.shape[-1]).long()]


def _reduced(values: Tensor, k: Cutoffs | None, reduction: str) -> Tensor:
    """Over lists, and without the dimension of the cutoffs where there is one number k."""
    if k is None or not isinstance(k, Sequence):
        return reduced(values.squeeze(-1), reduction)
    if _options.reduction(reduction) == "none":
        return values
    lists = values.reshape(-1, values.shape[-1])
    return lists.mean(0) if reduction == "mean" else lists.sum(0)
