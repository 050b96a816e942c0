"""Operators on values, for people who want one call: a relaxation and one of its products."""

from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from .. import _options
from .._blur import gaussian
from . import _checks
from .permutation import RelaxedPermutation
from .relaxations import neuralsort
from .softness import at_gap
from .tracing import stable_sort


class Relaxation(Protocol):
    """Scores and a temperature to a relaxed permutation, largest first.

    For lists with a mask it is called with `mask=` as well.
    """

    def __call__(self, scores: Tensor, /, *, tau: _checks.Tau) -> RelaxedPermutation:
        """Relaxes the descending sort of `scores` (..., n)."""
        ...


class TopK(NamedTuple):
    """What `soft_topk` returns."""

    values: Tensor
    weights: Tensor


def relaxed(
    scores: Tensor, tau: _checks.Tau, mask: Tensor | None, relax: Relaxation
) -> RelaxedPermutation:
    """The relaxed permutation of lists; only padded ones need a relaxation that takes masks."""
    _options.relax(relax)
    options = {"tau": tau} if mask is None else {"tau": tau, "mask": mask}
    P = _options.called(relax, scores, options)
    _options.relaxed_permutation("relax(scores)", P)
    return P


def _ordered(
    name: str,
    x: Tensor,
    tau: _checks.Tau,
    dim: int,
    descending: bool,
    mask: Tensor | None,
    relax: Relaxation,
) -> tuple[RelaxedPermutation, int]:
    """The relaxed permutation of the lists along `dim` in that order, and `dim` from the front.

    Ascending order is the descending one of negated values, so that absent items come last and ties
    keep the order of their indices in both.
    """
    x = _checks.scores(name, x)
    dim = _options.dim(dim, tuple(x.shape))
    mask = _checks.mask(mask, x)
    mask = None if mask is None else mask.movedim(dim, -1)
    lists = x.movedim(dim, -1)
    return relaxed(lists if descending else -lists, tau, mask, relax), dim


def soft_sort(
    x: Tensor,
    *,
    tau: _checks.Tau = 1.0,
    dim: int = -1,
    descending: bool = False,
    mask: Tensor | None = None,
    relax: Relaxation = neuralsort,
) -> Tensor:
    r"""Differentiable sort of values.

    $$\text{soft\_sort}(x) = \widehat P_{\text{sort}(x)}\, x$$

    Its hard counterpart is `torch.sort(x, dim, descending).values`, which it tends to as `tau`
    tends to 0.

    Args:
        x: Values, any shape.
        tau: Temperature, as in `relax`: with the default one in units of what is sorted; smaller is
            harder. A tensor broadcasts with the list dimension last.
        dim: The dimension that holds the lists.
        descending: Largest first.
        mask: Boolean, the shape of `x`, True where the item exists. Absent items come last, in
            index order.
        relax: The relaxation: `neuralsort`, `softsort`, or a `functools.partial` of one.

    Returns:
        The shape of `x`.

    Raises:
        TypeError: If `x` is not floating point, or `mask` not boolean.
        ValueError: If `dim` is out of range or `tau` negative.

    Example:
        >>> soft_sort(torch.tensor([3.0, 1.0, 2.0]), tau=0.01)
        tensor([1., 2., 3.])

    Time and memory: those of `relax`; O(n log n) and O(n) for long lists.
    """
    P, dim = _ordered("soft_sort(x)", x, tau, dim, descending, mask, relax)
    return P.sort(x.movedim(dim, -1)).movedim(-1, dim)


