"""Devices: one made in Python, on which no tensor may meet one of the CPU, and `meta`.

Everything runs on it forward and backward, with the results of the CPU. Every time the host must
wait for the device is written down, and compared with what the documentation says of it.
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

import neuralsort.torch as ns
from neuralsort.torch import estimators, metrics, registry
from neuralsort.torch.knn import soft_neighbours
from tests.accelerator import Accelerator, DeviceTensor, Meeting, on_host
from tests.capabilities import CAPABILITIES, LONG, ON_HOST, SHORT, WAITS, WAITS_OF_FUNCTIONS
from tests.hostile import Lists, lists_of
from tests.test_isolation import ALONE, LOSSES, OPERATORS, PADDED, RELAXATIONS

ROUNDING, MORE = 1e-5, 8
"""Errors of float32 over the largest magnitude; and how much more than the CPU's they may be."""

Ask = Callable[[Lists], Tensor]


def problem(n: int, dtype: torch.dtype) -> Lists:
    """Three lists: one of them far from 0, one with ties, and each with its own temperature."""
    lists = lists_of(n, ("plain", "plain"), dtype)
    lists.scores[1] += 50
    lists.scores[2] = (4 * lists.scores[2]).round() / 4
    lists.tau.copy_(torch.tensor([[0.5], [0.05], [2.0]]))
    return lists


@dataclass
class Answer:
    """A value, the gradients to scores, payload and temperatures, and what was waited for."""

    value: Tensor
    gradients: list[Tensor]
    waits: tuple[str, ...] = ()


def answer(ask: Ask, lists: Lists) -> Answer:
    torch.manual_seed(0)
    inputs = [x.requires_grad_() for x in (lists.scores, lists.payload, lists.tau)]
    value = ask(lists)
    if not value.requires_grad:
        return Answer(value, [])
    kind = {"dtype": value.dtype, "device": value.device}
    weights = torch.arange(value.numel(), **kind).cos().view(value.shape)
    gradients = torch.autograd.grad((value * weights).sum(), inputs, allow_unused=True)
    return Answer(value.detach(), [x for x in gradients if x is not None])


def copied(lists: Lists, put: Callable[[Tensor], Tensor]) -> Lists:
    return Lists(*(put(getattr(lists, name).detach()) for name in lists.__dataclass_fields__))


def answer_there(ask: Ask, lists: Lists, type_: str) -> Answer:
    """The same on a device: all that comes out must be there."""
    with Accelerator(type_) as device:
        found = answer(ask, copied(lists, device.put))
        assert all(isinstance(x, DeviceTensor) for x in every(found))
        waits = tuple(sorted(set(device.log)))
    return Answer(on_host(found.value), [on_host(x) for x in found.gradients], waits)


def assert_as_exact(found: Answer, ask: Ask, lists: Lists) -> None:
    """Next to float64, no farther off than the CPU is in float32, or than rounding explains."""
    exactly = answer(ask, copied(lists, lambda x: x.double() if x.is_floating_point() else x))
    beside = answer(ask, copied(lists, torch.clone))
    assert len(found.gradients) == len(exactly.gradients)
    for one, other, wanted in zip(*(every(x) for x in (found, beside, exactly)), strict=True):
        assert one.shape == wanted.shape
        scale = max(wanted.abs().max().item(), 1e-3)
        error, usual = ((x.double() - wanted).abs().max().item() / scale for x in (one, other))
        assert error <= max(MORE * usual, ROUNDING), f"{error:.2g} off, the CPU {usual:.2g}"


def every(answer: Answer) -> list[Tensor]:
    return [answer.value, *answer.gradients]


# -- everything there is ---------------------------------------------------------------------------

TAKING_P = {**PADDED, **OPERATORS, **LOSSES}


def logits_of(x: Lists) -> Tensor:
    return x.scores.unsqueeze(-1) * x.payload.unsqueeze(-2)


