"""Plackett-Luce in JAX: densities, samples by an explicit key, and gradient estimators."""

import functools
import importlib

import numpy as np
import pytest

from tests import oracle
from tests.portions import some_of
from tests.rankings import LOGITS, RANKINGS, frequencies, probabilities

jax = pytest.importorskip("jax")

import jax.numpy as jnp  # noqa: E402

import neuralsort.jax as ns  # noqa: E402
from neuralsort.jax.noise import gumbel  # noqa: E402

distributions = importlib.import_module("neuralsort.jax.distributions")


def test_log_prob_is_the_oracle_s():
    model = ns.PlackettLuce(jnp.array(LOGITS))
    for places in (4, 2, 1, 0):
        rankings = jnp.array([z[:places] for z in RANKINGS], int).reshape(24, places)
        wanted = [oracle.plackett_luce_log_prob(LOGITS, z[:places]) for z in RANKINGS]
        log_prob = model.log_prob if places == 2 else jax.jit(model.log_prob)
        np.testing.assert_allclose(log_prob(rankings), wanted, atol=2e-6)


def test_masked_log_prob_is_that_of_the_present_items():
    mask = jnp.array([True, False, True, True])
    model = ns.PlackettLuce(jnp.array(LOGITS).at[1].set(jnp.nan))
    present = [LOGITS[j] for j in (0, 2, 3)]
    wanted = oracle.plackett_luce_log_prob(present, [1, 0, 2])
    ranking = jnp.array([2, 0, 3, 7])
    np.testing.assert_allclose(model.log_prob(ranking, mask=mask), wanted, rtol=1e-6)
    gradient = jax.grad(lambda x: ns.PlackettLuce(x).log_prob(ranking, mask=mask))
    grad = jax.jit(gradient)(model.logits)
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
    @jax.jit
    def draw(logits):
        model = ns.PlackettLuce(logits)
        rankings = model.sample(jax.random.key(0), (1000,))
        return rankings, model.rsample_given(jax.random.key(1), rankings)

    rankings, perturbed = map(np.asarray, draw(jnp.array(LOGITS)))
    np.testing.assert_array_equal(np.argsort(-perturbed, axis=-1), rankings)
    # Over all rankings, the posterior is the prior: Gumbel noise around the logits.
    mean = perturbed.mean(0) - jnp.array(LOGITS)
    np.testing.assert_allclose(mean, np.euler_gamma, atol=5 * np.pi / np.sqrt(6 * 1000))


@pytest.mark.parametrize("offset", [0.0, 1e6])
def test_estimates_beyond_enumeration_are_those_of_the_exact_sums(offset, monkeypatch):
    """Within 4.5 standard errors, at four items, where both can be had."""
    logits, other = jnp.array(LOGITS) + offset, jnp.array(LOGITS[::-1])
    model, key, samples = ns.PlackettLuce(logits), jax.random.key(0), 20_000
    p, q = probabilities(np.asarray(logits) - offset), probabilities(LOGITS[::-1])
    marginals = np.einsum("z,zij->ij", p, np.eye(4)[np.array(RANKINGS)])
    monkeypatch.setattr(distributions, "LONGEST_ENUMERATED", 0)
    entropy = model.entropy(samples=samples, key=key)
    divergence = model.kl_divergence(ns.PlackettLuce(other), samples=samples, key=key)
    for found, surprise in ((entropy, -np.log(p)), (divergence, np.log(p / q))):
        mean = p @ surprise
        error = np.sqrt(p @ (surprise - mean) ** 2 / samples)
        assert abs(float(found) - mean) < 4.5 * error + 1e-5
    found = model.marginals(samples=samples, key=key)
    error = np.sqrt(marginals * (1 - marginals) / samples)
    assert (np.abs(found - marginals) < 4.5 * error).all()
    np.testing.assert_allclose(found.sum(-1), 1, rtol=1e-5)
    np.testing.assert_allclose(found.sum(-2), 1, rtol=1e-5)


def test_estimates_need_a_key():
    with pytest.raises(TypeError, match="random key"):
        ns.PlackettLuce(jnp.zeros(9)).entropy()


# -- offsets ---------------------------------------------------------------------------------------


def test_an_offset_does_not_swallow_the_noise():
    """Equal logits at 10^8, and in half precision at 10^4: every item is first as often."""
    key = jax.random.key(0)

    @jax.jit
    def draw(logits, short):
        relaxed = ns.RelaxedPlackettLuce(1.0, logits).rsample(key, (4000,))
        half = ns.stochastic_neuralsort(short, samples=4000, key=key)
        return {
            "exact": ns.PlackettLuce(logits).sample(key, (4000,)),
            "relaxed": relaxed.permutation(),
            "half": half.permutation(),
        }

    first = draw(jnp.full(4, 1e8), jnp.full(4, 1e4, jnp.bfloat16))
    for name, rankings in first.items():
        share = np.bincount(np.asarray(rankings)[:, 0], minlength=4) / 4000
        assert (np.abs(share - 0.25) < 4.5 * np.sqrt(0.25 * 0.75 / 4000)).all(), name
    # What is absent does not count as the largest.
    logits, mask = jnp.array([1e8, *LOGITS[1:]]), jnp.array([False, True, True, True])
    samples = ns.PlackettLuce(logits).sample(jax.random.key(0), (2000,), mask=mask)
    assert len(np.unique(np.asarray(samples), axis=0)) == 6


@pytest.mark.parametrize("places", [4, 2])
def test_an_offset_costs_densities_no_digits(places):
    logits, ranking = jnp.array([1.0, 2.0, 3.0, 4.0]), jnp.array([2, 1, 0, 3][:places])
    ask = jax.jit(jax.value_and_grad(ns.plackett_luce_nll))
    near, far = ask(logits, ranking), ask(logits + 2**20, ranking)
    np.testing.assert_array_equal(near[0], far[0])
    np.testing.assert_array_equal(near[1], far[1])
    assert abs(far[1].sum()) < 1e-6


