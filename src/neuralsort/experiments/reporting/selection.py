"""Which lines of results count, and which of them may be compared."""

import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, TypeVar

from ..record import Line

RECIPES = {
    "fast": "our recipe",
    "paper": "the paper's recipe",
    "tuned": "the paper's network, tuned",
}

PLACES = 4
"""Digits of the paper's numbers."""

K = TypeVar("K")


def grouped(lines: Iterable[Line], key: Callable[[Line], K]) -> dict[K, list[Line]]:
    """Lines by what they share; the group that the last line is in comes last."""
    groups: dict[K, list[Line]] = {}
    for line in lines:
        shared = key(line)
        groups[shared] = [*groups.pop(shared, []), line]
    return groups


def fullest(groups: Iterable[K], size: Callable[[K], Any]) -> K:
    """The largest; of equally large ones, the last."""
    return max(reversed([*groups]), key=size)


def chosen(lines: Sequence[Line]) -> list[Line]:
    """One line for each run: of those that share all options, the last."""
    return [same[-1] for same in grouped(lines, lambda line: line.cell).values()]


def per_seed(lines: Sequence[Line]) -> list[Line]:
    """One line for each seed, the last, of lines that stand in one cell.

    They differ in nothing but the seed: of several settings it is the one with the most seeds, and
    of equally many the last.
    """
    settings = grouped(lines, lambda line: line.settings).values()
    groups = [{line.seed: line for line in group} for group in settings]
    return [*fullest(groups, len).values()] if groups else []


def rankings(lines: Iterable[Line]) -> list[Line]:
    """The lines of rankings that share all conditions, as those of lists do."""
    return _alike([line for line in lines if line.study == "rank"])


def per_fold(lines: Sequence[Line]) -> dict[int, Line]:
    """One line for each fold of a method of ranking, of the settings with the most folds."""
    firsts = [line for line in lines if line.seed == 0]
    # Each fold has data of its own.
    settings = grouped(firsts, lambda line: replace(line, sizes={}, digests={}).settings).values()
    groups = [{line.sizes["fold"]: line for line in group} for group in settings]
    return fullest(groups, len) if groups else {}


# -- lists -----------------------------------------------------------------------------------------


class Budget(NamedTuple):
    """What runs on lists must share to be compared: recipe, steps, and how lists are drawn."""

    recipe: str
    steps: int
    overlap: int

    @classmethod
    def of(cls, line: Line) -> "Budget":
        """With what a line may be compared."""
        return cls(line.recipe, line.plan["steps"], line.plan["overlap"])

    @property
    def title(self) -> str:
        """For people."""
        more = f", {self.overlap} lists from the images of one" if self.overlap > 1 else ""
        return f"{RECIPES.get(self.recipe, self.recipe)}, {self.steps:,} steps{more}"


def is_search(line: Line) -> bool:
    """Whether it is of short runs at several temperatures, which choose one for longer runs."""
    return line.recipe != "paper" and len(line.config.get("taus", ())) > 1


def budgets(lines: Sequence[Line]) -> list[Budget]:
    """The budgets of runs on lists, that of the most cells first."""
    trained = [line for line in lines if line.steps and not is_search(line)]
    cells: dict[Budget, set] = defaultdict(set)
    for line in trained:
        own = cells[Budget.of(line)]
        if line.tested_as_trained:
            own.add((line.study, line.method, line.sizes["n"]))
    return sorted(cells, key=lambda one: (one.recipe != "fast", -len(cells[one]), -one.steps))


def within(lines: Sequence[Line], budget: Budget) -> list[Line]:
    """The runs of a budget, and those of its recipe that had nothing to train.

    At each length they share all other conditions too, such as lists a step and the learning rate:
    they are those of the most methods there, then of the most runs, then of the last.
    """
    group = [
        line
        for line in lines
        if not is_search(line)
        and (Budget.of(line) == budget if line.steps else line.recipe == budget.recipe)
    ]
    return _alike(group)


def _alike(lines: Sequence[Line]) -> list[Line]:
    """Of the runs on the same data those under the same conditions: of the most methods first."""
    usual: dict[tuple, Line] = {}
    for data, runs in grouped(lines, _data).items():
        trained = [run for run in runs if run.steps] or runs
        usual[data] = fullest(grouped(trained, _conditions).values(), _count)[-1]
    return [
        line
        for line in lines
        for like in [usual[_data(line)]]
        if (_conditions(line) == _conditions(like) if line.steps else _test(line) == _test(like))
    ]


