"""What the scikit-learn estimators share: a learned embedding, and neighbours in it."""

import copy
import threading
import warnings
from abc import abstractmethod
from collections.abc import Sequence
from functools import partial
from numbers import Integral, Real
from typing import Any

import numpy as np
import torch
from sklearn.base import (
    BaseEstimator,
    ClassNamePrefixFeaturesOutMixin,
    TransformerMixin,
    is_regressor,
)
from sklearn.model_selection import train_test_split
from sklearn.utils import check_random_state
from sklearn.utils._param_validation import Interval, StrOptions
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import Tensor, nn

from neuralsort.runtime.progress import TrainingProgress
from neuralsort.torch.nn import DifferentiableKNN

from .embedding import ResidualMLP, available, embedded, embedded_features
from .engines import KINDS, FaissEngine, chosen_kind
from .saving import Saved
from .search import Index
from .training import OPTIMIZERS, Batch, Schedule, own_randomness, suited_threads, train
from .voting import WEIGHTS

CANDIDATES = 100
"""How many points a query sorts in training, unless told otherwise."""

_SEEDED = threading.Lock()
"""Held while torch's global generator is a fit's own."""


class DifferentiableKNeighbors(
    Saved, ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator
):
    """What classifier and regressor share: everything but the targets."""

    n_features_in_: int
    feature_names_in_: np.ndarray

    _parameter_constraints = {
        "n_neighbors": [Interval(Integral, 1, None, closed="left")],
        "tau": [Interval(Real, 0, None, closed="neither")],
        "candidates": [Interval(Integral, 2, None, closed="left")],
        "batch_size": [Interval(Integral, 1, None, closed="left")],
        "stochastic": ["boolean"],
        "samples": [Interval(Integral, 1, None, closed="left")],
        "learning_rate": [Interval(Real, 0, None, closed="neither")],
        "epochs": [Interval(Integral, 0, None, closed="left")],
        "optimizer": [StrOptions(set(OPTIMIZERS))],
        "early_stopping": ["boolean"],
        "validation_fraction": [Interval(Real, 0, 1, closed="neither")],
        "patience": [Interval(Integral, 1, None, closed="left")],
        "embedding": [nn.Module, None],
        "weights": [StrOptions(set(WEIGHTS))],
        "index": [StrOptions(set(KINDS))],
        "index_factory": [str],
        "index_search": [str],
        "device": [str],
        "random_state": ["random_state"],
        "verbose": ["verbose"],
    }

    def __init__(
        self,
        n_neighbors: int = 5,
        *,
        tau: float = 16.0,
        candidates: int = CANDIDATES,
        batch_size: int = 100,
        stochastic: bool = False,
        samples: int = 5,
        learning_rate: float = 1e-3,
        epochs: int = 30,
        optimizer: str = "adam",
        early_stopping: bool = False,
        validation_fraction: float = 0.1,
        patience: int = 10,
        embedding: nn.Module | None = None,
        weights: str = "uniform",
        index: str = "auto",
        index_factory: str = "Flat",
        index_search: str = "",
        device: str = "cpu",
        random_state: int | np.random.RandomState | None = None,
        verbose: bool | int = False,
    ) -> None:
        self.n_neighbors = n_neighbors
        self.tau = tau
        self.candidates = candidates
        self.batch_size = batch_size
        self.stochastic = stochastic
        self.samples = samples
        self.learning_rate = learning_rate
        self.epochs = epochs
        self.optimizer = optimizer
        self.early_stopping = early_stopping
        self.validation_fraction = validation_fraction
        self.patience = patience
        self.embedding = embedding
        self.weights = weights
        self.index = index
        self.index_factory = index_factory
        self.index_search = index_search
        self.device = device
        self.random_state = random_state
        self.verbose = verbose

    # -- fit ---------------------------------------------------------------------------------------

    def fit(self, X: Any, y: Any) -> Any:  # noqa: N803 - scikit-learn's names
        """Learns the embedding, and indexes all training points in it.

        Args:
            X: `(m, features)`, or any `(m, ...)` that the embedding takes.
            y: `(m,)` targets.

        Returns:
            The estimator.
        """
        new = copy.copy(self)  # interrupted, this one stays what it was
        new._fit(X, y)
        self.__dict__ = vars(new)
        return self

    def _fit(self, X: Any, y: Any) -> None:  # noqa: N803
        self._validate_params()  # pyright: ignore[reportAttributeAccessIssue]
        several = is_regressor(self)
        X, y = self._checked(X, y=y, multi_output=several, y_numeric=several)
        if self.candidates <= self.n_neighbors and self.candidates == CANDIDATES:
            warnings.warn(
                f"Training sorts {self.candidates} candidates at a time, and looks at "
                f"{self.candidates - 1} neighbours; prediction looks at {self.n_neighbors}. Give "
                "more `candidates` to train with as many.",
                stacklevel=3,
            )
        elif self.candidates <= self.n_neighbors:
            raise ValueError(
                f"`candidates` must be more than `n_neighbors`, got {self.candidates} and "
                f"{self.n_neighbors}. A query sorts candidates, itself left out."
            )
        self._input_shape = X.shape[1:]
        self._targets = self._encode(y)
        self.n_samples_fit_ = len(X)
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        points = _tensor(X)
        self._dtype = points.dtype
        self._first = points[:1].clone()
        available(self.device)
        with _SEEDED, own_randomness(seed):
            self.embedding_ = self._network(points.shape[1])
            if self.embedding is None:
                self.embedding_.standardize(points.to(self.device))
            features = embedded_features(self.embedding_, points[:2].to(self.device))
            if chosen_kind(self.index, self.index_factory, self.index_search) == "faiss":
                FaissEngine.empty(features, self.index_factory, self.index_search)
            rows = int(self.batch_size) + int(self.candidates)
            with suited_threads(self.embedding_, rows, dense=self.embedding is None):
                self.history_ = self._train(points, _tensor(self._targets), seed)
        self._indexed(self._embed(points))

    def _checked(self, X: Any, **options: Any) -> Any:  # noqa: N803
        """Points, and targets if there are any, as scikit-learn's `validate_data` lets them in."""
        images = self.embedding is not None
        if getattr(X, "ndim", 2) > 2 and not images:
            raise ValueError(
                f"Found array with dim {X.ndim}, but the default embedding takes (m, features)."
                " Flatten the points, or pass an `embedding` that takes them."
            )
        dtypes = [np.float64, np.float32]
        return validate_data(self, X, dtype=dtypes, allow_nd=images, **options)

    def _network(self, features: int) -> Any:
        """The network to train: the default one, or a copy of the user's."""
        if self.embedding is None:
            return ResidualMLP(features).to(self.device, self._dtype)
        return copy.deepcopy(self.embedding).to(self.device, self._dtype)

    def _train(self, points: Tensor, targets: Tensor, seed: int) -> list[dict[str, float]]:
        spare_points, spare_targets = points[:0], targets[:0]
        if self.early_stopping:
            kept, spare = self._split(targets.numpy(), seed)
            spare_points, spare_targets = points[spare], targets[spare]
            points, targets = points[kept], targets[kept]
        if len(points) < 2:
            raise ValueError(
                f"{type(self).__name__} needs at least 2 points to train on, got n_samples = "
                f"{len(points)}{' without those held out' if self.early_stopping else ''}. A query "
                "is never its own neighbour."
            )
        k, candidates = int(self.n_neighbors), min(int(self.candidates), len(points))
        knn = DifferentiableKNN(
            min(k, candidates - 1),
            tau=float(self.tau),
            samples=int(self.samples) if self.stochastic else None,
        )
        schedule = Schedule(
            epochs=self.epochs,
            batch=int(self.batch_size),
            candidates=candidates,
            learning_rate=self.learning_rate,
            optimizer=self.optimizer,
            patience=self.patience,
        )

        def validate() -> float:
            index = Index(self._embed(points), kind="torch")
            found = index.query(self._embed(spare_points), min(k, len(points)))
            return self._score_of(self._answer(found, targets.numpy()), spare_targets.numpy())

        title = type(self).__name__
        with TrainingProgress(
            title, self.epochs, unit="epochs", show=bool(self.verbose)
        ) as progress:
            return train(
                self.embedding_,
                partial(self._loss, knn),
                points.to(self.device),
                targets.to(self.device),
                schedule,
                validate=validate if self.early_stopping else None,
                report=progress.trained,
            )

    def _split(self, targets: np.ndarray, seed: int) -> Sequence[Any]:
        """The points to train on and those to hold out; of every class a part, if that is possible.

        Raises:
            ValueError: If nothing is left of one of the two.
        """
        split = partial(
            train_test_split,
            np.arange(len(targets)),
            test_size=self.validation_fraction,
            random_state=seed,
        )
        try:
            return split(stratify=None if is_regressor(self) else targets)
        except ValueError:  # a class of one, or more classes than are held out
            return split()

    def _indexed(self, embedded: np.ndarray, engine: FaissEngine | None = None) -> None:
        """Makes points what neighbours are looked for among."""
        self._n_features_out = embedded.shape[1]
        self._index = Index(
            embedded,
            kind=self.index,
            factory=self.index_factory,
            search=self.index_search,
            engine=engine,
        )

    # -- use ---------------------------------------------------------------------------------------

    def transform(self, X: Any) -> np.ndarray:  # noqa: N803
        """The learned representation of points, `(q, d)`."""
        check_is_fitted(self, "embedding_")
        X = self._checked(X, reset=False)
        if X.shape[1:] != self._input_shape:
            raise ValueError(
                f"X has points of shape {X.shape[1:]}, but {type(self).__name__} was fitted on "
                f"points of shape {self._input_shape}. Give points of that shape."
            )
        return self._embed(_tensor(X))

    def kneighbors(
        self,
        X: Any = None,  # noqa: N803
        n_neighbors: int | None = None,
        return_distance: bool = True,
    ) -> Any:
        """The nearest training points in the learned representation.

        Args:
            X: Queries. None asks for the neighbours of every training point, itself left out.
            n_neighbors: How many; None is the number of the estimator.
            return_distance: Whether to return distances as well.

        Returns:
            Distances and indices `(q, n_neighbors)`, the nearest first; or the indices alone.
        """
        check_is_fitted(self, "embedding_")
        k = self.n_neighbors if n_neighbors is None else n_neighbors
        most = self.n_samples_fit_ - (X is None)
        if not isinstance(k, Integral) or not 1 <= k <= most:
            raise ValueError(
                f"Expected n_neighbors from 1 to n_samples_fit, but n_neighbors = {k}, "
                f"n_samples_fit = {self.n_samples_fit_}. Ask for fewer neighbors."
            )
        if X is None:
            distances, indices = self._index.query_others(int(k))
        else:
            distances, indices = self._index.query(self.transform(X), int(k))
        return (distances, indices) if return_distance else indices

    def _embed(self, points: Tensor) -> np.ndarray:
        return embedded(self.embedding_, points, self.device, self._dtype)

    @abstractmethod
    def _encode(self, y: np.ndarray) -> np.ndarray:
        """Targets as the loss takes them."""

    @abstractmethod
    def _loss(self, knn: DifferentiableKNN, batch: Batch) -> Tensor:
        """The loss of a batch."""

    @abstractmethod
    def _answer(self, found: tuple[np.ndarray, np.ndarray], targets: np.ndarray) -> np.ndarray:
        """What the neighbours say together."""

    @abstractmethod
    def _score_of(self, answer: np.ndarray, wanted: np.ndarray) -> float:
        """How good answers are; larger is better."""


def _tensor(array: np.ndarray) -> Tensor:
    """An array as a tensor; of one that must not be written to, a copy."""
    array = np.ascontiguousarray(array)
    return torch.from_numpy(array if array.flags.writeable else array.copy())
