# %% [markdown]
# # Learning to rank padded lists in bfloat16
#
# A search engine scores documents, and what counts is their order. Queries have lists of different lengths, which are padded to one, and
# bfloat16 halves the memory of what a network computes. Both are traps for a soft sort: padding must not take part, and in bfloat16, which has three
# decimal digits, sums of differences lose the order of a list. Here the padding has a `mask`, and the inside is computed in
# float32 where that is needed.
#
# `neural_ndcg` is a soft form of NDCG, the usual measure of a ranking. The plain alternative is to predict the grade of each document on its own.

# %%
import os

# Some virtual machines claim units for bfloat16 that they do not have. To be set before torch is imported:
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_FP16")

import matplotlib.pyplot as plt
import torch
from torch import nn

import neuralsort.torch as ns
from neuralsort.experiments.data.downloads import DataError
from neuralsort.experiments.data.letor import load_fold

QUICK = os.environ.get("NEURALSORT_GALLERY") == "quick"
EPOCHS, FOLDS = (2, 1) if QUICK else (10, 2)

# %% [markdown]
# Where `NEURALSORT_DATA` names a folder with LETOR's MQ2008, that is what is ranked: real queries, 46 features a document, grades 0 to 2. Otherwise lists are made: a
# hidden rule gives grades to random documents. `pad_groups` turns rows that carry the number of their query into padded lists.


# %%
def made(seed, queries=300, features=46):
    generator = torch.Generator().manual_seed(seed)
    groups = torch.arange(queries).repeat_interleave(
        torch.randint(5, 30, (queries,), generator=generator)
    )
    documents = torch.randn(len(groups), features, generator=generator)
    rule = torch.randn(features, generator=torch.Generator().manual_seed(7))
    worth = documents @ rule / 7 + torch.randn(len(groups), generator=generator)
    grades = (worth > 0.8).float() + (worth > 1.6).float()
    lists, mask = ns.pad_groups(documents, groups)
    return lists, ns.pad_groups(grades, groups)[0], mask


def data(fold):
    """Features, grades and mask of the training queries and of the test queries, and their name."""
    try:
        parts = load_fold(fold)
    except DataError:
        return made(2 * fold), made(2 * fold + 1), "made lists"
    pair = [(one.features, one.relevance, one.mask) for one in (parts["train"], parts["test"])]
    return *pair, "MQ2008"


# %% [markdown]
# The network and the loss are both in bfloat16, or both in float32. Optimisers need the small steps of float32, so the parameters stay
# there: `autocast` takes care of the network, and the scores come out in bfloat16.


# %%
def trained(loss, lists, grades, mask, dtype, seed=0):
    torch.manual_seed(seed)
    model = nn.Sequential(
        nn.Linear(lists.shape[-1], 64),
        nn.ReLU(),
        nn.Dropout(0.3),
        nn.Linear(64, 64),
        nn.ReLU(),
        nn.Linear(64, 1),
    )
    optimiser = torch.optim.Adam(model.parameters(), lr=1e-3)
    for _ in range(EPOCHS):
        for batch in torch.randperm(len(lists)).split(16):
            longest = int(mask[batch].sum(-1).max())
            part = [x[batch, :longest] for x in (lists, grades, mask)]
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=dtype == torch.bfloat16):
                scores = model(part[0]).squeeze(-1)
            assert scores.dtype == dtype
            value = loss(scores, *part[1:])
            optimiser.zero_grad()
            value.backward()
            optimiser.step()
    return model.eval()


def grade_by_grade(scores, grades, mask):
    return (scores - grades)[mask].square().mean()


def soft_ndcg(scores, grades, mask):
    return ns.neural_ndcg(scores, grades, tau=1.0, k=10, mask=mask)


# %%
@torch.no_grad()
def ndcg(model, lists, grades, mask):
    return ns.metrics.ndcg(model(lists).squeeze(-1), grades, k=10, mask=mask).item()


WAYS = {
    "grade by grade, float32": (grade_by_grade, torch.float32),
    "neural_ndcg, float32": (soft_ndcg, torch.float32),
    "neural_ndcg, bfloat16": (soft_ndcg, torch.bfloat16),
}
rows = {name: [] for name in WAYS}
for fold in range(1, FOLDS + 1):
    train, test, name_of_data = data(fold)
    for name, (loss, dtype) in WAYS.items():
        rows[name].append(ndcg(trained(loss, *train, dtype), *test))
mean = {name: sum(values) / FOLDS for name, values in rows.items()}
print(f"NDCG@10 on {name_of_data}, the mean over {FOLDS} folds")
for name, value in mean.items():
    print(f"{name:>24}: {value:.3f}")

# %% [markdown]
# What the scores themselves look like in bfloat16: of a hundred numbers around 100, half a unit apart. The paper's formula, in bfloat16
# throughout, finds the wrong item in many places. Ours finds the right one, because only the input and the result are short.

# %%
scores = (100 + 0.5 * torch.randperm(100)).bfloat16()
spread = (scores[:, None] - scores).abs().sum(-1)
formula = (torch.arange(99, -100, -2).bfloat16()[:, None] * scores - spread).argmax(-1)
by_hand = (scores[formula] == scores.sort(descending=True).values).float().mean().item()
sorted_by_us = ns.neuralsort(scores, tau=0.1).to_dense().argmax(-1)
by_us = (scores[sorted_by_us] == scores.sort(descending=True).values).float().mean().item()
print(f"places with the right score: {by_hand:.0%} by the formula in bfloat16, {by_us:.0%} by ours")

figure, axes = plt.subplots(figsize=(6, 2), layout="constrained")
axes.barh(list(mean), list(mean.values()))
axes.set(xlabel=f"NDCG@10 on {name_of_data}")
plt.show()

# %% [markdown]
# Short numbers cost nothing: the ranking learned in bfloat16 is as good as the one in float32. On this data the soft NDCG is no better than grades, predicted one by one; differences of a few
# thousandths say little. [Losses](../losses.md#which-loss-ranks-best) compares all losses on it, with intervals.

# %%
ours, plain = mean["neural_ndcg, bfloat16"], mean["grade by grade, float32"]
print(
    f"NDCG@10 {ours:.3f} in bfloat16, {mean['neural_ndcg, float32']:.3f} in float32, "
    f"{plain:.3f} grade by grade, on {name_of_data}"
)
