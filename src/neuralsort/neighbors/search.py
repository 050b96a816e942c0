"""Nearest neighbours among fixed points: FAISS, scikit-learn or torch, with the same answers.

An engine proposes a few more points than are asked for, in float32. Their distances are then
computed from differences, in the precision of the points, and sorted; equal distances in the order
of the points. Where rounding may have kept a nearer or equally near point from being proposed, all
points are looked at, in float64. So exact engines agree, whatever their arithmetic.
"""

import math
from collections.abc import Iterator
from typing import Any, Protocol

import numpy as np
import torch

SPARE = 16
"""Points proposed beyond those asked for: rounding may have put some of them in the wrong order."""

KINDS = ("auto", "faiss", "sklearn", "torch")

LARGEST = 2**24
"""Numbers in a block of work."""

EPSILON = float(np.finfo(np.float32).eps)


class Engine(Protocol):
    """Proposes neighbours among the points it was made of."""

    @property
    def exact(self) -> bool:
        """Whether it looks at all points."""
        ...

    def propose(self, queries: np.ndarray, count: int) -> np.ndarray:
        """`(q, count)` indices of points in float32; -1 where an approximate engine found none."""
        ...


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
        count = min(int(k) + SPARE, n)
        distances = np.empty((len(queries), k), self.points.dtype)
        indices = np.empty((len(queries), k), np.int64)
        proposed = self.engine.propose(self._short(queries), count)
        unsure = np.zeros(len(queries), bool)
        for rows in _blocks(len(queries), count * self.points.shape[1]):
            near, order = self._ordered(queries[rows], proposed[rows])
            distances[rows], indices[rows] = near[:, :k], order[:, :k]
            unsure[rows] = self._unsure(queries[rows], near, k) if count < n else False
        if not self.engine.exact:
            unsure = (indices < 0).any(1)
        left = np.flatnonzero(unsure)
        for block in _blocks(len(left), n):
            rows = left[block]
            distances[rows], indices[rows] = self._all(queries[rows], k)
        return distances, indices

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
        squares = asked.square().sum(1, keepdim=True)
        far = torch.addmm(points.square().sum(1) + squares, asked, points.mT, alpha=-2)
        kth = far.kthvalue(k, dim=1).values
        # What may be among the k nearest by differences, and whatever is as near as the last.
        close = far <= (kth * (1 + 1e-5) + 1e-12 * (squares[:, 0] + 1)).unsqueeze(1)
        found = [
            self._ordered(queries[i : i + 1], row.nonzero().T.numpy())
            for i, row in enumerate(close)
        ]
        return (
            np.concatenate([near[:, :k] for near, _ in found]),
            np.concatenate([order[:, :k] for _, order in found]),
        )


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


