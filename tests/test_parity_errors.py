"""PyTorch, JAX and TensorFlow: the same mistakes give the same errors."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from tests.frameworks import MAKERS, PACKAGES, jax, nj, tf

ERRORS: dict[str, tuple[type[Exception], str, Callable[[Any, Any], Any]]] = {
    "integers": (TypeError, "floating-point", lambda ns, a: ns.neuralsort(a([1, 2, 3]))),
    "text": (TypeError, "`neuralsort\\(scores\\)` expects", lambda ns, a: ns.neuralsort("12")),
    "0-d": (ValueError, "at least one dimension", lambda ns, a: ns.neuralsort(a(1.0))),
    "tau": (ValueError, "not negative", lambda ns, a: ns.neuralsort(a([1.0]), tau=-1.0)),
    "tau text": (TypeError, "`tau` expects", lambda ns, a: ns.neuralsort(a([1.0]), tau="1")),
    "tau shape": (
        ValueError,
        "one temperature per list",
        lambda ns, a: ns.neuralsort(a([[1.0, 2.0]]), tau=a([1.0, 2.0])),
    ),
    "mask": (TypeError, "boolean", lambda ns, a: ns.neuralsort(a([1.0, 2.0]), mask=a([1.0, 1.0]))),
    "mask shape": (
        ValueError,
        "shape of the scores",
        lambda ns, a: ns.neuralsort(a([1.0, 2.0]), mask=a([True, True, False])),
    ),
    "samples": (
        ValueError,
        "at least 1",
        lambda ns, a: ns.stochastic_neuralsort(a([1.0]), samples=0, **randomness(ns)),
    ),
    "ranking": (
        TypeError,
        "integer item indices",
        lambda ns, a: ns.PlackettLuce(a([1.0, 2.0])).log_prob(a([1.0, 0.0])),
    ),
    "batch of rankings": (
        ValueError,
        "broadcasts against",
        lambda ns, a: ns.PlackettLuce(a([[1.0, 2.0]] * 2)).log_prob(a([[1, 0]] * 3)),
    ),
    "long ranking": (
        ValueError,
        "at most k = 2",
        lambda ns, a: ns.PlackettLuce(a([1.0, 2.0])).log_prob(a([1, 0, 1])),
    ),
    "sample shape": (
        TypeError,
        r"`sample_shape` expects a tuple.*got 3.*write \(3,\)",
        lambda ns, a: draws(ns, ns.PlackettLuce(a([1.0, 2.0])), 3),
    ),
    "negative sample shape": (
        ValueError,
        r"`sample_shape` must not be negative, got \(-1,\).*write \(3,\)",
        lambda ns, a: draws(ns, ns.PlackettLuce(a([1.0, 2.0])), (-1,)),
    ),
    "repeated item": (
        ValueError,
        "distinct items, from 0 to 1",
        lambda ns, a: checked(ns, a([1.0, 2.0])).log_prob(a([1, 1])),
    ),
    "straight": (
        ValueError,
        "two .* of one shape",
        lambda ns, a: ns.straight_through(a([1.0]), a([1.0, 2.0])),
    ),
}

WITHOUT_TENSORFLOW: dict[str, tuple[type[Exception], str, Callable[[Any, Any], Any]]] = {
    "k of a gate": (
        TypeError,
        "`k` expects whole numbers",
        lambda ns, a: ns.soft_topk_mask(a([1.0, 2.0]), a(1.0)),
    ),
    "k per list": (
        ValueError,
        "Leave the dimension of the lists out",
        lambda ns, a: ns.soft_topk_mask(a([[1.0, 2.0]] * 2), a([[1], [1]])),
    ),
    "k beyond a list": (
        ValueError,
        "the length of the list, 2, got 3",
        lambda ns, a: ns.soft_topk_mask(a([[1.0, 2.0]] * 2), a([1, 3])),
    ),
    "memberships": (
        TypeError,
        "must give what has memberships",
        lambda ns, a: ns.soft_topk_mask(a([1.0, 2.0]), 1, relax=ns.soft_rank),
    ),
    "two names": (
        ValueError,
        "two names of one thing",
        lambda ns, a: ns.fast_soft_rank(a([1.0]), tau=1.0, strength=1.0),
    ),
    "rank": (
        TypeError,
        "`rank` expects a function",
        lambda ns, a: ns.spearman_loss(a([1.0]), a([1.0]), tau=1.0, rank="fast"),
    ),
    "ranks": (
        ValueError,
        "one rank per item",
        lambda ns, a: ns.spearman_loss(a([1.0]), a([1.0]), tau=1.0, rank=ns.soft_median),
    ),
    "alpha": (ValueError, "share of errors", lambda ns, a: ns.conformal_quantile(a([1.0]), 90)),
    "no scores": (
        ValueError,
        "at least one item",
        lambda ns, a: ns.conformal_quantile(a([[1.0]])[:, :0], 0.1),
    ),
    "groups": (
        TypeError,
        "one integer per row",
        lambda ns, a: ns.pad_groups(a([1.0]), a([1.0])),
    ),
    "rows and groups": (
        ValueError,
        "one group per row",
        lambda ns, a: ns.pad_groups(a([1.0]), a([1, 2])),
    ),
    "lists of groups": (
        ValueError,
        "the lists that these groups make",
        lambda ns, a: ns.unpad_groups(a([[1.0]]), a([[True]]), a([1, 2])),
    ),
    "mask of groups": (
        TypeError,
        "`mask` expects a boolean",
        lambda ns, a: ns.unpad_groups(a([[1.0]]), a([[1]]), a([1])),
    ),
    "two models": (
        ValueError,
        "Score the same responses with both models",
        lambda ns, a: ns.listwise_dpo_loss(a([1.0, 2.0]), a([1.0]), a([1, 0])),
    ),
    "beta": (
        ValueError,
        "`beta` must be positive",
        lambda ns, a: ns.listwise_dpo_loss(a([1.0]), a([1.0]), a([0]), beta=0.0),
    ),
    "ties": (
        TypeError,
        "`ties` expects booleans",
        lambda ns, a: ns.listwise_dpo_loss(a([1.0]), a([1.0]), a([0]), ties=a([0])),
    ),
    "shape of ties": (
        ValueError,
        "one flag per place",
        lambda ns, a: ns.listwise_dpo_loss(a([1.0]), a([1.0]), a([0]), ties=a([True, False])),
    ),
    "list": (TypeError, "got list", lambda ns, a: ns.neuralsort([1.0, 2.0])),
    "power type": (TypeError, "`power` expects", lambda ns, a: ns.softsort(a([1.0]), power=a(1.0))),
    "no permutation": (
        TypeError,
        "expects a RelaxedPermutation, got PlackettLuce",
        lambda ns, a: ns.knn_loss(ns.PlackettLuce(a([1.0])), a([True]), k=1),
    ),
    "labels for flags": (
        TypeError,
        r"booleans, or weights.*labels ==",
        lambda ns, a: ns.knn_loss(ns.neuralsort(a([1.0, 2.0])), a([3, 4]), k=1),
    ),
    "values for other lists": (
        ValueError,
        r"`P.sort\(x\)` expects a batch that broadcasts against \(2,\).*got \(3,\)\. Give",
        lambda ns, a: ns.neuralsort(a([[1.0, 2.0]] * 2)).sort(a([[1.0, 2.0]] * 3)),
    ),
    "an order of other lists": (
        ValueError,
        r"`log_prob` expects a batch that broadcasts against \(2,\).*got \(3,\)\. Give",
        lambda ns, a: ns.neuralsort(a([[1.0, 2.0]] * 2)).log_prob(a([[1, 0]] * 3)),
    ),
    "an item out of range": (
        ValueError,
        r"`log_prob` expects indices from 0 to 1, got 2\. Count from 0",
        lambda ns, a: ns.neuralsort(a([1.0, 2.0])).log_prob(a([2, 0])),
    ),
    "an item below the range": (
        ValueError,
        r"cross_entropy\(target\)` expects indices from 0 to 1, got -1\. Count",
        lambda ns, a: ns.permutation_cross_entropy(ns.neuralsort(a([1.0, 2.0])), a([-1, 0])),
    ),
    "a place out of range that counts": (
        ValueError,
        r"cross_entropy\(target\)` expects indices from 0 to 2, got 7",
        lambda ns, a: ns.permutation_cross_entropy(
            ns.neuralsort(a([1.0, 2.0, 3.0]), mask=a([True, False, True])),
            a([7, 0, 9]),
            mask=a([True, False, True]),
        ),
    ),
    "a label out of range": (
        ValueError,
        r"`labels` expects indices from 0 to 1, got 5",
        lambda ns, a: ns.topk_cross_entropy(a([[1.0, 2.0]]), a([5]), k=1, tau=1.0),
    ),
    "a ranking out of range": (
        ValueError,
        r"`ranking` must list distinct items, from 0 to 1",
        lambda ns, a: ns.plackett_luce_nll(a([1.0, 2.0]), a([2, 0])),
    ),
    "a ranking that repeats": (
        ValueError,
        r"`ranking` must list distinct items, from 0 to 1",
        lambda ns, a: ns.plackett_luce_nll(a([1.0, 2.0]), a([1, 1])),
    ),
    "quantile of a tensor": (
        ValueError,
        r"`q` must lie in \[0, 1\], got .*1\.5.*median",
        lambda ns, a: ns.soft_quantile(a([1.0, 2.0]), a(1.5)),
    ),
    "quantile of text": (
        TypeError,
        r"`q` expects a number in \[0, 1\].*got 'a'.*median",
        lambda ns, a: ns.soft_quantile(a([1.0, 2.0]), "a"),
    ),
    "relax without a temperature": (
        TypeError,
        r"`relax` expects a function that takes `tau=`, got <lambda>.*neuralsort",
        lambda ns, a: ns.soft_rank(a([1.0, 2.0]), relax=lambda scores: scores),
    ),
    "relax of values": (
        TypeError,
        r"`relax\(scores\)` expects a RelaxedPermutation, got .*neuralsort",
        lambda ns, a: ns.soft_rank(a([1.0, 2.0]), relax=ns.fast_soft_sort),
    ),
    "relax without a mask": (
        TypeError,
        r"`relax` expects a function that takes `mask=`, got <lambda>.*Lists with a mask",
        lambda ns, a: ns.soft_rank(
            a([1.0, 2.0]),
            mask=a([True, False]),
            relax=lambda s, *, tau: ns.neuralsort(s, tau=tau),
        ),
    ),
    "relax that returns values": (
        TypeError,
        r"`relax\(scores\)` expects a RelaxedPermutation, got ",
        lambda ns, a: ns.soft_rank(a([1.0, 2.0]), relax=lambda s, *, tau: s),
    ),
    "a list of kinds": (
        ValueError,
        r"`kind` must be 'odd_even' or 'bitonic', got \['bitonic'\]",
        lambda ns, a: ns.sorting_network(a([1.0, 2.0]), kind=["bitonic"]),
    ),
    "strength of text": (
        TypeError,
        r"`strength` expects a number, got str",
        lambda ns, a: ns.estimators.rebar_expectation(
            lambda P: P.rank()[..., 0],
            a([1.0, 2.0]),
            tau=1.0,
            samples=3,
            strength="a",
            **randomness(ns),
        ),
    ),
    "strength without end": (
        ValueError,
        r"`strength` must be finite, got inf.*0",
        lambda ns, a: ns.estimators.rebar_expectation(
            lambda P: P.rank()[..., 0],
            a([1.0, 2.0]),
            tau=1.0,
            samples=3,
            strength=float("inf"),
            **randomness(ns),
        ),
    ),
    "power": (ValueError, "must be 1 or 2", lambda ns, a: ns.softsort(a([1.0]), power=3)),
    "payload": (ValueError, "2 items", lambda ns, a: ns.neuralsort(a([1.0, 2.0])) @ a([1.0] * 3)),
    "payload type": (TypeError, "floating", lambda ns, a: ns.neuralsort(a([1.0, 2.0])) @ a([1, 2])),
    "k": (ValueError, "between 0", lambda ns, a: ns.soft_topk(a([1.0, 2.0]), 3)),
    "dim": (ValueError, "`dim` must be", lambda ns, a: ns.soft_sort(a([1.0, 2.0]), dim=1)),
    "q": (ValueError, "lie in", lambda ns, a: ns.soft_quantile(a([1.0, 2.0]), 1.5)),
    "relax": (TypeError, "function", lambda ns, a: ns.soft_sort(a([1.0]), relax="softsort")),
    "rank of top": (
        ValueError,
        "all 2 rows",
        lambda ns, a: ns.neuralsort(a([1.0, 2.0])).top(1).rank(),
    ),
    "square": (
        ValueError,
        "square",
        lambda ns, a: ns.RelaxedPermutation.from_dense(a([[1.0, 0.0]])),
    ),
    "logits": (ValueError, "square", lambda ns, a: ns.sinkhorn(a([1.0, 2.0]))),
    "iterations": (
        ValueError,
        "not be negative",
        lambda ns, a: ns.sinkhorn_sort(a([1.0, 2.0]), iterations=-1),
    ),
    "kind": (ValueError, "`kind` must be", lambda ns, a: ns.sorting_network(a([1.0]), kind="1")),
    "swap": (ValueError, "`swap` must be", lambda ns, a: ns.sorting_network(a([1.0]), swap="1")),
    "strength": (ValueError, "negative", lambda ns, a: ns.fast_soft_sort(a([1.0]), strength=-1)),
    "strength text": (
        TypeError,
        "`strength` expects",
        lambda ns, a: ns.fast_soft_rank(a([1.0]), strength="1"),
    ),
    "regularization": (
        ValueError,
        "`regularization` must be",
        lambda ns, a: ns.fast_soft_rank(a([1.0]), regularization="l1"),
    ),
    "reduction": (
        ValueError,
        "reduction",
        lambda ns, a: ns.ranknet_loss(a([1.0]), a([1.0]), reduction="max"),
    ),
    "key values": (
        ValueError,
        "key.shape",
        lambda ns, a: ns.soft_sort_by(a([1.0, 2.0]), a([1.0, 2.0, 3.0])),
    ),
    "enumeration": (
        ValueError,
        "at most 8",
        lambda ns, a: ns.PlackettLuce(a([1.0] * 9)).enumerate_support(),
    ),
    "baseline": (
        ValueError,
        "leave_one_out",
        lambda ns, a: ns.score_function_loss(a([1.0]), a([1.0]), baseline="mean"),
    ),
    "subset size": (ValueError, "between 0", lambda ns, a: ns.KSubset(a([1.0, 2.0]), 3)),
    "subset flags": (
        TypeError,
        "`value` expects a boolean",
        lambda ns, a: ns.KSubset(a([1.0, 2.0]), 1).log_prob(a([1, 0])),
    ),
    "subset shape": (
        ValueError,
        r"broadcasts against \(2,\), got \(3,\)",
        lambda ns, a: ns.KSubset(a([1.0, 2.0]), 1).log_prob(a([True, False, False])),
    ),
    "subsets of other sizes": (
        ValueError,
        "1 of 2 and 2 of 2 items",
        lambda ns, a: ns.KSubset(a([1.0, 2.0]), 1).kl_divergence(ns.KSubset(a([1.0, 2.0]), 2)),
    ),
    "many subsets": (
        ValueError,
        "at most 100,000 subsets",
        lambda ns, a: ns.KSubset(a([1.0] * 40), 20).enumerate_support(),
    ),
    "sigma": (
        ValueError,
        "`sigma` must be a positive number, got 0",
        lambda ns, a: ns.estimators.perturbed(
            lambda s: s, a([1.0, 2.0]), sigma=0, samples=2, **randomness(ns)
        ),
    ),
    "function without samples": (
        ValueError,
        r"begins with \(3,\), got \(2,\)",
        lambda ns, a: ns.estimators.perturbed(
            lambda s: s[0], a([1.0, 2.0]), sigma=1.0, samples=3, **randomness(ns)
        ),
    ),
    "answers": (
        ValueError,
        r"`function` must answer with one number per item, shape \(3, 2\), got \(3,\)",
        lambda ns, a: ns.fenchel_young_loss(
            a([1.0, 2.0]),
            a([0, 1]),
            function=lambda s: s[..., 0],
            sigma=1.0,
            samples=3,
            **randomness(ns),
        ),
    ),
    "cutoff": (
        ValueError,
        "`k` must be at least 1, got 0",
        lambda ns, a: ns.metrics.recall_at_k(a([1.0, 2.0]), a([0, 1]), k=(1, 0)),
    ),
    "cutoff text": (
        TypeError,
        "`k` expects an int or a sequence of them, got str",
        lambda ns, a: ns.metrics.precision_at_k(a([1.0, 2.0]), a([0, 1]), k="1"),
    ),
    "no cutoff": (
        ValueError,
        "at least one cutoff",
        lambda ns, a: ns.metrics.precision_at_k(a([1.0, 2.0]), a([0, 1]), k=()),
    ),
    "rank_tau": (
        ValueError,
        "`rank_tau` must be a positive number, got 0",
        lambda ns, a: ns.recall_at_k_loss(a([1.0, 2.0]), a([0, 1]), k=1, tau=1.0, rank_tau=0),
    ),
    "ranking of a number": (
        ValueError,
        r"`ranking_from\(relevance\)` expects at least one dimension",
        lambda ns, a: ns.ranking_from(a(1.0)),
    ),
    "ranking of a list": (
        TypeError,
        r"`ranking_from\(relevance\)` expects .* of real numbers, got list",
        lambda ns, a: ns.ranking_from([1.0]),
    ),
    "positive tau": (
        ValueError,
        "must be positive",
        lambda ns, a: ns.kendall_loss(a([1.0]), a([1.0]), tau=0),
    ),
    "log_prob": (
        ValueError,
        "one item per row",
        lambda ns, a: ns.neuralsort(a([1.0, 2.0])).log_prob(a([0])),
    ),
}


def randomness(ns: Any) -> dict[str, Any]:
    return {"key": jax.random.key(0)} if ns is nj else {}


def draws(ns: Any, model: Any, shape: Any) -> Any:
    """Samples, in the words of the package."""
    return model.sample(jax.random.key(0), shape) if ns is nj else model.sample(shape)


def checked(ns: Any, logits: Any) -> Any:
    """A distribution that looks at values, which JAX and TensorFlow always do."""
    return ns.PlackettLuce(logits, **({"validate_args": True} if ns is PACKAGES["torch"] else {}))


@pytest.mark.parametrize("room", PACKAGES)
def test_scores_of_eight_bits_are_refused(room):
    eight = {
        "torch": lambda: torch.ones(3).to(torch.float8_e4m3fn),
        "jax": lambda: jax.numpy.ones(3, jax.numpy.float8_e4m3fn),
        "tf": lambda: tf.cast(tf.ones(3), tf.dtypes.experimental.float8_e4m3fn),
    }[room]()
    with pytest.raises(TypeError, match=r"float16, bfloat16, float32 or float64, got .*float8"):
        PACKAGES[room].neuralsort(eight)


@pytest.mark.parametrize("room", PACKAGES)
@pytest.mark.parametrize("name", ERRORS)
def test_errors_are_the_same(name, room):
    kind, match, call = ERRORS[name]
    with pytest.raises(kind, match=match):
        call(PACKAGES[room], MAKERS[PACKAGES[room]])


@pytest.mark.parametrize("room", ["torch", "jax"])
@pytest.mark.parametrize("name", WITHOUT_TENSORFLOW)
def test_errors_of_torch_and_jax_are_the_same(name, room):
    kind, match, call = WITHOUT_TENSORFLOW[name]
    with pytest.raises(kind, match=match):
        call(PACKAGES[room], MAKERS[PACKAGES[room]])
