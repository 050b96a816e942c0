"""The nearest training images of test images: their votes, and pictures of them."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from neuralsort.neighbors import Index, voting

from ..data.augmentation import Augmentation
from ..data.images import CLASSES, Images, png
from ..training.trainer import Diverged

KS = (1, 3, 5, 9)
"""The numbers of neighbours that validation chooses from."""

QUERIES, NEIGHBOURS = 6, 6
"""Of a figure."""


@dataclass(frozen=True)
class Votes:
    """The nearest training images of every query.

    Attributes:
        distances: `(q, most)`.
        indices: `(q, most)`.
        known: `(q, most)`. Labels of the neighbours.
        labels: `(q,)`. Labels of the queries.
    """

    distances: np.ndarray
    indices: np.ndarray
    known: np.ndarray
    labels: np.ndarray

    @classmethod
    def of(
        cls,
        points: np.ndarray,
        index: Images,
        asked: np.ndarray,
        queries: Images,
        *,
        most: int = KS[-1],
    ) -> "Votes":
        """Looks for neighbours.

        Args:
            points: Embeddings of `index`.
            index: Training images.
            asked: Embeddings of `queries`.
            queries: Images to classify.
            most: Neighbours to keep.
        """
        distances, indices = Index(points, kind="torch").query(asked, most)
        labels = index.labels.numpy()
        return cls(distances, indices, labels[indices], queries.labels.numpy())

    def predictions(self, k: int, weights: str) -> np.ndarray:
        """The label with the most votes of the k nearest; of several, the smallest."""
        parts = voting.shares(self.distances[:, :k], weights)
        return voting.votes(self.known[:, :k], parts, CLASSES).argmax(1)

    def accuracy(self, k: int, weights: str) -> float:
        """The share of queries whose label wins."""
        return float((self.predictions(k, weights) == self.labels).mean())


@torch.no_grad()
def embed(model: Any, images: Images, augment: Augmentation | None = None) -> np.ndarray:
    """Points of images, averaged over the views that a test looks at.

    Raises:
        Diverged: If a number is not finite.
    """
    like = next(model.parameters(), torch.empty(0))
    parts = []
    for start in range(0, len(images), 250):
        floats = images[start : start + 250].floats().to(like)
        views = [floats] if augment is None else augment.views(floats)
        parts.append(torch.stack([model.embed(view) for view in views]).mean(0).cpu())
    points = torch.cat(parts).float()
    if not points.isfinite().all():
        raise Diverged("Training diverged: points of images are not finite. Lower --lr.")
    return points.numpy()


def project(points: np.ndarray) -> list[list[float]]:
    """Points in the plane that have much the same neighbours, by t-SNE, scaled to [0, 1]."""
    from sklearn.manifold import TSNE

    if not np.ptp(points, axis=0).any():  # all in one place
        return [[0.5, 0.5]] * len(points)
    perplexity = min(30, (len(points) - 1) / 3)
    flat = TSNE(init="pca", perplexity=perplexity, random_state=0).fit_transform(points)
    low, high = flat.min(0), flat.max(0)
    return np.round((flat - low) / np.where(high > low, high - low, 1.0), 3).tolist()


def pictures(found: Votes, k: int, weights: str, images: dict[str, Images]) -> list[dict[str, Any]]:
    """A few test images with their nearest training images: half of them wrong, if there are."""
    wrong = found.predictions(k, weights) != found.labels
    half = min(QUERIES // 2, int(wrong.sum()))
    spread = np.linspace(0, len(wrong) - 1, 50).astype(int)  # over all classes
    right = [int(i) for i in spread if not wrong[i]]
    step = max(1, len(right) // (QUERIES - half))
    rows = [*right[::step][: QUERIES - half], *np.flatnonzero(wrong)[:half].tolist()]
    return [
        {
            "label": int(found.labels[row]),
            "image": png(images["test"].pixels[row]),
            "neighbours": [
                {
                    "label": int(images["train"].labels[i]),
                    "image": png(images["train"].pixels[i]),
                }
                for i in found.indices[row, :NEIGHBOURS].tolist()
            ],
        }
        for row in rows
    ]
