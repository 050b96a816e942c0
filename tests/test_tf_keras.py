"""NeuralSort as a Keras layer: options, masks, precision, saving and loading."""

import os

import numpy as np
import pytest

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
tf = pytest.importorskip("tensorflow")
keras = pytest.importorskip("keras")

import neuralsort.tf as ns  # noqa: E402


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
    with pytest.raises(TypeError, match="expects a number.*got a tensor.*float\\(tau\\)"):
        ns.NeuralSort(tau=tf.constant(0.5))


def test_the_layer_runs_on_tensorflow_alone(monkeypatch):
    monkeypatch.setattr(keras.backend, "backend", lambda: "jax")
    with pytest.raises(RuntimeError, match="runs on TensorFlow, but Keras runs on jax"):
        ns.NeuralSort()


@keras.saving.register_keras_serializable(package="tests")
class Score(keras.layers.Layer):
    """The first feature of every item, as its score."""

    def __init__(self, **options):
        super().__init__(**options)
        self.supports_masking = True

    def call(self, items):
        return items[..., 0]


@pytest.mark.parametrize("way", ["explicit", "handed down"])
def test_masks_reach_the_layer_and_its_rows(way, tmp_path):
    rng = np.random.default_rng(0)
    items = rng.normal(size=(2, 4, 3)).astype(np.float32)
    items[0, 1] = items[1, 2:] = 0.0
    mask = (items != 0).any(-1)
    inputs = keras.Input((4, 3))
    if way == "explicit":
        given = keras.Input((4,), dtype="bool")
        output = ns.NeuralSort(tau=0.5)(Score()(inputs), mask=given)
        model, data = keras.Model([inputs, given], output), [items, mask]
    else:
        output = ns.NeuralSort(tau=0.5)(Score()(keras.layers.Masking()(inputs)))
        model, data = keras.Model(inputs, output), items
    P = model(data)
    np.testing.assert_array_equal(P, ns.neuralsort(items[..., 0], tau=0.5, mask=mask))
    rows = ns.NeuralSort().compute_mask(P, tf.constant(mask))
    np.testing.assert_array_equal(rows, [[True, True, True, False], [True, True, False, False]])
    model.save(tmp_path / "masked.keras")
    loaded = keras.models.load_model(tmp_path / "masked.keras")
    np.testing.assert_array_equal(loaded(data), P)


def test_rows_of_absent_items_do_not_count_in_a_loss():
    items = np.array([[[1.0], [0.0], [3.0]]], np.float32)
    inputs = keras.Input((3, 1))
    model = keras.Model(inputs, ns.NeuralSort()(Score()(keras.layers.Masking()(inputs))))
    model.compile(loss="sparse_categorical_crossentropy")
    # The last row places the absent item 1 for sure: with it, label 0 would cost infinitely much.
    loss = model.evaluate(items, np.array([[2, 0, 0]]), verbose=0)
    P = ns.neuralsort(tf.constant([1.0, 3.0])).numpy()
    np.testing.assert_allclose(loss, -np.log([P[0, 1], P[1, 0]]).mean(), rtol=1e-5)


def test_the_layer_computes_in_the_dtype_of_its_input():
    layer = ns.NeuralSort(tau=1e5, dtype="mixed_float16")
    scores = tf.constant([[1e5, 3e5]])  # both infinite in float16
    np.testing.assert_array_equal(layer(scores), ns.neuralsort(scores, tau=1e5))
    assert layer(keras.Input((2,), dtype="float32")).dtype == "float32"
