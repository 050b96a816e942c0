r"""How soft a sort is, said in ranks: the same for every method, and for every framework.

The unit is a row of NeuralSort on a list of equal gaps: a Gaussian whose standard deviation is so
many ranks. Other methods have rows of other shapes. Equally soft means here that as many items
share a place, effectively: rows have the same entropy, on a list of equal gaps. That fixes the
temperature of each of them in units of the gap.
"""

import math
from dataclasses import dataclass

from . import _options

ITEMS = math.sqrt(2 * math.pi * math.e)
"""Items that share a place at a blur of one rank, effectively: the exponential of the entropy."""


@dataclass(frozen=True)
class Blur:
    r"""A temperature given in ranks: with `tau=Blur(2.0)` about two neighbouring ranks blend.

    Give it in place of a number as `tau`; only `fast_soft_sort` and `fast_soft_rank` do not take
    it. If all gaps between sorted scores are $g$, a row of `neuralsort` is a Gaussian with a
    standard deviation of `ranks`, at $\tau = 2 g\, \text{ranks}^2$. About
    $\sqrt{2 \pi e} \approx 4.1$ times `ranks` items then share a place (the exponential of the
    row's entropy). Every other method chooses its own temperature so that as many items share a
    place, so methods can be swapped at equal softness.

    Each list gets its own temperature, from the mean gap in the middle half of its scores, without
    gradient. It follows the scale of the scores: the sort does not harden when scores grow. Where
    the middle half of a list is tied, its sort is hard. `sorting_network`, `sinkhorn` and
    `gumbel_sinkhorn` look for their temperature by trying a dozen, which costs as many forward
    passes.

    Args:
        ranks: How many, positive: the standard deviation of a row of `neuralsort`.

    Raises:
        TypeError: If `ranks` is not a number.
        ValueError: If it is not positive.

    Example:
        >>> Blur(2.0)
        Blur(ranks=2.0)
    """

    ranks: float = 1.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "ranks", _options.blur(self.ranks))


# -- temperatures at that blur, in units of the gap ------------------------------------------------
#
# Where two shapes of rows have equal entropies has no closed form. Wide rows have the entropy of
# their density, very narrow ones that of a peak and its two neighbours; what is between is fitted,
# to 6 % of the temperature, and tested.

_DENSITY = ITEMS / (2 * math.e)
"""The scale of the Laplace distribution that has the entropy of a standard Gaussian."""


def gaussian(ranks: float) -> float:
    """Of rows that fall by the square of the rank distance: NeuralSort's."""
    return 2 * ranks**2


def laplace(ranks: float) -> float:
    """Of rows that fall by the rank distance: SoftSort's."""
    return min(2 * ranks**2, math.hypot(_DENSITY * ranks, ranks / math.hypot(2.45 * ranks, 1.55)))


def between(ranks: float) -> float:
    """Of rows that are the mass of such a fall between two thresholds: LapSum's."""
    if ranks < 0.4:
        return 1 / (1 / ranks**2 - 2 * math.log(2))
    return math.sqrt((_DENSITY * ranks) ** 2 - 0.05)


def logistic(ranks: float) -> float:
    """Of ranks that are sums of sigmoids of differences: as wide as the slope of one of them."""
    return ranks * ITEMS / math.e**2


def twice_logistic(ranks: float) -> float:
    """Of sums of hyperbolic tangents, which are sigmoids of twice their argument."""
    return 2 * logistic(ranks)
