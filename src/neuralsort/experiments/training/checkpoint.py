"""Tensors and facts in one file, whole or not there: safetensors, with JSON in its header.

A digest of all of it stands in the header too, so that a file that changed is refused.
"""

import hashlib
import json
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor

from neuralsort.runtime import files

FORMAT = "neuralsort.run/2"


class CheckpointError(Exception):
    """A checkpoint that cannot be used; the message says what to do."""


def write(path: Path, tensors: dict[str, Tensor], facts: dict[str, Any]) -> None:
    """Writes a checkpoint; whoever looks finds the old one or the new one, never a part.

    Args:
        path: Where; its folder is made if need be.
        tensors: By name.
        facts: Anything JSON can hold.
    """
    whole = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    text = json.dumps(facts)
    header = {"format": FORMAT, "facts": text, "digest": digest(whole, text)}
    files.replace(path, safetensors.torch.save(whole, metadata=header))


def read(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Reads what `write` wrote.

    Raises:
        CheckpointError: If the file is missing, changed in a single bit, or something else.
    """
    try:
        content = path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        raise CheckpointError(f"There is no checkpoint {path}. Train first.") from None
    except IsADirectoryError:
        raise CheckpointError(
            f"{path} is a folder, where the file of a checkpoint was expected. Give a file in it."
        ) from None
    try:
        size = int.from_bytes(content[:8], "little")
        header = json.loads(content[8 : 8 + size])["__metadata__"]
        tensors = safetensors.torch.load(content)
        if header["format"] != FORMAT:
            raise ValueError(f"its format is {header['format']!r}, expected {FORMAT!r}")
        if header["digest"] != digest(tensors, header["facts"]):
            raise ValueError("its content does not have its digest")
        return tensors, json.loads(header["facts"])
    except (
        SafetensorError,
        LookupError,
        OverflowError,
        RecursionError,
        TypeError,
        ValueError,
    ) as error:
        raise CheckpointError(
            f"{path} is not a checkpoint of ours, or it is damaged ({error})."
        ) from None


def digest(tensors: dict[str, Tensor], text: str = "") -> str:
    """SHA-256 of names, kinds, shapes and values of tensors, and of a text."""
    whole = hashlib.sha256(text.encode())
    for name in sorted(tensors):
        one = tensors[name].detach().cpu().contiguous()
        whole.update(f"{name} {one.dtype} {tuple(one.shape)}".encode())
        whole.update(one.reshape(-1).view(torch.uint8).numpy().data)
    return whole.hexdigest()


def named(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Puts a prefix before every name."""
    return {f"{prefix}.{name}": tensor for name, tensor in tensors.items()}


def under(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Those whose names begin with the prefix, without it."""
    start = f"{prefix}."
    return {k.removeprefix(start): v for k, v in tensors.items() if k.startswith(start)}
