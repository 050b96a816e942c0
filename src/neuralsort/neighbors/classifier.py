"""The classifier: neighbours vote."""

from typing import Any

import numpy as np
from sklearn.base import ClassifierMixin
from sklearn.utils.multiclass import check_classification_targets
from torch import Tensor
from torch.nn.functional import one_hot

from neuralsort.torch.nn import DifferentiableKNN

from . import storage
from .base import DifferentiableKNeighbors
from .training import Batch
from .voting import shares, votes


class DifferentiableKNeighborsClassifier(ClassifierMixin, DifferentiableKNeighbors):
    r"""Votes of the k nearest training points in a representation that is learned for it.

    $$\min_\phi\; -\frac{1}{k} \sum_{i=1}^{k} \sum_{j=1}^{n} \mathbb 1(y_j = y)\,
      \widehat P_{\text{sort}(s)}[i, j], \qquad s_j = -\lVert h_\phi(x) - h_\phi(x_j) \rVert^2$$

    In training, every point asks for its k nearest among n candidates, itself left out, through a
    relaxed sort, and the embedding $h_\phi$ learns to have neighbours of the same class.
    For prediction the whole training set is indexed, and neighbours are ordinary ones: as
    `sklearn.neighbors.KNeighborsClassifier` in the space of `transform`.

    Computation is in the precision of the data: float32 arrays train faster.

    Args:
        n_neighbors: k, in prediction; in training too, unless there are too few points.
        tau: Temperature, in units of squared distance. The default embedding standardises
            features, so that points of d features are about 2 d apart at the start.
        candidates: n, how many points a query sorts in training: more than `n_neighbors`.
        batch_size: Queries at a time in training.
        stochastic: Whether to sort under Gumbel noise, by relaxed samples of Plackett-Luce.
        samples: How many of them for every query.
        learning_rate: Of the optimiser.
        epochs: Passes over the training points; 0 leaves the embedding as it is.
        optimizer: `"adam"`, `"adamw"` or `"sgd"` (momentum 0.9).
        early_stopping: Whether to hold out a part of the training points, keep the parameters that
            do best on it, and stop when they no longer get better. What was held out is indexed
            with the rest.
        validation_fraction: How much to hold out.
        patience: Epochs without a better one before stopping.
        embedding: Any module from `(m, ...)` to `(m, ...)`, which is flattened; a copy of it is
            trained. None is a small residual network that starts as the identity.
        weights: `"uniform"`, or `"distance"`: a neighbour counts as the inverse of its distance.
        index: What finds neighbours: `"faiss"`, `"sklearn"`, `"torch"`, or `"auto"`: FAISS where it
            is installed, else torch. Exact ones give the same answers.
        index_factory: What FAISS builds: `"Flat"` is exact, `"IVF256,Flat"` or `"HNSW32"` are
            approximate, and faster among millions of points.
        index_search: Parameters of FAISS's search, such as `"nprobe=16"`.
        device: Where to embed and train.
        random_state: Seed of parameters, batches and noise; the parameters of an embedding of your
            own are those that it comes with.
        verbose: Whether to show progress.

    Attributes:
        classes_: The classes, sorted.
        embedding_: The trained module.
        history_: The loss of every epoch, and with early stopping its score on what is held out:
            the mean vote for the right class.
        n_features_in_: Features of a point.
        n_samples_fit_: Points in the index.

    Example:
        >>> from sklearn.datasets import load_iris
        >>> X, y = load_iris(return_X_y=True)
        >>> model = DifferentiableKNeighborsClassifier(epochs=5, random_state=0).fit(X, y)
        >>> model.predict(X[:3])
        array([0, 0, 0])

    Reference: Grover et al. (2019), the kNN experiment.
    """

    def _encode(self, y: np.ndarray) -> np.ndarray:
        check_classification_targets(y)
        self.classes_, encoded = np.unique(y, return_inverse=True)
        return encoded

    def _loss(self, knn: DifferentiableKNN, batch: Batch) -> Tensor:
        wanted, known = (
            one_hot(labels, len(self.classes_)).to(batch.queries.dtype)
            for labels in (batch.wanted, batch.known)
        )
        rows = knn(batch.queries, batch.candidates, known, mask=batch.mask)  # (..., q, k, classes)
        return -(rows * wanted.unsqueeze(-2)).sum(-1).mean()

    def _answer(self, found: tuple[np.ndarray, np.ndarray], targets: np.ndarray) -> np.ndarray:
        distances, indices = found
        return votes(targets[indices], shares(distances, self.weights), len(self.classes_))

    def _score_of(self, answer: np.ndarray, wanted: np.ndarray) -> float:
        # Finer than the share of right answers, of which a few held-out points have few values.
        return float(np.take_along_axis(answer, wanted[:, None], 1).mean())

    def predict_proba(self, X: Any) -> np.ndarray:  # noqa: N803
        """The share of the vote for each of `classes_`, `(q, classes)`."""
        found = self.kneighbors(X)
        return self._answer(found, self._targets)

    def predict(self, X: Any) -> np.ndarray:  # noqa: N803
        """The class with the most votes; of several, the first of `classes_`."""
        counted = self.predict_proba(X)
        return self.classes_[counted.argmax(1)]

    def _facts(self) -> dict[str, Any]:
        return {"classes": storage.array_to_json(self.classes_)}

    def _restore(self, facts: dict[str, Any]) -> None:
        self.classes_ = storage.array_from_json(facts["classes"])
        if self.classes_.ndim != 1 or len(np.unique(self.classes_)) != len(self.classes_):
            raise storage.StorageError(
                f"`classes` must be a list of distinct classes, got {self.classes_}. Save again."
            )
        if not (self._targets.min() >= 0 and self._targets.max() < len(self.classes_)):
            raise storage.StorageError("There are targets of no class. Save again.")
