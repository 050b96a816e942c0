"""`python -m benchmarks.pages`: the tables of the docs, from the lines in `results/`."""

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from benchmarks import figures, frameworks, neighbors, softness, steps
from benchmarks.bars import BOTH, FORWARD, MILLION
from benchmarks.record import Measurement
from benchmarks.table import (
    FLOOR,
    accuracy_table,
    bars_table,
    markdown,
    milliseconds,
    notes,
    ratio_of,
    speed_table,
)
from examples import knn_tutorial
from neuralsort.experiments.record import Line, read_file
from neuralsort.experiments.record import read as read_files
from neuralsort.experiments.reporting import paper
from neuralsort.experiments.reporting.list_tables import MEDIAN, SORT, Kind, Number
from neuralsort.experiments.reporting.selection import (
    PLACES,
    budgets,
    comparable,
    grouped,
    per_fold,
    per_seed,
    preferred,
    rankings,
    within,
)
from neuralsort.experiments.reporting.tables import name as in_print
from neuralsort.experiments.reporting.tables import place
from neuralsort.experiments.reproduction.cells import LONG, STEPS
from neuralsort.experiments.studies.intervals import over_seeds

ROOT = Path(__file__).resolve().parent.parent
LINES = ROOT / "results" / "benchmarks" / "sorting.jsonl"
FRAMEWORKS = ROOT / "results" / "benchmarks" / "frameworks.jsonl"
ENGINES = ROOT / "results" / "benchmarks" / "neighbors.jsonl"
STEP_COSTS = ROOT / "results" / "benchmarks" / "steps.jsonl"
TUTORIAL = ROOT / "results" / "benchmarks" / "tutorial.jsonl"
STUDY = ROOT / "results" / "sort.jsonl"
MEDIANS = ROOT / "results" / "median.jsonl"
NEIGHBOURS = ROOT / "results" / "knn.jsonl"
RANKINGS = ROOT / "results" / "rank.jsonl"
TRIALS = ROOT / "results" / "trials"

CONTENDERS = {
    "neuralsort": ("ours-dense", "ours-sort"),
    "softsort": ("softsort", "softsort-sort"),
    "lapsum": ("lapsum", "lapsum-sort"),
    "sinkhorn_sort": ("sinkhorn_sort", None),
    "odd_even_network": ("odd_even_network", None),
    "bitonic_network": ("bitonic_network", "bitonic-sort"),
    "fast_soft_sort": (None, "fast_soft_sort"),
    "fast_soft_rank": (None, "fast_soft_rank"),
}
"""Who measures the matrix of a method, and who its sorted values."""


def read(path: Path) -> list[Measurement]:
    """The measurements of a file of lines."""
    names = [field.name for field in fields(Measurement)]
    lines = (json.loads(text) for text in path.read_text().splitlines())
    return [Measurement(**{name: line[name] for name in names}) for line in lines]


def prices(measurements: Iterable[Measurement]) -> str:
    """What each relaxation costs, forward and backward."""
    seconds = {
        (one.contender, one.batch, one.n, one.mode): one.value
        for one in measurements
        if one.kind == "seconds" and one.tau == 1.0
    }
    floor = seconds[FLOOR, 1, MILLION, FORWARD]
    rows = (
        (
            f"`{name}`",
            milliseconds(seconds.get((matrix, 100, 100, BOTH))),
            ratio_of(seconds.get((values, 1, MILLION, BOTH)), floor),
        )
        for name, (matrix, values) in CONTENDERS.items()
    )
    header = ("method", "matrices of 100 x 100 items, ms", "10^6 sorted values, over `torch.sort`")
    return markdown(header, rows)


def learned(lines: Iterable[Line]) -> str:
    """What each method of the study of sorting learned from lists of five numbers of MNIST."""
    mine = [
        line
        for line in lines
        if (line.data, line.sizes["places"]) == ("mnist", PLACES)
        and line.sizes["n"] == line.train_n == 5
    ]
    rows = []
    for budget in budgets(mine):
        for method, cell in grouped(within(mine, budget), lambda line: line.method).items():
            runs = per_seed(cell)
            exact, places = (
                mean(run.metrics[name] for run in runs) for name in ("exact_match", "element_wise")
            )
            told = f"{budget.steps:,}", f"{budget.overlap}", f"{len(runs)}"
            row = f"`{method}`", budget.recipe, *told, f"{exact:.3f}", f"{places:.3f}"
            rows.append(((budget.recipe, -budget.overlap, -budget.steps, -exact), row))
    header = ("method", "recipe", "steps", "overlap", "seeds", "exact match", "element-wise")
    return markdown(header, [row for _, row in sorted(rows)])


