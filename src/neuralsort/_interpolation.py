"""How many Chebyshev nodes a block of rows needs: bounds that docs/numerics.md derives."""

import functools
import math
from collections.abc import Callable


def exponential_error(a: float, nodes: int) -> float:
    r"""A bound for the error of interpolating $e^{a t}$ on [-1, 1], for $a \ge 0$.

    The Chebyshev coefficients are $2 I_k(a)$. What is left of the series after `nodes` terms comes
    twice, once left out and once folded back. $I_k(a) \le (a/2)^k / k!\; e^{a^2 / (4k + 4)}$, and
    from one term to the next this falls at least by `ratio`. Where it does not fall, the
    interpolant is at most 4 times as large as what it interpolates, for up to 100 nodes.
    """
    if a == 0:
        return 0.0
    ratio = a / (2 * nodes + 2)
    if ratio >= 0.9:
        return 5 * math.exp(a)
    log = nodes * math.log(a / 2) - math.lgamma(nodes + 1) + a * a / (4 * nodes + 4)
    return min(4 * math.exp(log) / (1 - ratio), 5 * math.exp(a))


def neuralsort_error(nodes: int, reach: float) -> float:
    """A bound for the error of one column of NeuralSort, as a share of its row's mass.

    With `a = |2 r d|` of a column, its weight has fallen by at least `a - reach / 2` from the first
    half of the reach on, and by twice as much beyond the reach.
    """

    def error(a: float) -> float:
        fallen = min(max(a - reach / 2, 0.0), reach / 2) + 2 * max(a - reach, 0.0)
        return exponential_error(a, nodes) * math.exp(-fallen)

    # The bound rises up to the reach and has one maximum behind it, near a = nodes / 2. Between
    # two of these places it is not a tenth higher than at the better of them.
    return 1.1 * max(error(reach + nodes * k / 64) for k in range(129))


def softsort_error(nodes: int, half: float) -> float:
    r"""The same for SoftSort with squared distances, over an interval of half-length `half`.

    By Cramér's bound for Hermite functions the k-th derivative of $e^{-x^2}$ is at most
    $1.09 \sqrt{2^k k!}$, and interpolation errs by $2 (half / 2)^k / k!$ times that.
    """
    return 2.18 * math.exp(nodes * math.log(half / math.sqrt(2)) - math.lgamma(nodes + 1) / 2)


@functools.cache
def fewest_nodes(bound: Callable[[int, float], float], width: float, tol: float) -> int:
    """The fewest nodes, a multiple of 4, at which a column errs by no more than `tol`."""
    return next(nodes for nodes in range(8, 100, 4) if bound(nodes, width) <= tol)
