"""Tensors and facts in one file, whole or not there: safetensors, with JSON in its header."""

import json
from pathlib import Path
from typing import Any

import safetensors.torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from neuralsort.neighbors import files


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
    files.replace(path, safetensors.torch.save(whole, metadata={"facts": json.dumps(facts)}))


def read(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Reads what `write` wrote.

    Raises:
        CheckpointError: If the file is missing, truncated or something else.
    """
    try:
        with safe_open(path, framework="pt") as file:
            facts = json.loads((file.metadata() or {})["facts"])
            return {name: file.get_tensor(name) for name in file.keys()}, facts  # noqa: SIM118
    except FileNotFoundError:
        raise CheckpointError(f"There is no checkpoint {path}. Train first.") from None
    except (SafetensorError, KeyError, json.JSONDecodeError) as error:
        raise CheckpointError(
            f"{path} is not a checkpoint of ours, or it is damaged ({error}). "
            "Delete it to start again, or give another --run."
        ) from None


def named(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Puts a prefix before every name."""
    return {f"{prefix}.{name}": tensor for name, tensor in tensors.items()}


def under(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Those whose names begin with the prefix, without it."""
    start = f"{prefix}."
    return {k.removeprefix(start): v for k, v in tensors.items() if k.startswith(start)}
