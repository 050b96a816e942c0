"""Time and memory against the length of a list, drawn from the lines of a benchmark."""

from collections.abc import Iterable
from pathlib import Path

import matplotlib

matplotlib.use("Agg")  # into files, also where there is no screen

import matplotlib.pyplot as plt
from matplotlib.axes import Axes

from benchmarks.bars import BOTH
from benchmarks.contenders import CONTENDERS
from benchmarks.record import Measurement

OURS = ("ours-sort", "ours-dense")
"""Drawn thick: the default relaxation."""


def _series(
    measurements: Iterable[Measurement], kind: str
) -> dict[str, tuple[list[int], list[float]]]:
    """For each contender lengths and what one list takes, forward and backward, at tau = 1."""
    found: dict[str, dict[int, float]] = {}
    for one in measurements:
        if (one.kind, one.mode, one.tau) == (kind, BOTH, 1.0) and one.value:
            found.setdefault(one.contender, {})[one.n] = one.value / one.batch
    return {
        name: (sorted(values), [values[n] for n in sorted(values)])
        for name, values in found.items()
    }


def _draw(axes: Axes, measurements: Iterable[Measurement], kind: str, unit: float) -> None:
    found = _series(measurements, kind)
    for i, name in enumerate(CONTENDERS):
        n, values = found.get(name, ([], []))
        matrix = CONTENDERS[name].gives == "P"
        axes.plot(
            n,
            [value / unit for value in values],
            color=plt.get_cmap("tab20")(i % 20),
            linestyle="--" if matrix else "-",
            linewidth=3 if name in OURS else 1.3,
            marker="o",
            markersize=4,
            label=f"{name} ({'matrix' if matrix else 'values'})",
        )
    axes.set(xscale="log", yscale="log", xlabel="items in a list")
    axes.grid(alpha=0.3)


def growth(measurements: list[Measurement], path: Path) -> None:
    """Draws time and peak memory per list against its length, every contender."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(13, 5.5), layout="constrained")
    _draw(left, measurements, "seconds", 1e-3)
    left.set(title="Time, forward and backward", ylabel="milliseconds per list")
    _draw(right, measurements, "bytes", 2**20)
    right.set(title="Peak memory, forward and backward", ylabel="MiB per list")
    handles, labels = left.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside right center", fontsize=8, frameon=False)
    figure.savefig(path, dpi=110)
    plt.close(figure)
