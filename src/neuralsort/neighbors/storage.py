"""A fitted estimator in a folder: JSON, safetensors and FAISS's own file. Nothing is pickled."""

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor

from .search import FaissEngine

FORMAT = "neuralsort.neighbors/1"
FACTS, TENSORS, INDEX = "estimator.json", "tensors.safetensors", "index.faiss"
REQUIRED = {"class", "default_embedding", "dtype", "files", "history", "input_shape", "parameters"}


class StorageError(ValueError):
    """A folder that cannot be read; the message says why and what to do."""


def write(
    folder: Path, facts: dict[str, Any], tensors: dict[str, Tensor], engine: FaissEngine | None
) -> None:
    """Writes a folder; the facts come last, so that a folder with them is whole."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / FACTS).unlink(missing_ok=True)
    whole = {name: one.detach().cpu().contiguous() for name, one in tensors.items()}
    (folder / TENSORS).write_bytes(safetensors.torch.save(whole))
    files = [TENSORS]
    if engine is not None:
        engine.write(folder / INDEX)
        files.append(INDEX)
    digests = {name: _digest(folder / name) for name in files}
    text = json.dumps({"format": FORMAT, "files": digests} | facts, indent=1)
    (folder / FACTS).write_text(text)


def read(folder: Path) -> tuple[dict[str, Any], dict[str, Tensor], FaissEngine | None]:
    """Reads what `write` wrote.

    Raises:
        StorageError: If the folder is something else, or a part of it is missing or damaged.
    """
    try:
        facts = json.loads((folder / FACTS).read_text())
    except (FileNotFoundError, NotADirectoryError):
        raise StorageError(
            f"{folder} holds no saved estimator: there is no {FACTS}. Give the folder that `save` "
            "wrote to."
        ) from None
    except ValueError as error:  # not JSON, or not text
        raise StorageError(f"{folder / FACTS} is damaged ({error}). Save again.") from None
    if not isinstance(facts, dict) or facts.get("format") != FORMAT:
        came = facts.get("format") if isinstance(facts, dict) else type(facts).__name__
        raise StorageError(
            f"{folder / FACTS} is not in the format {FORMAT}, got {came!r}. It was written by "
            "another program or version; save again with this one."
        )
    missing = sorted(REQUIRED - facts.keys())
    if missing or facts["dtype"] not in ("float32", "float64"):
        raise StorageError(
            f"{folder / FACTS} is damaged: it lacks {', '.join(missing) or 'a known dtype'}. Save "
            "again."
        )
    for name, digest in facts["files"].items():
        path = folder / Path(name).name
        if not path.is_file() or _digest(path) != digest:
            raise StorageError(
                f"{path} is missing, truncated or not the file that was saved. Copy the whole "
                "folder again, or save again."
            )
    try:
        tensors = safetensors.torch.load((folder / TENSORS).read_bytes())
    except SafetensorError as error:
        raise StorageError(f"{folder / TENSORS} is damaged ({error}). Save again.") from None
    engine = FaissEngine.read(folder / INDEX) if INDEX in facts["files"] else None
    return facts, tensors, engine


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def array_to_json(array: np.ndarray) -> dict[str, Any]:
    """An array of numbers or strings as JSON."""
    return {"dtype": str(array.dtype), "values": array.tolist()}


def array_from_json(value: dict[str, Any]) -> np.ndarray:
    """What `array_to_json` made of an array."""
    return np.array(value["values"], dtype=value["dtype"])


def same_parameters(network: torch.nn.Module, tensors: dict[str, Tensor]) -> None:
    """Gives a network the parameters that were saved.

    Raises:
        StorageError: If it is another network.
    """
    try:
        network.load_state_dict(tensors)
    except RuntimeError as error:
        reason = str(error).splitlines()[-1].strip()
        raise StorageError(
            f"The embedding is not the network that was saved: {reason} Pass one of the same "
            "architecture, `load(path, embedding=...)`."
        ) from None
