"""What a relaxation does first with the `tau` it is given: one temperature per list."""

from collections.abc import Callable

import torch
from torch import Tensor

from .._blur import Blur, gaussian
from . import _checks
from .arrays import working

TRIED = 12
"""Temperatures that are tried where the right one has to be looked for."""

OCTAVES = 9.0
"""How far on either side of a first guess it is looked for."""


def temperature(
    tau: _checks.Tau,
    scores: Tensor,
    mask: Tensor | None,
    *,
    of_blur: Callable[[float], float] = gaussian,
    power: float = 1.0,
) -> float | Tensor:
    """The temperature of checked lists: a number, or a tensor that is NaN where it is negative.

    Args:
        tau: What the user gave.
        scores: `(..., n)`.
        mask: `(..., n)`, or None.
        of_blur: From ranks to a temperature in units of the gap to that power.
        power: The power of the scores' unit that the temperature has.
    """
    tau = _checks.tau(tau, scores)
    if isinstance(tau, Blur):
        return at_gap(scores, mask, of_blur(tau.ranks), power)
    return spoilt_if_negative(tau)


def spoilt_if_negative(tau: float | Tensor) -> float | Tensor:
    """NaN in place of negative temperatures, where the rules could not look at them."""
    if not isinstance(tau, Tensor) or _checks.readable(tau):
        return tau
    return torch.where(tau.detach() < 0, torch.nan, tau)


def at_gap(scores: Tensor, mask: Tensor | None, factor: float, power: float = 1.0) -> Tensor:
    """So many times the mean gap in the middle half of each list, `(..., 1)`, without gradient.

    It is 1 for lists of fewer than two finite items, 0 where the middle half of a list is tied, and
    never infinite.
    """
    scores = scores.detach().to(working(scores.dtype))
    there = scores.isfinite() if mask is None else scores.isfinite() & mask
    last = there.sum(-1, keepdim=True) - 1
    if scores.shape[-1] == 0:
        return torch.ones_like(last, dtype=scores.dtype)
    ordered = scores.masked_fill(~there, torch.inf).sort(-1).values
    low = last.clamp(min=0) // 4
    high = last.clamp(min=0) - low
    # In halves, since a difference may overflow.
    half = ordered.gather(-1, high) / 2 - ordered.gather(-1, low) / 2
    half = half / (high - low).clamp(min=1)
    tau = factor * (2 * half if power == 1 else (2 * half) ** power)
    tau = torch.where(last < 1, 1.0, tau.clamp(max=torch.finfo(tau.dtype).max))
    unknown = scores.isnan() if mask is None else scores.isnan() & mask
    return tau.masked_fill(unknown.any(-1, keepdim=True), torch.nan)


# -- methods whose rows have no known shape --------------------------------------------------------


@torch.no_grad()
def looked_for(
    ranks: float, guess: Tensor, entropy: Callable[[Tensor], Tensor], mask: Tensor | None
) -> Tensor:
    """The temperature `(..., 1)` at which as many items share a place as at that blur.

    On the mean over the rows of a list, against a list of equal gaps and as many items.

    Args:
        ranks: The blur.
        guess: `(..., 1)`. Where to look; lists where it is 0 keep it.
        entropy: From temperatures `(..., 1)` to entropies of rows, `(..., n)`.
        mask: `(..., n)`, or None.
    """
    low, high = guess * 2**-OCTAVES, guess * 2**OCTAVES
    wanted: Tensor | None = None
    for _ in range(TRIED):
        tau = low.sqrt() * high.sqrt()
        found = entropy(tau)
        counted = _counted(found, mask)
        if wanted is None:
            wanted = _mean_items(_gaussian_entropy(ranks, counted), counted)
        softer = _mean_items(found, counted) < wanted
        low, high = torch.where(softer, tau, low), torch.where(softer, high, tau)
    return low.sqrt() * high.sqrt()


def _counted(like: Tensor, mask: Tensor | None) -> Tensor:
    """The first m rows, for m items present."""
    if mask is None:
        return torch.ones_like(like, dtype=torch.bool)
    place = torch.arange(like.shape[-1], device=like.device)
    return (place < mask.sum(-1, keepdim=True)).expand(like.shape)


def _mean_items(entropy: Tensor, counted: Tensor) -> Tensor:
    """Items that share a place, effectively: the mean over rows, `(..., 1)`."""
    items = entropy.exp().masked_fill(~counted, 0.0).sum(-1, keepdim=True)
    return items / counted.sum(-1, keepdim=True).clamp(min=1)


def _gaussian_entropy(ranks: float, counted: Tensor) -> Tensor:
    """Entropies of the rows of NeuralSort on lists of equal gaps and so many items, `(..., n)`."""
    place = torch.arange(counted.shape[-1], device=counted.device, dtype=torch.float32)
    fall = (place.unsqueeze(-1) - place).square() / (2 * ranks**2)
    log = (-fall).masked_fill(~counted.unsqueeze(-2), -torch.inf).log_softmax(-1)
    return row_entropy(log)


def row_entropy(log: Tensor) -> Tensor:
    """Entropies in nats of rows that are known by the logarithms of their weights, `(..., n)`."""
    return -(log.exp() * log.masked_fill(log == -torch.inf, 0.0)).sum(-1)
