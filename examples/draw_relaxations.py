"""Draws the matrices of all relaxations of the same scores into `docs/relaxations.png`.

Every method gets the temperature at which its rows hold the same number of items, so that the
pictures show how methods blur and not how much. Run it from anywhere: it takes a second.
"""

import math
from pathlib import Path

import matplotlib.pyplot as plt
import torch

from neuralsort.torch.registry import METHODS, Method

FIGURE = Path(__file__).resolve().parent.parent / "docs" / "relaxations.png"
SCORES = torch.tensor([1.2, 5.1, 2.9, 0.3, 3.1, 8.0, 4.6, 2.2, 6.4, 1.1], dtype=torch.float64)
ITEMS_PER_ROW = 2.5


def relax(method: Method, tau: float) -> torch.Tensor:
    """The matrix `(n, n)`, its columns in sorted order."""
    given = SCORES
    if method.takes == "logits":  # a position likes an item by how well their orders fit
        n = len(SCORES)
        given = torch.arange(n - 1.0, -n, -2).double().unsqueeze(-1) * SCORES
    matrix = method.function(given, tau=tau).to_dense()
    return matrix[:, SCORES.argsort(descending=True)]


def temperature(method: Method) -> float:
    """Where the entropy of a row is, on average, that of so many equal items."""
    low, high = 1e-4, 1e4
    for _ in range(40):
        tau = math.sqrt(low * high)
        matrix = relax(method, tau)
        entropy = torch.special.entr(matrix).sum(-1).mean().item()
        low, high = (tau, high) if entropy < math.log(ITEMS_PER_ROW) else (low, tau)
    return tau


def main() -> None:
    """Writes the figure."""
    methods = [m for m in METHODS.values() if m.gives == "P" and m.name != "gumbel_sinkhorn"]
    plt.rcParams.update({"font.size": 9, "axes.titlesize": 10, "axes.titlelocation": "left"})
    figure, axes = plt.subplots(2, math.ceil(len(methods) / 2), figsize=(12, 6.6))
    figure.set_layout_engine("constrained")
    figure.suptitle(
        f"Ten scores, {len(methods)} relaxations, each at the temperature where a row holds "
        f"{ITEMS_PER_ROW:g} items.\nRows are positions, columns are items in sorted order.",
        x=0.01,
        ha="left",
    )
    for axis, method in zip(axes.flat, methods, strict=False):
        tau = temperature(method)
        matrix = relax(method, tau)
        picture = axis.imshow(matrix.numpy(), cmap="viridis", vmin=0, vmax=1)
        off = (matrix.sum(-2) - 1).abs().max().item()
        sums = "columns sum to 1" if off < 0.005 else f"columns are off by {off:.2f}"
        axis.set(title=f"{method.name}\ntau = {tau:.2g}, {sums}", xticks=[], yticks=[])
    for axis in axes.flat[len(methods) :]:
        axis.set_axis_off()
    figure.colorbar(picture, ax=axes, label="weight", shrink=0.7, pad=0.01, aspect=30)
    figure.savefig(FIGURE, dpi=130)
    plt.close(figure)
    print(f"Wrote {FIGURE.relative_to(FIGURE.parent.parent)}")


if __name__ == "__main__":
    main()
