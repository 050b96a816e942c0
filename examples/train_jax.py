"""Learning to sort noisy numbers, in JAX: a network that scores what it cannot read off.

Every item is a vector in which a number is hidden: one direction carries it, the others are noise.
The network never sees the numbers, only in which order they come, and learns to score the items so
that sorting the scores sorts the numbers. One jitted step draws a batch and descends.

    python examples/train_jax.py --steps 200
"""

import argparse
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

import neuralsort.jax as ns

FEATURES = 16


def batch(key: Array, direction: Array, lists: int, n: int) -> tuple[Array, Array]:
    """Items `(lists, n, features)`, and the order of the numbers hidden in them, largest first."""
    first, second = jax.random.split(key)
    numbers = jax.random.normal(first, (lists, n))
    noise = jax.random.normal(second, (lists, n, FEATURES))
    return numbers[..., None] * direction + 0.5 * noise, jnp.argsort(-numbers, axis=-1)


def network(weights: Any, items: Array) -> Array:
    """Scores `(lists, n)`: two layers."""
    hidden = jax.nn.relu(items @ weights["in"] + weights["bias"])
    return (hidden @ weights["out"])[..., 0]


def train(steps: int, lists: int, n: int, tau: float) -> float:
    """Trains, and returns the share of items that end up in their right place."""
    key, a, b, c = jax.random.split(jax.random.key(0), 4)
    direction = jax.random.normal(a, (FEATURES,))
    weights = {
        "in": jax.random.normal(b, (FEATURES, 32)) / FEATURES**0.5,
        "bias": jnp.zeros(32),
        "out": jax.random.normal(c, (32, 1)) / 32**0.5,
    }
    momentum = jax.tree.map(jnp.zeros_like, weights)

    @jax.jit
    def step(weights: Any, momentum: Any, key: Array) -> tuple[Any, Any, Array]:
        items, order = batch(key, direction, lists, n)

        def loss(weights: Any) -> Array:
            P = ns.neuralsort(network(weights, items), tau=tau)
            return ns.permutation_cross_entropy(P, order)

        value, gradient = jax.value_and_grad(loss)(weights)
        momentum = jax.tree.map(lambda m, g: 0.9 * m + g, momentum, gradient)
        weights = jax.tree.map(lambda w, m: w - 0.03 * m, weights, momentum)
        return weights, momentum, value

    for i, one in enumerate(jax.random.split(key, steps)):
        weights, momentum, value = step(weights, momentum, one)
        if i % max(steps // 5, 1) == 0:
            print(f"step {i:4d}  loss {value:.3f}")
    items, order = batch(jax.random.key(1), direction, 1000, n)
    predicted = ns.neuralsort(network(weights, items)).permutation()
    return float(ns.metrics.element_wise(predicted, order))


def main() -> None:
    """Trains and prints how well items are placed."""
    parser = argparse.ArgumentParser(description="Learn to sort noisy numbers, in JAX.")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--lists", type=int, default=64)
    parser.add_argument("--n", type=int, default=5)
    parser.add_argument("--tau", type=float, default=1.0)
    options = parser.parse_args()
    share = train(options.steps, options.lists, options.n, options.tau)
    print(f"items in the right place: {share:.1%} (by chance {1 / options.n:.1%})")


if __name__ == "__main__":
    main()
