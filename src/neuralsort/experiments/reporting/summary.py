"""What the paper claims, what the lines say to that, and how sure it is.

Methods are compared only where they were trained at that length, with the same budget.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ..networks.orderings import BASELINES, NEURALSORT
from ..record import Line
from ..studies.intervals import Interval, holm, of_difference, of_distance, over_seeds
from . import paper
from .selection import (
    PLACES,
    alike,
    budgets,
    comparable,
    per_seed,
    preferred,
    sweeps,
    validation,
    within,
)
from .tables import Table, mean, name

OURS, SAMPLED = NEURALSORT
UNLEARNED = ("pixels", "pca", "autoencoder")
"""Where neighbours are looked for without having learned to."""


@dataclass(frozen=True)
class Comparison:
    """A method beside the best of others, in one cell.

    Attributes:
        where: The cell: a length, or a set of images.
        ours: Lines of the method, one per seed.
        theirs: Lines of the best of the others: the best on validation, not in the test.
        metric: What is compared.
        larger: Whether more is better.
        form: How to print it.
        unit: What 1 in print stands for.
    """

    where: str
    ours: list[Line]
    theirs: list[Line]
    metric: str
    larger: bool
    form: str = "{:.3f}"
    unit: float = 1.0

    @property
    def gain(self) -> float:
        """How much better the method is, in the mean over seeds."""
        apart = mean(self.ours, self.metric) - mean(self.theirs, self.metric)
        return apart if self.larger else -apart

    @property
    def evidence(self) -> tuple[Interval, float] | None:
        """Of the gain: 95 % interval over seeds, and p-value; None for fewer than three seeds.

        The other method may have nothing to train, and so no seeds.
        """
        sign = 1 if self.larger else -1
        ours, theirs = (
            [sign * run.metrics[self.metric] for run in runs] for runs in (self.ours, self.theirs)
        )
        if not self.theirs[0].steps:
            return of_distance(ours, theirs[0])
        return of_difference(ours, theirs)

    @property
    def found(self) -> str:
        """The two numbers, and whose the second is."""
        ours, theirs = (self._print(mean(runs, self.metric)) for runs in (self.ours, self.theirs))
        return f"{self.where}: {ours} against {theirs} ({name(self.theirs[0].method)})"

    def verdict(self, *, settled: bool) -> str:
        """Ahead or behind, by how much, and whether seeds could have done it."""
        way = "ahead" if self.gain >= 0 else "behind"
        told = f"{self.where}: {self._print(abs(self.gain))} {way}"
        if self.evidence is None:
            return f"{told} (too few seeds: {len(self.ours)} and {len(self.theirs)})"
        low, high = sorted(end if self.gain >= 0 else -end for end in self.evidence[0])
        sure = "settled" if settled else "not settled"
        return f"{told}, 95 %: {self._print(low)} to {self._print(high)}; {sure}"

    def _print(self, value: float) -> str:
        return self.form.format(value / self.unit)


def compare(
    lines: Sequence[Line],
    study: str,
    metric: str,
    *,
    larger: bool,
    ours: str = OURS,
    others: Sequence[str] = BASELINES,
    recipe: str = "fast",
    form: str = "{:.3f}",
    unit: float = 1.0,
) -> list[Comparison]:
    """A method beside the best of others, at every length that has all of them.

    Of several budgets of a recipe it is the one with the most cells.
    """
    found = []
    group = comparable([line for line in lines if line.study == study], recipe)
    for n in sorted({line.sizes["n"] for line in group}):
        at = {method: _runs(group, method, n) for method in (ours, *others)}
        if all(at.values()):
            sign = 1 if larger else -1
            best = max(others, key=lambda one: _validated(at[one], metric, sign))
            found.append(
                Comparison(f"n = {n}", at[ours], at[best], metric, larger, form=form, unit=unit)
            )
    return found


def _runs(lines: Sequence[Line], method: str, n: int) -> list[Line]:
    return per_seed([x for x in lines if (x.method, x.sizes["n"]) == (method, n)])


def _validated(runs: Sequence[Line], metric: str, sign: int) -> float:
    """The mean over seeds on validation lists, which chooses the best of several methods.

    Times the sign, so that more is better. One run without a number makes a method the worst.
    """
    told = [value for run in runs if (value := run.validation[metric]) is not None]
    return sign * sum(told) / len(told) if len(told) == len(runs) else -math.inf


def verdicts(found: Sequence[Comparison]) -> list[str]:
    """How sure each of several comparisons is that make one claim together.

    The more there are, the likelier it is that one of them looks good by chance. So a difference
    is settled if its p-value is below 0.05 after Holm's correction. What has too few seeds counts
    as well, so that seeds to come cannot unsettle anything else by their number alone.
    """
    adjusted = holm([one.evidence[1] if one.evidence else 1.0 for one in found])
    return [one.verdict(settled=p < 0.05) for one, p in zip(found, adjusted, strict=True)]


# -- the tables ------------------------------------------------------------------------------------


def summaries(lines: Sequence[Line]) -> list[Table]:
    """The claims, one in a row, with our recipe; and those on sorting with the paper's network."""
    mnist = [line for line in lines if line.data == "mnist"]
    ours = [
        *_sorting(mnist, "fast"),
        *_medians(mnist),
        *_neighbours(lines),
        *_variance(mnist),
    ]
    note = (
        "Compared are runs that were trained at the length of the test, beside the baseline that "
        "is best on validation. Runs on lists have the same number of steps; those that look for "
        "neighbours share it where they share the network. From three seeds each on, the interval "
        "is Welch's, of the difference of the means, or Student's where the baseline has nothing "
        "to train: it is about other seeds, not about other test images, and about each length by "
        "itself. A claim is about several "
        "lengths or sets of images, so a difference counts as settled if its p-value stays below "
        "0.05 after Holm's correction over them: then it is hardly chance, however small it may "
        "be. Where the claim is that two are alike, a settled difference speaks against it, and "
        "one that is not settled shows nothing. One seed of each says little. "
        "The first row is about NeuralSort alone, beside numbers of other trainings."
    )
    again = (
        "To be read like the table above. Where the first row has longer runs than the others, it "
        "says so."
    )
    parts = (
        ("What the paper claims, and what we find with our recipe", note, ours),
        ("The same with the paper's network, tuned", again, _sorting(mnist, "tuned")),
    )
    header = ["the paper", "here", "how sure"]
    return [Table(title, text, header, rows) for title, text, rows in parts if rows]


