"""What short lists can be exported as: every method, operator and module.

Each case is one function of tensors that asks all there is to ask, so that one export shows all.
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.export import Dim

import neuralsort.torch as ns
from neuralsort.torch import registry

LARGEST, LARGEST_IN_PART = 8, 4
"""The lengths up to which networks are exported: three layers in place of six."""


@dataclass(frozen=True)
class Case:
    """A function of the inputs that `make(batch, n)` makes, whose results are tensors."""

    name: str
    function: Callable[..., Any]
    make: Callable[[int, int], tuple[Tensor, ...]]
    shapes: tuple[str, ...]  # of the inputs: a letter per dimension, b and n are dynamic
    part: Callable[..., Any] | None = None  # asks less, or takes fewer steps, in every run
    random: bool = False
    laid_out: int | None = None  # for a largest length, which has to be stated

    def module(self) -> torch.nn.Module:
        case = self

        class Asked(torch.nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.asked = case.function  # a module of the module, where it is one

            def forward(self, *inputs: Tensor) -> Any:
                return self.asked(*inputs)

        return Asked()

    def in_part(self) -> "Case":
        largest = self.laid_out and LARGEST_IN_PART
        return replace(self, function=self.part or self.function, laid_out=largest)

    def sizes(self) -> tuple[tuple[int, int], ...]:
        """As `(batch, n)`: what the export sees, and what it does not."""
        if self.laid_out == LARGEST_IN_PART:
            return (3, 4), (5, 3), (2, 4)
        return (3, 6), (5, 8), (2, 3)

    def dynamic(self) -> tuple:
        """Which dimensions are dynamic."""
        n = Dim("n", min=3, max=self.laid_out) if self.laid_out else Dim.DYNAMIC
        letters = {"b": Dim.DYNAMIC, "n": n}
        return tuple({i: letters[c] for i, c in enumerate(s) if c in letters} for s in self.shapes)


def _listed(batch: int, n: int) -> tuple[Tensor, Tensor]:
    """Scores, some of them tied, and an order."""
    scores = (2 * torch.randn(batch, n)).round(decimals=1)
    return scores, torch.stack([torch.randperm(n) for _ in range(batch)])


def _lists(batch: int, n: int) -> tuple[Tensor]:
    return _listed(batch, n)[:1]


def _masked(batch: int, n: int) -> tuple[Tensor, Tensor]:
    scores = torch.randn(batch, n)
    return scores, torch.arange(n) < torch.arange(batch).unsqueeze(-1) % n + 1


def _ask(function: Callable[..., Any], scores: Tensor, order: Tensor) -> tuple[Tensor, ...]:
    P = function(scores, tau=0.5)
    x = torch.stack([scores, scores.square()], -1)
    hard = P.straight_through()
    return (
        P.sort(scores),
        P @ x,
        P.mT @ x,
        P.rank(),
        P.log_prob(order),
        P.entropy(),
        P.to_dense(),
        P.permutation(),
        P.top(2).sort(scores),
        hard.sort(scores),
    )


def _ask_less(function: Callable[..., Any], scores: Tensor, order: Tensor) -> tuple[Tensor, ...]:
    P = function(scores, tau=0.5)
    of_order = [P.log_prob(order)] if function is ns.softsort else []  # much alike in all methods
    return P.sort(scores), P.permutation(), *of_order


FEW_STEPS = {"iterations": 2}
"""Of the methods that balance a matrix: each step is some twenty operations to export."""


def _methods() -> list[Case]:
    cases = []
    for method in registry.METHODS.values():
        if method.gives == "values":
            cases.append(Case(method.name, method.function, _lists, ("bn",)))
        elif method.takes == "scores":
            ask = functools.partial(_ask, method.function)
            steps = FEW_STEPS if method.name == "sinkhorn_sort" else {}
            quick = functools.partial(method.function, **steps) if steps else method.function
            part = functools.partial(_ask_less, quick)
            largest = LARGEST if method.name.endswith("network") else None
            cases.append(Case(method.name, ask, _listed, ("bn", "bn"), part, laid_out=largest))
        else:

            def answer(logits: Tensor, function: Callable[..., Any] = method.function) -> tuple:
                P = function(logits, tau=0.5)
                return P.to_dense(), P @ logits[..., :2], P.mT @ logits[..., :2], P.entropy()

            part = functools.partial(
                answer, function=functools.partial(method.function, **FEW_STEPS)
            )

            def make(batch: int, n: int) -> tuple[Tensor, ...]:
                return (torch.randn(batch, n, n),)

            drawn = method.name.startswith("gumbel")
            cases.append(Case(method.name, answer, make, ("bnn",), part, random=drawn))
    return cases


def _masked_less(scores: Tensor, mask: Tensor) -> tuple[Tensor, ...]:
    return ns.soft_rank(scores, mask=mask), ns.soft_topk_mask(scores, 2, mask=mask)


GATES = (ns.lapsum, ns.sparse_threshold, ns.midpoint_threshold)


def _masked_answers(scores: Tensor, mask: Tensor) -> tuple[Tensor, ...]:
    P = ns.neuralsort(scores, mask=mask)
    return (
        P.sort(scores),
        ns.soft_sort(scores, mask=mask),
        ns.soft_rank(scores, mask=mask),
        ns.soft_topk(scores, 2, mask=mask).weights,
        ns.soft_sort_by(scores, scores, mask=mask),
        ns.soft_median(scores, mask=mask),
        *(ns.soft_topk_mask(scores, 2, mask=mask, relax=relax) for relax in GATES),
    )


RELEVANCE_LOSSES = [
    ns.nn.ApproxNDCG(tau=0.5),
    ns.nn.KendallLoss(tau=0.5),
    ns.nn.LambdaLoss(),
    ns.nn.ListNetLoss(),
    ns.nn.NeuralNDCG(tau=0.5),
    ns.nn.RankNetLoss(),
    ns.nn.RecallAtKLoss(2, tau=0.5, rank_tau=0.5),
    ns.nn.SmoothAPLoss(tau=0.5),
    ns.nn.SpearmanLoss(tau=0.5),
]
"""Modules that take scores and how relevant the items are."""

BINARY = (ns.nn.RecallAtKLoss, ns.nn.SmoothAPLoss)
"""Losses of items that are relevant or not."""


def _relevant(batch: int, n: int) -> tuple[Tensor, Tensor]:
    return torch.randn(batch, n), torch.randint(0, 3, (batch, n)).float()


class _Tempered(torch.nn.Module):
    """A soft sort whose temperature is learned."""

    def __init__(self) -> None:
        super().__init__()
        self.temperature = ns.nn.Temperature(0.5, learnable=True)

    def forward(self, scores: Tensor) -> Tensor:
        return ns.neuralsort(scores, tau=self.temperature()).sort(scores)


def _modules() -> list[Case]:
    two = ("bn", "bn")

    def cross_entropy(scores: Tensor, order: Tensor) -> Tensor:
        return ns.nn.PermutationCrossEntropy()(ns.nn.NeuralSort(tau=0.5)(scores), order)

    def labelled(batch: int, n: int) -> tuple[Tensor, Tensor]:
        return torch.randn(batch, n), torch.randint(0, n, (batch,))

    def nearest(queries: Tensor, candidates: Tensor) -> tuple[Tensor, Tensor]:
        knn = ns.nn.DifferentiableKNN(2, tau=0.5)
        found = knn(queries, candidates, candidates.square())
        P = knn.neighbours(queries, candidates)
        return found, ns.nn.KNNLoss(2)(P, candidates[:, 0] > 0)

    def points(batch: int, n: int) -> tuple[Tensor, Tensor]:
        return torch.randn(batch, 3), torch.randn(n, 3)

    def all_losses(scores: Tensor, relevance: Tensor) -> tuple[Tensor, ...]:
        graded = [loss for loss in RELEVANCE_LOSSES if not isinstance(loss, BINARY)]
        binary = [loss for loss in RELEVANCE_LOSSES if isinstance(loss, BINARY)]
        return (
            *(loss(scores, relevance) for loss in graded),
            *(loss(scores, relevance > 0) for loss in binary),
        )

    def some_losses(scores: Tensor, relevance: Tensor) -> tuple[Tensor, ...]:
        by_type = {type(loss): loss for loss in RELEVANCE_LOSSES}
        return (
            by_type[ns.nn.LambdaLoss](scores, relevance),
            by_type[ns.nn.SmoothAPLoss](scores, relevance > 0),
        )

    top = ns.nn.TopKCrossEntropy(k=2, tau=0.5)
    return [
        Case("nn.NeuralSort, nn.PermutationCrossEntropy", cross_entropy, _listed, two),
        Case("nn.SoftTopK", ns.nn.SoftTopK(2, tau=0.5), _lists, ("bn",)),
        Case("nn.PlackettLuceNLL", ns.nn.PlackettLuceNLL(), _listed, two),
        Case("nn.TopKCrossEntropy", top, labelled, ("bn", "b")),
        Case("nn.DifferentiableKNN, nn.KNNLoss", nearest, points, ("b.", "n.")),
        Case("nn.Temperature", _Tempered(), _lists, ("bn",)),
        Case("nn: losses of relevance", all_losses, _relevant, two, some_losses),
    ]


def _operators() -> list[Case]:
    def answers(x: Tensor) -> tuple[Tensor, ...]:
        return (
            ns.soft_sort(x, tau=0.5),
            ns.soft_rank(x, tau=0.5),
            *ns.soft_topk(x, 2, tau=0.5),
            ns.soft_quantile(x, 0.3, tau=0.5),
            ns.soft_sort_by(torch.stack([x, x.square()], -1), x, tau=0.5),
            ns.tau_for_blur(x),
        )

    def fewer_answers(x: Tensor) -> tuple[Tensor, ...]:
        return ns.soft_quantile(x, 0.3, tau=0.5), *ns.soft_topk(x, 2, tau=0.5)

    return [
        Case("operators", answers, _lists, ("bn",), fewer_answers),
        Case("masks and gates", _masked_answers, _masked, ("bn", "bn"), _masked_less),
    ]


CASES: tuple[Case, ...] = (*_methods(), *_operators(), *_modules())
"""Every method of the registry, the operators, masks and modules."""