def _data(line: Line) -> tuple:
    """What a run was trained on."""
    return line.study, line.data, line.sizes.get("places"), line.train_n


def _test(line: Line) -> tuple:
    """How it was tested: sizes but for the length of lists and the fold, and precision."""
    sizes = {name: value for name, value in line.sizes.items() if name not in ("n", "fold")}
    return tuple(sorted(sizes.items())), line.precision


def _conditions(line: Line) -> str:
    """All but the method and its temperature, the length of lists, the fold, seed and threads."""
    names = ("temperature", "network", "augmentation", "begin")
    facts = {name: line.config.get(name) for name in names}
    facts["processes"] = line.processes
    return json.dumps([line.plan_but_threads, _test(line), facts], sort_keys=True)


def _count(runs: Sequence[Line]) -> tuple[int, int]:
    """How many methods, and how many runs, whatever they were tested on."""
    kinds = {(run.method, run.seed, run.sizes.get("fold")) for run in runs}
    return len({run.method for run in runs}), len(kinds)


def main_runs(lines: Sequence[Line], recipe: str) -> list[Line]:
    """Of a recipe the budget with the most cells; each run at the length it was trained at."""
    mine = [line for line in lines if line.recipe == recipe and line.tested_as_trained]
    return [line for budget in budgets(mine)[:1] for line in within(mine, budget)]


def comparable(lines: Sequence[Line], recipe: str) -> list[Line]:
    """Lines of a recipe's main budget, of the paper's numbers, trained as they are tested."""
    return main_runs([line for line in lines if line.sizes.get("places") == PLACES], recipe)


def in_cells(lines: Sequence[Line]) -> list[Line]:
    """One line for each seed of every cell, each with one set of options."""
    cells = grouped(lines, lambda x: (x.study, x.method, x.recipe, x.sizes["places"], x.train_n))
    return [line for cell in cells.values() for line in per_seed(cell)]


def sweeps(lines: Sequence[Line]) -> list[Line]:
    """Of every kind of sorting, seed 0 at the most temperatures, then of the most steps."""
    usual = [
        line
        for line in lines
        if (line.study, line.seed) == ("sort", 0)
        and line.tested_as_trained
        and "temperature" not in line.config
    ]
    kinds = grouped(usual, lambda x: (x.method, x.recipe, x.sizes["places"], x.train_n))
    return [fullest(kind, lambda x: (len(x.trials), x.steps)) for kind in kinds.values()]


def nearest(runs: list[Line]) -> list[Line]:
    """Those that were trained at the length of the cell; else those at the longest other."""
    if not runs:
        return []
    lengths = {run.train_n or 0 for run in runs}
    n = runs[0].sizes["n"] if runs[0].sizes["n"] in lengths else max(lengths)
    return per_seed([run for run in runs if run.train_n == n])


# -- neighbours ------------------------------------------------------------------------------------


def validation(line: Line) -> float:
    """The accuracy on validation images that a run is chosen by."""
    votes = line.extras.get("chosen")
    return votes["validation"] if votes else line.validation["accuracy"] or 0.0


def network(line: Line) -> str:
    """What embeds the images; lines of early versions do not say."""
    return line.config.get("network", "")


def alike(one: Line, other: Line) -> bool:
    """Whether two runs had the same network and trained it as long, with batches as large."""
    same = ("steps", "batch")
    mine, theirs = ([network(x), *(x.plan[name] for name in same)] for x in (one, other))
    return mine == theirs


def preferred(lines: Sequence[Line]) -> list[Line]:
    """The lines of all seeds with the setting that did best on validation.

    Runs of as many steps as the recipe has come first, else those of the most; and a setting with
    fewer seeds than another is not chosen, however lucky it was.
    """
    usual = [line for line in lines if line.plan["steps"] == line.config.get("steps_of_recipe")]
    most = max(line.plan["steps"] for line in usual or lines)
    same = [line for line in usual or lines if line.plan["steps"] == most]
    runs = [per_seed(kind) for kind in grouped(same, lambda line: line.settings).values()]
    return max(runs, key=lambda group: (len(group), sum(map(validation, group)) / len(group)))
