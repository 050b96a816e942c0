"""Networks that read images of large numbers."""

import torch
from torch import Tensor, nn

from ..data.numbers import split_cells


class PaperNetwork(nn.Module):
    """The paper's network: two 5 x 5 convolutions, each with pooling, then a layer of 64 units.

    Pooling comes before rectification: the largest of four is rectified to the same, with a
    quarter of the work.

    Args:
        height: Of the images.
        width: Of the images, all digits together.
        outputs: Numbers per image.
    """

    def __init__(self, height: int, width: int, outputs: int) -> None:
        super().__init__()
        self.layers = channels_last(
            nn.Sequential(
                nn.Conv2d(1, 32, 5, padding=2),
                nn.MaxPool2d(2),
                nn.ReLU(),
                nn.Conv2d(32, 64, 5, padding=2),
                nn.MaxPool2d(2),
                nn.ReLU(),
                nn.Flatten(),
                nn.Linear(64 * (height // 4) * (width // 4), 64),
                nn.ReLU(),
                nn.Linear(64, outputs),
            )
        )

    def forward(self, images: Tensor) -> Tensor:
        """`(..., height, width) -> (..., outputs)`."""
        flat = images.reshape(-1, 1, *images.shape[-2:])
        return self.layers(flat.to(memory_format=torch.channels_last)).unflatten(
            0, images.shape[:-2]
        )

    @torch.no_grad()
    def standardise(self, images: Tensor) -> None:
        """Sets every layer to begin with outputs of mean 0 and variance 1, unit by unit.

        Inputs of a layer are positive, so that some units would begin below zero for every image:
        rectified they have no gradient. And scores begin with the same scale, however many outputs
        there are. After Salimans and Kingma (2016).

        Args:
            images: `(..., height, width)`. Some to see what comes out.
        """
        found = images.reshape(-1, 1, *images.shape[-2:]).to(memory_format=torch.channels_last)
        for layer in self.layers.children():
            if isinstance(layer, nn.Conv2d | nn.Linear):
                units = layer(found).transpose(0, 1).flatten(1)  # (units, images x places)
                deviation = units.std(1)
                scale = deviation.where(deviation > 1e-6, 1.0)  # less than that is rounding
                layer.weight.div_(scale.view(-1, *[1] * (layer.weight.ndim - 1)))
                assert layer.bias is not None
                layer.bias.sub_(units.mean(1)).div_(scale)
            found = layer(found)


class CellReader(nn.Module):
    """Reads every digit with the same small network, and says of what kind it is.

    The softmax makes the reading of a digit nearly discrete: without it, noise from the leading
    digit would drown the differences that the last ones make. Early in training two digits often
    fall into one kind, and a softmax does not part them again. So there are several opinions: what
    one of them takes for the same, another tells apart.

    Args:
        height: Of the images.
        width: Of the images, all digits together.
        places: Digits per image, side by side.
        kinds: How many kinds of digit an opinion can tell apart.
        opinions: How many there are.
    """

    def __init__(
        self, height: int, width: int, places: int, *, kinds: int = 16, opinions: int = 4
    ) -> None:
        super().__init__()
        self.places, self.kinds, self.opinions = places, kinds, opinions
        of_digits = _large if height >= 16 else _small  # 8 x 8 have no pixel to spare
        features, size = of_digits(height, width // places)
        self.layers = channels_last(
            nn.Sequential(
                *features,
                nn.Flatten(),
                nn.Linear(size, 128, bias=False),
                nn.BatchNorm1d(128),
                nn.ReLU(),
                nn.Linear(128, self.outputs),
            )
        )

    @property
    def outputs(self) -> int:
        """Numbers per digit: the kinds of all opinions."""
        return self.opinions * self.kinds

    def forward(self, images: Tensor) -> Tensor:
        """`(..., height, width) -> (..., l, outputs)`. The kinds of an opinion add up to 1."""
        cells = split_cells(images, self.places)  # (..., l, height, width / l)
        return self.read(cells.flatten(0, -3)).unflatten(0, cells.shape[:-2])

    def read(self, digits: Tensor) -> Tensor:
        """`(N, height, width / l) -> (N, outputs)`. The kinds of single digits."""
        flat = digits.unsqueeze(1).to(memory_format=torch.channels_last)
        each = self.layers(flat).unflatten(-1, (self.opinions, self.kinds))
        return each.softmax(-1).flatten(-2)


class PlaceSum(nn.Module):
    r"""Adds up what the places of a number say.

    $$o = \sum_p e^{3 g_p}\, W_p^\top k_p$$

    where $k_p$ are the kinds of the digit in place p. Places differ by orders of magnitude, and the
    exponential lets an optimiser with steps of fixed size get there.

    Args:
        places: Digits per number.
        kinds: Kinds of digit.
        outputs: Numbers per image.
    """

    def __init__(self, places: int, kinds: int, outputs: int) -> None:
        super().__init__()
        self.weights = nn.Parameter(torch.randn(places, kinds, outputs))
        self.gains = nn.Parameter(torch.zeros(places, 1, 1))

    def forward(self, kinds: Tensor) -> Tensor:
        """`(..., l, kinds) -> (..., outputs)`."""
        # Never in bfloat16, which cannot tell numbers of four digits apart.
        with torch.autocast(kinds.device.type, enabled=False):
            weights = self.weights * (3 * self.gains).exp()
            return torch.einsum("...pk,pko->...o", kinds.to(weights.dtype), weights)


class Gain(nn.Module):
    """Multiplies by one learned number, so that values become scores of the right scale.

    Args:
        outputs: Numbers per image, as many as come in.
    """

    def __init__(self, outputs: int) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.zeros(()))

    def forward(self, values: Tensor) -> Tensor:
        """`(..., outputs) -> (..., outputs)`."""
        return values * (3 * self.gain).exp()


def _large(height: int, width: int) -> tuple[list[nn.Module], int]:
    """Features of digits of 28 x 28 or so, and how many.

    Nearly all the time of a study goes into these. So each convolution has its pooling right behind
    it: what is normalised then is a quarter as much. The border of a digit is empty, and is left
    out.
    """
    layers = [
        nn.Conv2d(1, 32, 5, 2, bias=False),
        nn.MaxPool2d(2),
        nn.BatchNorm2d(32),
        nn.ReLU(),
        nn.Conv2d(32, 64, 3, padding=1, bias=False),
        nn.MaxPool2d(2),
        nn.BatchNorm2d(64),
        nn.ReLU(),
    ]
    down, right = ((side - 3) // 8 for side in (height, width))
    return layers, 64 * down * right


def _small(height: int, width: int) -> tuple[list[nn.Module], int]:
    """Features of digits of 8 x 8 or so, and how many."""
    layers = [
        *convolution(1, 16, kernel=5, stride=1),
        *convolution(16, 32, kernel=3, stride=2),
        *convolution(32, 64, kernel=3, stride=1),
        nn.MaxPool2d(2),
    ]
    return layers, 64 * (height // 4) * (width // 4)


def convolution(inputs: int, outputs: int, kernel: int = 3, stride: int = 1) -> list[nn.Module]:
    """A convolution, batch normalisation, rectification."""
    layer = nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, bias=False)
    return [layer, nn.BatchNorm2d(outputs), nn.ReLU()]


def channels_last(layers: nn.Module) -> nn.Module:
    """The same layers, for images whose channels lie side by side in memory: faster on CPUs."""
    # torch's stubs do not know this use of `to`.
    return layers.to(memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue]
