"""Subsets and perturbed optimisers in JAX: samples, and gradients of samples."""

import math

import numpy as np
import pytest

jax = pytest.importorskip("jax")

import jax.numpy as jnp  # noqa: E402

import neuralsort.jax as ns  # noqa: E402

LOGITS = jnp.array([0.4, -0.8, 1.0, 0.1])
COST = jnp.array([1.0, -0.5, 2.0, 0.7])
REPEATS = 4000


def slopes(draw):
    """One gradient of a linear cost for each of many lists."""
    logits = jnp.broadcast_to(LOGITS, (REPEATS, 4))
    return np.asarray(jax.jit(jax.grad(lambda x: (draw(x) * COST).sum()))(logits))


def within_four_errors(each, wanted):
    error = each.std(0) / math.sqrt(len(each))
    assert (np.abs(each.mean(0) - wanted) <= 4 * error + 1e-6).all()


def test_samples_are_as_frequent_as_they_should_be():
    model = ns.KSubset(jnp.array([0.5, -1.0, 1.5, 0.0, -0.5]), 2)
    drawn = jax.jit(lambda key: model.sample(key, (20_000,)))(jax.random.key(0))
    every = model.enumerate_support()
    share = np.asarray((drawn[:, None] == every).all(-1).mean(0))
    chance = np.exp(np.asarray(model.log_prob(every)))
    assert (np.abs(share - chance) <= 4 * np.sqrt(chance * (1 - chance) / 20_000)).all()


def test_float32_is_exact_to_its_rounding_and_takes_certain_items():
    inf = float("inf")
    logits = jnp.array([[0.3, inf, -1.0, -inf, 2.0, 30.0], [0.0, 1.0, 2.0, -inf, -inf, 1.0]])

    def entropy_of_both(x):
        each = ns.KSubset(x, 3).entropy()
        return each.sum(), each

    @jax.jit
    def ask(logits):
        model, rest = ns.KSubset(logits, 3), ns.KSubset(jnp.array([0.3, -1.0, 2.0]), 1)
        slope, entropy = jax.grad(entropy_of_both, has_aux=True)(logits)
        drawn, too_many = model.sample(jax.random.key(0), (50,)), ns.KSubset(logits[1], 5)
        alone = rest.marginals(), rest.entropy()
        return model.marginals(), entropy, slope, drawn, too_many.entropy(), alone

    shares, entropy, slope, drawn, too_many, (shares_alone, entropy_alone) = ask(logits)
    np.testing.assert_allclose(shares[0][np.array([0, 2, 4])], shares_alone, atol=1e-5)
    np.testing.assert_allclose(shares[0][np.array([1, 3, 5])], [1, 0, 1], atol=1e-6)
    np.testing.assert_allclose(entropy[0], entropy_alone, rtol=1e-5)
    np.testing.assert_allclose(shares.sum(-1), 3, rtol=1e-5)
    assert np.isfinite(slope).all()
    assert (np.asarray(drawn).sum(-1) == 3).all()
    assert np.isnan(too_many)


@jax.jit
def relaxed(tau):
    model = ns.KSubset(jax.random.normal(jax.random.key(1), (4, 50)), 7)
    return model.relaxed_sample(jax.random.key(0), (20,), tau=tau)


@pytest.mark.parametrize("tau", [0.05, 0.5])  # colder, float32 loses digits
def test_relaxed_samples_are_memberships(tau):
    soft = np.asarray(relaxed(tau))
    assert soft.shape == (20, 4, 50)
    assert ((soft >= 0) & (soft <= 1)).all()
    np.testing.assert_allclose(soft.sum(-1), 7, rtol=1e-4)


def test_simple_samples_have_the_exact_gradient_of_a_linear_cost():
    each = slopes(lambda x: ns.KSubset(x, 2).simple_sample(jax.random.key(0)))
    wanted = jax.jit(jax.grad(lambda x: (ns.KSubset(x, 2).marginals() * COST).sum()))(LOGITS)
    np.testing.assert_allclose(each, np.broadcast_to(wanted, each.shape), atol=1e-6)
    draw = jax.jit(lambda key: ns.KSubset(LOGITS, 2).simple_sample(key, (5,)))
    drawn = draw(jax.random.key(0))
    assert (drawn.sum(-1) == 2).all()


def top_two(logits):
    """Chances to be among the first two of a Plackett-Luce ranking, by enumeration."""
    return ns.PlackettLuce(logits).marginals()[..., :2, :].sum(-2)


@pytest.mark.parametrize("strength", [0.3, 1.0])
def test_implicit_mle_is_unbiased_for_its_difference_quotient(strength):
    def draw(x):
        return ns.KSubset(x, 2).imle_sample(jax.random.key(0), strength=strength)

    wanted = (top_two(LOGITS) - top_two(LOGITS - strength * COST)) / strength
    within_four_errors(slopes(draw), np.asarray(wanted))


def rising_ranks(scores):
    return jnp.argsort(jnp.argsort(scores, -1), -1) + 1


def test_perturbed_functions_have_unbiased_values_and_gradients():
    """Expected ranks are sums of chances of pairs, which are known."""
    sigma = 0.7

    def exact(x):
        apart = (x[:, None] - x[None, :]) / (sigma * math.sqrt(2))
        return 0.5 + jax.scipy.stats.norm.cdf(apart).sum(-1)

    def draw(x):
        return ns.estimators.perturbed(
            rising_ranks, x, sigma=sigma, samples=10, key=jax.random.key(0)
        )

    wanted = jax.grad(lambda x: (exact(x) * COST).sum())(LOGITS)
    within_four_errors(slopes(draw), np.asarray(wanted))
    values = np.asarray(draw(jnp.broadcast_to(LOGITS, (REPEATS, 4))))
    within_four_errors(values, np.asarray(exact(LOGITS)))


def test_the_fenchel_young_loss_has_the_gradient_of_its_formula_and_takes_masks():
    options = {"function": rising_ranks, "sigma": 0.7, "samples": 10, "key": jax.random.key(0)}
    target, mask = jnp.array([1, 2, 3, 4]), jnp.array([True, True, True, False])

    def loss(x, **others):
        return ns.fenchel_young_loss(x, target, **options, **others)

    mean = ns.estimators.perturbed(
        rising_ranks, LOGITS, sigma=0.7, samples=10, key=jax.random.key(0)
    )
    np.testing.assert_allclose(jax.grad(loss)(LOGITS), mean - target, atol=1e-5)
    assert loss(LOGITS) >= 0
    spoilt = jnp.where(mask, LOGITS, jnp.nan)
    np.testing.assert_allclose(loss(spoilt, mask=mask), loss(LOGITS, mask=mask))
    slope = jax.grad(lambda x: loss(x, mask=mask))(spoilt)
    assert jnp.isfinite(slope).all()
    assert slope[3] == 0