def soft_sort_by(
    values: Tensor,
    key: Tensor,
    *,
    tau: _checks.Tau = 1.0,
    dim: int = -1,
    descending: bool = False,
    mask: Tensor | None = None,
    relax: Relaxation = neuralsort,
) -> Tensor:
    r"""Differentiable `values[argsort(key)]`: permutes a payload by the order of a key.

    $$\text{soft\_sort\_by}(v, k) = \widehat P_{\text{sort}(k)}\, v$$

    Gradients flow to the values and to the key. Its hard counterpart for one list is
    `values[torch.argsort(key, descending=descending)]`.

    Args:
        values: The payload, shape `key.shape + payload`: key `(B, n)` sorts values `(B, n)` or
            `(B, n, d)`.
        key: What to sort by.
        tau: Temperature, as in `relax`: with the default one in units of what is sorted; smaller is
            harder. A tensor broadcasts with the list dimension last.
        dim: The dimension of `key` that holds the lists.
        descending: Largest key first.
        mask: Boolean, the shape of `key`, True where the item exists. Absent items come last,
            in index order.
        relax: The relaxation: `neuralsort`, `softsort`, or a `functools.partial` of one.

    Returns:
        The shape of `values`.

    Raises:
        TypeError: If either is not floating point, or `mask` not boolean.
        ValueError: If the shapes do not fit or `dim` is out of range.

    Example:
        >>> names = torch.tensor([10.0, 20.0, 30.0])
        >>> soft_sort_by(names, torch.tensor([3.0, 1.0, 2.0]), tau=0.01)
        tensor([20., 30., 10.])

    Time and memory: those of `relax`; O(n log n) and O(n) per payload column for long lists.
    """
    P, dim = _ordered("soft_sort_by(key)", key, tau, dim, descending, mask, relax)
    values = _checks.keyed_values(values, key)
    payload = values.movedim(dim, key.dim() - 1)  # (..., n, payload)
    columns = payload.reshape(*payload.shape[: key.dim()], payload.shape[key.dim() :].numel())
    if mask is None:
        ordered = torch.matmul(P, columns)  # pyright: ignore
    else:
        ordered = _beside_absent(P, columns, mask.expand(key.shape).movedim(dim, -1))
    return ordered.reshape(payload.shape).movedim(key.dim() - 1, dim)


def _beside_absent(P: RelaxedPermutation, columns: Tensor, mask: Tensor) -> Tensor:
    """`P @ columns` `(..., n, d)`, where what absent items hold, even NaN, stays in their rows."""
    there = mask.unsqueeze(-1)
    soft = torch.matmul(P, columns.masked_fill(~there, 0.0))  # pyright: ignore
    held = stable_sort(~mask)[1].unsqueeze(-1)  # absent ones last
    row = torch.arange(mask.shape[-1], device=mask.device).unsqueeze(-1)
    own = columns.gather(-2, held.expand(columns.shape))
    return torch.where(row < there.sum(-2, keepdim=True), soft, own.to(soft.dtype))


def soft_rank(
    x: Tensor,
    *,
    tau: _checks.Tau = 1.0,
    dim: int = -1,
    descending: bool = False,
    mask: Tensor | None = None,
    relax: Relaxation = neuralsort,
) -> Tensor:
    r"""Differentiable ranks, from 1.

    $$\text{soft\_rank}(x)_j = \frac{\sum_i i\,\widehat P_{ij}}{\sum_i \widehat P_{ij}}$$

    Its hard counterpart is `scipy.stats.rankdata(x)`: the smallest value has rank 1, ties share the
    mean of their ranks. With `descending=True` the largest has rank 1. At `tau=0`, where nothing is
    shared, ties are ranked by index.

    Args:
        x: Values, any shape.
        tau: Temperature, as in `relax`: with the default one in units of what is sorted; smaller is
            harder. A tensor broadcasts with the list dimension last.
        dim: The dimension that holds the lists.
        descending: Count from the largest.
        mask: Boolean, the shape of `x`, True where the item exists. Absent items have the last
            ranks, in index order.
        relax: The relaxation: `neuralsort`, `softsort`, or a `functools.partial` of one.

    Returns:
        The shape of `x`, between 1 and n.

    Raises:
        TypeError: If `x` is not floating point, or `mask` not boolean.
        ValueError: If `dim` is out of range or `tau` negative.

    Example:
        >>> soft_rank(torch.tensor([30.0, 10.0, 20.0]), tau=0.01)
        tensor([3., 1., 2.])

    Time and memory: those of `relax`; O(n log n) and O(n) for long lists.
    """
    P, dim = _ordered("soft_rank(x)", x, tau, dim, descending, mask, relax)
    return P.rank().movedim(-1, dim)


