"""Operators on values, for people who want one call: a relaxation and one of its products."""

import math
from typing import NamedTuple, Protocol

import jax.numpy as jnp
from jax import Array, lax

from .. import _options
from .._blur import gaussian
from . import _checks
from .arrays import take_rows
from .permutation import RelaxedPermutation
from .relaxations import neuralsort
from .softness import at_gap


class Relaxation(Protocol):
    """Scores and a temperature to a relaxed permutation, largest first.

    For lists with a mask it is called with `mask=` as well.
    """

    def __call__(self, scores: Array, /, *, tau: _checks.Tau) -> RelaxedPermutation:
        """Relaxes the descending sort of `scores` (..., n)."""
        ...


class TopK(NamedTuple):
    """What `soft_topk` returns."""

    values: Array
    weights: Array


def relaxed(
    scores: Array, tau: _checks.Tau, mask: Array | None, relax: Relaxation
) -> RelaxedPermutation:
    """The relaxed permutation of lists; only padded ones need a relaxation that takes masks."""
    _options.relax(relax)
    options = {"tau": tau} if mask is None else {"tau": tau, "mask": mask}
    P = _options.called(relax, scores, options)
    _options.relaxed_permutation("relax(scores)", P)
    return P


def _ordered(
    name: str,
    x: Array,
    tau: _checks.Tau,
    dim: int,
    descending: bool,
    mask: Array | None,
    relax: Relaxation,
) -> tuple[RelaxedPermutation, int]:
    """The relaxed permutation of the lists along `dim` in that order, and `dim` from the front.

    Ascending order is the descending one of negated values, so that absent items come last and ties
    keep the order of their indices in both.
    """
    x = _checks.scores(name, x)
    _checks.static(dim=dim, descending=descending)
    dim = _options.dim(dim, x.shape)
    mask = _checks.mask(mask, x.shape)
    mask = None if mask is None else jnp.moveaxis(mask, dim, -1)
    lists = jnp.moveaxis(x, dim, -1)
    return relaxed(lists if descending else -lists, tau, mask, relax), dim


def soft_sort(
    x: Array,
    *,
    tau: _checks.Tau = 1.0,
    dim: int = -1,
    descending: bool = False,
    mask: Array | None = None,
    relax: Relaxation = neuralsort,
) -> Array:
    r"""Differentiable sort of values.

    $$\text{soft\_sort}(x) = \widehat P_{\text{sort}(x)}\, x$$

    Its hard counterpart is `jnp.sort(x, axis=dim, descending=descending)`, which it tends to as
    `tau` tends to 0.

    Args:
        x: Values, any shape.
        tau: Temperature, as in `relax`: with the default one in units of what is sorted; smaller is
            harder. An array broadcasts with the list dimension last.
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
        >>> soft_sort(jnp.array([3.0, 1.0, 2.0]), tau=0.01)
        Array([1., 2., 3.], dtype=float32)

    Time and memory: those of `relax`; for long lists O(n log n) and O(n) with the default one.
    """
    P, dim = _ordered("soft_sort(x)", x, tau, dim, descending, mask, relax)
    return jnp.moveaxis(P.sort(jnp.moveaxis(x, dim, -1)), -1, dim)


def soft_sort_by(
    values: Array,
    key: Array,
    *,
    tau: _checks.Tau = 1.0,
    dim: int = -1,
    descending: bool = False,
    mask: Array | None = None,
    relax: Relaxation = neuralsort,
) -> Array:
    r"""Differentiable `values[argsort(key)]`: permutes a payload by the order of a key.

    $$\text{soft\_sort\_by}(v, k) = \widehat P_{\text{sort}(k)}\, v$$

    Gradients flow to the values and to the key. Its hard counterpart for one list is
    `values[jnp.argsort(key, descending=descending)]`.

    Args:
        values: The payload, shape `key.shape + payload`: key `(B, n)` sorts values `(B, n)` or
            `(B, n, d)`.
        key: What to sort by.
        tau: Temperature, as in `relax`: with the default one in units of what is sorted; smaller is
            harder. An array broadcasts with the list dimension last.
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
        >>> names = jnp.array([10.0, 20.0, 30.0])
        >>> soft_sort_by(names, jnp.array([3.0, 1.0, 2.0]), tau=0.01)
        Array([20., 30., 10.], dtype=float32)

    Time and memory: those of `relax`; O(n^2) and O(n) per payload column for long lists.
    """
    P, dim = _ordered("soft_sort_by(key)", key, tau, dim, descending, mask, relax)
    values = _checks.keyed_values(values, key)
    payload = jnp.moveaxis(values, dim, key.ndim - 1)  # (..., n, payload)
    columns = payload.reshape(*payload.shape[: key.ndim], math.prod(payload.shape[key.ndim :]))
    if mask is None:
        ordered = P @ columns
    else:
        there = jnp.moveaxis(jnp.broadcast_to(mask, key.shape), dim, -1)
        ordered = _beside_absent(P, columns, there)
    return jnp.moveaxis(ordered.reshape(payload.shape), key.ndim - 1, dim)


