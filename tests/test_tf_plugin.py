"""The TensorFlow plug-in: order, precision, inputs and samplers, eager and compiled."""

import os
from fractions import Fraction

import numpy as np
import pytest
import torch
from scipy import stats

from tests import oracle
from tests.methods import neuralsort_formula
from tests.rankings import LOGITS, RANKINGS, frequencies

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
tf = pytest.importorskip("tensorflow")
keras = pytest.importorskip("keras")

import neuralsort.tf as ns  # noqa: E402

SCORES = np.random.default_rng(0).normal(size=(3, 7)).astype(np.float32)
MODES = {
    "eager": lambda f: f,
    "graph": tf.function,
    "xla": lambda f: tf.function(f, jit_compile=True),
}
MODE = pytest.mark.parametrize("mode", MODES.values(), ids=MODES)


def gradient(function, *inputs):
    inputs = [tf.constant(x) for x in inputs]
    with tf.GradientTape() as tape:
        tape.watch(inputs)
        out = function(*inputs)
    return tape.gradient(out, inputs)


# -- order -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_permutation_is_the_stable_descending_sort(dtype):
    scores = tf.cast(np.random.default_rng(0).normal(size=5000) + 1e4, dtype)
    expected = np.argsort(-tf.cast(scores, tf.float64).numpy(), kind="stable")
    np.testing.assert_array_equal(ns.permutation(scores), expected)


def test_the_peak_of_every_row_is_the_sorted_item():
    scores = tf.constant(np.random.default_rng(0).normal(size=5000) + 1e4, tf.float32)
    P = ns.neuralsort(scores, tau=1.0)
    own = tf.gather(P, ns.permutation(scores), axis=-1, batch_dims=1)
    np.testing.assert_array_equal(own, tf.reduce_max(P, -1))


def exact_rows(scores, tau, rows):
    """Rows of the matrix in exact arithmetic up to the exponential, items in sorted order."""
    s, n = [Fraction(float(x)) for x in sorted(scores, reverse=True)], len(scores)
    before, total = [Fraction(0)], sum(s)
    for x in s:
        before.append(before[-1] + x)
    spread = [2 * before[j] - total + (n - 2 * j) * s[j] for j in range(n)]
    for i in rows:
        logits = [((n - 1 - 2 * i) * s[j] - spread[j]) / Fraction(tau) for j in range(n)]
        peak = max(logits)
        weights = np.exp([max(float(logit - peak), -1e3) for logit in logits])
        yield weights / weights.sum()


@pytest.mark.parametrize(("unit", "offset", "tau"), [(1e-12, 0.0, 1e-12), (2e-3, 1e4, 0.01)])
def test_long_lists_in_float64_are_exact(unit, offset, tau):
    rng = np.random.default_rng(0)
    scores = offset + rng.permutation(np.cumsum(rng.uniform(size=2000)) * unit)
    perm = ns.permutation(scores).numpy()
    P = ns.neuralsort(scores, tau=tau).numpy()[:, perm]
    np.testing.assert_array_equal(P.argmax(-1), range(2000))
    rows = (0, 7, 1000, 1998)
    for i, wanted in zip(rows, exact_rows(scores, tau, rows), strict=True):
        np.testing.assert_allclose(P[i], wanted, rtol=0, atol=1e-12)


@MODE
def test_values_and_gradients_in_every_mode(mode):
    upstream = np.random.default_rng(1).normal(size=(3, 7, 7)).astype(np.float32)

    def step(scores):
        with tf.GradientTape() as tape:
            tape.watch(scores)
            P = ns.neuralsort(scores, tau=0.5)
            value = tf.reduce_sum(P * upstream)
        return P, tape.gradient(value, scores)

    P, grad = mode(step)(tf.constant(SCORES))
    for row, scores in zip(P, SCORES, strict=True):
        np.testing.assert_allclose(row, oracle.neuralsort(scores, 0.5), atol=1e-6)
    s = torch.tensor(SCORES, dtype=torch.float64, requires_grad=True)
    (torch.softmax(neuralsort_formula(s) / 0.5, -1) * torch.tensor(upstream)).sum().backward()
    wanted = s.grad.numpy()
    assert np.abs(grad - wanted).max() <= 1e-6 * np.abs(wanted).max()


def test_unknown_batch_sizes_can_be_traced():
    spec = tf.TensorSpec([None, 7], tf.float32)
    sort = tf.function(lambda s: ns.neuralsort(s, tau=0.5), input_signature=[spec])
    np.testing.assert_allclose(sort(SCORES), ns.neuralsort(tf.constant(SCORES), tau=0.5), atol=1e-6)


