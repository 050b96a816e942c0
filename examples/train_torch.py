"""Learning to sort noisy numbers, in PyTorch: a network that scores what it cannot read off.

Every item is a vector in which a number is hidden: one direction carries it, the others are noise.
The network never sees the numbers, only in which order they come, and learns to score the items so
that sorting the scores sorts the numbers.

    python examples/train_torch.py --steps 200
"""

import argparse

import torch
from torch import Tensor

import neuralsort.torch as ns

FEATURES = 16


def batch(direction: Tensor, lists: int, n: int) -> tuple[Tensor, Tensor]:
    """Items `(lists, n, features)`, and the order of the numbers hidden in them, largest first."""
    numbers = torch.randn(lists, n)
    items = numbers.unsqueeze(-1) * direction + 0.5 * torch.randn(lists, n, FEATURES)
    return items, torch.argsort(numbers, descending=True)


def train(steps: int, lists: int, n: int, tau: float) -> float:
    """Trains, and returns the share of items that end up in their right place."""
    torch.manual_seed(0)
    direction = torch.randn(FEATURES)
    network = torch.nn.Sequential(
        torch.nn.Linear(FEATURES, 32), torch.nn.ReLU(), torch.nn.Linear(32, 1)
    )
    optimiser = torch.optim.Adam(network.parameters(), lr=1e-2)
    for step in range(steps):
        items, order = batch(direction, lists, n)
        P = ns.neuralsort(network(items).squeeze(-1), tau=tau)
        loss = ns.permutation_cross_entropy(P, order)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        if step % max(steps // 5, 1) == 0:
            print(f"step {step:4d}  loss {loss:.3f}")
    items, order = batch(direction, 1000, n)
    predicted = ns.neuralsort(network(items).squeeze(-1)).permutation()
    return float(ns.metrics.element_wise(predicted, order))


def main() -> None:
    """Trains and prints how well items are placed."""
    parser = argparse.ArgumentParser(description="Learn to sort noisy numbers, in PyTorch.")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--lists", type=int, default=64)
    parser.add_argument("--n", type=int, default=5)
    parser.add_argument("--tau", type=float, default=1.0)
    options = parser.parse_args()
    share = train(options.steps, options.lists, options.n, options.tau)
    print(f"items in the right place: {share:.1%} (by chance {1 / options.n:.1%})")


if __name__ == "__main__":
    main()
