# %% [markdown]
# # A gate that keeps k of n tokens
#
# A transformer looks at all tokens, and pays for every one. Often a few would do. A *gate* scores the tokens and lets k of them through.
# The choice is a step function, so the scores get no gradient from it: how is the gate to learn which tokens matter?
# `soft_topk_mask(..., hard=True)` lets exactly k through in the forward pass, and hands back the gradient of a soft gate whose
# weights sum to k.
#
# Here a token is one of scikit-learn's handwritten digits. A sequence has sixteen of them. Three are small, 0 to 4, and the others
# large, 5 to 9. The network is to say the sum of the small ones, and may look at three tokens. Nobody tells it which, nor what
# digit an image shows: it learns from sums alone.

# %%
import os

import matplotlib.pyplot as plt
import torch
from sklearn.datasets import load_digits
from torch import nn

import neuralsort.torch as ns

QUICK = os.environ.get("NEURALSORT_GALLERY") == "quick"
STEPS, SEEDS = (20, 1) if QUICK else (2500, 1)
TOKENS, KEPT, WIDTH = 16, 3, 48

pixels, labels = (torch.tensor(part) for part in load_digits(return_X_y=True))
images = pixels.float() / 16
halves = [torch.arange(len(labels)) % 2 == part for part in (0, 1)]  # for training, for tests


def sequences(count, half):
    """Tokens `(count, 16, 64)`, the sums, and where the small digits are."""
    small = (half & (labels < 5)).nonzero().squeeze(-1)
    large = (half & (labels >= 5)).nonzero().squeeze(-1)
    chosen = torch.cat(
        [
            small[torch.randint(len(small), (count, KEPT))],
            large[torch.randint(len(large), (count, TOKENS - KEPT))],
        ],
        -1,
    )
    chosen = chosen.gather(-1, torch.rand(count, TOKENS).argsort(-1))
    matters = labels[chosen] < 5
    return images[chosen], (labels[chosen] * matters).sum(-1), matters


# %% [markdown]
# Three gates. The first takes tokens at random. The second is often found: take the largest scores and multiply the tokens by the
# sigmoid of their scores, so that some gradient arrives, though only from tokens that passed. The third is ours: all tokens feel the
# gradient, those that were left out too. Last, no gate at all: the network sees, and pays for, all sixteen.


# %%
def random_gate(scores):
    return torch.zeros_like(scores).scatter(-1, torch.rand_like(scores).topk(KEPT).indices, 1.0)


def sigmoid_gate(scores):
    kept = torch.zeros_like(scores).scatter(-1, scores.topk(KEPT).indices, 1.0)
    return kept * scores.sigmoid()


def soft_gate(scores):
    return ns.soft_topk_mask(scores, KEPT, tau=ns.Blur(1.0), hard=True)


def no_gate(scores):
    return torch.ones_like(scores)


# %% [markdown]
# A small transformer: one block of attention that sees only tokens that passed, then the sum of what they say.


# %%
class Reader(nn.Module):
    def __init__(self, gate):
        super().__init__()
        self.gate = gate
        self.embed = nn.Sequential(nn.Linear(64, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH))
        self.score = nn.Sequential(nn.Linear(64, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 1))
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.head = nn.Linear(WIDTH, 1)

    def forward(self, tokens):
        x = self.embed(tokens)  # (sequences, tokens, width)
        self.open = self.gate(self.score(tokens).squeeze(-1))
        q, k, v = self.qkv(x).chunk(3, -1)
        weights = (q @ k.mT / WIDTH**0.5).exp() * self.open.unsqueeze(-2)
        x = x + self.out(weights / (weights.sum(-1, keepdim=True) + 1e-6) @ v)
        return self.head((x * self.open.unsqueeze(-1)).sum(-2)).squeeze(-1)


def trained(gate, seed):
    torch.manual_seed(seed)
    model = Reader(gate)
    optimiser = torch.optim.Adam(model.parameters())
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, 5e-3, total_steps=STEPS)
    for _ in range(STEPS):
        tokens, sums, _ = sequences(64, halves[0])
        loss = (model(tokens) - sums).square().mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        schedule.step()
    return model


# %% [markdown]
# On images that were not trained on: how often the sum is right, and how many of the three small digits the gate lets through.

# %%
gates = {
    "random": random_gate,
    "topk and sigmoid": sigmoid_gate,
    "soft_topk_mask": soft_gate,
    "all 16 tokens": no_gate,
}
right, found, shown = {}, {}, None
for name, gate in gates.items():
    right[name], found[name] = [], []
    for seed in range(SEEDS):
        model = trained(gate, seed)
        shown = model if gate is soft_gate else shown
        with torch.no_grad():
            tokens, sums, matters = sequences(2000, halves[1])
            right[name].append((model(tokens).round() == sums).double().mean().item())
            found[name].append((model.open > 0)[matters].double().mean().item())
    right[name], found[name] = sum(right[name]) / SEEDS, sum(found[name]) / SEEDS
    print(f"{name:>17}: {right[name]:6.1%} of sums right, {found[name]:6.1%} of small digits seen")

# %%
tokens, sums, matters = sequences(4, halves[1])
figure, axes = plt.subplots(4, TOKENS, figsize=(9, 2.6), layout="constrained")
with torch.no_grad():
    shown(tokens)
for line, sequence, kept in zip(axes, tokens, shown.open > 0, strict=True):
    for one, image, passed in zip(line, sequence, kept.tolist(), strict=True):
        one.imshow(image.view(8, 8), cmap="gray_r", alpha=1.0 if passed else 0.25)
        one.set_axis_off()
plt.show()

# %% [markdown]
# Pale digits did not pass. With the gradient of the soft gate the network learns which digits matter, and with three tokens it is about as good as the one that sees all sixteen. Where only
# tokens that passed have a gradient, it stays far behind: a token that is never let through cannot show what it is worth. This is one run of each; the number of steps and the learning rate were chosen by looking at such runs.
#
# A gate has to be needed. On single digits cut into patches, which we tried first, the patches that vary most, the same for all images, did better than a gate that was learned.

# %%
ours, plain = right["soft_topk_mask"], right["topk and sigmoid"]
print(
    f"{ours:.1%} of sums right with soft_topk_mask, {plain:.1%} with topk and sigmoid, "
    f"{right['random']:.1%} with random tokens, {right['all 16 tokens']:.1%} with all of them"
)
