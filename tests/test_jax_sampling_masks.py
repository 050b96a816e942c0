"""Masks in all that samples, in JAX: a padded list is the list without its padding."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import neuralsort.jax as ns
from neuralsort.jax import estimators
from tests.frameworks import quick_jit
from tests.test_sampling_masks import DRAWS, HELD, LOGITS, MASK, SHORT, assert_same_law

THERE = np.asarray(MASK)
KEY = jax.random.key(0)


def holding(value: float) -> jax.Array:
    return jnp.asarray(np.where(THERE, LOGITS.numpy(), value), jnp.float32)


def cost(P: ns.RelaxedPermutation) -> jax.Array:
    """Of the items that are there, in order: of padded lists and of short ones the same."""
    worth = jnp.array([3.0, 1.0, -2.0])
    if P.shape[-1] == 5:
        worth = jnp.zeros(5).at[np.flatnonzero(THERE)].set(worth)
    return (P.sort(worth)[..., :3] * jnp.array([1.0, 0.5, 2.0])).sum(-1) ** 2


SAMPLED = {
    "rsample": lambda x, mask: ns.RelaxedPlackettLuce(0.5, x).rsample(KEY, (3,), mask=mask),
    "stochastic lapsum": lambda x, mask: ns.stochastic_neuralsort(
        x, tau=0.5, samples=3, mask=mask, relax=ns.lapsum, key=KEY
    ),
    "gumbel_sinkhorn": lambda x, mask: ns.gumbel_sinkhorn(
        jnp.broadcast_to(x, (5, 5)), tau=0.5, samples=3, iterations=30, mask=mask, key=KEY
    ),
}
"""By name: logits and a mask to relaxed permutations `(3, n, n)`."""

OPTIONS = {"mask": THERE, "samples": 4, "key": KEY}
ESTIMATED = {
    "relaxed": functools.partial(estimators.relaxed_expectation, tau=0.5, **OPTIONS),
    "straight-through": functools.partial(
        estimators.straight_through_expectation, tau=0.5, **OPTIONS
    ),
    "score function": functools.partial(estimators.score_function_expectation, **OPTIONS),
    "rebar": functools.partial(estimators.rebar_expectation, tau=0.5, **OPTIONS),
    "exact": functools.partial(estimators.exact_expectation, mask=THERE),
}


@pytest.mark.parametrize("name", SAMPLED)
def test_what_absent_items_hold_changes_no_sample(name):
    @quick_jit
    def weights_and_gradient(logits):
        def some(x):
            P = SAMPLED[name](x, THERE).to_dense()
            return P[..., :3, 2].sum(), P

        (_, P), gradient = jax.value_and_grad(some, has_aux=True)(logits)
        return P, gradient

    wanted, slope = weights_and_gradient(holding(0.0))
    for value in HELD:
        P, gradient = weights_and_gradient(holding(value))
        np.testing.assert_array_equal(P, wanted)
        np.testing.assert_array_equal(gradient, slope)
    assert (slope[~THERE] == 0).all()
    assert np.isfinite(slope).all()
    np.testing.assert_allclose(wanted.sum(-1), 1, atol=1e-6)
    assert (wanted[:, :3, ~THERE] == 0).all()
    np.testing.assert_array_equal(wanted[:, 3:], np.broadcast_to(np.eye(5)[[1, 4]], (3, 2, 5)))


@pytest.mark.parametrize("name", ESTIMATED)
def test_what_absent_items_hold_changes_no_estimate(name):
    estimate = quick_jit(jax.value_and_grad(functools.partial(ESTIMATED[name], cost)))
    wanted, slope = estimate(holding(0.0))
    for value in HELD:
        found, gradient = estimate(holding(value))
        np.testing.assert_array_equal(found, wanted)
        np.testing.assert_array_equal(gradient, slope)
    assert (slope[~THERE] == 0).all()
    if name == "exact":
        short = functools.partial(estimators.exact_expectation, cost)
        value, gradient = quick_jit(jax.value_and_grad(short))(jnp.asarray(SHORT, jnp.float32))
        np.testing.assert_allclose(wanted, value, rtol=1e-5)
        np.testing.assert_allclose(slope[THERE], gradient, rtol=1e-4, atol=1e-5)


def test_padded_samples_have_the_law_of_the_short_list():
    @quick_jit
    def drawn(logits):
        P = ns.stochastic_neuralsort(logits, samples=DRAWS, mask=THERE, key=KEY)
        return P.permutation()

    rankings = drawn(holding(1e9))
    assert_same_law(rankings)
    assert (rankings[:, 3:] == np.array([1, 4])).all()


def test_noise_given_a_padded_ranking_sorts_into_it():
    ranking = np.array([[3, 0, 2, 1, 4], [2, 3, 0, 1, 4]])

    @quick_jit
    def noisy(logits):
        return ns.PlackettLuce(logits).rsample_given(KEY, ranking, mask=THERE)

    given = np.asarray(noisy(holding(np.nan)))
    assert (given[:, ~THERE] == 0).all()
    order = np.argsort(-np.where(THERE, given, -np.inf))
    np.testing.assert_array_equal(order[:, :3], ranking[:, :3])
