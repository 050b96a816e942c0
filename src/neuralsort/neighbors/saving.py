"""An estimator to a folder and back: what of it is facts, what is tensors."""

from numbers import Integral
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.utils.validation import check_is_fitted
from torch import nn

from . import storage
from .embedding import ResidualMLP, available
from .engines import FaissEngine


class Saved:
    """`save` and `load` for an estimator with an embedding, targets and an index."""

    # Of the estimator.
    get_params: Any
    random_state: Any
    device: str
    embedding_: Any
    history_: list[dict[str, float]]
    n_features_in_: int
    n_samples_fit_: int
    feature_names_in_: np.ndarray
    _input_shape: tuple[int, ...]
    _dtype: torch.dtype
    _first: torch.Tensor
    _targets: np.ndarray
    _index: Any
    _network: Any
    _indexed: Any
    _embed: Any

    def save(self, path: str | Path) -> None:
        """Writes the fitted estimator into a folder: JSON, safetensors and the index, no pickle.

        The architecture of an embedding of your own is code, and is not saved: pass it to `load`.
        Nor is a `random_state` that is not a number.

        Raises:
            StorageError: If there is a file in place of the folder.
        """
        check_is_fitted(self, "embedding_")
        if Path(path).is_file():
            raise storage.StorageError(f"{path} is a file. Give a folder to save to.")
        parameters = self.get_params(deep=False)
        parameters.pop("embedding")
        if not isinstance(self.random_state, Integral | None):
            parameters["random_state"] = None
        plain = {k: v.item() if isinstance(v, np.generic) else v for k, v in parameters.items()}
        facts = {
            "class": type(self).__name__,
            "parameters": plain,
            "default_embedding": type(self.embedding_) is ResidualMLP,
            "input_shape": list(self._input_shape),
            "history": self.history_,
            "dtype": str(self._dtype).removeprefix("torch."),
        } | self._facts()
        if hasattr(self, "feature_names_in_"):
            facts["feature_names_in"] = self.feature_names_in_.tolist()
        tensors = {f"embedding.{k}": v for k, v in self.embedding_.state_dict().items()}
        tensors["first"] = self._first
        tensors["points"] = torch.from_numpy(self._index.points)
        tensors["targets"] = torch.from_numpy(self._targets)
        engine = self._index.engine
        storage.write(
            Path(path), facts, tensors, engine if isinstance(engine, FaissEngine) else None
        )

    @classmethod
    def load(
        cls, path: str | Path, *, embedding: nn.Module | None = None, device: str | None = None
    ) -> Any:
        """Reads what `save` wrote.

        Args:
            path: The folder.
            embedding: A network of the saved architecture, if it was not the default one; its
                parameters are replaced in a copy.
            device: Where to embed from now on; None is where it was.

        Raises:
            StorageError: If the folder is something else, damaged, or of another estimator.
            ValueError: If the device is not there.
        """
        with storage.reading(Path(path)):
            facts, tensors, engine = storage.read(Path(path))
            facts["parameters"] |= {} if device is None else {"device": device}
        available(facts["parameters"].get("device", "cpu"))
        with storage.reading(Path(path)):
            return cls._from(Path(path), facts, tensors, engine, embedding)

    @classmethod
    def _from(
        cls,
        path: Path,
        facts: dict[str, Any],
        tensors: dict[str, torch.Tensor],
        engine: FaissEngine | None,
        embedding: nn.Module | None,
    ) -> Any:
        if facts["class"] != cls.__name__:
            raise storage.StorageError(
                f"{path} holds a {facts['class']}, not a {cls.__name__}. Load it with that class."
            )
        if facts["default_embedding"] != (embedding is None):
            raise storage.StorageError(
                f"{path} was saved with the default embedding. Load it without one."
                if facts["default_embedding"]
                else f"{path} was saved with an embedding of your own, whose code is not saved. "
                "Pass a network of the same architecture, `load(path, embedding=...)`."
            )
        make: Any = cls
        self = make(embedding=embedding, **facts["parameters"])
        self._validate_params()
        storage.same_sizes(facts, tensors)  # before a network of that size is made
        self._input_shape = tuple(facts["input_shape"])
        self.n_features_in_ = self._input_shape[0]
        if "feature_names_in" in facts:
            self.feature_names_in_ = np.array(facts["feature_names_in"], dtype=object)
        self.history_ = facts["history"]
        self._dtype = getattr(torch, facts["dtype"])
        self.embedding_ = self._network(self.n_features_in_)
        start = "embedding."
        storage.same_parameters(
            self.embedding_,
            {k.removeprefix(start): v for k, v in tensors.items() if k.startswith(start)},
        )
        self._targets = tensors["targets"].numpy()
        self.n_samples_fit_ = len(self._targets)
        self._restore(facts)
        self._indexed(tensors["points"].numpy(), engine)
        self._first = tensors["first"]
        storage.same_points(self._index, self._targets, self._embed(self._first))
        return self

    def _facts(self) -> dict[str, Any]:
        """What a saved estimator needs besides."""
        return {}

    def _restore(self, facts: dict[str, Any]) -> None:
        """Takes back what `_facts` gave."""
