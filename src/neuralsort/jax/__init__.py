"""Sorting inside gradient-based learning, for JAX: `import neuralsort.jax as ns`."""

try:
    import jax as _jax  # noqa: F401 - here to say what to do where it is missing
except ImportError as missing:
    raise ImportError(
        "neuralsort.jax needs JAX, which is not installed: run "
        'pip install "neuralsort[jax]" (in a clone: pip install ".[jax]")'
    ) from missing

from . import estimators as estimators
from . import metrics as metrics
from .distributions import PlackettLuce, RelaxedPlackettLuce, stochastic_neuralsort
from .gradients import score_function_loss, straight_through
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
    neuralsort,
    sinkhorn,
    sinkhorn_sort,
    softsort,
    sorting_network,
)
from .relevance_losses import lambda_loss, listnet_loss, recall_at_k_loss, smooth_ap_loss
from .subsets import KSubset

__all__ = [
    "KSubset",
    "PlackettLuce",
    "RelaxedPermutation",
    "RelaxedPlackettLuce",
    "approx_ndcg",
    "fast_soft_rank",
    "fast_soft_sort",
    "fenchel_young_loss",
    "gumbel_sinkhorn",
    "kendall_loss",
    "knn_loss",
    "lambda_loss",
    "listnet_loss",
    "neural_ndcg",
    "neuralsort",
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
    "softsort",
    "sorting_network",
    "spearman_loss",
    "stochastic_neuralsort",
    "straight_through",
    "tau_for_blur",
    "topk_cross_entropy",
]
