"""The bars the project sets itself, filled in from the measurements of one run."""

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from benchmarks import accuracy, beside
from benchmarks.record import Measurement
from benchmarks.timing import MODES

MILLION = 10**6
LONG_TAUS = (0.01, 1.0)
GROWTH = 10
"""Growth is taken from MILLION / GROWTH items, with tau GROWTH times higher: the gaps between
normal scores shrink like 1 / n, so tau / gap stays the same."""

FORWARD, BOTH = MODES
MIB = 2**20


@dataclass(frozen=True)
class Bar:
    """One line of the table.

    Attributes:
        what: What is measured.
        values: Every number the bar speaks of, None where it was not measured. The worst counts.
        limit: The bar.
        aim: The better number we would like, or None.
        form: How to print the numbers.
        at_most: Whether smaller is better.
    """

    what: str
    values: Sequence[float | None]
    limit: float
    aim: float | None
    form: Callable[[float], str]
    at_most: bool = True

    @property
    def worst(self) -> float | None:
        """The worst number; NaN, if there is one, is worse than all others."""
        known = [value for value in self.values if value is not None]
        if not known:
            return None
        if any(map(math.isnan, known)):
            return math.nan
        return max(known) if self.at_most else min(known)

    @property
    def verdict(self) -> str:
        """Pass (so far, if some of it was not measured), FAIL, or not measured."""
        worst = self.worst
        if worst is None:
            return "not measured"

        def meets(mark: float) -> bool:
            return worst <= mark if self.at_most else worst >= mark

        if not meets(self.limit):
            return "FAIL"
        passed = "pass so far" if None in self.values else "pass"
        return f"{passed}, aim met" if self.aim is not None and meets(self.aim) else passed


def _ratio(above: float | None, below: float | None) -> float | None:
    return None if above is None or below is None else above / below


def _times(value: float) -> str:
    return f"{value:.2f}x" if value < 10 else f"{value:.1f}x"


def _scientific(value: float) -> str:
    return f"{value:.1e}"


def _mebibytes(value: float) -> str:
    return f"{value / MIB:,.0f} MiB"


def _rows(value: float) -> str:
    return f"{value:,.0f} rows"


