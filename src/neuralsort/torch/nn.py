"""Thin modules: each stores the options of a function and calls it. The functions explain them."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from .. import _options as rules
from .._blur import Blur
from .knn import neighbour_labels, soft_neighbours
from .losses import (
    knn_loss,
    permutation_cross_entropy,
    plackett_luce_nll,
    topk_cross_entropy,
)
from .operators import Relaxation, TopK, soft_topk
from .permutation import RelaxedPermutation
from .ranking_losses import (
    Ranks,
    approx_ndcg,
    kendall_loss,
    neural_ndcg,
    ranknet_loss,
    spearman_loss,
)
from .relaxations import neuralsort
from .relevance_losses import lambda_loss, listnet_loss, recall_at_k_loss, smooth_ap_loss
from .temperature import Temperature

__all__ = [
    "ApproxNDCG",
    "DifferentiableKNN",
    "KNNLoss",
    "KendallLoss",
    "LambdaLoss",
    "ListNetLoss",
    "NeuralNDCG",
    "NeuralSort",
    "PermutationCrossEntropy",
    "PlackettLuceNLL",
    "RankNetLoss",
    "RecallAtKLoss",
    "SmoothAPLoss",
    "SoftTopK",
    "SpearmanLoss",
    "Temperature",
    "TopKCrossEntropy",
]


Tau = float | Tensor | Blur | Temperature
"""A temperature, or the module that has it."""


class _Module(torch.nn.Module):
    """Keeps options as attributes, so that a temperature may be a parameter, buffer or module."""

    def __init__(self, **options: object) -> None:
        super().__init__()
        if "reduction" in options:  # said here, not at the first batch
            rules.reduction(options["reduction"])  # pyright: ignore[reportArgumentType]
        for name, value in options.items():
            setattr(self, name, value)
        self._names = tuple(options)

    def _options(self) -> dict:
        now = {name: getattr(self, name) for name in self._names}
        return {name: x() if isinstance(x, Temperature) else x for name, x in now.items()}

    def extra_repr(self) -> str:
        """The options."""
        kept = {name: getattr(self, name) for name in self._names}
        kept = {name: x for name, x in kept.items() if not isinstance(x, torch.nn.Module)}
        shown = {name: getattr(x, "__name__", repr(x)) for name, x in kept.items()}
        return ", ".join(f"{name}={text}" for name, text in shown.items())


class NeuralSort(_Module):
    """`neuralsort` as a module: scores `(..., n)` to a relaxed permutation, largest first.

    Called as `module(scores, mask=None)`. As `tau` tends to 0 it becomes the hard permutation.
    `tau` is in units of the scores; it may be a number, a `Blur`, a tensor, or a `Temperature`.

    Example:
        >>> NeuralSort(tau=0.1)(torch.tensor([1.0, 3.0, 2.0])).permutation()
        tensor([1, 2, 0])
    """

    def __init__(self, *, tau: Tau = 1.0) -> None:
        super().__init__(tau=tau)

    def forward(self, scores: Tensor, *, mask: Tensor | None = None) -> RelaxedPermutation:
        return neuralsort(scores, mask=mask, **self._options())


class SoftTopK(_Module):
    """`soft_topk` as a module: the k largest values, and how much each item belongs to them.

    Called as `module(x, mask=None)` with `x` of any shape. Gives `values`, of length k along
    `dim`, and `weights`, of the shape of `x`, which sum to k; a single weight may exceed 1. As
    `tau` tends to 0 it becomes `torch.topk`.

    Example:
        >>> SoftTopK(2, tau=0.01)(torch.tensor([30.0, 10.0, 20.0])).weights
        tensor([1., 0., 1.])
    """

    def __init__(
        self,
        k: int,
        *,
        tau: Tau = 1.0,
        dim: int = -1,
        largest: bool = True,
        relax: Relaxation = neuralsort,
    ) -> None:
        super().__init__(k=k, tau=tau, dim=dim, largest=largest, relax=relax)

    def forward(self, x: Tensor, *, mask: Tensor | None = None) -> TopK:
        return soft_topk(x, mask=mask, **self._options())


class DifferentiableKNN(_Module):
    """The labels of the k nearest candidates of each query, softly.

    Called as `layer(queries, candidates, labels, mask=None)` with `(q, d)`, `(n, d)` and `(n, c)`.
    Gives `(q, k, c)`: for each query the labels of its k neighbours, nearest first. As `tau` tends
    to 0 these are the labels of the k nearest in squared distance.

    Args:
        k: How many neighbours.
        tau: Temperature, in units of squared distance.
        samples: None sorts distances themselves; a number, that many times under Gumbel noise. The
            noise has scale 1, so squared distances should go well beyond that: points of length 1
            learn better when they are multiplied by 4, say, with a `tau` 16 times as large.
        relax: The relaxation.

    Example:
        >>> knn = DifferentiableKNN(2, tau=0.1)
        >>> points, labels = torch.tensor([[0.0], [1.0], [5.0]]), torch.eye(3)
        >>> knn(torch.tensor([[1.2]]), points, labels).round(decimals=2)
        tensor([[[0., 1., 0.],
                 [1., 0., 0.]]])
    """

    def __init__(
        self,
        k: int,
        *,
        tau: Tau = 1.0,
        samples: int | None = None,
        relax: Relaxation = neuralsort,
    ) -> None:
        super().__init__(k=k, tau=tau, samples=samples, relax=relax)

    def forward(
        self, queries: Tensor, candidates: Tensor, labels: Tensor, *, mask: Tensor | None = None
    ) -> Tensor:
        """What each soft neighbour says.

        Args:
            queries: `(q, d)`.
            candidates: `(n, d)`.
            labels: `(n, c)`. One-hot rows of classes, or targets of any kind.
            mask: `(q, n)` boolean, or what broadcasts to it: True where the candidate may be a
                neighbour of the query. Pass `~torch.eye(q, dtype=bool)` where queries are their
                own candidates.

        Returns:
            `(q, k, c)`, with the samples first if any.
        """
        return neighbour_labels(queries, candidates, labels, mask=mask, **self._options())

    def neighbours(
        self, queries: Tensor, candidates: Tensor, *, mask: Tensor | None = None
    ) -> RelaxedPermutation:
        """The soft neighbours themselves, `(..., q, k, n)`: what `knn_loss` takes."""
        return soft_neighbours(queries, candidates, mask=mask, **self._options())


class PermutationCrossEntropy(_Module):
    """`permutation_cross_entropy` as a module.

    Called as `module(P, target, mask=None)` with `P` of shape `(..., n, n)` and `target` `(...,
    n)`, the item that belongs at each position. Gives a scalar, or one number per list with
    `reduction="none"`. It tends to 0 with the temperature where the order is right, and to
    infinity where it is not.

    Example:
        >>> P = neuralsort(torch.tensor([1.0, 3.0, 2.0]), tau=0.1)
        >>> PermutationCrossEntropy()(P, torch.tensor([1, 2, 0])).round(decimals=3)
        tensor(0.)
    """

    def __init__(self, *, reduction: str = "mean") -> None:
        super().__init__(reduction=reduction)

    def forward(
        self, P: RelaxedPermutation, target: Tensor, *, mask: Tensor | None = None
    ) -> Tensor:
        return permutation_cross_entropy(P, target, mask=mask, **self._options())


class KNNLoss(_Module):
    """`knn_loss` as a module.

    Called as `module(P, same_label, mask=None)` with `P` of shape `(..., n, n)`, nearest first,
    and `same_label` `(..., n)`. Gives a scalar, or one number per list with `reduction="none"`,
    between -1 and 0. It tends to minus the share of the k nearest that have the label.

    Example:
        >>> P = neuralsort(-torch.tensor([0.1, 5.0, 9.0]), tau=0.1)
        >>> KNNLoss(1)(P, torch.tensor([True, False, False])).round(decimals=3)
        tensor(-1.)
    """

    def __init__(self, k: int, *, reduction: str = "mean") -> None:
        super().__init__(k=k, reduction=reduction)

    def forward(
        self, P: RelaxedPermutation, same_label: Tensor, *, mask: Tensor | None = None
    ) -> Tensor:
        return knn_loss(P, same_label, mask=mask, **self._options())


class PlackettLuceNLL(_Module):
    """`plackett_luce_nll` as a module.

    Called as `module(logits, ranking, mask=None)` with `logits` `(..., n)` and `ranking` `(...,
    k)`, the items from the best down. Gives a scalar, or one number per list with
    `reduction="none"`.

    Example:
        >>> PlackettLuceNLL()(torch.tensor([0.0, 1.0, 2.0]), torch.tensor([2, 1, 0]))
        tensor(0.7209)
    """

    def __init__(self, *, reduction: str = "mean") -> None:
        super().__init__(reduction=reduction)

    def forward(self, logits: Tensor, ranking: Tensor, *, mask: Tensor | None = None) -> Tensor:
        return plackett_luce_nll(logits, ranking, mask=mask, **self._options())


class TopKCrossEntropy(_Module):
    """`topk_cross_entropy` as a module.

    Called as `module(logits, labels, mask=None)` with `logits` `(..., n)` and `labels` `(...)`.
    Gives a scalar, or one number per list with `reduction="none"`. Its hard counterpart is the
    top-k accuracy.

    Example:
        >>> loss = TopKCrossEntropy({1: 0.5, 5: 0.5}, tau=1.0)
        >>> loss(torch.zeros(4, 10), torch.tensor([0, 3, 5, 9]))
        tensor(1.2040)
    """

    def __init__(
        self,
        k: int | Mapping[int, float],
        *,
        tau: Tau,
        relax: Relaxation = neuralsort,
        reduction: str = "mean",
    ) -> None:
        super().__init__(k=k, tau=tau, relax=relax, reduction=reduction)

    def forward(self, logits: Tensor, labels: Tensor, *, mask: Tensor | None = None) -> Tensor:
        return topk_cross_entropy(logits, labels, mask=mask, **self._options())


class NeuralNDCG(_Module):
    """`neural_ndcg` as a module.

    Called as `module(scores, relevance, mask=None)`, both `(..., n)`. Gives a scalar, or one
    number per list with `reduction="none"`. It tends to `1 - metrics.ndcg` as `tau`, which has
    no default, tends to 0.

    Example:
        >>> NeuralNDCG(tau=0.01)(torch.tensor([3.0, 2.0, 1.0]), torch.tensor([1, 0, 0]))
        tensor(0.)
    """

    def __init__(
        self,
        *,
        tau: Tau,
        k: int | None = None,
        iterations: int = 10,
        relax: Relaxation = neuralsort,
        reduction: str = "mean",
    ) -> None:
        super().__init__(tau=tau, k=k, iterations=iterations, relax=relax, reduction=reduction)

    def forward(self, scores: Tensor, relevance: Tensor, *, mask: Tensor | None = None) -> Tensor:
        return neural_ndcg(scores, relevance, mask=mask, **self._options())


class ApproxNDCG(_Module):
    """`approx_ndcg` as a module.

    Called as `module(scores, relevance, mask=None)`, both `(..., n)`. Gives a scalar, or one
    number per list with `reduction="none"`. It tends to `1 - metrics.ndcg` as `tau`, which has
    no default, tends to 0.

    Example:
        >>> ApproxNDCG(tau=0.01)(torch.tensor([3.0, 2.0, 1.0]), torch.tensor([1, 0, 0]))
        tensor(0.)
    """

    def __init__(self, *, tau: Tau, reduction: str = "mean") -> None:
        super().__init__(tau=tau, reduction=reduction)

    def forward(self, scores: Tensor, relevance: Tensor, *, mask: Tensor | None = None) -> Tensor:
        return approx_ndcg(scores, relevance, mask=mask, **self._options())


class SpearmanLoss(_Module):
    """`spearman_loss` as a module.

    Called as `module(x, target, mask=None, weights=None)`, both `(..., n)`. Gives a scalar, or
    one number per list with `reduction="none"`, between 0 and 2. It tends to `1 -
    metrics.spearman` as `tau`, which has no default, tends to 0.

    Example:
        >>> SpearmanLoss(tau=0.01)(torch.tensor([3.0, 2.0, 1.0]), torch.tensor([1, 2, 3]))
        tensor(2.)
    """

    def __init__(
        self,
        *,
        tau: Tau,
        relax: Relaxation = neuralsort,
        rank: Ranks | None = None,
        reduction: str = "mean",
    ) -> None:
        super().__init__(tau=tau, relax=relax, rank=rank, reduction=reduction)

    def forward(
        self,
        x: Tensor,
        target: Tensor,
        *,
        mask: Tensor | None = None,
        weights: Tensor | None = None,
    ) -> Tensor:
        return spearman_loss(x, target, mask=mask, weights=weights, **self._options())


class KendallLoss(_Module):
    """`kendall_loss` as a module.

    Called as `module(x, target, mask=None, weights=None)`, both `(..., n)`. Gives a scalar, or
    one number per list with `reduction="none"`, between 0 and 2. It tends to `1 -
    metrics.kendall_tau`, for a target without ties, as `tau`, which has no default, tends to 0.

    Example:
        >>> KendallLoss(tau=0.01)(torch.tensor([3.0, 2.0, 1.0]), torch.tensor([1, 2, 3]))
        tensor(2.)
    """

    def __init__(self, *, tau: Tau, reduction: str = "mean") -> None:
        super().__init__(tau=tau, reduction=reduction)

    def forward(
        self,
        x: Tensor,
        target: Tensor,
        *,
        mask: Tensor | None = None,
        weights: Tensor | None = None,
    ) -> Tensor:
        return kendall_loss(x, target, mask=mask, weights=weights, **self._options())


class RankNetLoss(_Module):
    """`ranknet_loss` as a module.

    Called as `module(scores, relevance, mask=None, weights=None)`, both `(..., n)`. Gives a
    scalar, or one number per list with `reduction="none"`. Its hard counterpart is the share of
    pairs in the wrong order.

    Example:
        >>> RankNetLoss()(torch.tensor([1.0, 2.0, 3.0]), torch.tensor([0, 2, 1]))
        tensor(0.5845)
    """

    def __init__(self, *, tau: Tau = 1.0, reduction: str = "mean") -> None:
        super().__init__(tau=tau, reduction=reduction)

    def forward(
        self,
        scores: Tensor,
        relevance: Tensor,
        *,
        mask: Tensor | None = None,
        weights: Tensor | None = None,
    ) -> Tensor:
        return ranknet_loss(scores, relevance, mask=mask, weights=weights, **self._options())


class ListNetLoss(_Module):
    """`listnet_loss` as a module.

    Called as `module(scores, relevance, mask=None)`, both `(..., n)`. Gives a scalar, or one
    number per list with `reduction="none"`. Its hard counterpart is whether the most relevant
    item is first.

    Example:
        >>> ListNetLoss()(torch.tensor([1.0, 2.0, 3.0]), torch.tensor([0, 2, 1]))
        tensor(1.2529)
    """

    def __init__(self, *, tau: Tau = 1.0, reduction: str = "mean") -> None:
        super().__init__(tau=tau, reduction=reduction)

    def forward(self, scores: Tensor, relevance: Tensor, *, mask: Tensor | None = None) -> Tensor:
        return listnet_loss(scores, relevance, mask=mask, **self._options())


class LambdaLoss(_Module):
    """`lambda_loss` as a module.

    Called as `module(scores, relevance, mask=None)`, both `(..., n)`. Gives a scalar, or one
    number per list with `reduction="none"`. Its hard counterpart is the weight of the pairs in
    the wrong order.

    Example:
        >>> LambdaLoss(k=10)(torch.tensor([1.0, 2.0, 3.0]), torch.tensor([0, 2, 1]))
        tensor(0.4593)
    """

    def __init__(self, *, tau: Tau = 1.0, k: int | None = None, reduction: str = "mean") -> None:
        super().__init__(tau=tau, k=k, reduction=reduction)

    def forward(self, scores: Tensor, relevance: Tensor, *, mask: Tensor | None = None) -> Tensor:
        return lambda_loss(scores, relevance, mask=mask, **self._options())


class SmoothAPLoss(_Module):
    """`smooth_ap_loss` as a module.

    Called as `module(scores, relevance, mask=None)`, both `(..., n)`. Gives a scalar, or one
    number per list with `reduction="none"`. It tends to `1 - metrics.average_precision` as
    `tau`, which has no default, tends to 0.

    Example:
        >>> SmoothAPLoss(tau=0.01)(torch.tensor([3.0, 2.0, 1.0]), torch.tensor([0, 1, 1]))
        tensor(0.4167)
    """

    def __init__(self, *, tau: Tau, reduction: str = "mean") -> None:
        super().__init__(tau=tau, reduction=reduction)

    def forward(self, scores: Tensor, relevance: Tensor, *, mask: Tensor | None = None) -> Tensor:
        return smooth_ap_loss(scores, relevance, mask=mask, **self._options())


class RecallAtKLoss(_Module):
    """`recall_at_k_loss` as a module.

    Called as `module(scores, relevance, mask=None)`, both `(..., n)`. Gives a scalar, or one
    number per list with `reduction="none"`. It tends to `1 - metrics.recall_at_k` as `tau`,
    which has no default, and `rank_tau` tend to 0.

    Example:
        >>> loss = RecallAtKLoss(2, tau=0.01, rank_tau=0.01)
        >>> loss(torch.tensor([3.0, 2.0, 1.0]), torch.tensor([0, 1, 1]))
        tensor(0.5000)
    """

    def __init__(
        self,
        k: int | Sequence[int],
        *,
        tau: Tau,
        rank_tau: float = 1.0,
        reduction: str = "mean",
    ) -> None:
        super().__init__(k=k, tau=tau, rank_tau=rank_tau, reduction=reduction)

    def forward(self, scores: Tensor, relevance: Tensor, *, mask: Tensor | None = None) -> Tensor:
        return recall_at_k_loss(scores, relevance, mask=mask, **self._options())
