"""Losses on relaxed permutations and on orders: one number per list, reduced over lists.

Lists may be padded: `mask` is True where the item exists, and what the other places hold changes
neither value nor gradient. A list without items has loss 0.

Losses of half precision, under autocast too, are float32, as `torch.nn.functional.cross_entropy` is
under autocast: sums over long lists would overflow. Gradients have the dtype of the scores.
"""

from collections.abc import Mapping

import torch
from torch import Tensor

from .. import _options
from . import _checks
from .arrays import working
from .distributions import PlackettLuce
from .operators import Relaxation, relaxed
from .permutation import RelaxedPermutation
from .relaxations import neuralsort
from .tracing import stable_sort


def reduced(values: Tensor, reduction: str) -> Tensor:
    """One value per list, or their mean or sum."""
    if _options.reduction(reduction) == "none":
        return values
    return values.mean() if reduction == "mean" else values.sum()


def count_present(mask: Tensor | None, n: int) -> int | Tensor:
    """How many items there are: n, or `(..., 1)` for padded lists."""
    return n if mask is None else mask.sum(-1, keepdim=True)


def _count(mask: Tensor | None, n: int, like: Tensor) -> Tensor:
    """The same as a tensor; `torch.as_tensor` would fix a length that is dynamic."""
    count = count_present(mask, n)
    return count if isinstance(count, Tensor) else torch.full((), count, device=like.device)


def beside(
    caller: str, first: str, second: str, x: Tensor, other: Tensor, mask: Tensor | None
) -> tuple[Tensor, Tensor, Tensor | None]:
    """Values with gradient, what goes with each of them, and which are there."""
    x = _checks.scores(f"{caller}({first})", x)
    other = _checks.per_item(f"{caller}({second})", other, x.shape).detach()
    return x, other, _checks.mask(mask, x)


def _log_prob(
    name: str, P: RelaxedPermutation, perm: Tensor, mask: Tensor | None, absent: float
) -> Tensor:
    """`P.log_prob(perm)` in the rows of present items, a constant in those of absent ones."""
    # Not `P.log_prob`, which has the dtype of the scores: half precision ends at 65,504.
    if mask is None:
        _checks.in_range(name, perm, P.shape[-1])
        return P._log_prob(perm)
    rows = P.shape[-2]
    counted = torch.arange(rows, device=perm.device) < count_present(mask, P.shape[-1])
    # Rows that do not count are asked for the item they hold, the absent ones in index order: at a
    # weight of 0 the logarithm would have no gradient to leave out.
    held = stable_sort(~mask)[1][..., :rows]
    perm = torch.where(counted, perm, held)
    _checks.in_range(name, perm, P.shape[-1])
    return P._log_prob(perm).masked_fill(~counted, absent)


def permutation_cross_entropy(
    P: RelaxedPermutation,
    target: Tensor,
    *,
    mask: Tensor | None = None,
    reduction: str = "mean",
) -> Tensor:
    r"""Cross-entropy between the rows of a relaxed permutation and a known order.

    $$-\frac{1}{n} \sum_{i=1}^{n} \log \widehat P_{i, z_i}$$

    The matrix is not written down where `P` does without. As the temperature of `P` tends to 0
    this tends to 0 if its permutation is the target, and to infinity if it is not.

    Args:
        P: The relaxed permutation, `(..., n, n)`, or the first k rows `P.top(k)`.
        target: `(..., n)` integers, or `(..., k)`. The item that belongs at each position, largest
            first: `torch.argsort(x, descending=True)`. Leading dimensions broadcast to those of
            `P`.
        mask: `(..., n)` boolean, True where the item exists: the mask that made `P`. With m items
            present, the first m places count.
        reduction: `"mean"` or `"sum"` over lists, or `"none"`.

    Returns:
        A scalar, or one loss per list for `"none"`: the mean over its rows. It is infinite where
        `P` gives an item of the target a weight of exactly 0, as hard permutations and infinite
        scores do; finite scores at a positive temperature have log-weights of any size.

    Raises:
        TypeError: If `target` is not integer, or `mask` not boolean.
        ValueError: If a shape does not fit, or `reduction` is not known.

    Example:
        >>> scores = torch.tensor([0.3, 0.1, 0.2], requires_grad=True)
        >>> loss = permutation_cross_entropy(neuralsort(scores), torch.tensor([0, 2, 1]))
        >>> loss
        tensor(0.9750, grad_fn=<MeanBackward0>)

    Reference: Grover et al. (2019), the sorting experiment. Time and memory: those of
    `P.log_prob`.
    """
    _options.relaxed_permutation("permutation_cross_entropy(P)", P)
    *batch, rows, n = P.shape
    name = "permutation_cross_entropy(target)"
    target = _checks.positions(name, target, P.shape, everywhere=False)
    target = _checks.per_item(name, target, P.shape[:-1])
    mask = _checks.mask(mask, torch.empty((), device=target.device).expand(*batch, n))
    total = _log_prob(name, P, target, mask, absent=0.0).sum(-1, keepdim=True)
    places = _count(mask, n, total).clamp(1, max(rows, 1))
    return reduced(-(total / places).squeeze(-1), reduction)


