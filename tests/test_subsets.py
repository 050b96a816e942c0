"""Subsets of k items against enumeration; extremes; samples and their gradients; manners."""

import itertools
import math

import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck
from torch.distributions import kl_divergence

import neuralsort.torch as ns
from tests.conftest import assert_near

INF = float("inf")
EXACT = 1e-10

LOGITS = {
    "normal": lambda n: torch.randn(5, n, dtype=torch.float64),
    "ties": lambda n: torch.randint(-1, 2, (5, n)).double(),
    "far apart": lambda n: 30 * torch.randn(5, n, dtype=torch.float64),
    "enormous": lambda n: 1e4 * torch.randint(-1, 2, (5, n)).double(),
    "at an offset": lambda n: torch.randn(5, n, dtype=torch.float64) + 1e6,
}

each_size = pytest.mark.parametrize(
    ("n", "k"), [(n, k) for n in range(1, 9) for k in range(n + 1)], ids=lambda x: str(x)
)


def masks(n: int, k: int) -> Tensor:
    """All subsets, `(number, n)`."""
    rows = [[i in chosen for i in range(n)] for chosen in itertools.combinations(range(n), k)]
    return torch.tensor(rows).reshape(math.comb(n, k), n)


def enumerated(logits: Tensor, k: int) -> Tensor:
    """Log-probabilities `(number, ...)` of all subsets, by the definition."""
    every = masks(logits.shape[-1], k)
    weights = torch.stack([logits[..., one].sum(-1) for one in every])
    return weights - weights.logsumexp(0)


# -- enumeration -----------------------------------------------------------------------------------


@each_size
@pytest.mark.parametrize("kind", LOGITS)
def test_everything_is_what_enumeration_gives(n, k, kind):
    logits, others = LOGITS[kind](n), LOGITS[kind](n)
    model, other = ns.KSubset(logits, k), ns.KSubset(others, k)
    wanted, theirs = enumerated(logits, k), enumerated(others, k)
    # An offset of 1e6 costs the sums of the oracle, not ours, ten digits.
    exact = 1e-8 if kind == "at an offset" else EXACT
    found = model.log_prob(model.enumerate_support())
    torch.testing.assert_close(found, wanted, rtol=1e-14, atol=exact)
    chance = wanted.exp()
    share = (chance.unsqueeze(-1) * masks(n, k).unsqueeze(1)).sum(0)
    torch.testing.assert_close(model.marginals(), share, rtol=0, atol=exact)
    torch.testing.assert_close(model.variance, share * (1 - share), rtol=0, atol=exact)
    torch.testing.assert_close(model.entropy(), -(chance * wanted).sum(0), rtol=0, atol=exact)
    # Of 1e4 times a chance, whose logarithm is a difference of sums as large.
    divergence = (chance * (wanted - theirs)).sum(0)
    torch.testing.assert_close(kl_divergence(model, other), divergence, rtol=1e-11, atol=exact)
    assert torch.equal(masks(n, k), ns.KSubset(logits[0], k).enumerate_support())
    best = model.log_prob(model.mode)
    assert (best >= wanted.max(0).values - exact).all()


@pytest.mark.parametrize("what", ["marginals", "entropy", "log_prob", "kl", "relaxed"])
@pytest.mark.parametrize("k", [1, 2, 4])
def test_derivatives(what, k, fast_mode):
    def ask(logits: Tensor) -> Tensor:
        model = ns.KSubset(logits, k)
        if what == "relaxed":
            generator = torch.Generator().manual_seed(0)
            return model.relaxed_sample((2,), tau=0.7, generator=generator)
        if what == "log_prob":
            return model.log_prob(torch.arange(5) < k)
        if what == "kl":
            return model.kl_divergence(ns.KSubset(2 * logits.flip(-1), k))
        return getattr(model, what)()

    for values in (torch.randn(2, 5), torch.tensor([1.0, 0.0, 1.0, 1.0, 0.0])):
        logits = values.double().requires_grad_()
        assert gradcheck(ask, logits)
        assert gradgradcheck(ask, logits, fast_mode=fast_mode)


