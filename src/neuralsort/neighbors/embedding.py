"""Embeddings: the default network, which starts as the features themselves, and points in any."""

import numpy as np
import torch
from torch import Tensor, nn


class ResidualMLP(nn.Module):
    r"""A linear map plus a small network, which at the start change nothing.

    $$h(x) = W \tilde x + V\, \text{relu}(U \tilde x), \qquad \tilde x = (x - \mu) / \sigma$$

    $W$ starts as the identity and $V$ as 0, so that training starts from the neighbours in the
    space of the features. $\mu$ is the mean of the training points and $\sigma$ one number, their
    typical deviation: distances keep their proportions.

    Args:
        features: Of a point.
        hidden: Units of the network.
        dropout: Share of the units left out in training.
    """

    mean: Tensor
    scale: Tensor

    def __init__(self, features: int, *, hidden: int = 256, dropout: float = 0.2) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(features))
        self.register_buffer("scale", torch.ones(()))
        self.linear = nn.Linear(features, features, bias=False)
        last = nn.Linear(hidden, features, bias=False)
        self.network = nn.Sequential(
            nn.Linear(features, hidden), nn.ReLU(), nn.Dropout(dropout), last
        )
        nn.init.eye_(self.linear.weight)
        nn.init.zeros_(last.weight)

    @torch.no_grad()
    def standardize(self, points: Tensor) -> None:
        """Takes mean and deviation from training points `(m, features)`."""
        self.mean.copy_(points.mean(0))
        deviation = (points - self.mean).double().square().mean().sqrt()
        self.scale.copy_(torch.where(deviation > 0, deviation, torch.ones_like(deviation)))

    def forward(self, x: Tensor) -> Tensor:
        """`(m, features) -> (m, features)`."""
        x = (x - self.mean) / self.scale
        return self.linear(x) + self.network(x)


def available(device: str) -> torch.device:
    """A device that is there.

    Raises:
        ValueError: If it is not, or torch does not know the name.
    """
    try:
        torch.empty(0, device=device)
    except (AssertionError, RuntimeError) as error:
        reason = str(error).splitlines()[0].rstrip(".")
        raise ValueError(
            f"device={device!r} cannot be used here: {reason}. Use one that is, such as 'cpu'; "
            "`load` takes it as well."
        ) from None
    return torch.device(device)


@torch.no_grad()
def embedded(
    network: nn.Module, points: Tensor, device: str | torch.device, dtype: torch.dtype
) -> np.ndarray:
    """Points in the space of a network.

    Args:
        network: Takes `(m, ...)`; what it gives is flattened.
        points: `(m, ...)`.
        device: Where the network is.
        dtype: Its precision.

    Returns:
        `(m, d)`. Half precision comes as float32.

    Raises:
        ValueError: If some of it is not finite.
    """
    network.eval()
    parts = [  # of copies: the network may write to what it is given
        network(part.to(device, dtype, copy=True)).flatten(1).cpu() for part in points.split(1024)
    ]
    found = torch.cat(parts)
    if not found.isfinite().all():
        raise ValueError(
            "The embedding of some points is not finite. If training diverged, lower "
            "`learning_rate`; else see what `embedding` does to these points."
        )
    return (found.float() if found.dtype.itemsize < 4 else found).numpy()


@torch.no_grad()
def embedded_features(network: nn.Module, points: Tensor) -> int:
    """How many numbers a network makes of each of a few points.

    Args:
        network: To be trained.
        points: `(m, ...)`, where the network is.

    Raises:
        ValueError: If it does not take the points, or gives no tensor with a row for each.
    """
    try:
        found = network.eval()(points.clone())
    except (RuntimeError, TypeError, ValueError) as error:
        raise ValueError(
            f"`embedding` does not take points of shape {tuple(points.shape)}: {error}. Give a "
            "module from (m, ...) to (m, d)."
        ) from error
    if not isinstance(found, Tensor) or found.dim() < 2 or len(found) != len(points):
        came = tuple(found.shape) if isinstance(found, Tensor) else type(found).__name__
        raise ValueError(
            f"`embedding` must give a tensor (m, d), got {came} for points of shape "
            f"{tuple(points.shape)}. Give a module with one row for each point."
        )
    return found.flatten(1).shape[1]
