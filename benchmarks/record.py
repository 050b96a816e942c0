"""Measurements, and the JSON lines they are kept in."""

import json
import os
import platform
import subprocess
import tempfile
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import torch

from benchmarks.contenders import PACKAGES


@dataclass
class Measurement:
    """One number, or the reason why there is none.

    Attributes:
        kind: `"seconds"` (best of rounds), `"bytes"` (peak beyond the inputs), or the name of an
            accuracy check.
        contender: Name of the contender.
        batch: Number of lists.
        n: Items per list.
        tau: Temperature.
        mode: `"forward"`, `"forward+backward"`, or what exactly an accuracy check looked at.
        value: The number; None if there is none (yet).
        note: Why there is no number: missing, skipped, failed.
        rounds: How many rounds `value` is the best of.
    """

    kind: str
    contender: str
    batch: int
    n: int
    tau: float
    mode: str
    value: float | None = None
    note: str = ""
    rounds: int = 0


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _git(*arguments: str) -> str | None:
    try:
        done = subprocess.run(["git", *arguments], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout.strip()


def _commit() -> str | None:
    commit = _git("rev-parse", "--verify", "HEAD")
    return f"{commit}-dirty" if commit and _git("status", "--porcelain") else commit


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((x.split(":", 1)[1].strip() for x in lines if x.startswith("model name")), "")


def environment(packages: Iterable[str] = ()) -> dict[str, Any]:
    """What a number depends on besides the code measured: versions, commit, machine, threads.

    Args:
        packages: Whose versions belong to it besides the usual ones.
    """
    names = (*PACKAGES, *packages)
    versions = {"python": platform.python_version()} | {name: _version(name) for name in names}
    machine = {
        "system": platform.system(),
        "architecture": platform.machine(),
        "processor": _processor(),
        "cores": os.cpu_count(),
    }
    return {
        "versions": versions,
        "commit": _commit(),
        "machine": machine,
        "threads": torch.get_num_threads(),
    }


def write_lines(
    path: Path, measurements: Iterable[Measurement], packages: Iterable[str] = ()
) -> None:
    """Writes one JSON line per measurement; the file appears whole or not at all."""
    where = environment(packages)
    lines = [json.dumps(asdict(one) | where) + "\n" for one in measurements]
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile("w", dir=path.parent, delete=False) as draft:
        draft.writelines(lines)
    Path(draft.name).chmod(0o644)
    Path(draft.name).replace(path)
