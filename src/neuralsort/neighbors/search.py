"""Nearest neighbours among fixed points: FAISS, scikit-learn or torch, with the same answers.

An engine proposes a few more points than are asked for, in float32. Their distances are then
computed from differences, in the precision of the points, and sorted; equal distances in the order
of the points. Where rounding may have kept a nearer or equally near point from being proposed, all
points are looked at, in float64. So exact engines agree, whatever their arithmetic. Queries far
from all points, which engines may not even be able to square, are answered by what tells points
apart.
"""

import math

import numpy as np
import torch

from .engines import Engine, blocks, make_engine

SPARE = 16
"""Points proposed beyond those asked for: rounding may have put some of them in the wrong order."""

EPSILON = float(np.finfo(np.float32).eps)
"""Of the engines' arithmetic."""

DISTANT = 1e3
"""Queries farther off than so many times the farthest point would round differences away."""


class Index:
    """The k nearest of fixed points, by Euclidean distance.

    Args:
        points: `(n, d)`.
        kind: `"faiss"`, `"sklearn"`, `"torch"`, or `"auto"`: FAISS where it is installed, else
            torch.
        factory: What FAISS builds, in the words of its `index_factory`: `"Flat"` is exact,
            `"IVF256,Flat"` or `"HNSW32"` are approximate.
        search: Parameters of FAISS's search, such as `"nprobe=16"` or `"efSearch=64"`.
        engine: An engine over the shortened points that exists already.

    Raises:
        ValueError: If the points are not finite numbers `(n, d)`.
    """

    def __init__(
        self,
        points: np.ndarray,
        *,
        kind: str = "auto",
        factory: str = "Flat",
        search: str = "",
        engine: Engine | None = None,
    ) -> None:
        self.points = _finite("points", points)
        self.centre = self.points.mean(0)  # an offset common to all would cost digits
        reach = float(np.abs(self.points - self.centre).max(initial=0.0))
        self.unit = 2.0 ** math.ceil(math.log2(reach)) if reach else 1.0  # exact to divide by
        short = self._short(self.points)
        self.longest = float(np.linalg.norm(short, axis=1).max(initial=0.0))
        self.engine = engine or make_engine(short, kind, factory, search)

    def query(self, queries: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
        """Distances and indices `(q, k)` of the k nearest points, the nearest first.

        Queries for which an approximate index finds fewer than k are answered exactly.

        Raises:
            ValueError: If queries are not finite numbers `(q, d)`, or there are no k points.
        """
        queries, n = _finite("queries", queries), len(self.points)
        if queries.shape[1] != self.points.shape[1] or not 1 <= k <= n:
            raise ValueError(
                f"Expected queries of {self.points.shape[1]} features and from 1 to {n} "
                f"neighbours, got {queries.shape[1]} and {k}. Ask for points like those indexed."
            )
        distances = np.empty((len(queries), k), self.points.dtype)
        indices = np.empty((len(queries), k), np.int64)
        distant = _norm(self._placed(queries)) > DISTANT * max(self.longest, 1e-3)
        for rows, answer in ((~distant, self._near), (distant, self._distant)):
            if rows.any():
                distances[rows], indices[rows] = answer(queries[rows], k)
        return distances, indices

    def _near(self, queries: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
        """The answer for queries that engines can compare with points."""
        n = len(self.points)
        count = min(int(k) + SPARE, n)
        distances = np.empty((len(queries), k), self.points.dtype)
        indices = np.empty((len(queries), k), np.int64)
        proposed = self.engine.propose(self._short(queries), count)
        unsure = np.zeros(len(queries), bool)
        for rows in blocks(len(queries), count * self.points.shape[1]):
            near, order = self._ordered(queries[rows], proposed[rows])
            distances[rows], indices[rows] = near[:, :k], order[:, :k]
            unsure[rows] = self._unsure(queries[rows], near, k) if count < n else False
        if not self.engine.exact:
            unsure[:] = False
        unsure |= (indices < 0).any(1)
        if unsure.any():
            distances[unsure], indices[unsure] = self._all(queries[unsure], k)
        return distances, indices

    def _distant(self, queries: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
        """The answer for queries far from all points, in float64.

        Of a squared distance |p|^2 - 2 p q + |q|^2 only the first two terms differ between points,
        and the third would round them away.
        """
        points, asked = self._placed(self.points), self._placed(queries)
        squares = np.square(points).sum(1)
        distances, indices = np.empty((len(asked), k)), np.empty((len(asked), k), np.int64)
        for row, (query, length) in enumerate(zip(asked, _norm(asked), strict=True)):
            along = points @ (query / length)
            apart = squares / length - 2 * along  # what tells points apart, over |q|
            nearest = np.argsort(apart, kind="stable")[:k]
            indices[row] = nearest
            distances[row] = length * np.sqrt(1 + apart[nearest] / length)
        with np.errstate(over="ignore"):  # farther than the dtype of the points can say
            return (distances * self.unit).astype(self.points.dtype), indices

    def query_others(self, k: int) -> tuple[np.ndarray, np.ndarray]:
        """The k nearest others of every point."""
        distances, indices = self.query(self.points, k + 1)
        own = indices == np.arange(len(indices))[:, None]
        own[~own.any(1), -1] = True  # more than k points are where it is: any of them may go
        shape = (len(indices), k)
        return distances[~own].reshape(shape), indices[~own].reshape(shape)

    def _short(self, points: np.ndarray) -> np.ndarray:
        """Points in float32, from their centre, in units that are no smaller than any number."""
        return np.ascontiguousarray((points - self.centre) / self.unit, np.float32)

    def _placed(self, points: np.ndarray) -> np.ndarray:
        """The same in float64."""
        return (points.astype(np.float64) - self.centre) / self.unit

    def _ordered(self, queries: np.ndarray, proposed: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Distances and indices `(q, count)` of what was proposed, the nearest first."""
        gaps = (self.points[proposed] - queries[:, None]) / self.unit
        distances = np.sqrt(np.einsum("qnd,qnd->qn", gaps, gaps)) * self.unit
        distances = distances.astype(self.points.dtype, copy=False)
        distances[proposed < 0] = np.inf
        order = np.lexsort((proposed, distances))
        return np.take_along_axis(distances, order, 1), np.take_along_axis(proposed, order, 1)

    def _unsure(self, queries: np.ndarray, near: np.ndarray, k: int) -> np.ndarray:
        """Whether a point that was not proposed may be as near as the k-th, `(q,)`.

        It is no nearer than the last proposed, but for twice the rounding of squared distances by
        products of matrices in float32.
        """
        lengths = np.linalg.norm((queries - self.centre) / self.unit, axis=1) + self.longest
        rounding = 2 * EPSILON * self.points.shape[1] ** 0.5 * lengths**2
        kth, last = (np.square(near[:, i] / self.unit) for i in (k - 1, -1))
        return kth * (1 + 1e-5) >= last - 2 * rounding

    def _all(self, queries: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
        """The answer, by looking at every point in float64."""
        points, asked = (
            torch.from_numpy((x - self.centre) / self.unit).double() for x in (self.points, queries)
        )
        lengths = points.square().sum(1)
        found = []
        for rows in blocks(len(asked), len(points)):
            some = asked[rows]
            own = some.square().sum(1, keepdim=True)
            far = torch.addmm(lengths + own, some, points.mT, alpha=-2)
            # What may be among the k nearest by differences, and whatever is as near as the last.
            kth = far.kthvalue(k, dim=1, keepdim=True).values
            close = far <= kth * (1 + 1e-5) + 1e-12 * (own + 1)
            found += [
                self._ordered(query[None], row.nonzero().T.numpy())
                for query, row in zip(queries[rows], close, strict=True)
            ]
        near, order = (
            np.concatenate([one[:, :k] for one in parts]) for parts in zip(*found, strict=True)
        )
        return near, order


def _norm(points: np.ndarray) -> np.ndarray:
    """Euclidean lengths `(n,)`, whose squares may be larger than any number."""
    largest = np.abs(points).max(1, initial=0.0, keepdims=True)
    largest[largest == 0] = 1.0
    return largest[:, 0] * np.linalg.norm(points / largest, axis=1)


def _finite(name: str, points: np.ndarray) -> np.ndarray:
    """Floating-point numbers `(n, d)`; whole numbers become float64."""
    points = np.asarray(points)
    if points.dtype.kind in "iub":
        points = points.astype(np.float64)
    if points.ndim != 2 or points.dtype.kind != "f" or not np.isfinite(points).all():
        raise ValueError(
            f"Expected {name} of finite numbers (n, d), got {points.dtype} of shape "
            f"{points.shape}. Leave out what is missing."
        )
    return points
