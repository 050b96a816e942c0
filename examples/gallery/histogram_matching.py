# %% [markdown]
# # Matching histograms: the colours of one picture in another
#
# Sometimes every single value is free, and only their *distribution* is given: predictions that should be spread like the labels,
# activations that should be normal, the colours of one picture that should be those of another. Two samples have the same distribution if
# their sorted values agree. So a loss that compares sorted values compares histograms: with `soft_sort`, every value feels what its
# neighbours in rank should become.
#
# Here a small network recolours a photo so that its colours are spread like those of another. Both photos ship with scikit-learn.

# %%
import os

import matplotlib.pyplot as plt
import torch
from sklearn.datasets import load_sample_image
from torch import nn

import neuralsort.torch as ns

QUICK = os.environ.get("NEURALSORT_GALLERY") == "quick"
STEPS, SAMPLE = (15, 200) if QUICK else (500, 300)


def photo(name):
    return torch.from_numpy(load_sample_image(name)[::4, ::4].copy()).float() / 255


source, target = photo("china.jpg"), photo("flower.jpg")
points, wanted = source.reshape(-1, 3), target.reshape(-1, 3)


# %% [markdown]
# Colours have three channels, and three histograms do not make a colour. But if the histograms along *every* direction in the cube of colours agree,
# the colours do. Each step takes random directions, projects a sample of pixels onto them, sorts, and compares. The measure is the same
# with exact sorts, over many directions and all pixels: the sliced Wasserstein distance.


# %%
def directions(count):
    return nn.functional.normalize(torch.randn(3, count), dim=0)


def soft(x):
    return ns.soft_sort(x, tau=ns.Blur(2.0), dim=0)


def hard(x):
    return x.sort(dim=0).values


@torch.no_grad()
def distance(a, b, count=200):
    generator = torch.Generator().manual_seed(1)
    axes = nn.functional.normalize(torch.randn(3, count, generator=generator), dim=0)
    return (hard(a @ axes) - hard(b @ axes)).abs().mean().item()


def recoloured(sort, seed=0):
    """A network from colours to colours, trained so that sorted projections agree."""
    torch.manual_seed(seed)
    network = nn.Sequential(
        nn.Linear(3, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 3)
    )
    optimiser = torch.optim.Adam(network.parameters(), lr=2e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, STEPS)
    for _ in range(STEPS):
        a = points[torch.randint(len(points), (SAMPLE,))]
        b = wanted[torch.randint(len(wanted), (SAMPLE,))]
        axes = directions(16)
        loss = (sort((a + network(a)) @ axes) - hard(b @ axes)).square().mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        schedule.step()
    with torch.no_grad():
        return points + network(points)


# %% [markdown]
# The plain way is to match moments: shift and scale the channels to the mean and the spread of the other picture, or turn the colours so that all
# covariances agree as well.


# %%
def same_spread():
    return (points - points.mean(0)) / points.std(0) * wanted.std(0) + wanted.mean(0)


def same_covariance():
    roots = [torch.linalg.cholesky(x.T.cov()) for x in (points, wanted)]
    centred = (points - points.mean(0)) @ torch.linalg.inv(roots[0]).T
    return centred @ roots[1].T + wanted.mean(0)


results = {
    "as it was": points,
    "mean and spread": same_spread(),
    "covariances": same_covariance(),
    "torch.sort": recoloured(hard),
    "soft_sort": recoloured(soft),
}
far = {name: distance(result, wanted) for name, result in results.items()}
for name, value in far.items():
    print(f"{name:>16}: {value:.4f} from the colours of the other")

# %%
figure, axes = plt.subplots(1, 4, figsize=(10, 2.2), layout="constrained")
pictures = {
    "the colours wanted": target,
    **{
        name: results[name].reshape(source.shape)
        for name in ("as it was", "covariances", "soft_sort")
    },
}
for one, (name, picture) in zip(axes, pictures.items(), strict=True):
    one.imshow(picture.clamp(0, 1)[::2, ::2])
    one.set_title(name, fontsize=10)
    one.set_axis_off()
plt.show()

# %% [markdown]
# Means and spreads are two numbers of a histogram, and sorted values are all of them. Here `torch.sort` does as well as `soft_sort`: values
# of a hard sort have a gradient too, each to the item it came from. A soft sort is worth its price where the *order* must have a gradient,
# when other things are moved by it, as in `soft_sort_by`, or when ranks and quantiles are the target.

# %%
ours, plain = far["soft_sort"], far["covariances"]
print(
    f"colours {ours:.3f} from those wanted by soft_sort, {far['torch.sort']:.3f} by torch.sort, "
    f"{plain:.3f} by covariances, {far['as it was']:.3f} before"
)
