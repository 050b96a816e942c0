"""What the studies of lists of large numbers share: options, networks, batches."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from copy import copy
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from ..data.augmentation import jitter
from ..data.numbers import TEST_LISTS, VALIDATION_LISTS, Digits, Sequences, load_digits
from ..data.randomness import generator_for
from ..networks.orderings import WITHOUT_TAU, Network
from ..networks.readers import CellReader, PaperNetwork, PlaceSum
from ..training.plan import ConfigError, Plan
from .study import StudyConfig

PAPER_TAUS = (1.0, 2.0, 4.0, 8.0, 16.0)
"""The grid that the paper's temperature is chosen from."""

FAST_TAU = 0.5

CHUNK = 50
"""Lists that are tested at a time."""


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
    test_lists: int = TEST_LISTS
    """Lists in the test set."""
    validation_lists: int = VALIDATION_LISTS
    """Lists in the validation set."""
    overlap: int | None = None
    """Lists to make of a step's images, for each that they fill. Not given: the recipe's."""

    sizes: ClassVar[tuple[str, ...]] = ("n", "places", "validation_lists", "test_lists")
    of_plan: ClassVar[tuple[str, ...]] = (*StudyConfig.of_plan, "overlap")
    positive: ClassVar[tuple[str, ...]] = (*StudyConfig.positive, "overlap")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.places > 9:
            raise ConfigError(f"--places must be at most 9, got {self.places}.")
        if self.temperature != "fixed" and self.method in WITHOUT_TAU:
            raise ConfigError(
                f"--temperature {self.temperature} is for methods that have a temperature, and "
                f"{self.method} has none. Leave it out."
            )
        if self.test_lists < 2:
            raise ConfigError(f"--test-lists must be at least 2, got {self.test_lists}.")

    def networks(self, digits: Digits) -> tuple[nn.Module, Network]:
        """The recipe's networks: a reader of images, and what makes networks on its readings.

        The paper's networks look at the image itself, each on its own. Ours share the reader.
        """
        height, width = digits.images.shape[1:]
        whole = width * self.places
        if self.recipe != "fast":
            return nn.Identity(), partial(PaperNetwork, height, whole)
        reader = CellReader(height, whole, self.places)
        return reader, partial(PlaceSum, self.places, reader.outputs)

    def fixed(self, splits: dict[str, Digits], split: Literal["validation", "test"]) -> Sequences:
        """The lists that models are chosen by, or tested on."""
        lists = self.test_lists if split == "test" else self.validation_lists
        return Sequences.fixed(splits[split], split, lists, self.n, self.places)

    @property
    def jittered_places(self) -> int:
        """Digits per image that are moved about in training; 0 for none."""
        return self.places if self.recipe == "fast" else 0