def of_row(row: str) -> dict[str, Ask]:
    """Everything that can be asked of a row of the table."""
    name = row.removesuffix(", long lists")
    method = registry.METHODS[name]
    if method.gives == "values":
        return {"values": lambda x: method.function(x.scores)}
    if method.takes == "logits":
        return {
            "to_dense": lambda x: method.function(logits_of(x), tau=x.tau).to_dense(),
            "product": lambda x: method.function(logits_of(x), mask=x.mask).sort(x.payload),
        }
    asked = PADDED if row in LONG else TAKING_P
    relax = RELAXATIONS[name]
    entries = {
        "product": lambda x: relax(x.scores, tau=x.tau) @ torch.stack([x.payload, x.scores], -1),
        "entry": lambda x: relax(x.scores, tau=x.tau)[..., 1, 2],
        "row": lambda x: relax(x.scores, tau=x.tau)[..., 1, :],
        "from the left": lambda x: x.payload.unsqueeze(-2) @ relax(x.scores, tau=x.tau),
        "composed": lambda x: (relax(x.scores, tau=0.5) @ relax(x.payload, tau=0.5)).sort(x.scores),
        "straight-through": lambda x: relax(x.scores, tau=x.tau).straight_through().sort(x.payload),
        "a number for tau": lambda x: relax(x.scores, tau=0.3).sort(x.scores),
    }
    return {**{what: functools.partial(ask, relax) for what, ask in asked.items()}, **entries}


def length(row: str) -> int:
    return 600 if row in LONG else 12


CASES = [(row, what) for row in (*SHORT, *LONG) for what in of_row(row)]


@pytest.mark.parametrize(("row", "what"), CASES, ids=lambda x: x.replace(", ", "-"))
def test_methods_on_an_accelerator(row, what):
    assert CAPABILITIES["CUDA"][row] is True
    ask, lists = of_row(row)[what], problem(length(row), torch.float32)
    found = answer_there(ask, lists, "xla")
    if row != "gumbel_sinkhorn":  # whose draws are those of the dtype
        assert_as_exact(found, ask, lists)
    assert set(found.waits) <= set(WAITS.get(row, ()))


@pytest.mark.parametrize("row", [row for row, waits in WAITS.items() if waits])
def test_the_documented_waits_do_happen(row):
    lists = problem(length(row), torch.float32)
    asked = (of_row(row)[what] for what in ("sort of the scores", "product"))
    waits = (answer_there(ask, lists, "xla").waits for ask in asked)
    assert {wait for some in waits for wait in some} == set(WAITS[row])


@pytest.mark.parametrize(("row", "what"), CASES, ids=lambda x: x.replace(", ", "-"))
def test_methods_on_a_device_without_float64(row, what):
    """As exact as the CPU, which computes in float64, and without a wait unless on the host."""
    assert CAPABILITIES["MPS"][row] is True
    ask, lists = of_row(row)[what], problem(length(row), torch.float32)
    found = answer_there(ask, lists, "mps")
    if row != "gumbel_sinkhorn":  # whose draws are those of the dtype
        assert_as_exact(found, ask, lists)
    crossing = {"from the host", "to the host"} if row in ON_HOST else set()
    assert set(found.waits) == crossing


# -- functions without a method, and what draws ----------------------------------------------------


def model(x: Lists) -> ns.PlackettLuce:
    return ns.PlackettLuce(x.scores, validate_args=False)


def short(x: Lists) -> ns.PlackettLuce:
    return ns.PlackettLuce(x.scores[:, :4], validate_args=False)


def costs(P: Any) -> Tensor:
    return P.rank()[..., 0]


