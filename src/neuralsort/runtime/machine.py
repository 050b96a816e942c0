"""Facts of the machine: what a number depends on besides the code that made it."""

import os
import platform
import subprocess
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path
from typing import Any

SOURCE = Path(__file__).parents[1]
"""The folder of the package."""


def versions(packages: Iterable[str]) -> dict[str, str | None]:
    """Of Python and of packages; None where one is not installed."""
    return {"python": platform.python_version()} | {name: _version(name) for name in packages}


def commit(*folders: Path) -> str | None:
    """The commit of the source, marked if a file in one of the folders is changed or not tracked.

    Args:
        *folders: Where source is; none given, the package.

    Returns:
        None where there is no repository, as in an installed package.
    """
    places = [str(one) for one in folders or (SOURCE,)]
    try:
        changed = _git("status", "--porcelain", "--untracked-files=all", "--", *places)
        return _git("rev-parse", "--verify", "HEAD") + ("-dirty" if changed else "")
    except (OSError, subprocess.CalledProcessError):
        return None


def machine() -> dict[str, Any]:
    """System, processor, and how many of its cores there are."""
    return {
        "system": platform.system(),
        "architecture": platform.machine(),
        "processor": _processor(),
        "cores": os.cpu_count(),
    }


def arithmetic() -> dict[str, Any]:
    """What changes the rounding of torch on one machine: instruction sets and threads.

    `isa` is what torch's own kernels use, `isa_limit` what its libraries were told to keep to.
    """
    import torch

    return {
        "threads": torch.get_num_threads(),
        "isa": torch.backends.cpu.get_cpu_capability(),
        "isa_limit": os.environ.get("ONEDNN_MAX_CPU_ISA"),
    }


def available_memory() -> int | None:
    """Bytes that a program could still get; None where the system does not say."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return None
    found = [line.split()[1] for line in lines if line.startswith("MemAvailable:")]
    return 1024 * int(found[0]) if found else None


def _git(*arguments: str) -> str:
    done = subprocess.run(
        ["git", *arguments], capture_output=True, text=True, check=True, cwd=SOURCE
    )
    return done.stdout.strip()


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((x.split(":", 1)[1].strip() for x in lines if x.startswith("model name")), "")
