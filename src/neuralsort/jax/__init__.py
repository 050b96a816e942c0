"""Sorting inside gradient-based learning, for JAX: `import neuralsort.jax as ns`."""

try:
    import jax as _jax  # noqa: F401 - here to say what to do where it is missing
except ImportError as missing:
    raise ImportError(
        "neuralsort.jax needs JAX, which is not installed: run "
        'pip install "neuralsort[jax]" (in a clone: pip install ".[jax]")'
    ) from missing

from .._blur import Blur
from . import estimators as estimators
from . import metrics as metrics
from .conformal import conformal_quantile
from .distributions import PlackettLuce, RelaxedPlackettLuce, stochastic_neuralsort
from .gating import soft_topk_mask
from .gradients import score_function_loss, straight_through
from .groups import pad_groups, unpad_groups
from .losses import knn_loss, permutation_cross_entropy, plackett_luce_nll, topk_cross_entropy
from .operators import (
    soft_median,
    soft_quantile,
    soft_rank,
    soft_sort,
    soft_sort_by,
    soft_topk,
    tau_for_blur,
)
from .permutahedron import fast_soft_rank, fast_soft_sort
from .permutation import RelaxedPermutation
from .perturbations import fenchel_young_loss
from .preferences import listwise_dpo_loss
from .ranking_losses import (
    approx_ndcg,
    kendall_loss,
    neural_ndcg,
    ranknet_loss,
    spearman_loss,
)
from .rankings import ranking_from
from .relaxations import (
    gumbel_sinkhorn,
    lapsum,
    midpoint_threshold,
    neuralsort,
    sinkhorn,
    sinkhorn_sort,
    softsort,
    sorting_network,
    sparse_threshold,
)
from .relevance_losses import lambda_loss, listnet_loss, recall_at_k_loss, smooth_ap_loss
from .subsets import KSubset

__all__ = [
    "Blur",
    "KSubset",
    "PlackettLuce",
    "RelaxedPermutation",
    "RelaxedPlackettLuce",
    "approx_ndcg",
    "conformal_quantile",
    "fast_soft_rank",
    "fast_soft_sort",
    "fenchel_young_loss",
    "gumbel_sinkhorn",
    "kendall_loss",
    "knn_loss",
    "lambda_loss",
    "lapsum",
    "listnet_loss",
    "listwise_dpo_loss",
    "midpoint_threshold",
    "neural_ndcg",
    "neuralsort",
    "pad_groups",
    "permutation_cross_entropy",
    "plackett_luce_nll",
    "ranking_from",
    "ranknet_loss",
    "recall_at_k_loss",
    "score_function_loss",
    "sinkhorn",
    "sinkhorn_sort",
    "smooth_ap_loss",
    "soft_median",
    "soft_quantile",
    "soft_rank",
    "soft_sort",
    "soft_sort_by",
    "soft_topk",
    "soft_topk_mask",
    "softsort",
    "sorting_network",
    "sparse_threshold",
    "spearman_loss",
    "stochastic_neuralsort",
    "straight_through",
    "tau_for_blur",
    "topk_cross_entropy",
    "unpad_groups",
]
