"""A fitted estimator in a folder: JSON, safetensors and FAISS's own file. Nothing is pickled."""

import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.torch
import torch
from filelock import FileLock
from safetensors import SafetensorError
from torch import Tensor

from neuralsort.runtime.files import replace

from .engines import FaissEngine, has_faiss
from .search import Index

FORMAT = "neuralsort.neighbors/1"
FACTS, TENSORS, INDEX = "estimator.json", "tensors.safetensors", "index.faiss"
LOCK = ".lock"
DIGEST = "[0-9a-f]" * 16
"""The beginning of a digest, as a pattern of file names."""


class StorageError(ValueError):
    """A folder that cannot be read; the message says why and what to do."""


def write(
    folder: Path, facts: dict[str, Any], tensors: dict[str, Tensor], engine: FaissEngine | None
) -> None:
    """Writes a folder; one that held an estimator holds it until the new one is whole.

    Files carry their digest in their name, and the facts, which come last, say which ones count.
    """
    # Copies: parameters that share memory would be refused.
    whole = {
        name: one.detach().cpu().clone(memory_format=torch.contiguous_format)
        for name, one in tensors.items()
    }
    contents = {TENSORS: safetensors.torch.save(whole)}
    if engine is not None:
        contents[INDEX] = engine.to_bytes()
    folder.mkdir(parents=True, exist_ok=True)
    with FileLock(folder / LOCK):  # one writer at a time
        _write(folder, contents, facts)


def _write(folder: Path, contents: dict[str, bytes], facts: dict[str, Any]) -> None:
    digests = {name: hashlib.sha256(content).hexdigest() for name, content in contents.items()}
    files = {name: _placed(folder, name, digest) for name, digest in digests.items()}
    for name, content in contents.items():
        replace(files[name], content)
    facts = {"format": FORMAT, "files": digests} | facts
    text = json.dumps(facts | {"digest": digest_of(facts)}, indent=1)
    replace(folder / FACTS, text.encode())
    for name in (TENSORS, INDEX):
        drafts = folder.glob(f".{DIGEST}-{name}.*")  # of writers that were killed
        for old in {*folder.glob(f"{DIGEST}-{name}"), *drafts} - set(files.values()):
            old.unlink()


def digest_of(facts: dict[str, Any]) -> str:
    """The digest of everything that facts say, however they are written down."""
    said = {name: value for name, value in facts.items() if name != "digest"}
    return hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()


@contextmanager
def reading(folder: Path) -> Iterator[None]:
    """Says of whatever goes wrong with facts that are not as `write` left them that they are not.

    Raises:
        StorageError: In place of a mistake in a lookup or a conversion.
    """
    try:
        yield
    except StorageError:
        raise
    except (
        AssertionError,
        AttributeError,
        LookupError,
        RecursionError,
        RuntimeError,
        TypeError,
        ValueError,
    ) as error:
        raise StorageError(
            f"{folder / FACTS} is damaged, or of another version ({error!r}). Save again."
        ) from None


def read(folder: Path) -> tuple[dict[str, Any], dict[str, Tensor], FaissEngine | None]:
    """Reads what `write` wrote.

    Raises:
        StorageError: If the folder is something else, or a part of it is missing or damaged.
    """
    try:
        facts = json.loads((folder / FACTS).read_text())
    except (FileNotFoundError, NotADirectoryError):
        inside = sorted(path.parent.name for path in folder.glob(f"*/{FACTS}"))
        where = f", such as {folder / inside[0]}" if inside else ""
        raise StorageError(
            f"{folder} holds no saved estimator: there is no {FACTS}. Give the folder that `save` "
            f"wrote to{where}."
        ) from None
    except IsADirectoryError:
        raise StorageError(
            f"{folder / FACTS} is a folder, where a file was expected. Give the folder that `save` "
            "wrote to, and save to folders that hold nothing else."
        ) from None
    except ValueError as error:  # not JSON, or not text
        raise StorageError(f"{folder / FACTS} is damaged ({error}). Save again.") from None
    if not isinstance(facts, dict) or facts.get("format") != FORMAT:
        came = facts.get("format") if isinstance(facts, dict) else type(facts).__name__
        raise StorageError(
            f"{folder / FACTS} is not in the format {FORMAT}, got {came!r}. It was written by "
            "another program or version; save again with this one."
        )
    if facts.get("digest") != digest_of(facts):
        raise StorageError(
            f"{folder / FACTS} is damaged, or of another version: it is not what its digest says. "
            "Copy the whole folder again, or save again."
        )
    contents = {}
    for name, digest in facts["files"].items():
        path = _placed(folder, name, digest)
        try:
            contents[name] = path.read_bytes()
        except (FileNotFoundError, IsADirectoryError):
            contents[name] = b""
        if hashlib.sha256(contents[name]).hexdigest() == digest:
            continue
        if facts != json.loads((folder / FACTS).read_text()):
            return read(folder)  # another estimator was saved in the meantime
        raise StorageError(
            f"{path} is missing, truncated or not the file that was saved. Copy the whole "
            "folder again, or save again."
        )
    try:
        tensors = safetensors.torch.load(contents[TENSORS])
    except SafetensorError as error:
        raise StorageError(f"{folder} has damaged tensors ({error}). Save again.") from None
    return facts, tensors, _engine(folder, contents.get(INDEX), facts["parameters"]["index"])


