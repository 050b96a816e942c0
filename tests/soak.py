"""Random rows of random problems, one at a time against extended precision.

The engine for long lists is right for every batch, length, mask, temperature and spread of the
scores, or it is not right. A problem is made from its seed alone, so that one that fails can be
looked at again:

    python -m tests.soak --problems 2000            # thousands, with a count of violations
    python -m tests.soak --first 17 --problems 1    # problem 17 again

The expected row is written from the equations, outward from its own item, in NumPy's long double.
"""

import argparse
import time
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

import neuralsort.torch as ns

# What a sum of standard normal payloads may be off by, absolutely; gradients and logarithms,
# relatively to the largest entry. Ten times the mass that is skipped, and rounding.
VALUE = {torch.float32: 2e-5, torch.float64: 1e-11}
GRADIENT = {torch.float32: 1e-4, torch.float64: 1e-9}
ROWS = 3  # looked at in every problem
ENTRIES = 2 * 10**6  # the most that a column is summed from


@dataclass
class Problem:
    """Scores with a temperature and a mask, and a method."""

    seed: int
    scores: Tensor  # (lists, n)
    tau: Tensor  # (lists, 1)
    mask: Tensor | None
    method: str
    power: float
    payload: Tensor  # (lists, n)
    story: str = ""
    faults: list[str] = field(default_factory=list)

    def relaxed(self, scores: Tensor, tau: Tensor) -> ns.RelaxedPermutation:
        """The relaxed permutation of all lists at once."""
        if self.method == "neuralsort":
            return ns.neuralsort(scores, tau=tau, mask=self.mask)
        return ns.softsort(scores, tau=tau, power=self.power, mask=self.mask)


# -- problems --------------------------------------------------------------------------------------


