"""Labelled images, by split, and what training does to them."""

import base64
import io
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from .data import SPLITS, load
from .models import jitter
from .sources import find

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


def load_images(source: str, data_dir: Path | None = None) -> dict[str, Images]:
    """The three splits of a source of images, with the paper's sizes.

    Args:
        source: `"cifar10"`, 45,000 / 5,000 / 10,000 images of 32 x 32 in colour, or one of the
            sources of digits.
        data_dir: Where to look for files first.
    """
    if source != "cifar10":
        return {
            name: Images(
                one.images.unsqueeze(1), torch.arange(CLASSES).repeat_interleave(one.counts)
            )
            for name, one in load(source, data_dir).items()
        }
    batches = [_read_cifar(path) for path in find("cifar10", data_dir).values()]
    whole = Images(
        torch.cat([one.pixels for one in batches]), torch.cat([one.labels for one in batches])
    )
    parts = slice(0, 45_000), slice(45_000, 50_000), slice(50_000, 60_000)
    return {name: whole[part] for name, part in zip(SPLITS, parts, strict=True)}


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


# -- augmentation ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Augmentation:
    """What training does to images, each on its own, at random.

    Attributes:
        turn: Move, turn and scale a little.
        flip: Mirror left to right, for half of them.
        shift: Largest shift in pixels, with zeros coming in.
        cutout: Size of a square that is hidden; 0 for none.
    """

    turn: bool = False
    flip: bool = False
    shift: int = 0
    cutout: int = 0

    def __call__(self, images: Tensor) -> Tensor:
        """`(B, channels, height, width)`, the same shape."""
        if self.turn:
            images = jitter(images.squeeze(1), 1).unsqueeze(1)
        if self.flip:
            turned = torch.rand(len(images), 1, 1, 1, device=images.device) < 0.5
            images = torch.where(turned, images.flip(-1), images)
        if self.shift:
            images = _shifted(images, self.shift)
        return _hidden(images, self.cutout) if self.cutout else images

    def views(self, images: Tensor) -> list[Tensor]:
        """What a test looks at: the images, and their mirror images if training saw such."""
        return [images, images.flip(-1)] if self.flip else [images]


def _shifted(images: Tensor, most: int) -> Tensor:
    count, _, height, width = images.shape
    padded = torch.nn.functional.pad(images, (most,) * 4)
    down, right = torch.randint(2 * most + 1, (2, count, 1, 1, 1), device=images.device)
    rows = down + torch.arange(height, device=images.device).view(-1, 1)  # (B, 1, height, 1)
    columns = right + torch.arange(width, device=images.device)  # (B, 1, 1, width)
    one = torch.arange(count, device=images.device).view(-1, 1, 1, 1)
    channel = torch.arange(images.shape[1], device=images.device).view(-1, 1, 1)
    return padded[one, channel, rows, columns]


def _hidden(images: Tensor, size: int) -> Tensor:
    count, _, height, width = images.shape
    top = torch.randint(height - size + 1, (count, 1, 1, 1), device=images.device)
    left = torch.randint(width - size + 1, (count, 1, 1, 1), device=images.device)
    row = torch.arange(height, device=images.device).view(-1, 1) - top
    column = torch.arange(width, device=images.device) - left
    inside = (row >= 0) & (row < size) & (column >= 0) & (column < size)
    return images.masked_fill(inside, 0.0)
