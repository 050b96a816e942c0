"""The TensorFlow plug-in: laws, eager and compiled, samplers, and the Keras layer."""

import itertools
import os

import numpy as np
import pytest

from tests import oracle

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


@MODE
def test_values_and_gradients_in_every_mode(mode):
    upstream = np.random.default_rng(1).normal(size=(3, 7, 7)).astype(np.float32)

    def loss(scores):
        return tf.reduce_sum(ns.neuralsort(scores, tau=0.5) * upstream)

    def step(scores):
        with tf.GradientTape() as tape:
            tape.watch(scores)
            value = loss(scores)
        return ns.neuralsort(scores, tau=0.5), tape.gradient(value, scores)

    P, grad = mode(step)(tf.constant(SCORES))
    eager = gradient(loss, SCORES)[0]
    for row, scores in zip(P, SCORES, strict=True):
        np.testing.assert_allclose(row, oracle.neuralsort(scores, 0.5), atol=1e-6)
    np.testing.assert_allclose(grad, eager, rtol=1e-5, atol=1e-5)


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


# -- distributions ---------------------------------------------------------------------------------

LOGITS = [0.3, -0.7, 1.1, 0.0]
RANKINGS = list(itertools.permutations(range(4)))


@pytest.mark.parametrize("places", [4, 2, 1])
def test_log_prob_is_the_oracle_s(places):
    model = ns.PlackettLuce(tf.constant(LOGITS, tf.float64))
    rankings = tf.constant([z[:places] for z in RANKINGS])
    wanted = [oracle.plackett_luce_log_prob(LOGITS, z[:places]) for z in RANKINGS]
    np.testing.assert_allclose(model.log_prob(rankings), wanted, atol=1e-12)


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
    code = samples @ 4 ** np.arange(4)
    found = np.array([(code == np.dot(z, 4 ** np.arange(4))).mean() for z in RANKINGS])
    p = np.exp([oracle.plackett_luce_log_prob(LOGITS, z) for z in RANKINGS])
    assert (np.abs(found - p) < 4.5 * np.sqrt(p * (1 - p) / count)).all()


def test_seeds_decide_and_the_global_generator_goes_on():
    draw = ns.sample_gumbel
    np.testing.assert_array_equal(draw((5,), seed=(0, 1)), draw((5,), seed=(0, 1)))
    assert (draw((5,)).numpy() != draw((5,)).numpy()).any()
    assert draw((2,), dtype=tf.bfloat16).dtype == tf.bfloat16


# -- Keras -----------------------------------------------------------------------------------------


def test_a_model_with_the_layer_fits_saves_loads_and_predicts(tmp_path):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(64, 5, 3)).astype(np.float32)
    order = np.argsort(-x.sum(-1), -1)
    target = np.eye(5, dtype=np.float32)[order]
    keras.utils.set_random_seed(0)
    inputs = keras.Input((5, 3))
    scores = keras.layers.Reshape((5,))(keras.layers.Dense(1)(inputs))
    model = keras.Model(inputs, ns.NeuralSort(tau=0.5)(scores))
    model.compile("adam", keras.losses.CategoricalCrossentropy())
    history = model.fit(x, target, epochs=8, batch_size=16, verbose=0).history["loss"]
    assert history[-1] < history[0]
    before = model.predict(x, verbose=0)
    assert before.shape == (64, 5, 5)
    path = tmp_path / "sorter.keras"
    model.save(path)
    loaded = keras.models.load_model(path)
    np.testing.assert_array_equal(loaded.predict(x, verbose=0), before)
    assert loaded.layers[-1].tau == 0.5


def test_layer_options_are_checked_and_kept():
    layer = ns.NeuralSort(tau=0.25, name="sorter")
    again = ns.NeuralSort.from_config(layer.get_config())
    assert (again.tau, again.name) == (0.25, "sorter")
    with pytest.raises(ValueError, match="not negative"):
        ns.NeuralSort(tau=-1.0)
