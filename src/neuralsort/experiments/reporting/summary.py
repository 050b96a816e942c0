"""What the paper claims, what the lines say to that, and how sure it is.

Methods are compared only where they were trained at that length, with the same budget.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from scipy import stats

from ..record import Line
from . import paper
from .budgets import Budget, budgets, within
from .knn_tables import preferred
from .tables import Table, mean, name

OURS = "neuralsort"
BASELINES = ("vanilla", "sinkhorn", "gumbel_sinkhorn")
SURE = 0.05
"""Largest chance of a difference at least as large between seeds of equal methods."""


@dataclass(frozen=True)
class Comparison:
    """One method beside the best of others, at one length.

    Attributes:
        n: Length of the lists.
        budget: That all of them had.
        ours: Lines of the method, one per seed.
        theirs: Lines of the best of the others.
        metric: What is compared.
        larger: Whether more is better.
    """

    n: int
    budget: Budget
    ours: list[Line]
    theirs: list[Line]
    metric: str
    larger: bool

    @property
    def is_better(self) -> bool:
        """Whether the method is ahead."""
        a, b = mean(self.ours, self.metric), mean(self.theirs, self.metric)
        return a > b if self.larger else a < b

    @property
    def chance(self) -> float | None:
        """Welch's p-value over seeds, two-sided; None for fewer than three seeds."""
        if min(len(self.ours), len(self.theirs)) < 3:
            return None
        sides = [[run.metrics[self.metric] for run in runs] for runs in (self.ours, self.theirs)]
        found: Any = stats.ttest_ind(*sides, equal_var=False)
        return float(found.pvalue)

    def text(self, form: str, unit: float = 1.0) -> str:
        """The two numbers, and whose they are."""
        ours = form.format(mean(self.ours, self.metric) / unit)
        theirs = form.format(mean(self.theirs, self.metric) / unit)
        return f"{ours} against {theirs} ({name(self.theirs[0].method)}) at n = {self.n}"


def compare(
    lines: Sequence[Line],
    study: str,
    metric: str,
    *,
    larger: bool,
    ours: str = OURS,
    others: Sequence[str] = BASELINES,
) -> list[Comparison]:
    """A method beside the best of others, at every length and with the budget that has all of them.

    Of several budgets it is that of the most seeds, and of those that of the most steps.
    """
    mine = [line for line in lines if line.study == study and line.sizes.get("places") == 4]
    mine = [line for line in mine if line.train_n == line.sizes["n"]]
    found: dict[int, Comparison] = {}
    for budget in sorted(budgets(mine), key=lambda one: one.steps):
        group = within(mine, budget)
        for n in sorted({line.sizes["n"] for line in group}):
            at = {
                method: [x for x in group if (x.method, x.sizes["n"]) == (method, n)]
                for method in (ours, *others)
            }
            if not all(at.values()) or budget.recipe != "fast":
                continue
            best = (max if larger else min)(others, key=lambda one: mean(at[one], metric))
            new = Comparison(n, budget, at[ours], at[best], metric, larger)
            if n not in found or len(new.ours) >= len(found[n].ours):
                found[n] = new
    return list(found.values())


def summary(lines: Sequence[Line]) -> Table:
    """The claims, one in a row; of MNIST, and of the sets of images for neighbours."""
    mnist = [line for line in lines if line.data == "mnist"]
    sort = compare(mnist, "sort", "exact_match", larger=True)
    median = compare(mnist, "median", "mse", larger=False)
    noise = compare(
        mnist, "sort", "exact_match", larger=True, ours="stochastic_neuralsort", others=(OURS,)
    )
    rows = [
        [
            ["NeuralSort puts more lists in the right order than the three baselines, at every n."],
            _found(sort, "{:.3f}"),
            _sure(sort, "ahead"),
        ],
        [
            ["The baselines learn nearly nothing from lists of five or more (at most 0.093)."],
            _baselines(mnist),
            _sure(sort, None),
        ],
        [
            ["Samples of the relaxed order learn as well as the relaxed order itself."],
            _found(noise, "{:.3f}"),
            _sure(noise, None),
        ],
        [
            ["NeuralSort predicts medians with a fraction of the baselines' error."],
            _found(median, "{:.2f}", 1e4),
            _sure(median, "ahead"),
        ],
        [
            ["Neighbours learned by NeuralSort classify as a network without neighbours does."],
            *_neighbours(lines),
        ],
    ]
    return Table(
        "What the paper claims, and what we find",
        "Compared are runs of our recipe, trained at the length of the test, all with the same "
        "number of steps. Three seeds are compared by Welch's test; one seed of each says little "
        "about another.",
        ["the paper", "here", "how sure"],
        rows,
    )


def _found(found: Sequence[Comparison], form: str, unit: float = 1.0) -> list[str]:
    if not found:
        return ["no runs with equal budgets yet"]
    return [one.text(form, unit) for one in found]


def _sure(found: Sequence[Comparison], ahead: str | None) -> list[str]:
    """Of each comparison: budget, seeds, and whether chance would do as much."""
    told = []
    for one in found:
        seeds = min(len(one.ours), len(one.theirs))
        text = f"n = {one.n}: {one.budget.steps:,} steps, {seeds} seed{'s' if seeds > 1 else ''}"
        if one.chance is not None:
            text += f", p = {one.chance:.2g}"
            text += "" if one.chance < SURE else ", not settled"
        if ahead is not None:
            text += f"; {ahead}" if one.is_better else f"; not {ahead}"
        told.append(text)
    return told or ["not settled"]


def _baselines(lines: Sequence[Line]) -> list[str]:
    """What they reach at five numbers and more."""
    found = [
        line
        for line in lines
        if (line.study, line.recipe) == ("sort", "fast")
        and line.method in BASELINES
        and line.sizes["n"] >= 5
        and line.train_n == line.sizes["n"]
    ]
    told = []
    for n in sorted({line.sizes["n"] for line in found}):
        for method in BASELINES:
            runs = [x for x in found if (x.sizes["n"], x.method) == (n, method)]
            if runs:
                most = max(run.plan["steps"] for run in runs)
                runs = [run for run in runs if run.plan["steps"] == most]
                told.append(f"{mean(runs, 'exact_match'):.3f} ({name(method)}) at n = {n}")
    return told or ["no runs yet"]


def _neighbours(lines: Sequence[Line]) -> list[list[str]]:
    told, sure = [], []
    for data in paper.KNN_DATA:
        sides = []
        for method in (OURS, "cross_entropy"):
            runs = [
                line
                for line in lines
                if (line.study, line.data, line.recipe) == ("knn", data, "fast")
                and line.method == method
            ]
            sides.append(preferred(runs) if runs else [])
        if all(sides):
            a, b = (100 * mean(runs, "accuracy") for runs in sides)
            told.append(f"{a:.2f} % against {b:.2f} % on {data}")
            seeds = min(map(len, sides))
            sure.append(f"{data}: {seeds} seed{'s' if seeds > 1 else ''}")
    return [told or ["no runs of both yet"], sure or ["not settled"]]
