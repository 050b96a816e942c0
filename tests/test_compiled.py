"""Compiled against eager: values and gradients, with the scores as their own payload.

One compiled function per method asks everything at once. The backend runs the traced forward and
backward graphs as they are, so what is tested is what we hand to a compiler.
"""

import shutil

import pytest
import torch
from torch import Tensor

import neuralsort.torch as ns
from tests.conftest import GRADIENT_RTOL, VALUE_RTOL, assert_near
from tests.methods import SOFTMAX
from tests.requests import REQUESTS

ASKED = ("matmul", "transpose", "rank", "log_prob", "entropy")


@pytest.fixture(autouse=True)
def fresh_compiler():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def value_and_gradients(function, *inputs: Tensor) -> list[Tensor]:
    """All results, and the gradients of all of them together: compiled graphs go back once."""
    inputs = tuple(x.detach().clone().requires_grad_() for x in inputs)
    values = function(*inputs)
    weights = [torch.linspace(-1, 2, x.numel(), dtype=x.dtype).view(x.shape) for x in values]
    return [*(x.detach() for x in values), *torch.autograd.grad(values, inputs, weights)]


def assert_same(function, *inputs: Tensor, backend: str = "aot_eager") -> None:
    """Results and gradients are those of eager code."""
    expected = value_and_gradients(function, *inputs)
    actual = value_and_gradients(torch.compile(function, backend=backend), *inputs)
    for i, (one, other) in enumerate(zip(actual, expected, strict=True)):
        left = len(expected) - len(inputs)
        what = f"result {i}" if i < left else f"gradient to input {i - left}"
        rtol = (VALUE_RTOL if i < left else GRADIENT_RTOL)[inputs[0].dtype]
        assert_near(one, other, rtol, 1, what)


@pytest.mark.parametrize("method", SOFTMAX, ids=lambda m: m.name)
def test_everything_is_the_same_compiled(method):
    def everything(scores: Tensor, x: Tensor) -> list[Tensor]:
        P = method.relax(scores, tau=0.5)
        both = torch.stack([scores, x], -1)  # the scores as their own payload, and another
        asked = [REQUESTS[name](P, both) for name in ASKED]
        return [P.sort(scores), P.sort(x), P.to_dense(), *asked]

    assert_same(everything, 1.5 * torch.randn(3, 9), torch.randn(3, 9))


@pytest.mark.skipif(shutil.which("g++") is None, reason="inductor needs a C++ compiler")
@pytest.mark.parametrize("relax", [ns.sinkhorn_sort, ns.softsort], ids=lambda f: f.__name__)
def test_a_sort_of_the_scores_is_the_same_by_the_default_backend(relax):
    """Which may lose the gradient of a scatter that is added to another."""

    def soft_sort(scores: Tensor) -> list[Tensor]:
        return [relax(scores, tau=0.5).sort(scores)]

    assert_same(soft_sort, 1.5 * torch.randn(3, 9), backend="inductor")
