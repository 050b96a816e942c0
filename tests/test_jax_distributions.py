"""Plackett-Luce in JAX: densities, samples by an explicit key, and gradient estimators."""

import itertools

import numpy as np
import pytest

from tests import oracle

jax = pytest.importorskip("jax")

import jax.numpy as jnp  # noqa: E402

import neuralsort.jax as ns  # noqa: E402
from neuralsort.jax.noise import gumbel  # noqa: E402

LOGITS = [0.3, -0.7, 1.1, 0.0]
RANKINGS = list(itertools.permutations(range(4)))


def probabilities(logits=LOGITS):
    return np.exp([oracle.plackett_luce_log_prob(logits, z) for z in RANKINGS])


def frequencies(samples):
    """How often each ranking occurs, and the standard error of a fair sample."""
    samples = np.asarray(samples).reshape(-1, 4)
    code = samples @ 4 ** np.arange(4)
    found = np.array([(code == np.dot(z, 4 ** np.arange(4))).mean() for z in RANKINGS])
    p = probabilities()
    return found, p, np.sqrt(p * (1 - p) / len(samples))


def test_log_prob_is_the_oracle_s():
    model = ns.PlackettLuce(jnp.array(LOGITS))
    for places in (4, 2, 1, 0):
        rankings = jnp.array([z[:places] for z in RANKINGS], int).reshape(24, places)
        wanted = [oracle.plackett_luce_log_prob(LOGITS, z[:places]) for z in RANKINGS]
        np.testing.assert_allclose(model.log_prob(rankings), wanted, atol=2e-6)


def test_masked_log_prob_is_that_of_the_present_items():
    mask = jnp.array([True, False, True, True])
    model = ns.PlackettLuce(jnp.array(LOGITS).at[1].set(jnp.nan))
    present = [LOGITS[j] for j in (0, 2, 3)]
    wanted = oracle.plackett_luce_log_prob(present, [1, 0, 2])
    ranking = jnp.array([2, 0, 3, 7])
    np.testing.assert_allclose(model.log_prob(ranking, mask=mask), wanted, rtol=1e-6)
    grad = jax.grad(lambda x: ns.PlackettLuce(x).log_prob(ranking, mask=mask))(model.logits)
    assert jnp.isfinite(grad).all()
    assert grad[1] == 0


def test_samples_follow_the_distribution():
    model = ns.PlackettLuce(jnp.array(LOGITS))
    found, p, error = frequencies(model.sample(jax.random.key(0), (40_000,)))
    assert (np.abs(found - p) < 4.5 * error).all()


def test_every_list_and_sample_has_noise_of_its_own():
    model = ns.PlackettLuce(jnp.zeros((50, 6)))
    samples = model.sample(jax.random.key(0), (2,))
    assert samples.shape == (2, 50, 6)
    assert len(np.unique(np.asarray(samples).reshape(-1, 6), axis=0)) > 50
    np.testing.assert_array_equal(samples, model.sample(jax.random.key(0), (2,)))


def test_masked_samples_place_absent_items_last():
    mask = jnp.array([True, False, True, False])
    samples = ns.PlackettLuce(jnp.array(LOGITS)).sample(jax.random.key(0), (100,), mask=mask)
    np.testing.assert_array_equal(samples[:, 2:], [[1, 3]] * 100)


def test_noise_is_gumbel_and_fine_in_its_tail():
    from scipy.stats import gumbel_r, kstest

    noise = gumbel(jax.random.key(0), (200_000,), jnp.dtype(jnp.float32))
    assert jnp.isfinite(noise).all()
    assert kstest(np.asarray(noise), gumbel_r.cdf).pvalue > 1e-3
    largest = np.sort(np.asarray(noise))[-2000:]
    assert len(np.unique(largest)) > 1990  # coarse uniform numbers would tie here


