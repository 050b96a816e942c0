# %% [markdown]
# # The paper's sorting study in ten minutes
#
# The task of the paper: a list of five images, each showing a number of four handwritten digits. Put them in order, the largest first. Training
# lists come with their right order and nothing else: no number, no digit. The network has to find out by itself what a digit is
# worth, and that the first one counts a thousandfold.
#
# The study in full, with its recipes, lines and reports, is `neuralsort train sort`; [the studies](../studies.md) tell the rest. Here it is by hand, with
# the pieces of the studies: the lists, and a network that reads digits.

# %%
import os

import matplotlib.pyplot as plt
import torch
from torch import nn

import neuralsort.torch as ns
from neuralsort.experiments.data.augmentation import jitter
from neuralsort.experiments.data.numbers import Sequences, load_digits
from neuralsort.experiments.networks.readers import CellReader, PlaceSum

QUICK = os.environ.get("NEURALSORT_GALLERY") == "quick"
STEPS, TESTS = (8, 50) if QUICK else (1000, 2000)
N, PLACES, LISTS = 5, 4, 24
DATA = "mnist" if os.environ.get("NEURALSORT_DATA") else "digits"  # or those of scikit-learn

splits = load_digits(DATA)
tests = Sequences.fixed(splits["test"], "test", TESTS, N, PLACES)
height, width = splits["train"].images.shape[1:]
print(f"{DATA}: digits of {height} x {width} pixels")

figure, axes = plt.subplots(1, N, figsize=(9, 1.2), layout="constrained")
for one, image, value in zip(axes, tests[:1].images()[0], tests.values[0].tolist(), strict=True):
    one.imshow(image, cmap="gray_r")
    one.set_title(f"{value:04d}", fontsize=9)
    one.set_axis_off()
plt.show()

# %% [markdown]
# A network reads the digits of an image one by one, each as a mixture of sixteen kinds that have no meaning yet, and adds up what the
# kinds are worth in their place. That is the score of an image. Five scores, sorted, are the order.
#
# Three ways to learn from the right order. *NeuralSort*: the cross-entropy of every row of the relaxed permutation, the paper's loss.
# *Plackett-Luce*: the likelihood of the order if items were drawn one after the other, which needs no relaxation. *Rows*: the paper's plain baseline; the
# network says for all five places which image belongs there, from all images at once, with no idea of sorting.


# %%
class Rows(nn.Module):
    """Places `(lists, n, n)` from all images of a list together."""

    def __init__(self, kinds):
        super().__init__()
        size = N * PLACES * kinds
        self.layers = nn.Sequential(nn.Linear(size, 256), nn.ReLU(), nn.Linear(256, N * N))

    def forward(self, read):
        return self.layers(read.flatten(1)).unflatten(-1, (N, N)).log_softmax(-1)


def by_neuralsort(scores, order):
    return ns.permutation_cross_entropy(ns.neuralsort(scores.squeeze(-1), tau=0.5), order)


def by_plackett_luce(scores, order):
    return ns.plackett_luce_nll(scores.squeeze(-1), order)


def by_rows(rows, order):
    return -rows.gather(-1, order.unsqueeze(-1)).mean()


# %% [markdown]
# A trick of our recipe: images are read once per step, and the 120 numbers that were read make ten times as many lists.


# %%
def trained(loss, head):
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(0)
    reader = CellReader(height, PLACES * width, PLACES)
    head = head(reader.outputs)
    parameters = [*reader.parameters(), *head.parameters()]
    optimiser = torch.optim.AdamW(parameters, lr=2e-2)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, 2e-2, total_steps=STEPS)
    for _ in range(STEPS):
        drawn = Sequences.draw(splits["train"], LISTS, N, PLACES, generator)
        read = reader(jitter(drawn.images(), PLACES)).flatten(0, 1)
        which, lists = drawn.mixed(10 * LISTS, generator)
        value = loss(head(read[which]), lists.order())
        optimiser.zero_grad()
        value.backward()
        nn.utils.clip_grad_norm_(parameters, 5.0)
        optimiser.step()
        schedule.step()
    return reader.eval(), head


@torch.no_grad()
def ordered(reader, head):
    """The order of the test lists, as the network sees it."""
    said = torch.cat([head(reader(part.images())) for part in tests.chunks(100)])
    return said.argmax(-1) if said.shape[-1] == N else said.squeeze(-1).argsort(descending=True)


WAYS = {
    "NeuralSort": (by_neuralsort, lambda kinds: PlaceSum(PLACES, kinds, 1)),
    "Plackett-Luce": (by_plackett_luce, lambda kinds: PlaceSum(PLACES, kinds, 1)),
    "rows": (by_rows, Rows),
}
whole = {}
for name, (loss, head) in WAYS.items():
    values = tests.values.gather(-1, ordered(*trained(loss, head)))
    right = values == tests.values.sort(-1, descending=True).values  # equal numbers may swap
    whole[name] = right.all(-1).double().mean().item()
    print(f"{name:>14}: {whole[name]:.1%} of lists right, {right.double().mean():.1%} of places")

# %% [markdown]
# A network that knows nothing of sorting is far behind: it has to learn for every place anew what a number is. The relaxed sort and the likelihood need one score per image,
# and are equally good here. Where the whole order is given, both are fair choices. The relaxed permutation is what you need where something passes through the sort: its values, a
# quantile, the nearest neighbours. This is one run of each.

# %%
ours, plain = whole["NeuralSort"], whole["rows"]
print(
    f"{ours:.1%} of lists of {N} {DATA} numbers right by NeuralSort, {whole['Plackett-Luce']:.1%} by Plackett-Luce, "
    f"{plain:.1%} by rows"
)
