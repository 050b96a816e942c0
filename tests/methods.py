"""The registry with an oracle for every row, and the two forms that some methods have."""

import functools
import importlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import neuralsort.torch as ns
from neuralsort.torch import registry
from tests import oracle

LONGEST_DENSE = {"dense": 10**9, "banded": 0}
"""The form's name, and the length up to which lists must be dense to get it always."""


@dataclass(frozen=True)
class Method:
    """A relaxation of scores: its row of the registry, its oracle, and how to run it in tests."""

    registered: registry.Method
    weights: Callable[[Sequence[float], float], np.ndarray]
    two_forms: bool = False  # long lists are not written down
    cold: float = 1e-3  # a temperature, in steps, at which nothing blends
    converge: Mapping[str, int] = field(default_factory=dict)  # options that make columns sum to 1

    @property
    def name(self) -> str:
        return self.registered.name

    @property
    def laws(self) -> frozenset[str]:
        return self.registered.laws

    @property
    def homogeneity(self) -> int:
        """P(c s; c^homogeneity tau) = P(s; tau)."""
        return self.registered.homogeneity

    def relaxation_of(self, package: Any) -> Callable[..., Any] | None:
        """The same function with the same options in another package, where it is there."""
        function, options = self.registered.function, {}
        if isinstance(function, functools.partial):
            function, options = function.func, function.keywords
        there = getattr(package, function.__name__, None)
        return there and functools.partial(there, **options)

    def relax(self, scores: Tensor, **options: Any) -> ns.RelaxedPermutation:
        return self.registered.function(scores, **options)


@dataclass(frozen=True)
class SoftmaxMethod(Method):
    """A method whose rows are softmaxes of known logits."""

    logits: Callable[[Sequence[float], float], oracle.Logits] = oracle.neuralsort_logits
    formula: Callable[[Tensor], Tensor] = torch.clone  # logits times tau, for autograd

    def formula_weights(self, scores: Tensor, tau: float | Tensor) -> Tensor:
        """The textbook matrix, by autograd-friendly operations on float64."""
        return torch.softmax(self.formula(scores) / _as_column(tau), -1)

    def formula_log_weights(self, scores: Tensor, tau: float | Tensor) -> Tensor:
        return torch.log_softmax(self.formula(scores) / _as_column(tau), -1)


def _as_column(tau: float | Tensor) -> float | Tensor:
    return tau.unsqueeze(-1) if isinstance(tau, Tensor) and tau.dim() else tau


def neuralsort_formula(scores: Tensor) -> Tensor:
    """(n + 1 - 2i) s - A_s 1 as printed. At ties autograd takes |0|' = 0."""
    n = scores.shape[-1]
    spread = (scores.unsqueeze(-1) - scores.unsqueeze(-2)).abs().sum(-1)
    coefficient = n + 1 - 2 * torch.arange(1, n + 1, dtype=scores.dtype)
    return coefficient.unsqueeze(-1) * scores.unsqueeze(-2) - spread.unsqueeze(-2)


def softsort_formula(scores: Tensor, power: int) -> Tensor:
    """-|s_[i] - s_j|^p, where s_[i] is the mean of the items tied there.

    The mean changes no value. It shares the gradient of s_[i] equally among the tied items, as the
    symmetry between them asks.
    """
    ordered = torch.sort(scores, dim=-1, descending=True).values
    tied = (ordered.unsqueeze(-1) == scores.unsqueeze(-2)).to(scores.dtype)
    mean = (tied * scores.unsqueeze(-2)).sum(-1) / tied.sum(-1)
    # The mean may round: its gradient is wanted here, not its value.
    ordered = ordered.detach() + (mean - mean.detach())
    difference = ordered.unsqueeze(-1) - scores.unsqueeze(-2)
    return -(difference.abs() if power == 1 else difference.square())


def _softmax_method(
    name: str,
    logits: Callable[[Sequence[float], float], oracle.Logits],
    formula: Callable[[Tensor], Tensor],
) -> SoftmaxMethod:
    def weights(scores: Sequence[float], tau: float) -> np.ndarray:
        return np.exp(oracle.log_softmax(logits(scores, tau)))

    return SoftmaxMethod(
        registry.METHODS[name], weights, two_forms=True, logits=logits, formula=formula
    )


def _network(kind: str) -> Callable[[Sequence[float], float], np.ndarray]:
    return functools.partial(oracle.sorting_network, kind=kind, swap="cauchy")


METHODS: tuple[Method, ...] = (
    _softmax_method("neuralsort", oracle.neuralsort_logits, neuralsort_formula),
    _softmax_method(
        "softsort",
        functools.partial(oracle.softsort_logits, power=1),
        functools.partial(softsort_formula, power=1),
    ),
    _softmax_method(
        "softsort_squared",
        functools.partial(oracle.softsort_logits, power=2),
        functools.partial(softsort_formula, power=2),
    ),
    Method(registry.METHODS["lapsum"], oracle.lapsum, two_forms=True),
    Method(registry.METHODS["sinkhorn_sort"], oracle.sinkhorn_sort, converge={"iterations": 3000}),
    Method(registry.METHODS["odd_even_network"], _network("odd_even"), cold=1e-13),
    Method(registry.METHODS["bitonic_network"], _network("bitonic"), cold=1e-13),
)
"""Every relaxation of scores in the registry, which a test makes sure of."""

SOFTMAX: tuple[SoftmaxMethod, ...] = tuple(m for m in METHODS if isinstance(m, SoftmaxMethod))
"""Those of them whose rows are softmaxes of known logits."""


def methods() -> list:
    """Parameters for the methods whose rows are softmaxes."""
    return [pytest.param(m, id=m.name) for m in SOFTMAX]


def every_method(law: str | None = None) -> list:
    """Parameters for all relaxations of scores that keep a law."""
    assert law is None or law in registry.LAWS
    return [pytest.param(m, id=m.name) for m in METHODS if law is None or law in m.laws]


def every_form(law: str | None = None) -> pytest.MarkDecorator:
    """Runs a test of `method` and `form` for all of these, in both forms where there are two."""
    cases = [
        pytest.param(case.values[0], form, id=f"{case.id}-{form}")
        for case in every_method(law)
        for form in (LONGEST_DENSE if case.values[0].two_forms else ("dense",))
    ]
    return pytest.mark.parametrize(("method", "form"), cases, indirect=["form"])


@contextmanager
def in_form(form: str) -> Iterator[None]:
    """Makes lists of every length dense, or none."""
    lazy = importlib.import_module("neuralsort.torch.relaxations.scored")
    before = lazy.LONGEST_DENSE
    lazy.LONGEST_DENSE = LONGEST_DENSE[form]
    try:
        yield
    finally:
        lazy.LONGEST_DENSE = before
