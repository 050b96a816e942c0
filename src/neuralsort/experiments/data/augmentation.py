"""What training does to images, at random, so that no two looks at one are the same."""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from .numbers import join_cells, split_cells


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
    padded = F.pad(images, (most,) * 4)
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


def jitter(
    images: Tensor,
    places: int,
    *,
    pixels: float = 2.0,
    radians: float = 0.2,
    zoom: float = 0.1,
) -> Tensor:
    """Moves, turns and scales every digit a little, each on its own, at random.

    Args:
        images: `(..., height, l * width)`.
        places: Digits per image.
        pixels: Largest shift, for digits of 28 pixels; smaller digits move in proportion.
        radians: Largest rotation.
        zoom: Largest relative change of size.
    """
    cells = split_cells(images, places)
    flat = cells.reshape(-1, 1, *cells.shape[-2:])
    shift, turn, scale = (
        torch.rand(4, len(flat), device=images.device).mul(2).sub(1).split((2, 1, 1))
    )
    angle, size = radians * turn[0], 1 + zoom * scale[0]
    cosine, sine = (one.view(-1, 1, 1) for one in (size * angle.cos(), size * angle.sin()))
    dx, dy = (shift * (pixels / 14)).view(2, -1, 1, 1)  # the grid spans -1 to 1 over 28 pixels
    y, x = (_centres(side).to(images.device) for side in flat.shape[-2:])
    y = y.unsqueeze(-1)
    # What `F.affine_grid` gives; as many products of small matrices it would take twice as long.
    across = torch.addcmul(dx - sine * y, cosine, x)
    down = torch.addcmul(dy + cosine * y, sine, x)
    grid = torch.stack((across, down), -1)
    moved = F.grid_sample(flat, grid, align_corners=False).view(cells.shape)
    return join_cells(moved)


def _centres(side: int) -> Tensor:
    """Where the centres of pixels are, on a grid from -1 to 1."""
    return (2 * torch.arange(side) + 1) / side - 1