def headline(lines: Iterable[Line]) -> str:
    """Deterministic NeuralSort beside the paper: means over seeds, trained at every length itself.

    All of one budget: that of most methods and lengths.

    Raises:
        LookupError: If a length is missing there.
    """
    lengths = paper.SORT_LENGTHS
    found = in_cells(SORT, lines, "fast")
    runs = {n: per_seed(found.get(("neuralsort", n), [])) for n in lengths}
    if missing := [n for n in lengths if not runs[n]]:
        raise LookupError(f"There are no runs of deterministic NeuralSort at n = {missing}.")
    means = (mean(run.metrics["exact_match"] for run in runs[n]) for n in lengths)
    rows = [
        ("`neuralsort train sort`", *(f"**{value:.3f}**" for value in means)),
        ("the paper", *(f"{value:.3f}" for value in paper.EXACT_MATCH["neuralsort"])),
    ]
    return markdown(("lists of", *map(str, lengths)), rows)


def beside_paper(
    number: Number, columns: Mapping[Any, str], found: Mapping[tuple[str, Any], Sequence[Line]]
) -> str:
    """Methods by columns: the mean over seeds, and in brackets what the paper prints.

    From three seeds on with half of Student's 95 % interval, else with how many there are.

    Args:
        number: What to show.
        columns: Headings of the paper's columns, in its order.
        found: The runs of every cell, by method and column.
    """

    def cell(method: str, index: int, column: Any) -> str:
        runs = per_seed(found.get((method, column), []))
        if not runs:
            return "–"
        words = [number.ours(runs)]
        if ends := over_seeds([run.metrics[number.metric] for run in runs]):
            words.append(f"± {(ends[1] - ends[0]) / 2 / number.unit:.{number.digits}f}")
        elif runs[0].steps:  # what has nothing to train is the same in every seed
            words.append("in one seed" if len(runs) == 1 else "in two seeds")
        if method in number.published:
            words.append(f"({number.published[method][index]:.{number.of_paper}f})")
        return " ".join(words)

    rows = [
        (in_print(method), *(cell(method, *one) for one in enumerate(columns)))
        for method in sorted({method for method, _ in found}, key=place)
    ]
    return markdown(("method", *columns.values()), rows)


def in_cells(
    kind: Kind, lines: Iterable[Line], recipe: str, steps: int | None = None
) -> dict[tuple[str, Any], list[Line]]:
    """The runs on lists of MNIST's numbers in one budget of a recipe, by method and length.

    The budget is the one with the most cells, or that of so many steps.
    """
    mine = [
        line
        for line in lines
        if (line.study, line.data) == (kind.study, "mnist")
        and (steps is None or line.plan["steps"] == steps)
    ]
    found: dict[tuple[str, Any], list[Line]] = {}
    for line in comparable(mine, recipe):
        found.setdefault((line.method, line.sizes["n"]), []).append(line)
    return found


def studied(
    kind: Kind, lines: Iterable[Line], recipe: str = "fast", steps: int | None = None
) -> str:
    """Every method of a study on lists of MNIST's numbers, in one budget of a recipe."""
    found = in_cells(kind, lines, recipe, steps)
    return beside_paper(kind.numbers[0], {n: f"n = {n}" for n in kind.lengths}, found)


def neighbours(lines: Iterable[Line]) -> str:
    """Every method of the study of neighbours on the paper's three sets, with our recipe."""
    found: dict[tuple[str, Any], list[Line]] = {}
    for line in lines:
        if line.recipe == "fast" and line.data in paper.KNN_DATA:
            found.setdefault((line.method, line.data), []).append(line)
    percent = {
        method: [100 * value for value in values] for method, values in paper.KNN_ACCURACY.items()
    }
    number = Number("accuracy", percent, digits=2, of_paper=1, unit=0.01)
    names = dict(zip(paper.KNN_DATA, ("MNIST", "Fashion-MNIST", "CIFAR-10"), strict=True))
    return beside_paper(number, names, {key: preferred(runs) for key, runs in found.items()})


