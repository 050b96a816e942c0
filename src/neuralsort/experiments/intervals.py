"""How far a measured number may be from the true one."""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from .randomness import generator_for

Interval = tuple[float, float]

_Z = 1.959963984540054  # 95 % of a normal distribution lie within


def wilson(share: float, count: int) -> Interval:
    """Wilson's 95 % interval of a share of `count` independent successes and failures."""
    middle = share + _Z**2 / (2 * count)
    spread = _Z * math.sqrt(share * (1 - share) / count + _Z**2 / (4 * count**2))
    scale = 1 + _Z**2 / count
    low = (middle - spread) / scale if share else 0.0  # but for rounding
    high = (middle + spread) / scale if share != 1 else 1.0
    return low, high


def bootstrap(
    lists: Tensor, statistic: Callable[[Tensor], Tensor] = torch.mean, resamples: int = 1_000
) -> Interval:
    """Percentile bootstrap's 95 % interval of a statistic of independent lists.

    Args:
        lists: `(lists, ...)`. What was measured on each list.
        statistic: From such a tensor to one number.
        resamples: How often the lists are drawn again.
    """
    count = len(lists)
    generator = generator_for("bootstrap", count, resamples)
    draws = (torch.randint(count, (count,), generator=generator) for _ in range(resamples))
    found = torch.stack([statistic(lists[draw]) for draw in draws]).double()
    low, high = found.quantile(torch.tensor([0.025, 0.975], dtype=torch.float64)).tolist()
    return low, high