class ListStudy:
    """What the studies of lists of large numbers share."""

    def taus(self, config: ListConfig) -> tuple[float, ...]:
        """The temperatures that the recipe tries."""
        taus = PAPER_TAUS if config.recipe == "paper" else (FAST_TAU,)
        return taus[:1] if config.method in WITHOUT_TAU else taus

    def plan(self, config: ListConfig) -> Plan:
        """How our own recipe trains: on as many digits a step at every length."""
        return Plan(
            steps=3_000,
            batch=max(4, 120 // config.n),
            lr=3e-2,
            optimizer="adamw",
            weight_decay=0.01,
            schedule="one_cycle",
            clip=5.0,
            average=0.99,
            validate_every=600,
            overlap=30,
        )

    def memory(self, config: ListConfig, plan: Plan) -> int:
        """Bytes of what a step keeps of its images and lists, or a test; and of the test lists."""
        side = 28 if config.data == "mnist" else 8
        image = 64 * 4 * side**2 * config.places
        numbers, lists = plan.batch * config.n, plan.batch * plan.overlap
        step = image * numbers + 4 * lists * (numbers + 4 * config.n**2)
        # Networks that look at whole images see so many at a time; digits are read once.
        test = CHUNK * config.n * (24 * config.n + (0 if config.recipe == "fast" else image))
        kept = max(config.test_lists, config.validation_lists)
        return max(step, test) + 4 * 8 * kept * config.n * config.places

    def load(self, config: ListConfig) -> dict[str, Digits]:
        """The digits of the three splits."""
        return load_digits(config.data, config.data_dir)

    def facts(self, config: ListConfig) -> dict[str, Any]:
        """Network, augmentation, and the length in training, which may be tested at others."""
        moved = {"jitter": copy(jitter.__kwdefaults__)}  # what `read` calls it with
        return {
            "train_n": config.n,
            "network": "CellReader" if config.recipe == "fast" else "PaperNetwork",
            "augmentation": moved if config.jittered_places else {},
        }


class ListModel(nn.Module):
    """What the models of lists share: `model(images, target)` is a loss, and they read images.

    Args:
        reader: Images to items.
        any_length: Whether lists of any length will do, whatever the length it was trained at.
        jittered_places: Digits of an image to move about in training; 0 for none.
    """

    def __init__(self, reader: nn.Module, *, any_length: bool, jittered_places: int) -> None:
        super().__init__()
        self.reader = reader
        self.any_length, self.jittered_places = any_length, jittered_places

    def read(self, images: Tensor) -> Tensor:
        """The items of training images: `(B, n, height, width) -> (B, n, ...)`."""
        if self.jittered_places:
            images = jitter(images, self.jittered_places)
        return self.reader(images)


class SequenceTask(ABC):
    """A task on sequences drawn anew at every step from the training digits.

    Args:
        model: `model(images, target)` is the loss, and `model(images, target, which)` that of
            other lists of the same images.
        config: Sizes and seed.
        splits: The digits.
        plan: Lists in the whole batch, and how many are made of the images of one.
    """

    def __init__(
        self, model: nn.Module, config: ListConfig, splits: dict[str, Digits], plan: Plan
    ) -> None:
        digits = plan.batch * config.n * config.places
        if digits < 2 and config.recipe == "fast" and any(True for _ in model.parameters()):
            raise ConfigError(
                "A step of one digit cannot be normalised. Raise --batch, --n or --places."
            )
        self.model, self.config, self.plan = model, config, plan
        self.digits = splits["train"]
        self.validation = config.fixed(splits, "validation")

    def batch(self, step: int, part: slice) -> tuple[Tensor, ...]:
        """Images and target of a part of the batch of that step."""
        config = self.config
        generator = generator_for(config.seed, "batch", step)
        drawn = Sequences.draw(self.digits, self.plan.batch, config.n, config.places, generator)
        mine = drawn[part]
        if self.plan.overlap == 1:
            return mine.images(), self.target(mine)
        generator = generator_for(config.seed, "overlap", step, part.start or 0)
        which, mixed = mine.mixed(self.plan.overlap * len(mine), generator)
        return mine.images(), self.target(mixed), which

    @abstractmethod
    def target(self, sequences: Sequences) -> Tensor:
        """What a model learns to say about the sequences."""

    @abstractmethod
    def validate(self, model: Any) -> dict[str, float]:
        """Metrics on the validation set."""


def readings(model: Any, sequences: Sequences) -> Iterator[tuple[Sequences, Tensor]]:
    """Some lists at a time, with what the reader of a model makes of their images.

    A reader of single digits reads each digit of the set once, however many numbers it stands in.
    """
    reader = model.reader
    first, *rest = reader if isinstance(reader, nn.Sequential) else [reader]
    known = None
    if isinstance(first, CellReader):
        like = next(model.parameters())
        parts = sequences.digits.images.split(1_000)
        known = torch.cat([first.read(part.to(like) / 255) for part in parts])
    for chunk in sequences.chunks(CHUNK):
        if known is None:
            yield chunk, reader(images_for(model, chunk))
        else:
            yield chunk, nn.Sequential(*rest)(known[chunk.index.to(known.device)])


def images_for(model: nn.Module, sequences: Sequences) -> Tensor:
    """The images of sequences, where the model is and in its precision."""
    like = next(model.parameters(), None)
    return sequences.images() if like is None else sequences.images().to(like)
