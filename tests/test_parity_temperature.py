"""Temperatures in JAX and TensorFlow: the same blurs, and NaN from negative ones."""

import numpy as np
import pytest
import torch

from neuralsort._blur import laplace
from tests.frameworks import jax, jnp, nj, nt, ntf, numpy_of, quick_jit, tf
from tests.methods import every_method
from tests.portions import some_of

RNG = np.random.default_rng(0)
SCORES = RNG.normal(size=(3, 8)).astype(np.float32) * np.array([[1], [0.01], [30]], np.float32)
MASK = np.arange(8) < np.array([[8], [5], [1]])
IN_JAX = [case for case in every_method() if case.values[0].relaxation_of(nj)]


@pytest.mark.parametrize("method", IN_JAX)
@pytest.mark.parametrize(
    ("ranks", "masked"),
    some_of([(2.0, True), (0.5, False), (0.5, True), (2.0, False)], (2.0, True)),
)
def test_a_blur_is_the_same_in_jax(method, ranks, masked):
    mask = MASK if masked else None
    relax = method.relaxation_of(nj)

    def weights(scores):
        return relax(scores, tau=nj.Blur(ranks), mask=mask).to_dense()

    there = None if mask is None else torch.tensor(mask)
    wanted = numpy_of(method.relax(torch.tensor(SCORES), tau=nt.Blur(ranks), mask=there).to_dense())
    tried = method.name.endswith("network")  # by a search, whose last step may fall elsewhere
    np.testing.assert_allclose(quick_jit(weights)(SCORES), wanted, atol=2e-3 if tried else 1e-5)


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("compiled", [False, True])
def test_a_blur_is_the_same_in_tensorflow(masked, compiled):
    mask = MASK if masked else None
    sort = lambda x: ntf.neuralsort(x, tau=ntf.Blur(1.5), mask=mask)  # noqa: E731
    there = None if mask is None else torch.tensor(mask)
    wanted = nt.neuralsort(torch.tensor(SCORES), tau=nt.Blur(1.5), mask=there).to_dense()
    found = (tf.function(sort) if compiled else sort)(tf.constant(SCORES))
    np.testing.assert_allclose(found, wanted, atol=1e-5)


def test_the_layer_is_saved_with_its_blur():
    layer = ntf.NeuralSort(tau=ntf.Blur(2.0))
    again = ntf.NeuralSort.from_config(layer.get_config())
    assert again.tau == ntf.Blur(2.0)
    np.testing.assert_array_equal(layer(SCORES), again(SCORES))


@pytest.mark.parametrize("name", ["sinkhorn", "gumbel_sinkhorn"])
def test_matrices_take_a_blur_in_jax(name):
    logits = -((np.arange(12) - np.arange(12)[:, None]) ** 2).astype(np.float32)
    options = {"key": jax.random.key(0)} if name == "gumbel_sinkhorn" else {}
    P = getattr(nj, name)(logits, tau=nj.Blur(1.0), iterations=0, **options)
    wanted = nt.neuralsort(torch.arange(12.0), tau=2.0).entropy().exp().mean()
    assert float(jnp.exp(P.entropy()).mean()) == pytest.approx(float(wanted), rel=0.02)


LOSSES = {
    "approx_ndcg": {},
    "kendall_loss": {},
    "lambda_loss": {},
    "listnet_loss": {},
    "neural_ndcg": {},
    "ranknet_loss": {},
    "recall_at_k_loss": {"k": 3},
    "smooth_ap_loss": {},
    "spearman_loss": {},
}


@pytest.mark.parametrize("name", LOSSES)
def test_losses_take_a_blur_in_jax(name):
    order = np.argsort(RNG.normal(size=(3, 8)), -1)
    order = order % 2 if name in ("recall_at_k_loss", "smooth_ap_loss") else order

    def loss(ns, scores, target):
        return getattr(ns, name)(scores, target, tau=ns.Blur(1.0), **LOSSES[name])

    wanted = loss(nt, torch.tensor(SCORES), torch.tensor(order)).item()
    found = quick_jit(lambda scores: loss(nj, scores, order))(SCORES)
    assert float(found) == pytest.approx(wanted, abs=1e-5)


def test_subsets_take_a_blur():
    """In both, the width of a Laplace curve in units of the gap, which NeuralSort's tau tells."""
    scores, ranks = SCORES[0], 1.5
    gap = float(nt.tau_for_blur(torch.tensor(scores), ranks=ranks)) / (2 * ranks**2)

    @quick_jit
    def both(scores, tau):
        model, key = nj.KSubset(scores, 3), jax.random.key(0)
        return [model.relaxed_sample(key, (4,), tau=tau) for tau in (nj.Blur(ranks), tau)]

    soft, wanted = both(scores, laplace(ranks) * gap)
    np.testing.assert_allclose(soft, wanted, atol=1e-5)

    def drawn(tau):
        generator = torch.Generator().manual_seed(0)
        options = {"tau": tau, "generator": generator}
        return nt.KSubset(torch.tensor(scores), 3).relaxed_sample((4,), **options)

    torch.testing.assert_close(drawn(nt.Blur(ranks)), drawn(laplace(ranks) * gap))


