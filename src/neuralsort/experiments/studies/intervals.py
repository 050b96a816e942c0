"""How far a measured number may be from the true one: 95 % intervals.

A test set is lists made of images, and an image stands in many lists: whoever misreads it is wrong
in all of them. So lists are not independent, and intervals count both as drawn at random.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from scipy import stats
from torch import Tensor

Interval = tuple[float, float]


def wilson(share: float, count: float) -> Interval:
    """Wilson's interval of a share of so many independent successes and failures."""
    whole = max(1, round(count))
    found = stats.binomtest(round(share * whole), whole).proportion_ci(0.95, method="wilson")
    return float(found.low), float(found.high)


def standard_error(values: Tensor, images: Tensor) -> float:
    r"""Of the mean over lists, where lists share images.

    $$y_l = \mu + \sum_{i \in l} a_i + e_l, \qquad
      \mathrm{Var}(\bar y) = \frac{1}{L^2}\Bigl(\sum_l \mathrm{Var}(y_l)
      + \sigma_a^2 \sum_{l \ne l'} c_{ll'}\Bigr)$$

    with c the number of images that two lists share. The variance of an image's effect comes from
    the products of the residuals of such lists, all pairs at once by sums over images.

    Args:
        values: `(lists,)`. What was measured on each list.
        images: `(lists, images of a list)`. Which images it is made of.
    """
    lists, size = images.shape
    rest = values.double() - values.double().mean()
    flat = images.flatten()
    counts = torch.bincount(flat).double()
    sums = torch.bincount(flat, weights=rest.repeat_interleave(size))
    own = rest.square().sum().item()
    shared = (counts.square().sum() - lists * size).item()
    products = sums.square().sum().item() - size * own
    effect = 0.0
    if shared > 0:
        squares = shared * (1 + shared / (lists * (lists - 1)))  # of c, which is nearly Poisson's
        # Residuals are from the mean that was found, which takes a part of the covariance away.
        found = (products + shared * own / lists**2) / squares
        effect = max(0.0, found / (1 - shared**2 / (squares * lists**2)))
    return math.sqrt((own + effect * shared) / lists**2)


def of_share(values: Tensor, images: Tensor) -> Interval:
    """Wilson's interval of a share of lists, for as many independent lists as tell as much."""
    share, error = values.double().mean().item(), standard_error(values, images)
    return wilson(share, share * (1 - share) / error**2 if error else len(values))


def of_mean(values: Tensor, images: Tensor, *, most: float = math.inf) -> Interval:
    """The normal interval of a mean over lists of what is between 0 and the most there can be."""
    low, high = _normal(values.double().mean().item(), standard_error(values, images))
    return max(low, 0.0), min(high, most)


def of_r2(both: Tensor, images: Tensor) -> Interval:
    """The normal interval of R^2 of pairs (true, predicted), by what each list adds to it."""
    true, errors = both[:, 0].double(), (both[:, 0] - both[:, 1]).double().square()
    squares = (true - true.mean()).square()
    mse, variance = errors.mean(), squares.mean()
    influence = -(errors - mse) / variance + mse / variance**2 * (squares - variance)
    return _normal((1 - mse / variance).item(), standard_error(influence, images))


def bootstrap(values: Tensor, statistic: Callable[..., object] = np.mean) -> Interval:
    """The percentile bootstrap's interval of a statistic of independent things."""
    found = stats.bootstrap(
        (values.double().numpy(),),
        statistic,
        n_resamples=1_000,
        method="percentile",
        rng=np.random.default_rng(0),
        batch=50,
    ).confidence_interval
    return float(found.low), float(found.high)


def over_seeds(values: Sequence[float]) -> Interval | None:
    """Student's interval of the mean over seeds; None for fewer than three."""
    if len(values) < 3:
        return None
    error = float(stats.sem(values))
    return _pair(stats.t.interval(0.95, len(values) - 1, np.mean(values), error or 1e-300))


def of_difference(a: Sequence[float], b: Sequence[float]) -> tuple[Interval, float] | None:
    """Welch's interval of the mean of a minus that of b, over seeds, and its p-value.

    None for fewer than three seeds of either.
    """
    if min(len(a), len(b)) < 3:
        return None
    if not (np.ptp(a) or np.ptp(b)):
        apart = float(np.mean(a) - np.mean(b))
        return (apart, apart), float(apart == 0)
    found: Any = stats.ttest_ind(a, b, equal_var=False)
    return _pair(found.confidence_interval(0.95)), float(found.pvalue)


def of_distance(values: Sequence[float], known: float) -> tuple[Interval, float] | None:
    """Student's interval of a mean over seeds minus a number that no seed changes; its p-value.

    None for fewer than three seeds.
    """
    ends = over_seeds(values)
    if ends is None:
        return None
    apart = ends[0] - known, ends[1] - known
    if not np.ptp(values):
        return apart, float(apart[0] == 0)
    found: Any = stats.ttest_1samp(values, known)
    return apart, float(found.pvalue)


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's p-values of several tests of one claim, in the order given.

    Whichever differences are real, the chance that one of the others falls below 0.05 is 5 % at
    most.
    """
    adjusted, largest = [0.0] * len(p_values), 0.0
    for rank, index in enumerate(np.argsort(p_values, kind="stable")):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[index]))
        adjusted[index] = largest
    return adjusted


def _normal(mean: float, error: float) -> Interval:
    return _pair(stats.norm.interval(0.95, mean, error)) if error else (mean, mean)


def _pair(ends: Sequence[float]) -> Interval:
    return float(ends[0]), float(ends[1])
