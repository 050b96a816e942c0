"""The default embedding: a network that starts as the features themselves."""

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