def _row(claim: str, found: Sequence[Comparison]) -> list[list[list[str]]]:
    """One row, or none where there is nothing to compare."""
    if not found:
        return []
    return [[[claim], [one.found for one in found], verdicts(found)]]


def _sorting(lines: Sequence[Line], recipe: str) -> list[list[list[str]]]:
    options = {"larger": True, "recipe": recipe}
    best = compare(lines, "sort", "exact_match", **options)
    also = compare(lines, "sort", "exact_match", ours=SAMPLED, **options)
    sampled = compare(lines, "sort", "exact_match", ours=SAMPLED, others=(OURS,), **options)
    return [
        *_own(lines, recipe),
        *_row("NeuralSort puts clearly more lists in order than the baselines, at every n.", best),
        *_row("So does its stochastic form.", also),
        *_baselines(lines, recipe),
        *_row("The deterministic and the stochastic form are about as good.", sampled),
    ]


def _own(lines: Sequence[Line], recipe: str) -> list[list[list[str]]]:
    """NeuralSort's runs of the most steps, beside what the paper prints, and others after it."""
    mine = [
        line
        for line in lines
        if (line.study, line.method, line.recipe) == ("sort", OURS, recipe)
        and line.tested_as_trained
        and line.sizes.get("places") == PLACES
        and line.sizes["n"] in paper.SORT_LENGTHS
    ]
    longest = max(budgets(mine), key=lambda budget: budget.steps, default=None)
    if longest is None:
        return []
    printed = {"the paper": paper.EXACT_MATCH[OURS]}
    if recipe == "tuned":
        printed[paper.RERUN_BY] = paper.RERUN[OURS, "exact_match"]
    group, here, sure = within(mine, longest), [], []
    for column, n in enumerate(paper.SORT_LENGTHS):
        runs = _runs(group, OURS, n)
        if not runs:
            continue
        here.append(f"n = {n}: {mean(runs, 'exact_match'):.3f}")
        low, high = _ends(runs, "exact_match")
        told = []
        for whose, values in printed.items():
            value = values[column]
            way = "above" if low > value else "below" if high < value else "around"
            told.append(f"{way} {value:.3f} of {whose}")
        sure.append(f"n = {n}: {low:.3f} to {high:.3f} {_over(runs)}; {', '.join(told)}")
    claim = "NeuralSort puts " + ", ".join(
        f"{value:.3f} of the lists of {n}"
        for n, value in zip(paper.SORT_LENGTHS, paper.EXACT_MATCH[OURS], strict=True)
    )
    steps = f"Runs of {longest.steps:,} steps:"
    return [[[f"{claim} in order."], [steps, *here], ["95 % intervals:", *sure]]]


