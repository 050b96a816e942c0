"""Layers of sorting networks: which wires are compared, and what a layer does to a payload."""

from collections.abc import Callable, Sequence
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
        if not _is_eager(x, share):
            return self.join(x, torch.lerp(a, b, share), torch.lerp(b, a, share), dim)
        # Written where it is to stand, which saves copies; wires in no pair stay as they are.
        covered = not self.start and x.shape[dim] == self.stop
        mixed = x.new_empty(x.shape) if covered else x.clone(memory_format=torch.contiguous_format)
        first, second = self.split(mixed, dim)
        torch.lerp(a, b, share, out=first)
        torch.lerp(b, a, share, out=second)
        return mixed

    def directed(self, wrong: Tensor, spare: int) -> Tensor:
        """Turns the signs of `(..., runs, distance)` in runs that are sorted downwards, in place.

        Args:
            wrong: By how much pairs are in the wrong order, if all runs were sorted upwards.
            spare: How many wires are empty, as in `directions`.
        """
        if self.rising not in (0, self.stop - self.start):
            runs = wrong.unflatten(-2, ((self.stop - self.start) // self.rising, -1))
            runs[..., (spare // self.rising + 1) % 2 :: 2, :, :].neg_()  # every second one
        return wrong

    def emptied(self, share: Tensor, spare: int) -> Tensor:
        """Sets `(..., runs, distance)` to 0, in place, where the first wire of a pair is empty."""
        runs, rest = divmod(spare, 2 * self.distance)
        if runs:
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
    """Whether operations may write into given memory: no derivatives, nothing is traced."""
    return not _learns(*tensors) and not _has_tangents() and all(plain(one) for one in tensors)


def _learns(*tensors: Tensor) -> bool:
    """Whether gradients may be asked for."""
    return torch.is_grad_enabled() and any(one.requires_grad for one in tensors)


def _has_tangents() -> bool:
    """Whether derivatives may be taken forwards."""
    return forward_ad._current_level >= 0


def compare(x: Tensor, layers: list[Layer], swap: Swap, spare: int) -> tuple[Tensor, ...] | None:
    """Compares pairs layer by layer. The first `spare` wires are empty, the others have an item.

    Returns:
        Shares `(..., runs, distance)` by which the pairs of each layer swap; None where this takes
        the operations one by one: compiled, on other devices, with tangents.
    """
    if not plain(x) or _has_tangents():
        return None
    if not _learns(x):
        return tuple(_compared(x, layers, swap, spare))
    return _Compare.apply(x, layers, swap, spare)  # pyright: ignore


def _compared(
    x: Tensor, layers: list[Layer], swap: Swap, spare: int, wires: list[Tensor] | None = None
) -> list[Tensor]:
    """The shares of all layers; `wires` gets what stands on the wires before each of them."""
    shares = []
    for layer in layers:
        if shares:
            x = layers[len(shares) - 1].blended(x, shares[-1], -1)
        a, b = layer.split(x, -1)
        shares.append(layer.emptied(swap.share(layer.directed(a - b, spare)), spare))
        if wires is not None:
            wires.append(x)
    return shares


class _Compare(torch.autograd.Function):
    """`compare` in few passes over memory, keeping wires and shares alone."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, layers: list[Layer], swap: Swap, spare: int) -> tuple:
        wires = []
        shares = _compared(x, layers, swap, spare, wires)
        ctx.layers, ctx.swap, ctx.spare = layers, swap, spare
        ctx.save_for_backward(*wires, *shares)
        ctx.set_materialize_grads(False)
        return tuple(shares)

    @staticmethod
    def backward(ctx: Any, *to_shares: Tensor | None) -> tuple:  # pyright: ignore
        layers, swap, spare = ctx.layers, ctx.swap, ctx.spare
        kept = list(ctx.saved_tensors)
        ctx.maybe_clear_saved_tensors()  # so that each is gone once it has served
        wires, shares = kept[: len(layers)], kept[len(layers) :]
        del kept
        if torch.is_grad_enabled() or not _in_memory(*to_shares):
            return _compared_again(wires[0], layers, swap, spare, to_shares), None, None, None
        grad = None  # of what stands on the wires behind a layer
        for layer, to_share in zip(reversed(layers), reversed(to_shares), strict=True):
            x, share = wires.pop(), shares.pop()
            if grad is None and to_share is None:
                continue
            a, b = layer.split(x, -1)
            wrong = a - b
            slope = swap.slope(layer.directed(wrong.clone(), spare), share)
            slope = layer.emptied(slope, spare)
            if grad is None:
                to_wrong = layer.directed(slope.mul_(to_share), spare)
                grad = layer.join(torch.zeros_like(x), to_wrong, -to_wrong)
                continue
            to_a, to_b = layer.split(grad, -1)
            # The slope first: that of a pair far apart is 0, and the rest might overflow.
            to_wrong = wrong.mul_(slope).mul_(to_b - to_a)
            if to_share is not None:
                to_wrong.addcmul_(slope, to_share)
            to_wrong = layer.directed(to_wrong, spare)
            grad = layer.blended(grad, share, -1)  # a layer is symmetric
            to_a, to_b = layer.split(grad, -1)
            to_a += to_wrong
            to_b -= to_wrong
        return grad, None, None, None


def _in_memory(*tensors: Tensor | None) -> bool:
    """Whether tensors have memory of their own; gradients that torch maps in batches have none."""
    try:
        return all(one.data_ptr() is not None for one in tensors if one is not None)
    except RuntimeError:
        return False


def _compared_again(
    x: Tensor, layers: list[Layer], swap: Swap, spare: int, to_shares: tuple[Tensor | None, ...]
) -> Tensor | None:
    """The gradient of `compare`, by operations that torch can differentiate and map."""
    again = torch.is_grad_enabled()
    shares, wires = [], x
    with torch.enable_grad():
        for layer in layers:
            a, b = layer.split(wires, -1)
            share = swap.share(layer.directed(a - b, spare))  # of a difference torch keeps nothing
            share = share * layer.emptied(torch.ones_like(share), spare)
            wires = layer.join(wires, torch.lerp(a, b, share), torch.lerp(b, a, share))
            shares.append(share)
    asked = [(s, to) for s, to in zip(shares, to_shares, strict=True) if to is not None]
    if not asked:
        return None
    outputs, grads = zip(*asked, strict=True)
    return torch.autograd.grad(outputs, x, grads, create_graph=again)[0]


def mix(x: Tensor, shares: Sequence[Tensor], layers: Sequence[Layer]) -> Tensor:
    """Swaps pairs of wires of x `(..., wires, d)`, layer by layer.

    Args:
        x: What stands on the wires.
        shares: `(..., runs, distance)` for each layer.
        layers: As many.
    """
    batch = x.shape[:-2]
    if any(share.shape[:-2] != batch for share in shares):
        batch = torch.broadcast_shapes(batch, *(share.shape[:-2] for share in shares))
        x = x.expand(*batch, *x.shape[-2:])
        shares = [share.expand(*batch, *share.shape[-2:]) for share in shares]
    if layers and plain(x) and not _has_tangents() and _learns(x, *shares):
        return _MixAll.apply(x, layers, *shares)  # pyright: ignore
    return _mixed(x, shares, layers)


def _mixed(x: Tensor, shares: Sequence[Tensor], layers: Sequence[Layer]) -> Tensor:
    """`mix` by operations that torch can compile, differentiate and map."""
    operations = is_traced_for_second_derivatives() or _has_tangents() or not _learns(x, *shares)
    work = _Mix.forward if operations else _Mix.apply
    for share, layer in zip(shares, layers, strict=True):
        x = work(x, share, layer)  # pyright: ignore
    return x


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
        return to_x, _to_share(x, grad, ctx.layer, share.dtype), None

    @staticmethod
    def vmap(info: Any, in_dims: tuple, x: Tensor, share: Tensor, layer: Layer) -> tuple:
        x, share = (
            t.movedim(d, 0) if d is not None else t.expand(info.batch_size, *t.shape)
            for t, d in zip((x, share), in_dims, strict=False)
        )
        return _Mix.apply(x, share, layer), 0  # pyright: ignore


class _MixAll(torch.autograd.Function):
    """All layers at work, `apply(x, layers, *shares)`: of many short lists twice as fast."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, layers: Sequence[Layer], *shares: Tensor) -> Tensor:
        wires = []
        for layer, share in zip(layers, shares, strict=True):
            wires.append(x)
            x = _Mix.forward(x, share, layer)
        ctx.layers = layers
        ctx.save_for_backward(*wires, *shares)
        return x

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple:  # pyright: ignore
        kept = list(ctx.saved_tensors)
        ctx.maybe_clear_saved_tensors()  # so that each is gone once it has served
        layers = ctx.layers
        wires, shares = kept[: len(layers)], kept[len(layers) :]
        del kept
        if torch.is_grad_enabled() or not _in_memory(grad):
            to_x, *to_shares = _mixed_again(wires[0], shares, layers, grad, ctx.needs_input_grad)
            return to_x, None, *to_shares
        to_shares = []
        for layer in reversed(layers):
            x, share = wires.pop(), shares.pop()
            to_shares.append(_to_share(x, grad, layer, share.dtype))
            if wires or ctx.needs_input_grad[0]:
                grad = _Mix.forward(grad, share, layer)
        return grad if ctx.needs_input_grad[0] else None, None, *reversed(to_shares)


def _mixed_again(
    x: Tensor, shares: list[Tensor], layers: Sequence[Layer], grad: Tensor, needed: tuple
) -> tuple:
    """The gradients of `_MixAll`, by operations that torch can differentiate and map."""
    again = torch.is_grad_enabled()
    with torch.enable_grad():
        # Views, so that what depends on another of these stays apart from it: the shares of a layer
        # may be made of those before.
        inputs = x, *shares = [one.view_as(one) for one in (x, *shares)]
        mixed = _mixed(x, shares, layers)
    asked = [i for i, need in enumerate((needed[0], *needed[2:])) if need]
    found = torch.autograd.grad(mixed, [inputs[i] for i in asked], grad, create_graph=again)
    grads = dict(zip(asked, found, strict=True))
    return tuple(grads.get(i) for i in range(len(inputs)))


def _to_share(x: Tensor, grad: Tensor, layer: Layer, dtype: torch.dtype) -> Tensor:
    """The gradient to the shares of a layer, `(..., runs, distance)`."""
    (a, b), (to_a, to_b) = layer.split(x, -2), layer.split(grad, -2)
    # In eighths, since products with large numbers may overflow; the shares are in float64.
    return 8 * _vecdot((to_a - to_b).mul_(0.125), b - a).to(dtype)


def _vecdot(x: Tensor, y: Tensor) -> Tensor:
    """`torch.linalg.vecdot`, without its sum where there is but one column."""
    return (x * y).squeeze(-1) if x.shape[-1] == 1 else torch.linalg.vecdot(x, y)
