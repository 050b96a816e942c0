"""The paper's equations, one loop per symbol: NumPy float64, slow and obvious.

A float is a rational number, so the logits here are exact; only the exponentials and the sums after
them round. Indices count from 0, positions i in the paper's formulas from 1. Lists are 1-d.
"""

import itertools
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


def balanced(log: np.ndarray, iterations: int) -> np.ndarray:
    """Rows and columns of exp(log) divided by their sums in turn; rows once more at the end."""
    log, n = log.copy(), len(log)

    def lse(values: Sequence[float]) -> float:
        top = max(values)
        return top if top == -np.inf else top + np.log(sum(np.exp(v - top) for v in values))

    for step in range(2 * iterations + 1):
        for k in range(n):
            if step % 2 == 0:
                log[k] = log[k] - lse(list(log[k]))
            else:
                log[:, k] = log[:, k] - lse(list(log[:, k]))
    return np.exp(log)


def sinkhorn_sort(scores: Sequence[float], tau: float, iterations: int = 20) -> np.ndarray:
    """Sinkhorn's iterations on the logits of NeuralSort."""
    return balanced(log_softmax(neuralsort_logits(scores, tau)), iterations)


def laplace_cdf(z: float) -> float:
    return 0.5 * np.exp(z) if z < 0 else 1 - 0.5 * np.exp(-z)


def lapsum(scores: Sequence[float], tau: float) -> np.ndarray:
    """Thresholds by bisection; then masses between neighbouring ones."""
    s, n = exact(scores), len(scores)
    at = [float(min((max(s) - score) / Fraction(tau), 10**6)) for score in s]
    thresholds = [-np.inf]
    for i in range(1, n):
        low, high = -60.0, max(at) + 60.0
        for _ in range(200):
            middle = (low + high) / 2
            below = sum(laplace_cdf(middle - place) for place in at) < i
            low, high = (middle, high) if below else (low, middle)
        thresholds.append((low + high) / 2)
    thresholds.append(np.inf)
    result = np.zeros((n, n))
    for i in range(n):
        for j in range(n):
            start, end = thresholds[i] - at[j], thresholds[i + 1] - at[j]
            if start > 0:  # both from the far end, where less cancels
                start, end = -end, -start
            result[i, j] = laplace_cdf(end) - laplace_cdf(start)
    return result


SWAPS = {
    "logistic": lambda v: 1 / (1 + np.exp(-v)) if v > 0 else np.exp(v) / (1 + np.exp(v)),
    "cauchy": lambda v: np.arctan(v) / np.pi + 0.5,
    "reciprocal": lambda v: 0.5 * (v / (2 + abs(v)) + 1),
    "optimal": lambda v: (
        v + 0.5 if abs(v) <= 0.25 else (1 - 1 / (16 * v) if v > 0 else -1 / (16 * v))
    ),
}


