# %% [markdown]
# # Ordering colours on a grid
#
# Random colours are to lie on a square grid so that neighbours look alike. The same task comes up with photos, sounds or words, wherever
# many items are to be laid out by likeness. Which colour goes where is a permutation, and a relaxed one can be learned.
#
# Every cell wants the mean colour around it. Walk through all cells in some order, a *tour*, and give the colours on it ranks 1 to n.
# `softsort` of these ranks blends every colour with those nearby on the tour, and the gradient of the cost says which ranks should
# rise or fall: which colours should swap. Tours are shuffled at every step, so that colours travel far, and what a cell wants is averaged
# over ever smaller surroundings. The idea is ShuffleSoftSort's (Barthel et al., 2025). The relaxed permutation is never written down, so
# `SIDE = 1000`, a million colours, works as well.

# %%
import os

import matplotlib.pyplot as plt
import torch
from scipy.optimize import linear_sum_assignment
from torch.nn.functional import avg_pool2d

import neuralsort.torch as ns

QUICK = os.environ.get("NEURALSORT_GALLERY") == "quick"
SIDE, STEPS = (12, 60) if QUICK else (32, 400)
LUMINANCE = torch.tensor([0.299, 0.587, 0.114])
torch.manual_seed(0)
colours = torch.rand(SIDE * SIDE, 3)


# %% [markdown]
# Two things a grid can tell: how far neighbours are apart, which is what we measure, and what each cell wants.


# %%
def neighbour_distance(grid):
    across = (grid[:, 1:] - grid[:, :-1]).norm(dim=-1).mean()
    down = (grid[1:] - grid[:-1]).norm(dim=-1).mean()
    return ((across + down) / 2).item()


def surroundings(grid, radius):
    """The mean colour around each cell: two box filters."""
    image = grid.permute(2, 0, 1).unsqueeze(0)
    for _ in range(2):
        image = avg_pool2d(image, 2 * radius + 1, 1, radius, count_include_pad=False)
    return image.squeeze(0).permute(1, 2, 0)


def by_luminance(colours):
    """Row after row from dark to light, every other row backwards: where we start."""
    grid = colours[(colours @ LUMINANCE).argsort()].view(SIDE, SIDE, 3).clone()
    grid[1::2] = grid[1::2].flip(1)
    return grid


# %% [markdown]
# One step along a tour. The expected cost is linear in the relaxed permutation, so a blur of colours gains nothing. The last lines keep
# what helps: a stretch of the tour that got worse stays as it was, where a stretch ends wherever no colour crosses.


# %%
def swapped(colours, wanted, tau=0.3):
    """Colours `(n, 3)` along a tour, in an order that costs less."""
    n = len(colours)
    ranks = torch.arange(float(n), 0, -1).requires_grad_()
    P = ns.softsort(ranks, tau=tau)
    soft = P @ torch.cat([colours, colours.square().sum(-1, keepdim=True)], -1)
    cost = (soft[:, 3] - 2 * (soft[:, :3] * wanted).sum(-1)).sum()
    (gradient,) = torch.autograd.grad(cost, ranks)
    step = gradient / gradient.abs().mean().clamp(min=1e-12)
    order = (ranks.detach() - 2 * tau * step.clamp(-2, 2)).argsort(descending=True)
    moved = colours[order]
    closed = order.cummax(0).values == torch.arange(n)
    stretch = closed.long().cumsum(0) - closed.long()
    gain = (colours - wanted).square().sum(-1) - (moved - wanted).square().sum(-1)
    total = torch.zeros(n).index_add_(0, stretch, gain)
    return torch.where((total[stretch] > 0).unsqueeze(-1), moved, colours)


def shuffled_tour(reach):
    """All cells, square after square of so many cells on a side, in random order in each."""
    down, right = torch.randint(0, reach, (2,)).tolist()
    line, squares = torch.arange(SIDE), SIDE // reach + 2
    square = ((line + down) // reach).unsqueeze(-1) * squares + (line + right) // reach
    return (square.flatten() + torch.rand(SIDE * SIDE, dtype=torch.float64)).argsort()


# %% [markdown]
# The whole: radii from a quarter of the side down to 1, and tours that reach far and near in turn.


# %%
def radii(steps):
    return [round((SIDE / 4) ** (1 - i / (steps - 1))) for i in range(steps)]


def learned(colours):
    grid = by_luminance(colours)
    for step, radius in enumerate(radii(STEPS)):
        wanted = surroundings(grid, radius).reshape(-1, 3)
        tour = shuffled_tour(SIDE if step % 2 else min(4 * radius, SIDE))
        cells = grid.reshape(-1, 3)
        cells[tour] = swapped(cells[tour], wanted[tour])
        grid = cells.view(SIDE, SIDE, 3)
    return grid


# %% [markdown]
# On a grid as small as this one, the best assignment of all colours to what cells want can also be computed, at every step. That
# costs the cube of the number of colours; it is what the gradient is to come close to.


# %%
def assigned(colours, steps=30):
    grid = by_luminance(colours)
    for radius in radii(steps):
        cells, wanted = grid.reshape(-1, 3), surroundings(grid, radius).reshape(-1, 3)
        _, taken = linear_sum_assignment(torch.cdist(wanted, cells).square().numpy())
        grid = cells[torch.from_numpy(taken)].view(SIDE, SIDE, 3)
    return grid


grids = {
    "as they came": colours.view(SIDE, SIDE, 3),
    "by luminance": by_luminance(colours),
    "learned": learned(colours),
    "assignment": assigned(colours),
}
assert torch.equal(grids["learned"].reshape(-1, 3).sort(0).values, colours.sort(0).values)

figure, axes = plt.subplots(1, 4, figsize=(9, 2.6), layout="constrained")
distance = {name: neighbour_distance(grid) for name, grid in grids.items()}
for one, (name, grid) in zip(axes, grids.items(), strict=True):
    one.imshow(grid.numpy(), interpolation="nearest")
    one.set_title(f"{name}\n{distance[name]:.3f}", fontsize=10)
    one.set_axis_off()
plt.show()

# %% [markdown]
# The number over each picture is the mean distance of neighbours. The learned permutation comes near the assignment, with work
# that grows with the number of colours almost linearly, and not with its cube. On small grids, take the assignment.

# %%
ours, plain = distance["learned"], distance["by luminance"]
print(
    f"neighbours {ours:.3f} apart in the learned order, {plain:.3f} by luminance, "
    f"{distance['assignment']:.3f} by assignment"
)
