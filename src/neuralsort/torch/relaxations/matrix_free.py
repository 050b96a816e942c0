"""Autograd over the band engine: what it computes, and how that changes with the scores.

Tensors are in sorted coordinates: scores and gaps `(lists, n)`, payloads `(d, lists, n)`.
"""

from typing import Any

import torch
from torch import Tensor

from ..gradients import straight_through
from .bands import Bands
from .ordering import Ordered


class Engine:
    """Builds the bands of one matrix when they are first needed, and keeps them."""

    def __init__(self, kind: type[Bands], dtype: torch.dtype, rows: int, tempered: bool) -> None:
        self.kind, self.dtype, self.rows, self.tempered = kind, dtype, rows, tempered
        self._bands: Bands | None = None

    def bands(self, gaps: Tensor) -> Bands:
        """The bands for these gaps: always the same for one engine."""
        if self._bands is None:
            self._bands = self.kind(gaps.detach(), self.dtype, self.rows, self.tempered)
        return self._bands

    def anew(self, dtype: torch.dtype | None = None) -> "Engine":
        """An engine of the same kind, without its bands."""
        return Engine(self.kind, dtype or self.dtype, self.rows, self.tempered)


class BandOperator:
    """A relaxed permutation that multiplies through its bands, `(d, lists, n)` at a time."""

    def __init__(self, kind: type[Bands], ordered: Ordered, dtype: torch.dtype, rows: int) -> None:
        lists = (ordered.batch.numel(), ordered.n)
        self.scaled = ordered.linked().reshape(lists)
        self.gaps = ordered.gaps.nan_to_num(nan=0.0).reshape(lists)
        unit = ordered.unit()
        self.unit = self.gaps.new_zeros(lists[0], 1) if unit is None else unit.reshape(-1, 1)
        self.engine = Engine(kind, dtype, rows, ordered.tempered)

    def _value(self, name: str, *args: Tensor) -> Tensor:
        inputs = (self.scaled, self.unit, self.gaps)
        return _untraced(*inputs, self.engine, name, *args)  # pyright: ignore

    def product(self, x: Tensor) -> Tensor:
        return self._value("product", x)

    def transposed(self, y: Tensor) -> Tensor:
        return self._value("transposed", y)

    def position_sums(self) -> Tensor:
        return self._value("position_sums")

    def log_norm(self) -> Tensor:
        return self._value("log_norm")

    def entropy(self) -> Tensor:
        return self._value("entropy")


@torch.compiler.disable  # what depends on data: compiled graphs break here
def _untraced(*args: Any) -> Any:
    return Value.apply(*args)


def _call(engine: Engine, gaps: Tensor, name: str, args: tuple[Tensor, ...]) -> Any:
    """One query of the engine on `(..., lists, n)` arguments."""
    flat = [x.flatten(-2) for x in args]
    with torch.autocast(gaps.device.type, enabled=False):
        return getattr(engine.bands(gaps), name)(*flat)


def _fold(info: Any, in_dims: tuple, tensors: tuple[Tensor, ...]) -> list[Tensor]:
    """Moves vmap's dimension next to the lists of `([d,] lists, n)` tensors and merges the two."""
    merged = []
    for x, dim in zip(tensors, in_dims, strict=True):
        lists = x.dim() - 2 - (dim is not None)
        if dim is None:
            x = x.unsqueeze(lists).expand(*x.shape[:lists], info.batch_size, *x.shape[lists:])
        else:
            x = x.movedim(dim, lists)
        merged.append(x.flatten(lists, lists + 1))
    return merged


