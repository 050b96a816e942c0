# %% [markdown]
# # Partial rankings: who is the fastest?
#
# Forty runners meet in races of eight. Only the first three of a race are written down. Who is how fast?
#
# The plain way is to average: the mean share of the field that a runner left behind. It is wrong when the fields differ, and they do:
# fast runners meet fast runners. Plackett-Luce gives every runner a *strength*. The winner of a race is drawn with probabilities in
# proportion to the exponentials of the strengths, then the second among those who are left, and so on. The strengths that make
# the results most likely take into account who was beaten. `plackett_luce_nll` is the negative log-likelihood, also of the first places alone.
#
# The races are made here, from known strengths, so that we can tell how far off an estimate is.

# %%
import os

import matplotlib.pyplot as plt
import torch

import neuralsort.torch as ns

QUICK = os.environ.get("NEURALSORT_GALLERY") == "quick"
WORLDS, RACES = (1, 150) if QUICK else (20, 400)
RUNNERS, FIELD, SEEN = 40, 8, 3


# %% [markdown]
# Fields are drawn from neighbours in strength, with some mixing: near a random runner on the list, as leagues do. A race is a draw
# from Plackett-Luce. What we get to see is `field`, who ran, and `places`, which of them came in first, second and third.


# %%
def season(seed):
    """Strengths, who ran in each race `(races, 8)`, and the first three of each `(races, 3)`."""
    generator = torch.Generator().manual_seed(seed)
    strengths = 2 * torch.randn(RUNNERS, generator=generator, dtype=torch.float64)
    strengths -= strengths.mean()
    near = strengths + torch.randn(RACES, RUNNERS, generator=generator, dtype=torch.float64)
    middle = strengths[torch.randint(RUNNERS, (RACES, 1), generator=generator)]
    field = (near - middle).abs().argsort(-1)[:, :FIELD]
    places = ns.PlackettLuce(strengths[field]).sample(generator=generator)[:, :SEEN]
    return strengths, field, places


# %% [markdown]
# The likelihood has one maximum. A quasi-Newton method finds it in a moment; the small term keeps the strength of somebody who was
# never seen among the first three from running away to minus infinity.


# %%
def fit(field, places, runners=RUNNERS, prior=1e-2):
    """The strengths that make the results most likely, with mean 0."""
    strengths = torch.zeros(runners, dtype=torch.float64, requires_grad=True)
    optimiser = torch.optim.LBFGS(
        [strengths], max_iter=200, tolerance_grad=1e-9, line_search_fn="strong_wolfe"
    )

    def closure():
        optimiser.zero_grad()
        loss = ns.plackett_luce_nll(strengths[field], places, reduction="sum")
        loss = (loss + prior * strengths.square().sum()) / len(field)
        loss.backward()
        return loss

    optimiser.step(closure)
    return (strengths - strengths.mean()).detach()


def average(field, places):
    """The mean share of others that a runner left behind; nobody knows of places after the third."""
    behind = torch.full(field.shape, (FIELD - SEEN - 1) / 2, dtype=torch.float64)
    behind.scatter_(1, places, (FIELD - 1 - torch.arange(SEEN).double()).expand(len(field), -1))
    total = torch.zeros(RUNNERS, dtype=torch.float64).index_add(
        0, field.flatten(), behind.flatten()
    )
    return total / torch.bincount(field.flatten(), minlength=RUNNERS).clamp(min=1) / (FIELD - 1)


# %% [markdown]
# How many pairs of runners come out in the right order, the mean over seasons:


# %%
def right_pairs(estimate, strengths):
    return (1 + ns.metrics.kendall_tau(estimate, strengths).item()) / 2


rows = {"average": [], "all fields alike": [], "Plackett-Luce": []}
for seed in range(WORLDS):
    strengths, field, places = season(seed)
    fitted = fit(field, places)
    # The same likelihood for somebody who forgets who lost: the three against all others.
    whole = field.gather(1, places)
    rows["average"].append(right_pairs(average(field, places), strengths))
    rows["all fields alike"].append(
        right_pairs(fit(torch.arange(RUNNERS).expand(RACES, -1), whole), strengths)
    )
    rows["Plackett-Luce"].append(right_pairs(fitted, strengths))
mean = {name: sum(values) / len(values) for name, values in rows.items()}
for name, value in mean.items():
    print(f"{name:>18}: {value:.1%} of pairs in the right order")

# %%
figure, axes = plt.subplots(1, 2, figsize=(8, 3.2), layout="constrained")
for one, estimate, label in (
    (axes[0], average(field, places), "mean share left behind"),
    (axes[1], fitted, "strength, Plackett-Luce"),
):
    one.scatter(strengths, estimate, s=12)
    one.set(xlabel="true strength", ylabel=label)
axes[1].axline((0, 0), slope=1, color="grey", linewidth=0.8)
plt.show()

# %% [markdown]
# The average rises and falls with the company that a runner keeps. The likelihood sees through it, and gives strengths in their
# true units. A fit to the same results that forgets who ran and lost is worse than the average: who was beaten is half of the news.

# %%
ours, plain = mean["Plackett-Luce"], mean["average"]
print(f"{ours:.1%} of pairs in the right order by Plackett-Luce, {plain:.1%} by averages")
