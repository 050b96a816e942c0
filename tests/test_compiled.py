"""Compiled against eager: values and gradients, with the scores as their own payload.

One compiled function per method asks everything at once, by the default backend: what a backend
gets wrong shows in gradients only, and only in some combinations.
"""

import shutil

import pytest
import torch
from torch import Tensor

import neuralsort.torch as ns
from neuralsort.torch import registry
from tests.conftest import GRADIENT_RTOL, VALUE_RTOL, assert_near
from tests.methods import METHODS
from tests.requests import REQUESTS

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="inductor needs a compiler")

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


def assert_same(function, *inputs: Tensor) -> None:
    """Results and gradients are those of eager code."""
    expected = value_and_gradients(function, *inputs)
    actual = value_and_gradients(torch.compile(function), *inputs)
    for i, (one, other) in enumerate(zip(actual, expected, strict=True)):
        left = len(expected) - len(inputs)
        what = f"result {i}" if i < left else f"gradient to input {i - left}"
        rtol = (VALUE_RTOL if i < left else GRADIENT_RTOL)[inputs[0].dtype]
        assert_near(one, other, rtol, 1, what)


@pytest.mark.parametrize("method", METHODS, ids=lambda m: m.name)
def test_relaxations_give_the_same_compiled(method):
    def everything(scores: Tensor, x: Tensor) -> list[Tensor]:
        P = method.relax(scores, tau=0.5)
        both = torch.stack([scores, x], -1)  # the scores as their own payload, and another
        asked = [REQUESTS[name](P, both) for name in ASKED]
        return [P.sort(scores), P.sort(x), P.to_dense(), *asked]

    torch.manual_seed(0)
    assert_same(everything, 1.5 * torch.randn(3, 9), torch.randn(3, 9))


@pytest.mark.parametrize("method", METHODS, ids=lambda m: m.name)
def test_operators_and_losses_give_the_same_compiled(method):
    relax = method.registered.function

    def everything(scores: Tensor) -> list[Tensor]:
        top = ns.soft_topk(scores, 3, tau=0.5, relax=relax)
        target = torch.arange(9).expand(3, 9)
        return [
            ns.soft_sort(scores, tau=0.5, relax=relax),
            ns.soft_sort_by(scores.square(), scores, tau=0.5, relax=relax),
            ns.soft_rank(scores, tau=0.5, relax=relax),
            top.values,
            top.weights,
            ns.soft_quantile(scores, 0.3, tau=0.5, relax=relax),
            ns.permutation_cross_entropy(relax(scores, tau=0.5), target),
            ns.spearman_loss(scores, scores.detach().flip(-1), tau=0.5, relax=relax),
        ]

    torch.manual_seed(1)
    assert_same(everything, 1.5 * torch.randn(3, 9))


@pytest.mark.parametrize("name", [m.name for m in registry.METHODS.values() if m.gives == "values"])
def test_projections_give_the_same_compiled(name):
    function = registry.METHODS[name].function
    torch.manual_seed(2)
    assert_same(lambda x: [function(x)], 1.5 * torch.randn(3, 9))


def test_matrices_of_logits_give_the_same_compiled():
    def everything(logits: Tensor) -> list[Tensor]:
        P = ns.sinkhorn(logits, tau=0.5)
        return [P.to_dense(), P.sort(logits[..., 0]), P.rank(), P.entropy()]

    torch.manual_seed(3)
    assert_same(everything, torch.randn(2, 6, 6))
