"""The regressor: neighbours' targets are averaged."""

from typing import Any

import numpy as np
import torch
from sklearn.base import RegressorMixin
from torch import Tensor

from neuralsort.torch.nn import DifferentiableKNN

from . import storage
from .base import DifferentiableKNeighbors
from .training import Batch
from .voting import shares


class DifferentiableKNeighborsRegressor(RegressorMixin, DifferentiableKNeighbors):
    r"""The mean target of the k nearest training points, in a representation learned for it.

    $$\min_\phi\; \left\lVert y - \frac{1}{k} \sum_{i=1}^{k} \sum_{j=1}^{n}
      \widehat P_{\text{sort}(s)}[i, j]\; y_j \right\rVert^2$$

    The twin of `DifferentiableKNeighborsClassifier`, which explains the parameters; targets may
    have several outputs, and are standardised in the loss. For prediction it is
    `sklearn.neighbors.KNeighborsRegressor` in the space of `transform`. The score in `history_` is
    the share of the targets' variance that is explained.

    Example:
        >>> from sklearn.datasets import load_diabetes
        >>> X, y = load_diabetes(return_X_y=True)
        >>> model = DifferentiableKNeighborsRegressor(epochs=3, random_state=0).fit(X, y)
        >>> model.predict(X[:3]).shape
        (3,)

    Reference: after Grover et al. (2019), the kNN experiment.
    """

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags

    def _encode(self, y: np.ndarray) -> np.ndarray:
        y = np.array(y, np.float64)
        self._one_output = y.ndim == 1
        y = y.reshape(len(y), -1)
        scale = y.std(0)
        self._scale = np.where(scale > 0, scale, 1.0)
        return y

    def _loss(self, knn: DifferentiableKNN, batch: Batch) -> Tensor:
        like = batch.queries
        offset, scale = batch.known.mean(0), torch.from_numpy(self._scale).to(batch.known)
        wanted, known = (((x - offset) / scale).to(like.dtype) for x in (batch.wanted, batch.known))
        rows = knn(like, batch.candidates, known, mask=batch.mask)
        return (rows.mean(-2) - wanted).square().mean()

    def _answer(self, found: tuple[np.ndarray, np.ndarray], targets: np.ndarray) -> np.ndarray:
        distances, indices = found
        return np.einsum("qk,qkt->qt", shares(distances, self.weights), targets[indices])

    def _score_of(self, answer: np.ndarray, wanted: np.ndarray) -> float:
        return 1 - float(np.square((answer - wanted) / self._scale).mean())

    def predict(self, X: Any) -> np.ndarray:  # noqa: N803
        """The weighted mean target of the neighbours."""
        found = self.kneighbors(X)
        answer = self._answer(found, self._targets)
        return answer[:, 0] if self._one_output else answer

    def _facts(self) -> dict[str, Any]:
        return {
            "one_output": self._one_output,
            "scale": storage.array_to_json(self._scale),
        }

    def _restore(self, facts: dict[str, Any]) -> None:
        self._one_output = facts["one_output"]
        self._scale = storage.array_from_json(facts["scale"])
        outputs = self._targets.shape[1:]
        if self._scale.shape != outputs or not isinstance(self._one_output, bool):
            raise storage.StorageError(
                f"`scale` must be one number for each of {outputs} outputs and `one_output` true "
                f"or false, got {self._scale} and {self._one_output!r}. Save again."
            )
