"""Devices: one made in Python, on which no tensor may meet one of the CPU, and `meta`.

Everything runs on it forward and backward, with the results of the CPU. Every time the host must
wait for the device is written down, and compared with what the documentation says of it.
"""

import functools
import types
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
from tests.capabilities import (
    CAPABILITIES,
    LONG,
    NETWORKS,
    ON_HOST,
    SHORT,
    WAITS,
    WAITS_OF_FUNCTIONS,
)
from tests.exports import BINARY, RELEVANCE_LOSSES
from tests.hostile import Lists, lists_of
from tests.portions import some_of
from tests.test_isolation import ALONE, LOSSES, OPERATORS, PADDED, RELAXATIONS

ROUNDING, MORE = (1e-6, 1e-5), (2, 8)
"""Errors of float32 over the largest magnitude; and how much more than the CPU's they may be: of
values, and of gradients, in which large numbers cancel."""

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


def on_cpu(ask: Ask, lists: Lists) -> tuple[Answer, Answer]:
    """In float32, as it is there, and in float64."""
    exactly = answer(ask, copied(lists, lambda x: x.double() if x.is_floating_point() else x))
    return answer(ask, copied(lists, torch.clone)), exactly


def assert_as_exact(found: Answer, beside: Answer, exactly: Answer) -> None:
    """Next to float64, no farther off than the CPU is in float32, or than rounding explains."""
    assert len(found.gradients) == len(exactly.gradients)
    answers = zip(*(every(x) for x in (found, beside, exactly)), strict=True)
    for i, (one, other, wanted) in enumerate(answers):
        rounding, more = ROUNDING[min(i, 1)], MORE[min(i, 1)]
        assert one.shape == wanted.shape
        scale = max(wanted.abs().max().item(), 1e-3)
        error, usual = ((x.double() - wanted).abs().max().item() / scale for x in (one, other))
        assert error <= max(more * usual, rounding), f"{error:.2g} off, the CPU {usual:.2g}"


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
    if row in LONG:
        return 600
    return 6 if row in NETWORKS else 12  # with more items, more layers


CASES = [(row, what) for row in (*SHORT, *LONG) for what in of_row(row)]
OF_LONG = ("sort of the scores", "product", "rank, padded", "log_prob, padded", "transpose, padded")
"""What every run asks of long lists everywhere: one of each kind."""
MORE_OF_LONG = (*OF_LONG, "entropy, padded", "row", "composed", "straight-through")


def cases(*of_long: str, of_short: tuple[str, ...] | None = None) -> pytest.MarkDecorator:
    """Runs a test of `row` and `what` for all cases.

    Every run has these of long lists; of short ones these, and all of one method, or all of all.
    """

    def in_every_run(row: str, what: str) -> bool:
        if row in LONG:
            return what in of_long
        return row == "neuralsort" or of_short is None or what in (*of_short, "to_dense", "values")

    every_run = [(row, what) for row, what in CASES if in_every_run(row, what)]
    return pytest.mark.parametrize(
        ("row", "what"), some_of(CASES, *every_run), ids=lambda x: x.replace(", ", "-")
    )


@functools.cache  # for both devices
def on_the_cpu(row: str, what: str) -> tuple[Answer, Answer]:
    return on_cpu(of_row(row)[what], problem(length(row), torch.float32))


@cases(*OF_LONG, "row", of_short=(*PADDED, *MORE_OF_LONG, *LOSSES, "soft_topk", "soft_quantile"))
def test_methods_on_an_accelerator(row, what):
    assert CAPABILITIES["CUDA"][row] is True
    ask, lists = of_row(row)[what], problem(length(row), torch.float32)
    found = answer_there(ask, lists, "xla")
    if row != "gumbel_sinkhorn":  # whose draws are those of the dtype
        assert_as_exact(found, *on_the_cpu(row, what))
    assert set(found.waits) <= set(WAITS.get(row, ()))


@pytest.mark.parametrize("row", [row for row, waits in WAITS.items() if waits])
def test_the_documented_waits_do_happen(row):
    lists = problem(length(row), torch.float32)
    asked = (of_row(row)[what] for what in ("sort of the scores", "product"))
    waits = (answer_there(ask, lists, "xla").waits for ask in asked)
    assert {wait for some in waits for wait in some} == set(WAITS[row])


@cases(*OF_LONG, of_short=(*MORE_OF_LONG, "knn_loss", "neural_ndcg"))
def test_methods_on_a_device_without_float64(row, what):
    """As exact as the CPU, which computes in float64, and without a wait unless on the host."""
    assert CAPABILITIES["MPS"][row] is True
    ask, lists = of_row(row)[what], problem(length(row), torch.float32)
    found = answer_there(ask, lists, "mps")
    if row != "gumbel_sinkhorn":  # whose draws are those of the dtype
        assert_as_exact(found, *on_the_cpu(row, what))
    crossing = {"from the host", "to the host"} if row in ON_HOST else set()
    assert set(found.waits) == crossing


