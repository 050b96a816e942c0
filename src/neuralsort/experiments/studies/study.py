"""What a study is, to whatever runs it: its options, its task and its test."""

import math
import shlex
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, ClassVar, Literal, Protocol

import neuralsort.torch as ns

from ..training.plan import ConfigError, Plan
from ..training.trainer import Task

ANNEALED = 4.0
"""Annealing starts at so many times tau, and ends at one part in so many."""

MOST_THREADS = 1024

ELSEWHERE = ("data_dir", "run", "results", "checkpoint_seconds", "tensorboard")
"""Options that say where things are, and change no number."""


@dataclass(frozen=True)
class StudyConfig:
    """Options of a run of any study, checked before any work is done."""

    data: str = "digits"
    """Source of the images."""
    method: str = "neuralsort"
    """What is trained."""
    recipe: str = "fast"
    """How it is trained."""
    tau: tuple[float, ...] = ()
    """Temperatures to try; the best on validation is tested. None given: the recipe's."""
    temperature: Literal["fixed", "annealed", "learned"] = "fixed"
    """Whether tau stays, falls from four times to a quarter of it, or is where learning starts."""
    steps: int | None = None
    """Training steps. Not given: the recipe's."""
    batch: int | None = None
    """Lists or images in a batch, over all processes. Not given: the recipe's."""
    lr: float | None = None
    """Learning rate, or the peak of it. Not given: the recipe's."""
    patience: int | None = None
    """Validations without a better one before stopping, 0 for never. Not given: the recipe's."""
    threads: int | None = None
    """Threads of the arithmetic, which change its rounding. Not given: the recipe's."""
    seed: int = 0
    """Seed of parameters, batches and noise. The test set is the same for every seed."""
    device: Literal["auto", "cpu", "cuda", "mps"] = "cpu"
    """Where to train."""
    precision: Literal["32-true", "64-true", "bf16-mixed"] = "32-true"
    """Floating-point precision of the network."""
    data_dir: Path | None = None
    """Folder with the data; else NEURALSORT_DATA, else the user's cache and a download."""
    run: Path | None = None
    """Folder of checkpoints; the same command goes on from them. Not given: a name under runs/."""
    results: Path = Path("results")
    """Folder of the result lines."""
    checkpoint_seconds: float = 60.0
    """Time between checkpoints."""
    tensorboard: bool = False
    """Write TensorBoard logs into the folder of checkpoints."""

    sizes: ClassVar[tuple[str, ...]] = ()
    """The options, besides those of every study, that make a run this run."""
    rare: ClassVar[tuple[str, ...]] = ()
    """More such options, which stand in names of folders where they are not as usual. They are no
    part of `identity`, so the facts of the study have to tell them."""
    of_plan: ClassVar[tuple[str, ...]] = ("steps", "batch", "lr", "patience", "threads")
    """The options that stand in for a part of the recipe's plan."""
    positive: ClassVar[tuple[str, ...]] = ("steps", "batch", "threads")
    """The options that are counts."""

    def __post_init__(self) -> None:
        for name in (*self.sizes, *self.positive):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigError(f"--{name.replace('_', '-')} must be at least 1, got {value}.")
        if self.lr is not None and not (self.lr > 0 and math.isfinite(self.lr)):
            raise ConfigError(f"--lr must be a positive number, got {self.lr}.")
        for name in ("patience", "checkpoint_seconds"):
            value = getattr(self, name)
            if value is not None and not value >= 0:
                raise ConfigError(f"--{name.replace('_', '-')} must not be negative, got {value}.")
        for tau in self.tau:
            # Annealing starts above it.
            if not (tau > 0 and math.isfinite(ANNEALED * tau)):
                raise ConfigError(f"--tau must be positive numbers, got {tau}.")
        if self.threads is not None and self.threads > MOST_THREADS:
            raise ConfigError(f"--threads must be at most {MOST_THREADS}, got {self.threads}.")
        for name, path in (("run", self.run), ("results", self.results)):
            if path is not None and path.exists() and not path.is_dir():
                raise ConfigError(f"--{name} must be a folder, but {path} is a file.")

    @property
    def identity(self) -> dict[str, Any]:
        """The options that make a run this run, and head its line."""
        names = ("method", "data", "recipe", "seed", "precision")
        sizes = {name: getattr(self, name) for name in self.sizes}
        return {name: getattr(self, name) for name in names} | {"sizes": sizes}

    @property
    def tempering(self) -> dict[str, str]:
        """What a line says of temperatures that do not stay; of others, nothing, as ever."""
        return {} if self.temperature == "fixed" else {"temperature": self.temperature}

    def tempered(self, tau: float, plan: Plan) -> float | ns.nn.Temperature:
        """The temperature of a training that is to be had at `tau`."""
        if self.temperature == "fixed":
            return tau
        if self.temperature == "learned":
            return ns.nn.Temperature(tau, learnable=True)
        return ns.nn.Temperature(ANNEALED * tau, end=tau / ANNEALED, steps=plan.steps)

    def adjusted(self, plan: Plan) -> Plan:
        """The recipe's plan, with what the options say instead."""
        plan = replace(plan, **self._given)
        # Short runs have a learning curve as well.
        return replace(plan, validate_every=min(plan.validate_every, -(-plan.steps // 5)))

    @property
    def _given(self) -> dict[str, Any]:
        """What the options say in place of the recipe's plan."""
        given = {name: getattr(self, name) for name in self.of_plan}
        return {name: value for name, value in given.items() if value is not None}

    @property
    def shown(self) -> str:
        """The name of the size that people tell runs apart by."""
        return self.sizes[0]

    def folder(self, study: str) -> Path:
        """Where the run is kept: a name says what it is, and what is not as in the recipe."""
        first = f"{self.shown}{getattr(self, self.shown)}"
        name = f"{study}-{self.data}-{self.method}-{first}-{self.recipe}-seed{self.seed}"
        usual = {one.name: one.default for one in fields(self)}
        sizes = {key: getattr(self, key) for key in (*self.sizes[1:], *self.rare)}
        sizes = {key: value for key, value in sizes.items() if value != usual[key]}
        changed = [f"{key}{_short(value)}" for key, value in (sizes | self._given).items()]
        changed += ["-".join(["tau", *map(_short, self.tau)])] if self.tau else []
        changed += [self.temperature] if self.temperature != "fixed" else []
        others = ("precision", "device")
        changed += [value for key in others if (value := getattr(self, key)) != usual[key]]
        return self.run or Path("runs") / "-".join([name, *changed])

    def command(self, study: str, program: str = "neuralsort") -> str:
        """What to type to do this run again, wherever data, runs and results are."""
        words = ["train", study]
        for option in fields(self):
            value = getattr(self, option.name)
            if option.name in ELSEWHERE or value == option.default:
                continue
            words.append(f"--{option.name.replace('_', '-')}")
            words += map(str, value) if isinstance(value, tuple) else [str(value)]
        return f"{program} {shlex.join(words)}"


def _short(value: float) -> str:
    """A number in a name, in few digits if they are all."""
    return f"{value:g}" if float(f"{value:g}") == value else repr(value)


@dataclass
class Tested:
    """What a model does on the test set.

    Attributes:
        metrics: Numbers by name.
        intervals: 95 % intervals of some of them.
        over: What the intervals think of as drawn at random.
        extras: What figures need besides.
    """

    metrics: dict[str, float]
    intervals: dict[str, tuple[float, float]]
    over: str
    extras: dict[str, Any] = field(default_factory=dict)


class Study(Protocol):
    """A study: how to make its task, and how to test what was learnt."""

    @property
    def name(self) -> str:
        """In commands, lines and folders."""
        ...

    @property
    def config(self) -> type[StudyConfig]:
        """The options of its runs."""
        ...

    def taus(self, config: Any) -> tuple[float, ...]:
        """The temperatures that the recipe tries."""
        ...

    def plan(self, config: Any) -> Plan:
        """How the recipe trains."""
        ...

    def memory(self, config: Any, plan: Plan) -> int:
        """Bytes that a run needs at the very least; 0 where nothing in the options is too much."""
        ...

    def load(self, config: Any) -> dict[str, Any]:
        """The data, by split."""
        ...

    def task(self, config: Any, splits: Any, tau: float, plan: Plan, /) -> Task:
        """What is trained at one temperature."""
        ...

    def test(self, config: Any, model: Any, splits: Any, /) -> Tested:
        """Tests the best model, once."""
        ...

    def facts(self, config: Any) -> dict[str, Any]:
        """What the line says of the run besides options and plan."""
        ...
