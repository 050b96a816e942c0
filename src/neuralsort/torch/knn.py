"""Soft nearest neighbours: candidates in the order of their distance from a query, relaxed."""

from typing import Any

import torch
from torch import Tensor

from .. import _options
from . import _checks
from .arrays import matmul, working
from .noise import gumbel
from .operators import Relaxation, relaxed
from .permutation import RelaxedPermutation
from .relaxations import neuralsort

LARGEST = 2**24
"""Distances at a time."""


def squared_distances(queries: Tensor, candidates: Tensor) -> Tensor:
    r"""Squared Euclidean distances, without a tensor of queries by candidates by features.

    $$\lVert q - c \rVert^2 = \lVert q \rVert^2 + \lVert c \rVert^2 - 2 q \cdot c$$

    Both are moved first so that the candidates have mean 0: a common offset would cancel, and take
    digits with it. Clusters that are a thousand times as far apart as they are wide leave float32
    three digits within them: give such points in float64.

    Args:
        queries: `(..., q, d)`.
        candidates: `(..., n, d)`.

    Returns:
        `(..., q, n)`, not negative. Half precision computes in float32.

    Raises:
        TypeError: If one of them is not floating point.
        ValueError: If they differ in d.

    Example:
        >>> squared_distances(torch.tensor([[0.0, 3.0]]), torch.tensor([[4.0, 0.0], [0.0, 3.0]]))
        tensor([[25.,  0.]])
    """
    queries, candidates, out = _long(queries, candidates)
    return _squared(queries, candidates, candidates.detach().mean(-2, keepdim=True)).to(out)


def _long(queries: Tensor, candidates: Tensor) -> tuple[Tensor, Tensor, torch.dtype]:
    """Both in the precision of the computation, and the one that they came in."""
    queries, candidates = _checks.points(queries, candidates)
    out = torch.promote_types(queries.dtype, candidates.dtype)
    return queries.to(working(out)), candidates.to(working(out)), out


def _squared(queries: Tensor, candidates: Tensor, centre: Tensor) -> Tensor:
    queries, candidates = queries - centre, candidates - centre
    squares = queries.square().sum(-1, keepdim=True) + candidates.square().sum(-1).unsqueeze(-2)
    return (squares - 2 * matmul(queries, candidates.mT)).clamp(min=0)


def soft_neighbours(
    queries: Tensor,
    candidates: Tensor,
    *,
    k: int,
    tau: _checks.Tau = 1.0,
    samples: int | None = None,
    mask: Tensor | None = None,
    relax: Relaxation = neuralsort,
    generator: torch.Generator | None = None,
) -> RelaxedPermutation:
    r"""The k nearest candidates of every query, softly.

    $$\widehat P_{\text{sort}(s)}[1{:}k], \qquad s_j = -\lVert q - c_j \rVert^2$$

    As `tau` tends to 0, row i becomes the one-hot row of the i-th nearest candidate.

    Args:
        queries: `(..., q, d)`.
        candidates: `(..., n, d)`.
        k: How many neighbours, from 1 to n.
        tau: Temperature, in units of squared distance.
        samples: None sorts the distances themselves. A number draws so many orders of
            Plackett-Luce with logits $s$ for every query, each with noise of its own.
        mask: `(..., q, n)` boolean, or what broadcasts to it: True where the candidate may be a
            neighbour of the query. A query among the candidates must not be its own. A candidate
            of no query may hold anything.
        relax: The relaxation.
        generator: Source of randomness for samples; the global one if None.

    Returns:
        The operator `(..., q, k, n)`, with the samples first if any: row i weighs the candidates
        for the place of the i-th neighbour. Only k rows are computed. For points in half precision
        it is in float32.

    Raises:
        TypeError: If the points are not floating point, or `mask` is not boolean.
        ValueError: If shapes do not fit, or `k` or `samples` is out of range.

    Example:
        >>> points = torch.tensor([[0.0], [1.0], [5.0]])
        >>> soft_neighbours(torch.tensor([[1.2]]), points, k=2, tau=0.1).permutation()
        tensor([[1, 0]])

    Reference: Grover et al. (2019), the kNN experiment. Time and memory: a product of matrices for
    the distances, and k rows of `relax` for every query.
    """
    queries, candidates, _ = _long(queries, candidates)
    k = _options.neighbours(k, candidates.shape[-2])
    batch = torch.broadcast_shapes(queries.shape[:-2], candidates.shape[:-2])
    shape = *batch, queries.shape[-2], candidates.shape[-2]
    mask = _checks.mask(mask, queries.new_empty(()).expand(shape))
    centre = candidates.detach().mean(-2, keepdim=True)
    if mask is not None:
        asked = mask.any(-2).unsqueeze(-1)  # (..., n, 1)
        there = torch.where(asked, candidates.detach(), 0.0)
        centre = there.sum(-2, keepdim=True) / asked.sum(-2, keepdim=True).clamp(min=1)
        candidates = torch.where(asked, candidates, centre)
    scores = -_squared(queries, candidates, centre)
    if samples is not None:
        shape = torch.Size((_options.samples(samples), *scores.shape))
        noise = gumbel(shape, device=scores.device, generator=generator)
        scores = scores + noise.to(scores.dtype)
    return relaxed(scores, tau, mask, relax).top(k)


