"""Which runs on lists may be compared: those of one recipe that trained as long, on lists alike."""

from collections import defaultdict
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
    """The runs of a budget, and those of its recipe that had nothing to train."""
    return [
        line
        for line in lines
        if not is_search(line)
        and (Budget.of(line) == budget if line.steps else line.recipe == budget.recipe)
    ]
