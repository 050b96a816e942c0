"""Digit images, where they come from, and the sequences of large numbers made of them."""

import gzip
import struct
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from .randomness import generator_for
from .sources import DataError, find

SPLITS = ("train", "validation", "test")
SOURCES = ("digits", "mnist", "fashion-mnist")
TEST_SEQUENCES = 10_000
VALIDATION_SEQUENCES = 2_000


def read_idx(path: Path) -> Tensor:
    """Reads one gzipped IDX file of bytes, MNIST's format: a magic number, sizes, values."""
    raw = gzip.decompress(path.read_bytes())
    zero, kind, rank = struct.unpack(">HBB", raw[:4])
    if zero or kind != 8:
        raise DataError(f"{path} is not an IDX file of bytes. Fetch it again.")
    shape = struct.unpack(f">{rank}I", raw[4 : 4 + 4 * rank])
    return torch.frombuffer(bytearray(raw[4 + 4 * rank :]), dtype=torch.uint8).view(shape)


# -- digits ----------------------------------------------------------------------------------------


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
        counts = torch.bincount(labels, minlength=10)
        return cls(images[labels.argsort(stable=True)], counts.cumsum(0) - counts, counts)


def load(source: str, data_dir: Path | None = None) -> dict[str, Digits]:
    """The three splits of a source of digits; no image is in two of them.

    Args:
        source: `"mnist"` or `"fashion-mnist"`, 50,000 / 10,000 / 10,000 images of 28 x 28, or
            `"digits"`, the 1,797 images of 8 x 8 that ship with scikit-learn, split 70 : 10 : 20
            within each class.
        data_dir: Where to look for files first.
    """
    if source in ("mnist", "fashion-mnist"):
        x, y, test_x, test_y = map(read_idx, find(source, data_dir).values())
        parts = ((x[:50_000], y[:50_000]), (x[50_000:], y[50_000:]), (test_x, test_y))
        return {name: Digits.of(*part) for name, part in zip(SPLITS, parts, strict=True)}
    if source == "digits":
        return _embedded_digits()
    raise DataError(f"There is no data {source!r}. Choose one of: {', '.join(SOURCES)}.")


def _embedded_digits() -> dict[str, Digits]:
    from sklearn.datasets import load_digits

    pixels, target = load_digits(return_X_y=True)
    images = torch.as_tensor(pixels * (255 / 16)).round().to(torch.uint8).view(-1, 8, 8)
    labels = torch.as_tensor(target)
    shuffled = torch.randperm(len(labels), generator=generator_for("digits", "split"))
    chosen: dict[str, list[Tensor]] = {name: [] for name in SPLITS}
    for label in range(10):
        members = shuffled[labels[shuffled] == label]
        edges = [int(share * len(members)) for share in (0.7, 0.8)]
        for name, part in zip(SPLITS, members.tensor_split(edges), strict=True):
            chosen[name].append(part)
    return {
        name: Digits.of(images[torch.cat(parts)], labels[torch.cat(parts)])
        for name, parts in chosen.items()
    }


# -- sequences of large numbers --------------------------------------------------------------------


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

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, part: slice) -> "Sequences":
        return replace(self, index=self.index[part], values=self.values[part])

    def chunks(self, lists: int) -> Iterator["Sequences"]:
        """Consecutive parts of at most so many lists."""
        return (self[start : start + lists] for start in range(0, len(self), lists))

    def images(self) -> Tensor:
        """`(lists, n, height, l * width)` in [0, 1]: the digits of a number side by side."""
        cells = self.digits.images[self.index]  # (lists, n, l, height, width)
        return cells.movedim(-3, -2).flatten(-2).float() / 255

    def order(self) -> Tensor:
        """`(lists, n)`. What sorts each list, largest first; equal numbers stay in place."""
        return self.values.argsort(dim=-1, descending=True, stable=True)
