"""Tables of the report, made from lines of results and the paper's numbers alone."""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from . import paper
from .orderings import WITHOUT_TAU

Line = dict[str, Any]

MISSING = "missing"
PLACES = 4
"""Digits of the paper's numbers."""


class Row(NamedTuple):
    """What the lines of a row share."""

    method: str
    recipe: str
    places: int

    @property
    def title(self) -> list[str]:
        """For people."""
        more = [] if self.places == PLACES else [f"numbers of {self.places} digits"]
        return [name(self.method), f"recipe: {self.recipe}", *more]


WITHOUT_NEIGHBOURS = ("pixels", "pca", "autoencoder", "cross_entropy")
"""Methods that look for none while they train."""


@dataclass(frozen=True)
class Table:
    """A table for people.

    Attributes:
        title: What it shows.
        note: How to read it.
        header: One heading per column.
        rows: Cells; each is lines of text, the first being the number.
    """

    title: str
    note: str
    header: list[str]
    rows: list[list[list[str]]]


def chosen(lines: Sequence[Line]) -> list[Line]:
    """One line for each study, data, recipe, method, sizes and seed; of neighbours, learning rate.

    The one of the longest training, tested on the most lists; of equals the last.
    """
    keys = ("study", "data", "recipe", "method", "n", "places", "k", "train_n", "seed")
    found: dict[tuple, list[Line]] = defaultdict(list)
    for line in lines:
        rate = _rate(line) if line["study"] == "knn" else None
        key = *((line["config"] | line).get(key) for key in keys), rate
        found[key].insert(0, line)
    return [
        max(same, key=lambda x: (x["steps"], x.get("test_lists", 0))) for same in found.values()
    ]


def sort_table(lines: Sequence[Line], data: str) -> Table:
    """Exact and element-wise match: the paper's Table 1."""

    def cell(runs: list[Line]) -> list[str]:
        exact, element = _mean(runs, "exact_match"), _mean(runs, "element_wise")
        spread = _spread(runs, ("exact_match", "element_wise"), "{:.3f}")
        return [f"{exact:.3f} ({element:.3f})", *spread]

    def printed(method: str, column: int) -> str:
        return f"{paper.EXACT_MATCH[method][column]:.3f} ({paper.ELEMENT_WISE[method][column]:.3f})"

    return _table(
        "Sorting: lists in exactly the right order (places right)",
        "Share of test lists whose predicted order is right in every place; in brackets the share "
        "of places that are right. Of two equal numbers either may come first. More is better.",
        _of(lines, "sort", data),
        paper.SORT_LENGTHS,
        paper.EXACT_MATCH,
        cell,
        printed if data == "mnist" else None,
    )


def difference_table(lines: Sequence[Line], data: str) -> Table:
    """How far relaxed permutations are from hard ones, at the best temperature."""
    return _table(
        "Sorting: mean squared difference between relaxed and hard permutation",
        "Averaged over the entries of the matrices of all test lists. Less is harder.",
        _of(lines, "sort", data),
        paper.SORT_LENGTHS,
        paper.SQUARED_DIFFERENCE,
        lambda runs: [
            f"{_mean(runs, 'squared_difference'):.4f}",
            *_spread(runs, ("squared_difference",), "{:.4f}"),
        ],
        (lambda method, column: f"{paper.SQUARED_DIFFERENCE[method][column]:.4f}")
        if data == "mnist"
        else None,
    )


def median_table(lines: Sequence[Line], data: str) -> Table:
    """Mean squared error and R^2 of medians: the paper's Table 2."""

    def cell(runs: list[Line]) -> list[str]:
        error, share = _mean(runs, "mse") / 1e4, _mean(runs, "r2")
        spread = _spread(runs, ("mse", "r2"), "{:.3f}", units=(1e4, 1.0))
        return [f"{error:.2f} ({share:.3f})", *spread]

    def printed(method: str, column: int) -> str:
        return f"{paper.MSE_TEN_THOUSANDS[method][column]:.2f} ({paper.R2[method][column]:.2f})"

    return _table(
        "Medians: mean squared error x 1e-4 (R²)",
        "Between predicted and true median of test lists, in units of the numbers; in brackets the "
        "share of the medians' variance that is explained. A smaller error is better.",
        _of(lines, "median", data),
        paper.MEDIAN_LENGTHS,
        paper.MSE_TEN_THOUSANDS,
        cell,
        printed if data == "mnist" else None,
    )


