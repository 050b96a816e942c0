"""Which lines of results count, and which of them may be compared."""

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import NamedTuple, TypeVar

from ..record import Line

RECIPES = {
    "fast": "our recipe",
    "paper": "the paper's recipe",
    "tuned": "the paper's network, tuned",
}

PLACES = 4
"""Digits of the paper's numbers."""

T = TypeVar("T")


def last_of(most: Iterable[tuple[int, T]]) -> T:
    """Of things with their counts, the one with the most; of equally many, the last."""
    return max(reversed([*most]), key=lambda one: one[0])[1]


def chosen(lines: Sequence[Line]) -> list[Line]:
    """One line for each run: of those that share all options, the last."""
    return list({line.cell: line for line in lines}.values())


def per_seed(lines: Sequence[Line]) -> list[Line]:
    """One line for each seed, the last, of lines that stand in one cell.

    They differ in nothing but the seed: of several settings it is the one with the most seeds, and
    of equally many the last.
    """
    groups: dict[str, dict[int, Line]] = defaultdict(dict)
    for line in lines:
        groups[line.settings][line.seed] = line
    return [*last_of((len(one), one) for one in groups.values()).values()] if groups else []


def per_fold(lines: Sequence[Line]) -> dict[int, Line]:
    """One line for each fold of a method of ranking, of the settings with the most folds."""
    groups: dict[str, dict[int, Line]] = defaultdict(dict)
    for line in lines:
        if line.seed == 0:
            groups[replace(line, sizes={}).settings][line.sizes["fold"]] = line
    return last_of((len(one), one) for one in groups.values()) if groups else {}


# -- lists -----------------------------------------------------------------------------------------


class Budget(NamedTuple):
    """What runs on lists must share to be compared: recipe, steps, and how lists are drawn."""

    recipe: str
    steps: int
    overlap: int

    @classmethod
    def of(cls, line: Line) -> "Budget":
        """With what a line may be compared."""
        return cls(line.recipe, line.plan["steps"], line.plan.get("overlap", 1))

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

    At each length they share the rest of the plan too, such as lists a step and the learning rate:
    it is the plan that most runs have there; of equally many, that of the last.
    """
    group = [
        line
        for line in lines
        if not is_search(line)
        and (Budget.of(line) == budget if line.steps else line.recipe == budget.recipe)
    ]
    plans: dict[tuple, Counter[str]] = defaultdict(Counter)
    for line in group:
        if line.steps:
            plans[_lists(line)][_plan(line)] += 1
    usual = {
        key: last_of((count, plan) for plan, count in found.items()) for key, found in plans.items()
    }
    return [line for line in group if not line.steps or _plan(line) == usual[_lists(line)]]


def _lists(line: Line) -> tuple:
    """What a run was trained on."""
    return line.study, line.data, line.sizes.get("places"), line.train_n


def _plan(line: Line) -> str:
    """How a run was trained; the number of threads changes its rounding alone."""
    plan = {name: value for name, value in line.plan.items() if name != "threads"}
    return json.dumps(plan, sort_keys=True)


def main_runs(lines: Sequence[Line], recipe: str) -> list[Line]:
    """Of a recipe the budget with the most cells; each run at the length it was trained at."""
    mine = [line for line in lines if line.recipe == recipe and line.tested_as_trained]
    return [line for budget in budgets(mine)[:1] for line in within(mine, budget)]


def comparable(lines: Sequence[Line], recipe: str) -> list[Line]:
    """Lines of a recipe's main budget, of the paper's numbers, trained as they are tested."""
    return main_runs([line for line in lines if line.sizes.get("places") == PLACES], recipe)


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


def preferred(lines: Sequence[Line]) -> list[Line]:
    """The lines of all seeds with the network, the plan and the k that did best on validation.

    Of plans that differ in their steps, those of the most come first; and a k or a learning rate
    with fewer seeds than another is not chosen, however lucky it was.
    """
    most = max(line.plan["steps"] for line in lines)
    groups: dict[tuple[str, int, float], list[Line]] = defaultdict(list)
    for line in lines:
        if line.plan["steps"] == most:
            groups[network(line), line.sizes["k"], line.plan["lr"]].append(line)
    runs = [per_seed(group) for group in groups.values()]
    return max(runs, key=lambda group: (len(group), sum(map(validation, group)) / len(group)))
