"""How the numbers of an image lie in memory."""

import torch
from torch import nn


def channels_last(layers: nn.Module) -> nn.Module:
    """The same layers, for images whose channels lie side by side: faster on CPUs."""
    # torch's stubs do not know this use of `to`.
    return layers.to(memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue]
