"""Draws the two figures of docs/numerics.md: errors against their bounds, and cost against tau.

python examples/draw_numerics.py docs
"""

import sys
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import torch

import neuralsort.torch as ns
from neuralsort.torch.relaxations.engine import bands, chebyshev
from neuralsort.torch.relaxations.engine.between import all_falls
from neuralsort.torch.relaxations.neuralsort import NeuralSortBands
from neuralsort.torch.relaxations.ordering import Ordered

POINTS = torch.linspace(-1, 1, 401, dtype=torch.float64)
KINDS = {
    "normal": lambda n: torch.randn(n, dtype=torch.float64),
    "uniform": lambda n: torch.rand(n, dtype=torch.float64),
    "lognormal": lambda n: (2 * torch.randn(n, dtype=torch.float64)).exp(),
    "five clusters": lambda n: torch.randn(n).double() * 0.1 + torch.randint(0, 5, (n,)) * 10.0,
}


def measured(nodes: int) -> float:
    """The largest error of a column over all distances, with the fall that it has at least."""
    node, matrix = chebyshev.chebyshev(POINTS, nodes)
    worst = 0.0
    for a in np.linspace(0.1, 2 * nodes, 200):
        error = (matrix @ (a * node).exp() - (a * POINTS).exp()).abs().max().item()
        half = bands.REACH / 2
        fallen = min(max(a - half, 0), half) + 2 * max(a - bands.REACH, 0)
        if error > 1e-13 * np.exp(a):  # what is not rounding
            worst = max(worst, error * np.exp(-fallen))
    return worst


def left_out(scores: torch.Tensor, tau: float) -> float:
    """The mass that float32's blocks leave out, computed in float64: nothing else is seen."""
    kept = bands.TOLERANCE[torch.float64]
    bands.TOLERANCE[torch.float64] = bands.TOLERANCE[torch.float32]
    try:
        ordered = torch.sort(scores, descending=True).values
        steps = (
            torch.arange(len(scores)).unsqueeze(-1) < torch.arange(25, len(scores), 50)
        ).double()
        soft = ns.neuralsort(ordered, tau=tau) @ steps
    finally:
        bands.TOLERANCE[torch.float64] = kept
    gaps = torch.cat([-ordered.diff() / tau, torch.tensor([torch.inf], dtype=torch.float64)])
    weights = all_falls(gaps).neg().exp()
    return (soft - (weights / weights.sum(-1, keepdim=True)) @ steps).abs().max().item()


def exponentials_per_row(scores: torch.Tensor, tau: float) -> float:
    """How many weights a product computes, for each row."""
    engine = NeuralSortBands(Ordered(scores, tau, None).gaps.unsqueeze(0), torch.float32)
    total = 0
    for level in engine.levels:
        width = (level.left + level.right + 1) * level.size
        total += int(width.sum()) * min(level.size, engine.nodes)
    return total / len(scores)


def draw_errors(path: Path) -> None:
    """Left: a column's error and its bound. Right: mass left out and the tolerance."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.4))
    nodes = list(range(8, 49, 4))
    bound = [chebyshev.neuralsort_error(k, bands.REACH) for k in nodes]
    left.semilogy(nodes, bound, label="bound")
    left.semilogy(nodes, [max(measured(k), 1e-300) for k in nodes], "o", label="measured")
    left.set_ylim(bottom=min(bound) / 100)
    left.set(xlabel="nodes", ylabel="error of one column, share of the row")
    left.legend()
    taus = np.logspace(-3, 3, 13)
    for name, make in KINDS.items():
        scores = make(3000)
        right.loglog(taus, [max(left_out(scores, t), 1e-16) for t in taus], ".-", label=name)
    right.axhline(bands.TOLERANCE[torch.float32], color="black", label="tolerance, float32")
    right.set(xlabel="tau", ylabel="mass left out, worst row")
    right.legend(fontsize=7)
    figure.tight_layout()
    figure.savefig(path, dpi=130)


def draw_cost(path: Path, n: int = 100_000) -> None:
    """Exponentials per row against the temperature."""
    figure, axes = plt.subplots(figsize=(6, 3.4))
    taus = np.logspace(-5, 5, 21)
    for name, make in KINDS.items():
        scores = make(n)
        axes.loglog(taus, [exponentials_per_row(scores, t) for t in taus], ".-", label=name)
    axes.axhline(n, color="black", linestyle=":", label="the whole row")
    axes.set(xlabel="tau", ylabel=f"exponentials per row, n = {n:,}")
    axes.legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(path, dpi=130)


if __name__ == "__main__":
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else ".")
    torch.manual_seed(0)
    plt.switch_backend("Agg")
    draw_errors(folder / "numerics_error.png")
    draw_cost(folder / "numerics_cost.png")
