"""What neighbours say together."""

import numpy as np

WEIGHTS = ("uniform", "distance")


def shares(distances: np.ndarray, weights: str) -> np.ndarray:
    """How much each neighbour counts, adding up to 1.

    Args:
        distances: `(q, k)`, the nearest first.
        weights: `"uniform"`, or `"distance"`: as the inverse of its distance. Neighbours at
            distance 0 share everything.

    Returns:
        `(q, k)`.
    """
    if weights == "uniform":
        return np.full_like(distances, 1 / distances.shape[1])
    nearest = distances[:, :1]
    with np.errstate(divide="ignore", invalid="ignore"):
        counts = np.where(nearest > 0, nearest / distances, distances == 0)
    counts = np.where(np.isinf(nearest), 1.0, counts)  # all are as far as a number can say
    return counts / counts.sum(1, keepdims=True)


def votes(labels: np.ndarray, parts: np.ndarray, classes: int) -> np.ndarray:
    """The vote for each class.

    Args:
        labels: `(q, k)`, from 0.
        parts: `(q, k)`. How much each counts.
        classes: How many there are.

    Returns:
        `(q, classes)`.
    """
    counted = np.zeros((len(labels), classes))
    np.add.at(counted, (np.arange(len(labels))[:, None], labels), parts)
    return counted
