"""What the study of neighbours trains embeddings for."""

from typing import Any

import torch
from torch import Tensor, nn

import neuralsort.torch as ns

from ..data.augmentation import Augmentation
from ..data.images import CLASSES
from ..networks.orderings import Tau


class NeighbourLoss(nn.Module):
    """The loss of soft neighbours.

    Args:
        network: Images to points.
        k: Neighbours that count.
        tau: Temperature.
        samples: Of Plackett-Luce for every query; None sorts without noise.
        scale: What points are multiplied by first: squared distances go with its square, and the
            noise of samples does not.
        augment: What training does to images.
        halves: Whether the first half of a batch are queries and the second their candidates, as
            in the paper; else every image is both, though never its own candidate.
        logarithm: Whether to take minus the log of the share of good neighbours, in place of minus
            the share: queries that go wrong then pull harder than those that are nearly right.
    """

    def __init__(
        self,
        network: nn.Module,
        *,
        k: int,
        tau: Tau,
        samples: int | None,
        scale: float,
        augment: Augmentation,
        halves: bool,
        logarithm: bool,
    ) -> None:
        super().__init__()
        self.network, self.augment = network, augment
        self.knn = ns.nn.DifferentiableKNN(k, tau=tau, samples=samples)
        self.k, self.scale, self.halves, self.logarithm = k, scale, halves, logarithm

    def forward(self, images: Tensor, labels: Tensor) -> Tensor:
        """`(B, channels, height, width), (B,) -> ()`."""
        points = self.scale * self.embed(self.augment(images))
        if self.halves:
            middle = len(points) // 2
            queries, candidates = points[:middle], points[middle:]
            same, mask = labels[:middle].unsqueeze(-1) == labels[middle:], None
        else:
            queries = candidates = points
            same = labels.unsqueeze(-1) == labels
            mask = ~torch.eye(len(points), dtype=torch.bool, device=points.device)
        P = self.knn.neighbours(queries, candidates, mask=mask)
        loss = ns.knn_loss(P, same, k=self.k, mask=mask, reduction="none")
        return (-(-loss).clamp_min(1e-6).log() if self.logarithm else loss).mean()

    def embed(self, images: Tensor) -> Tensor:
        """Points, in which neighbours are looked for."""
        return self.network(images)


class Reconstruction(nn.Module):
    """The squared error of an autoencoder; points are its encodings.

    Args:
        autoencoder: With an `encoder`.
    """

    def __init__(self, autoencoder: Any) -> None:
        super().__init__()
        self.autoencoder = autoencoder

    def forward(self, images: Tensor, labels: Tensor) -> Tensor:
        """`(B, channels, height, width), (B,) -> ()`."""
        return (self.autoencoder(images) - images).square().mean()

    def embed(self, images: Tensor) -> Tensor:
        """Points, in which neighbours are looked for."""
        return self.autoencoder.encoder(images).flatten(1)


class Classification(nn.Module):
    """The cross-entropy of the same network with a layer of logits on top.

    Args:
        network: Images to points.
        outputs: Numbers per point.
        scale: Of the points before the layer, for those of length 1.
        augment: What training does to images.
    """

    def __init__(
        self, network: nn.Module, outputs: int, *, scale: float, augment: Augmentation
    ) -> None:
        super().__init__()
        self.network, self.scale, self.augment = network, scale, augment
        self.head = nn.Linear(outputs, CLASSES)

    def forward(self, images: Tensor, labels: Tensor) -> Tensor:
        """`(B, channels, height, width), (B,) -> ()`."""
        return nn.functional.cross_entropy(self.embed(self.augment(images)), labels)

    def embed(self, images: Tensor) -> Tensor:
        """Logits."""
        return self.head(self.scale * self.network(images))


class Fixed(nn.Module):
    """An embedding without anything to train.

    Args:
        network: Images to points.
    """

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def embed(self, images: Tensor) -> Tensor:
        """Points, in which neighbours are looked for."""
        return self.network(images)
