"""Functions with a quick value and a quick gradient, and a slow form for every other derivative.

An answer has three forms: `slow`, which JAX differentiates as often as it likes; `quick`, its
value; and `pull`, its gradient. To JAX the quick value is one operation and its derivative another,
whose transpose is the quick gradient. So values, `grad` and `vjp` are quick; `jvp`, `jacfwd` and
second derivatives are those of the slow form. Arrays have lists for their first dimension, of which
`vmap` makes more.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array
from jax.core import ShapedArray
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir


@dataclass(frozen=True)
class Answer:
    """An answer in its three forms. Static, as shapes are.

    Attributes:
        slow: From inputs to the answer.
        quick: From inputs to the answer and what its gradient wants to know.
        pull: From inputs, the answer and the rest of what `quick` gave, the gradient to the answer,
            and which inputs are wanted, to gradients to these.
    """

    slow: Callable[..., Array]
    quick: Callable[..., tuple[Array, ...]]
    pull: Callable[..., Sequence[Array]]

    def __call__(self, *inputs: Array) -> Array:
        return value_p.bind(*inputs, answer=self)[0]

    def slow_tangent(self, moved: tuple[bool, ...], inputs: Any, tangents: Any) -> Array:
        of_moved = _of_moved(self.slow, moved, inputs)
        return jax.jvp(of_moved, _chosen(inputs, moved), tuple(tangents))[1]

    def slow_pull(self, moved: tuple[bool, ...], inputs: Any, grad: Array) -> tuple[Array, ...]:
        return jax.vjp(_of_moved(self.slow, moved, inputs), *_chosen(inputs, moved))[1](grad)


def _chosen(values: Sequence[Any], moved: Sequence[bool]) -> tuple[Any, ...]:
    return tuple(x for x, m in zip(values, moved, strict=True) if m)


def _of_moved(function: Callable, moved: Sequence[bool], inputs: Sequence[Array]) -> Callable:
    """A function of those inputs that move, the others being as they are."""

    def of_moved(*those: Array) -> Any:
        left = iter(those)
        return function(*(next(left) if m else x for x, m in zip(inputs, moved, strict=True)))

    return of_moved


# -- the three operations --------------------------------------------------------------------------


def _value(*inputs: Array, answer: Answer) -> list[Array]:
    return list(answer.quick(*inputs))


def _tangent(*args: Array, answer: Answer, moved: tuple[bool, ...], kept: int) -> list[Array]:
    """`args` are inputs, what `quick` gave, and tangents of the inputs that move."""
    inputs, tangents = args[: len(moved)], args[len(moved) + kept :]
    return [answer.slow_tangent(moved, inputs, tangents)]


def _gradient(*args: Array, answer: Answer, moved: tuple[bool, ...], kept: int) -> list[Array]:
    """`args` are inputs, what `quick` gave, and the gradient to the answer."""
    return list(answer.pull(*args, moved=moved))


def _operation(name: str, compute: Callable[..., list[Array]]) -> Primitive:
    operation = Primitive(name)
    operation.multiple_results = True
    statics = ("answer", "moved", "kept")[: 1 if compute is _value else 3]
    operation.def_impl(jax.jit(compute, static_argnames=statics))

    def shapes(*args: Any, **options: Any) -> list[Any]:
        args = tuple(jax.ShapeDtypeStruct(x.shape, x.dtype) for x in args)
        out = jax.eval_shape(lambda *args: compute(*args, **options), *args)
        return [ShapedArray(x.shape, x.dtype) for x in out]

    def more_lists(args: Any, dims: Any, **options: Any) -> tuple[list[Array], list[int]]:
        size = next(x.shape[d] for x, d in zip(args, dims, strict=True) if d is not None)
        whole = [
            jnp.broadcast_to(x, (size, *x.shape)) if d is None else jnp.moveaxis(x, d, 0)
            for x, d in zip(args, dims, strict=True)
        ]
        out = operation.bind(
            *(x.reshape(size * x.shape[1], *x.shape[2:]) for x in whole), **options
        )
        lists = whole[0].shape[1]
        return [x.reshape(size, lists, *x.shape[1:]) for x in out], [0] * len(out)

    operation.def_abstract_eval(shapes)
    mlir.register_lowering(operation, mlir.lower_fun(compute, multiple_results=True))
    batching.primitive_batchers[operation] = more_lists
    return operation


value_p = _operation("relaxed_value", _value)
tangent_p = _operation("relaxed_tangent", _tangent)
gradient_p = _operation("relaxed_gradient", _gradient)


# -- how they change -------------------------------------------------------------------------------


def _moving(tangents: Sequence[Any]) -> tuple[bool, ...]:
    return tuple(not isinstance(t, ad.Zero) for t in tangents)


def _value_jvp(inputs: Any, tangents: Any, *, answer: Answer) -> tuple[list[Array], list[Any]]:
    out = value_p.bind(*inputs, answer=answer)
    moved = _moving(tangents)
    options = {"answer": answer, "moved": moved, "kept": len(out)}
    (change,) = tangent_p.bind(*inputs, *out, *_chosen(tangents, moved), **options)
    return out, [change, *map(_still, out[1:])]


def _still(x: Array) -> ad.Zero:
    """The tangent of what is only remembered."""
    kind = x.dtype if jnp.issubdtype(x.dtype, jnp.floating) else jax.dtypes.float0
    return ad.Zero(ShapedArray(x.shape, kind))


def _linear_jvp(operation: Primitive, slow: Callable[..., Any]) -> Callable[..., Any]:
    """Of an operation that is linear in its last arguments and moves with its inputs as well."""

    def jvp(args: Any, tangents: Any, *, answer: Answer, moved: Any, kept: int) -> Any:
        options = {"answer": answer, "moved": moved, "kept": kept}
        out = operation.bind(*args, **options)
        inputs, linear = len(moved), args[len(moved) + kept :]
        turned = _moving(tangents[:inputs])
        to_linear = [ad.instantiate_zeros(t) for t in tangents[inputs + kept :]]
        change = operation.bind(*args[: inputs + kept], *to_linear, **options)
        if any(turned):  # what was kept for the quick form does not enter the slow one
            of_moved = _of_moved(lambda *x: slow(answer, moved, x, linear), turned, args[:inputs])
            primals = _chosen(args[:inputs], turned)
            _, more = jax.jvp(of_moved, primals, _chosen(tangents[:inputs], turned))
            change = [a + b for a, b in zip(change, more, strict=True)]
        return out, change

    return jvp


def _slow_tangent(answer: Answer, moved: Any, inputs: Any, tangents: Any) -> list[Array]:
    return [answer.slow_tangent(moved, inputs, tangents)]


def _slow_gradient(answer: Answer, moved: Any, inputs: Any, grad: Any) -> list[Array]:
    return list(answer.slow_pull(moved, inputs, *grad))


def _transpose(other: Primitive) -> Callable[..., list[Any]]:
    """The tangent's transpose is the gradient, and the other way round."""

    def transpose(cotangents: Any, *args: Any, moved: Any, kept: int, **options: Any) -> list[Any]:
        fixed = len(moved) + kept
        cotangents = [ad.instantiate_zeros(c) for c in cotangents]
        out = other.bind(*args[:fixed], *cotangents, moved=moved, kept=kept, **options)
        return [None] * fixed + list(out)

    return transpose


ad.primitive_jvps[value_p] = _value_jvp
ad.primitive_jvps[tangent_p] = _linear_jvp(tangent_p, _slow_tangent)
ad.primitive_jvps[gradient_p] = _linear_jvp(gradient_p, _slow_gradient)
ad.primitive_transposes[tangent_p] = _transpose(gradient_p)
ad.primitive_transposes[gradient_p] = _transpose(tangent_p)
