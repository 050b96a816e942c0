"""Sorting inside gradient-based learning, for PyTorch: `import neuralsort.torch as ns`."""

from .gradients import straight_through
from .operators import (
    soft_median,
    soft_quantile,
    soft_rank,
    soft_sort,
    soft_sort_by,
    soft_topk,
    tau_for_blur,
)
from .permutation import RelaxedPermutation
from .relaxations import neuralsort, softsort

__all__ = [
    "RelaxedPermutation",
    "neuralsort",
    "soft_median",
    "soft_quantile",
    "soft_rank",
    "soft_sort",
    "soft_sort_by",
    "soft_topk",
    "softsort",
    "straight_through",
    "tau_for_blur",
]