OTHERS: dict[str, Ask] = {
    **ALONE,
    "plain cross-entropy": lambda x: ns.permutation_cross_entropy(ns.neuralsort(x.scores), x.perm),
    "plain knn_loss": lambda x: ns.knn_loss(ns.neuralsort(x.scores), x.payload > 0, k=2),
    "weighed top-k": lambda x: ns.topk_cross_entropy(
        x.scores, x.perm[:, 0], k={1: 0.5, 3: 0.5}, tau=1.0
    ),
    "soft_quantile of many": lambda x: ns.soft_quantile(x.scores, x.tau[:, 0] / 4),
    "exact_match": lambda x: metrics.exact_match(ns.neuralsort(x.scores).permutation(), x.perm),
    "element_wise": lambda x: metrics.element_wise(ns.neuralsort(x.scores).permutation(), x.perm),
    "mean_reciprocal_rank": lambda x: metrics.mean_reciprocal_rank(x.scores, x.payload > 0),
    "soft_neighbours": lambda x: soft_neighbours(
        x.scores.unsqueeze(-1), x.payload.unsqueeze(-1), k=3, tau=0.5
    ).to_dense(),
    "listnet_loss": lambda x: ns.listnet_loss(x.scores, x.perm % 3, mask=x.mask),
    "lambda_loss": lambda x: ns.lambda_loss(x.scores, x.perm % 3, mask=x.mask),
    "smooth_ap_loss": lambda x: ns.smooth_ap_loss(x.scores, x.perm % 2, tau=0.5, mask=x.mask),
    "recall_at_k_loss": lambda x: ns.recall_at_k_loss(x.scores, x.perm % 2, k=3, tau=0.5),
    "precision_at_k": lambda x: metrics.precision_at_k(x.scores, x.perm % 2, k=3, mask=x.mask),
    "recall_at_k": lambda x: metrics.recall_at_k(x.scores, x.perm % 2, k=3, mask=x.mask),
    "average_precision": lambda x: metrics.average_precision(x.scores, x.perm % 2, mask=x.mask),
    "reciprocal_rank": lambda x: metrics.reciprocal_rank(x.scores, x.perm % 2, mask=x.mask),
    "KSubset.log_prob": lambda x: ns.KSubset(x.scores, 3, validate_args=False).log_prob(x.perm < 3),
    "KSubset.marginals": lambda x: ns.KSubset(x.scores, 3, validate_args=False).marginals(),
    "KSubset.entropy": lambda x: ns.KSubset(x.scores, 3, validate_args=False).entropy(),
    "KSubset.sample": lambda x: (
        ns.KSubset(x.scores, 3, validate_args=False).sample().to(x.scores.dtype)
    ),
    "log_prob, masked": lambda x: model(x).log_prob(x.perm, mask=x.mask),
    "sample": lambda x: model(x).sample().to(x.scores.dtype),
    "mode": lambda x: model(x).mode.to(x.scores.dtype),
    "rsample_given": lambda x: model(x).rsample_given(x.perm),
    "prob_before": lambda x: model(x).prob_before(),
    "entropy of samples": lambda x: model(x).entropy(samples=8),
    "kl_divergence of samples": lambda x: model(x).kl_divergence(
        ns.PlackettLuce(x.payload, validate_args=False), samples=8
    ),
    "RelaxedPlackettLuce": lambda x: (
        ns.RelaxedPlackettLuce(0.5, x.scores, validate_args=False).rsample().sort(x.scores)
    ),
    "stochastic_neuralsort": lambda x: ns.stochastic_neuralsort(x.scores, tau=0.5, samples=2).sort(
        x.scores
    ),
    "relaxed_expectation": lambda x: estimators.relaxed_expectation(
        costs, x.scores, tau=0.5, samples=4
    ),
    "straight_through_expectation": lambda x: estimators.straight_through_expectation(
        costs, x.scores, tau=0.5, samples=4
    ),
    "score_function_expectation": lambda x: estimators.score_function_expectation(
        costs, x.scores, samples=4
    ),
    "rebar_expectation": lambda x: estimators.rebar_expectation(
        costs, x.scores, tau=0.5, samples=4
    ),
    "enumerated entropy": lambda x: short(x).entropy(),
    "marginals": lambda x: short(x).marginals(),
    "enumerated kl_divergence": lambda x: short(x).kl_divergence(
        ns.PlackettLuce(x.payload[:, :4], validate_args=False)
    ),
    "permutation of sinkhorn": lambda x: (
        ns.sinkhorn(9 * torch.eye(9, device=x.scores.device) + x.scores.unsqueeze(-1))
        .permutation()
        .float()
    ),
    "best assignment": lambda x: (
        ns.RelaxedPermutation.from_dense(torch.softmax(x.scores, -1).unsqueeze(-2).expand(3, 9, 9))
        .permutation()
        .float()
    ),
    "sinkhorn until it is balanced": lambda x: ns.sinkhorn(logits_of(x), tolerance=1e-2).to_dense(),
    "exact_expectation": lambda x: estimators.exact_expectation(costs, x.scores[:, :4]),
    "permutation of a matrix": lambda x: (
        ns.RelaxedPermutation.from_dense(ns.neuralsort(x.scores).to_dense()).permutation().float()
    ),
}

