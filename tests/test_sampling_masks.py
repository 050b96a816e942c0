"""Masks in all that samples: a padded list is the list without its padding, in law and by seed."""

import functools
import itertools
import math

import pytest
import torch
from torch import Tensor

import neuralsort.torch as ns
from neuralsort.torch import estimators, nn
from tests import oracle
from tests.methods import every_method

MASK = torch.tensor([True, False, True, True, False])
LOGITS = torch.tensor([0.7, 0.0, -0.4, 0.2, 0.0], dtype=torch.float64)
SHORT = LOGITS[MASK]
HELD = [0.0, 1e9, torch.nan, torch.inf, -torch.inf]
"""What absent items may hold, and nothing changes."""


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def holding(value: float) -> Tensor:
    return LOGITS.masked_fill(~MASK, value).requires_grad_()


def cost(P: ns.RelaxedPermutation) -> Tensor:
    """Of the items that are there, in order: of padded lists and of short ones the same."""
    n = P.shape[-1]
    worth = torch.tensor([3.0, 1.0, -2.0], dtype=P.dtype)
    padded = torch.zeros(n, dtype=P.dtype).masked_scatter(MASK, worth) if n == 5 else worth
    return (P.sort(padded)[..., :3] * torch.tensor([1.0, 0.5, 2.0])).sum(-1).square()


SAMPLED = {
    "rsample": lambda x, **o: ns.RelaxedPlackettLuce(0.5, x, validate_args=False).rsample(
        (3,), **o
    ),
    "rsample of softsort": lambda x, **o: ns.RelaxedPlackettLuce(
        0.5, x, validate_args=False, relax=ns.softsort
    ).rsample((3,), **o),
    "sample": lambda x, **o: ns.RelaxedPlackettLuce(0.5, x, validate_args=False).sample((3,), **o),
    "stochastic_neuralsort": functools.partial(ns.stochastic_neuralsort, tau=0.5, samples=3),
    "stochastic softsort": functools.partial(
        ns.stochastic_neuralsort, tau=0.5, samples=3, relax=ns.softsort
    ),
    "gumbel_sinkhorn": lambda x, **o: ns.gumbel_sinkhorn(
        x.expand(5, 5), tau=0.5, samples=3, iterations=30, **o
    ),
}
"""By name: logits, a mask and a generator to relaxed permutations `(3, n, n)`."""

ESTIMATED = {
    "relaxed": functools.partial(estimators.relaxed_expectation, tau=0.5, samples=4),
    "straight-through": functools.partial(
        estimators.straight_through_expectation, tau=0.5, samples=4
    ),
    "score function": functools.partial(estimators.score_function_expectation, samples=4),
    "rebar": functools.partial(estimators.rebar_expectation, tau=0.5, samples=4),
}


@pytest.mark.parametrize("name", SAMPLED)
def test_what_absent_items_hold_changes_no_sample(name):
    results = []
    for value in HELD:
        logits = holding(value)
        P = SAMPLED[name](logits, mask=MASK, generator=seeded()).to_dense()
        results.append(P.detach())
        if P.requires_grad:
            (gradient,) = torch.autograd.grad(P[..., :3, 2].sum(), logits)
            assert gradient[MASK].isfinite().all()
            assert (gradient[~MASK] == 0).all()
    for P in results:
        assert torch.equal(P, results[0])
        assert torch.allclose(P.sum(-1), torch.ones((), dtype=P.dtype))
        assert (P[:, :3, ~MASK] == 0).all()
        assert torch.equal(P[:, 3:], torch.eye(5, dtype=P.dtype)[[1, 4]].expand(3, 2, 5))


@pytest.mark.parametrize("name", ESTIMATED)
def test_what_absent_items_hold_changes_no_estimate(name):
    results = []
    for value in HELD:
        logits = holding(value)
        estimate = ESTIMATED[name](cost, logits, mask=MASK, generator=seeded())
        (gradient,) = torch.autograd.grad(estimate, logits)
        results.append((estimate.detach(), gradient))
        assert (gradient[~MASK] == 0).all()
    for estimate, gradient in results:
        assert torch.equal(estimate, results[0][0])
        assert torch.equal(gradient, results[0][1])