def soft_topk(
    x: Tensor,
    k: int,
    *,
    tau: _checks.Tau = 1.0,
    dim: int = -1,
    largest: bool = True,
    mask: Tensor | None = None,
    relax: Relaxation = neuralsort,
) -> TopK:
    r"""Differentiable top-k: the k largest values, and how much each item belongs to them.

    $$\text{values} = \widehat P_{1..k}\, x, \qquad
      \text{weights}_j = \sum_{i \le k} \widehat P_{ij}$$

    Its hard counterpart is `torch.topk(x, k, dim, largest)`; the weights tend to the 0/1 mask of
    the chosen items as `tau` tends to 0.

    Args:
        x: Values, any shape.
        k: How many.
        tau: Temperature, as in `relax`: with the default one in units of what is sorted; smaller is
            harder. A tensor broadcasts with the list dimension last.
        dim: The dimension that holds the lists.
        largest: The largest values, in descending order; else the smallest, in ascending order.
        mask: Boolean, the shape of `x`, True where the item exists. Absent items are taken
            last, in index order.
        relax: The relaxation: `neuralsort`, `softsort`, or a `functools.partial` of one.

    Returns:
        A named tuple of `values`, of length k along `dim`, and `weights`, of the shape of `x`,
        which sum to k along `dim`. They are sums over k rows of the relaxed permutation: with
        relaxations whose columns do not sum to 1, as the default, a weight may exceed 1, since an
        item may be counted at several places. For memberships between 0 and 1 see
        `soft_topk_mask`.

    Raises:
        TypeError: If `x` is not floating point, or `mask` not boolean.
        ValueError: If `k` exceeds the length of the lists or `dim` is out of range.

    Example:
        >>> top = soft_topk(torch.tensor([30.0, 10.0, 20.0]), 2, tau=0.01)
        >>> top.values, top.weights
        (tensor([30., 20.]), tensor([1., 0., 1.]))

    Time and memory: those of the first k rows of `relax`.
    """
    x = _checks.scores("soft_topk(x)", x)
    dim = _options.dim(dim, tuple(x.shape))
    k = _options.k(k, x.shape[dim])
    P, dim = _ordered("soft_topk(x)", x, tau, dim, largest, mask, relax)
    top = P.top(k)
    values = top.sort(x.movedim(dim, -1))
    ones = torch.ones(k, 1, dtype=x.dtype, device=x.device)
    weights = torch.matmul(top.mT, ones).squeeze(-1)  # pyright: ignore
    return TopK(values.movedim(-1, dim), weights.movedim(-1, dim))


def soft_quantile(
    x: Tensor,
    q: float | Tensor,
    *,
    tau: _checks.Tau = 1.0,
    dim: int = -1,
    mask: Tensor | None = None,
    relax: Relaxation = neuralsort,
) -> Tensor:
    r"""Differentiable quantile.

    The soft sort, linearly interpolated at position $q\,(n-1)$. Its hard counterpart is
    `torch.quantile(x, q, dim)`.

    Args:
        x: Values, any shape, with at least one item along `dim`.
        q: In [0, 1]: a number, or a 0-d or 1-d tensor. What cannot be read (on accelerators, in
            compiled code) gives NaN outside.
        tau: Temperature, as in `relax`: with the default one in units of what is sorted; smaller is
            harder. A tensor broadcasts with the list dimension last.
        dim: The dimension that holds the lists.
        mask: Boolean, the shape of `x`, True where the item exists. Absent items do not count;
            a list of none but these gives NaN.
        relax: The relaxation: `neuralsort`, `softsort`, or a `functools.partial` of one.

    Returns:
        The shape of `x` without `dim`; for a 1-d `q` one more dimension in front.

    Raises:
        TypeError: If `x` is not floating point, or `mask` not boolean.
        ValueError: If `q` lies outside [0, 1], `dim` is out of range, or lists are empty.

    Example:
        >>> soft_quantile(torch.tensor([1.0, 4.0, 2.0, 3.0]), 0.5, tau=0.01)
        tensor(2.5000)

    Time and memory: those of `relax`; O(n log n) and O(n) for long lists.
    """
    P, dim = _ordered("soft_quantile(x)", x, tau, dim, False, mask, relax)
    lists = x.movedim(dim, -1)
    n = lists.shape[-1]
    if n == 0:
        raise ValueError(
            f"`soft_quantile` needs at least one item along dim {dim}, got shape {tuple(x.shape)}. "
            "Give lists that are not empty."
        )
    count = _count(mask, x, dim)  # (...)
    q = _checks.quantile(q, x)
    q_of_all = q.reshape(-1, *[1] * count.dim())  # (Q, ...)
    valid = (q_of_all >= 0) & (q_of_all <= 1)
    at = q_of_all.where(valid, 0.0) * (count - 1).clamp(min=0)
    ascending = P.sort(lists).expand(at.shape[0], *lists.shape)

    def value(place: Tensor) -> Tensor:
        return ascending.gather(-1, place.long().unsqueeze(-1)).squeeze(-1)

    low, high = value(at.floor()), value(at.ceil())
    share = (at - at.floor()).to(x.dtype)
    # An infinite neighbour that carries no share must not leave a NaN.
    mixed = torch.where(share == 0, low, low + share * (high - low))
    mixed = mixed.masked_fill((count == 0) | ~valid, torch.nan)
    return mixed if q.dim() else mixed.squeeze(0)


