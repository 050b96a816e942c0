"""Layers of sorting networks: which wires are compared, and what a layer does to a payload."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from ..arrays import plain
from ..gradients import is_traced_for_second_derivatives


@dataclass(frozen=True)
class Swap:
    """By how much a pair swaps that is out of order by v temperatures.

    Attributes:
        share: Of v.
        slope: How fast the share grows with v; of v and the share as it was rounded, so that the
            slope is that of what is used.
    """

    share: Callable[[Tensor], Tensor]
    slope: Callable[[Tensor, Tensor], Tensor]


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

    def blended(self, x: Tensor, share: Tensor, dim: int) -> Tensor:
        """`x` with every pair mixed by its share: `(..., runs, distance)`, or so before `dim`."""
        a, b = self.split(x, dim)
        if not self._covers(x, dim) or not _is_eager(x, share):
            return self.join(x, torch.lerp(a, b, share), torch.lerp(b, a, share), dim)
        mixed = x.new_empty(x.shape)  # written where it is to stand, which saves a copy
        first, second = self.split(mixed, dim)
        torch.lerp(a, b, share, out=first)
        torch.lerp(b, a, share, out=second)
        return mixed

    def _covers(self, x: Tensor, dim: int) -> bool:
        """Whether every wire is in a pair."""
        return not self.start and x.shape[dim] == self.stop

    def directed(self, wrong: Tensor, spare: int) -> Tensor:
        """Turns the signs of `(..., runs, distance)` in runs that are sorted downwards, in place.

        Args:
            wrong: By how much pairs are in the wrong order, if all runs were sorted upwards.
            spare: How many wires are empty, as in `directions`.
        """
        if self.rising not in (0, self.stop - self.start):
            count = (self.stop - self.start) // self.rising
            turns = torch.arange(count, device=wrong.device) + spare // self.rising
            signs = (1 - 2 * (turns % 2)).to(wrong.dtype)
            wrong.unflatten(-2, (count, -1)).mul_(signs.view(-1, 1, 1))
        return wrong

    def emptied(self, share: Tensor, spare: int) -> Tensor:
        """Sets `(..., runs, distance)` to 0, in place, where the first wire of a pair is empty."""
        runs, rest = divmod(spare, 2 * self.distance)
        share[..., :runs, :] = 0
        if rest:
            share[..., runs, : min(rest, self.distance)] = 0
        return share

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


def _is_eager(*tensors: Tensor) -> bool:
    """Whether operations may write into given memory: no gradients, nothing is traced."""
    return not torch.is_grad_enabled() and all(plain(one) for one in tensors)


def compare(x: Tensor, layer: Layer, swap: Swap, spare: int) -> tuple[Tensor, Tensor] | None:
    """Compares the pairs of a layer. The first `spare` wires are empty, the others have an item.

    Returns:
        Shares `(..., runs, distance)` by which pairs swap, and what stands on the wires then; None
        where this takes the operations one by one: compiled, on other devices, with tangents, or
        if some wires are in no pair.
    """
    if not plain(x) or forward_ad._current_level >= 0 or not layer._covers(x, -1):
        return None
    return _Compare.apply(x, layer, swap, spare)  # pyright: ignore


class _Compare(torch.autograd.Function):
    """`compare` in few passes over memory, keeping wires and shares alone."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, layer: Layer, swap: Swap, spare: int) -> tuple:
        a, b = layer.split(x, -1)
        share = layer.emptied(swap.share(layer.directed(a - b, spare)), spare)
        ctx.layer, ctx.swap, ctx.spare = layer, swap, spare
        ctx.save_for_backward(x, share)
        ctx.set_materialize_grads(False)
        return share, layer.blended(x, share, -1)

    @staticmethod
    def backward(ctx: Any, to_share: Tensor | None, grad: Tensor | None) -> tuple:  # pyright: ignore
        x, share = ctx.saved_tensors
        layer, spare = ctx.layer, ctx.spare
        if to_share is None and grad is None:
            return None, None, None, None
        if torch.is_grad_enabled() or not _in_memory(to_share, grad):
            return _compared_again(x, layer, ctx.swap, spare, to_share, grad), None, None, None
        a, b = layer.split(x, -1)
        wrong = a - b
        slope = layer.emptied(ctx.swap.slope(layer.directed(wrong.clone(), spare), share), spare)
        if grad is None:
            to_wrong = layer.directed(slope.mul_(to_share), spare)
            return layer.join(x, to_wrong, -to_wrong), None, None, None
        to_a, to_b = layer.split(grad, -1)
        through = (to_b - to_a).mul_(wrong)
        if to_share is not None:
            through += to_share
        to_wrong = layer.directed(slope.mul_(through), spare)
        to_x = layer.blended(grad, share, -1)  # a layer is symmetric
        to_a, to_b = layer.split(to_x, -1)
        to_a += to_wrong
        to_b -= to_wrong
        return to_x, None, None, None


def _in_memory(*tensors: Tensor | None) -> bool:
    """Whether tensors have memory of their own; gradients that torch maps in batches have none."""
    try:
        return all(one.data_ptr() is not None for one in tensors if one is not None)
    except RuntimeError:
        return False


def _compared_again(
    x: Tensor, layer: Layer, swap: Swap, spare: int, *grads: Tensor | None
) -> Tensor:
    """The gradient of `compare`, by operations that torch can differentiate and map."""
    again = torch.is_grad_enabled()
    with torch.enable_grad():
        a, b = layer.split(x, -1)
        share = swap.share(layer.directed(a - b, spare))  # of a difference torch keeps nothing
        share = share * layer.emptied(torch.ones_like(share), spare)
        both = (share, layer.join(x, torch.lerp(a, b, share), torch.lerp(b, a, share)))
    asked = [(one, grad) for one, grad in zip(both, grads, strict=True) if grad is not None]
    outputs, grads = zip(*asked, strict=True)
    return torch.autograd.grad(outputs, x, grads, create_graph=again)[0]


class _Mix(torch.autograd.Function):
    """One layer at work: `apply(x, share, layer)` for `(..., wires, d)`, `(..., runs, distance)`.

    A layer is a symmetric matrix, so the gradient passes it as values do.
    """

    @staticmethod
    def forward(x: Tensor, share: Tensor, layer: Layer) -> Tensor:
        return layer.blended(x, share.to(x.dtype).unsqueeze(-1), -2)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple, output: Tensor) -> None:
        ctx.save_for_backward(inputs[0], inputs[1])
        ctx.layer = inputs[2]

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple:  # pyright: ignore
        x, share = ctx.saved_tensors
        to_x = _Mix.apply(grad, share, ctx.layer) if ctx.needs_input_grad[0] else None
        (a, b), (to_a, to_b) = ctx.layer.split(x, -2), ctx.layer.split(grad, -2)
        # In eighths, since products with large numbers may overflow; the shares are in float64.
        eighth = _vecdot((to_a - to_b).mul_(0.125), b - a)
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


def _vecdot(x: Tensor, y: Tensor) -> Tensor:
    """`torch.linalg.vecdot`, without its sum where there is but one column."""
    return (x * y).squeeze(-1) if x.shape[-1] == 1 else torch.linalg.vecdot(x, y)