def _beside_absent(P: RelaxedPermutation, columns: Array, mask: Array) -> Array:
    """`P @ columns` `(..., n, d)`, where what absent items hold, even NaN, stays in their rows."""
    there = mask[..., None]
    soft = P @ jnp.where(there, columns, 0.0)
    own = take_rows(columns, jnp.argsort(~mask, axis=-1, stable=True))  # absent ones last
    row = jnp.arange(mask.shape[-1])[:, None]
    return jnp.where(row < there.sum(-2, keepdims=True), soft, own.astype(soft.dtype))


def soft_rank(
    x: Array,
    *,
    tau: _checks.Tau = 1.0,
    dim: int = -1,
    descending: bool = False,
    mask: Array | None = None,
    relax: Relaxation = neuralsort,
) -> Array:
    r"""Differentiable ranks, from 1.

    $$\text{soft\_rank}(x)_j = \frac{\sum_i i\,\widehat P_{ij}}{\sum_i \widehat P_{ij}}$$

    Its hard counterpart is `scipy.stats.rankdata(x)`: the smallest value has rank 1, ties share the
    mean of their ranks. With `descending=True` the largest has rank 1. At `tau=0`, where nothing is
    shared, ties are ranked by index.

    Args:
        x: Values, any shape.
        tau: Temperature, as in `relax`: with the default one in units of what is sorted; smaller is
            harder. An array broadcasts with the list dimension last.
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
        >>> soft_rank(jnp.array([30.0, 10.0, 20.0]), tau=0.01)
        Array([3., 1., 2.], dtype=float32)

    Time and memory: those of `relax`; for long lists O(n log n) and O(n) with the default one.
    """
    P, dim = _ordered("soft_rank(x)", x, tau, dim, descending, mask, relax)
    return jnp.moveaxis(P.rank(), -1, dim)


def soft_topk(
    x: Array,
    k: int,
    *,
    tau: _checks.Tau = 1.0,
    dim: int = -1,
    largest: bool = True,
    mask: Array | None = None,
    relax: Relaxation = neuralsort,
) -> TopK:
    r"""Differentiable top-k: the k largest values, and how much each item belongs to them.

    $$\text{values} = \widehat P_{1..k}\, x, \qquad
      \text{weights}_j = \sum_{i \le k} \widehat P_{ij}$$

    Its hard counterpart is `jax.lax.top_k(x, k)`; the weights tend to the 0/1 mask of
    the chosen items as `tau` tends to 0.

    Args:
        x: Values, any shape.
        k: How many.
        tau: Temperature, as in `relax`: with the default one in units of what is sorted; smaller is
            harder. An array broadcasts with the list dimension last.
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
        >>> top = soft_topk(jnp.array([30.0, 10.0, 20.0]), 2, tau=0.01)
        >>> top.values, top.weights
        (Array([30., 20.], dtype=float32), Array([1., 0., 1.], dtype=float32))

    Time and memory: those of the first k rows of `relax`.
    """
    x = _checks.scores("soft_topk(x)", x)
    _checks.static(k=k, dim=dim, largest=largest)
    dim = _options.dim(dim, x.shape)
    k = _options.k(k, x.shape[dim])
    P, dim = _ordered("soft_topk(x)", x, tau, dim, largest, mask, relax)
    top = P.top(k)
    values = top.sort(jnp.moveaxis(x, dim, -1))
    weights = top.mT @ jnp.ones(k, x.dtype)
    return TopK(jnp.moveaxis(values, -1, dim), jnp.moveaxis(weights, -1, dim))