def _baselines(lines: Sequence[Line], recipe: str) -> list[list[list[str]]]:
    """What they reach from five numbers on, beside what the paper prints for each of them."""
    group = comparable([line for line in lines if line.study == "sort"], recipe)
    here, sure = [], []
    for n in sorted({line.sizes["n"] for line in group if line.sizes["n"] in paper.SORT_LENGTHS}):
        cells = {method: _runs(group, method, n) for method in BASELINES}
        cells = {method: runs for method, runs in cells.items() if runs}
        if n < 5 or not cells:
            continue
        told = [f"{mean(runs, 'exact_match'):.3f} ({name(m)})" for m, runs in cells.items()]
        here.append(f"n = {n}: {', '.join(told)}")
        column = paper.SORT_LENGTHS.index(n)
        above = [
            method
            for method, runs in cells.items()
            if _ends(runs, "exact_match")[0] > paper.EXACT_MATCH[method][column]
        ]
        over = "over seeds" if min(map(len, cells.values())) > 2 else "over seeds or lists"
        sure.append(
            f"n = {n}: {len(above)} of {len(cells)} above the paper's own number with their whole "
            f"interval {over}"
        )
    claim = (
        "The baselines put at most 0.093 of the lists of five or more in order, though Vanilla has "
        "many single places right."
    )
    return [[[claim], here, sure]] if here else []


def _ends(runs: Sequence[Line], metric: str) -> Interval:
    """The interval over seeds; of fewer than three, from the lowest end over lists to the highest.

    Lists share images, which newer intervals count as well.
    """
    ends = over_seeds([run.metrics[metric] for run in runs])
    if ends is not None:
        return ends
    lows, highs = zip(*(run.intervals[metric] for run in runs), strict=True)
    return min(lows), max(highs)


def _over(runs: Sequence[Line]) -> str:
    """What that interval is over."""
    return f"over {len(runs)} seeds" if len(runs) > 2 else f"over {runs[0].intervals_over}"


def _medians(lines: Sequence[Line]) -> list[list[list[str]]]:
    options = {"larger": False, "form": "{:.2f}", "unit": 1e4}
    best = compare(lines, "median", "mse", **options)
    also = compare(lines, "median", "mse", ours=SAMPLED, **options)
    sampled = compare(lines, "median", "mse", ours=SAMPLED, others=(OURS,), **options)
    return [
        *_row(
            "NeuralSort predicts medians with a smaller error (x 1e-4) than the baselines.", best
        ),
        *_row("So does its stochastic form (x 1e-4).", also),
        *_row("Of the two forms, the stochastic one has the smaller error (x 1e-4).", sampled),
    ]


def _neighbours(lines: Sequence[Line]) -> list[list[list[str]]]:
    """NeuralSort's neighbours beside those that nobody learned, and beside a plain classifier."""
    found: dict[tuple[str, ...], list[Comparison]] = {UNLEARNED: [], ("cross_entropy",): []}
    for data in paper.KNN_DATA:
        mine = [x for x in lines if (x.study, x.data, x.recipe) == ("knn", data, "fast")]
        at = {
            method: [x for x in mine if x.method == method] for method in {x.method for x in mine}
        }
        at = {method: preferred(runs) for method, runs in at.items()}
        for others, comparisons in found.items():
            there = [at[method] for method in others if method in at]
            if OURS in at and len(there) == len(others):
                best = max(there, key=lambda runs: sum(map(validation, runs)) / len(runs))
                if others != UNLEARNED and not alike(best[0], at[OURS][0]):
                    continue
                pair = Comparison(data, at[OURS], best, "accuracy", True, form="{:.4f}")
                comparisons.append(pair)
    claims = (
        "Neighbours learned through NeuralSort classify better than those of pixels, of principal "
        "components and of an autoencoder.",
        "They come close to the same network without neighbours.",
    )
    return [
        row
        for claim, comparisons in zip(claims, found.values(), strict=True)
        for row in _row(claim, comparisons)
    ]


SWEEP = 4
"""From so many temperatures on, a run shows how gradients vary with it."""


def _variance(lines: Sequence[Line]) -> list[list[list[str]]]:
    """How the variance of gradients goes with the temperature; both forms, one line each."""
    here, sure = [], []
    for method in NEURALSORT:
        told, falls, steps = [], 0, 0
        mine = [x for x in sweeps(lines) if (x.recipe, x.method) == ("fast", method)]
        mine = [x for x in mine if x.sizes["places"] == PLACES]
        for line in sorted(mine, key=lambda x: x.sizes["n"]):
            ends = sorted(
                (trial["tau"], trial["history"][-1]["log_variance"])
                for trial in line.trials
                if trial["history"] and trial["history"][-1].get("log_variance") is not None
            )
            if len(ends) < SWEEP:
                continue
            (low, first), (high, last) = ends[0], ends[-1]
            way = f"{first:.1f} to {last:.1f} (tau {low:g} to {high:g})"
            told.append(f"n = {line.sizes['n']} {way}")
            falls += sum(b[1] < a[1] for a, b in zip(ends, ends[1:], strict=False))
            steps += len(ends) - 1
        if told:
            here.append(f"{name(method)}, logarithms: {', '.join(told)}")
            sure.append(
                f"{name(method)}: falls in {falls} of {steps} steps of the temperature, in one "
                "seed, and not in relation to the size of gradients"
            )
    claim = "The higher the temperature, the less gradients vary."
    return [[[claim], here, sure]] if here else []
