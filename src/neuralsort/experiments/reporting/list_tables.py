"""Tables of the studies on lists of large numbers: methods by lengths, beside the paper's."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from ..record import Line
from . import paper
from .selection import PLACES, is_search, nearest
from .tables import MISSING, Table, mean, name, place, spread, time_of, together


class Number(NamedTuple):
    """A number of a cell.

    Attributes:
        metric: Its name in lines.
        published: What the paper prints of every method, one for each of its lengths.
        digits: Behind the point.
        of_ends: The same for the ends of its interval.
        of_paper: The same for the paper's.
        unit: What 1 in print stands for.
    """

    metric: str
    published: Mapping[str, Sequence[float]]
    digits: int = 3
    of_ends: int = 3
    of_paper: int = 3
    unit: float = 1.0

    def ours(self, runs: Sequence[Line]) -> str:
        """The mean over the seeds."""
        return f"{mean(runs, self.metric) / self.unit:.{self.digits}f}"

    def end(self, value: float) -> str:
        """An end of an interval."""
        return f"{value / self.unit:.{self.of_ends}f}"


class Kind(NamedTuple):
    """What a table shows.

    Attributes:
        study: Whose lines.
        title: What it shows.
        note: How to read it.
        lengths: Those of the paper.
        numbers: Of every cell; all but the first in brackets.
    """

    study: str
    title: str
    note: str
    lengths: Sequence[int]
    numbers: Sequence[Number]

    @property
    def methods(self) -> Sequence[str]:
        """Those of the paper."""
        return list(self.numbers[0].published)

    def ours(self, runs: Sequence[Line]) -> list[str]:
        """What the runs of a cell came to."""
        ends = {one.metric: one.end for one in self.numbers}
        return [together(one.ours(runs) for one in self.numbers), *spread(runs, ends)]

    def printed(self, method: str, n: int) -> str:
        """What the paper has there."""
        if method not in self.methods or n not in self.lengths:
            return "not given"
        column = self.lengths.index(n)
        return together(f"{one.published[method][column]:.{one.of_paper}f}" for one in self.numbers)


SORT = Kind(
    "sort",
    "Sorting: lists in exactly the right order (places right)",
    "Share of test lists whose predicted order is right in every place; in brackets the share "
    "of places that are right. Of two equal numbers either may come first. More is better.",
    paper.SORT_LENGTHS,
    [Number("exact_match", paper.EXACT_MATCH), Number("element_wise", paper.ELEMENT_WISE)],
)
"""The paper's Table 1."""

MEDIAN = Kind(
    "median",
    "Medians: mean squared error x 1e-4 (R²)",
    "Between predicted and true median of test lists, in units of the numbers; in brackets the "
    "share of the medians' variance that is explained. A smaller error is better.",
    paper.MEDIAN_LENGTHS,
    [
        Number("mse", paper.MSE_TEN_THOUSANDS, digits=2, of_paper=2, unit=1e4),
        Number("r2", paper.R2, of_paper=2),
    ],
)
"""The paper's Table 2."""

DIFFERENCE = Kind(
    "sort",
    "Sorting: mean squared difference between relaxed and hard permutation",
    "Averaged over the entries of the matrices of all test lists. Less is closer to a hard "
    "permutation; REINFORCE has nothing else.",
    paper.SORT_LENGTHS,
    [Number("squared_difference", paper.SQUARED_DIFFERENCE, digits=4, of_ends=4, of_paper=4)],
)
"""How far relaxed permutations are from hard ones, at the best temperature."""


class Row(NamedTuple):
    """What the lines of a row share."""

    method: str
    places: int

    @property
    def title(self) -> list[str]:
        """For people."""
        more = [] if self.places == PLACES else [f"numbers of {self.places} digits"]
        return [name(self.method), *more]


def list_table(kind: Kind, lines: Sequence[Line], data: str, *, whole: bool = True) -> Table:
    """Methods by lengths: ours, its spread, time, the paper's; or that it is missing.

    Args:
        kind: What to show.
        lines: Of one budget.
        data: Name of the data set.
        whole: Whether to show the cells of the paper that nobody has run.
    """
    lines = [line for line in lines if (line.study, line.data) == (kind.study, data)]
    if not any(line.steps for line in lines):
        return Table(kind.title, kind.note, ["method"])
    found: dict[tuple[Row, int], list[Line]] = defaultdict(list)
    for line in lines:
        found[Row(line.method, line.sizes["places"]), line.sizes["n"]].append(line)
    kinds, lengths = {row for row, _ in found}, {n for _, n in found}
    in_paper = data == "mnist"
    if in_paper and whole:
        kinds |= {Row(method, PLACES) for method in kind.methods}
        lengths |= set(kind.lengths)
    rows = []
    for row in sorted(kinds, key=lambda row: (place(row.method), row.places)):
        cells = [row.title]
        for n in sorted(lengths):
            runs = nearest(found.get((row, n), []))
            text = [*kind.ours(runs), time_of(runs), *_trained(runs)] if runs else [MISSING]
            if in_paper and row.places == PLACES:
                text.append(f"paper: {kind.printed(row.method, n)}")
                text += _again(kind, runs)
            cells.append(text)
        rows.append(cells)
    return Table(kind.title, kind.note, ["method", *(f"n = {n}" for n in sorted(lengths))], rows)


def _again(kind: Kind, runs: Sequence[Line]) -> list[str]:
    """What others found with the paper's network at the same temperatures."""
    if not runs or runs[0].recipe != "tuned" or runs[0].sizes["n"] not in kind.lengths:
        return []
    column = kind.lengths.index(runs[0].sizes["n"])
    found = [paper.RERUN.get((runs[0].method, one.metric)) for one in kind.numbers]
    told = [f"{one[column]:.3f}" for one in found if one]
    return [f"{paper.RERUN_BY}: {together(told)}"] if told else []


def _trained(runs: Sequence[Line]) -> list[str]:
    trained = runs[0].train_n
    return [] if trained == runs[0].sizes["n"] else [f"trained at n = {trained}"]


def choices_table(lines: Sequence[Line], data: str) -> Table:
    """The temperatures that short runs chose for longer ones, and how each did on validation."""
    mine = [line for line in lines if line.data == data and line.tested_as_trained]
    used = {_kind_of(line) for line in mine if not is_search(line)}
    found = [line for line in mine if is_search(line) and _kind_of(line) in used]
    found.sort(key=lambda x: (x.recipe, x.study, place(x.method), x.sizes["n"], x.plan["steps"]))
    rows = []
    for line in found:
        metric, best = ("exact_match", max) if line.study == "sort" else ("mse", min)
        tried = []
        for trial in line.trials:
            values = [one[metric] for one in trial["history"]]
            told = "diverged" if not values else f"{best(values):.4g}"
            tried.append(f"{trial['tau']:g}: {told}")
        told = (line.study, name(line.method), str(line.sizes["n"]), line.recipe)
        rows.append(
            [*([text] for text in told), [f"{line.tau:g}"], [f"{line.plan['steps']:,}"], tried]
        )
    return Table(
        "Temperatures",
        "Chosen on validation lists, in short runs of seed 0: the share of lists in order, or the "
        "squared error in units of the numbers, is of 2,000 lists. Small differences are chance.",
        ["study", "method", "n", "recipe", "chosen", "steps", "tried"],
        rows,
    )


def _kind_of(line: Line) -> tuple:
    """What a search and the runs that use its choice share."""
    return line.study, line.method, line.recipe, line.tau, line.precision, tuple(line.sizes.items())
