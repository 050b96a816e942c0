"""Scores to relaxed permutations: one published method, one file."""

from .lapsum import lapsum
from .networks import sorting_network
from .neuralsort import neuralsort
from .sinkhorn import gumbel_sinkhorn, sinkhorn, sinkhorn_sort
from .softsort import softsort
from .thresholds import midpoint_threshold, sparse_threshold

__all__ = [
    "gumbel_sinkhorn",
    "lapsum",
    "midpoint_threshold",
    "neuralsort",
    "sinkhorn",
    "sinkhorn_sort",
    "softsort",
    "sorting_network",
    "sparse_threshold",
]
