"""One JSON line per finished run: what was done, on what, and what came out."""

import json
import os
import platform
import subprocess
from importlib import metadata
from pathlib import Path
from typing import Any

import torch


class RecordError(Exception):
    """Lines of results that cannot be used; the message says which, and what to do."""


_PACKAGES = ("neuralsort", "torch", "numpy", "lightning-fabric", "scikit-learn")


def environment() -> dict[str, Any]:
    """What a number depends on besides the configuration: versions, commit, machine."""
    return {
        "versions": {"python": platform.python_version()} | {p: _version(p) for p in _PACKAGES},
        "commit": _commit(),
        "machine": {
            "system": platform.system(),
            "processor": _processor(),
            "cores": os.cpu_count(),
            "threads": torch.get_num_threads(),
        },
    }


def append(path: Path, line: dict[str, Any]) -> None:
    """Adds a line to a file of results, unless it is there already."""
    text = json.dumps(line, allow_nan=False)
    old = path.read_text() if path.exists() else ""
    if text in old.splitlines():
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        # Whoever was killed while writing left a line without an end.
        file.write(("\n" if old and not old.endswith("\n") else "") + text + "\n")
        file.flush()
        os.fsync(file.fileno())


def read(folder: Path) -> list[dict[str, Any]]:
    """All lines of all files of a folder, in the order of file names.

    Raises:
        RecordError: If a line is not JSON, or no line of results.
    """
    lines = []
    for path in sorted(folder.glob("*.jsonl")):
        for number, text in enumerate(path.read_text().splitlines(), start=1):
            if not text.strip():
                continue
            try:
                line = json.loads(text)
            except json.JSONDecodeError as error:
                raise RecordError(
                    f"{path}, line {number} is not JSON ({error}). Repair or delete it."
                ) from None
            if not isinstance(line, dict) or "study" not in line:
                raise RecordError(
                    f"{path}, line {number} does not name its study, so it is no line of results. "
                    "Repair or delete it."
                )
            lines.append(line)
    return lines


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _commit() -> str | None:
    def git(*arguments: str) -> str:
        here = Path(__file__).parent
        done = subprocess.run(
            ["git", *arguments], capture_output=True, text=True, check=True, cwd=here
        )
        return done.stdout.strip()

    try:
        changed = git("status", "--porcelain", "--untracked-files=no")
        return git("rev-parse", "HEAD") + ("-dirty" if changed else "")
    except (OSError, subprocess.CalledProcessError):  # installed from a wheel
        return None


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((x.split(":", 1)[1].strip() for x in lines if x.startswith("model name")), "")
