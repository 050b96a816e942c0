"""What proposes neighbours among fixed points in float32: FAISS, scikit-learn or torch."""

from collections.abc import Iterator
from typing import Any, Protocol

import numpy as np
import torch

KINDS = ("auto", "faiss", "sklearn", "torch")

LARGEST = 2**24
"""Numbers in a block of work."""


class Engine(Protocol):
    """Proposes neighbours among the points it was made of."""

    @property
    def exact(self) -> bool:
        """Whether it looks at all points."""
        ...

    def propose(self, queries: np.ndarray, count: int) -> np.ndarray:
        """`(q, count)` indices of points in float32; -1 where an approximate engine found none."""
        ...


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
        for rows in blocks(len(queries), len(points)):
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

    @property
    def shape(self) -> tuple[int, int]:
        """Points and features."""
        return self.index.ntotal, self.index.d

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


def blocks(rows: int, width: int) -> Iterator[slice]:
    """Consecutive rows, as many as fit into a block."""
    step = max(1, LARGEST // max(1, width))
    return (slice(start, start + step) for start in range(0, rows, step))