@MODE
def test_masks_infinities_and_ties_keep_their_rules(mode):
    scores = tf.constant([1.0, float("inf"), 2.0, 1.0, float("-inf"), 2.0, 9.0])
    mask = tf.constant([True] * 6 + [False])
    P = mode(lambda s: ns.neuralsort(s, tau=0.5, mask=mask))(scores).numpy()
    np.testing.assert_array_equal(ns.permutation(scores, mask=mask), [1, 2, 5, 0, 3, 4, 6])
    np.testing.assert_allclose(P.sum(-1), 1, rtol=1e-6)
    np.testing.assert_array_equal(P[:, 0], P[:, 3])
    assert (P[[0, 5, 6], [1, 4, 6]] == 1).all()
    grad = gradient(lambda s: ns.neuralsort(s, tau=0.5, mask=mask)[1, 2], scores)[0]
    assert np.isfinite(grad).all()
    assert (grad.numpy()[[1, 4, 6]] == 0).all()


@MODE
def test_a_nan_spoils_its_own_list(mode):
    def step(scores):
        with tf.GradientTape() as tape:
            tape.watch(scores)
            P = ns.neuralsort(scores, tau=0.5)
            value = tf.reduce_sum(P[..., 0, :] ** 2)
        return P, tape.gradient(value, scores)

    scores, run = SCORES.copy(), mode(step)
    scores[1, 2] = np.nan
    others = [0, 2]
    for found, wanted in zip(run(tf.constant(scores)), run(tf.constant(SCORES)), strict=True):
        assert np.isnan(found[1]).all()
        np.testing.assert_array_equal(found.numpy()[others], wanted.numpy()[others])


@MODE
def test_nan_comes_first_and_minus_zero_is_zero(mode):
    nan, inf = float("nan"), float("inf")
    scores = tf.constant([[1.0, nan, 3.0, inf, nan, -inf], [0.0, -0.0, 1.0, -0.0, 0.0, nan]])
    wanted = [[1, 4, 3, 2, 0, 5], [5, 2, 0, 1, 3, 4]]  # as torch.argsort, stable and descending
    np.testing.assert_array_equal(mode(ns.permutation)(scores), wanted)
    hard = mode(lambda s: ns.neuralsort(s, tau=0))(scores)
    np.testing.assert_array_equal(hard, np.eye(6)[wanted])


@MODE
def test_an_endless_temperature_blends_all_and_a_wrong_one_is_nan(mode):
    sort = mode(lambda s, tau: ns.neuralsort(s, tau=tau))
    scores = tf.constant([1.0, 3.0, 2.0])
    np.testing.assert_allclose(sort(scores, tf.constant(float("inf"))), np.full((3, 3), 1 / 3))
    assert np.isnan(sort(scores, tf.constant(float("nan")))).all()
    if mode is MODES["eager"]:  # where it can be looked at
        with pytest.raises(ValueError, match="`tau` must not be negative"):
            sort(scores, tf.constant(-1.0))
    else:
        assert np.isnan(sort(scores, tf.constant(-1.0))).all()


def test_lists_without_items_have_matrices_without_rows():
    assert ns.neuralsort(tf.zeros((2, 0))).shape == (2, 0, 0)


def test_temperature_zero_is_the_hard_permutation():
    scores = tf.constant(SCORES)
    hard = np.eye(7)[ns.permutation(scores).numpy()]
    np.testing.assert_array_equal(ns.neuralsort(scores, tau=0), hard)
    np.testing.assert_array_equal(ns.neuralsort(scores, tau=tf.zeros((3, 1))), hard)


def test_gradient_to_the_temperature_is_that_of_differences():
    scores = tf.constant(SCORES, tf.float64)
    x = tf.constant(np.random.default_rng(2).normal(size=(3, 7)))

    def loss(tau):
        return tf.reduce_sum(tf.linalg.matvec(ns.neuralsort(scores, tau=tau), x))

    (grad,) = gradient(loss, np.float64(0.7))
    step = 1e-6
    finite = loss(tf.constant(0.7 + step, tf.float64)) - loss(tf.constant(0.7 - step, tf.float64))
    np.testing.assert_allclose(grad, finite / (2 * step), rtol=1e-6)