def test_the_gradient_of_the_log_probability_is_membership_minus_marginals():
    logits = torch.randn(6, dtype=torch.float64, requires_grad=True)
    model = ns.KSubset(logits, 3)
    (slope,) = torch.autograd.grad(model.log_prob(model.mode), logits)
    assert_near(slope, model.mode.double() - model.marginals(), 1e-12)


# -- extremes --------------------------------------------------------------------------------------


@pytest.mark.parametrize("what", ["marginals", "entropy"])
def test_absent_items_change_nothing(what):
    logits = torch.randn(4, 6, dtype=torch.float64)
    where = torch.tensor([0, 2, 3, 6, 7, 8])
    mask = torch.zeros(9, dtype=torch.bool).index_fill(0, where, True)
    padded = torch.full((4, 9), torch.nan, dtype=torch.float64)
    padded[:, where] = logits
    padded = padded.masked_fill(~mask, -torch.inf).requires_grad_()
    logits.requires_grad_()
    found, wanted = (getattr(ns.KSubset(x, 2), what)() for x in (padded, logits))
    weight = torch.randn(wanted.shape, dtype=torch.float64)
    (slope,) = torch.autograd.grad((wanted * weight).sum(), logits)
    if what == "marginals":
        assert (found[:, ~mask] == 0).all()
        found = found[:, where]
    assert_near(found, wanted, 1e-12)
    (padded_slope,) = torch.autograd.grad((found * weight).sum(), padded)
    assert_near(padded_slope[:, where], slope, 1e-12)
    assert (padded_slope[:, ~mask] == 0).all()
    assert not ns.KSubset(padded, 2).sample((50,))[..., ~mask].any()


def test_certain_items_are_always_in():
    logits = torch.tensor([0.3, INF, -1.0, -INF, 2.0], dtype=torch.float64, requires_grad=True)
    model, rest = ns.KSubset(logits, 3), ns.KSubset(logits[[0, 2, 4]], 2)
    assert_near(model.marginals()[[0, 2, 4]], rest.marginals(), 1e-12)
    assert model.marginals()[[1, 3]].tolist() == [1.0, 0.0]
    assert_near(model.entropy(), rest.entropy(), 1e-12)
    chosen = torch.tensor([True, True, False, False, True])
    assert_near(model.log_prob(chosen), rest.log_prob(chosen[[0, 2, 4]]), 1e-12)
    for never in ([0, 2, 4], [1, 3, 4]):
        chosen = torch.zeros(5, dtype=torch.bool).index_fill(0, torch.tensor(never), True)
        assert model.log_prob(chosen) == -INF
    assert model.sample((100,))[:, 1].all()
    for value in (model.entropy(), model.marginals()[0], model.log_prob(model.mode)):
        (slope,) = torch.autograd.grad(value, logits, retain_graph=True)
        assert slope.isfinite().all()
        assert (slope[[1, 3]] == 0).all()


def test_the_divergence_is_infinite_from_what_the_other_rules_out():
    free = ns.KSubset(torch.zeros(4), 2)
    bound = ns.KSubset(torch.tensor([0.0, -INF, 0.0, 0.0]), 2)
    assert kl_divergence(free, bound) == INF
    torch.testing.assert_close(kl_divergence(bound, free), torch.tensor(math.log(6 / 3)))


@pytest.mark.parametrize("k", [0, 4])
def test_one_subset_is_certain(k):
    logits = torch.randn(2, 4, requires_grad=True)
    model = ns.KSubset(logits, k)
    everything = torch.full((2, 4), k == 4)
    assert torch.equal(model.sample(), everything)
    assert torch.equal(model.mode, everything)
    assert_near(model.marginals(), everything.float(), 1e-6)
    assert (model.log_prob(everything).abs() < 1e-6).all()
    assert (model.entropy().abs() < 1e-6).all()
    value = model.marginals().sum() + model.entropy().sum() + model.log_prob(everything).sum()
    assert (torch.autograd.grad(value, logits)[0].abs() < 1e-6).all()