# -- functions without a method, and what draws ----------------------------------------------------


def model(x: Lists) -> ns.PlackettLuce:
    return ns.PlackettLuce(x.scores, validate_args=False)


def short(x: Lists) -> ns.PlackettLuce:
    return ns.PlackettLuce(x.scores[:, :4], validate_args=False)


def subsets(x: Lists) -> ns.KSubset:
    return ns.KSubset(x.scores, 3, validate_args=False)


def costs(P: Any) -> Tensor:
    return P.rank()[..., 0]


def hard_ranks(x: Tensor) -> Tensor:
    return ns.soft_rank(x, tau=0.0)


def there(module: torch.nn.Module, x: Lists) -> Callable[..., Any]:
    """A module whose parameters and buffers are where the lists are."""
    state = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    if isinstance(x.scores, DeviceTensor):
        state = {name: Accelerator.active().put(value) for name, value in state.items()}
    return lambda *args: torch.func.functional_call(module, state, args)


class Learned(torch.nn.Module):
    """A soft sort and a loss that share a temperature, which is learned."""

    def __init__(self) -> None:
        super().__init__()
        self.sort = ns.nn.NeuralSort(tau=ns.nn.Temperature(0.5, learnable=True))
        self.loss = ns.nn.PermutationCrossEntropy()

    def forward(self, scores: Tensor, order: Tensor) -> Tensor:
        return self.loss(self.sort(scores), order)


class Annealed(torch.nn.Module):
    """A temperature that falls, once for every call."""

    def __init__(self) -> None:
        super().__init__()
        self.temperature = ns.nn.Temperature(2.0, end=0.5, steps=4)

    def forward(self, scores: Tensor) -> Tensor:
        self.temperature.step()
        return ns.softsort(scores, tau=self.temperature()).sort(scores)


def of_relevance(loss: torch.nn.Module, x: Lists) -> Tensor:
    most = 2 if isinstance(loss, BINARY) else 3
    return loss(x.scores, x.perm % most, mask=x.mask)


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
    "KSubset.log_prob": lambda x: subsets(x).log_prob(x.perm < 3),
    "KSubset.marginals": lambda x: subsets(x).marginals(),
    "KSubset.entropy": lambda x: subsets(x).entropy(),
    "KSubset.kl_divergence": lambda x: subsets(x).kl_divergence(
        ns.KSubset(x.payload, 3, validate_args=False)
    ),
    "KSubset.sample": lambda x: subsets(x).sample().to(x.scores.dtype),
    "KSubset.simple_sample": lambda x: subsets(x).simple_sample(),
    "KSubset.relaxed_sample": lambda x: subsets(x).relaxed_sample(tau=0.5),
    "KSubset.imle_sample": lambda x: subsets(x).imle_sample(),
    "KSubset.mode": lambda x: subsets(x).mode.to(x.scores.dtype),
    "soft_topk_mask": lambda x: ns.soft_topk_mask(x.scores, 3, tau=x.tau, mask=x.mask),
    "soft_topk_mask, hard": lambda x: ns.soft_topk_mask(x.scores, 3, tau=x.tau, hard=True),
    "sparse_threshold": lambda x: ns.soft_topk_mask(x.scores, 3, relax=ns.sparse_threshold),
    "midpoint_threshold": lambda x: ns.soft_topk_mask(x.scores, 3, relax=ns.midpoint_threshold),
    "conformal_quantile": lambda x: ns.conformal_quantile(x.scores, 0.3, mask=x.mask),
    "listwise_dpo_loss": lambda x: ns.listwise_dpo_loss(x.scores, x.payload, x.perm, mask=x.mask),
    "ranking_from": lambda x: ns.ranking_from(x.perm % 3, x.mask).to(x.scores.dtype),
    "straight_through": lambda x: ns.straight_through(x.payload.detach(), x.scores),
    "score_function_loss": lambda x: ns.score_function_loss(x.scores.log_softmax(-1), x.payload),
    "pad_groups": lambda x: ns.pad_groups(x.scores[:, 0], x.perm[:, 0] % 2)[0],
    "unpad_groups": lambda x: ns.unpad_groups(
        *ns.pad_groups(x.scores[:, 0], x.perm[:, 0] % 2), x.perm[:, 0] % 2
    ),
    "Blur": lambda x: ns.neuralsort(x.scores, tau=ns.Blur(1.0), mask=x.mask).sort(x.payload),
    "Blur that is looked for": lambda x: ns.sinkhorn(logits_of(x), tau=ns.Blur(1.0)).to_dense(),
    "perturbed": lambda x: estimators.perturbed(hard_ranks, x.scores, sigma=0.5, samples=4),
    "fenchel_young_loss": lambda x: ns.fenchel_young_loss(
        x.scores, x.perm + 1, function=hard_ranks, sigma=0.5, samples=4
    ),
    **{
        f"nn.{type(loss).__name__}": functools.partial(of_relevance, loss)
        for loss in RELEVANCE_LOSSES
    },
    "nn.NeuralSort, PermutationCrossEntropy, Temperature": lambda x: there(Learned(), x)(
        x.scores, x.perm
    ),
    "nn.Temperature, annealed": lambda x: there(Annealed(), x)(x.scores),
    "nn.SoftTopK": lambda x: ns.nn.SoftTopK(2, tau=0.5)(x.scores, mask=x.mask).weights,
    "nn.PlackettLuceNLL": lambda x: ns.nn.PlackettLuceNLL()(x.scores, x.perm, mask=x.mask),
    "nn.TopKCrossEntropy": lambda x: ns.nn.TopKCrossEntropy(k=2, tau=0.5)(x.scores, x.perm[:, 0]),
    "nn.DifferentiableKNN": lambda x: ns.nn.DifferentiableKNN(2, tau=0.5)(
        x.scores, x.payload, x.payload.square()
    ),
    "nn.KNNLoss": lambda x: ns.nn.KNNLoss(2)(ns.neuralsort(x.scores), x.payload > 0),
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

