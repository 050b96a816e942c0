"""Labelled images, by split: scikit-learn's small digits, MNIST, Fashion-MNIST and CIFAR-10."""

import base64
import gzip
import io
import struct
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from .downloads import DataError, find
from .randomness import generator_for

CLASSES = 10
SPLITS = ("train", "validation", "test")
SETS = ("digits", "mnist", "fashion-mnist", "cifar10")


@dataclass(frozen=True)
class Images:
    """The images of one split.

    Attributes:
        pixels: `(N, channels, height, width)` bytes.
        labels: `(N,)`.
    """

    pixels: Tensor
    labels: Tensor

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, part: slice | Tensor) -> "Images":
        return Images(self.pixels[part], self.labels[part])

    def floats(self) -> Tensor:
        """`(N, channels, height, width)` in [0, 1]."""
        return self.pixels.float() / 255


def load_images(name: str, data_dir: Path | None = None) -> dict[str, Images]:
    """The three splits of a set of images; no image is in two of them.

    Those of CIFAR-10 are in the order of its files, all others in the order of their classes.

    Args:
        name: `"mnist"` or `"fashion-mnist"`, 50,000 / 10,000 / 10,000 images of 28 x 28;
            `"cifar10"`, 45,000 / 5,000 / 10,000 of 32 x 32 in colour; or `"digits"`, the 1,797
            images of 8 x 8 that ship with scikit-learn, split 70 : 10 : 20 within each class.
        data_dir: Where to look for files first.
    """
    if name == "digits":
        return _embedded_digits()
    if name in ("mnist", "fashion-mnist"):
        x, y, test_x, test_y = map(read_idx, find(name, data_dir).values())
        parts = ((x[:50_000], y[:50_000]), (x[50_000:], y[50_000:]), (test_x, test_y))
        return {split: _by_class(*part) for split, part in zip(SPLITS, parts, strict=True)}
    if name == "cifar10":
        batches = [_read_cifar(path) for path in find("cifar10", data_dir).values()]
        whole = Images(
            torch.cat([one.pixels for one in batches]), torch.cat([one.labels for one in batches])
        )
        ends = slice(0, 45_000), slice(45_000, 50_000), slice(50_000, 60_000)
        return {split: whole[part] for split, part in zip(SPLITS, ends, strict=True)}
    raise DataError(f"There is no data {name!r}. Choose one of: {', '.join(SETS)}.")


def _by_class(images: Tensor, labels: Tensor) -> Images:
    """`(N, height, width)` bytes with their labels, in the order of the labels."""
    order = labels.argsort(stable=True)
    return Images(images[order].unsqueeze(1), labels[order].long())


def _embedded_digits() -> dict[str, Images]:
    from sklearn import datasets

    pixels, target = datasets.load_digits(return_X_y=True)
    images = torch.as_tensor(pixels * (255 / 16)).round().to(torch.uint8).view(-1, 8, 8)
    labels = torch.as_tensor(target)
    shuffled = torch.randperm(len(labels), generator=generator_for("digits", "split"))
    chosen: dict[str, list[Tensor]] = {name: [] for name in SPLITS}
    for label in range(CLASSES):
        members = shuffled[labels[shuffled] == label]
        edges = [int(share * len(members)) for share in (0.7, 0.8)]
        for name, part in zip(SPLITS, members.tensor_split(edges), strict=True):
            chosen[name].append(part)
    return {
        name: _by_class(images[torch.cat(parts)], labels[torch.cat(parts)])
        for name, parts in chosen.items()
    }


# -- files -----------------------------------------------------------------------------------------


def read_idx(path: Path) -> Tensor:
    """Reads one gzipped IDX file of bytes, MNIST's format: a magic number, sizes, values."""
    raw = gzip.decompress(path.read_bytes())
    zero, kind, rank = struct.unpack(">HBB", raw[:4])
    if zero or kind != 8:
        raise DataError(f"{path} is not an IDX file of bytes. Fetch it again.")
    shape = struct.unpack(f">{rank}I", raw[4 : 4 + 4 * rank])
    return torch.frombuffer(bytearray(raw[4 + 4 * rank :]), dtype=torch.uint8).view(shape)


def _read_cifar(path: Path) -> Images:
    """One binary batch: a byte of label and 3,072 of pixels for every image."""
    rows = torch.frombuffer(bytearray(path.read_bytes()), dtype=torch.uint8).view(-1, 3073)
    return Images(rows[:, 1:].reshape(-1, 3, 32, 32), rows[:, 0].long())


def png(pixels: Tensor) -> str:
    """Bytes `(height, width)`, or `(channels, height, width)`, as base64 of a PNG file."""
    from PIL import Image

    flat = pixels if pixels.dim() == 2 else pixels.movedim(0, -1).squeeze(-1)
    buffer = io.BytesIO()
    Image.fromarray(flat.contiguous().numpy()).save(buffer, "PNG", optimize=True)
    return base64.b64encode(buffer.getvalue()).decode()
