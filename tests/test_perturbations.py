"""Perturbed optimisers: unbiased values and gradients, against quadrature; Fenchel-Young losses."""

import math

import pytest
import torch
from torch import Tensor

import neuralsort.torch as ns
from tests.conftest import assert_near

SCORES = torch.tensor([0.3, -0.5, 0.8, 0.1], dtype=torch.float64)
WEIGHTS = torch.tensor([1.0, -2.0, 0.5, 3.0], dtype=torch.float64)
SIGMA, REPEATS = 0.7, 3000


def normal_cdf(x: Tensor) -> Tensor:
    return (1 + torch.erf(x / math.sqrt(2))) / 2


def among_the_largest(scores: Tensor, sigma: float, k: int) -> Tensor:
    """Chances of each item to be among the k largest under noise, by quadrature over its own."""
    z = torch.linspace(-9, 9, 2001, dtype=torch.float64)
    density = torch.exp(-z.square() / 2) / math.sqrt(2 * math.pi) * (z[1] - z[0])
    chances = []
    for i in range(len(scores)):
        above = [
            1 - normal_cdf((scores[i] - scores[j]) / sigma + z)
            for j in range(len(scores))
            if j != i
        ]
        count = [torch.ones_like(z)]  # chances of 0, 1, ... of them above
        for p in above:
            more = [torch.zeros_like(z), *(p * c for c in count)]
            fewer = [*((1 - p) * c for c in count), torch.zeros_like(z)]
            count = [a + b for a, b in zip(more, fewer, strict=True)]
        chances.append((sum(count[:k]) * density).sum())
    return torch.stack(chances)


def ranks(scores: Tensor, sigma: float) -> Tensor:
    """Expected ranks from 1 for the smallest: a sum of chances of pairs."""
    apart = (scores.unsqueeze(-1) - scores) / (sigma * math.sqrt(2))
    return 0.5 + normal_cdf(apart).sum(-1)


def top(k: int):
    def mask(s: Tensor) -> Tensor:
        return torch.zeros_like(s, dtype=torch.bool).scatter(-1, s.topk(k).indices, True)

    return mask


FUNCTIONS = {
    "argmax": (
        lambda s: torch.nn.functional.one_hot(s.argmax(-1), 4),
        lambda s: among_the_largest(s, SIGMA, 1),
    ),
    "top-2": (top(2), lambda s: among_the_largest(s, SIGMA, 2)),
    "ranks": (lambda s: s.argsort(-1).argsort(-1) + 1, lambda s: ranks(s, SIGMA)),
}


@pytest.mark.parametrize("samples", [1, 2, 20])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_value_and_gradient_are_unbiased(name, samples):
    """Within 4 standard errors of the exact ones, over 3,000 estimates."""
    function, exact = FUNCTIONS[name]
    scores = SCORES.expand(REPEATS, 4).clone().requires_grad_()
    generator = torch.Generator().manual_seed(0)
    found = ns.estimators.perturbed(
        function, scores, sigma=SIGMA, samples=samples, generator=generator
    )
    assert found.shape == (REPEATS, 4)
    (slopes,) = torch.autograd.grad((found * WEIGHTS).sum(), scores)
    one = SCORES.clone().requires_grad_()
    value = exact(one)
    (slope,) = torch.autograd.grad((value * WEIGHTS).sum(), one)
    for estimates, wanted in ((found.detach(), value.detach()), (slopes, slope)):
        error = estimates.std(0) / math.sqrt(REPEATS)
        assert ((estimates.mean(0) - wanted).abs() <= 4 * error).all()


def test_the_baseline_takes_variance_away():
    """An offset of the function does not touch the gradient."""
    scores = SCORES.clone().requires_grad_()
    options = {"sigma": SIGMA, "samples": 50}
    slopes = []
    for offset in (0.0, 1e6):
        generator = torch.Generator().manual_seed(0)
        value = ns.estimators.perturbed(
            lambda s, offset=offset: top(2)(s).double() + offset,
            scores,
            generator=generator,
            **options,
        )
        slopes.append(torch.autograd.grad(value @ WEIGHTS, scores)[0])
    assert_near(slopes[1], slopes[0], 1e-8)


def test_any_shape_comes_out():
    scores = torch.randn(2, 3, 5, requires_grad=True)
    options = {"sigma": 0.5, "samples": 7}
    matrix = ns.estimators.perturbed(
        lambda s: torch.nn.functional.one_hot(s.argsort(-1), 5), scores, **options
    )
    assert matrix.shape == (2, 3, 5, 5)
    torch.testing.assert_close(matrix.sum(-1), torch.ones(2, 3, 5))
    largest = ns.estimators.perturbed(lambda s: s.amax(-1), scores, **options)
    assert largest.shape == (2, 3)
    assert torch.autograd.grad(largest.sum(), scores)[0].isfinite().all()