def _engine(folder: Path, content: bytes | None, kind: str) -> FaissEngine | None:
    """FAISS's index; None where it is to be built again: FAISS is not here, or another version."""
    if content is None or (kind == "auto" and not has_faiss()):
        return None
    try:
        return FaissEngine.from_bytes(content)
    except RuntimeError as error:
        if kind == "auto":
            return None
        reason = str(error).splitlines()[-1]
        raise StorageError(
            f"{folder} has an index that this version of FAISS cannot read ({reason}). Save again "
            "with this one."
        ) from None


def _placed(folder: Path, name: str, digest: str) -> Path:
    return folder / f"{digest[:16]}-{Path(name).name}"


def array_to_json(array: np.ndarray) -> dict[str, Any]:
    """An array of numbers or strings as JSON."""
    return {"dtype": str(array.dtype), "values": array.tolist()}


def array_from_json(value: dict[str, Any]) -> np.ndarray:
    """What `array_to_json` made of an array."""
    return np.array(value["values"], dtype=value["dtype"])


def same_sizes(facts: dict[str, Any], tensors: dict[str, Tensor]) -> None:
    """Sees to it that facts speak of the tensors that are there, and of nothing larger.

    Raises:
        ValueError: If they do not; `reading` says of which file.
    """
    first, shape = tensors["first"], tuple(facts["input_shape"])
    if not shape or tuple(first.shape) != (1, *shape):
        raise ValueError(
            f"`input_shape` says points of shape {shape}, and the first of them has "
            f"{tuple(first.shape[1:])}"
        )
    network = tensors.get("embedding.mean", first[0])
    if facts["default_embedding"] and tuple(network.shape) != shape:
        raise ValueError(
            f"`input_shape` says points of shape {shape}, and the embedding takes "
            f"{tuple(network.shape)}"
        )
    if facts["dtype"] != str(first.dtype).removeprefix("torch."):
        raise ValueError(f"`dtype` says {facts['dtype']!r}, and the points are {first.dtype}")
    names = facts.get("feature_names_in")
    if names is not None and (len(names) != shape[0] or not all(isinstance(n, str) for n in names)):
        raise ValueError(f"`feature_names_in` must be {shape[0]} names, got {names!r}")
    entries = facts["history"]
    if not isinstance(entries, list) or not all(_is_entry(entry) for entry in entries):
        raise ValueError(
            f"`history` must be a list of numbers by name for every epoch, got {entries!r}"
        )


def _is_entry(entry: Any) -> bool:
    """Whether this is what one epoch says."""
    return isinstance(entry, dict) and all(isinstance(value, float) for value in entry.values())


def same_points(index: Index, targets: np.ndarray, first: np.ndarray) -> None:
    """Sees to it that points, targets and embedding belong together.

    Args:
        index: Of n points.
        targets: `(n, ...)`.
        first: `(1, d)`. The first point, embedded again.

    Raises:
        StorageError: If they do not.
    """
    points = index.points
    indexed = index.engine.shape if isinstance(index.engine, FaissEngine) else points.shape
    if len(points) != len(targets) or points.shape != indexed:
        raise StorageError(
            f"There are points {points.shape}, of which {indexed} are indexed, and targets "
            f"{targets.shape}. Save again."
        )
    if not np.allclose(points[:1], first, rtol=1e-3, atol=1e-3 * np.abs(points).max()):
        raise StorageError(
            "The embedding is not the network that was saved: it puts the first training point "
            "elsewhere. Pass one of the same architecture, `load(path, embedding=...)`."
        )


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
