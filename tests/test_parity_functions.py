"""JAX computes what PyTorch does: operators, losses, metrics and distributions, with gradients."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from tests.frameworks import TOLERANCE, assert_same, jax, jnp, nj, nt, numpy_of, of, quick_jit

SCORES = np.random.default_rng(1).normal(size=(3, 6))
TARGET = np.argsort(-np.random.default_rng(2).normal(size=(3, 6)), -1)
RELEVANCE = np.random.default_rng(3).integers(0, 4, size=(3, 6))
MASK = (RELEVANCE > 0) & np.array([[True], [True], [False]])  # of the last list nothing is there
PRESENT_FIRST = np.argsort(~MASK, -1, kind="stable")
KS = np.array([0, 3, 5])
TIES = np.array([[False, True, True], [False, False, True], [False, False, False]])
GROUPS = np.array([3, 1, 3, 3, 7, 1] * 3)
WEIGHTS = np.random.default_rng(5).uniform(size=(3, 6))


def outer(x: Any) -> Any:
    """A matrix for every list."""
    return x[..., None] * x[..., None, :]


def hard(ns: Any, x: Any) -> Any:
    return ns.neuralsort(x, tau=0.4).straight_through()


def groups(ns: Any) -> Any:
    """They decide shapes: a NumPy array stays known inside a compiled function of JAX."""
    return torch.tensor(GROUPS) if ns is nt else GROUPS


def masked(ns: Any) -> dict[str, Any]:
    """A result for each list, so that none hides another."""
    return {"mask": of(ns, MASK), "reduction": "none"}


FUNCTIONS: dict[str, dict[str, Callable[[Any, Any], Any]]] = {
    "operators": {
        "soft_sort": lambda ns, x: ns.soft_sort(x, tau=0.4, dim=0, descending=True),
        "soft_sort_by": lambda ns, x: ns.soft_sort_by(x, x, tau=0.4),
        "soft_rank": lambda ns, x: ns.soft_rank(x, tau=0.4),
        "soft_topk values": lambda ns, x: ns.soft_topk(x, 2, tau=0.4).values,
        "soft_topk weights": lambda ns, x: ns.soft_topk(x, 2, tau=0.4, largest=False).weights,
        "soft_quantile": lambda ns, x: ns.soft_quantile(x, 0.3, tau=0.4),
        "masked sort": lambda ns, x: ns.soft_sort(x, tau=0.4, mask=of(ns, MASK)),
        "masked median": lambda ns, x: ns.soft_median(x, tau=0.4, mask=of(ns, MASK)),
        "masked rank": lambda ns, x: ns.soft_rank(x, tau=0.4, mask=of(ns, MASK)),
        "masked topk": lambda ns, x: ns.soft_topk(x, 2, tau=0.4, mask=of(ns, MASK)).values,
        "masked weights": lambda ns, x: ns.soft_topk(x, 2, tau=0.4, mask=of(ns, MASK)).weights,
        "soft_median": lambda ns, x: ns.soft_median(x, tau=0.4, dim=0),
        "quantiles": lambda ns, x: ns.soft_quantile(x, of(ns, np.array([0.2, 0.7])), tau=0.4),
        "masked blur": lambda ns, x: ns.tau_for_blur(x, mask=of(ns, MASK)),
        "tau_for_blur": lambda ns, x: ns.tau_for_blur(x, ranks=2.0),
        "at a blur": lambda ns, x: ns.soft_sort(x, tau=ns.Blur(1.5), relax=ns.softsort),
    },
    "relaxed permutations": {
        "rank": lambda ns, x: ns.neuralsort(x, tau=0.4).rank(),
        "entropy": lambda ns, x: ns.neuralsort(x, tau=0.4).entropy(),
        "transpose": lambda ns, x: ns.neuralsort(x, tau=0.4).mT @ x[..., None],
        "top": lambda ns, x: ns.neuralsort(x, tau=0.4).top(2).sort(x),
        "unimodal": lambda ns, x: (
            1.0
            * ns.RelaxedPermutation.from_dense(ns.neuralsort(x, tau=0.4).to_dense())
            .top(2)
            .is_unimodal()
        ),
        "log_prob": lambda ns, x: ns.softsort(x, tau=0.4, power=2.0).log_prob(of(ns, TARGET)),
        "straight_through": lambda ns, x: ns.straight_through(of(ns, np.sign(SCORES)), x * x),
    },
    "straight-through permutations": {
        "sort": lambda ns, x: hard(ns, x).sort(x),
        "rank": lambda ns, x: hard(ns, x).rank(),
        "dense": lambda ns, x: hard(ns, x).to_dense(),
        "transpose": lambda ns, x: hard(ns, x).mT @ x[..., None],
        "top": lambda ns, x: hard(ns, x).top(2).to_dense(),
        "of the top": lambda ns, x: ns.neuralsort(x, tau=0.4).top(2).straight_through().to_dense(),
    },
    "balanced matrices": {
        "sinkhorn": lambda ns, x: ns.sinkhorn(outer(x), tau=0.5).to_dense(),
        "sinkhorn_sort": lambda ns, x: ns.sinkhorn_sort(x, tau=0.5, iterations=7).to_dense(),
        "tolerance": lambda ns, x: ns.sinkhorn(outer(x), tolerance=1e-3).to_dense(),
        "tolerance of a sort": lambda ns, x: ns.sinkhorn_sort(x, tolerance=1e-3).to_dense(),
        "masked": lambda ns, x: ns.sinkhorn(outer(x), tau=0.5, mask=of(ns, MASK)).to_dense(),
        "masked sort": lambda ns, x: ns.sinkhorn_sort(x, mask=of(ns, MASK)).to_dense(),
        "log_prob": lambda ns, x: ns.sinkhorn(outer(x)).log_prob(of(ns, TARGET)),
        "entropy": lambda ns, x: ns.sinkhorn(outer(x)).entropy(),
    },
    "networks and projections": {
        "odd_even": lambda ns, x: ns.sorting_network(x, tau=0.4, swap="logistic").to_dense(),
        "bitonic": lambda ns, x: ns.sorting_network(
            x, tau=0.4, kind="bitonic", mask=of(ns, MASK)
        ).to_dense(),
        "optimal": lambda ns, x: ns.sorting_network(x, tau=0.4, swap="optimal").to_dense(),
        "error_free": lambda ns, x: ns.sorting_network(x, tau=0.4, swap="error_free").sort(x),
        "error_free rank": lambda ns, x: ns.sorting_network(
            x, tau=0.4, kind="bitonic", swap="error_free", mask=of(ns, MASK)
        ).rank(),
        "fast_soft_sort": lambda ns, x: ns.fast_soft_sort(x, strength=2.0, descending=True),
        "entropic sort": lambda ns, x: ns.fast_soft_sort(x, strength=2.0, regularization="kl"),
        "fast_soft_rank": lambda ns, x: ns.fast_soft_rank(x, strength=0.4, dim=0),
        "entropic rank": lambda ns, x: ns.fast_soft_rank(x, strength=0.4, regularization="kl"),
        "masked sort": lambda ns, x: ns.fast_soft_sort(x, tau=2.0, mask=of(ns, MASK)),
        "masked rank": lambda ns, x: ns.fast_soft_rank(x, tau=0.4, mask=of(ns, MASK)),
        "entropic masked rank": lambda ns, x: ns.fast_soft_rank(
            x, tau=0.4, regularization="kl", descending=True, mask=of(ns, MASK)
        ),
    },
    "gates": {
        "lapsum": lambda ns, x: ns.lapsum(x, tau=0.4).to_dense(),
        "masked lapsum": lambda ns, x: ns.lapsum(x, tau=0.4, mask=of(ns, MASK)).sort(x),
        "soft_topk_mask": lambda ns, x: ns.soft_topk_mask(x, 2, tau=0.4),
        "k per list": lambda ns, x: ns.soft_topk_mask(x, of(ns, KS), tau=0.4, largest=False),
        "masked": lambda ns, x: ns.soft_topk_mask(x, 2, tau=0.4, mask=of(ns, MASK)),
        "hard": lambda ns, x: ns.soft_topk_mask(x, 2, tau=0.4, hard=True),
        "sparse": lambda ns, x: ns.soft_topk_mask(x, 2, tau=1.1, relax=ns.sparse_threshold),
        "midpoint": lambda ns, x: ns.soft_topk_mask(x, 2, tau=0.4, relax=ns.midpoint_threshold),
        "of a relaxation": lambda ns, x: ns.softsort(x, tau=0.4).memberships(of(ns, KS)),
    },
    "doors": {
        "conformal": lambda ns, x: ns.conformal_quantile(x, 0.3, tau=0.4),
        "masked conformal": lambda ns, x: ns.conformal_quantile(x, 0.3, mask=of(ns, MASK)),
        "dpo": lambda ns, x: ns.listwise_dpo_loss(x, of(ns, SCORES[::-1].copy()), of(ns, TARGET)),
        "tied dpo": lambda ns, x: ns.listwise_dpo_loss(
            x, 2 * x, of(ns, TARGET[:, :3]), ties=of(ns, TIES), reduction="none"
        ),
        "masked dpo": lambda ns, x: ns.listwise_dpo_loss(
            x, of(ns, SCORES[::-1].copy()), of(ns, PRESENT_FIRST), **masked(ns)
        ),
        "groups": lambda ns, x: ns.unpad_groups(
            2 * ns.pad_groups(x.reshape(-1), groups(ns))[0],
            ns.pad_groups(x.reshape(-1), groups(ns))[1],
            groups(ns),
        ),
        "spearman by rank": lambda ns, x: ns.spearman_loss(
            x, of(ns, RELEVANCE), tau=0.5, rank=ns.fast_soft_rank, **masked(ns)
        ),
        "weighted spearman": lambda ns, x: ns.spearman_loss(
            x, of(ns, RELEVANCE), tau=0.5, weights=of(ns, WEIGHTS)
        ),
        "weighted kendall": lambda ns, x: ns.kendall_loss(
            x, of(ns, RELEVANCE), tau=0.5, weights=of(ns, WEIGHTS), **masked(ns)
        ),
        "weighted ranknet": lambda ns, x: ns.ranknet_loss(
            x, of(ns, RELEVANCE), weights=of(ns, WEIGHTS)
        ),
    },
    "ranking losses": {
        "approx_ndcg": lambda ns, x: ns.approx_ndcg(x, of(ns, RELEVANCE), tau=0.5),
        "neural_ndcg": lambda ns, x: ns.neural_ndcg(x, of(ns, RELEVANCE), tau=0.5, k=3),
        "spearman_loss": lambda ns, x: ns.spearman_loss(x, of(ns, RELEVANCE), tau=0.5),
        "kendall_loss": lambda ns, x: ns.kendall_loss(x, of(ns, RELEVANCE), tau=0.5),
        "ranknet_loss": lambda ns, x: ns.ranknet_loss(x, of(ns, RELEVANCE), reduction="none"),
        "listnet_loss": lambda ns, x: ns.listnet_loss(x, of(ns, RELEVANCE), tau=0.5),
        "lambda_loss": lambda ns, x: ns.lambda_loss(x, of(ns, RELEVANCE), tau=0.5, k=3),
        "smooth_ap_loss": lambda ns, x: ns.smooth_ap_loss(x, of(ns, RELEVANCE > 1), tau=0.5),
        "recall_at_k_loss": lambda ns, x: ns.recall_at_k_loss(
            x, of(ns, RELEVANCE > 1), k=(1, 3), tau=0.5
        ),
    },
    "masked ranking losses": {
        "approx_ndcg": lambda ns, x: ns.approx_ndcg(x, of(ns, RELEVANCE), **masked(ns), tau=0.5),
        "neural_ndcg": lambda ns, x: ns.neural_ndcg(x, of(ns, RELEVANCE), **masked(ns), tau=0.5),
        "spearman": lambda ns, x: ns.spearman_loss(x, of(ns, RELEVANCE), **masked(ns), tau=0.5),
        "kendall": lambda ns, x: ns.kendall_loss(x, of(ns, RELEVANCE), **masked(ns), tau=0.5),
        "ranknet": lambda ns, x: ns.ranknet_loss(x, of(ns, RELEVANCE), **masked(ns)),
        "listnet": lambda ns, x: ns.listnet_loss(x, of(ns, RELEVANCE), **masked(ns)),
        "lambda": lambda ns, x: ns.lambda_loss(x, of(ns, RELEVANCE), **masked(ns)),
        "smooth_ap": lambda ns, x: ns.smooth_ap_loss(
            x, of(ns, RELEVANCE > 2), tau=0.5, **masked(ns)
        ),
        "recall_at_k": lambda ns, x: ns.recall_at_k_loss(
            x, of(ns, RELEVANCE > 2), k=2, tau=0.5, rank_tau=0.4, **masked(ns)
        ),
    },
    "losses": {
        "cross_entropy": lambda ns, x: ns.permutation_cross_entropy(
            ns.neuralsort(x, tau=0.7), of(ns, TARGET), reduction="none"
        ),
        "knn_loss": lambda ns, x: ns.knn_loss(ns.neuralsort(x), of(ns, RELEVANCE > 1), k=3),
        "topk_cross_entropy": lambda ns, x: ns.topk_cross_entropy(
            x, of(ns, TARGET[:, 0]), k={1: 0.5, 3: 0.5}, tau=0.5
        ),
        "plackett_luce_nll": lambda ns, x: ns.plackett_luce_nll(x, of(ns, TARGET)),
        "prefix": lambda ns, x: ns.plackett_luce_nll(x, of(ns, TARGET[:, :2])),
        "masked nll": lambda ns, x: ns.plackett_luce_nll(x, of(ns, PRESENT_FIRST), **masked(ns)),
        "masked cross_entropy": lambda ns, x: ns.permutation_cross_entropy(
            ns.neuralsort(x, mask=of(ns, MASK)), of(ns, PRESENT_FIRST), **masked(ns)
        ),
        "masked knn_loss": lambda ns, x: ns.knn_loss(
            ns.neuralsort(x, mask=of(ns, MASK)), of(ns, RELEVANCE > 1), k=2, **masked(ns)
        ),
        "masked topk_cross_entropy": lambda ns, x: ns.topk_cross_entropy(
            x, of(ns, PRESENT_FIRST[:, 0]), k=2, tau=0.5, **masked(ns)
        ),
        "score_function_loss": lambda ns, x: ns.score_function_loss(
            ns.PlackettLuce(x).log_prob(of(ns, TARGET[:, None])), of(ns, SCORES[:, :3])
        ),
    },
    "distributions": {
        "entropy of rankings": lambda ns, x: ns.PlackettLuce(x).entropy(),
        "marginals": lambda ns, x: ns.PlackettLuce(x).marginals(),
        "prob_before": lambda ns, x: ns.PlackettLuce(x).prob_before(),
        "entropy of subsets": lambda ns, x: ns.KSubset(x, 2).entropy(),
        "marginals of subsets": lambda ns, x: ns.KSubset(x, 4).marginals(),
        "divergence of subsets": lambda ns, x: ns.KSubset(x, 2).kl_divergence(ns.KSubset(2 * x, 2)),
        "subsets": lambda ns, x: ns.KSubset(x, 3).log_prob(ns.KSubset(of(ns, -SCORES), 3).mode),
        "no subset": lambda ns, x: ns.KSubset(x, 0).marginals() + ns.KSubset(x, 6).marginals(),
        "divergence": lambda ns, x: ns.PlackettLuce(x).kl_divergence(ns.PlackettLuce(2 * x)),
        "exact_expectation": lambda ns, x: ns.estimators.exact_expectation(
            lambda P: P.sort(of(ns, SCORES))[..., 0] ** 2, x
        ),
    },
    "metrics": {
        "ndcg": lambda ns, x: ns.metrics.ndcg(x, of(ns, RELEVANCE), k=4, reduction="none"),
        "mrr": lambda ns, x: ns.metrics.mean_reciprocal_rank(x, of(ns, RELEVANCE > 2)),
        "average_precision": lambda ns, x: ns.metrics.average_precision(x, of(ns, RELEVANCE > 1)),
        "precision_at_k": lambda ns, x: ns.metrics.precision_at_k(
            x.round(), of(ns, RELEVANCE > 1), k=(1, 2, 9)
        ),
        "recall_at_k": lambda ns, x: ns.metrics.recall_at_k(
            x.round(), of(ns, RELEVANCE > 1), k=2, reduction="none"
        ),
        "reciprocal_rank": lambda ns, x: ns.metrics.reciprocal_rank(
            x, of(ns, RELEVANCE > 1), k=(1, 3), reduction="none"
        ),
        "ranking_from": lambda ns, x: 1.0 * ns.ranking_from(of(ns, RELEVANCE)),
        "spearman": lambda ns, x: ns.metrics.spearman(x, of(ns, RELEVANCE), reduction="none"),
        "kendall_tau": lambda ns, x: ns.metrics.kendall_tau(x, of(ns, RELEVANCE), reduction="none"),
        "exact_match": lambda ns, x: ns.metrics.exact_match(
            ns.neuralsort(x).permutation(), of(ns, TARGET)
        ),
        "element_wise": lambda ns, x: ns.metrics.element_wise(
            ns.neuralsort(x).permutation(), of(ns, TARGET)
        ),
    },
    "masked metrics": {
        "ndcg": lambda ns, x: ns.metrics.ndcg(x, of(ns, RELEVANCE), **masked(ns)),
        "mrr": lambda ns, x: ns.metrics.mean_reciprocal_rank(
            x, of(ns, RELEVANCE > 2), **masked(ns)
        ),
        "average_precision": lambda ns, x: ns.metrics.average_precision(
            x, of(ns, RELEVANCE > 1), k=(1, 4), **masked(ns)
        ),
        "precision_at_k": lambda ns, x: ns.metrics.precision_at_k(
            x, of(ns, RELEVANCE > 1), k=(1, 4), **masked(ns)
        ),
        "recall_at_k": lambda ns, x: ns.metrics.recall_at_k(
            x, of(ns, RELEVANCE > 1), k=(1, 4), **masked(ns)
        ),
        "ranking_from": lambda ns, x: 1.0 * ns.ranking_from(of(ns, RELEVANCE), of(ns, MASK)),
        "spearman": lambda ns, x: ns.metrics.spearman(x, of(ns, RELEVANCE), **masked(ns)),
        "kendall_tau": lambda ns, x: ns.metrics.kendall_tau(x, of(ns, RELEVANCE), **masked(ns)),
        "exact_match": lambda ns, x: ns.metrics.exact_match(
            ns.neuralsort(x, mask=of(ns, MASK)).permutation(), of(ns, TARGET), **masked(ns)
        ),
        "element_wise": lambda ns, x: ns.metrics.element_wise(
            ns.neuralsort(x, mask=of(ns, MASK)).permutation(), of(ns, TARGET), **masked(ns)
        ),
    },
}
"""What JAX must compute as PyTorch does: each group is one compiled program."""

SAMPLERS = {
    "RelaxedPlackettLuce",
    "fenchel_young_loss",
    "gumbel_sinkhorn",
    "stochastic_neuralsort",
}
"""Random: the tests of each framework compare them with their distribution."""


def test_every_function_has_a_row():
    rows = (row for group in FUNCTIONS.values() for row in (*group.values(), hard))
    used = {name for row in rows for name in row.__code__.co_names}
    assert set(nj.__all__) - used == SAMPLERS


def torch_value_and_gradient(function: Callable[[Any, Any], Any], scores: np.ndarray):
    """Computed in float64, with an upstream gradient of random numbers."""
    x = torch.tensor(scores, dtype=torch.float64, requires_grad=True)
    value = function(nt, x)
    upstream = np.random.default_rng(4).normal(size=tuple(value.shape))
    gradient = np.zeros_like(scores)
    if value.requires_grad:
        gradient = torch.autograd.grad((value * torch.tensor(upstream)).sum(), x)[0]
    return value, numpy_of(gradient), upstream


IN_FLOAT32 = ("operators", "losses", "ranking losses")
"""Compositions of many steps: what rounding does to them, at the tolerance below."""
RUNS = [(group, "float64") for group in FUNCTIONS] + [
    pytest.param(group, "float32", marks=pytest.mark.long)  # laws in float32: `test_parity_laws.py`
    for group in IN_FLOAT32
]


@pytest.mark.parametrize(("group", "dtype"), RUNS, indirect=["dtype"])
def test_jax_gives_the_values_and_gradients_of_torch(group, dtype):
    scores = SCORES.astype(dtype)
    theirs = {n: torch_value_and_gradient(f, scores) for n, f in FUNCTIONS[group].items()}

    @quick_jit
    def ours(x):
        def one(function, upstream):
            def loss(x):
                value = function(nj, x)
                return (value * jnp.asarray(upstream)).sum(), value

            return jax.grad(loss, has_aux=True)(x)

        return {n: one(f, theirs[n][-1]) for n, f in FUNCTIONS[group].items()}

    for name, (grad, value) in ours(jnp.asarray(scores)).items():
        wanted, gradient, _ = theirs[name]
        # A few operations follow the weights; shares of lists are in torch's default dtype.
        tolerance = 4 * max(TOLERANCE[dtype], 0.0 if wanted.dtype is torch.float64 else 1e-7)
        assert_same(numpy_of(value), numpy_of(wanted), tolerance, name)
        assert_same(numpy_of(grad), gradient, 4 * tolerance, f"gradient of {name}")