FLOAT64 = (
    "KSubset.log_prob", "KSubset.marginals", "KSubset.entropy", "KSubset.kl_divergence",
    "KSubset.sample", "KSubset.simple_sample", "KSubset.relaxed_sample",
)  # fmt: skip
"""What a device without it cannot do."""

_CUT, _GROUPED, _ENUMERATED, _EXACT, _HARDENED, _ASSIGNED, _STOPPED = WAITS_OF_FUNCTIONS.values()
WAITS_OF_OTHERS: dict[str, tuple[str, ...]] = {
    "recall_at_k_loss": _CUT,
    "nn.RecallAtKLoss": _CUT,
    "pad_groups": _GROUPED,
    "unpad_groups": _GROUPED,
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

GATES = ("soft_topk_mask", "soft_topk_mask, hard")
"""By `lapsum`, which a device without float64 has computed on the host."""

DRAWS = (
    "KSubset.imle_sample", "perturbed", "fenchel_young_loss",
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
    crossing = ("from the host", "to the host") if name in GATES and type_ == "mps" else ()
    assert found.waits == WAITS_OF_OTHERS.get(name, crossing)
    if name in DRAWS and type_ == "mps":  # in another dtype
        assert all(x.isfinite().all() for x in every(found))
    else:
        assert_as_exact(found, *on_cpu(OTHERS[name], lists))


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


def names_in(ask: Any) -> set[str]:
    """What a question calls: every name in its code, and in the functions that it is made of."""
    if isinstance(ask, functools.partial):
        return names_in(ask.func).union(*map(names_in, ask.args))
    if isinstance(ask, torch.nn.Module):
        return {type(ask).__name__}
    if not isinstance(ask, types.FunctionType):
        return set()
    globals_ = (ask.__globals__.get(name) for name in ask.__code__.co_names)
    parts = [x for x in globals_ if getattr(x, "__module__", None) == __name__ and x is not ask]
    parts = [x.__init__ if isinstance(x, type) else x for x in parts]
    inside = [c.co_names for c in ask.__code__.co_consts if isinstance(c, types.CodeType)]
    return {ask.__name__, *ask.__code__.co_names}.union(*inside, *map(names_in, parts))


def test_every_public_name_is_asked():
    """A new function, class or module has to run on the accelerators above."""
    asked = [*OTHERS.values(), *RELAXATIONS.values(), *TAKING_P.values()]
    asked += [method.function for method in registry.METHODS.values()]
    found = set().union(*map(names_in, asked))
    public = {*ns.__all__, *estimators.__all__, *metrics.__all__, *ns.nn.__all__}
    assert public - found == set()


# -- meta ------------------------------------------------------------------------------------------


@cases(*OF_LONG, of_short=MORE_OF_LONG)
def test_meta_tensors_give_shapes(row, what):
    lists = problem(length(row), torch.float32)
    expected, _ = on_the_cpu(row, what)
    found = answer(of_row(row)[what], copied(lists, lambda x: x.to("meta")))
    assert found.value.is_meta
    assert found.value.shape == expected.value.shape
    assert found.value.dtype == expected.value.dtype
    assert [x.shape for x in found.gradients] == [x.shape for x in expected.gradients]
