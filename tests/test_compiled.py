"""Compiled functions give what eager ones give: values and gradients, every method, every request.

By inductor, torch's default: other backends do not make code of their own, and make other mistakes.
Compiling takes nearly all the time, so each method is asked everything in one program.
"""

import functools
import shutil
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import neuralsort.torch as ns
from neuralsort.torch import registry
from tests.conftest import assert_near

pytestmark = pytest.mark.skipif(not shutil.which("g++"), reason="inductor needs a C++ compiler")

LISTS, ITEMS = 3, 6
ASKED_LESS = {"softsort_squared": 6, "odd_even_network": 4, "bitonic_network": 4}
"""Items of methods that share the code of others, or whose layers are compiled one by one."""

QUICK = {"iterations": 2}
"""Of Sinkhorn's algorithm, whose iterations are compiled one by one."""

RELAXATIONS = {
    name: functools.partial(m.function, **QUICK) if "sinkhorn" in name else m.function
    for name, m in registry.METHODS.items()
    if m.takes == "scores" and m.gives == "P"
}
VALUES = {name: m.function for name, m in registry.METHODS.items() if m.gives == "values"}


def ask(name: str, s: Tensor, x: Tensor) -> dict[str, Tensor]:
    """What a relaxed permutation and the operators say, the scores as their own payload too."""
    relax = RELAXATIONS[name]
    P = relax(s, tau=0.5)
    few = {"sort of the scores": P.sort(s), "sort of a payload": P.sort(x), "rank": P.rank()}
    if name in ASKED_LESS:
        return few
    return few | {
        "transpose": P.mT @ torch.stack([x, s], -1),
        "log_prob": P.log_prob(torch.arange(s.shape[-1])),
        "entropy": P.entropy(),
        "soft_topk": ns.soft_topk(s, 2, tau=0.5, relax=relax).weights,
        "soft_quantile": ns.soft_quantile(s, 0.3, tau=0.5, relax=relax),
    }


def answers(function: Callable[..., dict[str, Tensor]], n: int) -> dict[str, Tensor]:
    """Values, and their gradients under weights that are not all alike."""
    generator = torch.Generator().manual_seed(0)
    s, x = (
        (1.5 * torch.randn(LISTS, n, generator=generator)).double().requires_grad_()
        for _ in range(2)
    )
    found = {}
    for name in function(s, x):
        value = function(s, x)[name]  # once for every gradient: compiled graphs are not retained
        weights = torch.randn(value.shape, generator=generator, dtype=value.dtype)
        grads = torch.autograd.grad((value * weights).sum(), (s, x), materialize_grads=True)
        found |= {name: value, f"{name}, to scores": grads[0], f"{name}, to payload": grads[1]}
    return found


def assert_same_when_compiled(function: Callable[..., dict[str, Tensor]], n: int = ITEMS) -> None:
    torch._dynamo.reset()
    eager, compiled = answers(function, n), answers(torch.compile(function), n)
    assert compiled.keys() == eager.keys()
    for name, expected in eager.items():
        assert_near(compiled[name], expected, 1e-9, floor=1.0, what=name)


@pytest.mark.parametrize("name", RELAXATIONS)
def test_relaxations_are_the_same_when_compiled(name):
    assert_same_when_compiled(functools.partial(ask, name), ASKED_LESS.get(name, ITEMS))


@pytest.mark.parametrize("name", [name for name in RELAXATIONS if name not in ASKED_LESS])
def test_a_sort_of_its_own_scores_is_the_same_when_compiled(name):
    """Alone in its program, where a compiler orders its steps otherwise."""
    relax = RELAXATIONS[name]
    assert_same_when_compiled(lambda s, x: {"sort": relax(s, tau=0.5).sort(s)})


def test_projections_are_the_same_when_compiled():
    assert_same_when_compiled(lambda s, x: {name: f(s) for name, f in VALUES.items()})


def test_matrices_are_the_same_when_compiled():
    def balanced(s: Tensor, x: Tensor) -> dict[str, Tensor]:
        P = ns.sinkhorn(s.unsqueeze(-1) * x.unsqueeze(-2), tau=0.5, iterations=2)
        return {"matrix": P.to_dense(), "product": P @ s.unsqueeze(-1), "entropy": P.entropy()}

    assert_same_when_compiled(balanced)
