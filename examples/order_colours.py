"""Orders colours on a grid: a permutation of 65,536 items, learned by gradient descent.

Random colours are to lie on a square grid so that neighbours look alike. Which colour goes where is
a permutation, and a relaxed one can be learned: every cell wants the mean colour around it, and
`softsort` along a tour through all cells says how the expected cost changes when colours swap
places with those nearby on the tour. Tours are shuffled anew for every step, so that colours travel
far (the idea is ShuffleSoftSort's, Barthel et al., 2025); what a cell wants is averaged over ever
smaller surroundings. The relaxed permutation is never written down: with 65,536 items its matrix
would hold four thousand million numbers, with a million items a million million.

    python examples/order_colours.py                      # 256 x 256, two minutes on two cores
    python examples/order_colours.py --side 1000          # a million
    python examples/order_colours.py --side 32 --assign   # beside the assignment of least cost

It prints the mean distance of neighbours, beside a sort by luminance, and draws a picture.
"""

import argparse
import json
import math
import time
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.functional import avg_pool2d

import neuralsort.torch as ns
from neuralsort.runtime.progress import Progress

LUMINANCE = torch.tensor([0.299, 0.587, 0.114])


def neighbour_distance(grid: Tensor) -> float:
    """The mean distance `(side, side, 3)` of colours that lie beside or below each other."""
    across = (grid[:, 1:] - grid[:, :-1]).norm(dim=-1).mean()
    down = (grid[1:] - grid[:-1]).norm(dim=-1).mean()
    return ((across + down) / 2).item()


def by_luminance(colours: Tensor, side: int) -> Tensor:
    """Row after row from dark to light, every other row backwards."""
    grid = colours[(colours @ LUMINANCE).argsort()].view(side, side, 3).clone()
    grid[1::2] = grid[1::2].flip(1)
    return grid


def surroundings(grid: Tensor, radius: int) -> Tensor:
    """The mean colour around each cell: two box filters, which fall off towards the edge.

    Down the columns and along the rows, which takes less than over squares.
    """
    image = grid.permute(2, 0, 1).unsqueeze(0)
    for along in ((1, 0), (0, 1), (1, 0), (0, 1)):
        around = [radius * way for way in along]
        window = [2 * each + 1 for each in around]
        image = avg_pool2d(image, window, 1, around, count_include_pad=False)
    return image.squeeze(0).permute(1, 2, 0)


def radii(side: int, steps: int) -> list[int]:
    """From a quarter of the side down to 1, evenly in logarithms."""
    start = max(side / 4, 1.0)
    return [round(start ** (1 - i / max(steps - 1, 1))) for i in range(steps)]


def swapped(colours: Tensor, wanted: Tensor, tau: float) -> Tensor:
    """Colours `(n, 3)` along a tour in an order that costs less, by one step on relaxed ranks.

    The expected cost is linear in the relaxed permutation: a blur of colours gains nothing.
    """
    n = len(colours)
    ranks = torch.arange(float(n), 0, -1).requires_grad_()
    P = ns.softsort(ranks, tau=tau)
    payload = torch.cat([colours, colours.square().sum(-1, keepdim=True)], -1)
    soft = P @ payload
    cost = (soft[:, 3] - 2 * (soft[:, :3] * wanted).sum(-1)).sum()
    (gradient,) = torch.autograd.grad(cost, ranks)
    step = gradient / gradient.abs().mean().clamp(min=1e-12)
    order = (ranks.detach() - 2 * tau * step.clamp(-2, 2)).argsort(descending=True)
    moved = colours[order]

    # Along the tour, stretches that got worse stay as they were; a stretch ends where nothing
    # crosses: as many have come from behind as have gone there.
    place = torch.arange(n)
    closed = order.cummax(0).values == place
    stretch = (closed.long().cumsum(0) - closed.long()).clamp(min=0)
    gain = (colours - wanted).square().sum(-1) - (moved - wanted).square().sum(-1)
    total = torch.zeros(n).index_add_(0, stretch, gain)
    return torch.where((total[stretch] > 0).unsqueeze(-1), moved, colours)


