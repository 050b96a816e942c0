"""The one table of methods, and the two forms each of them has."""

import functools
import importlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch import Tensor

import neuralsort.torch as ns
from tests import oracle

LAWS = frozenset({"equivariance", "shift", "scale", "limit", "unimodality"})

LONGEST_DENSE = {"dense": 10**9, "banded": 0}
"""The form's name, and the length up to which lists must be dense to get it always."""


@dataclass(frozen=True)
class Method:
    """A relaxation, its oracle, and what holds for it."""

    name: str
    relax: Callable[..., ns.RelaxedPermutation]
    logits: Callable[[Sequence[float], float], oracle.Logits]
    formula: Callable[[Tensor], Tensor]  # logits times tau, for autograd
    homogeneity: int  # P(c s; c^homogeneity tau) = P(s; tau)
    laws: frozenset[str] = LAWS

    def weights(self, scores: Sequence[float], tau: float) -> np.ndarray:
        return np.exp(oracle.log_softmax(self.logits(scores, tau)))

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


METHODS = (
    Method(
        name="neuralsort",
        relax=ns.neuralsort,
        logits=oracle.neuralsort_logits,
        formula=neuralsort_formula,
        homogeneity=1,
    ),
    Method(
        name="softsort-1",
        relax=ns.softsort,
        logits=functools.partial(oracle.softsort_logits, power=1),
        formula=functools.partial(softsort_formula, power=1),
        homogeneity=1,
    ),
    Method(
        name="softsort-2",
        relax=functools.partial(ns.softsort, power=2.0),
        logits=functools.partial(oracle.softsort_logits, power=2),
        formula=functools.partial(softsort_formula, power=2),
        homogeneity=2,
    ),
)


def methods(law: str | None = None) -> list:
    """Parameters for the methods that keep a law, or for all of them."""
    assert law is None or law in LAWS
    return [pytest.param(m, id=m.name) for m in METHODS if law is None or law in m.laws]


@contextmanager
def in_form(form: str) -> Iterator[None]:
    """Makes lists of every length dense, or none."""
    lazy = importlib.import_module("neuralsort.torch.relaxations.lazy")
    before = lazy.LONGEST_DENSE
    lazy.LONGEST_DENSE = LONGEST_DENSE[form]
    try:
        yield
    finally:
        lazy.LONGEST_DENSE = before
