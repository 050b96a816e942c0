"""Layers of sorting networks: which wires are compared, and what a layer does to a payload."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..gradients import is_traced_for_second_derivatives


@dataclass(frozen=True)
class Layer:
    """Wires `start:stop`, compared in pairs at a distance."""

    start: int
    stop: int
    distance: int
    longer: int  # lists of so few items are in order before this layer
    rising: int = 0  # runs of so many wires are sorted up and down in turn; 0: all upwards

    def split(self, x: Tensor, dim: int) -> tuple[Tensor, Tensor]:
        """First and second wires of all pairs, `(runs, distance)` in place of `dim` < 0."""
        pairs = x.narrow(dim, self.start, self.stop - self.start)
        pairs = pairs.unflatten(dim, ((self.stop - self.start) // (2 * self.distance), 2, -1))
        return pairs.select(dim - 1, 0), pairs.select(dim - 1, 1)

    def join(self, x: Tensor, first: Tensor, second: Tensor, dim: int = -1) -> Tensor:
        """`x` with other values on the first and second wires of all pairs."""
        pairs = torch.stack([first, second], dim - 1).flatten(dim - 2, dim)
        end = x.shape[dim] - self.stop
        if not self.start and not end:
            return pairs
        return torch.cat([x.narrow(dim, 0, self.start), pairs, x.narrow(dim, self.stop, end)], dim)

    def directions(self, spare: Tensor, dtype: torch.dtype) -> Tensor | None:
        """1 for runs of pairs that are sorted upwards, -1 for others: `(..., runs, 1)`.

        Empty wires stand for the smallest values, and are in front. They stay there only if the run
        in which they end is sorted upwards: runs take turns from that one on.

        Args:
            spare: `(..., 1)`. How many wires are empty.
            dtype: Of what comes out.

        Returns:
            Directions; None if all are 1.
        """
        if self.rising in (0, self.stop - self.start):
            return None
        first = torch.arange(self.start, self.stop, 2 * self.distance, device=spare.device)
        turns = first // self.rising + spare // self.rising  # (..., runs)
        return (1 - 2 * (turns % 2)).to(dtype).unsqueeze(-1)


def odd_even(n: int) -> list[Layer]:
    """Neighbours, from the first and from the second wire in turn."""
    ends = [(i % 2, i % 2 + (n - i % 2) // 2 * 2) for i in range(n)]
    return [Layer(a, b, 1, longer=i) for i, (a, b) in enumerate(ends) if a < b]


def bitonic(n: int) -> list[Layer]:
    """Runs of 1, 2, 4, ... wires merged in pairs, one upwards and the next downwards.

    Pairs are those of the next power of two; with fewer items some wires are empty.
    """
    layers = []
    run = 1
    while run < n:
        distance = run
        while distance:
            layers.append(Layer(0, next_power(n), distance, longer=run, rising=2 * run))
            distance //= 2
        run *= 2
    return layers


def next_power(n: int) -> int:
    """The next power of two."""
    return 1 << (n - 1).bit_length() if n else 0


class _Mix(torch.autograd.Function):
    """One layer at work: `apply(x, share, layer)` for `(..., wires, d)`, `(..., runs, distance)`.

    A layer is a symmetric matrix, so the gradient passes it as values do.
    """

    @staticmethod
    def forward(x: Tensor, share: Tensor, layer: Layer) -> Tensor:
        a, b = layer.split(x, -2)
        share = share.to(x.dtype).unsqueeze(-1)
        return layer.join(x, torch.lerp(a, b, share), torch.lerp(b, a, share), -2)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple, output: Tensor) -> None:
        ctx.save_for_backward(inputs[0], inputs[1])
        ctx.layer = inputs[2]

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple:  # pyright: ignore
        x, share = ctx.saved_tensors
        to_x = _Mix.apply(grad, share, ctx.layer) if ctx.needs_input_grad[0] else None
        (a, b), (to_a, to_b) = ctx.layer.split(x, -2), ctx.layer.split(grad, -2)
        # In eighths, since differences of large numbers may overflow: shares are longer numbers.
        eighth = torch.linalg.vecdot(to_a - to_b, b / 8 - a / 8)
        return to_x, 8 * eighth.to(share.dtype), None

    @staticmethod
    def vmap(info: Any, in_dims: tuple, x: Tensor, share: Tensor, layer: Layer) -> tuple:
        x, share = (
            t.movedim(d, 0) if d is not None else t.expand(info.batch_size, *t.shape)
            for t, d in zip((x, share), in_dims, strict=False)
        )
        return _Mix.apply(x, share, layer), 0  # pyright: ignore


def mix(x: Tensor, share: Tensor, layer: Layer) -> Tensor:
    """Swaps pairs of wires of x `(..., wires, d)` by shares `(..., runs, distance)`."""
    batch = torch.broadcast_shapes(x.shape[:-2], share.shape[:-2])
    x, share = x.expand(*batch, *x.shape[-2:]), share.expand(*batch, *share.shape[-2:])
    work = _Mix.forward if is_traced_for_second_derivatives() else _Mix.apply
    return work(x, share, layer)  # pyright: ignore
