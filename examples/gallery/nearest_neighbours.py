# %% [markdown]
# # Learned nearest neighbours: a map of the digits
#
# k-nearest neighbours asks the points nearby. What is *near* decides everything, and distances between raw pixels are not made for
# the task. `DifferentiableKNeighborsClassifier` learns an embedding such that the nearest points of a point have its label. Which
# points are nearest is a sort of distances, and the gradient goes through a relaxed one.
#
# To see what is learned, and to make it hard, the embedding has two numbers only: every image of scikit-learn's handwritten digits
# becomes a point on a map. The usual ways to draw such a map are PCA, which knows no labels, and neighbourhood components analysis (NCA),
# the linear relative of our estimator in scikit-learn.

# %%
import os

import matplotlib.pyplot as plt
import numpy as np
import torch
from sklearn.datasets import load_digits
from sklearn.decomposition import PCA
from sklearn.model_selection import train_test_split
from sklearn.neighbors import KNeighborsClassifier, NeighborhoodComponentsAnalysis
from torch import nn

from neuralsort.neighbors import DifferentiableKNeighborsClassifier

QUICK = os.environ.get("NEURALSORT_GALLERY") == "quick"
EPOCHS, ROUNDS, SPLITS = (4, 5, 1) if QUICK else (60, 50, 2)

X, y = load_digits(return_X_y=True)
X = (X / 16).astype(np.float32)


# %% [markdown]
# Ours is used like any estimator of scikit-learn. The embedding is any PyTorch module; `transform` applies it.


# %%
def learned(seed):
    torch.manual_seed(seed)
    network = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Dropout(0.1), nn.Linear(128, 2))
    return DifferentiableKNeighborsClassifier(
        embedding=network, epochs=EPOCHS, tau=1.0, learning_rate=3e-3, random_state=seed
    )


def pca(seed):
    return PCA(2, random_state=seed)


def nca(seed):
    return NeighborhoodComponentsAnalysis(2, max_iter=ROUNDS, init="lda", random_state=seed)


MAPS = {"PCA": pca, "NCA": nca, "learned": learned}

# %% [markdown]
# How often five nearest neighbours on the map say the right digit, for images that were not trained on. For comparison, neighbours
# among all 64 pixels, and the same estimator as it comes, whose embedding has 64 numbers too:

# %%
rows = {name: [] for name in (*MAPS, "64 pixels", "64 numbers, learned")}
for seed in range(SPLITS):
    train_X, test_X, train_y, test_y = train_test_split(X, y, random_state=seed, stratify=y)
    drawn = {}
    for name, make in MAPS.items():
        mapper = make(seed).fit(train_X, train_y)
        drawn[name] = mapper.transform(test_X)
        votes = KNeighborsClassifier().fit(mapper.transform(train_X), train_y)
        rows[name].append(votes.score(drawn[name], test_y))
    rows["64 pixels"].append(KNeighborsClassifier().fit(train_X, train_y).score(test_X, test_y))
    whole = DifferentiableKNeighborsClassifier(random_state=seed, epochs=EPOCHS // 2)
    rows["64 numbers, learned"].append(whole.fit(train_X, train_y).score(test_X, test_y))
mean = {name: float(np.mean(values)) for name, values in rows.items()}
for name, value in mean.items():
    print(f"{name:>20}: {value:.1%}")

# %%
figure, axes = plt.subplots(1, 3, figsize=(9.5, 3.3), layout="constrained")
for one, (name, points) in zip(axes, drawn.items(), strict=True):
    one.scatter(*points.T, c=test_y, cmap="tab10", s=5)
    one.set_title(f"{name}: {mean[name]:.1%}")
    one.set(xticks=[], yticks=[])
plt.show()

# %% [markdown]
# Two numbers that were learned for neighbours serve them far better than two that were not. Where there is room for 64 numbers,
# raw pixels are good already, and learning the embedding has little left to gain:
# [the tutorial](../neighbors.md#tutorial-what-changes) has more of that kind.

# %%
ours, plain = mean["learned"], mean["PCA"]
print(
    f"two numbers per image: {ours:.1%} right when learned, {mean['NCA']:.1%} by NCA, "
    f"{plain:.1%} by PCA; all 64 pixels: {mean['64 pixels']:.1%}, learned {mean['64 numbers, learned']:.1%}"
)
