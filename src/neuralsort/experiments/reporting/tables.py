"""Tables of the report, made from lines of results and the paper's numbers alone."""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from ..networks.orderings import WITHOUT_TAU
from ..record import Line
from ..studies.intervals import over_seeds
from . import paper

MISSING = "missing"
PLACES = 4
"""Digits of the paper's numbers."""

WITHOUT_NEIGHBOURS = ("pixels", "pca", "autoencoder", "cross_entropy")
"""Methods that look for none while they train."""

RECIPES = {
    "fast": "our recipe",
    "paper": "the paper's recipe",
    "tuned": "the paper's network, tuned",
}


class Budget(NamedTuple):
    """What runs must share to be compared: recipe, steps, and how lists are drawn."""

    recipe: str
    steps: int
    overlap: int

    @property
    def title(self) -> str:
        """For people."""
        more = f", {self.overlap} lists from the images of one" if self.overlap > 1 else ""
        return f"{RECIPES.get(self.recipe, self.recipe)}, {self.steps:,} steps{more}"


class Row(NamedTuple):
    """What the lines of a row share."""

    method: str
    places: int

    @property
    def title(self) -> list[str]:
        """For people."""
        more = [] if self.places == PLACES else [f"numbers of {self.places} digits"]
        return [name(self.method), *more]


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
    rows: list[list[list[str]]] = field(default_factory=list)


def chosen(lines: Sequence[Line]) -> list[Line]:
    """One line for each run: of those that share all options, the last."""
    return list({line.cell: line for line in lines}.values())


def budget_of(line: Line) -> Budget:
    """With what a line may be compared."""
    return Budget(line.recipe, line.plan["steps"], line.plan.get("overlap", 1))


def is_search(line: Line) -> bool:
    """Whether it is of short runs at several temperatures, which choose one for longer runs."""
    return line.recipe != "paper" and len(line.config.get("taus", ())) > 1


def budgets(lines: Sequence[Line]) -> list[Budget]:
    """The budgets of runs on lists, that of the most cells first."""
    trained = [line for line in lines if line.steps and not is_search(line)]
    cells: dict[Budget, set] = defaultdict(set)
    for line in trained:
        own = cells[budget_of(line)]
        if line.train_n == line.sizes["n"]:
            own.add((line.study, line.method, line.sizes["n"]))
    return sorted(cells, key=lambda one: (one.recipe != "fast", -len(cells[one]), -one.steps))


def within(lines: Sequence[Line], budget: Budget) -> list[Line]:
    """The runs of a budget, and those of its recipe that had nothing to train."""
    return [
        line
        for line in lines
        if not is_search(line)
        and (budget_of(line) == budget if line.steps else line.recipe == budget.recipe)
    ]


# -- lists of large numbers ------------------------------------------------------------------------


def sort_table(lines: Sequence[Line], data: str, *, whole: bool = True) -> Table:
    """Exact and element-wise match: the paper's Table 1.

    Args:
        lines: Of one budget.
        data: Name of the data set.
        whole: Whether to show the cells that nobody has run.
    """

    def cell(runs: list[Line]) -> list[str]:
        exact, element = mean(runs, "exact_match"), mean(runs, "element_wise")
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
        whole,
    )


def difference_table(lines: Sequence[Line], data: str, *, whole: bool = True) -> Table:
    """How far relaxed permutations are from hard ones, at the best temperature."""
    return _table(
        "Sorting: mean squared difference between relaxed and hard permutation",
        "Averaged over the entries of the matrices of all test lists. Less is harder.",
        _of(lines, "sort", data),
        paper.SORT_LENGTHS,
        paper.SQUARED_DIFFERENCE,
        lambda runs: [
            f"{mean(runs, 'squared_difference'):.4f}",
            *_spread(runs, ("squared_difference",), "{:.4f}"),
        ],
        (lambda method, column: f"{paper.SQUARED_DIFFERENCE[method][column]:.4f}")
        if data == "mnist"
        else None,
        whole,
    )