def neighbour_labels(
    queries: Tensor,
    candidates: Tensor,
    labels: Tensor,
    *,
    k: int,
    samples: int | None = None,
    mask: Tensor | None = None,
    **options: Any,
) -> Tensor:
    """What the k soft neighbours of every query say, some queries at a time.

    Args:
        queries: `(q, d)`.
        candidates: `(n, d)`.
        labels: `(n, c)`. One-hot rows of classes, or targets of any kind.
        k: How many neighbours, from 1 to n.
        samples: As for `soft_neighbours`.
        mask: `(q, n)` boolean, or what broadcasts to it: True where the candidate may be a
            neighbour of the query. Pass `~torch.eye(q, dtype=bool)` where queries are their own
            candidates.
        **options: Of `soft_neighbours`.

    Returns:
        `(q, k, c)`, with the samples first if any: the label in the place of each neighbour.
        Places of neighbours that a query does not have, by its mask, hold 0. Labels that are not
        finite give NaN to the queries whose candidates they are, and to no others.

    Raises:
        TypeError: If the points are not floating point, or `mask` is not boolean.
        ValueError: If shapes do not fit, or `k` or `samples` is out of range.
    """
    n = candidates.shape[0]
    if queries.dim() != 2 or candidates.dim() != 2 or labels.dim() != 2 or labels.shape[0] != n:
        shapes = (tuple(x.shape) for x in (queries, candidates, labels))
        raise ValueError(
            "Expected queries (q, d), candidates (n, d) and labels (n, c), got {}, {} and {}. "
            "Classes become rows by torch.nn.functional.one_hot.".format(*shapes)
        )
    if not labels.is_floating_point():
        labels = labels.to(queries.dtype)
    mask = _checks.mask(mask, queries.new_empty(()).expand(queries.shape[0], n))
    unusable = ~labels.isfinite()
    size = max(1, LARGEST // max(1, n * (samples or 1)))
    if torch.compiler.is_compiling():  # one part: how many there are must not depend on sizes
        starts, size = (0,), queries.shape[0]
    else:
        starts = range(0, max(1, queries.shape[0]), size)  # once where there are no queries
    parts = []
    for start in starts:
        some = slice(start, start + size)
        part = None if mask is None else mask[some]
        P = soft_neighbours(queries[some], candidates, k=k, samples=samples, mask=part, **options)
        held = labels if part is None else labels.masked_fill(unusable, 0.0)
        rows = torch.matmul(P, held)  # pyright: ignore
        if part is not None:
            # What is no number counts only for queries that the candidate is there for.
            asked = part.to(rows.dtype) @ unusable.to(rows.dtype) > 0  # (q, c)
            rows = rows.masked_fill(asked.unsqueeze(-2), torch.nan)
            place = torch.arange(k, device=rows.device)
            there = place < part.sum(-1, keepdim=True)
            rows = rows.masked_fill(~there.unsqueeze(-1), 0.0)
        parts.append(rows)
    return torch.cat(parts, dim=-3)