@pytest.mark.parametrize("relax", [ns.neuralsort, ns.softsort, ns.lapsum])
def test_a_list_padded_at_its_end_is_the_list_by_seed(relax):
    """Noise is drawn item by item: one sample of one list has the same in front of its padding."""
    padded = torch.cat([SHORT, torch.tensor([torch.nan, 5.0])])
    mask = torch.arange(5) < 3
    for seed in range(5):
        draw = functools.partial(ns.stochastic_neuralsort, tau=0.5, samples=1, relax=relax)
        P = draw(padded, mask=mask, generator=seeded(seed)).to_dense()
        alone = draw(SHORT, generator=seeded(seed)).to_dense()
        assert torch.allclose(P[:, :3, :3], alone, atol=1e-12)


DRAWS = 20_000


def assert_same_law(rankings: Tensor) -> None:
    """Frequencies against exact probabilities: none is 5 standard errors off.

    For six rankings, a right sampler fails by chance once in 290,000 times.
    """
    found = rankings[:, :3].tolist()
    items = [0, 2, 3]
    for order in itertools.permutations(range(3)):
        p = math.exp(oracle.plackett_luce_log_prob(SHORT.tolist(), order))
        share = found.count([items[i] for i in order]) / DRAWS
        assert abs(share - p) <= 5 * math.sqrt(p * (1 - p) / DRAWS), order


def test_padded_samples_have_the_law_of_the_short_list():
    P = ns.stochastic_neuralsort(LOGITS, samples=DRAWS, mask=MASK, generator=seeded())
    assert_same_law(P.permutation())
    assert (P.permutation()[:, 3:] == torch.tensor([1, 4])).all()


def test_padded_sinkhorn_samples_have_the_law_of_short_ones():
    """Mean weights of padded and short draws, to 5 standard errors of their difference."""
    generator, n = seeded(), 4_000
    logits = torch.randn(5, 5, generator=generator)
    inner = logits[:3, MASK]
    padded = ns.gumbel_sinkhorn(logits, samples=n, mask=MASK, generator=generator).to_dense()
    short = ns.gumbel_sinkhorn(inner, samples=n, generator=generator).to_dense()
    one, other = padded[:, :3, MASK], short
    error = ((one.var(0) + other.var(0)) / n).sqrt()
    assert ((one.mean(0) - other.mean(0)).abs() <= 5 * error + 1e-6).all()


def test_noise_given_a_padded_ranking_sorts_into_it():
    ranking = torch.tensor([[3, 0, 2, 9, 9], [2, 3, 0, 0, 0]])
    model = ns.PlackettLuce(holding(torch.nan), validate_args=False)
    given = model.rsample_given(ranking, mask=MASK, generator=seeded())
    assert torch.equal(given[:, [1, 4]], torch.zeros(2, 2, dtype=given.dtype))
    order = given.masked_fill(~MASK, -torch.inf).argsort(-1, descending=True)
    assert torch.equal(order[:, :3], ranking[:, :3])
    (gradient,) = torch.autograd.grad(given.sum(), model.logits)
    assert gradient[MASK].isfinite().all()
    assert (gradient[~MASK] == 0).all()


def test_noise_given_a_padded_ranking_has_the_law_of_the_short_list():
    """Mean and variance by item, to 5 standard errors."""
    n = 20_000
    ranking = torch.tensor([3, 0, 2, 1, 4]).expand(n, 5)
    short = torch.tensor([2, 0, 1]).expand(n, 3)
    one = ns.PlackettLuce(LOGITS).rsample_given(ranking, mask=MASK, generator=seeded())[:, MASK]
    other = ns.PlackettLuce(SHORT).rsample_given(short, generator=seeded(1))
    error = ((one.var(0) + other.var(0)) / n).sqrt()
    assert ((one.mean(0) - other.mean(0)).abs() <= 5 * error).all()
    assert torch.allclose(one.var(0), other.var(0), rtol=0.1)


