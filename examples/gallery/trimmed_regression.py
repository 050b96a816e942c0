# %% [markdown]
# # Trimmed regression: labels that lie
#
# Least squares believes every label. If some of them are wrong, it bends towards the wrong ones most of all, because a square makes
# large errors larger. *Trimming* leaves out the points with the largest errors. Which points these are is a matter of sorting the
# errors, and it changes while the model learns. `soft_topk_mask` gives every point a weight between 0 and 1; the weights sum to the
# number of points to keep, and change smoothly with the errors.
#
# The data are real: 442 diabetes patients, ten measurements each, and how far the disease went within a year. They ship with
# scikit-learn. Some labels of the training part are replaced on purpose. Those of the test part are left as they are.

# %%
import os

import matplotlib.pyplot as plt
import torch
from sklearn.datasets import load_diabetes
from sklearn.linear_model import HuberRegressor

import neuralsort.torch as ns

QUICK = os.environ.get("NEURALSORT_GALLERY") == "quick"
SPLITS, STEPS = (2, 60) if QUICK else (20, 300)
WRONG, KEEP = 0.3, 0.6  # the share of wrong labels, and the share of points to believe

X, y = (torch.tensor(part, dtype=torch.float32) for part in load_diabetes(return_X_y=True))
X, y = (X - X.mean(0)) / X.std(0), (y - y.mean()) / y.std()


# %% [markdown]
# A wrong label is a high value for a patient who should have a low one. Such errors do not cancel out: they pull the line down.


# %%
def split(seed):
    """Training points with some wrong labels, and test points with right ones."""
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(len(X), generator=generator)
    train, test = order[:300], order[300:]
    labels = y[train].clone()
    wrong = torch.rand(len(train), generator=generator) < WRONG
    labels[wrong] = 3 - 3 * labels[wrong]
    return X[train], labels, wrong, X[test], y[test]


# %% [markdown]
# One training loop for all. What differs is what becomes of the squared errors. The temperature of the gate is in units of what it
# sorts, so it is set by the errors themselves: half of their median. Weights can be used in two ways: with their gradient, which also
# pushes points at the edge out or in, or as constants, which only says how much to believe every point at this step.


# %%
def least_squares(errors):
    return errors.mean()


def hard_trim(errors):
    return errors.topk(int(KEEP * len(errors)), largest=False).values.mean()


def soft_trim(errors):
    k, tau = int(KEEP * len(errors)), errors.detach().median() / 2
    weights = ns.soft_topk_mask(errors, k, tau=tau, largest=False)
    return (weights * errors).sum() / k


def soft_trim_constant(errors):
    k, tau = int(KEEP * len(errors)), errors.detach().median() / 2
    weights = ns.soft_topk_mask(errors.detach(), k, tau=tau, largest=False)
    return (weights * errors).sum() / k


def fit(loss, X, y):
    torch.manual_seed(0)
    model = torch.nn.Linear(X.shape[1], 1)
    optimiser = torch.optim.Adam(model.parameters(), lr=0.05)
    for _ in range(STEPS):
        errors = (model(X).squeeze(-1) - y).square()
        optimiser.zero_grad()
        loss(errors).backward()
        optimiser.step()
    return model


@torch.no_grad()
def r2(model, X, y):
    return 1 - ((model(X).squeeze(-1) - y).square().mean() / y.var(correction=0)).item()


# %% [markdown]
# Beside these stand Huber's regression, the usual answer to outliers, and least squares on the points whose labels are right, which
# nobody could know. R² on the test part, the mean over random splits; 1 is perfect, and 0 is what the mean of the labels gives:

# %%
losses = {
    "least squares": least_squares,
    "hard trim": hard_trim,
    "soft trim, with gradient": soft_trim,
    "soft trim, constant": soft_trim_constant,
}
scores = {name: [] for name in ("Huber", *losses, "right labels alone")}
for seed in range(SPLITS):
    X_train, labels, wrong, X_test, y_test = split(seed)
    models = {name: fit(loss, X_train, labels) for name, loss in losses.items()}
    models["right labels alone"] = fit(least_squares, X_train[~wrong], labels[~wrong])
    for name, model in models.items():
        scores[name].append(r2(model, X_test, y_test))
    huber = HuberRegressor(max_iter=1000).fit(X_train, labels)
    scores["Huber"].append(huber.score(X_test, y_test))

mean = {name: torch.tensor(values).mean().item() for name, values in scores.items()}
for name, value in mean.items():
    print(f"{name:>24}: {value:6.3f}")

# %% [markdown]
# What the gate believes, in the last split: the weight of every training point, by how far its label is from what the model says.

# %%
with torch.no_grad():
    errors = (models["soft trim, constant"](X_train).squeeze(-1) - labels).square()
    weights = ns.soft_topk_mask(
        errors, int(KEEP * len(errors)), tau=errors.median() / 2, largest=False
    )
figure, axes = plt.subplots(figsize=(6, 3))
for name, part in (("right label", ~wrong), ("wrong label", wrong)):
    axes.scatter(errors[part].sqrt(), weights[part], s=10, label=name)
axes.set(xlabel="distance of label and prediction", ylabel="weight")
axes.legend(frameon=False)
plt.show()

# %% [markdown]
# Trimming is what matters. Soft weights that are constants do as well as hard ones, and change smoothly from step to step. Their
# gradient is not needed here; with it the fit is a little worse. (The temperature was chosen on some of these splits, so take small differences for none.) If points may drop in and out, `topk` is a good answer too.

# %%
ours, plain = mean["soft trim, constant"], mean["least squares"]
print(
    f"R² on right labels {ours:.2f} with soft weights, {mean['hard trim']:.2f} with hard ones, "
    f"{mean['Huber']:.2f} by Huber, {plain:.2f} by least squares"
)