def median_table(lines: Sequence[Line], data: str, *, whole: bool = True) -> Table:
    """Mean squared error and R^2 of medians: the paper's Table 2."""

    def cell(runs: list[Line]) -> list[str]:
        error, share = mean(runs, "mse") / 1e4, mean(runs, "r2")
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
        whole,
    )


def _table(
    title: str,
    note: str,
    lines: Sequence[Line],
    lengths: Sequence[int],
    published: Mapping[str, Sequence[float]],
    cell: Callable[[list[Line]], list[str]],
    printed: Callable[[str, int], str] | None,
    whole: bool,
) -> Table:
    """Methods by lengths: ours, its spread, the paper's, time; or that it is missing."""
    found: dict[tuple[Row, int], list[Line]] = defaultdict(list)
    for line in lines:
        found[Row(line.method, line.sizes["places"]), line.sizes["n"]].append(line)
    if not any(line.steps for line in lines):
        return Table(title, note, ["method"])
    wanted = {n for _, n in found}
    kinds = {row for row, _ in found}
    if printed and whole:
        wanted |= set(lengths)
        kinds |= {Row(method, PLACES) for method in published}
    order = [*paper.NAMES, *sorted({row.method for row in kinds} - set(paper.NAMES))]
    rows = []
    for row in sorted(kinds, key=lambda row: (order.index(row.method), row.places)):
        cells = [row.title]
        for n in sorted(wanted):
            runs = nearest(found.get((row, n), []))
            text = [*cell(runs), _time(runs), _trained(runs)] if runs else [MISSING]
            if printed and row.places == PLACES:
                known = row.method in published and n in lengths
                told = printed(row.method, list(lengths).index(n)) if known else "not given"
                text.append(f"paper: {told}")
            cells.append([line for line in text if line])
        rows.append(cells)
    return Table(title, note, ["method", *(f"n = {n}" for n in sorted(wanted))], rows)


def nearest(runs: list[Line]) -> list[Line]:
    """Those that were trained at the length of the cell; else those at the longest other."""
    if not runs:
        return []
    lengths = {run.train_n or 0 for run in runs}
    n = runs[0].sizes["n"] if runs[0].sizes["n"] in lengths else max(lengths)
    return [run for run in runs if run.train_n == n]


def _trained(runs: Sequence[Line]) -> str:
    trained = runs[0].train_n
    return "" if trained == runs[0].sizes["n"] else f"trained at n = {trained}"


def choices_table(lines: Sequence[Line], data: str) -> Table:
    """The temperatures that short runs chose, for every method from the same ones."""
    found = [line for line in lines if line.data == data and is_search(line)]
    order = list(paper.NAMES)
    found.sort(key=lambda x: (x.study, order.index(x.method), x.sizes["n"], x.plan["steps"]))
    rows = []
    for line in found:
        tried = ", ".join(f"{tau:g}" for tau in line.config["taus"])
        told = (line.study, name(line.method), str(line.sizes["n"]), f"{line.plan['steps']:,}")
        rows.append([[text] for text in (*told, tried, f"{line.tau:g}")])
    return Table(
        "Temperatures",
        "Chosen on validation lists, in short runs of seed 0.",
        ["study", "method", "n", "steps", "tried", "chosen"],
        rows,
    )


# -- neighbours ------------------------------------------------------------------------------------


def knn_table(lines: Sequence[Line]) -> Table:
    """Accuracy of nearest neighbours on every data set: the paper's Table 3."""
    found: dict[tuple[str, str, str], list[Line]] = defaultdict(list)
    for line in lines:
        if line.study == "knn":
            found[line.method, line.recipe, line.data].append(line)
    recipes = {(method, recipe) for method, recipe, _ in found}
    recipes |= {(method, "fast") for method in paper.KNN_ACCURACY} if found else set()
    sets = [*paper.KNN_DATA, *sorted({data for *_, data in found} - set(paper.KNN_DATA))]
    order = list(paper.NAMES)
    rows = []
    for method, recipe in sorted(recipes, key=lambda key: (order.index(key[0]), key[1])):
        row = [[name(method), f"recipe: {recipe}"]]
        for data in sets:
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
        ["method", *sets],
        rows,
    )