def test_second_derivatives_are_those_of_differences():
    scores = np.array([0.3, -1.2, 2.0, 0.9])
    x = tf.constant([1.0, -2.0, 0.5, 3.0], tf.float64)

    def first(scores, tau):
        def loss(s):
            return tf.linalg.matvec(ns.neuralsort(s, tau=tau), x)[1]

        return gradient_of(loss, scores)

    def gradient_of(loss, at):
        with tf.GradientTape() as tape:
            tape.watch(at)
            out = loss(at)
        return tape.gradient(out, at)

    tau = tf.constant(0.7, tf.float64)
    point = tf.constant(scores)
    with tf.GradientTape(persistent=True) as tape:
        tape.watch([point, tau])
        slope = first(point, tau)[2]
    step = 1e-6
    to_scores = tape.gradient(slope, point).numpy()
    for j in range(4):
        moved = [first(tf.constant(scores + d * np.eye(4)[j]), tau)[2] for d in (step, -step)]
        np.testing.assert_allclose(to_scores[j], (moved[0] - moved[1]) / (2 * step), atol=1e-7)
    moved = [first(point, tau + d)[2] for d in (step, -step)]
    difference = (moved[0] - moved[1]) / (2 * step)
    np.testing.assert_allclose(tape.gradient(slope, tau), difference, atol=1e-7)


def test_straight_through_is_hard_forward_and_soft_backward():
    hard = tf.constant([1.0, float("-inf")])
    soft_grad = gradient(lambda s: tf.reduce_sum(ns.straight_through(hard, s)[:1] * 3), [0.2, 0.8])
    np.testing.assert_array_equal(soft_grad[0], [3.0, 0.0])
    np.testing.assert_array_equal(ns.straight_through(hard, tf.constant([0.2, 0.8])), hard)


# -- inputs ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["array", "list", "variable", "keras variable"])
def test_scores_may_be_arrays_lists_and_variables(kind):
    make = {
        "array": np.asarray,
        "list": np.ndarray.tolist,
        "variable": tf.Variable,
        "keras variable": keras.Variable,
    }
    wanted = ns.neuralsort(tf.constant(SCORES), tau=0.5)
    np.testing.assert_array_equal(ns.neuralsort(make[kind](SCORES), tau=0.5), wanted)
    tau = np.full((3, 1), 0.5, np.float32)
    if kind != "list":
        np.testing.assert_array_equal(ns.neuralsort(SCORES, tau=make[kind](tau)), wanted)


def test_a_keras_variable_as_temperature_has_gradients():
    tau = keras.Variable(0.5)
    with tf.GradientTape() as tape:
        value = ns.neuralsort(SCORES, tau=tau)[0, 0, 0]
    assert float(tape.gradient(value, tau.value)) != 0.0


BAD_INPUTS = {
    "ragged": (TypeError, "lists of one length", lambda: ns.neuralsort([[1.0], [1.0, 2.0]])),
    "symbolic": (TypeError, "use the layer", lambda: ns.neuralsort(keras.Input((3,)))),
    "list of integers": (TypeError, "floating-point.*int32", lambda: ns.neuralsort([1, 2])),
    "one seed": (TypeError, "two integers.*shape \\(\\)", lambda: ns.sample_gumbel((2,), seed=3)),
    "real seed": (TypeError, "two integers", lambda: ns.sample_gumbel((2,), seed=(0.5, 1.0))),
    "text": (TypeError, "two integers", lambda: ns.sample_gumbel((2,), seed="ab")),
    "batch": (
        ValueError,
        "broadcasts against \\(2,\\)",
        lambda: ns.PlackettLuce(tf.zeros((2, 3))).log_prob(tf.zeros((4, 3), tf.int32)),
    ),
}


@pytest.mark.parametrize("case", BAD_INPUTS)
def test_errors_say_what_was_expected(case):
    kind, match, call = BAD_INPUTS[case]
    with pytest.raises(kind, match=match):
        call()


def test_lists_of_unknown_length_can_be_traced_but_not_of_unknown_rank():
    sort = tf.function(lambda s, tau: ns.neuralsort(s, tau=tau))
    known = tf.TensorSpec([None, None]), tf.TensorSpec([None, None])
    traced = sort.get_concrete_function(*known)
    tau = tf.fill([3, 1], 0.5)
    wanted = ns.neuralsort(SCORES, tau=0.5)
    np.testing.assert_allclose(traced(tf.constant(SCORES), tau), wanted, atol=1e-6)
    with pytest.raises(tf.errors.InvalidArgumentError, match="Unable to broadcast"):
        traced(tf.constant(SCORES), tf.ones([1, 7]))
    with pytest.raises(ValueError, match="known number of dimensions"):
        sort.get_concrete_function(tf.TensorSpec(None), tf.TensorSpec([]))


# -- distributions ---------------------------------------------------------------------------------


@pytest.mark.parametrize("places", [4, 2, 1])
def test_log_prob_is_the_oracle_s(places):
    model = ns.PlackettLuce(tf.constant(LOGITS, tf.float64))
    rankings = tf.constant([z[:places] for z in RANKINGS])
    wanted = [oracle.plackett_luce_log_prob(LOGITS, z[:places]) for z in RANKINGS]
    np.testing.assert_allclose(model.log_prob(rankings), wanted, atol=1e-12)