def bars(measurements: Iterable[Measurement]) -> Iterator[Bar]:
    """Every bar, in the order in which they were set."""
    known = {
        (one.kind, one.contender, one.batch, one.n, one.tau, one.mode): one.value
        for one in measurements
        if one.value is not None
    }

    def seconds(contender: str, batch: int, n: int, tau: float, mode: str) -> float | None:
        return known.get(("seconds", contender, batch, n, tau, mode))

    def errors(check: str) -> list[float | None]:
        found = [value for key, value in known.items() if key[:2] == (check, "ours")]
        return found + [None] * (accuracy.COUNTS[check] - len(found))

    def faster(ours: str, peer: str, batch: int, n: int, mode: str = BOTH) -> float | None:
        return _ratio(seconds(peer, batch, n, 1.0, mode), seconds(ours, batch, n, 1.0, mode))

    def gain(peer: str, batch: int, n: int, mode: str) -> float | None:
        return faster("ours-dense", peer, batch, n, mode)

    yield Bar("`P.permutation()` against the stable sort", errors(accuracy.ORDER), 0, None, _rows)
    yield Bar("`to_dense()`, float32: error", errors(accuracy.DENSE), 2e-6, 2e-7, _scientific)
    what = "`P @ X` and gradients, float32, n = 3000: relative error"
    yield Bar(what, errors(accuracy.PRODUCT), 1e-5, 1e-6, _scientific)

    dense = {(20, 15): 1.1, (64, 50): 1.3, (100, 100): 1.3, (16, 512): 2.0}
    for (batch, n), limit in dense.items():
        what = f"dense, {BOTH}, {batch}x{n}: faster than the formula with a row sum by"
        values = [gain("paper-row-sum", batch, n, BOTH)]
        yield Bar(what, values, limit, 2, _times, at_most=False)
    for (batch, n), limit in {(20, 15): 1.0, (100, 100): 1.5}.items():
        what = f"`P.sort`, {BOTH}, {batch}x{n}: faster than that formula and a product by"
        values = [faster("ours-sort", "row-sum-sort", batch, n)]
        yield Bar(what, values, limit, 2, _times, at_most=False)
    what = f"SoftSort, {BOTH}, 20x15 and 100x100: faster than SoftTorch's by"
    values = [faster("softsort", "softtorch-softsort", *size) for size in ((20, 15), (100, 100))]
    yield Bar(what, values, 1, 1.5, _times, at_most=False)
    values = [faster("ours-dense", "paper-row-sum", *beside.SIZE, beside.MODE)]
    what = "dense, 100x100, beside a busy process: faster than the formula with a row sum by"
    yield Bar(what, values, 1, 2, _times, at_most=False)
    what = f"dense, {BOTH}, 4x2000: faster than the printed formula by"
    yield Bar(what, [gain("paper-formula", 4, 2000, BOTH)], 8, 16, _times, at_most=False)
    compiled = seconds("ours-compiled", 100, 100, 1.0, BOTH)
    what = f"dense, compiled, {BOTH}, 100x100: faster than eager by"
    values = [_ratio(seconds("ours-dense", 100, 100, 1.0, BOTH), compiled)]
    yield Bar(what, values, 1, 1.5, _times, at_most=False)
    what = "dense, either mode, worst size: faster than SoftTorch by"
    values = [gain("softtorch", batch, n, mode) for batch, n in dense for mode in MODES]
    yield Bar(what, values, 1, 2, _times, at_most=False)

    floor = seconds("torch.sort", 1, MILLION, 1.0, FORWARD)
    limits = {FORWARD: (5, 3), BOTH: (11, 7)}
    for tau, mode in itertools.product(LONG_TAUS, MODES):
        what = f"`P.sort`, n = 10^6, tau = {tau:g}, {mode}: multiple of `torch.sort`"
        values = [_ratio(seconds("ours-sort", 1, MILLION, tau, mode), floor)]
        yield Bar(what, values, *limits[mode], _times)
    for (batch, n), limit in {(4, 2000): 35, (1, 10_000): 28}.items():
        what = f"`P.sort`, {BOTH}, {batch}x{n}: multiple of `torch.sort`"
        plain = seconds("torch.sort", batch, n, 1.0, FORWARD)
        values = [_ratio(seconds("ours-sort", batch, n, 1.0, BOTH), plain)]
        yield Bar(what, values, limit, 20, _times)

    values = [known.get(("bytes", "ours-sort", 1, MILLION, tau, BOTH)) for tau in LONG_TAUS]
    yield Bar("`P.sort`, n = 10^6: peak extra memory", values, 1536 * MIB, 500 * MIB, _mebibytes)
    what = "`P.sort`, worst growth from n = 10^5 to 10^6 at fixed tau / gap"
    values = [
        _ratio(
            seconds("ours-sort", 1, MILLION, tau, mode),
            seconds("ours-sort", 1, MILLION // GROWTH, GROWTH * tau, mode),
        )
        for tau in LONG_TAUS
        for mode in MODES
    ]
    yield Bar(what, values, 13, 11, _times)

    ours = seconds("bitonic_network", 100, 100, 1.0, BOTH)
    values = [_ratio(seconds("diffsort", 100, 100, 1.0, BOTH), ours)]
    what = f"bitonic network, {BOTH}, 100x100: faster than diffsort by"
    yield Bar(what, values, 5, 8, _times, at_most=False)
    ranks = [seconds("fast_soft_rank", 1, MILLION, 1.0, mode) for mode in MODES]
    values = [_ratio(one, floor) for one in ranks]
    what = "`fast_soft_rank`, n = 10^6, worst mode: multiple of `torch.sort`"
    yield Bar(what, values, 6, 3, _times)
    limits = {(20, 15): 2.0, (100, 100): 1.7, (4, 2000): 1.7, (1, MILLION): 1.4}
    for (batch, n), limit in limits.items():
        what = f"`fast_soft_rank`, {BOTH}, {batch}x{n}: multiple of torchsort, which is compiled"
        values = [faster("torchsort-rank", "fast_soft_rank", batch, n)]
        yield Bar(what, values, limit, 1, _times)