def shuffled_tour(side: int, reach: int) -> Tensor:
    """All cells, square after square of so many cells on a side, in random order in each."""
    down, right = torch.randint(0, reach, (2,)).tolist()
    line = torch.arange(side)
    across = side // reach + 2
    square = ((line + down) // reach).unsqueeze(-1) * across + (line + right) // reach
    return (square.flatten() + torch.rand(side * side, dtype=torch.float64)).argsort()


def learned(colours: Tensor, side: int, steps: int, tau: float = 0.3) -> Tensor:
    """Colours on a grid, from a sort by luminance on."""
    grid = by_luminance(colours, side)
    with Progress("ordering colours", steps) as progress:
        for step, radius in enumerate(radii(side, steps)):
            wanted = surroundings(grid, radius).reshape(-1, 3)
            # Far and near in turn: near by there are more colours that are worth a swap.
            tour = shuffled_tour(side, side if step % 2 else min(4 * radius, side))
            cells = grid.reshape(-1, 3)
            cells[tour] = swapped(cells[tour], wanted[tour], tau)
            grid = cells.view(side, side, 3)
            if step % 10 == 0 or step == steps - 1:
                text = f"radius {radius}, neighbours {neighbour_distance(grid):.4f} apart"
                progress.update(step + 1, text)
    return grid


def assigned(colours: Tensor, side: int, steps: int) -> Tensor:
    """The same with the best assignment of all colours to what cells want: for small grids."""
    from scipy.optimize import linear_sum_assignment

    grid = by_luminance(colours, side)
    for radius in radii(side, steps):
        cells, wanted = grid.reshape(-1, 3), surroundings(grid, radius).reshape(-1, 3)
        _, taken = linear_sum_assignment(torch.cdist(wanted, cells).square().numpy())
        grid = cells[torch.from_numpy(taken)].view(side, side, 3)
    return grid


def draw(grids: dict[str, Tensor], path: Path) -> None:
    """The grids side by side."""
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, len(grids), figsize=(4 * len(grids), 4.3), squeeze=False)
    for axis, (name, grid) in zip(axes[0], grids.items(), strict=True):
        axis.imshow(grid.numpy(), interpolation="nearest")
        axis.set_title(f"{name}\nneighbours {neighbour_distance(grid):.3f} apart", fontsize=10)
        axis.set_axis_off()
    figure.savefig(path, dpi=110, bbox_inches="tight")
    print(f"drawn: {path}")


def main() -> None:
    """Orders random colours and says how well."""
    parser = argparse.ArgumentParser(description="Orders colours on a grid")
    parser.add_argument("--side", type=int, default=256, help="cells on a side of the grid")
    parser.add_argument("--steps", type=int, default=800)
    parser.add_argument("--assign", action="store_true", help="compare with the best assignment")
    parser.add_argument("--out", type=Path, default=Path("order_colours.png"))
    parser.add_argument("--json", type=Path, help="one JSON line with what was measured")
    options = parser.parse_args()
    torch.manual_seed(0)
    side = options.side
    colours = torch.rand(side * side, 3)
    start = time.perf_counter()
    ordered = learned(colours, side, options.steps)
    seconds = time.perf_counter() - start
    grids = {
        "as they came": colours.view(side, side, 3),
        "sorted by luminance": by_luminance(colours, side),
        "a learned permutation": ordered,
    }
    if options.assign:
        grids["assignment"] = assigned(colours, side, min(options.steps, 60))
    same = grids["a learned permutation"].reshape(-1, 3)
    assert torch.equal(same.sort(0).values, colours.sort(0).values), "colours were lost"
    print(f"{side * side:,} colours in {seconds:.0f} s, mean distance of neighbours")
    for name, grid in grids.items():
        print(f"{name:>22}: {neighbour_distance(grid):.4f}")
    least = math.pow(side * side, -1 / 3)
    print(f"{'colours themselves':>22}: {least:.4f} apart, were they evenly spread")
    draw(grids, options.out)
    if options.json:
        distances = {name: neighbour_distance(grid) for name, grid in grids.items()}
        line = {"colours": side * side, "steps": options.steps, "seconds": seconds}
        line |= {"threads": torch.get_num_threads(), "torch": torch.__version__} | distances
        options.json.write_text(json.dumps(line) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
