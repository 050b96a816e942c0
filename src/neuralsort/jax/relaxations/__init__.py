"""Scores to relaxed permutations: one published method, one file."""

from .networks import sorting_network
from .neuralsort import neuralsort
from .sinkhorn import gumbel_sinkhorn, sinkhorn, sinkhorn_sort
from .softsort import softsort

__all__ = [
    "gumbel_sinkhorn",
    "neuralsort",
    "sinkhorn",
    "sinkhorn_sort",
    "softsort",
    "sorting_network",
]