FLOAT64 = ("KSubset.log_prob", "KSubset.marginals", "KSubset.entropy", "KSubset.sample")
"""What a device without it cannot do."""

_CUT, _ENUMERATED, _EXACT, _HARDENED, _ASSIGNED, _STOPPED = WAITS_OF_FUNCTIONS.values()
WAITS_OF_OTHERS: dict[str, tuple[str, ...]] = {
    "recall_at_k_loss": _CUT,
    "precision_at_k": _CUT,
    "recall_at_k": _CUT,
    "average_precision": _CUT,
    "reciprocal_rank": _CUT,
    "enumerated entropy": _ENUMERATED,
    "marginals": _ENUMERATED,
    "enumerated kl_divergence": _ENUMERATED,
    "exact_expectation": _EXACT,
    "permutation of a matrix": _HARDENED,
    "permutation of sinkhorn": _HARDENED,
    "best assignment": _ASSIGNED,
    "sinkhorn until it is balanced": _STOPPED,
}

DRAWS = (
    "sample", "rsample_given", "entropy of samples", "kl_divergence of samples",
    "RelaxedPlackettLuce", "stochastic_neuralsort", "relaxed_expectation",
    "straight_through_expectation", "score_function_expectation", "rebar_expectation",
)  # fmt: skip


@pytest.mark.parametrize("type_", ["xla", "mps"])
@pytest.mark.parametrize("name", OTHERS)
def test_functions_on_an_accelerator(name, type_):
    lists = problem(9, torch.float32)
    if name in FLOAT64 and type_ == "mps":
        with pytest.raises(TypeError, match="float64"):
            answer_there(OTHERS[name], lists, type_)
        return
    found = answer_there(OTHERS[name], lists, type_)
    assert found.waits == WAITS_OF_OTHERS.get(name, ())
    if name in DRAWS and type_ == "mps":  # in another dtype
        assert all(x.isfinite().all() for x in every(found))
    else:
        assert_as_exact(found, OTHERS[name], lists)


# -- the device itself -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "meet",
    [
        lambda x: x + torch.ones(4),
        lambda x: x * torch.tensor(2.0),
        lambda x: torch.where(x > 0, x, torch.zeros(())),
        lambda x: x[torch.tensor([0, 1])],
        lambda x: torch.stack([x, torch.ones(4)]),
    ],
)
def test_the_device_refuses_tensors_of_the_cpu(meet):
    with Accelerator() as device, pytest.raises(Meeting):
        meet(device.put(torch.randn(4)))


WAITING = {
    "item": lambda x: x.sum().item(),
    "bool": lambda x: bool(x.any()),
    "tolist": lambda x: x.tolist(),
    "nonzero": lambda x: x.nonzero(),
    "index by mask": lambda x: x[x > 0],
    "cpu": lambda x: x.cpu(),
    "to": lambda x: x.to("cpu"),
    "from the host": lambda x: torch.tensor([1.0], device=x.device),
    "equal": lambda x: torch.equal(x, x),
    "unique": lambda x: x.unique(),
}


@pytest.mark.parametrize("name", WAITING)
def test_the_device_notices_waits(name):
    with Accelerator() as device:
        WAITING[name](device.put(torch.randn(4)))
    assert device.log


def test_the_device_without_float64_refuses_it():
    with Accelerator("mps") as device, pytest.raises(TypeError, match="float64"):
        device.put(torch.randn(4)).double()


def test_every_relaxation_is_asked():
    assert {row for row, _ in CASES} == {*SHORT, *LONG}


# -- meta ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("row", "what"), CASES, ids=lambda x: x.replace(", ", "-"))
def test_meta_tensors_give_shapes(row, what):
    lists = problem(length(row), torch.float32)
    ask = of_row(row)[what]
    expected = answer(ask, copied(lists, torch.clone))
    found = answer(ask, copied(lists, lambda x: x.to("meta")))
    assert found.value.is_meta
    assert found.value.shape == expected.value.shape
    assert found.value.dtype == expected.value.dtype
    assert [x.shape for x in found.gradients] == [x.shape for x in expected.gradients]
