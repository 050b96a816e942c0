"""The paper's equations, one loop per symbol: NumPy float64, slow and obvious.

A float is a rational number, so the logits here are exact; only the exponentials and the sums after
them round. Indices count from 0, positions i in the paper's formulas from 1. Lists are 1-d.
"""

from collections.abc import Callable, Sequence
from fractions import Fraction

import numpy as np

Logits = list[list[Fraction]]
Relax = Callable[[Sequence[float]], np.ndarray]


def stable_descending(scores: Sequence[float]) -> list[int]:
    """The hard permutation: item [i] for each position, earlier indices first among ties."""
    return sorted(range(len(scores)), key=lambda j: -scores[j])


def exact(values: Sequence[float]) -> list[Fraction]:
    return [Fraction(float(value)) for value in values]


def neuralsort_logits(scores: Sequence[float], tau: float) -> Logits:
    """((n + 1 - 2i) s - A_s 1) / tau, the paper's equation of the relaxed permutation."""
    s, n = exact(scores), len(scores)
    A = [[abs(s[j] - s[k]) for k in range(n)] for j in range(n)]
    logits = []
    for i in range(1, n + 1):
        logits.append([((n + 1 - 2 * i) * s[j] - sum(A[j])) / Fraction(tau) for j in range(n)])
    return logits


def softsort_logits(scores: Sequence[float], tau: float, power: int) -> Logits:
    """-|s_[i] - s_j|^p / tau."""
    s = exact(scores)
    logits = []
    for item in stable_descending(scores):
        logits.append([-(abs(s[item] - other) ** power) / Fraction(tau) for other in s])
    return logits


def log_softmax(logits: Logits) -> np.ndarray:
    n = len(logits)
    result = np.zeros((n, n))
    for i in range(n):
        peak = max(logits[i])
        row = [float(max(logit - peak, Fraction(-(10**300)))) for logit in logits[i]]
        total = sum(np.exp(value) for value in row)
        for j in range(n):
            result[i, j] = row[j] - np.log(total)
    return result


def neuralsort(scores: Sequence[float], tau: float) -> np.ndarray:
    return np.exp(log_softmax(neuralsort_logits(scores, tau)))


def softsort(scores: Sequence[float], tau: float, power: int) -> np.ndarray:
    return np.exp(log_softmax(softsort_logits(scores, tau, power)))


def masked(relax: Relax, scores: Sequence[float], mask: Sequence[bool]) -> np.ndarray:
    """Present items as if alone, in the leading rows; then the absent items in index order."""
    n = len(scores)
    present = [j for j in range(n) if mask[j]]
    absent = [j for j in range(n) if not mask[j]]
    alone = relax([scores[j] for j in present])
    result = np.zeros((n, n))
    for i in range(len(present)):
        for column, j in enumerate(present):
            result[i, j] = alone[i, column]
    for i, j in enumerate(absent, start=len(present)):
        result[i, j] = 1.0
    return result


def hard_matrix(permutation: Sequence[int]) -> np.ndarray:
    n = len(permutation)
    result = np.zeros((n, n))
    for i, j in enumerate(permutation):
        result[i, j] = 1.0
    return result


def limit_matrix(scores: Sequence[float]) -> np.ndarray:
    """What every method tends to for tau -> 0: each row shared by the items tied with [i]."""
    n = len(scores)
    result = np.zeros((n, n))
    for i, item in enumerate(stable_descending(scores)):
        tied = [j for j in range(n) if scores[j] == scores[item]]
        for j in tied:
            result[i, j] = 1.0 / len(tied)
    return result


def argmax_with_ties(matrix: np.ndarray) -> list[int]:
    """The appendix's rule: the smallest unused index of the row's maxima, else the smallest."""
    taken: list[int] = []
    for row in matrix:
        maxima = [j for j in range(len(row)) if row[j] == row.max()]
        unused = [j for j in maxima if j not in taken]
        taken.append(min(unused or maxima))
    return taken


def is_unimodal(matrix: np.ndarray, atol: float = 1e-6) -> bool:
    """The paper's definition: non-negativity, row affinity, argmax permutation."""
    non_negative = all(weight >= 0 for row in matrix for weight in row)
    affine = all(abs(sum(row) - 1) <= atol for row in matrix)
    return non_negative and affine and sorted(argmax_with_ties(matrix)) == list(range(len(matrix)))


def soft_sort(matrix: np.ndarray, values: Sequence[float]) -> np.ndarray:
    n = len(values)
    return np.array([sum(matrix[i, j] * values[j] for j in range(n)) for i in range(n)])


def soft_rank(matrix: np.ndarray) -> np.ndarray:
    """Average position of each item, from 1, under the weights of its column made to sum to 1."""
    n = len(matrix)
    ranks = []
    for j in range(n):
        column = [matrix[i, j] for i in range(n)]
        ranks.append(sum((i + 1) * column[i] for i in range(n)) / sum(column))
    return np.array(ranks)


def entropy(matrix: np.ndarray) -> np.ndarray:
    return np.array([-sum(w * np.log(w) for w in row if w > 0) for row in matrix])