def test_absent_items_get_no_gradient():
    scores = torch.tensor([0.3, -torch.inf, 0.8, 0.1], requires_grad=True)
    value = ns.estimators.perturbed(top(2), scores, sigma=0.5, samples=100)
    assert value[1] == 0
    slope = torch.autograd.grad(value[0], scores)[0]
    assert slope.isfinite().all()
    assert slope[1] == 0
    assert slope[0] > 0


def test_without_much_noise_it_is_the_function():
    scores = torch.randn(6, 9)
    found = ns.estimators.perturbed(top(3), scores, sigma=1e-7, samples=3)
    torch.testing.assert_close(found, top(3)(scores).float())


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_gradients_have_the_dtype_of_the_scores(dtype):
    scores = torch.randn(4, 5).to(dtype).requires_grad_()
    value = ns.estimators.perturbed(top(2), scores, sigma=0.5, samples=10)
    assert torch.autograd.grad(value.sum(), scores)[0].dtype is dtype


# -- Fenchel-Young ---------------------------------------------------------------------------------


def fenchel_young(scores: Tensor, target: Tensor, **options) -> Tensor:
    return ns.fenchel_young_loss(
        scores, target, **{"function": top(2), "sigma": SIGMA, "samples": 5} | options
    )


def test_the_gradient_is_the_mean_answer_minus_the_target():
    """Unbiased: within 4 standard errors, over 3,000 estimates."""
    target = torch.tensor([1, 0, 0, 1])
    scores = SCORES.expand(REPEATS, 4).clone().requires_grad_()
    generator = torch.Generator().manual_seed(0)
    loss = fenchel_young(scores, target, reduction="none", generator=generator)
    assert loss.shape == (REPEATS,)
    assert (loss >= 0).all()
    (slopes,) = torch.autograd.grad(loss.sum(), scores)
    wanted = among_the_largest(SCORES, SIGMA, 2) - target
    error = slopes.std(0) / math.sqrt(REPEATS)
    assert ((slopes.mean(0) - wanted).abs() <= 4 * error).all()


def test_descent_learns_answers():
    generator = torch.Generator().manual_seed(0)
    target = top(2)(torch.randn(5, 6, generator=generator))
    scores = torch.zeros(5, 6, requires_grad=True)
    optimiser = torch.optim.Adam([scores], lr=0.1)
    for _ in range(200):
        optimiser.zero_grad()
        fenchel_young(scores, target, generator=generator).backward()
        optimiser.step()
    assert torch.equal(top(2)(scores), target)


@pytest.mark.parametrize("junk", [0.0, 1e30, math.nan, math.inf])
def test_padding_changes_nothing(junk):
    scores, mask = torch.randn(3, 7), torch.tensor([True] * 5 + [False] * 2)
    target = top(2)(torch.randn(3, 7).masked_fill(~mask, -torch.inf))
    padded = scores.masked_fill(~mask, junk).requires_grad_()

    def ask(x: Tensor, **options) -> Tensor:
        generator = torch.Generator().manual_seed(0)
        return fenchel_young(x, target, mask=mask, generator=generator, **options)

    torch.testing.assert_close(ask(padded), ask(scores))
    slope = torch.autograd.grad(ask(padded), padded)[0]
    assert slope.isfinite().all()
    assert (slope[:, 5:] == 0).all()


ERRORS = {
    "sigma": (
        ValueError,
        r"`sigma` must be a positive number, got 0\.0",
        lambda: ns.estimators.perturbed(top(1), SCORES, sigma=0.0, samples=2),
    ),
    "sigma text": (
        TypeError,
        r"`sigma` expects a number, got str",
        lambda: ns.estimators.perturbed(top(1), SCORES, sigma="1", samples=2),
    ),
    "samples": (
        ValueError,
        r"`samples` must be at least 1",
        lambda: ns.estimators.perturbed(top(1), SCORES, sigma=1.0, samples=0),
    ),
    "lost samples": (
        ValueError,
        r"for every sample and list, a shape that begins with \(2,\), got \(4,\)",
        lambda: ns.estimators.perturbed(lambda s: s.sum(0), SCORES, sigma=1.0, samples=2),
    ),
    "no tensor": (
        ValueError,
        r"begins with \(2,\), got float",
        lambda: ns.estimators.perturbed(lambda s: 1.0, SCORES, sigma=1.0, samples=2),
    ),
    "answers": (
        ValueError,
        r"`function` must answer with one number per item, shape \(5, 4\), got \(5,\)",
        lambda: fenchel_young(SCORES, SCORES > 0, function=lambda s: s.argmax(-1)),
    ),
    "target": (ValueError, "shape of the lists", lambda: fenchel_young(SCORES, torch.ones(3))),
}


@pytest.mark.parametrize("name", ERRORS)
def test_mistakes_are_explained(name):
    kind, match, call = ERRORS[name]
    with pytest.raises(kind, match=match):
        call()
