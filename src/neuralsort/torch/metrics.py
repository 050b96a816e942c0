"""Metrics of orders and rankings: the hard counterparts of the losses, without gradient.

Lists may be padded: `mask` is True where the item exists. `reduction` is `"mean"` over the lists,
`"sum"`, or `"none"` for one value per list.
"""

import torch
from torch import Tensor

from .. import _options
from . import _checks
from .arrays import working
from .losses import count_present, reduced
from .relaxations.ordering import Ordered, share_ties, tie_groups
from .retrieval import average_precision as average_precision
from .retrieval import precision_at_k as precision_at_k
from .retrieval import recall_at_k as recall_at_k
from .retrieval import reciprocal_rank as reciprocal_rank

__all__ = [
    "average_precision",
    "element_wise",
    "exact_match",
    "kendall_tau",
    "mean_reciprocal_rank",
    "ndcg",
    "precision_at_k",
    "recall_at_k",
    "reciprocal_rank",
    "spearman",
]

# -- permutations ----------------------------------------------------------------------------------


def exact_match(
    perm: Tensor, target: Tensor, *, mask: Tensor | None = None, reduction: str = "mean"
) -> Tensor:
    """How many lists are in the right order from the first place to the last.

    Args:
        perm: `(..., n)` integers. The item predicted at each position, as `P.permutation()` gives.
        target: `(..., n)` integers. The item that belongs there.
        mask: `(..., n)` boolean, True where the item exists. With m items present, the first m
            places count.
        reduction: `"mean"`, `"sum"` or `"none"`, over lists.

    Returns:
        The share of lists, or per list 1 or 0. An empty list is in the right order.

    Raises:
        TypeError: If the permutations are not integers, or `mask` not boolean.
        ValueError: If the shapes differ.

    Example:
        >>> exact_match(torch.tensor([[0, 1, 2], [2, 1, 0]]), torch.tensor([[0, 1, 2], [2, 0, 1]]))
        tensor(0.5000)
    """
    right, counted = _places(perm, target, mask)
    return reduced((right | ~counted).all(-1).to(torch.get_default_dtype()), reduction)


def element_wise(
    perm: Tensor, target: Tensor, *, mask: Tensor | None = None, reduction: str = "mean"
) -> Tensor:
    """Which share of the places holds the right item.

    Args:
        perm: `(..., n)` integers. The item predicted at each position, as `P.permutation()` gives.
        target: `(..., n)` integers. The item that belongs there.
        mask: `(..., n)` boolean, True where the item exists. With m items present, the first m
            places count.
        reduction: `"mean"`, `"sum"` or `"none"`, over lists.

    Returns:
        The share of right places of a list, 1 for an empty one, reduced over lists.

    Raises:
        TypeError: If the permutations are not integers, or `mask` not boolean.
        ValueError: If the shapes differ.

    Example:
        >>> element_wise(torch.tensor([[0, 1, 2], [2, 1, 0]]), torch.tensor([[0, 1, 2], [2, 0, 1]]))
        tensor(0.6667)
    """
    right, counted = _places(perm, target, mask)
    wrong = (~right & counted).sum(-1) / counted.sum(-1).clamp(min=1)
    return reduced(1 - wrong.to(torch.get_default_dtype()), reduction)