def test_lists_without_items_and_batches_without_lists():
    assert ns.KSubset(torch.zeros(3, 0), 0).entropy().tolist() == [0, 0, 0]
    assert ns.KSubset(torch.zeros(3, 0), 0).sample((2,)).shape == (2, 3, 0)
    empty = ns.KSubset(torch.zeros(0, 4), 2)
    assert empty.marginals().shape == empty.sample().shape == (0, 4)
    assert empty.log_prob(empty.mode).shape == (0,)


def test_a_nan_or_an_impossible_list_spoils_itself_alone():
    logits = torch.tensor([[0.0, 1.0, 2.0], [0.0, torch.nan, 1.0], [0.0, -INF, -INF]])
    model = ns.KSubset(logits, 2, validate_args=False)
    chosen = torch.tensor([True, True, False])
    for value in (model.entropy(), model.marginals().sum(-1), model.log_prob(chosen)):
        assert value.isnan().tolist() == [False, True, True]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_short_types_lose_no_more_than_their_rounding(dtype):
    logits = torch.randn(3, 200).to(dtype)
    model, long = ns.KSubset(logits, 40), ns.KSubset(logits.double(), 40)
    for what in ("marginals", "entropy"):
        found, wanted = getattr(model, what)(), getattr(long, what)()
        assert found.dtype is dtype
        torch.testing.assert_close(found, wanted.to(dtype))
    assert_near(long.marginals().sum(-1), torch.full((3,), 40.0), 1e-12)


# -- samples ---------------------------------------------------------------------------------------


def test_samples_are_as_frequent_as_they_should_be():
    """Every subset within 4 standard errors of its probability, in 40,000 draws."""
    model = ns.KSubset(torch.tensor([0.5, -1.0, 1.5, 0.0, -0.5], dtype=torch.float64), 2)
    generator = torch.Generator().manual_seed(0)
    drawn = model.sample((40_000,), generator=generator)
    every = model.enumerate_support()
    share = (drawn.unsqueeze(1) == every).all(-1).double().mean(0)
    chance = model.log_prob(every).exp()
    assert ((share - chance).abs() <= 4 * (chance * (1 - chance) / 40_000).sqrt()).all()


def test_every_list_has_its_own_noise():
    generator = torch.Generator().manual_seed(0)
    drawn = ns.KSubset(torch.zeros(10, 30), 15).sample((3,), generator=generator)
    assert len({tuple(one) for one in drawn.flatten(0, 1).tolist()}) == 30
    again = ns.KSubset(torch.zeros(10, 30), 15).sample((3,), generator=generator.manual_seed(0))
    assert torch.equal(drawn, again)


@pytest.mark.parametrize("tau", [1e-3, 0.5, 10.0])
def test_relaxed_samples_are_memberships(tau):
    logits = torch.randn(4, 50)
    model = ns.KSubset(logits, 7)
    soft = model.relaxed_sample((20,), tau=tau, generator=torch.Generator().manual_seed(0))
    assert soft.shape == (20, 4, 50)
    assert (soft >= 0).all()
    assert (soft <= 1).all()
    assert_near(soft.sum(-1), torch.full((20, 4), 7.0), 1e-6)
    noise = -torch.empty(20, 4, 50, dtype=torch.float64).exponential_(
        generator=torch.Generator().manual_seed(0)
    ).log()  # fmt: skip
    hard = (logits + noise).topk(7).indices
    if tau == 1e-3:
        assert soft.gather(-1, hard).mean() > 0.99


# -- gradients of samples --------------------------------------------------------------------------

