"""Plackett-Luce against its definition: density, samples, expectations, posterior noise."""

import functools
import itertools
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck
from torch.distributions import Distribution, kl_divergence

import neuralsort.torch as ns
from neuralsort.torch import distributions
from neuralsort.torch.noise import gumbel
from neuralsort.torch.rankings import strictly_descending
from tests import oracle
from tests.conftest import DTYPES, VALUE_RTOL, assert_near
from tests.methods import neuralsort_formula

EXTREME = {
    "apart": [1e4, -1e4, 0.0, 5e3],
    "apart, in order": [-1e4, -1.0, 0.0, 1e4],
    "tied": [0.0, 0.0, 0.0, 0.0],
    "tied far away": [-1e4, -1e4, 1e4, 1e4],
    "one item": [3.0],
}


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def model(*shape: int, scale: float = 1.0, dtype: torch.dtype = torch.float64) -> ns.PlackettLuce:
    return ns.PlackettLuce(scale * torch.randn(*shape, dtype=torch.float64).to(dtype))


@pytest.fixture
def monte_carlo(monkeypatch):
    """Lists of every length count as too long to enumerate."""
    monkeypatch.setattr(distributions, "LONGEST_ENUMERATED", 0)


# -- density ---------------------------------------------------------------------------------------


@given(st.lists(st.floats(-50, 50), min_size=1, max_size=7), st.randoms(), st.data())
def test_log_prob_is_the_definition(logits, random, data):
    k = data.draw(st.integers(0, len(logits)))
    ranking = random.sample(range(len(logits)), k)
    ours = ns.PlackettLuce(torch.tensor(logits, dtype=torch.float64)).log_prob(
        torch.tensor(ranking).long()
    )
    assert ours.item() == pytest.approx(oracle.plackett_luce_log_prob(logits, ranking), abs=1e-10)


@pytest.mark.parametrize("dtype", DTYPES)
def test_log_prob_in_every_dtype(dtype):
    d = model(3, 40, scale=3.0, dtype=dtype)
    ranking = d.sample((2,))
    exact = ns.PlackettLuce(d.logits.double()).log_prob(ranking)
    assert d.log_prob(ranking).dtype is dtype
    assert_near(d.log_prob(ranking), exact, VALUE_RTOL[dtype])


def test_log_prob_of_long_float32_lists_is_that_of_float64():
    """A running sum in float32 stalls: late terms are below its last place."""
    d = model(100_000, dtype=torch.float32)
    ranking = d.sample()
    assert_near(d.log_prob(ranking), ns.PlackettLuce(d.logits.double()).log_prob(ranking), 2**-23)


@pytest.mark.parametrize("n", range(1, 7))
@pytest.mark.parametrize("scale", [0.0, 1.0, 50.0])
def test_probabilities_of_all_rankings_sum_to_1(n, scale):
    d = ns.PlackettLuce(scale * (2 * torch.rand(5, n, dtype=torch.float64) - 1))
    total = d.log_prob(d.enumerate_support()).exp().sum(0)
    assert (total - 1).abs().max() < 1e-10


@pytest.mark.parametrize("k", range(5))
def test_probabilities_of_all_prefixes_sum_to_1_and_sum_over_what_follows(k):
    d = model(5, scale=3.0)
    prefixes = torch.tensor(list(itertools.permutations(range(5), k))).long()
    prob = d.log_prob(prefixes).exp()
    assert (prob.sum() - 1).abs() < 1e-10
    everything = d.enumerate_support()
    begins = (everything[:, None, :k] == prefixes).all(-1)  # (120, prefixes)
    whole = (begins * d.log_prob(everything).exp()[:, None]).sum(0)
    torch.testing.assert_close(prob, whole, rtol=1e-12, atol=0)


def test_adding_a_constant_changes_nothing():
    logits, ranking = torch.randn(6, dtype=torch.float64), torch.randperm(6)
    shifted = ns.PlackettLuce(logits + 1e4).log_prob(ranking)
    assert_near(shifted, ns.PlackettLuce(logits).log_prob(ranking), 1e-11)


