"""Options of the studies, checked before any work is done."""

import math
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Literal

from torch import nn

from .data import TEST_SEQUENCES, VALIDATION_SEQUENCES, Digits
from .models import CellReader, PaperNetwork, PlaceSum
from .orderings import Network
from .plan import ConfigError, Plan

PAPER_TAUS = (1.0, 2.0, 4.0, 8.0, 16.0)
"""The grid that the paper's temperature is chosen from."""


@dataclass(frozen=True)
class StudyConfig:
    """Options of a run of any study."""

    data: str = "digits"
    """Source of the images."""
    method: str = "neuralsort"
    """What is trained."""
    recipe: Literal["fast", "paper"] = "fast"
    """The paper's network and optimisation, or ours for two cores."""
    tau: tuple[float, ...] = ()
    """Temperatures to try; the best on validation is tested. None given: the recipe's."""
    steps: int | None = None
    """Training steps. Not given: the recipe's."""
    batch: int | None = None
    """Lists or images in a batch, over all processes. Not given: the recipe's."""
    lr: float | None = None
    """Learning rate, or the peak of it. Not given: the recipe's."""
    patience: int | None = None
    """Validations without a better one before stopping, 0 for never. Not given: the recipe's."""
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
    positive: ClassVar[tuple[str, ...]] = ("steps", "batch")
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
            if not (tau > 0 and math.isfinite(tau)):
                raise ConfigError(f"--tau must be positive numbers, got {tau}.")
        for name, path in (("run", self.run), ("results", self.results)):
            if path is not None and path.exists() and not path.is_dir():
                raise ConfigError(f"--{name} must be a folder, but {path} is a file.")

    @property
    def identity(self) -> dict[str, Any]:
        """The options that make a run this run, and head its line."""
        names = ("method", "data", *self.sizes, "recipe", "seed", "precision")
        return {name: getattr(self, name) for name in names}

    def adjusted(self, plan: Plan) -> Plan:
        """The recipe's plan, with what the options say instead."""
        plan = replace(plan, **self._given)
        # Short runs have a learning curve as well.
        return replace(plan, validate_every=min(plan.validate_every, -(-plan.steps // 5)))

    @property
    def _given(self) -> dict[str, Any]:
        """What the options say in place of the recipe's plan."""
        names = ("steps", "batch", "lr", "patience")
        return {name: getattr(self, name) for name in names if getattr(self, name) is not None}

    def folder(self, study: str) -> Path:
        """Where the run is kept: a name says what it is, and what is not as in the recipe."""
        first = f"{self.sizes[0]}{getattr(self, self.sizes[0])}"
        name = f"{study}-{self.data}-{self.method}-{first}-{self.recipe}-seed{self.seed}"
        changed = [f"{key}{value:g}" for key, value in self._given.items()]
        changed += ["-".join(["tau", *(f"{tau:g}" for tau in self.tau)])] if self.tau else []
        return self.run or Path("runs") / "-".join([name, *changed])


@dataclass(frozen=True)
class ListConfig(StudyConfig):
    """Options of a run on lists of large numbers."""

    data: Literal["digits", "mnist"] = "digits"
    """Source of the digit images: scikit-learn's 8 x 8 ones, which need no download, or MNIST."""
    method: str = "neuralsort"
    """How lists are sorted."""
    n: int = 5
    """Numbers in a list."""
    places: int = 4
    """Decimal digits in a number, leading zeros included."""
    test_lists: int = TEST_SEQUENCES
    """Lists in the test set."""
    validation_lists: int = VALIDATION_SEQUENCES
    """Lists in the validation set."""

    sizes: ClassVar[tuple[str, ...]] = ("n", "places", "validation_lists", "test_lists")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.places > 9:
            raise ConfigError(f"--places must be at most 9, got {self.places}.")

    def networks(self, digits: Digits) -> tuple[nn.Module, Network]:
        """The recipe's networks: a reader of images, and what makes networks on its readings.

        The paper's networks look at the image itself, each on its own. Ours share the reader.
        """
        height, width = digits.images.shape[1:]
        whole = width * self.places
        if self.recipe == "paper":
            return nn.Identity(), partial(PaperNetwork, height, whole)
        reader = CellReader(height, whole, self.places)
        return reader, partial(PlaceSum, self.places, reader.kinds)

    @property
    def jittered_places(self) -> int:
        """Digits per image that are moved about in training; 0 for none."""
        return self.places if self.recipe == "fast" else 0