def test_relaxed_samples_harden_to_plackett_luce():
    model = ns.RelaxedPlackettLuce(0.5, jnp.array(LOGITS))
    P = jax.jit(lambda key: model.rsample(key, (40_000,)))(jax.random.key(1))
    found, p, error = frequencies(P.permutation())
    assert (np.abs(found - p) < 4.5 * error).all()


def test_posterior_noise_sorts_into_its_ranking():
    model = ns.PlackettLuce(jnp.array(LOGITS))
    rankings = model.sample(jax.random.key(0), (1000,))
    perturbed = model.rsample_given(jax.random.key(1), rankings)
    np.testing.assert_array_equal(jnp.argsort(-perturbed, axis=-1), rankings)
    # Over all rankings, the posterior is the prior: Gumbel noise around the logits.
    mean = perturbed.mean(0) - jnp.array(LOGITS)
    np.testing.assert_allclose(mean, np.euler_gamma, atol=5 * np.pi / np.sqrt(6 * 1000))


def test_expectations_of_long_lists_are_estimated():
    logits = jnp.asarray(np.random.default_rng(0).normal(size=9), jnp.float32)
    model = ns.PlackettLuce(logits)
    estimate = model.entropy(samples=4000, key=jax.random.key(0))
    again = model.entropy(samples=4000, key=jax.random.key(1))
    assert 0 < abs(float(estimate - again)) < 0.2
    marginals = model.marginals(samples=500, key=jax.random.key(0))
    np.testing.assert_allclose(marginals.sum(-1), 1, rtol=1e-5)
    np.testing.assert_allclose(marginals.sum(-2), 1, rtol=1e-5)
    with pytest.raises(TypeError, match="random key"):
        model.entropy()


# -- estimators ------------------------------------------------------------------------------------

VALUE = jnp.array([1.0, -2.0, 0.5, 3.0])


def cost(P):
    return P.sort(VALUE)[..., 0] ** 2 + P.sort(VALUE)[..., 1]


def exact_gradient():
    loss = lambda x: ns.estimators.exact_expectation(cost, x)  # noqa: E731
    return jax.grad(loss)(jnp.array(LOGITS))


@pytest.mark.parametrize(
    ("name", "options"),
    [("score_function_expectation", {}), ("rebar_expectation", {"tau": 0.5})],
)
def test_unbiased_estimators_have_the_exact_mean(name, options):
    estimate = getattr(ns.estimators, name)
    logits = jnp.array(LOGITS)

    @jax.jit
    def gradients(keys):
        one = jax.grad(lambda x, k: estimate(cost, x, samples=8, key=k, **options))
        return jax.vmap(one, (None, 0))(logits, keys)

    draws = np.asarray(gradients(jax.random.split(jax.random.key(0), 4000)))
    error = draws.std(0) / np.sqrt(len(draws))
    assert (np.abs(draws.mean(0) - exact_gradient()) < 4.5 * error).all()


def test_relaxed_estimators_approach_the_exact_value():
    logits, key = jnp.array(LOGITS), jax.random.key(0)
    wanted = float(ns.estimators.exact_expectation(cost, logits))
    options = {"samples": 20_000, "key": key}
    relaxed = ns.estimators.relaxed_expectation(cost, logits, tau=0.01, **options)
    hard = ns.estimators.straight_through_expectation(cost, logits, tau=0.5, **options)
    assert abs(float(relaxed) - wanted) < 0.15
    assert abs(float(hard) - wanted) < 0.15


def test_stochastic_neuralsort_depends_on_its_key_alone():
    scores = jnp.zeros((3, 5))
    draw = lambda k: ns.stochastic_neuralsort(scores, samples=2, key=jax.random.key(k))  # noqa: E731
    assert draw(0).shape == (2, 3, 5, 5)
    np.testing.assert_array_equal(draw(0).to_dense(), draw(0).to_dense())
    assert (draw(0).to_dense() != draw(1).to_dense()).any()


def test_keys_are_checked():
    with pytest.raises(TypeError, match=r"jax.random.key\(seed\)"):
        ns.stochastic_neuralsort(jnp.zeros(3), samples=1, key=0)
