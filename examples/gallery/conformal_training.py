# %% [markdown]
# # Conformal training: small sets that hold the right label
#
# A conformal classifier answers with a *set* of labels that holds the right one with a promised probability, whatever the network behind
# it. It takes every label that fits better than a quantile of how right labels fitted on images kept for calibration. The promise holds by construction.
# What depends on the network is how large the sets are, and training usually does not know of them.
#
# Conformal training (Stutz et al., 2022) does. Every batch is split in two: a soft quantile of one half, `conformal_quantile`, says which
# labels the sets of the other half would hold, softly, and their mean size is part of the loss.
#
# The data are scikit-learn's handwritten digits under heavy noise, which is drawn anew whenever an image is looked at. Otherwise a network learns its
# training images by heart, is sure of all of them, and has nothing left to learn about doubt.

# %%
import copy
import os

import matplotlib.pyplot as plt
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.functional import cross_entropy

import neuralsort.torch as ns

QUICK = os.environ.get("NEURALSORT_GALLERY") == "quick"
STEPS, SEEDS, CALIBRATIONS = (60, 1, 10) if QUICK else (800, 3, 50)
ALPHA, NOISE = 0.05, 0.6

pixels, labels = (torch.tensor(part) for part in load_digits(return_X_y=True))
images = pixels.float() / 16


def network():
    return nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))


def noisy(images):
    return images + NOISE * torch.randn_like(images)


# %% [markdown]
# How strange a label is: one minus its probability. The size of a set is at least one in the loss: an empty set is no gain.


# %%
def strangeness(logits):
    return 1 - logits.softmax(-1)


def of_labels(scores, labels):
    return scores.gather(-1, labels[:, None]).squeeze(-1)


def set_size(logits, labels):
    """The mean soft size of sets in one half of a batch, at the soft quantile of the other."""
    half = len(logits) // 2
    scores = strangeness(logits)
    known = of_labels(scores[:half], labels[:half])
    quantile = ns.conformal_quantile(known, ALPHA, tau=ns.Blur(2.0))
    inside = torch.sigmoid((quantile - scores[half:]) / 0.1)
    return (inside.sum(-1) - 1).clamp(min=0).mean()


def train(model, chosen, weight):
    optimiser = torch.optim.Adam(model.parameters(), lr=2e-3)
    for _ in range(STEPS):
        batch = chosen[torch.randint(len(chosen), (200,))]
        logits = model(noisy(images[batch]))
        loss = cross_entropy(logits, labels[batch])
        if weight:
            loss = loss + weight * set_size(logits, labels[batch])
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    return model


# %% [markdown]
# Hard sets, for images that no network has trained on. Half of them calibrate, the other half test, many times over.


# %%
@torch.no_grad()
def coverage_and_size(model, chosen):
    scores, right = strangeness(model(noisy(images[chosen]))), labels[chosen]
    covered, size = [], []
    for _ in range(CALIBRATIONS):
        calibrate, test = torch.randperm(len(chosen)).tensor_split(2)
        known = of_labels(scores[calibrate], right[calibrate])
        inside = scores[test] <= ns.conformal_quantile(known, ALPHA, tau=0)
        covered.append(of_labels(inside, right[test]).double().mean())
        size.append(inside.sum(-1).double().mean())
    return torch.stack(covered).mean().item(), torch.stack(size).mean().item()


# %% [markdown]
# Both networks start from the same training and go on for as many steps, so that only what they are for differs.

# %%
WEIGHTS = {"cross-entropy": 0.0, "small sets, weight 0.5": 0.5, "small sets, weight 2": 2.0}
rows = {name: [] for name in WEIGHTS}
for seed in range(SEEDS):
    torch.manual_seed(seed)
    inside, outside = torch.randperm(len(images)).split(900)
    start = train(network(), inside, 0.0)
    for name, weight in WEIGHTS.items():
        model = train(copy.deepcopy(start), inside, weight)
        rows[name].append(coverage_and_size(model, outside))
mean = {name: torch.tensor(values).mean(0).tolist() for name, values in rows.items()}
print(f"coverage promised: {1 - ALPHA:.1%}")
for name, (covered, size) in mean.items():
    print(f"{name:>24}: coverage {covered:.1%}, {size:.3f} labels in a set")

# %%
figure, axes = plt.subplots(figsize=(6, 2), layout="constrained")
axes.barh(list(mean), [size for _, size in mean.values()])
axes.set(xlabel="labels in a set")
plt.show()

# %% [markdown]
# Both keep the promise. Training for small sets does not win here: its sets are larger than those of cross-entropy alone, and with more weight
# larger still. A likely reason is that the term makes a network surer of its training images, and sets are made of how strange the right labels of
# *new* images look. Measure the size on images that were kept aside before you trust it.

# %%
ours, plain = mean["small sets, weight 0.5"][1], mean["cross-entropy"][1]
print(
    f"{ours:.2f} labels in a set when trained for small sets, {plain:.2f} by cross-entropy; "
    f"coverage {mean['small sets, weight 0.5'][0]:.1%} and {mean['cross-entropy'][0]:.1%}"
)