def knn_table(lines: Sequence[Line]) -> Table:
    """Accuracy of nearest neighbours on every source: the paper's Table 3."""
    found: dict[tuple[str, str, str], list[Line]] = defaultdict(list)
    for line in lines:
        if line["study"] == "knn":
            found[line["method"], line["recipe"], line["data"]].append(line)
    recipes = {(method, recipe) for method, recipe, _ in found}
    recipes |= {(method, "fast") for method in paper.KNN_ACCURACY} if found else set()
    sources = [*paper.KNN_DATA, *sorted({data for *_, data in found} - set(paper.KNN_DATA))]
    order = list(paper.NAMES)
    rows = []
    for method, recipe in sorted(recipes, key=lambda key: (order.index(key[0]), key[1])):
        row = [[name(method), f"recipe: {recipe}"]]
        for data in sources:
            cell = _knn_cell(found.get((method, recipe, data), []))
            if data in paper.KNN_DATA:
                printed = paper.KNN_ACCURACY[method][paper.KNN_DATA.index(data)]
                cell.append(f"paper: {100 * printed:.1f} %")
            row.append(cell)
        rows.append(row)
    return Table(
        "Nearest neighbours: accuracy",
        "Share of test images whose label wins the vote of the nearest training images, all of "
        "which are looked at; the number of neighbours and their weights are those that did best "
        "on validation images. Where several numbers of neighbours were trained with, the run that "
        "did best on validation. More is better.",
        ["method", *sources],
        rows,
    )


def _knn_cell(lines: list[Line]) -> list[str]:
    """The runs of the k and the learning rate that validation likes best."""
    if not lines:
        return [MISSING]
    runs = _preferred(lines)
    best = max(runs, key=_validation)
    chosen = best["extras"].get("chosen")
    cell = [f"{100 * _mean(runs, 'accuracy'):.2f} %", *_spread(runs, ("accuracy",), "{:.4f}")]
    if chosen:
        cell.append(f"k = {chosen['k']}, {chosen['weights']}")
    if best["steps"]:
        cell.append(f"{best['config']['network']}, {_time(runs)}")
    if _limited(runs):
        cell.append(_limited(runs))
    return cell


def _validation(line: Line) -> float:
    chosen = line["extras"].get("chosen")
    return chosen["validation"] if chosen else line["validation"]["accuracy"]


def _rate(line: Line) -> float:
    return line["config"]["plan"]["lr"]


def _preferred(lines: list[Line]) -> list[Line]:
    """The lines of all seeds with the k and the learning rate that did best on validation."""
    best = max(lines, key=_validation)
    return [line for line in lines if (line["k"], _rate(line)) == (best["k"], _rate(best))]


def knn_by_k_table(lines: Sequence[Line]) -> Table:
    """Accuracy of the learned embeddings by the number of neighbours."""
    rows = []
    kinds = [*paper.KNN_ACCURACY_BY_K]
    kinds += [("digits", method) for method in ("neuralsort", "stochastic_neuralsort")]
    for data, method in kinds:
        mine = [
            line
            for line in lines
            if (line["study"], line["data"], line["method"]) == ("knn", data, method)
        ]
        printed = paper.KNN_ACCURACY_BY_K.get((data, method))
        recipes = {line["recipe"] for line in mine} | ({"fast"} if printed else set())
        for recipe in sorted(recipes):
            row = [[f"{data}, {name(method)}", f"recipe: {recipe}"]]
            runs = [line for line in mine if line["recipe"] == recipe]
            for column, k in enumerate(paper.KNN_KS):
                cell = _by_k_cell(runs, k)
                cell += [] if printed is None else [f"paper: {100 * printed[column]:.1f} %"]
                row.append(cell)
            rows.append(row)
    return Table(
        "Nearest neighbours: accuracy by k",
        "The vote of k neighbours with equal weights, in the embedding trained with that k, or "
        "with another where it says so.",
        ["data, method", *(f"k = {k}" for k in paper.KNN_KS)],
        rows,
    )


def _by_k_cell(runs: list[Line], k: int) -> list[str]:
    """The vote of k neighbours, in embeddings trained with that k if there are any."""
    if not runs:
        return [MISSING]
    own = [line for line in runs if line["k"] == k]
    at = _preferred(own or runs)
    trained = [] if own else [f"trained with k = {at[0]['k']}"]
    return [f"{100 * _mean(at, f'accuracy_k{k}'):.2f} %", *trained]


def runs_table(lines: Sequence[Line]) -> Table:
    """Every run: what was trained, for how long, on what."""
    rows = []
    for line in lines:
        plan, machine = line["config"]["plan"], line["machine"]
        sorts = line["method"] not in (*WITHOUT_TAU, *WITHOUT_NEIGHBOURS)
        steps = f"{line['steps']:,}"
        if _limited([line]):
            steps += f" (limited; the recipe has {line['config']['steps_of_recipe']:,})"
        cells = [
            f"{line['study']}, {name(line['method'])}",
            line["data"],
            size(line) if "n" in line or sorts else "-",
            line["recipe"],
            str(line["seed"]),
            f"{line['tau']:g}" if sorts else "-",
            steps,
            str(plan["batch"]) if line["steps"] else "-",
            f"{line['wall_seconds'] / 60:.1f} min",
            f"{machine['cores']} cores, {machine['processor'] or 'unknown'}",
            (line["commit"] or "released")[:7],
        ]
        rows.append([[cell] for cell in cells])
    header = [
        "run",
        "data",
        "size",
        "recipe",
        "seed",
        "tau",
        "steps",
        "batch",
        "time",
        "machine",
        "commit",
    ]
    note = "Time includes validation, over all temperatures tried and all sittings."
    return Table("All runs", note, header, rows)


