"""Networks that embed images for nearest neighbours."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .readers import channels_last, convolution


class PrincipalComponents(nn.Module):
    """The leading principal components of images.

    Args:
        size: Numbers per image.
        components: How many to keep.
    """

    mean: Tensor
    directions: Tensor

    def __init__(self, size: int, components: int = 50) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(size))
        self.register_buffer("directions", torch.zeros(size, components))

    def fit(self, images: Tensor) -> "PrincipalComponents":
        """Takes the directions of largest variance from images `(N, ...)`."""
        from sklearn.decomposition import PCA

        flat = images.flatten(1)
        # The covariance in float64: exact, and quicker than what would be chosen for large data.
        kind = PCA(self.directions.shape[1], svd_solver="covariance_eigh")
        found: Any = kind.fit(flat.double().numpy())
        self.mean.copy_(torch.from_numpy(found.mean_))
        self.directions.copy_(torch.from_numpy(found.components_.T))
        return self

    def forward(self, images: Tensor) -> Tensor:
        """`(B, channels, height, width) -> (B, components)`."""
        return (images.flatten(1) - self.mean) @ self.directions


class PaperEmbedding(nn.Module):
    """The paper's network for MNIST: 5 x 5 convolutions of 20 and 50 channels, 500 units.

    Args:
        channels: Of the images.
        height: Of the square images; those of fewer than 16 pixels are padded by 4.
    """

    outputs = 500

    def __init__(self, channels: int, height: int) -> None:
        super().__init__()
        self.margin = 0 if height >= 16 else 4
        side = ((height + 2 * self.margin - 4) // 2 - 4) // 2
        self.layers = nn.Sequential(
            nn.Conv2d(channels, 20, 5),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(20, 50, 5),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(50 * side * side, self.outputs),
            nn.ReLU(),
        )

    def forward(self, images: Tensor) -> Tensor:
        """`(B, channels, height, height) -> (B, 500)`."""
        return self.layers(F.pad(images, (self.margin,) * 4))


class ResNet18(nn.Module):
    """ResNet18 for small images: a 3 x 3 stem, four stages of two blocks, mean over the image.

    Args:
        channels: Of the images.
        height: Of the square images; any will do.
    """

    outputs = 512

    def __init__(self, channels: int, height: int) -> None:
        super().__init__()
        stages = []
        inputs = 64
        for outputs, stride in ((64, 1), (128, 2), (256, 2), (512, 2)):
            stages += [_Block(inputs, outputs, stride), _Block(outputs, outputs, 1)]
            inputs = outputs
        self.layers = channels_last(
            nn.Sequential(
                *convolution(channels, 64), *stages, nn.AdaptiveAvgPool2d(1), nn.Flatten()
            )
        )

    def forward(self, images: Tensor) -> Tensor:
        """`(B, channels, height, width) -> (B, 512)`."""
        return self.layers(images.to(memory_format=torch.channels_last))


class _Block(nn.Module):
    """Two convolutions and a shortcut."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Sequential(*convolution(inputs, outputs, stride=stride))
        self.second = nn.Sequential(*convolution(outputs, outputs)[:-1])
        self.shortcut = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Sequential(
                nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs)
            )

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.second(self.first(x)) + self.shortcut(x))


class SmallNetwork(nn.Module):
    """Seven convolutions for two cores: patches made white, three pairs, points on a sphere.

    After K. Jordan, 94% on CIFAR-10 in 3.29 Seconds on a Single GPU, 2024: a first layer whose
    weights are computed from the images and not learned, pooling right behind a convolution, and
    convolutions that begin by passing on what comes in.

    Args:
        channels: Of the images.
        height: Of the square images; small ones are pooled less often.
        width: Half the channels of the first pair, doubled for each of the others.
        outputs: Numbers per image.
    """

    def __init__(self, channels: int, height: int, width: int, outputs: int = 64) -> None:
        super().__init__()
        self.outputs = outputs
        self.white = Whitening(channels)
        layers: list[nn.Module] = [nn.ReLU()]
        inputs, side = self.white.outputs, height - 1
        for wide in (2 * width, 4 * width, 8 * width):
            pool = 2 if side >= 4 else 1
            layers += [*_passing(inputs, wide, pool), *_passing(wide, wide)]
            inputs, side = wide, side // pool
        layers += [nn.AdaptiveMaxPool2d(1), nn.Flatten(), nn.Linear(inputs, outputs, bias=False)]
        self.layers = channels_last(nn.Sequential(*layers))

    def forward(self, images: Tensor) -> Tensor:
        """`(B, channels, height, height) -> (B, outputs)`, of length 1."""
        white = self.white(images.to(memory_format=torch.channels_last))
        return F.normalize(self.layers(white), dim=-1)