def exact(logits: Tensor, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
    logits = logits.clone().requires_grad_()
    value = estimators.exact_expectation(cost, logits, mask=mask)
    return value.detach(), torch.autograd.grad(value, logits)[0]


@pytest.mark.parametrize("held", HELD)
def test_the_exact_expectation_of_a_padded_list_is_that_of_the_short_one(held):
    value, gradient = exact(holding(held).detach(), MASK)
    wanted, wanted_gradient = exact(SHORT)
    assert torch.allclose(value, wanted)
    assert torch.allclose(gradient[MASK], wanted_gradient)
    assert (gradient[~MASK] == 0).all()


@pytest.mark.parametrize("name", ["score function", "rebar"])
def test_padded_unbiased_estimators_have_the_exact_mean(name):
    """Of values and gradients of 1,000 estimates from 50 samples each, to 5 standard errors."""
    lists = LOGITS.expand(1000, 5).clone().requires_grad_()
    value = ESTIMATED[name](cost, lists, samples=50, mask=MASK, generator=seeded())
    (gradient,) = torch.autograd.grad(value.sum(), lists)
    wanted, wanted_gradient = exact(SHORT)
    for found, truth in ((value.detach(), wanted), (gradient[:, MASK], wanted_gradient)):
        assert ((found.mean(0) - truth).abs() <= 5 * found.std(0) / 1000**0.5).all()


def test_softtopk_takes_a_mask():
    x = torch.tensor([3.0, 9.0, 2.0, 1.0])
    mask = torch.tensor([True, False, True, True])
    found = nn.SoftTopK(2, tau=0.01)(x, mask=mask)
    assert torch.allclose(found.weights, torch.tensor([1.0, 0.0, 1.0, 0.0]))
    assert torch.allclose(found.values, torch.tensor([3.0, 2.0]))


def test_a_relaxation_without_masks_says_so():
    def unmasked(scores: Tensor, *, tau: float) -> ns.RelaxedPermutation:
        return ns.neuralsort(scores, tau=tau)

    with pytest.raises(TypeError, match=r"relax.*mask"):
        ns.stochastic_neuralsort(LOGITS, samples=2, mask=MASK, relax=unmasked)


@pytest.mark.parametrize("method", every_method())
def test_stochastic_sorts_by_every_relaxation(method):
    P = ns.stochastic_neuralsort(LOGITS, tau=0.5, samples=4, relax=method.relax, mask=MASK)
    assert P.shape == (4, 5, 5)


VMAPPED = {
    "rsample": lambda x: ns.RelaxedPlackettLuce(0.5, x, validate_args=False).rsample((2,)).sort(x),
    "stochastic_neuralsort": lambda x: ns.stochastic_neuralsort(x, samples=2).sort(x),
    "masked": lambda x: ns.stochastic_neuralsort(x, samples=2, mask=MASK).sort(x),
    "sample": lambda x: ns.PlackettLuce(x, validate_args=False).sample((8,)).double(),
    "rsample_given": lambda x: ns.PlackettLuce(x, validate_args=False).rsample_given(
        torch.arange(5)
    ),
    "gumbel_sinkhorn": lambda x: ns.gumbel_sinkhorn(x.expand(5, 5), samples=2).to_dense(),
    "relaxed": lambda x: estimators.relaxed_expectation(cost, x, tau=0.5, samples=3),
    "score function": lambda x: estimators.score_function_expectation(cost, x, samples=3),
    "rebar": lambda x: estimators.rebar_expectation(cost, x, tau=0.5, samples=3),
}


@pytest.mark.parametrize("name", VMAPPED)
def test_noise_differs_between_calls_under_vmap_where_that_is_asked(name):
    lists = LOGITS.expand(3, 5).contiguous()
    different = torch.vmap(VMAPPED[name], randomness="different")(lists)
    same = torch.vmap(VMAPPED[name], randomness="same")(lists)
    assert different.isfinite().all()
    assert not torch.equal(different[0], different[1])
    assert torch.equal(same[0], same[1])
    # Also where what is mapped over is not what is sampled from.
    drawn = torch.vmap(lambda _: VMAPPED[name](LOGITS), randomness="different")(torch.arange(3))
    assert not torch.equal(drawn[0], drawn[1])