def test_masked_log_prob_is_that_of_the_present_items():
    logits = tf.constant([[0.3, np.nan, 1.1, 0.0], [0.3, 1.0, 1.1, 0.0]], tf.float64)
    mask = tf.constant([[True, False, True, True], [False] * 4])
    rankings = tf.constant([[2, 0, 3, -7], [9, 9, 9, 9]])  # places beyond the present do not count
    wanted = [oracle.plackett_luce_log_prob([0.3, 1.1, 0.0], [1, 0, 2]), 0.0]

    def total(logits):
        return ns.PlackettLuce(logits).log_prob(rankings, mask=mask)

    np.testing.assert_allclose(total(logits), wanted, atol=1e-12)
    (grad,) = gradient(total, logits)
    assert (grad.numpy()[~mask.numpy()] == 0).all()
    assert np.isfinite(grad).all()
    samples = ns.PlackettLuce(logits).sample((50,), mask=mask, seed=(0, 1)).numpy()
    assert (np.sort(samples[:, 0, :3]) == [0, 2, 3]).all()
    np.testing.assert_array_equal(samples[:, 1], np.tile(range(4), (50, 1)))


BAD_RANKINGS = {
    "repeats": ([0, 0, 0, 0], None),
    "beyond": ([0, 1, 2, 4], None),
    "negative": ([-1], None),
    "absent": ([0, 1, 2], [True, False, True, True]),
}


@MODE
@pytest.mark.parametrize("case", BAD_RANKINGS)
def test_rankings_that_are_none_raise_or_give_nan(case, mode):
    ranking, mask = BAD_RANKINGS[case]
    call = mode(lambda z: ns.PlackettLuce(tf.constant(LOGITS)).log_prob(z, mask=mask))
    if mode is MODES["eager"]:
        with pytest.raises(ValueError, match="must list distinct items, from 0 to 3"):
            call(tf.constant(ranking))
    else:
        assert np.isnan(call(tf.constant(ranking)))


def test_rankings_longer_than_the_list_give_nan_where_no_shape_tells():
    spec = tf.TensorSpec([None], tf.int32)
    model = ns.PlackettLuce(tf.constant(LOGITS))
    log_prob = tf.function(model.log_prob, input_signature=[spec])
    assert np.isnan(log_prob(tf.constant([0, 1, 2, 3, 0])))
    np.testing.assert_allclose(log_prob(tf.constant([0, 1])), model.log_prob([0, 1]))


@MODE
def test_gradients_of_log_prob_are_finite_and_sum_to_zero(mode):
    def step(logits):
        with tf.GradientTape() as tape:
            tape.watch(logits)
            value = ns.PlackettLuce(logits).log_prob(tf.constant([2, 0, 1, 3]))
        return tape.gradient(value, logits)

    grad = mode(step)(tf.constant(LOGITS)).numpy()
    assert np.isfinite(grad).all()
    np.testing.assert_allclose(grad.sum(), 0, atol=1e-6)


@pytest.mark.parametrize("what", ["exact", "relaxed"])
def test_samples_follow_the_distribution(what):
    count = 40_000
    logits = tf.constant(LOGITS)
    if what == "exact":
        samples = ns.PlackettLuce(logits).sample((count,), seed=(0, 1)).numpy()
    else:
        P = ns.stochastic_neuralsort(logits, tau=0.5, samples=count, seed=(2, 3))
        samples = tf.argmax(P, -1).numpy()
    found, p, error = frequencies(samples)
    assert (np.abs(found - p) < 4.5 * error).all()


@pytest.mark.parametrize(("offset", "dtype"), [(1e8, tf.float32), (1e4, tf.bfloat16)])
def test_an_offset_does_not_swallow_the_noise(offset, dtype):
    P = ns.stochastic_neuralsort(tf.fill([4], tf.cast(offset, dtype)), samples=4000, seed=(0, 1))
    first = np.bincount(tf.argmax(P[:, 0], -1).numpy(), minlength=4) / 4000
    assert (np.abs(first - 0.25) < 4.5 * np.sqrt(0.25 * 0.75 / 4000)).all()


def test_noise_follows_the_gumbel_distribution():
    draws = ns.sample_gumbel((20_000,), dtype=tf.float64, seed=(0, 1)).numpy()
    assert stats.kstest(draws, "gumbel_r").pvalue > 0.01


def test_seeds_decide_and_the_global_generator_goes_on():
    draw = ns.sample_gumbel
    np.testing.assert_array_equal(draw((5,), seed=(0, 1)), draw((5,), seed=(0, 1)))
    assert (draw((5,)).numpy() != draw((5,)).numpy()).any()
    assert draw((2,), dtype=tf.bfloat16).dtype == tf.bfloat16