def size(line: Line) -> str:
    """Lengths of lists, or the number of neighbours that the loss counted."""
    if "n" not in line:
        return f"k = {line['k']}"
    trained = line["config"]["train_n"]
    return f"n = {line['n']}" + ("" if trained == line["n"] else f" (trained at {trained})")


def name(method: str) -> str:
    """The name of a method in print."""
    return paper.NAMES.get(method, method)


def _of(lines: Sequence[Line], study: str, data: str) -> list[Line]:
    return [line for line in lines if (line["study"], line["data"]) == (study, data)]


def _table(
    title: str,
    note: str,
    lines: Sequence[Line],
    lengths: Sequence[int],
    published: Mapping[str, Sequence[float]],
    cell: Callable[[list[Line]], list[str]],
    printed: Callable[[str, int], str] | None,
) -> Table:
    """Methods by lengths: ours, its spread, the paper's, recipe and time; or that it is missing."""
    found: dict[tuple[Row, int], list[Line]] = defaultdict(list)
    for line in lines:
        found[Row(line["method"], line["recipe"], line["places"]), line["n"]].append(line)
    wanted = set(lengths) if printed else set()
    wanted |= {n for _, n in found}
    kinds = {row for row, _ in found}
    if printed:
        kinds |= {Row(method, "fast", PLACES) for method in published}
    order = [*paper.NAMES, *sorted({row.method for row in kinds} - set(paper.NAMES))]
    rows = []
    for row in sorted(kinds, key=lambda row: (order.index(row.method), row.recipe, row.places)):
        cells = [row.title]
        for n in sorted(wanted):
            runs = _nearest(found.get((row, n), []))
            text = [*cell(runs), _time(runs), _trained(runs), _limited(runs)] if runs else [MISSING]
            if printed and row.places == PLACES:
                known = row.method in published and n in lengths
                told = printed(row.method, list(lengths).index(n)) if known else "not given"
                text.append(f"paper: {told}")
            cells.append([line for line in text if line])
        rows.append(cells)
    return Table(title, note, ["method", *(f"n = {n}" for n in sorted(wanted))], rows)


def _nearest(runs: list[Line]) -> list[Line]:
    """Those that were trained at the length of the cell; else those at the longest other."""
    if not runs:
        return []
    lengths = {run["config"]["train_n"] for run in runs}
    n = runs[0]["n"] if runs[0]["n"] in lengths else max(lengths)
    return [run for run in runs if run["config"]["train_n"] == n]


def _trained(runs: Sequence[Line]) -> str:
    trained = runs[0]["config"]["train_n"]
    return "" if trained == runs[0]["n"] else f"trained at n = {trained}"


def _mean(runs: Sequence[Line], metric: str) -> float:
    return sum(run["metrics"][metric] for run in runs) / len(runs)


def _spread(
    runs: Sequence[Line], metrics: Sequence[str], form: str, units: Sequence[float] = (1.0, 1.0)
) -> list[str]:
    """The range over seeds, and the intervals of the first of them, the second in brackets."""

    def text(ends: list[tuple[float, float]]) -> str:
        parts = [
            f"{form.format(low / unit)} to {form.format(high / unit)}"
            for (low, high), unit in zip(ends, units, strict=False)
        ]
        return parts[0] + "".join(f" ({part})" for part in parts[1:])

    first = min(runs, key=lambda run: run["seed"])
    told = []
    if len(runs) > 1:
        values = [[run["metrics"][metric] for run in runs] for metric in metrics]
        told.append(f"{len(runs)} seeds: {text([(min(x), max(x)) for x in values])}")
    intervals = [first["intervals"][metric] for metric in metrics if metric in first["intervals"]]
    if intervals:
        which = f"seed {first['seed']}, " if len(runs) > 1 else ""
        told.append(f"{which}95 %: {text(intervals)}")
    return told


def _limited(runs: Sequence[Line]) -> str:
    """Says so where a run had fewer steps than its recipe."""
    plan, config = runs[0]["config"]["plan"], runs[0]["config"]
    if not runs[0]["steps"] or plan["steps"] >= config["steps_of_recipe"]:
        return ""
    return f"{plan['steps']:,} of {config['steps_of_recipe']:,} steps"


def _time(runs: Sequence[Line]) -> str:
    minutes = max(run["wall_seconds"] for run in runs) / 60
    return f"{minutes:.0f} min" if minutes >= 1 else f"{60 * minutes:.0f} s"