LOGITS_OF_FOUR = torch.tensor([0.4, -0.8, 1.0, 0.1], dtype=torch.float64)
COST = torch.tensor([1.0, -0.5, 2.0, 0.7], dtype=torch.float64)
REPEATS = 4000


def estimated(draw) -> tuple[Tensor, Tensor]:
    """Mean gradient of a linear cost over many draws, and its standard error."""
    logits = LOGITS_OF_FOUR.expand(REPEATS, 4).clone().requires_grad_()
    value = (draw(ns.KSubset(logits, 2)) * COST).sum()
    (each,) = torch.autograd.grad(value, logits)
    return each.mean(0), each.std(0) / math.sqrt(REPEATS)


def within_four_errors(found: Tensor, wanted: Tensor, error: Tensor) -> None:
    assert ((found - wanted).abs() <= 4 * error + 1e-12).all(), (found, wanted, error)


def test_simple_samples_have_the_exact_gradient_of_a_linear_cost():
    """By enumeration of the subsets; without variance."""
    logits = LOGITS_OF_FOUR.clone().requires_grad_()
    expected = (enumerated(logits, 2).exp() * (masks(4, 2) * COST).sum(-1)).sum()
    (wanted,) = torch.autograd.grad(expected, logits)
    found, error = estimated(lambda model: model.simple_sample())
    assert_near(found, wanted, 1e-12)
    assert error.max() < 1e-12
    model = ns.KSubset(LOGITS_OF_FOUR, 2)
    drawn = model.simple_sample((20_000,))
    assert torch.equal(drawn.sum(-1), torch.full((20_000,), 2.0, dtype=torch.float64))
    costs = (drawn * COST).sum(-1)
    within_four_errors(costs.mean(), expected.detach(), costs.std() / math.sqrt(20_000))


def top_two(logits: Tensor) -> Tensor:
    """Chances to be among the first two of a Plackett-Luce ranking, by enumeration."""
    return ns.PlackettLuce(logits).marginals()[..., :2, :].sum(-2)


@pytest.mark.parametrize("strength", [0.3, 1.0, 3.0])
def test_implicit_mle_is_unbiased_for_its_difference_quotient(strength):
    found, error = estimated(lambda model: model.imle_sample(strength=strength))
    pulled = top_two(LOGITS_OF_FOUR - strength * COST)
    within_four_errors(found, (top_two(LOGITS_OF_FOUR) - pulled) / strength, error)


def test_implicit_mle_tends_to_the_exact_gradient():
    logits = LOGITS_OF_FOUR.clone().requires_grad_()
    (wanted,) = torch.autograd.grad((top_two(logits) * COST).sum(), logits)
    found, error = estimated(lambda model: model.imle_sample(strength=0.05))
    within_four_errors(found, wanted, error)
    drawn = ns.KSubset(LOGITS_OF_FOUR, 2).imle_sample((20_000,))
    share = top_two(LOGITS_OF_FOUR)
    within_four_errors(drawn.mean(0), share, (share * (1 - share) / 20_000).sqrt())


# -- manners ---------------------------------------------------------------------------------------


def test_it_is_a_citizen_of_torch_distributions():
    model = ns.KSubset(torch.randn(3, 1, 5), 2)
    assert model.batch_shape == (3, 1)
    assert model.event_shape == (5,)
    assert not model.has_rsample
    assert model.has_enumerate_support
    assert model.sample((4,)).shape == (4, 3, 1, 5)
    assert model.sample().dtype is torch.bool
    assert model.support.check(model.sample()).all()
    assert not model.support.check(torch.ones(5, dtype=torch.bool))
    assert repr(model.support) == "SubsetOfSize(5, 2)"
    assert repr(model) == "KSubset(logits: torch.Size([3, 1, 5]), k: 2)"
    wide = model.expand((3, 7))
    assert wide.sample((2,)).shape == (2, 3, 7, 5)
    assert (wide.n, wide.k) == (5, 2)
    torch.testing.assert_close(wide.entropy(), model.entropy().expand(3, 7))
    torch.testing.assert_close(model.mean, model.marginals())
    assert model.enumerate_support().shape == (10, 3, 1, 5)
    assert model.enumerate_support(expand=False).shape == (10, 1, 1, 5)
    independent = torch.distributions.Independent(model, 1)
    assert independent.log_prob(model.mode).shape == (3,)
    torch.testing.assert_close(
        torch.vmap(lambda x: ns.KSubset(x, 2, validate_args=False).marginals())(model.logits),
        model.marginals(),
    )