def _count(mask: Tensor | None, x: Tensor, dim: int) -> Tensor:
    """How many items exist in each list, `(...)`."""
    there = torch.ones_like(x, dtype=torch.bool) if mask is None else mask.expand(x.shape)
    return there.sum(dim)


def soft_median(
    x: Tensor,
    *,
    tau: _checks.Tau = 1.0,
    dim: int = -1,
    mask: Tensor | None = None,
    relax: Relaxation = neuralsort,
) -> Tensor:
    """Differentiable median: `soft_quantile(x, 0.5)`.

    Its hard counterpart is `torch.quantile(x, 0.5, dim)`: with an even number of items, the mean of
    the two in the middle.

    Args:
        x: Values, any shape, with at least one item along `dim`.
        tau: Temperature, as in `relax`: with the default one in units of what is sorted; smaller is
            harder. A tensor broadcasts with the list dimension last.
        dim: The dimension that holds the lists.
        mask: Boolean, the shape of `x`, True where the item exists. Absent items do not count;
            a list of none but these gives NaN.
        relax: The relaxation: `neuralsort`, `softsort`, or a `functools.partial` of one.

    Returns:
        The shape of `x` without `dim`.

    Raises:
        TypeError: If `x` is not floating point, or `mask` not boolean.
        ValueError: If `dim` is out of range, or lists are empty.

    Example:
        >>> soft_median(torch.tensor([5.0, 1.0, 3.0]), tau=0.01)
        tensor(3.)

    Time and memory: those of `relax`; O(n log n) and O(n) for long lists.
    """
    return soft_quantile(x, 0.5, tau=tau, dim=dim, mask=mask, relax=relax)


def tau_for_blur(scores: Tensor, *, ranks: float = 1.0, mask: Tensor | None = None) -> Tensor:
    r"""The temperature at which NeuralSort blends about `ranks` neighbouring ranks.

    With equal gaps g between sorted scores, a row of NeuralSort is a discrete Gaussian with a
    standard deviation of $\sqrt{\tau / 2g}$ ranks; this returns $\tau = 2\,g\,\text{ranks}^2$ with
    the mean gap g of the middle half of each list, which a few outliers do not change. Denser parts
    of a list blend more, sparser parts less. Infinite scores blend with nothing and do not count.
    `neuralsort(scores, tau=Blur(ranks))` is the same; other methods make of a `Blur` a temperature
    of their own.

    Args:
        scores: `(..., n)`.
        ranks: Standard deviation of a row, in ranks; positive.
        mask: Boolean, the shape of `scores`, True where the item exists.

    Returns:
        `(..., 1)`, one temperature per list, without gradient: what `tau=` takes; for half
        precision in float32. It is 1 for lists of fewer than two finite items, 0, a hard sort,
        where the middle half of a list is tied, and never infinite.

    Raises:
        TypeError: If `scores` is not floating point.
        ValueError: If `ranks` is not positive.

    Example:
        >>> tau_for_blur(torch.linspace(0.0, 10.0, 101), ranks=2.0)
        tensor([0.8000])
    """
    scores = _checks.scores("tau_for_blur(scores)", scores)
    ranks = _options.blur(ranks)
    mask = _checks.mask(mask, scores)
    return at_gap(scores, mask, gaussian(ranks))
