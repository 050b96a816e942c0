# %% [markdown]
# # A jigsaw: when one score per item is not enough
#
# An image is cut into nine pieces and shuffled. A network is to put it together again. It sees pieces and whole images while it
# learns, never which piece goes where: the permutation is *latent*.
#
# Sorting gives every item one number, and the order of the numbers is the answer. A piece of a jigsaw does not have one number. If it fits
# the top left corner or the bottom right one, as blank pieces do, its number would have to be near 1 or near 9, and what a network that is in doubt
# will say is the mean, 5, where the piece fits least. What a piece has is nine numbers: how well it fits every place. That is a matrix of
# pieces by places, and `sinkhorn` makes a relaxed permutation of it: rows and columns that sum to 1.
#
# The images are scikit-learn's handwritten digits, with a border that makes them 9 x 9.

# %%
import os

import matplotlib.pyplot as plt
import torch
from sklearn.datasets import load_digits
from torch import nn

import neuralsort.torch as ns

QUICK = os.environ.get("NEURALSORT_GALLERY") == "quick"
STEPS, SEEDS = (30, 1) if QUICK else (1200, 1)
PLACES = 9

pixels, _ = load_digits(return_X_y=True)
images = nn.functional.pad(torch.tensor(pixels).float().view(-1, 8, 8) / 16, (0, 1, 0, 1))
pieces = images.view(-1, 3, 3, 3, 3).transpose(2, 3).reshape(-1, PLACES, 9)  # in their places
torch.manual_seed(0)
train, test = torch.randperm(len(pieces)).split(1300)


# %% [markdown]
# A network looks at every piece, and at the sum of what it sees in all of them, and gives each so many numbers. Three ways to use them:
# nine numbers per piece and `sinkhorn`; nine numbers and a softmax for every place alone, which may take a piece twice; one number per
# piece and `neuralsort`.


# %%
class Solver(nn.Module):
    def __init__(self, numbers):
        super().__init__()
        self.look = nn.Sequential(nn.Linear(9, 96), nn.ReLU(), nn.Linear(96, 96), nn.ReLU())
        self.tell = nn.Sequential(nn.Linear(192, 128), nn.ReLU(), nn.Linear(128, numbers))

    def forward(self, shuffled):
        seen = self.look(shuffled)  # (images, pieces, 96)
        all_seen = seen.mean(-2, keepdim=True).expand_as(seen)
        return self.tell(torch.cat([seen, all_seen], -1))  # (images, pieces, numbers)


def by_sinkhorn(numbers):
    return ns.sinkhorn(numbers.mT, tau=1.0, iterations=20)  # places x pieces


def by_softmax(numbers):
    return ns.RelaxedPermutation.from_dense(numbers.mT.softmax(-1))


def by_scores(numbers):
    return ns.neuralsort(numbers.squeeze(-1), tau=1.0)


WAYS = {
    "sinkhorn": (by_sinkhorn, PLACES),
    "softmax": (by_softmax, PLACES),
    "scores": (by_scores, 1),
}


# %% [markdown]
# The loss compares the soft image, `P @ shuffled`, with the whole one. The test takes hard permutations, and counts pieces that are in a place where they
# look right: several blank pieces may change places.


# %%
def shuffle(pieces):
    order = torch.rand(pieces.shape[:2]).argsort(-1)
    return pieces.take_along_dim(order.unsqueeze(-1), 1)


def trained(relax, numbers, seed):
    torch.manual_seed(seed)
    model = Solver(numbers)
    optimiser = torch.optim.Adam(model.parameters(), lr=2e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, 4e-3, total_steps=STEPS)
    for _ in range(STEPS):
        whole = pieces[train[torch.randint(len(train), (64,))]]
        shuffled = shuffle(whole)
        loss = (relax(model(shuffled)) @ shuffled - whole).square().mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        schedule.step()
    return model


@torch.no_grad()
def solved(model, relax, whole):
    shuffled = shuffle(whole)
    order = relax(model(shuffled)).permutation()
    return shuffled, shuffled.take_along_dim(order.unsqueeze(-1), 1)


share, shown = {}, {}
for name, (relax, numbers) in WAYS.items():
    rights = []
    for seed in range(SEEDS):
        model = trained(relax, numbers, seed)
        torch.manual_seed(0)
        shuffled, shown[name] = solved(model, relax, pieces[test])
        rights.append((shown[name] == pieces[test]).all(-1).double())
    right = torch.stack(rights)
    share[name] = right.mean().item()
    images_right = (right == 1).all(-1).double().mean()
    print(f"{name:>9}: {share[name]:.1%} of pieces right, {images_right:.1%} of images")

# %%
figure, axes = plt.subplots(4, 8, figsize=(7, 3.6), layout="constrained")
pictures = {"shuffled": shuffled, **shown}
for line, (name, drawn) in zip(axes, pictures.items(), strict=True):
    for one, image in zip(line, drawn[:8], strict=True):
        one.imshow(image.view(3, 3, 3, 3).transpose(1, 2).reshape(9, 9), cmap="gray_r")
        one.set(xticks=[], yticks=[])
    line[0].set_ylabel(name)
plt.show()

# %% [markdown]
# Nine numbers per piece are what a jigsaw needs; one number does not carry it. Whether the columns sum to 1 while the network learns makes no
# difference to speak of here: `permutation()` gives both the best assignment of pieces to places in the end. If a task is like this one, use
# a matrix; if items have one number each, a sort. This is one run of each.

# %%
ours, plain = share["sinkhorn"], share["scores"]
print(
    f"{ours:.1%} of pieces right by sinkhorn, {share['softmax']:.1%} by a softmax per place, "
    f"{plain:.1%} by one score per piece"
)