def make(seed: int, items: int) -> Problem:
    """A problem of at most so many items, from its seed."""
    rng = np.random.default_rng(seed)
    total = int(10 ** (3.3 + (np.log10(items) - 3.3) * rng.random() ** 3))  # more small ones
    n = int(np.clip(10 ** rng.uniform(2.72, np.log10(max(total, 600))), 513, total))
    lists = max(1, total // n)
    shape, scores = _scores(rng, lists, n)
    dtype = torch.float32 if rng.random() < 0.6 else torch.float64
    scores = torch.from_numpy(scores).to(dtype)
    method, power = (("neuralsort", 1.0), ("softsort", 1.0), ("softsort", 2.0))[
        rng.choice(3, p=(0.6, 0.2, 0.2))
    ]
    finite = scores[0].double()[scores[0].isfinite()].sort().values
    gaps = finite.diff()
    gap = gaps[gaps > 0].median().item() if (gaps > 0).any() else 1.0
    tau = (gap * 10 ** rng.uniform(-6, 6, (lists, 1) if rng.random() < 0.3 else (1, 1))) ** power
    tau = np.clip(np.broadcast_to(tau, (lists, 1)), 1e-30, 1e30).copy()
    if rng.random() < 0.15:
        tau[rng.random((lists, 1)) < 0.3] = 0.0  # hard lists beside soft ones
    mask, padding = None, "full"
    if rng.random() < 0.4:
        padding = str(rng.choice(["padded", "scattered"]))
        if padding == "padded":
            mask = np.arange(n) < rng.integers(1, n + 1, (lists, 1))
        else:
            mask = rng.random((lists, n)) < rng.uniform(0.05, 0.95)
            mask[:, 0] = True
    payload = torch.from_numpy(rng.standard_normal((lists, n))).to(dtype)
    story = (
        f"{method} power {power:g}, {lists} x {n} {str(dtype)[6:]}, {shape}, {padding}, "
        f"tau {tau.min():.3g} to {tau.max():.3g}"
    )
    mask = None if mask is None else torch.from_numpy(mask)
    return Problem(seed, scores, torch.from_numpy(tau), mask, method, power, payload, story)


def _scores(rng: np.random.Generator, lists: int, n: int) -> tuple[str, np.ndarray]:
    shape = str(
        rng.choice(
            ["normal", "uniform", "clusters", "ties", "cauchy", "lognormal", "steps", "crowd"]
        )
    )
    x = rng.standard_normal((lists, n))
    if shape == "uniform":
        x = rng.random((lists, n))
    elif shape == "clusters":
        x = x + rng.integers(0, rng.integers(2, 9), (lists, n)) * 10 ** rng.uniform(0, 9)
    elif shape == "ties":
        x = np.round(x * 10 ** rng.uniform(0, 2))
    elif shape == "cauchy":
        x = rng.standard_cauchy((lists, n))
    elif shape == "lognormal":
        x = np.exp(4 * x)
    elif shape == "steps":  # equal gaps, which no rounding disturbs
        x = np.broadcast_to(np.arange(n, dtype=float), (lists, n)).copy()
    elif shape == "crowd":  # loners above and below a crowd of ties
        loners = rng.random((lists, n)) < 0.01
        x = np.where(loners, 10 ** rng.uniform(0, 3) * x, 0.0)
    if rng.random() < 0.2:
        x = x + 10 ** rng.uniform(0, 4)
    if rng.random() < 0.1:
        x[rng.random((lists, n)) < 0.01] = rng.choice([np.inf, -np.inf])
    return shape, x


# -- what a row must be ----------------------------------------------------------------------------


@dataclass
class Row:
    """One row in extended precision, in the order of the items that take part."""

    weights: np.ndarray
    fall: np.ndarray
    items: np.ndarray  # their indices in the list
    position: int

    @property
    def entropy(self) -> float:
        kept = self.weights > 0
        return float(-(self.weights[kept] * np.log(self.weights[kept])).sum())


def sorted_gaps(problem: Problem, of_list: int) -> tuple[np.ndarray, np.ndarray]:
    """The items of a list that take part, in order, and the gaps between them."""
    scores = problem.scores[of_list].double().numpy()
    present = np.arange(len(scores))
    if problem.mask is not None:
        present = present[problem.mask[of_list].numpy()]
    order = present[np.argsort(-scores[present], kind="stable")]
    sorted_scores = scores[order].astype(np.longdouble)
    above, below = sorted_scores[:-1], sorted_scores[1:]
    gaps = np.where(above == below, 0, above - np.where(above == below, 0, below))
    return order, np.full_like(gaps, np.inf) if problem.tau[of_list] == 0 else gaps


def expected_row(problem: Problem, of_list: int, position: int) -> Row:
    """Row `position` of a list, from the gaps of its sorted items outward."""
    order, gaps = sorted_gaps(problem, of_list)
    fall = _falls(problem, of_list, gaps, position)
    weights = np.exp(-fall)
    return Row(weights / weights.sum(), fall, order, position)


def _falls(problem: Problem, of_list: int, gaps: np.ndarray, position: int) -> np.ndarray:
    """How far each item lies below the one that belongs to this row."""
    right, left = gaps[position:], gaps[:position][::-1]
    tau = float(problem.tau[of_list]) or 1.0
    if problem.method == "neuralsort":
        odd = 2 * np.arange(len(gaps), dtype=np.longdouble) + 1
        right, left = (np.cumsum(x * odd[: len(x)]) / tau for x in (right, left))
    else:
        right, left = (np.cumsum(x) ** problem.power / tau for x in (right, left))
    return np.concatenate([left[::-1], np.zeros(1, np.longdouble), right])


def expected_column(problem: Problem, of_list: int, position: int) -> np.ndarray | None:
    """The weights that all rows of a list give to the item of this position.

    None where rows that see it, and items that those see, are too many to be written one by one.
    """
    _, gaps = sorted_gaps(problem, of_list)
    fall = _falls(problem, of_list, gaps, position)
    if problem.method == "neuralsort":  # gaps count by their distance from the row, not the item
        tau = float(problem.tau[of_list]) or 1.0
        sides = []
        for side in (gaps[:position][::-1], gaps[position:]):
            distance = np.cumsum(side)
            sides.append(np.cumsum(distance + np.concatenate([[0], distance])[:-1]) / tau)
        fall = np.concatenate([sides[0][::-1], np.zeros(1, np.longdouble), sides[1]])
    rows = np.flatnonzero(fall < 100)
    if len(rows) * len(fall) > ENTRIES:
        return None
    column = np.zeros(len(fall), np.longdouble)
    for i in rows:
        column[i] = np.exp(-fall[i]) / np.exp(-_falls(problem, of_list, gaps, i)).sum()
    return column


def expected_gradient(problem: Problem, of_list: int, row: Row) -> np.ndarray:
    """Of the value at this position, to the scores of the items that take part, in their order."""
    tau = float(problem.tau[of_list])
    if tau == 0:
        return np.zeros(len(row.items))
    scores = problem.scores[of_list].double().numpy()[row.items].astype(np.longdouble)
    x = problem.payload[of_list].double().numpy()[row.items]
    to_logits = row.weights * (x - (row.weights * x).sum()) / tau
    _, group, count = np.unique(-scores, return_inverse=True, return_counts=True)
    ends = np.cumsum(count)
    larger, smaller = (ends - count)[group], (len(scores) - ends)[group]
    if problem.method == "neuralsort":
        total = np.concatenate([[0], np.cumsum(to_logits)])
        signs = total[-1] - total[ends[group]] - total[larger]  # sum_k c_k sign(s_j - s_k)
        slope = len(scores) - 1 - 2 * row.position
        gradient = to_logits * (slope - (smaller - larger)) - signs
    else:
        with np.errstate(invalid="ignore"):
            distance = scores[row.position] - scores
        distance = np.where(np.isfinite(distance), distance, 0)
        push = np.sign(distance) if problem.power == 1 else 2 * distance
        gradient = to_logits * push
        tied = group == group[row.position]
        gradient = gradient - tied * (to_logits * push).sum() / tied.sum()
    return np.where(np.isfinite(scores), gradient, 0).astype(float)


def expected_tau_gradient(problem: Problem, of_list: int, row: Row) -> float:
    """Of the value at this position, to the logarithm of the list's temperature."""
    x = problem.payload[of_list].double().numpy()[row.items]
    fall = np.where(row.weights > 0, row.fall, 0)  # logits shrink with the temperature
    return float((row.weights * (x - (row.weights * x).sum()) * fall).sum())


# -- looking ---------------------------------------------------------------------------------------


def check(problem: Problem) -> Problem:
    """Asks for some rows in every way, and notes what is off."""
    rng = np.random.default_rng(problem.seed + 1)
    dtype = problem.scores.dtype
    lists, n = problem.scores.shape
    rows = {}
    for _ in range(ROWS):
        b = int(rng.integers(lists))
        present = n if problem.mask is None else int(problem.mask[b].sum())
        i = int(rng.choice([0, present - 1, rng.integers(present), rng.integers(present)]))
        rows[b, i] = expected_row(problem, b, i)

    one = torch.zeros(lists, n, len(rows), dtype=dtype)
    perm = torch.arange(n).expand(lists, n).clone()
    places = {at: int(rng.integers(len(row.items))) for at, row in rows.items()}
    for c, ((b, i), row) in enumerate(rows.items()):
        one[b, i, c] = 1
        perm[b, i] = int(row.items[places[b, i]])
    inputs = problem.scores, problem.tau, problem.payload
    scores, temperature, payload = (x.clone().requires_grad_() for x in inputs)
    values = problem.relaxed(scores, temperature).sort(payload)
    gradient, to_tau, to_payload = torch.autograd.grad(
        sum(values[at] for at in rows), (scores, temperature, payload)
    )
    k = 1 + max(i for _, i in rows)
    with torch.no_grad():
        P = problem.relaxed(problem.scores, problem.tau)
        entropy, columns, log, rank = P.entropy(), P.mT @ one, P.log_prob(perm), P.rank()
        top = P.top(k)
        firsts, members = top.sort(problem.payload), top.mT @ one.new_ones(lists, k, 1)

    def compare(what: str, got, expected, bound: float) -> None:
        got, expected = np.asarray(got, float), np.asarray(expected, float)
        with np.errstate(invalid="ignore"):
            error = np.where(got == expected, 0.0, np.abs(got - expected)).max()
        if not error <= bound:
            problem.faults.append(f"{what} is off by {error:.2e} (bound {bound:.1e})")

    to_scores, weighed = np.zeros((lists, n)), np.zeros((lists, n))
    heat = np.zeros((lists, 1))
    scale = np.zeros((lists, 1))
    for c, (at, row) in enumerate(rows.items()):
        where = "list {}, row {}: ".format(*at)
        b = at[0]
        x = problem.payload[b].double().numpy()[row.items]
        compare(where + "value", values[at].item(), (row.weights * x).sum(), VALUE[dtype])
        compare(where + "top", firsts[at].item(), (row.weights * x).sum(), VALUE[dtype])
        bound = VALUE[dtype] * (1 + abs(row.entropy))
        compare(where + "entropy", entropy[at].item(), row.entropy, bound)
        whole = np.zeros(n)
        whole[row.items] = row.weights
        compare(where + "transpose", columns[b, :, c].numpy(), whole, VALUE[dtype])
        weighed[b] += whole
        expected = float(np.log(row.weights[row.position]) - row.fall[places[at]])
        bound = VALUE[dtype] * max(1, min(abs(expected), 1e300))
        compare(where + "log_prob", log[at].item(), expected, bound)
        tau = float(problem.tau[b]) or 1.0
        added = expected_gradient(problem, b, row)
        to_scores[b, row.items] += added
        unit = 1 / tau if problem.power == 1 else tau**-0.5
        scale[b] = max(scale[b, 0], np.abs(added).max(), unit)
        heat[b] += expected_tau_gradient(problem, b, row)
        column = expected_column(problem, b, at[1])
        if column is not None:
            item, place = row.items[at[1]], np.arange(1, len(column) + 1)
            mean = (column * place).sum() / column.sum()
            spread = np.sqrt((column * (place - mean) ** 2).sum() / column.sum())
            bound = VALUE[dtype] * (1 + float(spread)) + float(mean) * torch.finfo(dtype).eps
            compare(where + "rank", rank[b, item].item(), mean, bound)
            sum_of_rows = column[:k].sum()
            bound = VALUE[dtype] * (1 + float(sum_of_rows))
            compare(where + "membership", members[b, item, 0].item(), sum_of_rows, bound)
    off = gradient.double().numpy() - to_scores
    for b in np.flatnonzero(scale[:, 0]):
        compare(f"list {b}: gradient", off[b] / scale[b], np.zeros(n), GRADIENT[dtype])
        got = float(to_tau[b]) * float(problem.tau[b])
        compare(f"list {b}: gradient to tau", got, heat[b, 0], GRADIENT[dtype])
    compare("gradient to the payload", to_payload.numpy(), weighed, ROWS * VALUE[dtype])
    other = off[scale[:, 0] == 0]
    if len(other):
        compare("gradient of other lists", other, np.zeros_like(other), 0.0)
        compare("gradient of other temperatures", to_tau[scale == 0].numpy(), 0.0, 0.0)
    return problem


def main() -> None:
    """Checks problems one after the other and counts the violations."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--problems", type=int, default=2000)
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--items", type=int, default=10**7, help="the most items of a problem")
    options = parser.parse_args()
    begin, items, broken = time.time(), 0, 0
    for seed in range(options.first, options.first + options.problems):
        problem = check(make(seed, options.items))
        items += problem.scores.numel()
        if problem.faults:
            broken += 1
            print(f"problem {seed}: {problem.story}", *problem.faults, sep="\n  ", flush=True)
        if (seed + 1 - options.first) % 100 == 0:
            print(f"{seed + 1 - options.first} problems, {broken} violations", flush=True)
    print(
        f"{options.problems} problems from seed {options.first}, {items:.3g} items, "
        f"{time.time() - begin:.0f} s: {broken} with violations"
    )
    raise SystemExit(broken > 0)


if __name__ == "__main__":
    main()