def _blocks(rows: int, width: int) -> Iterator[slice]:
    """Consecutive rows, as many as fit into a block."""
    step = max(1, LARGEST // max(1, width))
    return (slice(start, start + step) for start in range(0, rows, step))


# -- engines ---------------------------------------------------------------------------------------


def has_faiss() -> bool:
    """Whether FAISS is installed."""
    try:
        import faiss  # noqa: F401
    except ImportError:
        return False
    return True


def make_engine(points: np.ndarray, kind: str, factory: str, search: str) -> Engine:
    """The engine of that name over points in float32.

    Raises:
        ValueError: If there is none of that name, or FAISS does not understand what to build.
        ImportError: If FAISS is asked for and not installed.
    """
    kind = chosen_kind(kind, factory, search)
    if kind == "faiss":
        return FaissEngine.build(points, factory, search)
    return SklearnEngine(points) if kind == "sklearn" else TorchEngine(points)


def chosen_kind(kind: str, factory: str, search: str) -> str:
    """The engine that is meant.

    Raises:
        ValueError: If there is none of that name, or it takes no options of FAISS.
    """
    if kind not in KINDS:
        raise ValueError(f"`index` must be one of {', '.join(KINDS)}, got {kind!r}. Choose one.")
    special = factory != "Flat" or search != ""
    if kind == "auto":
        return "faiss" if special or has_faiss() else "torch"
    if kind != "faiss" and special:
        raise ValueError(
            f"index={kind!r} is exact and takes no index_factory or index_search, got {factory!r} "
            f'and {search!r}. Leave them out, or use index="faiss".'
        )
    return kind


class TorchEngine:
    """Products of matrices, a block of queries at a time."""

    exact = True

    def __init__(self, points: np.ndarray) -> None:
        self.points = points

    def propose(self, queries: np.ndarray, count: int) -> np.ndarray:
        points = torch.from_numpy(self.points)
        halves = points.square().sum(1) / 2
        found = np.empty((len(queries), count), np.int64)
        for rows in _blocks(len(queries), len(points)):
            some = torch.from_numpy(queries[rows])
            # Half the squared distance, but for what depends on the query alone.
            far = torch.addmm(halves, some, points.mT, alpha=-1)
            found[rows] = far.topk(count, largest=False, sorted=False).indices.numpy()
        return found


class SklearnEngine:
    """scikit-learn's `NearestNeighbors`: trees for few features, else all distances."""

    exact = True

    def __init__(self, points: np.ndarray) -> None:
        from sklearn.neighbors import NearestNeighbors

        self.neighbors = NearestNeighbors().fit(points)

    def propose(self, queries: np.ndarray, count: int) -> np.ndarray:
        return self.neighbors.kneighbors(queries, count, return_distance=False)


class FaissEngine:
    """An index of FAISS, exact or approximate; copied and pickled as FAISS writes it."""

    def __init__(self, index: Any) -> None:
        self.index = index

    @classmethod
    def build(cls, points: np.ndarray, factory: str, search: str) -> "FaissEngine":
        """Trains an index if need be, and adds the points."""
        index = cls.empty(points.shape[1], factory, search)
        try:
            if not index.is_trained:
                index.train(points)
            index.add(points)
        except RuntimeError as error:
            raise ValueError(
                f"FAISS could not build {factory!r} of {len(points)} points: {_reason(error)}. "
                'Give more points, or use index_factory="Flat", which is exact.'
            ) from None
        return cls(index)

    @staticmethod
    def empty(features: int, factory: str, search: str) -> Any:
        """FAISS's index without points.

        Raises:
            ValueError: If FAISS does not understand one of the two descriptions.
        """
        faiss = _faiss()
        try:
            index = faiss.index_factory(features, factory)
        except RuntimeError as error:
            raise ValueError(
                f"FAISS does not understand index_factory={factory!r} for {features} features: "
                f'{_reason(error)}. Use "Flat", which is exact, "IVF256,Flat" or "HNSW32".'
            ) from None
        try:
            if search:
                faiss.ParameterSpace().set_index_parameters(index, search)
        except RuntimeError as error:
            raise ValueError(
                f"An index of index_factory={factory!r} does not take index_search={search!r}: "
                f'{_reason(error)}. "IVF..." takes "nprobe=16", "HNSW..." "efSearch=64", "Flat" '
                "nothing."
            ) from None
        return index

    @property
    def exact(self) -> bool:
        return isinstance(self.index, _faiss().IndexFlat)

    def propose(self, queries: np.ndarray, count: int) -> np.ndarray:
        return self.index.search(queries, count)[1]

    def to_bytes(self) -> bytes:
        """The index as FAISS writes it."""
        return _faiss().serialize_index(self.index).tobytes()

    @classmethod
    def from_bytes(cls, content: bytes) -> "FaissEngine":
        """Reads what `to_bytes` wrote; a RuntimeError says that it is something else."""
        return cls(_faiss().deserialize_index(np.frombuffer(content, np.uint8)))

    def __getstate__(self) -> bytes:
        return self.to_bytes()

    def __setstate__(self, state: bytes) -> None:
        self.index = _faiss().deserialize_index(np.frombuffer(state, np.uint8))


def _reason(error: RuntimeError) -> str:
    """What FAISS says, without where in its source."""
    return str(error).splitlines()[-1].split(": ", 2)[-1].rstrip(". ")


def _faiss() -> Any:
    try:
        import faiss
    except ImportError:
        raise ImportError(
            '`index="faiss"` needs FAISS. Install it with `pip install faiss-cpu`, or use '
            'index="torch", which gives the same answers as its exact kind.'
        ) from None
    return faiss
