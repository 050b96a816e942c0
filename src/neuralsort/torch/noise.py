"""Random numbers: one place decides how Gumbel noise is drawn."""

import torch
from torch import Tensor

from .arrays import longest


def gumbel(
    shape: torch.Size | tuple[int, ...],
    *,
    device: torch.device | None = None,
    generator: torch.Generator | None = None,
) -> Tensor:
    r"""Standard Gumbel noise, $-\log E$ with $E \sim \text{Exponential}(1)$, in float64.

    Drawn long whatever it is added to: float32 exponentials come in steps of 6e-8, which among a
    million items ties the smallest of them, and these decide who comes first.

    Args:
        shape: Of the noise; every entry is a draw of its own.
        device: Where to draw.
        generator: Source of randomness; the global one if None.

    Returns:
        Independent draws, all finite.
    """
    return exponential(shape, device=device, generator=generator).log().neg()


def exponential(
    shape: torch.Size | tuple[int, ...],
    *,
    device: torch.device | None = None,
    generator: torch.Generator | None = None,
) -> Tensor:
    """Standard exponential noise in the longest dtype of the device, never exactly 0."""
    dtype = longest(torch.device("cpu" if device is None else device))
    draws = torch.empty(shape, dtype=dtype, device=device)
    try:
        draws = draws.exponential_(generator=generator)
    except RuntimeError:
        # Of `vmap` with other noise for every call: only what is made at random has room for it.
        draws = torch.rand(shape, dtype=dtype, device=device, generator=generator)
        draws = draws.exponential_(generator=generator)
    return draws.clamp(min=torch.finfo(draws.dtype).tiny)