def knn_loss(
    P: RelaxedPermutation,
    same_label: Tensor,
    *,
    k: int,
    mask: Tensor | None = None,
    reduction: str = "mean",
) -> Tensor:
    r"""The paper's loss for a differentiable k-nearest-neighbours classifier.

    $$\ell_{\text{kNN}} = -\frac{1}{k} \sum_{i=1}^{k} \sum_{j=1}^{n} \mathbb 1(y_j = y)\,
      \widehat P_{ij}$$

    Its hard counterpart, which it tends to as the temperature tends to 0, is minus the share of the
    k nearest candidates that have the label of the query. Sort the candidates by negated
    distance, so that the nearest come first.

    Args:
        P: `(..., n, n)`, or its first k rows. The relaxed permutation of the candidates, nearest
            first.
        same_label: `(..., n)` boolean, or weights. True where a candidate has the query's label.
        k: How many neighbours, from 1 to n.
        mask: `(..., n)` boolean, True where the candidate exists: the mask that made `P`. A list
            with fewer than k candidates averages over those it has.
        reduction: `"mean"` or `"sum"` over queries, or `"none"`.

    Returns:
        A scalar, or one loss per query for `"none"`, between -1 and 0.

    Raises:
        TypeError: If `same_label` holds labels themselves, or `mask` is not boolean.
        ValueError: If a shape does not fit, `k` is out of range, or `reduction` is not known.

    Example:
        >>> P = neuralsort(-torch.tensor([0.1, 0.5, 9.0, 0.3]), tau=0.01)  # minus the distances
        >>> knn_loss(P, torch.tensor([True, False, True, True]), k=3).round(decimals=3)
        tensor(-0.6670)

    Reference: Grover et al. (2019), Eq. 8. Time and memory: those of the first k rows of `P`.
    """
    _options.relaxed_permutation("knn_loss(P)", P)
    n = P.shape[-1]
    k = _options.neighbours(k, P.shape[-2])
    lists = torch.Size((*P.shape[:-2], n))
    same = _checks.flags("knn_loss(same_label)", same_label, lists).to(working(P.dtype))
    mask = _checks.mask(mask, same)
    if mask is not None:
        same = torch.where(mask, same, 0.0)
    mass = P.top(k).sort(same).sum(-1, keepdim=True)  # rows of absent candidates hold none
    neighbours = _count(mask, n, mass).clamp(1, k)
    return reduced(-(mass / neighbours).squeeze(-1), reduction)


