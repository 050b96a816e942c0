"""Gradient estimators against the exact gradient of the expected cost, by enumeration."""

import functools
import itertools
import json
import math

import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck

import neuralsort.torch as ns
from benchmarks import gradient_lab
from neuralsort.torch import estimators
from tests import oracle
from tests.conftest import assert_near

LISTS, SAMPLES = 1000, 100
"""10^5 samples: that many estimates, from that many samples each."""

TARGET = torch.tensor([2.0, -1.0, 0.5, 1.0, -0.3], dtype=torch.float64)
OFFSET = 10.0

UNBIASED = {
    "score function": functools.partial(estimators.score_function_expectation, baseline=None),
    "leave one out": estimators.score_function_expectation,
    "rebar": functools.partial(estimators.rebar_expectation, tau=1.0),
    "rebar, no baseline": functools.partial(estimators.rebar_expectation, tau=1.0, baseline=None),
    "rebar, half strength": functools.partial(estimators.rebar_expectation, tau=0.2, strength=0.5),
    "rebar, softsort": functools.partial(estimators.rebar_expectation, tau=1.0, relax=ns.softsort),
}

BIASED = {
    "relaxed": estimators.relaxed_expectation,
    "straight-through": estimators.straight_through_expectation,
}


def cost(P: ns.RelaxedPermutation) -> Tensor:
    """How far values in the order of P are from a target, and an offset."""
    n = P.shape[-1]
    values = torch.linspace(-1, 2, n, dtype=P.dtype).square()
    return (P.sort(values) - TARGET[:n]).square().sum(-1) + OFFSET


def logits(n: int) -> Tensor:
    return torch.linspace(1.0, -1.0, n, dtype=torch.float64)[torch.randperm(n)]


def estimates(estimator, at: Tensor, samples: int = SAMPLES, of=cost, **options):
    """Values and gradients of `LISTS` independent estimates."""
    lists = at.expand(LISTS, len(at)).clone().requires_grad_()
    value = estimator(of, lists, samples=samples, **options)
    return value.detach(), torch.autograd.grad(value.sum(), lists)[0]


def exact(at: Tensor) -> tuple[Tensor, Tensor]:
    at = at.clone().requires_grad_()
    value = estimators.exact_expectation(cost, at)
    return value.detach(), torch.autograd.grad(value, at)[0]


def test_exact_expectation_is_the_sum_over_rankings():
    at = logits(4)
    total = 0.0
    for ranking in itertools.permutations(range(4)):
        P = ns.RelaxedPermutation.from_dense(torch.tensor(oracle.hard_matrix(ranking)))
        total += math.exp(oracle.plackett_luce_log_prob(at.tolist(), ranking)) * cost(P).item()
    assert exact(at)[0].item() == pytest.approx(total, rel=1e-12)
    batch = torch.stack([at, at.flip(0)]).requires_grad_()
    assert gradcheck(functools.partial(estimators.exact_expectation, cost), (batch,))


@pytest.mark.parametrize("n", [4, 5])
@pytest.mark.parametrize("name", UNBIASED)
def test_unbiased_estimators_have_the_exact_mean(name, n):
    at = logits(n)
    for truth, sampled in zip(exact(at), estimates(UNBIASED[name], at), strict=True):
        error = (sampled.mean(0) - truth).abs()
        assert (error <= 4 * sampled.std(0) / LISTS**0.5).all()


def test_the_test_above_rejects_a_biased_estimator():
    at = logits(4)
    for name, estimator in BIASED.items():
        gradient = estimates(functools.partial(estimator, tau=5.0), at)[1]
        error = (gradient.mean(0) - exact(at)[1]).abs()
        assert (error > 10 * gradient.std(0) / LISTS**0.5).any(), name


def test_leave_one_out_removes_the_variance_of_an_offset():
    at = logits(5)
    plain, ours = (
        estimates(UNBIASED[name], at, samples=10)[1].var(0).sum()
        for name in ("score function", "leave one out")
    )
    assert ours < plain / 5


def test_rebar_has_less_variance_than_the_score_function():
    at = logits(5)

    def linear(P: ns.RelaxedPermutation) -> Tensor:
        place = torch.arange(5, dtype=P.dtype)
        return P.sort(TARGET) @ place

    for baseline, gain in (("leave_one_out", 1.5), (None, 5.0)):
        options = {"samples": 10, "baseline": baseline, "at": at, "of": linear}
        plain = estimates(estimators.score_function_expectation, **options)[1]
        rebar = estimates(functools.partial(estimators.rebar_expectation, tau=3.0), **options)[1]
        assert rebar.var(0).sum() < plain.var(0).sum() / gain


