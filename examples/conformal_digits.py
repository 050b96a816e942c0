"""Conformal training on handwritten digits: a classifier that learns to give small sets of labels.

A conformal classifier answers with a set of labels that holds the right one with probability
1 - alpha, whatever the network: it takes every label whose score is above a quantile of the scores
that right labels had on images kept for calibration. How large the sets are is up to the network.
Training usually does not know of them. Here every batch is split in two: a soft quantile of one
half (`conformal_quantile`) says which labels sets of the other half would hold, softly, and their
mean size is part of the loss (Stutz et al., 2022). Both networks start from the same training.

Runs on scikit-learn's digits in about a minute: `python examples/conformal_digits.py`.
"""

import argparse
import copy

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, log_softmax

import neuralsort.torch as ns
from neuralsort.runtime.progress import Progress


def network() -> nn.Module:
    """Small on purpose: a network that is never in doubt has nothing to gain."""
    return nn.Sequential(nn.Linear(64, 8), nn.Tanh(), nn.Linear(8, 10))


def strangeness(logits: Tensor) -> Tensor:
    """How little each label fits: minus its log-probability."""
    return -log_softmax(logits, -1)


def set_size_loss(logits: Tensor, labels: Tensor, alpha: float) -> Tensor:
    """The mean soft size of sets in one half of a batch, at the soft quantile of the other."""
    half = len(logits) // 2
    scores = strangeness(logits)
    of_labels = scores[:half].gather(-1, labels[:half, None]).squeeze(-1)
    quantile = ns.conformal_quantile(of_labels, alpha, tau=0.1)
    inside = torch.sigmoid((quantile - scores[half:]) / 0.5)
    return (inside.sum(-1) - 1).clamp(min=0).mean()


def train(
    model: nn.Module, images: Tensor, labels: Tensor, *, steps: int, alpha: float, weight: float
) -> None:
    """Cross-entropy, and `weight` times the size of sets."""
    optimiser = torch.optim.Adam(model.parameters(), lr=3e-3)
    name = "set sizes" if weight else "cross-entropy"
    with Progress(f"training for {name}", steps) as progress:
        for step in range(steps):
            batch = torch.randint(0, len(images), (200,))
            logits = model(images[batch])
            loss = cross_entropy(logits, labels[batch])
            if weight:
                loss = loss + weight * set_size_loss(logits, labels[batch], alpha)
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            progress.update(step + 1, f"loss {loss.item():.3f}")


@torch.no_grad()
def coverage_and_size(
    model: nn.Module, images: Tensor, labels: Tensor, alpha: float, splits: int = 100
) -> tuple[float, float]:
    """Hard sets on random halves: how often they hold the label, and how many labels they hold."""
    scores = strangeness(model(images))
    covered, size = [], []
    for _ in range(splits):
        calibrate, test = torch.randperm(len(images)).split(len(images) // 2)[:2]
        of_labels = scores[calibrate].gather(-1, labels[calibrate, None]).squeeze(-1)
        inside = scores[test] <= ns.conformal_quantile(of_labels, alpha, tau=0)
        covered.append(inside.gather(-1, labels[test, None]).float().mean())
        size.append(inside.sum(-1).float().mean())
    return torch.stack(covered).mean().item(), torch.stack(size).mean().item()


def main() -> None:
    """Trains with and without the size of sets, and compares these."""
    parser = argparse.ArgumentParser(description="Conformal training on handwritten digits")
    parser.add_argument("--steps", type=int, default=1500)
    parser.add_argument("--alpha", type=float, default=0.02)
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args()
    pixels, targets = load_digits(return_X_y=True)
    images, labels = torch.tensor(pixels, dtype=torch.float32) / 16, torch.tensor(targets)
    print(f"coverage wanted: {1 - options.alpha:.3f}")
    print("| seed | trained for | coverage | labels in a set |\n|---|---|---|---|")
    for seed in range(options.seeds):
        torch.manual_seed(seed)
        shuffled = torch.randperm(len(images))
        inside, outside = shuffled[:600], shuffled[600:]
        model = network()
        plain = {"steps": options.steps, "alpha": options.alpha, "weight": 0.0}
        train(model, images[inside], labels[inside], **plain)
        conformal = copy.deepcopy(model)
        # As many steps for both, so that only what they are for differs.
        train(model, images[inside], labels[inside], **plain)
        train(conformal, images[inside], labels[inside], **{**plain, "weight": 0.5})
        for name, one in (("cross-entropy", model), ("small sets", conformal)):
            covered, size = coverage_and_size(one, images[outside], labels[outside], options.alpha)
            print(f"| {seed} | {name} | {covered:.3f} | {size:.2f} |")


if __name__ == "__main__":
    main()
