"""Autograd over the band engine: what it computes, and how that changes with the scores.

Tensors are in sorted coordinates: scores and gaps `(lists, n)`, payloads `(d, lists, n)`.
"""

from typing import Any

import torch
from torch import Tensor

from ...gradients import straight_through
from ..ordering import Ordered
from .bands import Bands
from .queries import ENTROPY, LOG_NORM, POSITION_SUMS, PRODUCT, TRANSPOSED, Query


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
    """A relaxed permutation that answers through its bands."""

    def __init__(self, kind: type[Bands], ordered: Ordered, dtype: torch.dtype, rows: int) -> None:
        lists = (ordered.batch.numel(), ordered.n)
        self.scaled = ordered.linked().reshape(lists)
        self.gaps = ordered.gaps.nan_to_num(nan=0.0).reshape(lists)
        unit = ordered.unit()
        self.unit = self.gaps.new_zeros(lists[0], 1) if unit is None else unit.reshape(-1, 1)
        self.engine = Engine(kind, dtype, rows, ordered.tempered)

    def product(self, x: Tensor) -> Tensor:
        return self._ask(PRODUCT, x)

    def transposed(self, y: Tensor) -> Tensor:
        return self._ask(TRANSPOSED, y)

    def position_sums(self) -> Tensor:
        return self._ask(POSITION_SUMS)

    def log_norm(self) -> Tensor:
        return self._ask(LOG_NORM)

    def entropy(self) -> Tensor:
        return self._ask(ENTROPY)

    def _ask(self, query: Query, *payload: Tensor) -> Tensor:
        """The answer, `(d, lists, n)`, with gradients to scores, temperature and payload."""
        return _untraced(self.scaled, self.unit, self.gaps, self.engine, query, *payload)  # pyright: ignore


@torch.compiler.disable  # what it does depends on data: compiled graphs break here
def _untraced(*args: Any) -> Any:
    return Value.apply(*args)


def _keep(ctx: Any, inputs: tuple, output: Any) -> None:
    """Keeps all that `Value` and `Gradient` are made of, for their derivatives."""
    scaled, unit, gaps, ctx.engine, ctx.query, *args = inputs
    ctx.save_for_backward(scaled, unit, gaps, *args)


class Value(torch.autograd.Function):
    """The answer to a query as a function of the scores, of their unit and of a payload.

    `apply(scaled, unit, gaps, engine, query, *payload)`.
    """

    @staticmethod
    def forward(
        scaled: Tensor, unit: Tensor, gaps: Tensor, engine: Engine, query: Query, *payload: Tensor
    ) -> Tensor:
        with torch.autocast(gaps.device.type, enabled=False):
            return query.value(engine.bands(gaps), *payload)

    setup_context = staticmethod(_keep)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple:  # pyright: ignore
        scaled, unit, gaps, *payload = ctx.saved_tensors
        state = (scaled, unit, gaps, ctx.engine, ctx.query)
        to_scores, to_unit, *to_payload = Gradient.apply(*state, grad, *payload)  # pyright: ignore
        return to_scores, to_unit, None, None, None, *to_payload[: len(payload)]

    @staticmethod
    def vmap(info: Any, in_dims: tuple, *args: Any) -> tuple[Tensor, int]:
        return _split(info, Value.apply(*_fold(info, in_dims, args)))  # pyright: ignore


class Gradient(torch.autograd.Function):
    """Gradients to scores, unit and payload: fused when used, composed when differentiated.

    `apply(scaled, unit, gaps, engine, query, grad, *payload)`.
    """

    @staticmethod
    def forward(
        scaled: Tensor, unit: Tensor, gaps: Tensor, engine: Engine, query: Query, *args: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        with torch.autocast(gaps.device.type, enabled=False):
            to_scores, to_unit, to_payload = query.gradient(engine.bands(gaps), *args)
        return to_scores.to(scaled.dtype), to_unit, to_payload.to(args[0].dtype)

    setup_context = staticmethod(_keep)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple:
        scaled, unit, gaps, *args = (x.detach() for x in ctx.saved_tensors)
        with torch.enable_grad():
            inputs = [x.requires_grad_() for x in (scaled, unit, *args)]
            outputs = _composed(gaps, ctx.engine, ctx.query, *inputs)
            used = [(x, g) for x, g in zip(outputs, grads, strict=True) if x.requires_grad]
            outputs, grads = zip(*used, strict=True)
            second = torch.autograd.grad(outputs, inputs, grads, allow_unused=True)
        return second[0], second[1], None, None, None, *second[2:]

    @staticmethod
    def vmap(info: Any, in_dims: tuple, *args: Any) -> tuple[tuple, tuple]:
        split = [_split(info, x) for x in Gradient.apply(*_fold(info, in_dims, args))]  # pyright: ignore
        return tuple(x for x, _ in split), tuple(d for _, d in split)


def _fold(info: Any, in_dims: tuple, args: tuple) -> list:
    """Merges vmap's dimension into the lists of `([d,] lists, n)` tensors; engines start anew."""
    folded = []
    for x, dim in zip(args, in_dims, strict=True):
        if isinstance(x, Engine):
            x = x.anew()
        elif isinstance(x, Tensor):
            lists = x.dim() - 2 - (dim is not None)
            if dim is None:
                x = x.unsqueeze(lists).expand(*x.shape[:lists], info.batch_size, *x.shape[lists:])
            else:
                x = x.movedim(dim, lists)
            x = x.flatten(lists, lists + 1)
        folded.append(x)
    return folded


def _split(info: Any, x: Tensor) -> tuple[Tensor, int]:
    """Undoes `_fold` on a result; returns it and where vmap's dimension is."""
    lists = x.dim() - 2
    return x.unflatten(lists, (info.batch_size, x.shape[lists] // info.batch_size)), lists


def _composed(
    gaps: Tensor,
    engine: Engine,
    query: Query,
    scaled: Tensor,
    unit: Tensor,
    grad: Tensor,
    *payload: Tensor,
) -> tuple[Tensor, ...]:
    """The same gradients from differentiable products, in float64: for second derivatives."""
    engine = engine.anew(gaps.dtype)
    grad, *rest = (x.to(gaps.dtype) for x in (grad, *payload))
    index = torch.arange(gaps.shape[-1], dtype=gaps.dtype, device=gaps.device).expand_as(gaps)
    a, b, w = query.factors(index, engine.rows, grad, *rest)

    def ask(query: Query, x: Tensor) -> Tensor:
        return Value.apply(scaled, unit, gaps, engine, query, x)  # pyright: ignore

    # dL[i, j] = P[i, j] (a_i . b_j - s_i) + w_i [i = j]
    s = (a * ask(PRODUCT, b)).sum(0) + w

    def columns(z: Tensor) -> Tensor:
        moved = ask(TRANSPOSED, torch.cat([a * z, (s * z).unsqueeze(0)]))
        return (b * moved[:-1]).sum(0) - moved[-1] + w * z

    def rows(v: Tensor) -> Tensor:
        moved = ask(PRODUCT, torch.cat([b * v, v.unsqueeze(0)]))
        return (a * moved[:-1]).sum(0) - s * moved[-1] + w * v

    distance = torch.nn.functional.pad(gaps[:, :-1].cumsum(-1), (1, 0))
    place = straight_through(-distance, scaled + distance * unit)
    to_scores = engine.kind.compose(gaps, place, columns(torch.ones_like(gaps)), columns, rows)
    to_unit = -(place * to_scores).sum(-1, keepdim=True)
    return to_scores, to_unit, query.to_payload(ask, grad)