def _knn_cell(lines: list[Line]) -> list[str]:
    """The runs of the k and the learning rate that validation likes best."""
    if not lines:
        return [MISSING]
    runs = preferred(lines)
    best = max(runs, key=_validation)
    votes = best.extras.get("chosen")
    cell = [f"{100 * mean(runs, 'accuracy'):.2f} %", *_spread(runs, ("accuracy",), "{:.4f}")]
    if votes:
        cell.append(f"k = {votes['k']}, {votes['weights']}")
    if best.steps:
        cell.append(f"{best.config['network']}, {_time(runs)}")
    if _limited(best):
        cell.append(_limited(best))
    return cell


def _validation(line: Line) -> float:
    votes = line.extras.get("chosen")
    return votes["validation"] if votes else line.validation["accuracy"] or 0.0


def preferred(lines: Sequence[Line]) -> list[Line]:
    """The lines of all seeds with the plan and the k that did best on validation.

    Of plans that differ in their steps, those of the most come first.
    """
    most = max(line.plan["steps"] for line in lines)
    lines = [line for line in lines if line.plan["steps"] == most]
    best = max(lines, key=_validation)
    same = (best.sizes["k"], best.plan["lr"])
    return [line for line in lines if (line.sizes["k"], line.plan["lr"]) == same]


def knn_by_k_table(lines: Sequence[Line]) -> Table:
    """Accuracy of the learned embeddings by the number of neighbours."""
    rows = []
    kinds = [*paper.KNN_ACCURACY_BY_K]
    kinds += [("digits", method) for method in ("neuralsort", "stochastic_neuralsort")]
    for data, method in kinds:
        mine = [
            line for line in lines if (line.study, line.data, line.method) == ("knn", data, method)
        ]
        printed = paper.KNN_ACCURACY_BY_K.get((data, method))
        recipes = {line.recipe for line in mine} | ({"fast"} if printed else set())
        for recipe in sorted(recipes):
            row = [[f"{data}, {name(method)}", f"recipe: {recipe}"]]
            runs = [line for line in mine if line.recipe == recipe]
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
    own = [line for line in runs if line.sizes["k"] == k]
    at = preferred(own or runs)
    trained = [] if own else [f"trained with k = {at[0].sizes['k']}"]
    return [f"{100 * mean(at, f'accuracy_k{k}'):.2f} %", *trained]


# -- rankings --------------------------------------------------------------------------------------


def rank_table(lines: Sequence[Line]) -> Table:
    """Mean over folds of every method, with Student's interval, the best first."""
    metrics = ("ndcg@5", "ndcg@10", "mrr")
    found: dict[str, dict[int, Line]] = defaultdict(dict)
    for line in lines:
        if line.study == "rank" and line.seed == 0:
            found[line.method][line.sizes["fold"]] = line
    rows = []
    for method, folds in found.items():
        runs = list(folds.values())
        cells = []
        for metric in metrics:
            ends = over_seeds([run.metrics[metric] for run in runs])
            told = [] if ends is None else [f"95 % over folds: {ends[0]:.3f} to {ends[1]:.3f}"]
            cells.append([f"{mean(runs, metric):.3f}", *told])
        count = [f"{len(runs)} folds"]
        rows.append((mean(runs, "ndcg@10"), [[name(method), *count], *cells]))
    rows.sort(key=lambda row: -row[0])
    return Table(
        "Rankings: MQ2008",
        "The test queries of five folds. Folds share training queries, so that intervals over them "
        "are a little too narrow; and they differ more than methods do. More is better.",
        ["method", "NDCG@5", "NDCG@10", "MRR"],
        [row for _, row in rows],
    )


