"""One JSON line per finished run: what was done, on what, and what came out.

`Line` is the schema. Lines are read and written here and nowhere else, those of earlier versions
too. Each carries a digest of all it says, so that one that changed is refused; those of earlier
versions have none.
"""

import dataclasses
import hashlib
import json
import os
import warnings
from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_type_hints

from typeguard import CollectionCheckStrategy, TypeCheckError, check_type

from neuralsort.runtime import files

SIZES = ("n", "places", "k", "fold", "validation_lists", "test_lists")
"""What earlier versions wrote beside `method` and is one dictionary now."""

MEASURED = ("parameters", "steps_of_recipe", "device")
"""Entries of `config` that are no options."""


class RecordError(Exception):
    """Lines of results that cannot be used; the message says which, and what to do."""


class RecordWarning(UserWarning):
    """A line of results that was left out; the message says which."""


@dataclass(frozen=True)
class Line:
    """One run, tested once.

    Attributes:
        study: Name of the study.
        method: What was trained.
        data: Name of the data set.
        recipe: How it was trained.
        seed: Of parameters, batches and noise.
        sizes: Such as the length of lists `n`, or the number of neighbours `k`.
        tau: The temperature that was tested; None for what has none.
        metrics: On the test set, by name.
        intervals: 95 % intervals of some of them.
        intervals_over: What was thought of as drawn at random: `"lists"`, say.
        validation: The entry of the best validation.
        steps: Updates of the parameters.
        wall_seconds: Over all temperatures and sittings.
        config: All other options, the plan, and what the study says of itself.
        trials: The history of every temperature that was tried.
        versions: Of Python and packages, when training started.
        commit: Of the source, when training started.
        machine: Where it started: processor, instruction set, threads.
        date: When it started, in UTC.
        command: What to type to do it again.
        digests: Of the data, the network and the augmentation.
        sittings: What was different in later sittings: the facts by name, for each of them.
        tested: Commit, versions, machine and date of a test that came after the run.
        precision: Of the arithmetic.
        extras: What figures need.
    """

    study: str
    method: str
    data: str
    seed: int
    metrics: dict[str, float]
    config: dict[str, Any]
    trials: list[dict[str, Any]]
    wall_seconds: float
    recipe: str = "fast"
    sizes: dict[str, int] = field(default_factory=dict)
    tau: float | None = None
    intervals: dict[str, tuple[float, float]] = field(default_factory=dict)
    intervals_over: str = "lists"
    validation: dict[str, float | int | None] = field(default_factory=dict)
    steps: int = 0
    versions: dict[str, str | None] = field(default_factory=dict)
    commit: str | None = None
    machine: dict[str, Any] = field(default_factory=dict)
    date: str | None = None
    command: str | None = None
    digests: dict[str, str] = field(default_factory=dict)
    sittings: list[dict[str, Any]] = field(default_factory=list)
    tested: dict[str, Any] = field(default_factory=dict)
    precision: str = "32-true"
    extras: dict[str, Any] = field(default_factory=dict)

    @property
    def train_n(self) -> int | None:
        """The length of the lists in training, which may be tested at others."""
        return self.config.get("train_n")

    @property
    def tested_as_trained(self) -> bool:
        """Whether lists in the test are as long as in training."""
        return self.train_n == self.sizes.get("n")

    @property
    def plan(self) -> dict[str, Any]:
        """How it was trained."""
        return {"overlap": 1} | self.config["plan"]  # early versions knew no other

    @property
    def plan_but_threads(self) -> dict[str, Any]:
        """The plan without the number of threads, which changes its rounding alone."""
        return {name: one for name, one in self.plan.items() if name != "threads"}

    @property
    def temperature(self) -> str:
        """Whether tau stayed, fell or was learned."""
        return self.config.get("temperature", "fixed")

    @property
    def processes(self) -> int:
        """How many trained it together."""
        return self.config.get("processes", 1)

    @property
    def settings(self) -> str:
        """All that was chosen but the seed: lines that share it are seeds of one thing."""
        options = {
            name: one
            for name, one in self.config.items()
            if name not in MEASURED and one is not None  # early versions leave out what is None
        }
        names = ("study", "method", "data", "recipe", "sizes", "precision")
        chosen = {name: getattr(self, name) for name in names}
        chosen["config"] = options | {
            "processes": self.processes,
            "plan": self.plan_but_threads,
        }
        # Networks show their temperature, which may be another one for every seed.
        same = len(options.get("taus", ())) < 2 and "temperature" not in options
        digests = ("data", "network") if same else ("data",)
        chosen["digests"] = {name: self.digests.get(name) for name in digests}
        return json.dumps(chosen, sort_keys=True)

    @property
    def cell(self) -> tuple[str, int]:
        """All that was chosen, the seed included: lines that share it are one run."""
        return self.settings, self.seed

    def to_json(self) -> str:
        """The line as it is kept."""
        facts = dataclasses.asdict(self)
        return json.dumps(facts | {"digest": _digest(facts)}, allow_nan=False)

    @classmethod
    def from_facts(cls, facts: Any) -> "Line":
        """The line that JSON says, also of earlier versions.

        Raises:
            ValueError: If something is missing, or not of its kind; the message says what.
        """
        if not isinstance(facts, dict) or not isinstance(facts.get("study"), str):
            raise ValueError("does not name its study, so it is no line of results")
        facts = dict(facts)
        changed = _changed(facts)
        facts.pop("digest", None)
        if "sizes" not in facts:
            facts["sizes"] = {name: facts.pop(name) for name in SIZES if name in facts}
        if facts["study"] == "knn":
            facts.setdefault("intervals_over", "images")
        if "chosen" in facts:  # of rankings: the setting that was tested
            facts["config"] = {**facts["config"], "chosen": facts.pop("chosen")}
        known = {one.name: one for one in dataclasses.fields(cls)}
        needed = [
            name
            for name, one in known.items()
            if one.default is dataclasses.MISSING and one.default_factory is dataclasses.MISSING
        ]
        missing = [name for name in needed if name not in facts]
        if missing:
            raise ValueError(f"lacks {', '.join(sorted(missing))}")
        strange = facts.keys() - known.keys()
        if strange:
            raise ValueError(f"has {', '.join(sorted(strange))}, which no line has")
        for name, kind in get_type_hints(cls).items():
            if name not in facts:
                continue
            if name == "intervals" and isinstance(facts[name], dict):
                facts[name] = {
                    key: tuple(ends) if isinstance(ends, list) else ends
                    for key, ends in facts[name].items()
                }
            try:
                check_type(
                    facts[name],
                    kind,
                    collection_check_strategy=CollectionCheckStrategy.ALL_ITEMS,
                )
            except TypeCheckError as error:
                came = json.dumps(facts[name])[:60]
                raise ValueError(f"has a wrong `{name}`, {came}: {error}") from None
        if changed:
            raise ValueError("was changed after it was written: it is not what its digest says")
        return cls(**facts)