# -- pytrees ---------------------------------------------------------------------------------------


def test_distributions_pass_through_vmap_and_scan():
    logits, key = jnp.array([LOGITS, LOGITS[::-1]]), jax.random.key(0)
    batch = jax.vmap(lambda one: ns.RelaxedPlackettLuce(0.5, one))(logits)
    assert batch.batch_shape == (2,)
    assert batch.tau.shape == (2, 1)
    one = ns.RelaxedPlackettLuce(0.5, logits[1])

    @jax.jit
    def ranks(batch, one):
        mapped = jax.vmap(lambda model: model.rsample(key).rank())(batch)
        _, scanned = jax.lax.scan(lambda c, model: (c, model.rsample(key).rank()), 0, batch)
        return mapped, scanned, one.rsample(key).rank()

    mapped, scanned, alone = ranks(batch, one)
    np.testing.assert_allclose(mapped[1], alone, rtol=1e-6)
    np.testing.assert_allclose(scanned, mapped, rtol=1e-6)


def test_equal_distributions_have_equal_treedefs():
    def structure(**options):
        relax = functools.partial(ns.softsort, **options)
        return jax.tree.structure(ns.RelaxedPlackettLuce(0.5, jnp.zeros(3), relax=relax))

    mask = jnp.ones(3, bool)
    assert structure(power=2.0) == structure(power=2.0)
    assert hash(structure(power=2.0)) == hash(structure(power=2.0))
    assert structure(power=2.0) != structure(power=1.0)
    assert structure(mask=mask) == structure(mask=mask)
    assert structure(mask=mask) != structure(mask=jnp.ones(3, bool))


def test_every_pytree_says_what_it_is():
    exact, relaxed = ns.PlackettLuce(jnp.zeros(3)), ns.RelaxedPlackettLuce(0.5, jnp.zeros(3))
    assert repr(exact) == "PlackettLuce(logits: (3,), dtype=float32)"
    assert repr(relaxed) == "RelaxedPlackettLuce(logits: (3,), dtype=float32, relax: neuralsort)"
    P = ns.neuralsort(jnp.zeros(3))
    for tree in (exact, relaxed, P, P.mT, P.straight_through(), ns.neuralsort(jnp.zeros(3), tau=0)):
        for change in (lambda _: 0, lambda _: None, jnp.sum, jax.typeof):
            assert repr(jax.tree.map(change, tree))


def test_samples_take_the_key_first_or_names():
    model, key = ns.PlackettLuce(jnp.array(LOGITS)), jax.random.key(0)
    named = model.sample(sample_shape=(3,), key=key)
    np.testing.assert_array_equal(model.sample(key, (3,)), named)


# -- estimators ------------------------------------------------------------------------------------

VALUE = jnp.array([1.0, -2.0, 0.5, 3.0])


def cost(P):
    return P.sort(VALUE)[..., 0] ** 2 + P.sort(VALUE)[..., 1]


@functools.cache
def exact_gradient():
    loss = lambda x: ns.estimators.exact_expectation(cost, x)  # noqa: E731
    return jax.jit(jax.grad(loss))(jnp.array(LOGITS))


@pytest.mark.parametrize(
    ("name", "options"),
    [("score_function_expectation", {}), ("rebar_expectation", {"tau": 0.5})],
)
@pytest.mark.parametrize("repeats", some_of([1000, 4000], 1000))
def test_unbiased_estimators_have_the_exact_mean(name, options, repeats):
    estimate = getattr(ns.estimators, name)
    logits = jnp.array(LOGITS)

    @jax.jit
    def gradients(keys):
        one = jax.grad(lambda x, k: estimate(cost, x, samples=8, key=k, **options))
        return jax.vmap(one, (None, 0))(logits, keys)

    draws = np.asarray(gradients(jax.random.split(jax.random.key(0), repeats)))
    error = draws.std(0) / np.sqrt(len(draws))
    assert (np.abs(draws.mean(0) - exact_gradient()) < 4.5 * error).all()


def test_biased_estimators_have_the_exact_value_but_for_the_relaxation():
    """Within 4.5 standard errors; at this temperature a relaxed cost is off by far less."""
    logits, key, samples = jnp.array(LOGITS), jax.random.key(0), 20_000
    wanted = float(ns.estimators.exact_expectation(cost, logits))
    hard = ns.PlackettLuce(logits).sample(key, (samples,))
    error = (
        np.std(np.asarray(VALUE)[hard[:, 0]] ** 2 + np.asarray(VALUE)[hard[:, 1]]) / samples**0.5
    )
    options = {"samples": samples, "key": key}
    relaxed = ns.estimators.relaxed_expectation(cost, logits, tau=1e-3, **options)
    straight = ns.estimators.straight_through_expectation(cost, logits, tau=0.5, **options)
    assert abs(float(relaxed) - wanted) < 4.5 * error
    assert abs(float(straight) - wanted) < 4.5 * error


def test_stochastic_neuralsort_depends_on_its_key_alone():
    scores = jnp.zeros((3, 5))
    draw = lambda k: ns.stochastic_neuralsort(scores, samples=2, key=jax.random.key(k))  # noqa: E731
    assert draw(0).shape == (2, 3, 5, 5)
    np.testing.assert_array_equal(draw(0).to_dense(), draw(0).to_dense())
    assert (draw(0).to_dense() != draw(1).to_dense()).any()


def test_keys_are_checked():
    with pytest.raises(TypeError, match=r"jax.random.key\(seed\)"):
        ns.stochastic_neuralsort(jnp.zeros(3), samples=1, key=0)