# -- all runs --------------------------------------------------------------------------------------


def runs_table(lines: Sequence[Line]) -> Table:
    """Every run: what was trained, for how long, on what."""
    rows = []
    for line in lines:
        sorts = line.method not in (*WITHOUT_TAU, *WITHOUT_NEIGHBOURS)
        steps = f"{line.steps:,}"
        if _limited(line):
            steps += f" (limited; the recipe has {line.config['steps_of_recipe']:,})"
        where = line.machine
        arithmetic = [where["isa"]] if "isa" in where else []
        arithmetic += [f"{where['threads']} threads"] if "threads" in where else []
        processor = where.get("processor") or "unknown"
        cells = [
            f"{line.study}, {name(line.method)}",
            line.data,
            size(line) if "n" in line.sizes or sorts else "-",
            line.recipe,
            str(line.seed),
            f"{line.tau:g}" if sorts and line.tau is not None else "-",
            steps,
            str(line.plan["batch"]) if line.steps else "-",
            f"{line.wall_seconds / 60:.1f} min",
            ", ".join([f"{where.get('cores')} cores, {processor}", *arithmetic]),
            (line.commit or "released")[:7],
        ]
        rows.append([[cell] for cell in cells])
    header = ["run", "data", "size", "recipe", "seed", "tau", "steps", "batch", "time"]
    header += ["machine", "commit"]
    note = "Time includes validation, over all temperatures tried and all sittings."
    return Table("All runs", note, header, rows)


def size(line: Line) -> str:
    """Lengths of lists, or the number of neighbours that the loss counted."""
    if "n" not in line.sizes:
        return f"k = {line.sizes['k']}"
    trained, n = line.train_n, line.sizes["n"]
    return f"n = {n}" + ("" if trained == n else f" (trained at {trained})")


def name(method: str) -> str:
    """The name of a method in print."""
    return paper.NAMES.get(method, method)


def mean(runs: Sequence[Line], metric: str) -> float:
    """Over the seeds."""
    return sum(run.metrics[metric] for run in runs) / len(runs)


def _of(lines: Sequence[Line], study: str, data: str) -> list[Line]:
    return [line for line in lines if (line.study, line.data) == (study, data)]


def _spread(
    runs: Sequence[Line], metrics: Sequence[str], form: str, units: Sequence[float] = (1.0, 1.0)
) -> list[str]:
    """An interval over seeds, the range of two, or the interval of one; and which it is."""

    def text(ends: Sequence[tuple[float, float]]) -> str:
        parts = [
            f"{form.format(low / unit)} to {form.format(high / unit)}"
            for (low, high), unit in zip(ends, units, strict=False)
        ]
        return parts[0] + "".join(f" ({part})" for part in parts[1:])

    values = [[run.metrics[metric] for run in runs] for metric in metrics]
    seeds = [over_seeds(one) for one in values]
    if all(one is not None for one in seeds):
        return [f"{len(runs)} seeds, 95 %: {text([one for one in seeds if one is not None])}"]
    if len(runs) > 1:
        return [f"{len(runs)} seeds, range: {text([(min(x), max(x)) for x in values])}"]
    only = runs[0]
    ends = [only.intervals[metric] for metric in metrics if metric in only.intervals]
    return [f"1 seed, 95 % over {only.intervals_over}: {text(ends)}"] if ends else []


def _limited(line: Line) -> str:
    """Says so where a run had fewer steps than its recipe."""
    full = line.config.get("steps_of_recipe", 0)
    if not line.steps or line.plan["steps"] >= full:
        return ""
    return f"{line.plan['steps']:,} of {full:,} steps"


def _time(runs: Sequence[Line]) -> str:
    minutes = max(run.wall_seconds for run in runs) / 60
    return f"{minutes:.0f} min" if minutes >= 1 else f"{60 * minutes:.0f} s"