def comparators(n: int, kind: str) -> list[tuple[int, int]]:
    """Pairs of wires in the order they are compared; the first shall get the smaller value."""
    if kind == "odd_even":
        return [(a, a + 1) for layer in range(n) for a in range(layer % 2, n - 1, 2)]
    width = 1
    while width < n:
        width *= 2
    empty = width - n  # the first wires of the power of two have no item
    pairs: list[tuple[int, int]] = []

    def merge(start: int, size: int, rising: bool) -> None:
        if size < 2:
            return
        for a in range(start, start + size // 2):
            b = a + size // 2
            if a >= empty:
                pairs.append((a - empty, b - empty) if rising else (b - empty, a - empty))
        merge(start, size // 2, rising)
        merge(start + size // 2, size // 2, rising)

    size = 2
    while size <= width:
        for start in range(0, width, size):
            # Runs rise and fall in turn, and the one in which the empty wires end rises: they stay
            # in front of it, as the smallest values would.
            merge(start, size, rising=(start // size - empty // size) % 2 == 0)
        size *= 2
    return pairs


def unsorted_zeros_and_ones(n: int, pairs: Sequence[tuple[int, int]]) -> int:
    """How many of all 2^n lists of zeros and ones a network leaves out of order.

    Wire i of all the lists at once is one long integer, a bit per list: the smaller of two bits is
    their AND, the larger their OR. By the 0-1 principle a network that sorts all of these sorts
    everything.
    """
    wires = []
    for i in range(n):  # blocks of 2^i zeros and 2^i ones in turn
        bits, size = ((1 << (1 << i)) - 1) << (1 << i), 2 << i
        while size < 1 << n:
            bits, size = bits | bits << size, 2 * size
        wires.append(bits)
    for a, b in pairs:
        wires[a], wires[b] = wires[a] & wires[b], wires[a] | wires[b]
    wrong = 0
    for low, high in itertools.pairwise(wires):
        wrong |= low & ~high
    return wrong.bit_count()


def sorting_network(scores: Sequence[float], tau: float, kind: str, swap: str) -> np.ndarray:
    """Each comparator mixes two values, and the two rows of weights that made them."""
    s, n = exact(scores), len(scores)
    x = np.array([float((score - max(s)) / Fraction(tau)) for score in s])
    weights = np.eye(n)
    for a, b in comparators(n, kind):
        share = SWAPS[swap](x[a] - x[b])
        for values in (x, weights):
            first, second = values[a].copy(), values[b].copy()
            values[a] = (1 - share) * first + share * second
            values[b] = share * first + (1 - share) * second
    return weights[::-1].copy()


def project(z: Sequence[float], w: Sequence[float], entropic: bool) -> np.ndarray:
    """Isotonic regression by its minimax formula: the smallest of the largest averages."""
    n = len(z)

    def lse(values: Sequence[float]) -> float:
        return values[0] + np.log(sum(np.exp(v - values[0]) for v in values))  # the largest first

    def average(a: int, b: int) -> float:
        if entropic:
            return lse(z[a : b + 1]) - lse(w[a : b + 1])
        return sum(z[i] - w[i] for i in range(a, b + 1)) / (b + 1 - a)

    result = []
    for i in range(n):
        largest = [max((average(a, b), a, b) for b in range(i, n)) for a in range(i + 1)]
        _, a, b = min(largest)
        block = [z[k] - z[a] for k in range(a, b + 1)]
        if entropic:
            result.append(block[i - a] - lse(block) + lse(w[a : b + 1]))
        else:
            result.append(block[i - a] - sum(block) / len(block) + sum(w[a : b + 1]) / len(block))
    return np.array(result)


def fast_soft_sort(x: Sequence[float], strength: float, entropic: bool) -> np.ndarray:
    """Ascending: minus the projection of (n, ..., 1) / strength on the permutahedron of -x."""
    n = len(x)
    z = [(n - i) / strength for i in range(n)]
    return -project(z, sorted((-value for value in x), reverse=True), entropic)


def fast_soft_rank(x: Sequence[float], strength: float, entropic: bool) -> np.ndarray:
    """The projection of x / strength on the permutahedron of (1, ..., n), or of logarithms."""
    n, order = len(x), stable_descending(x)
    w = [float(n - i) for i in range(n)]
    z = [x[j] / strength for j in order]
    y = np.exp(project(z, list(np.log(w)), True)) if entropic else project(z, w, False)
    ranks = np.zeros(n)
    for i, j in enumerate(order):
        ranks[j] = y[i]
    return ranks


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


# -- losses: of one list, from the relaxed matrix or from the values -------------------------------


def permutation_cross_entropy(matrix: np.ndarray, target: Sequence[int]) -> float:
    return -sum(np.log(matrix[i, item]) for i, item in enumerate(target)) / len(target)


def knn_loss(matrix: np.ndarray, same_label: Sequence[bool], k: int) -> float:
    total = 0.0
    for i in range(k):
        for j, same in enumerate(same_label):
            total += matrix[i, j] if same else 0.0
    return -total / k


def topk_cross_entropy(matrix: np.ndarray, label: int, shares: dict[int, float]) -> float:
    return -np.log(sum(p * sum(matrix[i, label] for i in range(k)) for k, p in shares.items()))


def plackett_luce_loss(logits: Sequence[float], ranking: Sequence[int]) -> float:
    """-log of the product of s_{z_i} over what remains at place i."""
    remaining = list(range(len(logits)))
    loss = 0.0
    for item in ranking:
        loss -= logits[item] - np.log(sum(np.exp(logits[j]) for j in remaining))
        remaining.remove(item)
    return loss


def dcg(gains: Sequence[float], k: int) -> float:
    """Of gains in the order of their places."""
    return sum(gains[i] / np.log2(i + 2) for i in range(min(k, len(gains))))


def neural_ndcg(matrix: np.ndarray, relevance: Sequence[float], k: int, iterations: int) -> float:
    """Columns, then rows, divided by their sums, and so on; then the formula."""
    n = len(relevance)
    matrix = matrix.copy()
    for _ in range(iterations):
        for j in range(n):
            matrix[:, j] = matrix[:, j] / sum(matrix[i, j] for i in range(n))
        for i in range(n):
            matrix[i] = matrix[i] / sum(matrix[i, j] for j in range(n))
    gains = [2.0**r - 1 for r in relevance]
    ideal = dcg(sorted(gains, reverse=True), k)
    return 1 - dcg(list(soft_sort(matrix, gains)), k) / ideal if ideal > 0 else 0.0


def approx_ndcg(scores: Sequence[float], relevance: Sequence[float], tau: float) -> float:
    n = len(scores)
    found = 0.0
    for j in range(n):
        rank = 1.0
        for u in range(n):
            if u != j:
                rank += 1 / (1 + np.exp((scores[j] - scores[u]) / tau))
        found += (2.0 ** relevance[j] - 1) / np.log2(1 + rank)
    ideal = dcg(sorted((2.0**r - 1 for r in relevance), reverse=True), n)
    return 1 - found / ideal if ideal > 0 else 0.0


def average_ranks(values: Sequence[float]) -> list[float]:
    """From 1 for the largest; ties share the mean of their places."""
    ranks = []
    for value in values:
        larger = sum(other > value for other in values)
        tied = sum(other == value for other in values)
        ranks.append(larger + (tied + 1) / 2)
    return ranks


def spearman_loss(matrix: np.ndarray, target: Sequence[float]) -> float:
    a, b = np.array(soft_rank(matrix)), np.array(average_ranks(target))
    a, b = a - a.mean(), b - b.mean()
    return 1 - sum(a * b) / np.sqrt(sum(a * a) * sum(b * b)) if sum(b * b) > 0 else 0.0


def decided_pairs(target: Sequence[float]) -> list[tuple[int, int]]:
    n = len(target)
    return [(i, j) for i in range(n) for j in range(n) if target[i] > target[j]]


def kendall_loss(x: Sequence[float], target: Sequence[float], tau: float) -> float:
    costs = [1 - np.tanh((x[i] - x[j]) / tau) for i, j in decided_pairs(target)]
    return sum(costs) / len(costs) if costs else 0.0


def ranknet_loss(scores: Sequence[float], relevance: Sequence[float], tau: float) -> float:
    pairs = decided_pairs(relevance)
    costs = [np.log(1 + np.exp(-(scores[i] - scores[j]) / tau)) for i, j in pairs]
    return sum(costs) / len(costs) if costs else 0.0


def listnet_loss(scores: Sequence[float], relevance: Sequence[float], tau: float) -> float:
    if len(set(relevance)) < 2:
        return 0.0
    weights = np.exp(np.array(relevance, float))
    logits = np.array(scores) / tau
    return -sum(
        w / sum(weights) * (x - np.log(sum(np.exp(logits))))
        for w, x in zip(weights, logits, strict=True)
    )


def lambda_loss(scores: Sequence[float], relevance: Sequence[float], tau: float, k: int) -> float:
    """Every pair is swapped, and the NDCG measured again."""
    order = stable_descending(scores)
    gains = [2.0**r - 1 for r in relevance]
    ideal = dcg(sorted(gains, reverse=True), k)
    total = 0.0
    for i, j in decided_pairs(relevance):
        other = [{i: j, j: i}.get(item, item) for item in order]
        change = dcg([gains[a] for a in order], k) - dcg([gains[a] for a in other], k)
        total += abs(change) / ideal * np.log2(1 + np.exp(-(scores[i] - scores[j]) / tau))
    return total


def _soft_rank_among(scores: Sequence[float], i: int, others: Sequence[int], tau: float) -> float:
    return 1 + sum(1 / (1 + np.exp((scores[i] - scores[j]) / tau)) for j in others if j != i)


def smooth_ap_loss(scores: Sequence[float], relevance: Sequence[float], tau: float) -> float:
    n = len(scores)
    relevant = [i for i in range(n) if relevance[i] > 0]
    if len(relevant) in (0, n):
        return 0.0
    shares = [
        _soft_rank_among(scores, i, relevant, tau) / _soft_rank_among(scores, i, range(n), tau)
        for i in relevant
    ]
    return 1 - sum(shares) / len(relevant)


def recall_at_k_loss(
    scores: Sequence[float],
    relevance: Sequence[float],
    tau: float,
    k: Sequence[int],
    rank_tau: float,
) -> float:
    n = len(scores)
    relevant = [i for i in range(n) if relevance[i] > 0]
    if len(relevant) in (0, n):
        return 0.0
    found = 0.0
    for size in k:
        for i in relevant:
            rank = _soft_rank_among(scores, i, range(n), tau)
            found += 1 / (1 + np.exp((rank - size - 0.5) / rank_tau))
    return 1 - found / len(relevant) / len(k)


def average_precision(scores: Sequence[float], relevance: Sequence[float], k: int) -> float:
    order = stable_descending(scores)
    hits = [relevance[item] > 0 for item in order]
    gained = sum(sum(hits[: i + 1]) / (i + 1) for i in range(min(k, len(hits))) if hits[i])
    return gained / min(k, sum(hits)) if any(hits) else 0.0


def found_at(scores: Sequence[float], relevance: Sequence[float], k: int) -> float:
    """Relevant items in the first k places: the expectation over the orders of tied scores."""
    found = 0.0
    for i in range(len(scores)):
        if relevance[i] > 0:
            larger = sum(other > scores[i] for other in scores)
            tied = sum(other == scores[i] for other in scores)
            found += min(1.0, max(0.0, (k - larger) / tied))
    return found


def ndcg(scores: Sequence[float], relevance: Sequence[float], k: int) -> float:
    """Expectation over the orders of tied scores."""
    gains = [2.0**r - 1 for r in relevance]
    shared = []
    for item in stable_descending(scores):
        tied = [gains[j] for j in range(len(scores)) if scores[j] == scores[item]]
        shared.append(sum(tied) / len(tied))
    ideal = dcg(sorted(gains, reverse=True), k)
    return dcg(shared, k) / ideal if ideal > 0 else 0.0


def plackett_luce_log_prob(logits: Sequence[float], ranking: Sequence[int]) -> float:
    """Items chosen one after the other, each by a softmax over those that are left."""
    left, total = list(range(len(logits))), 0.0
    for item in ranking:
        peak = max(logits[j] for j in left)
        total += logits[item] - peak - np.log(sum(np.exp(logits[j] - peak) for j in left))
        left.remove(item)
    return total
