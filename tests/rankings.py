"""A Plackett-Luce model small enough to list: four items and their 24 rankings."""

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np

from tests import oracle

LOGITS = [0.3, -0.7, 1.1, 0.0]
RANKINGS = list(itertools.permutations(range(4)))


def probabilities(logits: Sequence[float] = LOGITS) -> np.ndarray:
    """Of each ranking."""
    return np.exp([oracle.plackett_luce_log_prob(logits, z) for z in RANKINGS])


def frequencies(samples: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """How often each ranking occurs, how often it should, and the standard error of that."""
    samples = np.asarray(samples).reshape(-1, 4)
    code = samples @ 4 ** np.arange(4)
    found = np.array([(code == np.dot(z, 4 ** np.arange(4))).mean() for z in RANKINGS])
    p = probabilities()
    return found, p, np.sqrt(p * (1 - p) / len(samples))