class Whitening(nn.Module):
    """Patches of 2 x 2 pixels as uncorrelated numbers that vary equally, each with both signs.

    Args:
        channels: Of the images.
        least: Added to variances, so that noise is not blown up.
    """

    weight: Tensor

    def __init__(self, channels: int, least: float = 3e-5) -> None:
        super().__init__()
        size = 4 * channels
        self.outputs, self.least = 2 * size, least
        self.register_buffer("weight", self._both(torch.eye(size), channels))
        self.bias = nn.Parameter(torch.zeros(self.outputs))

    def fit(self, images: Tensor) -> None:
        """Takes the directions, and how much patches vary along them, from images."""
        patches = F.unfold(images, 2).movedim(1, 0).flatten(1)
        variances, directions = torch.linalg.eigh(patches.cov().double())
        white = (directions / (variances.clamp_min(0) + self.least).sqrt()).T
        self.weight.copy_(self._both(white, images.shape[1]))

    @staticmethod
    def _both(directions: Tensor, channels: int) -> Tensor:
        return torch.cat((directions, -directions)).view(-1, channels, 2, 2)

    def forward(self, images: Tensor) -> Tensor:
        """`(B, channels, height, width) -> (B, 8 channels, height - 1, width - 1)`."""
        return F.conv2d(images, self.weight, self.bias)

    def extra_repr(self) -> str:
        return f"outputs={self.outputs}, least={self.least:g}"


def _passing(inputs: int, outputs: int, pool: int = 1) -> list[nn.Module]:
    """A convolution that passes on its inputs at first, pooled before it is normalised."""
    first = nn.Conv2d(inputs, outputs, 3, padding=1, bias=False)
    with torch.no_grad():
        nn.init.dirac_(first.weight[:inputs])
    pooling = [nn.MaxPool2d(pool)] if pool > 1 else []
    return [first, *pooling, nn.BatchNorm2d(outputs), nn.ReLU()]


class DenseAutoencoder(nn.Module):
    """The paper's autoencoder for MNIST and Fashion-MNIST: 500, 500, 50 and back.

    Args:
        size: Pixels of an image.
    """

    def __init__(self, size: int) -> None:
        super().__init__()

        def layers(*widths: int) -> list[nn.Module]:
            pairs = zip(widths, widths[1:], strict=False)
            return [one for a, b in pairs for one in (nn.Linear(a, b), nn.ReLU())]

        self.encoder = nn.Sequential(nn.Flatten(), *layers(size, 500, 500, 50))
        self.decoder = nn.Sequential(*layers(50, 500, 500), nn.Linear(500, size), nn.Sigmoid())

    def forward(self, images: Tensor) -> Tensor:
        """Images, through the encoding and back."""
        return self.decoder(self.encoder(images)).view(images.shape)


class ConvolutionalAutoencoder(nn.Module):
    """The paper's autoencoder for CIFAR-10: down to 16 channels of 4 x 4 and back."""

    def __init__(self) -> None:
        super().__init__()

        def up(inputs: int, outputs: int) -> list[nn.Module]:
            return [*convolution(inputs, outputs), nn.Upsample(scale_factor=2)]

        self.encoder = nn.Sequential(
            nn.Conv2d(3, 64, 3, padding=1),
            nn.ReLU(),
            nn.MaxPool2d(2),
            *convolution(64, 32),
            nn.MaxPool2d(2),
            *convolution(32, 16),
            nn.MaxPool2d(2),
        )
        self.decoder = nn.Sequential(
            *up(16, 16),
            *up(16, 32),
            *up(32, 64),
            nn.Conv2d(64, 3, 3, padding=1, bias=False),
            nn.BatchNorm2d(3),
            nn.Sigmoid(),
        )

    def forward(self, images: Tensor) -> Tensor:
        """Images, through the encoding and back."""
        return self.decoder(self.encoder(images))