@pytest.mark.parametrize("places", [6, 3])
def test_log_prob_derivatives(places):
    logits = torch.randn(2, 6, dtype=torch.float64, requires_grad=True)
    ranking = torch.rand(3, 2, 6).argsort(-1)
    mask = torch.rand(2, 6) < 0.7
    ordered = mask.long().gather(-1, ranking[0]).argsort(dim=-1, descending=True, stable=True)
    present_first = ranking[0].gather(-1, ordered)[..., :places]
    ranking = ranking[..., :places]

    def plain(logits: Tensor) -> Tensor:
        return ns.PlackettLuce(logits).log_prob(ranking)

    def masked(logits: Tensor) -> Tensor:
        return ns.plackett_luce_nll(logits, present_first, mask=mask)

    for function in (plain, masked):
        assert gradcheck(function, (logits,))
        assert gradgradcheck(function, (logits,))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("case", EXTREME)
@pytest.mark.parametrize("places", ["all", "some"])
@pytest.mark.parametrize("present", ["all", "some", "none"])
def test_extreme_logits_have_finite_gradients(case, dtype, places, present):
    logits = torch.tensor(EXTREME[case], dtype=dtype, requires_grad=True)
    n = len(logits)
    m = {"all": n, "some": n // 2, "none": 0}[present]
    mask = None if present == "all" else torch.arange(n) < m
    for perm in itertools.permutations(range(n)):
        ranking = [j for j in perm if j < m] + [j for j in perm if j >= m]
        k = n if places == "all" else n // 2
        value = ns.PlackettLuce(logits).log_prob(torch.tensor(ranking)[:k].long(), mask=mask)
        (gradient,) = torch.autograd.grad(value, logits, create_graph=True)
        assert value.isfinite()
        assert gradient.isfinite().all()
        assert torch.autograd.grad(gradient.square().sum(), logits)[0].isfinite().all()
        exact = oracle.plackett_luce_log_prob(EXTREME[case][:m], ranking[: min(k, m)])
        assert value.item() == pytest.approx(exact, rel=1e-6, abs=1e-6)


# -- masks -----------------------------------------------------------------------------------------


@given(st.lists(st.booleans(), min_size=1, max_size=7), st.integers(0, 7), st.integers(0, 2**16))
def test_masked_log_prob_is_that_of_the_shorter_list(mask, k, seed):
    n, k = len(mask), min(k, len(mask))
    logits = torch.randn(n, dtype=torch.float64, generator=seeded(seed))
    present = [j for j in range(n) if mask[j]]
    order = torch.randperm(len(present), generator=seeded(seed))[:k]
    listed = [present[i] for i in order]
    ranking = torch.tensor(listed + [-1] * (k - len(listed))).long()  # what follows is ignored

    padded = logits.clone().requires_grad_()
    value = ns.PlackettLuce(padded).log_prob(ranking, mask=torch.tensor(mask))
    (gradient,) = torch.autograd.grad(value, padded)

    short = logits[present].clone().requires_grad_()
    expected = ns.PlackettLuce(short).log_prob(order)
    (expected_gradient,) = torch.autograd.grad(expected, short)
    assert_near(value, expected, 1e-12, floor=1.0)
    assert_near(gradient[present], expected_gradient, 1e-12, floor=1.0)
    assert gradient.count_nonzero() <= len(present)
    assert not gradient[[j for j in range(n) if not mask[j]]].any()


def test_logits_of_absent_items_do_not_matter():
    mask = torch.tensor([True, False, True, True])
    logits = torch.tensor([1.0, 0.0, 2.0, 3.0])
    wild = logits.masked_fill(~mask, torch.inf)
    ranking = torch.tensor([3, 0, 2, 1])
    values, gradients = [], []
    for x in (logits, wild):
        x = x.clone().requires_grad_()
        values.append(ns.plackett_luce_nll(x, ranking, mask=mask))
        gradients.append(torch.autograd.grad(values[-1], x)[0])
    assert torch.equal(*values)
    assert torch.equal(*gradients)


def test_fully_masked_lists_have_log_probability_0():
    logits = torch.randn(3, 4, requires_grad=True)
    value = ns.PlackettLuce(logits).log_prob(
        torch.full((3, 4), -1), mask=torch.zeros(4, dtype=torch.bool)
    )
    assert torch.equal(value, torch.zeros(3))
    assert torch.equal(torch.autograd.grad(value.sum(), logits)[0], torch.zeros(3, 4))


def test_masks_may_differ_between_rankings_of_one_set_of_items():
    """Each ranking saw some of the items only."""
    logits = torch.randn(5, dtype=torch.float64)
    mask = torch.tensor([[True, True, False, False, True], [False, True, True, True, False]])
    ranking = torch.tensor([[4, 0, 1], [2, 3, 1]])
    value = ns.PlackettLuce(logits).log_prob(ranking, mask=mask)
    for i, items in enumerate(([0, 1, 4], [1, 2, 3])):
        place = torch.tensor([items.index(j) for j in ranking[i].tolist()])
        assert_near(value[i], ns.PlackettLuce(logits[items]).log_prob(place), 1e-12)


def test_masked_samples_put_absent_items_last():
    mask = torch.tensor([True, False, True, False, True])
    rankings = model(5).sample((2000,), mask=mask)
    assert torch.equal(rankings[:, 3:], torch.tensor([1, 3]).expand(2000, 2))
    assert rankings[:, :3].unique(dim=0).shape[0] == 6


# -- samples ---------------------------------------------------------------------------------------


def chi_square(rankings: Tensor, d: ns.PlackettLuce) -> float:
    """p-value of the counts of all rankings, pooling the rare ones so that 5 of each are due."""
    n = rankings.shape[-1]
    code = (rankings.reshape(-1, n) * n ** torch.arange(n)).sum(-1)
    support = d.enumerate_support()
    expected = d.log_prob(support).exp() * len(code)
    counts = (support * n ** torch.arange(n)).sum(-1)[:, None].eq(code.unique()).double() @ (
        code.unique(return_counts=True)[1].double()
    )
    rare = expected < 5
    expected = torch.cat([expected[~rare], expected[rare].sum(0, keepdim=True)])
    counts = torch.cat([counts[~rare], counts[rare].sum(0, keepdim=True)])
    some = expected > 0
    return stats.chisquare(counts[some].numpy(), expected[some].numpy()).pvalue


LOGITS = {
    "equal": [0.0, 0.0, 0.0, 0.0, 0.0],
    "graded": [0.5, -0.5, 1.0, 0.0, -1.0],
    "one strong": [3.0, 0.0, 0.2, -0.2, 0.1],
    "far from 0": [1000.5, 999.5, 1001.0, 1000.0, 999.0],
}


@pytest.mark.parametrize("case", LOGITS)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_samples_have_the_probabilities(case, dtype):
    """Draws come from the batch as well: noise shared there would show."""
    logits = torch.tensor(LOGITS[case], dtype=dtype)
    d = ns.PlackettLuce(logits.expand(400, 5))
    assert chi_square(d.sample((500,)), ns.PlackettLuce(logits.double())) > 1e-4


def test_the_test_above_rejects_noise_shared_by_the_batch():
    logits = torch.tensor(LOGITS["graded"], dtype=torch.float64)
    shared = logits.expand(400, 5) + gumbel((500, 1, 5))
    assert chi_square(shared.argsort(-1, descending=True), ns.PlackettLuce(logits)) < 1e-100


def test_lists_of_a_batch_are_independent():
    rankings = ns.PlackettLuce(torch.zeros(2, 4)).sample((20_000,))
    pair = (rankings[:, 0, 0] * 4 + rankings[:, 1, 0]).bincount(minlength=16).view(4, 4)
    assert stats.chi2_contingency(pair.numpy()).pvalue > 1e-4


def test_noise_does_not_tie_the_first_of_a_million():
    """float32 exponentials come in steps of 6e-8: the smallest of a million often coincide."""
    top = torch.stack([gumbel((10**6,), generator=seeded(i)).topk(100).values for i in range(3)])
    assert top.isfinite().all()
    assert (top.diff() < 0).all()
    assert top.max() > math.log(10**6) - 3


def test_generator_makes_samples_repeatable_and_leaves_the_global_state_alone():
    d = model(3, 5)
    state = torch.get_rng_state()
    draws = {
        "sample": lambda g: d.sample((4,), generator=g),
        "given": lambda g: d.rsample_given(d.mode, generator=g),
        "relaxed": lambda g: (
            ns.RelaxedPlackettLuce(1.0, d.logits).rsample((4,), generator=g).to_dense()
        ),
        "relaxed sample": lambda g: (
            ns.RelaxedPlackettLuce(1.0, d.logits).sample((4,), generator=g).to_dense()
        ),
        "stochastic": lambda g: ns.stochastic_neuralsort(
            d.logits, samples=2, generator=g
        ).to_dense(),
        "entropy": lambda g: model_of_10(d).entropy(samples=10, generator=g),
        "marginals": lambda g: model_of_10(d).marginals(samples=10, generator=g),
    }
    for name, draw in draws.items():
        assert torch.equal(draw(seeded(1)), draw(seeded(1))), name
        assert not torch.equal(draw(seeded(1)), draw(seeded(2))), name
    assert torch.equal(state, torch.get_rng_state())


def model_of_10(d: ns.PlackettLuce) -> ns.PlackettLuce:
    return ns.PlackettLuce(torch.cat([d.logits, d.logits + 0.1], -1))


# -- expectations ----------------------------------------------------------------------------------


def test_exact_expectations_are_sums_over_rankings():
    p, q = [0.3, -1.0, 2.0, 0.0], [1.0, 0.5, -0.5, 0.0]
    entropy, divergence, marginals = 0.0, 0.0, torch.zeros(4, 4, dtype=torch.float64)
    before = torch.zeros(4, 4, dtype=torch.float64)
    for ranking in itertools.permutations(range(4)):
        log_p = oracle.plackett_luce_log_prob(p, ranking)
        entropy -= math.exp(log_p) * log_p
        divergence += math.exp(log_p) * (log_p - oracle.plackett_luce_log_prob(q, ranking))
        for place, item in enumerate(ranking):
            marginals[place, item] += math.exp(log_p)
            for later in ranking[place + 1 :]:
                before[item, later] += math.exp(log_p)
    P, Q = (ns.PlackettLuce(torch.tensor(x, dtype=torch.float64)) for x in (p, q))
    assert P.entropy().item() == pytest.approx(entropy, abs=1e-12)
    assert kl_divergence(P, Q).item() == pytest.approx(divergence, abs=1e-12)
    assert_near(P.marginals(), marginals, 1e-12)
    assert_near(P.prob_before(), before + 0.5 * torch.eye(4), 1e-12)


def test_uniform_rankings_have_the_entropy_of_the_factorial():
    assert ns.PlackettLuce(torch.zeros(8, dtype=torch.float64)).entropy().item() == pytest.approx(
        math.lgamma(9)
    )


def test_exact_expectations_are_differentiable():
    p = torch.randn(2, 4, dtype=torch.float64, requires_grad=True)
    q = torch.randn(4, dtype=torch.float64, requires_grad=True)
    assert gradcheck(lambda p: ns.PlackettLuce(p).entropy(), (p,))
    assert gradcheck(lambda p: ns.PlackettLuce(p).marginals(), (p,))
    assert gradcheck(lambda p, q: kl_divergence(ns.PlackettLuce(p), ns.PlackettLuce(q)), (p, q))


@pytest.mark.parametrize("case", EXTREME)
def test_expectations_at_extreme_logits_are_finite(case):
    logits = torch.tensor(EXTREME[case], requires_grad=True)
    d = ns.PlackettLuce(logits)
    for value in (d.entropy(), d.marginals(), d.prob_before(), kl_divergence(d, d)):
        (gradient,) = torch.autograd.grad(value.sum(), logits)
        assert value.isfinite().all()
        assert gradient.isfinite().all()


def expected_gradient(function, *logits: Tensor) -> tuple[Tensor, ...]:
    logits = tuple(x.clone().requires_grad_() for x in logits)
    value = function(*map(ns.PlackettLuce, logits))
    return value.detach(), *torch.autograd.grad(value.sum(), logits)


@pytest.mark.parametrize("name", ["entropy", "kl_divergence"])
def test_monte_carlo_agrees_with_enumeration_in_value_and_gradient(name, monkeypatch):
    p, q = torch.randn(2, 5, dtype=torch.float64)
    logits = (p,) if name == "entropy" else (p, q)
    exact = expected_gradient(getattr(ns.PlackettLuce, name), *logits)
    monkeypatch.setattr(distributions, "LONGEST_ENUMERATED", 0)
    sampled = functools.partial(getattr(ns.PlackettLuce, name), samples=50)
    many = expected_gradient(sampled, *(x.expand(2000, 5) for x in logits))
    for one, estimates in zip(exact, many, strict=True):
        error = (estimates.mean(0) - one).abs()
        assert (error <= 4 * estimates.std(0) / 2000**0.5).all()
        assert (estimates.std(0) > 0).all()


def test_monte_carlo_marginals_agree_with_enumeration(monte_carlo):
    logits = torch.randn(2, 5, dtype=torch.float64, requires_grad=True)
    d = ns.PlackettLuce(logits)
    estimate = d.marginals(samples=40_000)
    weight = d.log_prob(torch.tensor(list(itertools.permutations(range(5))))[:, None]).exp()
    place = torch.nn.functional.one_hot(torch.tensor(list(itertools.permutations(range(5)))), 5)
    exact = torch.einsum("sb,sij->bij", weight, place.double())
    assert ((estimate - exact).abs() <= 4.5 * (exact * (1 - exact) / 40_000).sqrt()).all()
    assert_near(estimate.sum(-1), torch.ones(2, 5), 1e-12)
    assert_near(estimate.sum(-2), torch.ones(2, 5), 1e-12)
    assert not estimate.requires_grad


def test_mode_is_the_most_probable_ranking():
    d = model(20, 5)
    best = d.log_prob(d.enumerate_support()).argmax(0)
    assert torch.equal(d.mode, d.enumerate_support(expand=False)[best, 0])


# -- noise given a ranking -------------------------------------------------------------------------


def test_posterior_noise_over_samples_is_gumbel_noise():
    d = model(4, scale=2.0)
    perturbed = d.rsample_given(d.sample((20_000,)))
    for j in range(4):
        sample = (perturbed[:, j] - d.logits[j]).numpy()
        assert stats.kstest(sample, stats.gumbel_r.cdf).pvalue > 1e-4
    # Perturbed logits are independent of each other.
    correlation = torch.corrcoef((-perturbed + d.logits).exp().T)
    assert (correlation - torch.eye(4)).abs().max() < 0.04


def test_posterior_noise_is_what_rejection_leaves():
    logits = torch.tensor([1.0, 0.0, -0.5], dtype=torch.float64)
    ranking = torch.tensor([1, 0, 2])
    free = logits + gumbel((60_000, 3))
    kept = free[(free.argsort(-1, descending=True) == ranking).all(-1)]
    given = ns.PlackettLuce(logits).rsample_given(ranking.expand(len(kept), 3))
    assert len(kept) > 5000
    for one, other in [(kept, given), (kept.diff(), given.diff())]:
        for j in range(one.shape[1]):
            assert stats.ks_2samp(one[:, j].numpy(), other[:, j].numpy()).pvalue > 1e-4


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("scale", [0.0, 1.0, 1e4])
@pytest.mark.parametrize("n", [1, 5, 1000])
def test_sorting_posterior_noise_gives_back_the_ranking(dtype, scale, n):
    d = model(2, n, scale=scale, dtype=dtype)
    ranking = torch.rand(3, 2, n).argsort(-1)  # also rankings that would never be drawn
    perturbed = d.rsample_given(ranking)
    assert perturbed.dtype is dtype
    assert perturbed.isfinite().all()
    assert torch.equal(perturbed.argsort(-1, descending=True), ranking)


def test_values_move_by_rounding_only():
    values = torch.tensor([3.0, 3.0, 3.0, 1.0, 0.0, 0.0, -2.0, -2.0])
    apart = strictly_descending(values)
    assert (apart.diff() < 0).all()
    assert_near(apart, values, 3 * 2**-23)
    assert torch.equal(strictly_descending(apart), apart)


def test_posterior_noise_is_differentiable():
    logits = torch.randn(2, 4, dtype=torch.float64, requires_grad=True)
    ranking = torch.rand(3, 2, 4).argsort(-1)

    def draw(logits: Tensor) -> Tensor:
        return ns.PlackettLuce(logits).rsample_given(ranking, generator=seeded(3))

    assert gradcheck(draw, (logits,))
    assert gradgradcheck(draw, (logits,))


# -- relaxed samples -------------------------------------------------------------------------------


@pytest.mark.parametrize("tau", [0.1, 1.0, 10.0])
def test_relaxed_gradients_are_those_of_the_dense_formula(tau, form):
    logits = torch.randn(3, 6, dtype=torch.float64, requires_grad=True)
    x, weight = torch.randn(3, 6, 2).double(), torch.randn(4, 3, 6, 2).double()
    P = ns.RelaxedPlackettLuce(tau, logits).rsample((4,), generator=seeded(5))
    noise = gumbel((4, 3, 6), generator=seeded(5))
    formula = torch.softmax(neuralsort_formula(logits + noise) / tau, -1)
    assert_near(P @ x, formula @ x, 1e-10)
    ours, theirs = (
        torch.autograd.grad((weight * y).sum(), logits)[0] for y in (P @ x, formula @ x)
    )
    assert_near(ours, theirs, 1e-10)


def test_relaxed_samples_harden_to_samples():
    d = model(3, 6)
    P = ns.RelaxedPlackettLuce(0.3, d.logits).rsample((10,), generator=seeded(2))
    rankings = d.sample((10,), generator=seeded(2))
    assert torch.equal(P.permutation(), rankings)
    hard = P.straight_through().to_dense()
    assert torch.equal(hard, torch.nn.functional.one_hot(rankings, 6).double())


def test_relaxed_samples_learn_their_temperature():
    tau = torch.tensor(0.7, dtype=torch.float64, requires_grad=True)
    logits = torch.randn(2, 5, dtype=torch.float64, requires_grad=True)

    def draw(tau: Tensor, logits: Tensor) -> Tensor:
        return ns.RelaxedPlackettLuce(tau, logits).rsample((3,), generator=seeded()).to_dense()

    assert gradcheck(draw, (tau, logits))


def test_relaxed_samples_of_long_lists_do_not_write_the_matrix_down():
    logits = torch.randn(50_000, requires_grad=True)
    P = ns.RelaxedPlackettLuce(0.01, logits).rsample((2,))
    assert P.shape == (2, 50_000, 50_000)
    out = P.sort(torch.linspace(0, 1, 50_000))
    assert torch.autograd.grad(out.square().sum(), logits)[0].isfinite().all()


def test_relax_chooses_the_relaxation():
    logits = torch.randn(5)
    P = ns.RelaxedPlackettLuce(0.5, logits, relax=ns.softsort).rsample(generator=seeded(1))
    noise = gumbel((5,), generator=seeded(1)).float()
    assert_near(P.to_dense(), ns.softsort(logits + noise, tau=0.5).to_dense(), 1e-6)


def test_stochastic_neuralsort_is_the_relaxed_distribution():
    scores = torch.randn(2, 5)
    P = ns.stochastic_neuralsort(scores, tau=0.5, samples=7, generator=seeded(1))
    Q = ns.RelaxedPlackettLuce(0.5, scores).rsample((7,), generator=seeded(1))
    assert P.shape == (7, 2, 5, 5)
    assert torch.equal(P.to_dense(), Q.to_dense())


def test_temperature_per_list_survives_sampling_and_expansion():
    tau = torch.tensor([[0.1], [10.0]])
    d = ns.RelaxedPlackettLuce(tau, torch.randn(2, 5))
    entropy = d.expand((3, 2)).rsample((50,)).entropy().mean((0, 1, 3))
    assert entropy[0] < entropy[1]


# -- citizens of torch.distributions ---------------------------------------------------------------


@pytest.mark.parametrize("batch", [(), (2,), (3, 2), (0,)])
@pytest.mark.parametrize("n", [0, 1, 5])
def test_shapes(batch, n):
    d = model(*batch, n)
    assert isinstance(d, Distribution)
    assert (d.batch_shape, d.event_shape) == (batch, (n,))
    ranking = d.sample((4,))
    assert ranking.shape == (4, *batch, n)
    assert ranking.dtype is torch.int64
    assert d.support.check(ranking).all()
    assert d.log_prob(ranking).shape == (4, *batch)
    assert d.entropy().shape == batch
    assert d.marginals().shape == d.prob_before().shape == (*batch, n, n)
    assert d.mode.shape == (*batch, n)
    assert d.rsample_given(ranking).shape == (4, *batch, n)
    assert d.enumerate_support().shape == (math.factorial(n), *batch, n)
    assert d.enumerate_support(expand=False).shape == (math.factorial(n), *[1] * len(batch), n)
    assert kl_divergence(d, d).shape == batch
    relaxed = ns.RelaxedPlackettLuce(1.0, d.logits)
    assert (relaxed.batch_shape, relaxed.event_shape) == (batch, (n, n))
    assert relaxed.rsample((4,)).shape == (4, *batch, n, n)


def test_expand():
    d = model(2, 5)
    wide = d.expand((3, 2))
    assert isinstance(wide, ns.PlackettLuce)
    assert (wide.batch_shape, wide.event_shape) == ((3, 2), (5,))
    ranking = wide.sample()
    assert not torch.equal(ranking[0], ranking[1])
    assert torch.equal(wide.log_prob(ranking), d.log_prob(ranking))
    relaxed = ns.RelaxedPlackettLuce(0.5, d.logits, relax=ns.softsort).expand((3, 2))
    assert relaxed.relax is ns.softsort
    assert relaxed.rsample().shape == (3, 2, 5, 5)


def test_batches_can_become_events():
    d = model(3, 2, 5)
    joint = torch.distributions.Independent(d, 1)
    ranking = joint.sample((4,))
    assert joint.event_shape == (2, 5)
    assert_near(joint.log_prob(ranking), d.log_prob(ranking).sum(-1), 1e-12)


def test_repr():
    assert repr(model(2, 5)) == "PlackettLuce(logits: torch.Size([2, 5]))"
    relaxed = ns.RelaxedPlackettLuce(0.5, torch.zeros(2, 5))
    assert repr(relaxed) == (
        "RelaxedPlackettLuce(tau: 0.5, logits: torch.Size([2, 5]), relax: neuralsort)"
    )


def test_support_knows_permutations():
    support = model(3).support
    assert (support.is_discrete, support.event_dim) == (True, 1)
    values = torch.tensor([[0, 1, 2], [2, 0, 1], [0, 0, 1], [0, 1, 3], [-1, 0, 1]])
    assert support.check(values).tolist() == [True, True, False, False, False]


BAD_RANKINGS = {
    "repeated": ([0, 0, 1], None),
    "out of range": ([0, 1, 3], None),
    "negative": ([0, -1, 1], None),
    "absent": ([0, 1, 2], [True, False, True]),
    "repeated, masked": ([0, 0, 1], [True, False, True]),
}


@pytest.mark.parametrize("case", BAD_RANKINGS)
def test_rankings_are_validated_where_asked(case):
    ranking, mask = BAD_RANKINGS[case]
    mask = None if mask is None else torch.tensor(mask)
    strict = ns.PlackettLuce(torch.zeros(3), validate_args=True)  # compilers turn the default off
    with pytest.raises(ValueError, match=r"distinct items, from 0 to 2.*got.*places"):
        strict.log_prob(torch.tensor(ranking), mask=mask)


def test_validation_can_be_turned_off():
    loose = ns.PlackettLuce(torch.zeros(3), validate_args=False)
    assert loose.log_prob(torch.tensor([0, 0, 1])).isfinite()
    assert loose.expand((2,))._validate_args is False
    for value in (torch.nan, torch.inf, -torch.inf):
        with pytest.raises(ValueError, match="logits"):
            ns.PlackettLuce(torch.tensor([0.0, value]), validate_args=True)
    assert ns.PlackettLuce(torch.tensor([0.0, torch.nan]), validate_args=False).event_shape == (2,)


def test_divergence_broadcasts_batches():
    p, q = torch.randn(3, 1, 4).double(), torch.randn(2, 4).double()
    divergence = kl_divergence(ns.PlackettLuce(p), ns.PlackettLuce(q))
    for i, j in itertools.product(range(3), range(2)):
        alone = kl_divergence(ns.PlackettLuce(p[i, 0]), ns.PlackettLuce(q[j]))
        assert divergence[i, j].item() == pytest.approx(alone.item(), abs=1e-12)
    assert (divergence >= 0).all()


# -- the loss --------------------------------------------------------------------------------------


def test_nll_reductions():
    d, ranking = model(3, 5), torch.rand(3, 5).argsort(-1)
    each = -d.log_prob(ranking)
    assert torch.equal(ns.plackett_luce_nll(d.logits, ranking, reduction="none"), each)
    assert torch.equal(ns.plackett_luce_nll(d.logits, ranking), each.mean())
    assert torch.equal(ns.plackett_luce_nll(d.logits, ranking, reduction="sum"), each.sum())


def test_nll_of_the_first_place_is_cross_entropy():
    logits, label = torch.randn(6, 5, dtype=torch.float64), torch.randint(5, (6,))
    ours = ns.plackett_luce_nll(logits, label.unsqueeze(-1))
    assert_near(ours, torch.nn.functional.cross_entropy(logits, label), 1e-12)


def test_nll_maps_and_compiles():
    logits, ranking = torch.randn(4, 6), torch.rand(4, 6).argsort(-1)
    mask = torch.arange(6) < 4
    present_first = ranking.gather(-1, (ranking >= 4).int().argsort(dim=-1, stable=True))
    for rows, options in ((ranking, {}), (ranking[:, :3], {}), (present_first, {"mask": mask})):
        eager = ns.plackett_luce_nll(logits, rows, reduction="none", **options)
        mapped = torch.func.vmap(lambda x, r, o=options: ns.plackett_luce_nll(x, r, **o))(
            logits, rows
        )
        assert_near(mapped, eager, 1e-6)
        compiled = torch.compile(ns.plackett_luce_nll, backend="eager", fullgraph=True)
        assert torch.equal(compiled(logits, rows, reduction="none", **options), eager)


def test_a_common_offset_does_not_swallow_the_noise_of_relaxed_samples():
    logits = torch.tensor([[0.0, 2.0, 1.0], [3.0, 3.0, -1.0]])
    here, there = (
        ns.RelaxedPlackettLuce(0.5, logits + offset)
        .rsample((50,), generator=torch.Generator().manual_seed(0))
        .to_dense()
        for offset in (0.0, 2.0**20)
    )
    torch.testing.assert_close(here, there, rtol=0, atol=0)
    assert len({tuple(row) for row in here[:, 0].argmax(-1).tolist()}) > 1
