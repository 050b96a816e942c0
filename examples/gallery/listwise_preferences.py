# %% [markdown]
# # Preferences: what a ranking tells that a pair does not
#
# A policy gives answers to prompts. People say which answers they like better, and the policy is to learn from that without drifting
# far from where it started. Direct preference optimisation (DPO) learns from pairs: this answer rather than that one. People who look at six
# answers can as well rank them. `listwise_dpo_loss` takes the whole ranking at once; of two answers it is DPO's loss.
#
# The data are made here, so that we know what people like: a prompt and an answer are vectors, and an answer is liked for a
# hidden function of both. Rankings are noisy: they are drawn from Plackett-Luce.

# %%
import os

import matplotlib.pyplot as plt
import torch
from torch import nn

import neuralsort.torch as ns

QUICK = os.environ.get("NEURALSORT_GALLERY") == "quick"
STEPS, SEEDS, PROMPTS = (100, 1, 200) if QUICK else (300, 3, 300)
ANSWERS, SHOWN, SIZE, BETA = 50, 6, 8, 0.1

generator = torch.Generator().manual_seed(0)
catalogue = torch.randn(ANSWERS, SIZE, generator=generator)  # all answers there are
taste = torch.randn(SIZE, SIZE, generator=generator) / SIZE**0.5


def liked(prompts):
    """`(prompts, answers)`: how much each answer is liked, which nobody sees."""
    return (prompts @ taste).tanh() @ catalogue.mT


# %% [markdown]
# For every training prompt the reference policy, which is still indifferent, shows six answers, and somebody ranks them, best first.


# %%
def ranked(count, seed):
    """Prompts, the answers shown `(count, 6)`, and their ranking `(count, 6)`."""
    generator = torch.Generator().manual_seed(seed)
    prompts = torch.randn(count, SIZE, generator=generator)
    shown = torch.rand(count, ANSWERS, generator=generator).argsort(-1)[:, :SHOWN]
    utility = liked(prompts).gather(-1, shown)
    return prompts, shown, ns.PlackettLuce(utility).sample(generator=generator)


class Policy(nn.Module):
    """Log-probabilities of all answers to a prompt."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Sequential(nn.Linear(SIZE, 64), nn.Tanh(), nn.Linear(64, SIZE))

    def forward(self, prompts):
        return (self.embed(prompts) @ catalogue.mT).log_softmax(-1)


# %% [markdown]
# One loss for all, given other rankings: of two answers, the best and the worst, or two at random, which is DPO as usual;
# of the best one alone against the rest; of all six. Last, DPO on all fifteen pairs of a ranking.


# %%
def best_and_worst(ranking):
    return ranking[:, [0, -1]]


def random_pair(ranking):
    generator = torch.Generator().manual_seed(0)  # the same pair of a ranking at every step
    chosen = torch.rand(ranking.shape, generator=generator).argsort(-1)[:, :2].sort(-1).values
    return ranking.gather(-1, chosen)


def pair_loss(policy, reference, pair):
    logps = [part.gather(-1, pair) for part in (policy, reference)]
    first_wins = torch.tensor([0, 1]).expand(len(pair), -1)
    return ns.listwise_dpo_loss(*logps, first_wins, beta=BETA)


LOSSES = {
    "a random pair": lambda p, r, ranking: pair_loss(p, r, random_pair(ranking)),
    "best and worst": lambda p, r, ranking: pair_loss(p, r, best_and_worst(ranking)),
    "all pairs": lambda p, r, ranking: sum(
        pair_loss(p, r, ranking[:, [i, j]]) for i in range(SHOWN) for j in range(i + 1, SHOWN)
    ),
    "the best alone": lambda p, r, ranking: ns.listwise_dpo_loss(p, r, ranking[:, :1], beta=BETA),
    "the ranking": lambda p, r, ranking: ns.listwise_dpo_loss(p, r, ranking, beta=BETA),
}


# %%
def train(loss, seed):
    prompts, shown, ranking = ranked(PROMPTS, seed)
    torch.manual_seed(seed)
    policy, reference = Policy(), Policy()
    reference.load_state_dict(policy.state_dict())
    before = reference(prompts).gather(-1, shown).detach()
    optimiser = torch.optim.Adam(policy.parameters(), lr=3e-3)
    for _ in range(STEPS):
        value = loss(policy(prompts).gather(-1, shown), before, ranking)
        optimiser.zero_grad()
        value.backward()
        optimiser.step()
    return policy


@torch.no_grad()
def worth(policy):
    """How much its first answers to new prompts are liked; 0 is an answer at random, 1 the best one."""
    prompts = torch.randn(2000, SIZE, generator=torch.Generator().manual_seed(99))
    utility = liked(prompts)
    chance, best = utility.mean(), utility.max(-1).values.mean()
    said = utility.gather(-1, policy(prompts).argmax(-1, keepdim=True)).mean()
    return ((said - chance) / (best - chance)).item()


mean = {}
for name, loss in LOSSES.items():
    mean[name] = sum(worth(train(loss, seed)) for seed in range(SEEDS)) / SEEDS
    print(f"{name:>15}: {mean[name]:.3f}")

# %%
figure, axes = plt.subplots(figsize=(6, 2.4), layout="constrained")
axes.barh(list(mean), list(mean.values()))
axes.set(xlabel="how much first answers are liked: 0 at random, 1 the best")
plt.show()

# %% [markdown]
# What was asked once, the ranking of six answers, teaches more than one pair of it. All fifteen pairs of the ranking, DPO's way, do about as
# well as the ranking itself: the information is the same. The ranking is one term instead of fifteen, and a likelihood.

# %%
ours, plain = mean["the ranking"], mean["a random pair"]
print(
    f"answers worth {ours:.2f} of the best by rankings, {mean['all pairs']:.2f} by all pairs, "
    f"{mean['best and worst']:.2f} by best and worst, {plain:.2f} by a random pair"
)