def ranked(lines: Iterable[Line]) -> str:
    """Every method of the study of rankings: means over folds, with Student's 95 % intervals.

    The last column is the difference to LambdaMART fold by fold.
    """
    names = {"ndcg@5": "NDCG@5", "ndcg@10": "NDCG@10", "mrr": "MRR", "map": "MAP"}
    found: dict[str, list[Line]] = {}
    for line in rankings(lines):
        found.setdefault(line.method, []).append(line)
    anchor = per_fold(found["lambdamart"])
    rows = []
    for method, mine in found.items():
        folds = per_fold(mine)
        runs = [folds[fold] for fold in sorted(anchor)]
        told = [
            _with_interval([run.metrics[metric] for run in runs])
            if all(metric in run.metrics for run in runs)
            else "–"
            for metric in names
        ]
        apart = [
            run.metrics["ndcg@10"] - anchor[run.sizes["fold"]].metrics["ndcg@10"] for run in runs
        ]
        told.append("" if method == "lambdamart" else _with_interval(apart, "+"))
        rows.append((mean(run.metrics["ndcg@10"] for run in runs), (f"`{method}`", *told)))
    rows.sort(key=lambda row: -row[0])
    header = ("method", *names.values(), "NDCG@10 over LambdaMART")
    return markdown(header, [row for _, row in rows])


def _with_interval(values: list[float], sign: str = "") -> str:
    """The mean, and half the width of Student's interval."""
    ends = over_seeds(values)
    assert ends is not None
    return f"{mean(values):{sign}.3f} ± {(ends[1] - ends[0]) / 2:.3f}"


def tempered(lines: Iterable[Line]) -> str:
    """Fixed, annealed and learned temperatures: the tested one, and validation at every start.

    Of the study of sorting the runs with several starts count, which the others do not have.
    """
    shown = {"sort": ("exact_match", "exact match"), "rank": ("ndcg@10", "NDCG@10")}
    runs: dict[tuple[str, str], list[Line]] = {}
    for line in lines:
        if len(line.trials) > 1:
            runs.setdefault((line.temperature, line.study), []).append(line)
    rows = []
    for study, (metric, name) in shown.items():
        for kind in ("fixed", "annealed", "learned"):
            found = [line.metrics[metric] for line in runs[kind, study]]
            starts: dict[float, list[float]] = {}
            for line in runs[kind, study]:
                for trial in line.trials:
                    best = max(one[metric] for one in trial["history"])
                    starts.setdefault(trial["tau"], []).append(best)
            each = " / ".join(f"{mean(starts[tau]):.3f}" for tau in sorted(starts))
            taus = " / ".join(f"{tau:g}" for tau in sorted(starts))
            cell = f"{mean(found):.3f} ± {stdev(found):.3f}"
            rows.append((f"{study}, {name}", kind, cell, each, taus))
    header = ("study", "temperature", "test", "validation at each `tau`", "`tau`")
    return markdown(header, rows)


def replaced(text: str, mark: str, table: str) -> str:
    """The text of a page with a table between the marks of that name."""
    begin, end = f"<!-- {mark}: begin -->", f"<!-- {mark}: end -->"
    before, rest = text.split(begin)
    return f"{before}{begin}\n\n{table}\n\n{end}{rest.split(end)[1]}"


def pages() -> dict[Path, str]:
    """The pages as they should be."""
    measurements = read(LINES)
    study = read_file(STUDY)
    tutorial = [json.loads(text) for text in TUTORIAL.read_text().splitlines()]
    tables = {
        "../README.md": {"headline": headline(study)},
        "studies.md": {
            "steps": steps.table(read(STEP_COSTS)),
            "sorted": studied(SORT, study),
            "medians": studied(MEDIAN, read_file(MEDIANS)),
            "tuned": studied(SORT, study, "tuned", STEPS["tuned"]),
            "longer": studied(SORT, study, "tuned", LONG),
            "neighbours": neighbours(read_file(NEIGHBOURS)),
        },
        "losses.md": {"ranking": ranked(read_file(RANKINGS))},
        "neighbors.md": {
            "engines": neighbors.table(read(ENGINES)),
            "tutorial": "\n".join([knn_tutorial.HEADER, *map(knn_tutorial.line, tutorial)]),
        },
        "temperature.md": {
            "softness": softness.table(softness.read()),
            "tempered": tempered(read_files(TRIALS)),
        },
        "frameworks.md": {"speed": frameworks.table(read(FRAMEWORKS))},
        "relaxations.md": {"prices": prices(measurements), "learned": learned(study)},
        "benchmarks.md": {
            "bars": bars_table(measurements),
            "speed": f"{speed_table(measurements)}\n\n{notes(measurements)}",
            "accuracy": accuracy_table(measurements),
        },
    }
    found = {}
    for name, of_page in tables.items():
        path = (ROOT / "docs" / name).resolve()
        text = path.read_text()
        for mark, table in of_page.items():
            text = replaced(text, mark, table)
        found[path] = text
    return found


def main() -> int:
    """Writes the pages, and draws what they show."""
    figures.growth(read(LINES), ROOT / "docs" / "benchmarks.png")
    for path, text in pages().items():
        path.write_text(text)
        print(path.relative_to(ROOT))
    return 0


if __name__ == "__main__":
    sys.exit(main())