def topk_cross_entropy(
    logits: Tensor,
    labels: Tensor,
    *,
    k: int | Mapping[int, float],
    tau: _checks.Tau,
    mask: Tensor | None = None,
    relax: Relaxation = neuralsort,
    reduction: str = "mean",
) -> Tensor:
    r"""Classification loss that asks for the label among the k largest logits.

    $$-\log \sum_{k} p_k \sum_{i=1}^{k} \widehat P_{i, y}$$

    Its hard counterpart is the top-k accuracy: as `tau` tends to 0 a list has loss 0 if its label
    is among the k largest, and its loss grows without bound if it is not. Relaxations whose
    columns sum to 1 make the inner sum a probability; with the others it may exceed 1 a little, and
    the loss fall below 0.

    Args:
        logits: `(..., n)`. One score per class.
        labels: `(...)` integers, the class of each list.
        k: The size of the set, or the share $p_k$ that each of several sizes counts, such as
            `{1: 0.5, 5: 0.5}`.
        tau: Temperature, as in `relax`.
        mask: `(..., n)` boolean, True where the class may be chosen.
        relax: The relaxation: `neuralsort`, `softsort`, or a `functools.partial` of one.
        reduction: `"mean"` or `"sum"` over lists, or `"none"`.

    Returns:
        A scalar, or one loss per list for `"none"`. A label that the mask rules out costs infinity,
        without gradient.

    Raises:
        TypeError: If `logits` is not floating point or `labels` not integer.
        ValueError: If a shape does not fit, `k` is out of range, its shares do not sum to 1, or
            `reduction` is not known.

    Example:
        >>> logits = torch.tensor([[2.0, 1.0, 0.0, -1.0]])
        >>> topk_cross_entropy(logits, torch.tensor([1]), k=1, tau=0.1).round(decimals=2)
        tensor(10.)
        >>> topk_cross_entropy(logits, torch.tensor([1]), k=2, tau=0.1).round(decimals=2)
        tensor(0.)

    Reference: Petersen et al. (2022). Time and memory: those of k log-weights of `relax`.
    """
    logits = _checks.scores("topk_cross_entropy(logits)", logits)
    labels = _checks.labels(labels, logits)
    shares = _options.top_shares(k, logits.shape[-1])
    mask = _checks.mask(mask, logits)
    rows = max(shares)
    P = relaxed(logits.to(working(logits.dtype)), tau, mask, relax).top(rows)
    everywhere = labels.unsqueeze(-1).expand(*labels.shape, rows)
    log_weight = _log_prob("labels", P, everywhere, mask, absent=-torch.inf)
    row = torch.arange(rows, device=logits.device)
    at_least = torch.stack([(row < k).to(log_weight.dtype) * p for k, p in shares.items()]).sum(0)
    log_weight = log_weight + at_least.log()
    never = log_weight.isneginf().all(-1, keepdim=True)  # where logsumexp has NaN for a gradient
    loss = -torch.logsumexp(log_weight.masked_fill(never, 0.0), -1)
    loss = loss.masked_fill(never.squeeze(-1), torch.inf)
    if mask is not None:
        loss = torch.where(mask.any(-1), loss, 0.0)
    return reduced(loss, reduction)


def plackett_luce_nll(
    logits: Tensor, ranking: Tensor, *, mask: Tensor | None = None, reduction: str = "mean"
) -> Tensor:
    r"""Negative log-likelihood of observed rankings under Plackett-Luce.

    $$-\log q(z) = \sum_{i=1}^{k} \Big[\log \sum_{j \notin \{z_1, \dots, z_{i-1}\}} e^{l_j}
      - l_{z_i}\Big]$$

    A prefix of length k < n is a top-k list; k = 1 is the cross-entropy of the first choice. In
    learning to rank, this loss on full rankings is known as ListMLE.

    Args:
        logits: `(..., n)`. Logs of the Plackett-Luce scores, any real numbers.
        ranking: `(..., k)` integers with k <= n. The items from the first place down; leading
            dimensions broadcast against those of `logits`.
        mask: `(..., n)` boolean, True where the item exists. With m items present, the first m
            places hold present items, and later places are ignored, whatever they hold.
        reduction: `"mean"` or `"sum"` over lists, or `"none"`.

    Returns:
        A scalar, or one loss per list for `"none"`. A list without items has loss 0.

    Raises:
        TypeError: If `logits` are not floating point, `ranking` not integer, or `mask` not boolean.
        ValueError: If a shape does not fit, `reduction` is not known, or the ranking lists an item
            twice, one that is absent or one out of range; on accelerators and where the function
            is compiled, values are not read.

    Example:
        >>> logits = torch.tensor([0.0, 1.0, 2.0], requires_grad=True)
        >>> rankings = torch.tensor([[2, 1, 0], [2, 0, 1]])
        >>> plackett_luce_nll(logits, rankings)
        tensor(1.2209, grad_fn=<MeanBackward0>)
        >>> plackett_luce_nll(logits, rankings[:, :1])  # only the first places were seen
        tensor(0.4076, grad_fn=<MeanBackward0>)

    Reference: Plackett (1975); Xia et al. (2008). Time and memory: O(n) per list.
    """
    logits = _checks.scores("plackett_luce_nll(logits)", logits)
    # The logits are not validated, and may be infinite; the ranking is, where it can be read: on
    # an accelerator that would stall every step of training.
    model = PlackettLuce(logits.to(working(logits.dtype)), validate_args=False)
    ranking = _checks.ranking(ranking, logits.shape[-1])
    if _checks.readable(ranking) and _checks.readable(logits.detach()):
        model._check_ranking(ranking, mask)
    return reduced(-model.log_prob(ranking, mask=mask), reduction)
