"""`neuralsort quickstart`: the studies in small, from nothing to a report in minutes."""

import shutil
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

from rich.console import Console
from rich.table import Table

from .networks.orderings import BASELINES, NEURALSORT
from .record import Line
from .reporting.tables import name
from .studies import STUDIES
from .studies.lists import ListConfig
from .studies.median import MedianConfig
from .studies.running import run
from .studies.sorting import SortConfig

_STORY = (
    "A model looks at lists of five numbers, each an image of four handwritten digits, and learns "
    "to put such lists in order. It is told the right order of its training lists, never a number "
    "or a digit. That needs a gradient through sorting, and a sort has none: it is a step "
    "function. NeuralSort smooths it. The baselines do without.\n"
)

_MEDIANS = (
    "Now a model is told even less: the median of each training list, and not which image shows "
    "it.\n"
)


def runs(seed: int) -> Iterator[tuple[str, ListConfig]]:
    """What is trained, with the name of its study."""
    small = partial(replace, seed=seed, steps=600, test_lists=2_000, validation_lists=500)
    for method in (*NEURALSORT, *BASELINES):
        yield "sort", small(SortConfig(method=method))
    for method in ("neuralsort", "vanilla", "constant"):
        yield "median", small(MedianConfig(method=method))


def quickstart(out: Path = Path("report"), seed: int = 0) -> None:
    """Train NeuralSort and its baselines on small digits, and write a report. No download.

    Args:
        out: Folder for the report.
        seed: Of parameters, batches and noise.
    """
    from .reporting.report import write_report  # draws: what that needs takes a second to import

    work = out / f"quickstart-seed{seed}"
    checkpoints, results = work / "runs", work / "results"
    if not checkpoints.exists():  # else an earlier quickstart was interrupted, and goes on
        shutil.rmtree(results, ignore_errors=True)
    lines: dict[str, list[Line]] = {study: [] for study in STUDIES}
    console = Console()
    console.print(_STORY, highlight=False)
    for study, config in runs(seed):
        folder = checkpoints / config.folder(study).name
        line = run(STUDIES[study], replace(config, run=folder, results=results))
        lines[study].append(line)
    console.print(_sort_table(lines["sort"]))
    console.print(_MEDIANS, highlight=False)
    console.print(_median_table(lines["median"]))
    page = write_report(results, out)
    shutil.rmtree(checkpoints)
    console.print(f"The report, with figures: {page}", highlight=False, soft_wrap=True)


def _sort_table(lines: list[Line]) -> Table:
    table = Table(title="Sorting five numbers: test lists that no model has seen")
    for heading in ("method", "lists right", "95 %", "places", "95 %"):
        table.add_column(heading, justify="left" if heading == "method" else "right")
    for line in sorted(lines, key=lambda line: -line.metrics["exact_match"]):
        table.add_row(
            name(line.method), *_number(line, "exact_match"), *_number(line, "element_wise")
        )
    return table


def _median_table(lines: list[Line]) -> Table:
    table = Table(title="Predicting the median of five numbers from 0 to 9999")
    for heading in ("method", "typical error", "R²", "95 %"):
        table.add_column(heading, justify="left" if heading == "method" else "right")
    for line in sorted(lines, key=lambda line: line.metrics["mse"]):
        typical = f"{line.metrics['mse'] ** 0.5:.0f}"
        table.add_row(name(line.method), typical, *_number(line, "r2"))
    return table


def _number(line: Line, metric: str) -> tuple[str, str]:
    low, high = line.intervals[metric]
    between = "–" if low >= 0 else " to "
    return f"{line.metrics[metric]:.3f}", f"{low:.2f}{between}{high:.2f}"