def test_an_error_free_network_takes_a_blur_in_jax():
    """Its values are hard at any temperature: what is soft is the gradient."""
    upstream = np.linspace(-1, 1, 8).astype(np.float32)
    options = {"swap": "error_free"}

    def loss(scores):
        P = nj.sorting_network(scores, tau=nj.Blur(2.0), **options)
        return (P.sort(scores) * upstream).sum()

    found = quick_jit(jax.value_and_grad(loss))(SCORES)
    scores = torch.tensor(SCORES, requires_grad=True)
    value = (
        nt.sorting_network(scores, tau=nt.Blur(2.0), **options).sort(scores)
        * torch.tensor(upstream)
    ).sum()
    (gradient,) = torch.autograd.grad(value, scores)
    assert float(found[0]) == pytest.approx(value.item(), rel=1e-5)
    np.testing.assert_allclose(found[1], gradient, atol=1e-2)  # by a search, as above


def test_no_gradient_flows_through_the_choice_of_a_blur_in_jax():
    def first(scores, tau):
        return nj.neuralsort(scores, tau=tau).sort(jnp.arange(8.0))[0]

    scores = jnp.asarray(SCORES[0])
    fixed = nj.tau_for_blur(scores, ranks=2.0)
    np.testing.assert_allclose(
        jax.grad(first)(scores, nj.Blur(2.0)), jax.grad(first)(scores, fixed), rtol=1e-5
    )


def test_a_blur_passes_through_transforms_of_jax():
    model = nj.RelaxedPlackettLuce(nj.Blur(1.0), SCORES)
    draw = jax.jit(lambda model, key: model.rsample(key, (2,)).to_dense())
    assert draw(model, jax.random.key(0)).shape == (2, 3, 8, 8)
    sort = jax.jit(lambda x, tau: nj.soft_sort(x, tau=tau))
    np.testing.assert_allclose(
        sort(SCORES, nj.Blur(1.0)), nj.soft_sort(jnp.asarray(SCORES), tau=nj.Blur(1.0)), rtol=1e-5
    )


TAU = np.array([[0.5], [-0.5], [2.0]], np.float32)


NAMES = {case.values[0].name: case.values[0] for case in IN_JAX}


@pytest.mark.parametrize(
    ("name", "n"),
    some_of(
        [(name, n) for name in NAMES for n in (1, 8)],
        *((name, 8) for name in ("neuralsort", "lapsum", "sinkhorn_sort")),
        ("softsort", 1),
    ),
)
def test_a_negative_array_is_refused_in_jax_and_nan_where_it_is_traced(name, n):
    relax = NAMES[name].relaxation_of(nj)
    for bad in (TAU, jnp.asarray(TAU), jnp.asarray(-1.0)):
        with pytest.raises(ValueError, match=r"tau.*negative.*array with -.*jnp\.exp"):
            relax(SCORES, tau=bad)

    def asked(scores, tau):
        P = relax(scores, tau=tau)
        order = jnp.broadcast_to(jnp.arange(scores.shape[-1]), scores.shape)
        return P.to_dense(), P.sort(scores), P.rank(), P.entropy(), P.log_prob(order)

    @quick_jit
    def program(scores, tau):
        each = jax.vmap(lambda scores, tau: relax(scores, tau=tau).sort(scores))
        return asked(scores, tau), each(scores, tau)

    scores = SCORES[:, :n]
    good, _ = program(scores, np.abs(TAU))
    found, each = program(scores, TAU)
    for one, other in zip(found, good, strict=True):
        assert np.isnan(one[1]).all()
        np.testing.assert_allclose(one[np.array([0, 2])], other[np.array([0, 2])], atol=1e-5)
        assert not np.isnan(other).any()
    assert np.isnan(each).all(-1).tolist() == [False, True, False]


@pytest.mark.parametrize("n", [1, 4])
def test_matrices_and_losses_are_spoilt_in_jax(n):
    logits = RNG.normal(size=(3, n, n)).astype(np.float32)
    with pytest.raises(ValueError, match=r"tau.*negative"):
        nj.sinkhorn(logits, tau=TAU)
    P = quick_jit(lambda x, tau: nj.sinkhorn(x, tau=tau).to_dense())(logits, TAU)
    assert np.isnan(P).all((-1, -2)).tolist() == [False, True, False]
    order = np.argsort(SCORES, -1)
    loss = quick_jit(lambda x, tau: nj.ranknet_loss(x, order, tau=tau, reduction="none"))
    assert np.isnan(loss(SCORES, TAU)).tolist() == [False, True, False]
    with pytest.raises(ValueError, match=r"tau.*positive.*got 0"):
        nj.ranknet_loss(SCORES, order, tau=jnp.zeros(()))


@pytest.mark.parametrize("n", [1, 8])
def test_a_negative_tensor_is_refused_in_tensorflow_and_nan_in_graphs(n):
    scores = tf.constant(SCORES[:, :n])
    with pytest.raises(ValueError, match=r"tau.*negative.*tensor with -0\.5.*tf\.exp"):
        ntf.neuralsort(scores, tau=TAU)
    graph = tf.function(lambda x, tau: ntf.neuralsort(x, tau=tau))
    found = graph(scores, tf.constant(TAU)).numpy()
    assert np.isnan(found).all((-1, -2)).tolist() == [False, True, False]
    assert np.isfinite(found[[0, 2]]).all()
