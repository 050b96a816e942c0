"""Which runs on lists may be compared: those of one recipe that trained alike."""

import json
from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import NamedTuple

from ..record import Line

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
        if line.train_n == line.sizes["n"]:
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
    usual = {key: max(reversed([*found]), key=found.__getitem__) for key, found in plans.items()}
    return [line for line in group if not line.steps or _plan(line) == usual[_lists(line)]]


def _lists(line: Line) -> tuple:
    """What a run was trained on."""
    return line.study, line.data, line.sizes.get("places"), line.train_n


def _plan(line: Line) -> str:
    """How a run was trained; the number of threads changes its rounding alone."""
    plan = {name: value for name, value in line.plan.items() if name != "threads"}
    return json.dumps(plan, sort_keys=True)
