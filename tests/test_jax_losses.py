"""Losses, metrics and operators in JAX at their edges: indices, integers, infinities, options.

Values that cannot be read while tracing give NaN where an error would have been raised.
"""

import functools

import numpy as np
import pytest

jax = pytest.importorskip("jax")

import jax.numpy as jnp  # noqa: E402

import neuralsort.jax as ns  # noqa: E402
from tests.portions import some_of  # noqa: E402

INF, NAN = float("inf"), float("nan")
SCORES = jnp.array([0.3, -1.0, 2.0, 0.5])

# -- indices and quantiles -------------------------------------------------------------------------

OUT_OF_RANGE = {
    "label": (lambda y: ns.topk_cross_entropy(SCORES[None], y, k=1, tau=1.0), [9]),
    "ignored label": (lambda y: ns.topk_cross_entropy(SCORES[None], y, k=1, tau=1.0), [-100]),
    "log_prob": (lambda z: ns.neuralsort(SCORES).log_prob(z)[-1], [0, 1, 2, 9]),
    "target": (lambda z: ns.permutation_cross_entropy(ns.neuralsort(SCORES), z), [0, 1, 2, 7]),
    "negative": (lambda z: ns.permutation_cross_entropy(ns.neuralsort(SCORES), z), [0, 1, 2, -1]),
    "ranking": (lambda z: ns.plackett_luce_nll(SCORES, z), [0, 1, 2, 4]),
    "from the end": (lambda z: ns.plackett_luce_nll(SCORES, z), [-1, 0, 1, 2]),
    "twice": (lambda z: ns.plackett_luce_nll(SCORES, z), [3, 1, 1]),
    "low quantile": (lambda q: ns.soft_quantile(SCORES, q), -0.5),
    "no quantile": (lambda q: ns.soft_quantile(SCORES, q), NAN),
}


@pytest.mark.parametrize("name", OUT_OF_RANGE)
def test_values_out_of_range_raise_and_give_nan_when_traced(name):
    function, value = OUT_OF_RANGE[name]
    with pytest.raises(ValueError, match=r"from 0 to 3|lie in \[0, 1\]"):
        function(jnp.array(value))
    assert np.isnan(jax.jit(function)(jnp.array(value)))


def test_places_behind_the_mask_may_hold_anything():
    mask = jnp.array([True, False, True, True])
    P = ns.neuralsort(SCORES, mask=mask)
    wanted = ns.permutation_cross_entropy(P, jnp.array([2, 3, 0, 1]), mask=mask)
    assert ns.permutation_cross_entropy(P, jnp.array([2, 3, 0, -100]), mask=mask) == wanted


# -- targets ---------------------------------------------------------------------------------------


def test_large_integers_are_ranked_as_integers():
    x, target = jnp.array([0.1, 0.2, 0.4, 0.3]), 1_700_000_000 + jnp.arange(4)
    small = jnp.arange(4)
    for metric in (ns.metrics.spearman, ns.metrics.kendall_tau):
        assert metric(x, target) == metric(x, small)
        assert metric(x, target.astype(jnp.uint32)) == metric(x, small)
    assert ns.spearman_loss(x, target, tau=0.1) == ns.spearman_loss(x, small, tau=0.1)


def test_unknown_targets_spoil_their_list():
    x, target = jnp.stack([SCORES, SCORES]), jnp.array([[1.0, NAN, 2.0, 3.0], [1.0, 0.0, 2.0, 3.0]])
    there = ~jnp.isnan(target)

    @jax.jit
    def ask(x, target):
        losses = (ns.kendall_loss, ns.ranknet_loss, ns.spearman_loss)
        asked = [functools.partial(loss, tau=1.0) for loss in losses]
        asked += [ns.metrics.kendall_tau, ns.metrics.spearman]
        return [(f(x, target, reduction="none"), f(x, target, mask=there)) for f in asked]

    for value, masked in ask(x, target):
        np.testing.assert_array_equal(np.isnan(value), [True, False])
        assert np.isfinite(masked)


def test_relevance_may_be_large():
    """Gains of 2^200 and 2^198 are to each other as those of 2^40 and 2^38."""
    large, small = jnp.array([198, 0, 0, 200]), jnp.array([38, 0, 0, 40])
    for value in (
        lambda r: ns.metrics.ndcg(SCORES, r),
        lambda r: ns.neural_ndcg(SCORES, r, tau=0.1),
        lambda r: ns.approx_ndcg(SCORES, r, tau=0.1),
    ):
        np.testing.assert_allclose(value(large), value(small), rtol=1e-6)
    assert np.isnan(ns.neural_ndcg(SCORES, jnp.array([INF, 0.0, 1.0, 2.0]), tau=0.1))


@pytest.mark.parametrize("loss", [ns.approx_ndcg, ns.kendall_loss, ns.ranknet_loss])
def test_infinite_scores_are_far_from_all_others(loss):
    relevance = jnp.array([1, 0, 2, 0])

    def value(x, tau):
        return loss(x, relevance, tau=tau)

    gradient = jax.jit(jax.value_and_grad(value, argnums=(0, 1)))
    found, (to_x, to_tau) = gradient(jnp.array([1.0, -INF, 2.0, -INF]), jnp.array(1.0))
    wanted, (near_x, near_tau) = gradient(jnp.array([1.0, -1e6, 2.0, -1e6]), jnp.array(1.0))
    np.testing.assert_allclose(found, wanted, rtol=1e-6)
    np.testing.assert_allclose(to_x, near_x, atol=1e-6)
    np.testing.assert_allclose(to_tau, near_tau, atol=1e-6)
    tied, _ = gradient(jnp.ones(4), jnp.array(1.0))[1]
    assert np.abs(tied[2]) > 1e-3


