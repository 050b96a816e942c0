r"""Sums over all subsets of k items, in logarithms: one item at a time, O(n k).

With weights $w_j = e^{l_j}$, the sum over subsets of size r of the first j items obeys

$$e_r(j) = e_r(j - 1) + w_j\, e_{r - 1}(j - 1).$$

An item may be certain, in or out, at a logit of plus or minus infinity. Its impossible branch
weighs nothing: a finite number, far below every other, stands for the logarithm of 0, so that
derivatives stay numbers.
"""

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad, softplus

NOTHING = -1e300
"""The logarithm of 0."""


class Branches(NamedTuple):
    """Log-weights `(..., n)` in float64 of taking each item, and of leaving it."""

    taken: Tensor
    left: Tensor


def branches(logits: Tensor) -> Branches:
    """What it weighs to take or leave each item; the largest finite logit counts as 0."""
    logits = logits.double()
    finite = logits.isfinite()
    if logits.shape[-1]:  # an offset costs no digits
        highest = logits.detach().masked_fill(~finite, -torch.inf).amax(-1, keepdim=True)
        logits = logits - torch.where(highest.isfinite(), highest, 0.0)
    always, never = logits == torch.inf, logits == -torch.inf
    return Branches(
        taken=logits.masked_fill(always, 0.0).masked_fill(never, NOTHING),
        left=torch.zeros_like(logits).masked_fill(always, NOTHING),
    )


def log_sums(weights: Branches, k: int) -> list[Tensor]:
    """`(..., k + 1)` for the first 0, 1, ..., n items: log-sums over their subsets of each size."""
    taken = weights.taken
    empty = taken.new_full((*taken.shape[:-1], k + 1), NOTHING)
    found = [empty.index_fill(-1, torch.zeros(1, dtype=torch.long, device=taken.device), 0.0)]
    for j in range(taken.shape[-1]):
        found.append(_log_add(*_either(found[-1], weights, j)).clamp(min=NOTHING))
    return found


def log_odds(sums: list[Tensor], weights: Branches) -> list[Tensor]:
    """`(..., k + 1)` for each item: of its being in a random subset of it and those before it."""
    either = (_either(sums[j], weights, j) for j in range(len(sums) - 1))
    return [taken - left for left, taken in either]


def _either(before: Tensor, weights: Branches, j: int) -> tuple[Tensor, Tensor]:
    """Log-sums over the subsets without item j and over those with it, for each size."""
    smaller = pad(before[..., :-1], (1, 0), value=NOTHING)
    return before + weights.left[..., j, None], smaller + weights.taken[..., j, None]


def mean_cost(odds: list[Tensor], costs: list[tuple[Tensor, Tensor]], nothing: Tensor) -> Tensor:
    """The mean over random subsets of what it costs to take or to leave each item, `(..., k + 1)`.

    Odds and costs `(..., k + 1)` depend on how many items are still to be chosen; with no item it
    costs nothing, zeros of that shape. Where costs are not negative, no terms cancel.
    """
    mean = nothing
    for d, (taken, left) in zip(odds, costs, strict=True):
        smaller = pad(mean[..., :-1], (1, 0))
        mean = d.sigmoid() * (smaller + taken) + (-d).sigmoid() * (mean + left)
    return mean


def log_inclusion(weights: Branches, k: int) -> tuple[Tensor, Tensor]:
    """Log-sums over the subsets with each item `(..., n)`, and over all of them `(...)`.

    From both ends: those with item j join a subset of the items before it to one of those after.
    """
    before = log_sums(weights, k)
    total = before[-1][..., k]
    n = weights.taken.shape[-1]
    if not n or not k:
        return weights.taken * 0 + NOTHING, total
    after = log_sums(Branches(weights.taken.flip(-1), weights.left.flip(-1)), k)[::-1]
    front = torch.stack(before[:-1], -2)[..., :k]  # (..., n, sizes 0 to k - 1)
    back = torch.stack(after[1:], -2)[..., :k].flip(-1)  # k - 1 to 0
    return (front + back).logsumexp(-1) + weights.taken, total


def _log_add(a: Tensor, b: Tensor) -> Tensor:
    """`torch.logaddexp`, with second derivatives that are numbers however far apart a and b are."""
    first = a >= b
    high, low = torch.where(first, a, b), torch.where(first, b, a)
    return high + softplus(low - high)