def _digest(facts: dict[str, Any]) -> str:
    """Of everything that a line says, however it is written down."""
    said = {name: value for name, value in facts.items() if name != "digest"}
    return hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()[:16]


def _changed(facts: dict[str, Any]) -> bool:
    return "digest" in facts and facts["digest"] != _digest(facts)


def append(path: Path, line: Line) -> None:
    """Adds a line to a file of results, unless it is there already; one process at a time."""
    text = line.to_json()
    earlier = json.dumps(dataclasses.asdict(line))  # as it was written without a digest
    with files.turn_at(path):
        whole, torn = _pieces(path)
        if torn:
            # Whoever was killed while writing left a part; the run will add it again.
            warnings.warn(f"{_where(path, whole)} was cut off, and is removed.", RecordWarning, 2)
            with path.open("r+b") as file:
                file.truncate(path.stat().st_size - len(torn))
        if text in whole or earlier in whole:
            return
        with path.open("a+b") as file, files.naming(path):
            file.seek(max(0, file.tell() - 1))
            start = b"" if file.read(1) in (b"", b"\n") else b"\n"
            file.write(start + text.encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())


def read(folder: Path, studies: Collection[str] | None = None) -> list[Line]:
    """All lines of all files of a folder, in the order of file names.

    Args:
        folder: With files `*.jsonl`.
        studies: The studies whose lines are wanted; those of others may have any form.

    Raises:
        RecordError: If a line is not JSON, or no line of results.
    """
    return [line for path in sorted(folder.glob("*.jsonl")) for line in read_file(path, studies)]


def read_file(path: Path, studies: Collection[str] | None = None) -> list[Line]:
    """All lines of one file; a last one that was cut off is left out, with a warning.

    Raises:
        RecordError: If a line is not JSON, or no line of results.
    """
    whole, torn = _pieces(path)
    if torn:
        warnings.warn(f"{_where(path, whole)} was cut off, and is left out.", RecordWarning, 2)
    lines = []
    for number, text in enumerate(whole, start=1):
        if not text.strip():
            continue
        try:
            facts = json.loads(text)
        except (RecursionError, ValueError) as error:  # also of numbers that never end
            raise RecordError(
                f"{path}, line {number} is not JSON ({error}). Repair or delete it."
            ) from None
        if studies is not None and isinstance(facts, dict) and "study" in facts:
            study = facts["study"]
            if isinstance(study, str) and study not in studies and not _changed(facts):
                continue
        try:
            lines.append(Line.from_facts(facts))
        except ValueError as error:
            raise RecordError(
                f"{path}, line {number} {error}. Delete it, and do that run again."
            ) from None
    return lines


def _pieces(path: Path) -> tuple[list[str], bytes]:
    """The lines of a file, and what stands after the last end of a line, if it is no line."""
    content = path.read_bytes() if path.exists() else b""
    head, end, tail = content.rpartition(b"\n")
    if _is_json(tail):  # all there but its end
        head, end, tail = content, b"", b""
    try:
        return (head + end).decode().splitlines(), tail
    except UnicodeDecodeError as error:
        raise RecordError(
            f"{path} is not text in UTF-8 ({error}). Restore it, or delete it and train again."
        ) from None


def _is_json(text: bytes) -> bool:
    try:
        json.loads(text)
    except (RecursionError, ValueError):
        return False
    return True


def _where(path: Path, whole: list[str]) -> str:
    return f"{path}, line {len(whole) + 1}"
