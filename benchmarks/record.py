"""Measurements, and the JSON lines they are kept in."""

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.contenders import PACKAGES
from neuralsort.runtime import files, machine


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


def environment(packages: Iterable[str] = ()) -> dict[str, Any]:
    """What a number depends on besides the code measured: versions, commit, machine, threads.

    Args:
        packages: Whose versions belong to it besides the usual ones.
    """
    arithmetic = machine.arithmetic()
    return {
        "versions": machine.versions((*PACKAGES, *packages)),
        "commit": machine.commit(machine.SOURCE, Path(__file__).parent),
        "machine": machine.machine() | arithmetic,
        "threads": arithmetic["threads"],
    }


def write_lines(
    path: Path, measurements: Iterable[Measurement], packages: Iterable[str] = ()
) -> None:
    """Writes one JSON line per measurement; the file appears whole or not at all."""
    where = environment(packages)
    lines = [json.dumps(asdict(one) | where) + "\n" for one in measurements]
    files.replace(path, "".join(lines).encode())