def _places(perm: Tensor, target: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
    """Which places are right, and which count."""
    perm = _checks.permutations("perm", perm)
    target = _checks.permutations("target", target, perm.shape)
    n = perm.shape[-1]
    present = count_present(_checks.mask(mask, perm), n)
    counted = torch.arange(n, device=perm.device) < present
    return perm == target, counted.expand(perm.shape)


# -- rankings by relevance -------------------------------------------------------------------------


LARGE = 64
"""A relevance whose gain is in range for every dtype, also summed and squared."""


def gains(relevance: Tensor, mask: Tensor | None, dtype: torch.dtype) -> Tensor:
    """What an item is worth, 2^relevance - 1; nothing if it is absent.

    Lists with a relevance past `LARGE` count in a larger unit, where nothing overflows.
    """
    relevance = relevance.to(dtype)
    if mask is not None:
        relevance = torch.where(mask, relevance, 0.0)
    if not relevance.shape[-1]:
        return relevance
    unit = (relevance.amax(-1, keepdim=True) - LARGE).clamp(min=0)
    return torch.exp2(relevance - unit) - torch.exp2(-unit)


def discounts(k: int, like: Tensor) -> Tensor:
    """What the first k places weigh, 1 / log2(1 + place)."""
    return 1 / torch.arange(2, k + 2, dtype=like.dtype, device=like.device).log2()


def ideal_dcg(worth: Tensor, k: int) -> Tensor:
    """The largest discounted sum of gains that an order can have, `(...)`."""
    return (worth.topk(k, dim=-1).values * discounts(k, worth)).sum(-1)


def ndcg(
    scores: Tensor,
    relevance: Tensor,
    *,
    k: int | None = None,
    mask: Tensor | None = None,
    reduction: str = "mean",
) -> Tensor:
    r"""Normalised discounted cumulative gain of the items ranked by their scores.

    $$\text{NDCG@}k = \frac{\sum_{i \le k} (2^{r_{[i]}} - 1) / \log_2(1 + i)}
      {\text{the same in the order of the relevance}}$$

    where $r_{[i]}$ is the relevance of the item with the i-th largest score. Tied scores share the
    mean of their gains: the expectation over their orders.

    Args:
        scores: `(..., n)`. Larger ranks first.
        relevance: `(..., n)`, of any real dtype, not negative. 0 is not relevant.
        k: How many of the first places count; None is all. Lists may be shorter.
        mask: `(..., n)` boolean, True where the item exists.
        reduction: `"mean"`, `"sum"` or `"none"`, over lists.

    Returns:
        Between 0 and 1; 0 for a list in which nothing is relevant.

    Raises:
        TypeError: If `scores` is not floating point, or `mask` not boolean.
        ValueError: If a shape does not fit or `k` is not positive.

    Example:
        >>> ndcg(torch.tensor([0.3, 0.2, 0.1]), torch.tensor([1, 0, 2]))
        tensor(0.6885)

    Reference: Järvelin and Kekäläinen (2002); gains of Burges et al. (2005). Time: O(n log n).
    """
    scores, relevance, mask = _ranked("ndcg", "scores", "relevance", scores, relevance, mask)
    k = _options.cutoff(k, scores.shape[-1])
    order = Ordered(scores, 1.0, mask)
    worth = gains(relevance, mask, order.exact)
    ideal = ideal_dcg(worth, k)
    shared = share_ties(worth.gather(-1, order.perm), tie_groups(order.open_gaps))
    found = (shared[..., :k] * discounts(k, shared)).sum(-1) + order.poison().squeeze(-1)
    value = torch.where(ideal > 0, found / ideal.clamp(min=torch.finfo(ideal.dtype).tiny), 0.0)
    return reduced(value.to(working(scores.dtype)), reduction)


def mean_reciprocal_rank(
    scores: Tensor,
    relevance: Tensor,
    *,
    k: int | None = None,
    mask: Tensor | None = None,
    reduction: str = "mean",
) -> Tensor:
    """One over the rank of the first relevant item, averaged over lists.

    Tied scores rank in the order of their indices.

    Args:
        scores: `(..., n)`. Larger ranks first.
        relevance: `(..., n)`, of any real dtype. An item is relevant if this is above 0.
        k: How many of the first places count; None is all. Lists may be shorter.
        mask: `(..., n)` boolean, True where the item exists.
        reduction: `"mean"`, `"sum"` or `"none"`, over lists.

    Returns:
        Between 0 and 1; 0 for a list without a relevant item in its first k places.

    Raises:
        TypeError: If `scores` is not floating point, or `mask` not boolean.
        ValueError: If a shape does not fit or `k` is not positive.

    Example:
        >>> mean_reciprocal_rank(torch.tensor([0.3, 0.2, 0.1]), torch.tensor([0, 1, 2]))
        tensor(0.5000)

    Time: O(n log n).
    """
    scores, relevance, mask = _ranked(
        "mean_reciprocal_rank", "scores", "relevance", scores, relevance, mask
    )
    k = _options.cutoff(k, scores.shape[-1])
    order = Ordered(scores, 1.0, mask)
    relevant = relevance > 0 if mask is None else (relevance > 0) & mask
    relevant = relevant.gather(-1, order.perm)[..., :k]
    place = torch.arange(1, k + 1, dtype=working(scores.dtype), device=scores.device)
    value = torch.where(relevant, 1 / place, 0.0)
    value = value.amax(-1) if k else value.sum(-1)
    return reduced(value + order.poison().squeeze(-1).to(value.dtype), reduction)


def _ranked(
    metric: str, first: str, second: str, scores: Tensor, other: Tensor, mask: Tensor | None
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Scores without gradient, what goes with each of them, and which are there."""
    scores = _checks.scores(f"{metric}({first})", scores).detach()
    other = _checks.per_item(f"{metric}({second})", other, scores.shape).detach()
    return scores, other, _checks.mask(mask, scores)


# -- correlations of ranks -------------------------------------------------------------------------


def average_ranks(x: Tensor, mask: Tensor | None) -> Tensor:
    """Ranks `(..., n)` from 1 for the largest, ties sharing their mean; absent items come last.

    Integers are compared as integers: beyond 2^53 float64 does not tell them apart.
    """
    if not x.is_floating_point():
        whole = x.long().contiguous()
        x = torch.searchsorted(whole.sort(-1).values, whole).float()  # same order, small numbers
    order = Ordered(x.detach(), 1.0, mask)
    first, last = tie_groups(order.open_gaps)
    ranks = (first + last).to(order.exact) / 2 + 1
    return ranks.gather(-1, order.rank()) + order.poison()


def spearman(
    x: Tensor, target: Tensor, *, mask: Tensor | None = None, reduction: str = "mean"
) -> Tensor:
    """Spearman's rank correlation: Pearson's correlation of the ranks, ties sharing their mean.

    Args:
        x: `(..., n)`.
        target: `(..., n)`, of any real dtype.
        mask: `(..., n)` boolean, True where the item exists.
        reduction: `"mean"`, `"sum"` or `"none"`, over lists.

    Returns:
        Between -1 and 1, as `scipy.stats.spearmanr`; 0 for a list that is all tied in `x` or in
        `target`, where that is undefined.

    Raises:
        TypeError: If `x` is not floating point, or `mask` not boolean.
        ValueError: If a shape does not fit.

    Example:
        >>> spearman(torch.tensor([1.0, 2.0, 3.0]), torch.tensor([10, 30, 20]))
        tensor(0.5000)

    Time: O(n log n).
    """
    x, target, mask = _ranked("spearman", "x", "target", x, target, mask)
    counted = torch.ones_like(x, dtype=torch.bool) if mask is None else mask
    n = counted.sum(-1, keepdim=True).clamp(min=1)
    a, b = (average_ranks(values, mask) for values in (x, target))
    a, b = ((r - (n + 1) / 2).masked_fill(~counted, 0.0) for r in (a, b))
    spread = (a.square().sum(-1) * b.square().sum(-1)).sqrt()
    value = torch.where(spread == 0, 0.0, (a * b).sum(-1) / spread)
    return reduced(value.to(working(x.dtype)), reduction)


def kendall_tau(
    x: Tensor, target: Tensor, *, mask: Tensor | None = None, reduction: str = "mean"
) -> Tensor:
    """Kendall's tau-b: agreement of two orders over all pairs of items, corrected for ties.

    Args:
        x: `(..., n)`.
        target: `(..., n)`, of any real dtype.
        mask: `(..., n)` boolean, True where the item exists.
        reduction: `"mean"`, `"sum"` or `"none"`, over lists.

    Returns:
        Between -1 and 1, as `scipy.stats.kendalltau`; 0 for a list that is all tied in `x` or in
        `target`, where that is undefined.

    Raises:
        TypeError: If `x` is not floating point, or `mask` not boolean.
        ValueError: If a shape does not fit.

    Example:
        >>> kendall_tau(torch.tensor([1.0, 2.0, 3.0]), torch.tensor([10, 30, 20]))
        tensor(0.3333)

    Time and memory: O(n^2).
    """
    x, target, mask = _ranked("kendall_tau", "x", "target", x, target, mask)
    unknown = (x != x) | (target != target)  # NaN, which stands in no order
    if mask is not None:
        unknown = unknown & mask
    signs = []
    for values in (x, target):
        sign = (values.unsqueeze(-1) > values.unsqueeze(-2)).to(working(x.dtype))
        sign = sign - sign.mT
        if mask is not None:
            sign = sign.masked_fill(~(mask.unsqueeze(-1) & mask.unsqueeze(-2)), 0.0)
        signs.append(sign)
    a, b = signs
    spread = (a.square().sum((-1, -2)) * b.square().sum((-1, -2))).sqrt()
    value = torch.where(spread == 0, 0.0, (a * b).sum((-1, -2)) / spread)
    return reduced(value.masked_fill(unknown.any(-1), torch.nan), reduction)