def test_subsets_broadcast_against_the_batch():
    model = ns.KSubset(torch.randn(3, 5), 2)
    samples = model.sample((4,))
    assert model.log_prob(samples).shape == (4, 3)
    torch.testing.assert_close(model.log_prob(samples)[1, 2], model.log_prob(samples[1])[2])
    assert model.log_prob(samples[0, 0]).shape == (3,)


ERRORS = {
    "integers": (TypeError, "floating-point", lambda: ns.KSubset(torch.arange(3), 1)),
    "k above n": (ValueError, "between 0 and", lambda: ns.KSubset(torch.zeros(3), 4)),
    "k no number": (TypeError, "`k` expects an int", lambda: ns.KSubset(torch.zeros(3), 1.5)),
    "nan": (ValueError, "logits", lambda: ns.KSubset(torch.tensor([torch.nan, 1.0]), 1, True)),
    "too few": (
        ValueError,
        r"at least k = 2 logits above minus infinity.*got 1 and 0\. Choose fewer",
        lambda: ns.KSubset(torch.tensor([1.0, -INF]), 2, True),
    ),
    "too many": (
        ValueError,
        r"at most so many at plus infinity, got 3 and 2",
        lambda: ns.KSubset(torch.tensor([INF, INF, 0.0]), 1, True),
    ),
    "numbers for flags": (
        TypeError,
        r"`value` expects a boolean.*got torch\.int64.*value\.bool",
        lambda: ns.KSubset(torch.zeros(3), 1).log_prob(torch.tensor([0, 1, 0])),
    ),
    "another length": (
        ValueError,
        r"broadcasts against \(3,\), got \(2,\)",
        lambda: ns.KSubset(torch.zeros(3), 1).log_prob(torch.tensor([True, False])),
    ),
    "another size": (
        ValueError,
        r"must have k = 1 items in every list, got 2",
        lambda: ns.KSubset(torch.zeros(3), 1, True).log_prob(torch.tensor([True, True, False])),
    ),
    "another distribution": (
        ValueError,
        r"got 1 of 3 and 2 of 3 items",
        lambda: kl_divergence(ns.KSubset(torch.zeros(3), 1), ns.KSubset(torch.zeros(3), 2)),
    ),
    "many": (
        ValueError,
        r"at most 100,000 subsets, and of 40 items there are 847,660,528 of size 10",
        lambda: ns.KSubset(torch.zeros(40), 10).enumerate_support(),
    ),
    "strength": (
        ValueError,
        r"`strength` must be a positive number, got 0",
        lambda: ns.KSubset(torch.zeros(3), 1).imle_sample(strength=0.0),
    ),
    "temperature": (
        ValueError,
        "must be positive",
        lambda: ns.KSubset(torch.zeros(3), 1).relaxed_sample(tau=0.0),
    ),
}


@pytest.mark.parametrize("name", ERRORS)
def test_mistakes_are_explained(name):
    kind, match, call = ERRORS[name]
    with pytest.raises(kind, match=match):
        call()


def test_without_validation_other_sizes_have_probability_zero():
    model = ns.KSubset(torch.zeros(3), 1, validate_args=False)
    assert model.log_prob(torch.tensor([True, True, False])) == -INF