def test_costs_are_floating_point():
    with pytest.raises(TypeError, match=r"`cost` expects a floating-point array, got int32"):
        ns.score_function_loss(SCORES, jnp.arange(4))


# -- options ---------------------------------------------------------------------------------------

STATIC = {
    "k": lambda k: ns.neuralsort(SCORES).top(k).to_dense(),
    "samples": lambda s: ns.stochastic_neuralsort(SCORES, samples=s, key=jax.random.key(0)).rank(),
    "bandwidth": lambda b: ns.neuralsort(SCORES, bandwidth=b).rank(),
    "descending": lambda d: ns.soft_sort(SCORES, descending=d),
    "largest": lambda d: ns.soft_topk(SCORES, 2, largest=d).values,
    "power": lambda p: ns.softsort(SCORES, power=p).rank(),
    "iterations": lambda i: ns.sinkhorn_sort(SCORES, iterations=i).rank(),
    "strength": lambda s: ns.fast_soft_rank(SCORES, strength=s),
}


@pytest.mark.parametrize("name", STATIC)
def test_traced_options_are_told_to_be_static(name):
    with pytest.raises(TypeError, match=rf'`{name}` must be known .* static_argnames="{name}"'):
        jax.jit(STATIC[name])(2)


def test_a_label_that_the_mask_rules_out_costs_infinity_without_gradient():
    logits, mask = jnp.array([[1.0, 2.0, 3.0], [1.0, 2.0, 3.0]]), jnp.array([True, True, False])

    def loss(logits):
        labels = jnp.array([2, 1])
        each = ns.topk_cross_entropy(
            logits, labels, k={1: 0.5, 2: 0.5}, tau=1.0, mask=mask, reduction="none"
        )
        return each.sum(), each

    to_logits, each = jax.grad(loss, has_aux=True)(logits)
    assert np.isinf(each[0])
    assert np.isfinite(each[1])
    np.testing.assert_array_equal(to_logits[0], 0)
    assert np.isfinite(to_logits[1]).all()
    assert np.abs(to_logits[1]).max() > 0


@pytest.mark.parametrize("weight", [0.0, 1e-45, 1e-39])
def test_weights_too_small_to_divide_by_have_no_gradient(weight):
    matrix = jnp.array([[1.0, weight], [0.25, 0.75]], jnp.float32)

    def loss(matrix):
        return ns.RelaxedPermutation.from_dense(matrix).log_prob(jnp.array([1, 1])).sum()

    np.testing.assert_allclose(jax.grad(loss)(matrix), [[0, 0], [0, 1 / 0.75]], rtol=1e-6)


@pytest.mark.parametrize("dtype", [jnp.float16, jnp.bfloat16])
def test_losses_of_half_precision_are_float32_and_do_not_overflow(dtype):
    def cross_entropy(s):
        return ns.permutation_cross_entropy(ns.neuralsort(s), jnp.arange(1000))

    scores = jnp.linspace(0, 100, 1000).astype(dtype)
    value, to_scores = jax.jit(jax.value_and_grad(cross_entropy))(scores)
    assert value.dtype == jnp.float32
    assert 3e4 < value < 1e6
    assert to_scores.dtype == dtype

    def losses(short, other):
        return (
            ns.knn_loss(ns.neuralsort(short), other > 0, k=2),
            ns.topk_cross_entropy(short, jnp.array(1), k=2, tau=1.0),
            ns.plackett_luce_nll(short, other),
            ns.neural_ndcg(short, other, tau=1.0),
            ns.approx_ndcg(short, other, tau=1.0),
            ns.spearman_loss(short, other, tau=1.0),
            ns.kendall_loss(short, other, tau=1.0),
            ns.ranknet_loss(short, other),
        )

    shapes = jax.eval_shape(losses, jnp.array([1.0, 3.0, 2.0], dtype), jnp.array([0, 2, 1]))
    assert {loss.dtype for loss in shapes} == {jnp.dtype("float32")}


def every_function(s):
    """Sorts, ranks, networks, projections and losses, all in one program."""
    order = jnp.arange(5)
    return {
        "neuralsort": ns.neuralsort(s).sort(s),
        "softsort, masked": ns.softsort(s, mask=s > 0).rank(),
        "network, masked": ns.sorting_network(s, kind="bitonic", mask=s > 0).sort(s),
        "sinkhorn_sort": ns.sinkhorn_sort(s, iterations=3).sort(s),
        "soft_topk": ns.soft_topk(s, 2).values,
        "soft_sort_by, masked": ns.soft_sort_by(s, s, mask=s > 0),
        "fast_soft_sort": ns.fast_soft_sort(s),
        "log_prob": ns.neuralsort(s).log_prob(order),
        "cross-entropy": ns.permutation_cross_entropy(ns.neuralsort(s), order, reduction="none"),
        "nll": ns.plackett_luce_nll(s, order, reduction="none"),
    }


@pytest.mark.parametrize("lists", some_of([2, 1, 3], 2))
def test_functions_are_exported_for_any_number_of_lists(lists):
    (batch,) = jax.export.symbolic_shape("batch")
    spec = jax.ShapeDtypeStruct((batch, 5), jnp.float32)
    exported = jax.export.export(jax.jit(every_function))(spec)
    scores = jnp.asarray(np.random.default_rng(1).normal(size=(3, 5)), jnp.float32)
    wanted = jax.jit(every_function)(scores)
    found = exported.call(scores[:lists])
    for name, value in wanted.items():
        close = {"rtol": 1e-5, "atol": 1e-6, "err_msg": name}
        np.testing.assert_allclose(found[name], value[:lists], **close)
