"""Rankings as tensors: what they list, how probable they are, and values in their strict order.

A ranking `(..., k)` holds items from the first place down. Under a mask with m items present only
the first m places count; what later places hold is ignored.
"""

import torch
from torch import Tensor
from torch.distributions import constraints

from . import _checks

# Below every logit by so much that its exponential is 0, but finite: gradients stay numbers.
_ABSENT = -1e300


def ranking_from(relevance: Tensor, mask: Tensor | None = None) -> Tensor:
    """The ranking that puts more relevant items first.

    Its hard counterpart is itself: `torch.argsort(relevance, descending=True, stable=True)`, but
    for absent items. It is what `plackett_luce_nll` and `permutation_cross_entropy` learn from.

    Args:
        relevance: `(..., n)`, of any real dtype. Tied items keep the order of their indices; for a
            random order of ties add noise that is smaller than their steps.
        mask: `(..., n)` boolean, True where the item exists.

    Returns:
        `(..., n)` int64: the item at each place, from the first down. Absent items come last, in
        the order of their indices.

    Raises:
        TypeError: If `relevance` is not a tensor of real numbers, or `mask` not boolean.
        ValueError: If it has no dimension, or a shape does not fit.

    Example:
        >>> ranking_from(torch.tensor([0, 2, 1, 2]))
        tensor([1, 3, 2, 0])
        >>> mask = torch.tensor([True, False, True, True])
        >>> ranking_from(torch.tensor([0, 2, 1, 2]), mask)
        tensor([3, 2, 0, 1])

    Time: O(n log n).
    """
    relevance = _checks.list_of_numbers("ranking_from(relevance)", relevance)
    mask = _checks.mask(mask, relevance)
    if mask is None:
        return relevance.argsort(dim=-1, descending=True, stable=True)
    known = relevance.masked_fill(~mask, 0)  # whatever absent items hold, they tie
    order = known.argsort(dim=-1, descending=True, stable=True)
    last = (~mask).gather(-1, order).to(torch.uint8).argsort(dim=-1, stable=True)
    return order.gather(-1, last)


class Permutation(constraints.Constraint):
    """All n items, each once, in the last dimension; or the first k of such a list."""

    is_discrete = True
    event_dim = 1

    def __init__(self, n: int) -> None:
        self.n = n
        super().__init__()

    def __repr__(self) -> str:
        """With its first letter, which torch would take off."""
        return f"Permutation({self.n})"

    def check(self, value: Tensor, mask: Tensor | None = None) -> Tensor:
        """Whether the places that count list distinct items, which exist under the mask."""
        if mask is None:
            mask = torch.ones(*value.shape[:-1], self.n, dtype=torch.bool, device=value.device)
        counts = _places_that_count(mask, value.shape[-1])
        listed = _listed(value, counts & (value >= 0) & (value < self.n), self.n)
        return (listed & mask).sum(-1) == counts.sum(-1)


def reversed_logcumsumexp(x: Tensor) -> Tensor:
    """`log sum_{j >= i} exp(x_j)` for each i."""
    return x.flip(-1).logcumsumexp(-1).flip(-1)


def _places_that_count(mask: Tensor, places: int) -> Tensor:
    """The first m of the places, for m items present."""
    return torch.arange(places, device=mask.device) < mask.sum(-1, keepdim=True)


def _listed(ranking: Tensor, counts: Tensor, n: int) -> Tensor:
    """Which of the n items stand in the places that count, (..., n) boolean."""
    # Places that do not count list an item n, which does not exist.
    listed = torch.zeros(*ranking.shape[:-1], n + 1, dtype=torch.bool, device=ranking.device)
    return listed.scatter(-1, ranking.long().masked_fill(~counts, n), True)[..., :n]


def log_density(logits: Tensor, ranking: Tensor, mask: Tensor | None) -> Tensor:
    """Log-probability that rankings begin with the given places; float64 in, float64 out."""
    n, k = logits.shape[-1], ranking.shape[-1]
    if k == n and mask is None:
        chosen = logits.gather(-1, ranking)
        return (chosen - reversed_logcumsumexp(chosen)).sum(-1)
    present = torch.ones_like(logits, dtype=torch.bool) if mask is None else mask
    counts = _places_that_count(present, k)
    listed = _listed(ranking, counts, n)
    unlisted = logits.masked_fill(listed | ~present, _ABSENT).logsumexp(-1, keepdim=True)
    chosen = logits.gather(-1, ranking.masked_fill(~counts, 0)).masked_fill(~counts, _ABSENT)
    rest = reversed_logcumsumexp(torch.cat([chosen, unlisted], -1))[..., :k]
    return (chosen - rest).masked_fill(~counts, 0.0).sum(-1)


def strictly_descending(x: Tensor) -> Tensor:
    """Moves each value at least one unit in the last place below the one before it."""
    whole = {8: torch.int64, 4: torch.int32, 2: torch.int16}[x.element_size()]
    lowest = torch.iinfo(whole).min
    # Floats as integers in the same order, where one unit in the last place is 1.
    bits = x.contiguous().view(whole).long()
    step = torch.where(bits < 0, lowest - bits, bits)
    place = torch.arange(x.shape[-1], device=x.device)
    step = (step + place).cummin(-1).values - place
    return torch.where(step < 0, lowest - step, step).to(whole).view(x.dtype)
