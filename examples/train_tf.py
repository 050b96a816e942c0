"""Learning to sort noisy numbers, in Keras: a network that scores what it cannot read off.

Every item is a vector in which a number is hidden: one direction carries it, the others are noise.
The network never sees the numbers, only in which order they come, and learns to score the items so
that sorting the scores sorts the numbers. The layer makes it an ordinary Keras model.

    python examples/train_tf.py --steps 200
"""

import argparse

import keras
import numpy as np

import neuralsort.tf as ns

FEATURES = 16


def batch(
    rng: np.random.Generator, direction: np.ndarray, lists: int, n: int
) -> tuple[np.ndarray, np.ndarray]:
    """Items `(lists, n, features)`, and the order of the numbers hidden in them, largest first."""
    numbers = rng.normal(size=(lists, n))
    items = numbers[..., None] * direction + 0.5 * rng.normal(size=(lists, n, FEATURES))
    return items.astype(np.float32), np.argsort(-numbers, -1)


def train(steps: int, lists: int, n: int, tau: float) -> float:
    """Trains, and returns the share of items that end up in their right place."""
    keras.utils.set_random_seed(0)
    rng = np.random.default_rng(0)
    direction = rng.normal(size=FEATURES)
    inputs = keras.Input((n, FEATURES))
    hidden = keras.layers.Dense(32, activation="relu")(inputs)
    scores = keras.layers.Reshape((n,))(keras.layers.Dense(1)(hidden))
    model = keras.Model(inputs, ns.NeuralSort(tau=tau)(scores))
    # Row i of the matrix is a distribution over items: the label is the item that belongs there.
    model.compile(keras.optimizers.Adam(1e-2), keras.losses.SparseCategoricalCrossentropy())
    items, order = batch(rng, direction, steps * lists, n)
    model.fit(items, order, batch_size=lists, verbose=2)
    items, order = batch(rng, direction, 1000, n)
    predicted = model.predict(items, verbose=0).argmax(-1)
    return float((predicted == order).mean())


def main() -> None:
    """Trains and prints how well items are placed."""
    parser = argparse.ArgumentParser(description="Learn to sort noisy numbers, in Keras.")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--lists", type=int, default=64)
    parser.add_argument("--n", type=int, default=5)
    parser.add_argument("--tau", type=float, default=1.0)
    options = parser.parse_args()
    share = train(options.steps, options.lists, options.n, options.tau)
    print(f"items in the right place: {share:.1%} (by chance {1 / options.n:.1%})")


if __name__ == "__main__":
    main()
