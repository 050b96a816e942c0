"""Labelled images, by split."""

import base64
import io
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from .digits import SPLITS, load_digits
from .downloads import find

CLASSES = 10


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
    """The three splits of a set of images, with the paper's sizes.

    Args:
        name: `"cifar10"`, 45,000 / 5,000 / 10,000 images of 32 x 32 in colour, or one of the
            sets of digits.
        data_dir: Where to look for files first.
    """
    if name != "cifar10":
        return {
            split: Images(
                one.images.unsqueeze(1), torch.arange(CLASSES).repeat_interleave(one.counts)
            )
            for split, one in load_digits(name, data_dir).items()
        }
    batches = [_read_cifar(path) for path in find("cifar10", data_dir).values()]
    whole = Images(
        torch.cat([one.pixels for one in batches]), torch.cat([one.labels for one in batches])
    )
    parts = slice(0, 45_000), slice(45_000, 50_000), slice(50_000, 60_000)
    return {split: whole[part] for split, part in zip(SPLITS, parts, strict=True)}


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
