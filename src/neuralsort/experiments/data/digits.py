"""Images of digits, by split: scikit-learn's small ones, MNIST and Fashion-MNIST."""

import gzip
import struct
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from .downloads import DataError, find
from .randomness import generator_for

SPLITS = ("train", "validation", "test")
DIGIT_SETS = ("digits", "mnist", "fashion-mnist")


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


def load_digits(name: str, data_dir: Path | None = None) -> dict[str, Digits]:
    """The three splits of a set of digits; no image is in two of them.

    Args:
        name: `"mnist"` or `"fashion-mnist"`, 50,000 / 10,000 / 10,000 images of 28 x 28, or
            `"digits"`, the 1,797 images of 8 x 8 that ship with scikit-learn, split 70 : 10 : 20
            within each class.
        data_dir: Where to look for files first.
    """
    if name in ("mnist", "fashion-mnist"):
        x, y, test_x, test_y = map(read_idx, find(name, data_dir).values())
        parts = ((x[:50_000], y[:50_000]), (x[50_000:], y[50_000:]), (test_x, test_y))
        return {split: Digits.of(*part) for split, part in zip(SPLITS, parts, strict=True)}
    if name == "digits":
        return _embedded_digits()
    raise DataError(f"There is no data {name!r}. Choose one of: {', '.join(DIGIT_SETS)}.")


def _embedded_digits() -> dict[str, Digits]:
    from sklearn import datasets

    pixels, target = datasets.load_digits(return_X_y=True)
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