def test_rebar_without_strength_is_the_plain_score_function():
    at = logits(5).expand(3, 5).clone().requires_grad_()
    gradients = []
    for estimator in (
        functools.partial(estimators.rebar_expectation, tau=1.0, strength=0.0, baseline=None),
        UNBIASED["score function"],
    ):
        value = estimator(cost, at, samples=4, generator=torch.Generator().manual_seed(0))
        gradients.append(torch.autograd.grad(value.sum(), at)[0])
    assert_near(*gradients, 1e-12)


def test_relaxed_gradients_tend_to_the_exact_one():
    """For a cost of relaxed values the bias falls with the temperature."""
    at = logits(4)
    errors = []
    for tau in (3.0, 0.3, 0.03):
        estimator = functools.partial(estimators.relaxed_expectation, tau=tau)
        errors.append((estimates(estimator, at)[1].mean(0) - exact(at)[1]).norm().item())
    assert errors == sorted(errors, reverse=True)
    assert errors[-1] < 0.25 * errors[0]


def test_straight_through_costs_are_those_of_permutations():
    at = logits(4)
    seen = []

    def spy(P: ns.RelaxedPermutation) -> Tensor:
        seen.append(P.to_dense())
        return cost(P)

    value = estimators.straight_through_expectation(spy, at, tau=5.0, samples=2000)
    assert set(seen[0].unique().tolist()) == {0.0, 1.0}
    assert abs(value.item() - exact(at)[0].item()) < 0.2


def test_straight_through_gradient_is_that_of_the_relaxed_matrix():
    at = logits(4).requires_grad_()
    weight = torch.randn(4, 4, dtype=torch.float64)

    def linear(P: ns.RelaxedPermutation) -> Tensor:
        return (P.to_dense() * weight).sum((-1, -2))

    gradients = []
    for estimator in BIASED.values():
        generator = torch.Generator().manual_seed(0)
        value = estimator(linear, at, tau=1.0, samples=5, generator=generator)
        gradients.append(torch.autograd.grad(value, at)[0])
    assert_near(*gradients, 1e-12)


@pytest.mark.parametrize("name", [*UNBIASED, *BIASED])
def test_parameters_of_the_cost_get_their_gradient(name):
    estimator = {**UNBIASED, **{k: functools.partial(v, tau=0.5) for k, v in BIASED.items()}}[name]
    scale = torch.tensor(2.0, dtype=torch.float64, requires_grad=True)
    value = estimator(lambda P: scale * cost(P), logits(4), samples=20)
    assert_near(torch.autograd.grad(value, scale)[0], value.detach() / 2, 1e-12)


@pytest.mark.parametrize("name", UNBIASED)
def test_estimators_repeat_with_a_generator(name):
    def run(seed: int) -> Tensor:
        generator = torch.Generator().manual_seed(seed)
        return UNBIASED[name](cost, logits(5), samples=3, generator=generator)

    torch.manual_seed(0)
    first = run(1)
    torch.manual_seed(0)
    assert torch.equal(first, run(1))


# -- the surrogate ---------------------------------------------------------------------------------


def test_score_function_loss_by_hand():
    log_prob = torch.randn(4, 3, dtype=torch.float64, requires_grad=True)
    costs = torch.randn(4, 3, dtype=torch.float64)
    for baseline in ("leave_one_out", None):
        loss = ns.score_function_loss(log_prob, costs, baseline=baseline)
        assert torch.equal(loss, costs.mean(0))
        (gradient,) = torch.autograd.grad(loss.sum(), log_prob)
        for s, j in itertools.product(range(4), range(3)):
            others = [costs[r, j].item() for r in range(4) if r != s]
            mean = sum(others) / 3 if baseline else 0.0
            expected = (costs[s, j].item() - mean) / 4
            assert gradient[s, j].item() == pytest.approx(expected, abs=1e-12)


# -- the laboratory --------------------------------------------------------------------------------


def test_laboratory_writes_lines_and_draws_them(tmp_path):
    pytest.importorskip("matplotlib")
    lines, figure = tmp_path / "lines.jsonl", tmp_path / "figure.png"
    sizes = ["--n", "3", "--taus", "0.3", "3", "--estimates", "50", "--seeds", "1"]
    assert gradient_lab.main([*sizes, "--json", str(lines), "--figure", str(figure)]) == 0
    results = [json.loads(line) for line in lines.read_text().splitlines()]
    assert len(results) == 2 * (2 + 3 * 2)  # objectives x (no temperature + temperatures)
    for result in results:
        metrics = result["metrics"]
        assert all(math.isfinite(value) for value in metrics.values())
        if result["method"] in ("score function", "leave one out", "REBAR"):
            noise = metrics["relative_bias_standard_error"]
            assert metrics["relative_bias"] < 4 * noise
    assert figure.stat().st_size > 10_000