def _split(info: Any, x: Tensor) -> tuple[Tensor, int]:
    """Undoes `_fold` on a result; returns it and where vmap's dimension is."""
    lists = x.dim() - 2
    return x.unflatten(lists, (info.batch_size, x.shape[lists] // info.batch_size)), lists


class Value(torch.autograd.Function):
    """A quantity of P as a function of the scores, of their unit and of a payload.

    `apply(scaled, unit, gaps, engine, name, *payload)`, where name is one of `product`,
    `transposed`, `position_sums`, `log_norm`, `entropy`.
    """

    @staticmethod
    def forward(
        scaled: Tensor, unit: Tensor, gaps: Tensor, engine: Engine, name: str, *args: Tensor
    ) -> Tensor:
        return _call(engine, gaps, name, args).unflatten(-1, gaps.shape)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple, output: Tensor) -> None:
        scaled, unit, gaps, engine, name, *args = inputs
        ctx.save_for_backward(scaled, unit, gaps, *args)
        ctx.engine, ctx.name = engine, name

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple:  # pyright: ignore
        scaled, unit, gaps, *args = ctx.saved_tensors
        state = (scaled, unit, gaps, ctx.engine)
        name, payload = ctx.name, ()
        if name == "product":
            query = ("product_gradient", grad, args[0])
        elif name == "transposed":
            query = ("product_gradient", args[0], grad)
            payload = (Value.apply(*state, "product", grad),)
        elif name == "position_sums":
            query = ("position_gradient", grad[0], grad[1])
        else:
            query = (f"{name}_gradient", -grad if name == "log_norm" else grad)
        to_scores, to_unit, to_payload = Gradient.apply(*state, *query)  # pyright: ignore
        if name == "product":
            payload = (to_payload,)
        return to_scores, to_unit, None, None, None, *payload

    @staticmethod
    def vmap(info: Any, in_dims: tuple, *args: Any) -> tuple[Tensor, int]:
        scaled, unit, gaps, engine, name, *payload = args
        dims = (*in_dims[:3], *in_dims[5:])
        scaled, unit, gaps, *payload = _fold(info, dims, (scaled, unit, gaps, *payload))
        out = Value.apply(scaled, unit, gaps, engine.anew(), name, *payload)
        return _split(info, out)  # pyright: ignore


class Gradient(torch.autograd.Function):
    """Gradients to scores, unit and payload: fused when used, composed when differentiated.

    `apply(scaled, unit, gaps, engine, name, *args)`, where name is one of `product_gradient`,
    `position_gradient`, `log_norm_gradient`, `entropy_gradient`.
    """

    @staticmethod
    def forward(
        scaled: Tensor, unit: Tensor, gaps: Tensor, engine: Engine, name: str, *args: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        to_scores, to_unit, to_payload = _call(engine, gaps, name, args)
        to_scores = to_scores.to(scaled.dtype).unflatten(-1, gaps.shape)
        return to_scores, to_unit, to_payload.to(args[0].dtype).unflatten(-1, gaps.shape)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple, output: Any) -> None:
        scaled, unit, gaps, engine, name, *args = inputs
        ctx.save_for_backward(scaled, unit, gaps, *args)
        ctx.engine, ctx.name = engine, name

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple:
        scaled, unit, gaps, *args = (x.detach() for x in ctx.saved_tensors)
        with torch.enable_grad():
            inputs = [x.requires_grad_() for x in (scaled, unit, *args)]
            outputs = _composed(gaps, ctx.engine, ctx.name, *inputs)
            used = [(x, g) for x, g in zip(outputs, grads, strict=True) if x.requires_grad]
            outputs, grads = zip(*used, strict=True)
            second = torch.autograd.grad(outputs, inputs, grads, allow_unused=True)
        return second[0], second[1], None, None, None, *second[2:]

    @staticmethod
    def vmap(info: Any, in_dims: tuple, *args: Any) -> tuple[tuple, tuple]:
        scaled, unit, gaps, engine, name, *payload = args
        dims = (*in_dims[:3], *in_dims[5:])
        scaled, unit, gaps, *payload = _fold(info, dims, (scaled, unit, gaps, *payload))
        out = Gradient.apply(scaled, unit, gaps, engine.anew(), name, *payload)
        split = [_split(info, x) for x in out]  # pyright: ignore
        return tuple(x for x, _ in split), tuple(d for _, d in split)


def _composed(
    gaps: Tensor, engine: Engine, name: str, scaled: Tensor, unit: Tensor, *args: Tensor
) -> tuple[Tensor, ...]:
    """The same gradients from differentiable products, in float64: for second derivatives."""
    if name == "entropy_gradient":
        raise RuntimeError(
            "second derivatives of `entropy()` are not available for long lists. "
            "Use P.to_dense() and compute the entropy from it."
        )
    engine = engine.anew(gaps.dtype)
    args = tuple(x.to(gaps.dtype) for x in args)
    index = torch.arange(gaps.shape[-1], dtype=gaps.dtype, device=gaps.device).expand_as(gaps)
    none = gaps.new_zeros(0, *gaps.shape)
    w = torch.zeros_like(gaps)
    if name == "product_gradient":
        a, b = args
    elif name == "position_gradient":
        own = (index < engine.rows).to(gaps.dtype)
        a = torch.stack([own, own * index])
        b = torch.stack([args[0] - args[1] * index, args[1]])
    else:
        a, b, w = none, none, args[0]

    def value(kind: str, x: Tensor) -> Tensor:
        return Value.apply(scaled, unit, gaps, engine, kind, x)  # pyright: ignore

    # dL[i, j] = P[i, j] (a_i . b_j - s_i) + w_i [i = j]
    s = (a * value("product", b)).sum(0) + w

    def columns(z: Tensor) -> Tensor:
        moved = value("transposed", torch.cat([a * z, (s * z).unsqueeze(0)]))
        return (b * moved[:-1]).sum(0) - moved[-1] + w * z

    def rows(v: Tensor) -> Tensor:
        moved = value("product", torch.cat([b * v, v.unsqueeze(0)]))
        return (a * moved[:-1]).sum(0) - s * moved[-1] + w * v

    distance = torch.nn.functional.pad(gaps[:, :-1].cumsum(-1), (1, 0))
    place = straight_through(-distance, scaled + distance * unit)
    to_scores = engine.kind.compose(gaps, place, columns(torch.ones_like(gaps)), columns, rows)
    to_unit = -(place * to_scores).sum(-1, keepdim=True)
    return to_scores, to_unit, value("transposed", a) if name == "product_gradient" else none