def soft_quantile(
    x: Array,
    q: float | Array,
    *,
    tau: _checks.Tau = 1.0,
    dim: int = -1,
    mask: Array | None = None,
    relax: Relaxation = neuralsort,
) -> Array:
    r"""Differentiable quantile.

    The soft sort, linearly interpolated at position $q\,(n-1)$. Its hard counterpart is
    `jnp.quantile(x, q, dim)`.

    Args:
        x: Values, any shape, with at least one item along `dim`.
        q: In [0, 1]: a number, or a 0-d or 1-d array. Traced values cannot be read: those outside
            give NaN.
        tau: Temperature, as in `relax`: with the default one in units of what is sorted; smaller is
            harder. An array broadcasts with the list dimension last.
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
        >>> soft_quantile(jnp.array([1.0, 4.0, 2.0, 3.0]), 0.5, tau=0.01)
        Array(2.5, dtype=float32)

    Time and memory: those of `relax`; for long lists O(n log n) and O(n) with the default one.
    """
    P, dim = _ordered("soft_quantile(x)", x, tau, dim, False, mask, relax)
    lists = jnp.moveaxis(x, dim, -1)
    n = lists.shape[-1]
    if n == 0:
        raise ValueError(
            f"`soft_quantile` needs at least one item along dim {dim}, got shape {tuple(x.shape)}. "
            "Give lists that are not empty."
        )
    count = _count(mask, x, dim)  # (...)
    q = _checks.quantile(q)
    q = jnp.where((q >= 0) & (q <= 1), q, jnp.nan)
    at = lax.expand_dims(q.reshape(-1), range(1, count.ndim + 1)) * jnp.maximum(count - 1, 0)
    ascending = jnp.broadcast_to(P.sort(lists), (at.shape[0], *lists.shape))

    def value(place: Array) -> Array:
        return jnp.take_along_axis(ascending, place.astype(int)[..., None], -1)[..., 0]

    low, high = value(jnp.floor(at)), value(jnp.ceil(at))
    share = (at - jnp.floor(at)).astype(x.dtype)
    # An infinite neighbour that carries no share must not leave a NaN, in gradients either.
    mixed = low + share * jnp.where(share == 0, 0.0, high - low)
    mixed = jnp.where(count == 0, jnp.nan, mixed)
    return mixed if q.ndim else mixed[0]


def _count(mask: Array | None, x: Array, dim: int) -> Array:
    """How many items exist in each list, `(...)`."""
    there = jnp.ones(x.shape, bool) if mask is None else jnp.broadcast_to(mask, x.shape)
    return there.sum(dim)


def soft_median(
    x: Array,
    *,
    tau: _checks.Tau = 1.0,
    dim: int = -1,
    mask: Array | None = None,
    relax: Relaxation = neuralsort,
) -> Array:
    """Differentiable median: `soft_quantile(x, 0.5)`.

    Its hard counterpart is `jnp.quantile(x, 0.5, dim)`: with an even number of items, the mean of
    the two in the middle.

    Args:
        x: Values, any shape, with at least one item along `dim`.
        tau: Temperature, as in `relax`: with the default one in units of what is sorted; smaller is
            harder. An array broadcasts with the list dimension last.
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
        >>> soft_median(jnp.array([5.0, 1.0, 3.0]), tau=0.01)
        Array(3., dtype=float32)

    Time and memory: those of `relax`.
    """
    return soft_quantile(x, 0.5, tau=tau, dim=dim, mask=mask, relax=relax)


def tau_for_blur(scores: Array, *, ranks: float = 1.0, mask: Array | None = None) -> Array:
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
        >>> tau_for_blur(jnp.linspace(0.0, 10.0, 101), ranks=2.0)
        Array([0.8], dtype=float32)
    """
    scores = _checks.scores("tau_for_blur(scores)", scores)
    _checks.static(ranks=ranks)
    ranks = _options.blur(ranks)
    return at_gap(scores, _checks.mask(mask, scores.shape), gaussian(ranks))
