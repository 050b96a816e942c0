"""Lists of large numbers, each number an image made of digits."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from .downloads import DataError
from .images import CLASSES, load_images
from .randomness import generator_for

TEST_LISTS = 10_000
VALIDATION_LISTS = 2_000

DIGIT_SETS = ("digits", "mnist")
"""Sets of images of digits."""


@dataclass(frozen=True)
class Digits:
    """The images of one split, in the order of their classes.

    Attributes:
        images: `(N, height, width)` bytes.
        starts: `(10,)`. Where each class begins.
        counts: `(10,)`. How many images each class has.
    """

    images: Tensor
    starts: Tensor
    counts: Tensor

    @classmethod
    def of(cls, images: Tensor, labels: Tensor) -> "Digits":
        """Arranges images by class."""
        counts = torch.bincount(labels, minlength=CLASSES)
        return cls(images[labels.argsort(stable=True)], counts.cumsum(0) - counts, counts)


def load_digits(name: str, data_dir: Path | None = None) -> dict[str, Digits]:
    """The three splits of a set of digits, as `load_images` makes them.

    Args:
        name: One of `DIGIT_SETS`.
        data_dir: Where to look for files first.
    """
    if name not in DIGIT_SETS:
        raise DataError(f"There is no data {name!r}. Choose one of: {', '.join(DIGIT_SETS)}.")
    splits = load_images(name, data_dir)
    return {split: Digits.of(one.pixels.squeeze(1), one.labels) for split, one in splits.items()}


def split_cells(images: Tensor, places: int) -> Tensor:
    """`(..., height, l * width) -> (..., l, height, width)`: one image per digit."""
    return images.unflatten(-1, (places, -1)).movedim(-2, -3)


def join_cells(cells: Tensor) -> Tensor:
    """`(..., l, height, width) -> (..., height, l * width)`: digits side by side."""
    return cells.movedim(-3, -2).flatten(-2)


@dataclass(frozen=True)
class Sequences:
    """Lists of large numbers, kept as indices of digit images until somebody looks at them.

    Attributes:
        digits: Where the images are.
        index: `(lists, n, l)`. The image of each decimal digit, leading zeros included.
        values: `(lists, n)`. The numbers.
    """

    digits: Digits
    index: Tensor
    values: Tensor

    @classmethod
    def draw(
        cls, digits: Digits, lists: int, n: int, places: int, generator: torch.Generator
    ) -> "Sequences":
        """Numbers uniform in [0, 10^l - 1], each decimal digit a uniform image of its class."""
        values = torch.randint(10**places, (lists, n), generator=generator)
        powers = 10 ** torch.arange(places - 1, -1, -1)
        decimals = values.unsqueeze(-1) // powers % 10  # (lists, n, l)
        chance = torch.rand(decimals.shape, generator=generator, dtype=torch.float64)
        within = (chance * digits.counts[decimals]).long()
        return cls(digits, digits.starts[decimals] + within, values)

    @classmethod
    def fixed(cls, digits: Digits, split: str, lists: int, n: int, places: int) -> "Sequences":
        """The same sequences for everybody: they depend on the split and the sizes alone."""
        return cls.draw(digits, lists, n, places, generator_for("fixed", split, n, places))

    def mixed(self, lists: int, generator: torch.Generator) -> tuple[Tensor, "Sequences"]:
        """Other lists of the same numbers, each of different ones: lists overlap.

        Args:
            lists: How many.
            generator: Of the choice.

        Returns:
            `(lists, n)`, which of all the numbers, one list after the other, stand in each list;
            and those lists.
        """
        numbers, n = self.values.flatten(), self.values.shape[-1]
        chance = torch.rand(lists, len(numbers), generator=generator)
        which = chance.topk(n, largest=False).indices
        index = self.index.flatten(0, 1)[which]
        return which, replace(self, index=index, values=numbers[which])

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, part: slice) -> "Sequences":
        return replace(self, index=self.index[part], values=self.values[part])

    def chunks(self, lists: int) -> Iterator["Sequences"]:
        """Consecutive parts of at most so many lists."""
        return (self[start : start + lists] for start in range(0, len(self), lists))

    def images(self) -> Tensor:
        """`(lists, n, height, l * width)` in [0, 1]: the digits of a number side by side."""
        return join_cells(self.digits.images[self.index]).float() / 255

    def order(self) -> Tensor:
        """`(lists, n)`. What sorts each list, largest first; equal numbers stay in place."""
        return self.values.argsort(dim=-1, descending=True, stable=True)
