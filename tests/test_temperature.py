"""Temperatures: blurs that mean the same to every method, ones that learn, and none below 0."""

import copy
import functools
import math

import pytest
import torch
from torch import Tensor
from torch._dynamo.testing import CompileCounter

import neuralsort.torch as ns
from neuralsort import _blur
from neuralsort.torch import nn, registry, softness
from tests.methods import every_form, every_method
from tests.portions import some_of
from tests.requests import REQUESTS

MATRICES = {"sinkhorn": ns.sinkhorn, "gumbel_sinkhorn": ns.gumbel_sinkhorn}
RANKS = (0.5, 1.0, 2.0, 4.0)


def shuffled(n: int, lists: int = 4) -> Tensor:
    """Lists of equal gaps in any order."""
    return torch.stack([torch.randperm(n) for _ in range(lists)]).double()


def items_per_row(P: ns.RelaxedPermutation) -> Tensor:
    """How many items share a place, effectively: the mean over the rows of each list."""
    return P.entropy().exp().mean(-1)


# -- blur ------------------------------------------------------------------------------------------


def entropy_of(falls: list[float]) -> float:
    """Of a row whose weights fall so far to either side of its peak, in logarithms."""
    weights = [1.0] + [w for fall in falls for w in 2 * [math.exp(-fall)]]
    total = math.fsum(weights)
    return -math.fsum(w / total * math.log(w / total) for w in weights if w)


def laplace_falls(tau: float) -> list[float]:
    return [k / tau for k in range(1, 400)]


def between_falls(tau: float) -> list[float]:
    def mass(start: float, end: float) -> float:  # of a Laplace distribution, on one side of 0
        return (math.exp(-start / tau) - math.exp(-end / tau)) / 2

    own = 2 * mass(0.0, 0.5)
    return [-math.log(max(mass(k - 0.5, k + 0.5), 1e-300) / own) for k in range(1, 400)]


@pytest.mark.parametrize("ranks", [0.2, 0.3, 0.39, 0.41, 0.5, 0.7, 1.0, 1.5, 2.0, 4.0, 8.0, 20.0])
@pytest.mark.parametrize(
    ("of_blur", "falls"), [(_blur.laplace, laplace_falls), (_blur.between, between_falls)]
)
def test_rows_of_other_shapes_have_the_entropy_of_the_gaussian(ranks, of_blur, falls):
    """To 6 % of the temperature, by bisection of the entropies of endless rows of equal gaps."""
    wanted = entropy_of([k * k / _blur.gaussian(ranks) for k in range(1, 400)])
    low, high = 1e-3, 100.0
    for _ in range(60):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if entropy_of(falls(middle)) < wanted else (low, middle)
    assert of_blur(ranks) == pytest.approx(low, rel=0.06)


@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize("method", every_method())
def test_methods_are_equally_soft_at_a_blur(method, ranks):
    """On lists of equal gaps, as many items share a place as for NeuralSort."""
    scores = shuffled(40)
    wanted = items_per_row(ns.neuralsort(scores, tau=2 * ranks**2))
    found = items_per_row(method.relax(scores, tau=ns.Blur(ranks)))
    assert torch.allclose(found, wanted, rtol=0.06), (found / wanted).tolist()


@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize("name", MATRICES)
def test_matrices_are_as_soft_at_a_blur(name, ranks):
    """Of NeuralSort's own logits, and of others before their columns are balanced."""
    scores = torch.arange(30).double()
    wanted = items_per_row(ns.neuralsort(scores, tau=2 * ranks**2))
    quadratic = -(scores - scores.unsqueeze(-1)).square()
    relax = functools.partial(MATRICES[name], tau=ns.Blur(ranks), iterations=0)
    for logits in (quadratic, torch.randn(3, 30, 30).double()):
        assert torch.allclose(items_per_row(relax(logits)), wanted, rtol=0.02)


def test_lists_that_cannot_be_as_soft_are_as_soft_as_they_can():
    P = ns.sorting_network(shuffled(4), tau=ns.Blur(50.0))
    assert (items_per_row(P) > 2).all()
    for logits in (torch.zeros(3, 3), torch.zeros(2, 1, 1), torch.zeros(2, 0, 0)):
        P = ns.sinkhorn(logits, tau=ns.Blur(1.0))
        assert torch.allclose(P.to_dense().sum(-1), torch.ones(()))


@pytest.mark.parametrize("method", every_method())
@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e6])
def test_a_blur_follows_the_scale_and_the_offset_of_scores(method, scale):
    scores = torch.randn(3, 12).double()
    P, Q = (method.relax(x, tau=ns.Blur(1.5)) for x in (scores, scale * scores + 3 * scale))
    assert torch.allclose(P.to_dense(), Q.to_dense(), atol=1e-6)


@pytest.mark.parametrize("method", every_method())
def test_a_blur_is_that_of_every_list_for_itself_and_of_the_items_there(method):
    scores = torch.randn(3, 9).double() * torch.tensor([[1.0], [1e-3], [50.0]])
    mask = torch.ones(3, 12, dtype=torch.bool)
    mask[:, 9:] = False
    padded = torch.cat([scores, torch.tensor([torch.nan, 1e9, -torch.inf]).expand(3, 3)], -1)
    P = method.relax(padded, tau=ns.Blur(1.0), mask=mask).to_dense()
    for one, own in zip(P, scores, strict=True):
        alone = method.relax(own, tau=ns.Blur(1.0)).to_dense()
        assert torch.allclose(one[:9, :9], alone, atol=1e-9)


@pytest.mark.parametrize("method", every_method())
def test_no_gradient_flows_through_the_choice_of_a_blur(method):
    """The gradient is that at the same temperature, given as a number of its own."""
    scores = torch.randn(6).double().requires_grad_()
    payload = torch.randn(6).double()
    found = torch.autograd.grad(method.relax(scores, tau=ns.Blur(1.0)).sort(payload)[1], scores)[0]
    assert found.isfinite().all()
    step = 1e-5 * torch.eye(6, dtype=torch.float64)
    free = [method.relax(scores + sign * step, tau=ns.Blur(1.0)).sort(payload)[:, 1].detach()
            for sign in (1, -1)]  # fmt: skip
    through = (free[0] - free[1]) / 2e-5
    assert not torch.allclose(found, through, rtol=1e-3), "the choice depends on the scores"


def test_neuralsort_at_a_blur_is_at_tau_for_blur():
    scores = torch.randn(4, 20)
    P, Q = (ns.neuralsort(scores, tau=t) for t in (ns.Blur(2.0), ns.tau_for_blur(scores, ranks=2)))
    assert torch.equal(P.to_dense(), Q.to_dense())


def test_long_lists_take_a_blur():
    scores = torch.randn(2, 700).double()
    for relax in (ns.neuralsort, ns.softsort, ns.lapsum):
        items = items_per_row(relax(scores, tau=ns.Blur(2.0)))
        assert ((items > 6) & (items < 10)).all()


WITH_TAU = {
    "soft_sort": lambda x, tau: ns.soft_sort(x, tau=tau),
    "soft_sort along 0": lambda x, tau: ns.soft_sort(x, tau=tau, dim=0),
    "soft_sort_by": lambda x, tau: ns.soft_sort_by(x, x, tau=tau),
    "soft_rank": lambda x, tau: ns.soft_rank(x, tau=tau, relax=ns.softsort),
    "soft_topk": lambda x, tau: ns.soft_topk(x, 2, tau=tau).values,
    "soft_quantile": lambda x, tau: ns.soft_quantile(x, 0.3, tau=tau),
    "soft_median": lambda x, tau: ns.soft_median(x, tau=tau),
    "topk_cross_entropy": lambda x, tau: ns.topk_cross_entropy(x, ORDER[:, 0], k=1, tau=tau),
    "neural_ndcg": lambda x, tau: ns.neural_ndcg(x, ORDER, tau=tau),
    "approx_ndcg": lambda x, tau: ns.approx_ndcg(x, ORDER, tau=tau),
    "spearman_loss": lambda x, tau: ns.spearman_loss(x, ORDER, tau=tau),
    "kendall_loss": lambda x, tau: ns.kendall_loss(x, ORDER, tau=tau),
    "ranknet_loss": lambda x, tau: ns.ranknet_loss(x, ORDER, tau=tau),
    "listnet_loss": lambda x, tau: ns.listnet_loss(x, ORDER, tau=tau),
    "lambda_loss": lambda x, tau: ns.lambda_loss(x, ORDER, tau=tau),
    "smooth_ap_loss": lambda x, tau: ns.smooth_ap_loss(x, ORDER > 3, tau=tau),
    "recall_at_k_loss": lambda x, tau: ns.recall_at_k_loss(x, ORDER > 3, k=2, tau=tau),
    "soft_topk_mask": lambda x, tau: ns.soft_topk_mask(x, 2, tau=tau) * x.detach(),
    "sparse_threshold": lambda x, tau: (
        ns.sparse_threshold(x, tau=tau).memberships(torch.tensor([2, 3])) * x.detach()
    ),
    "midpoint_threshold": lambda x, tau: ns.midpoint_threshold(x, tau=tau).memberships(
        torch.tensor([2, 3])
    ),
    "conformal_quantile": lambda x, tau: ns.conformal_quantile(x, 0.3, tau=tau),
    "stochastic_neuralsort": lambda x, tau: sampled(x, tau).sort(x),
    "relaxed_expectation": lambda x, tau: ns.estimators.relaxed_expectation(
        first, x, tau=tau, samples=3, generator=seeded()
    ),
    "straight_through_expectation": lambda x, tau: ns.estimators.straight_through_expectation(
        first, x, tau=tau, samples=3, generator=seeded()
    ),
    "rebar_expectation": lambda x, tau: ns.estimators.rebar_expectation(
        first, x, tau=tau, samples=3, generator=seeded()
    ),
    "DifferentiableKNN": lambda x, tau: nn.DifferentiableKNN(2, tau=tau)(x, x, x),
    "NeuralSort": lambda x, tau: nn.NeuralSort(tau=tau)(x).sort(x),
    "SoftTopK": lambda x, tau: nn.SoftTopK(2, tau=tau)(x).values,
}
ORDER = torch.stack([torch.randperm(7, generator=torch.Generator().manual_seed(i)) for i in (1, 2)])


def seeded() -> torch.Generator:
    return torch.Generator().manual_seed(3)


def sampled(x: Tensor, tau) -> ns.RelaxedPermutation:
    return ns.stochastic_neuralsort(x, tau=tau, samples=3, generator=seeded())


def first(P: ns.RelaxedPermutation) -> Tensor:
    return P.sort(torch.arange(P.shape[-1], dtype=P.dtype))[..., 0]


@pytest.mark.parametrize("name", WITH_TAU)
def test_a_blur_stands_wherever_a_tau_is_taken(name):
    """It changes what comes out, is a number, and leaves a gradient; as does a module's tau."""
    x = torch.randn(2, 7).double()
    results = []
    for tau in (ns.Blur(0.6), ns.Blur(3.0)):
        leaf = x.clone().requires_grad_()
        value = WITH_TAU[name](leaf, tau)
        (gradient,) = torch.autograd.grad(value.sum(), leaf)
        assert value.isfinite().all()
        assert gradient.isfinite().all()
        assert gradient.abs().sum() > 0
        results.append(value.detach())
    if not name.startswith("straight"):  # whose values are hard
        assert not torch.allclose(*results)


def test_every_function_with_a_tau_is_in_that_table():
    import inspect

    rooms = [(ns, ns.__all__), (ns.estimators, dir(ns.estimators))]
    found = {
        name
        for room, names in rooms
        for name in names
        if inspect.isfunction(getattr(room, name))
        and "tau" in inspect.signature(getattr(room, name)).parameters
    }
    methods = {getattr(m.function, "func", m.function).__name__ for m in registry.METHODS.values()}
    internal = {"relaxed"}
    assert found - methods - internal <= {name.split(" ")[0] for name in WITH_TAU}


def test_a_blur_has_positive_ranks_and_says_what_it_is():
    assert repr(ns.Blur(2)) == "Blur(ranks=2.0)"
    assert ns.Blur(2) == ns.Blur(2.0)
    assert hash(ns.Blur(2)) == hash(ns.Blur(2.0))
    for ranks, kind in ((0.0, ValueError), (-1.0, ValueError), (math.nan, ValueError)):
        with pytest.raises(kind, match=r"ranks.*positive"):
            ns.Blur(ranks)
    with pytest.raises(TypeError, match=r"ranks.*str"):
        ns.Blur("2")


# -- negative temperatures -------------------------------------------------------------------------


@pytest.mark.parametrize("tau", [torch.tensor(-1.0), torch.tensor([[0.5], [-1e-3], [0.0]])])
@pytest.mark.parametrize("method", every_method())
def test_a_negative_tensor_is_refused_where_it_can_be_seen(method, tau):
    with pytest.raises(ValueError, match=r"tau.*negative.*got a tensor with -.*Temperature"):
        method.relax(torch.randn(3, 5), tau=tau)


@pytest.mark.parametrize("name", WITH_TAU)
def test_functions_refuse_a_negative_tensor(name):
    with pytest.raises(ValueError, match=r"tau.*negative"):
        WITH_TAU[name](torch.randn(2, 7).double(), torch.tensor(-0.5))


@pytest.mark.parametrize("name", MATRICES)
def test_matrices_refuse_a_negative_tensor(name):
    with pytest.raises(ValueError, match=r"tau.*negative"):
        MATRICES[name](torch.randn(3, 5, 5), tau=torch.tensor([[-1.0], [1.0], [1.0]]))


HARD = ("straight_through", "straight_through transpose")
"""What has the values of the hard permutation, which has no temperature."""


@pytest.fixture
def unseen(monkeypatch):
    """Values of tensors cannot be read, as on an accelerator and in compiled code."""
    monkeypatch.setattr("neuralsort.torch._checks.readable", lambda value: False)


ALONE = ("matmul", "rank", "log_prob")
"""What every run asks of a list of one item."""


@pytest.mark.parametrize(
    ("n", "request_"),
    some_of(
        [(n, name) for n in (1, 2, 7) for name in sorted(set(REQUESTS) - set(HARD))],
        *((7, name) for name in set(REQUESTS) - set(HARD)),
        *((1, name) for name in ALONE),
    ),
)
@every_form()
def test_a_negative_temperature_that_cannot_be_seen_spoils_its_list_alone(
    method, form, n, request_, unseen
):
    scores, payload = torch.randn(2, 3, n), torch.randn(3, n, 2)
    scores, payload = scores[0].requires_grad_(), payload
    mask = torch.ones(3, n, dtype=torch.bool)
    mask[:, n // 2 + 1 :] = False
    for there in (None, mask):
        tau = torch.tensor([[0.5], [-0.5], [2.0]])
        found = REQUESTS[request_](method.relax(scores, tau=tau, mask=there), payload)
        good = REQUESTS[request_](method.relax(scores, tau=tau.abs(), mask=there), payload)
        assert found[1].isnan().all()
        unknown: list[Tensor] = []
        assert torch.allclose(found[[0, 2]], good[[0, 2]], rtol=1e-5, atol=1e-6)
        if found.requires_grad:  # what is infinite may have none: as without the neighbour
            for other in (found, good):
                known = other[[0, 2]][good[[0, 2]].isfinite()].sum()
                gradients = torch.autograd.grad(known, scores)
                unknown.append(gradients[0][[0, 2]].isnan())
            assert torch.equal(*unknown)


@pytest.mark.parametrize("name", MATRICES)
def test_matrices_are_spoilt_too(name, unseen):
    tau = torch.tensor([[0.5], [-0.5], [2.0]])
    mask = torch.tensor([True, True, False, True]).expand(3, 4)
    for n, there in ((1, None), (4, None), (4, mask)):
        P = MATRICES[name](torch.randn(3, n, n), tau=tau, mask=there).to_dense()
        assert P[1].isnan().all()
        assert P[[0, 2]].isfinite().all()


@pytest.mark.parametrize("name", ["approx_ndcg", "kendall_loss", "ranknet_loss"])
def test_losses_over_pairs_are_spoilt_too(name, unseen):
    tau = torch.tensor([[0.5], [-0.5]])
    losses = getattr(ns, name)(torch.randn(2, 7), ORDER, tau=tau, reduction="none")
    assert losses.isnan().tolist() == [False, True]


def test_zero_is_refused_by_losses_over_pairs():
    with pytest.raises(ValueError, match=r"tau.*positive.*got 0"):
        ns.ranknet_loss(torch.randn(2, 7), ORDER, tau=torch.tensor([[0.0], [1.0]]))


def test_negative_temperatures_are_nan_under_vmap_and_compiled():
    scores, tau = torch.randn(3, 6), torch.tensor([[0.5], [-0.5], [2.0]])

    def sort(scores: Tensor, tau: Tensor) -> Tensor:
        return ns.neuralsort(scores, tau=tau).sort(scores)

    compiled = torch.compile(sort, backend="aot_eager")
    for function in (torch.vmap(sort), compiled):
        found = function(scores, tau)
        assert found.isnan().any(-1).tolist() == [False, True, False]
        assert found[1].isnan().all()
    torch._dynamo.reset()


def test_looking_at_a_temperature_is_left_to_the_cpu():
    """On another device it would wait for all that the device is doing."""
    tau = torch.tensor(-1.0, device="meta")
    P = ns.neuralsort(torch.empty(5, device="meta"), tau=tau)
    assert P.shape == (5, 5)


# -- a temperature that learns or anneals ----------------------------------------------------------


@pytest.mark.parametrize("direction", [1.0, -1.0])
@pytest.mark.parametrize("relax", [ns.neuralsort, ns.softsort, ns.lapsum])
@pytest.mark.parametrize("steps", some_of([150, 500], 150))
def test_a_learned_temperature_stays_finite_and_positive(relax, direction, steps):
    """Adam at 0.1 towards a sort as soft or as hard as can be."""
    T = nn.Temperature(1.0, learnable=True)
    optimizer = torch.optim.Adam(T.parameters(), lr=0.1)
    scores = torch.randn(4, 8)
    seen = []
    for _ in range(steps):
        optimizer.zero_grad()
        (direction * relax(scores, tau=T()).entropy().mean()).backward()
        optimizer.step()
        seen.append(T().item())
    assert all(math.isfinite(tau) and tau > 0 for tau in seen)
    assert (seen[-1] < 0.2) if direction > 0 else (seen[-1] > 5)


@pytest.mark.parametrize("step", [1.0, 1e3, 1e10, 1e30, -1.0, -1e3, -1e10, -1e30])
def test_no_step_leaves_the_positive_numbers(step):
    T = nn.Temperature(2.0, learnable=True)
    T().backward()
    assert T.theta.grad == 2.0  # as for a logarithm, at the start
    with torch.no_grad():
        T.theta += step
    tau = T()
    assert tau > 0
    assert tau.isfinite()
    T.theta.grad = None
    tau.log().backward()
    assert T.theta.grad > 0  # and it can come back
    if abs(step) < 1e10:
        expected = 2.0 * math.exp(math.asinh(step))
        assert tau.item() == pytest.approx(expected, rel=1e-5)


def test_a_schedule_goes_on_from_a_checkpoint():
    one = nn.Temperature(8.0, end=0.5, steps=8)
    for _ in range(3):
        one.step()
    other = nn.Temperature(1.0)
    other.load_state_dict(one.state_dict())
    whole = []
    for _ in range(7):
        assert torch.equal(one(), other())
        whole.append(one().item())
        one.step()
        other.step()
    assert whole == pytest.approx([8 * 2 ** (-t / 2) for t in (3, 4, 5, 6, 7)] + [0.5, 0.5])
    assert repr(other) == "Temperature(8.0, end=0.5, steps=8)"
    assert torch.equal(copy.deepcopy(one)(), one())


def test_a_learned_temperature_is_kept_with_its_start():
    one = nn.Temperature(8.0, learnable=True)
    with torch.no_grad():
        one.theta += 0.3
    other = nn.Temperature(1.0, learnable=True)
    other.load_state_dict(one.state_dict())
    assert torch.equal(one(), other())
    assert one.half()().dtype is torch.float32
    assert one.double()().dtype is torch.float64


def test_modules_take_a_temperature_for_their_tau():
    T = nn.Temperature(0.7, learnable=True)
    scores = torch.randn(2, 6)
    loss = nn.SpearmanLoss(tau=T)
    assert {name for name, _ in loss.named_parameters()} == {"tau.theta"}
    assert torch.equal(
        loss(scores, scores.flip(0)), ns.spearman_loss(scores, scores.flip(0), tau=T())
    )
    loss(scores, scores.flip(0)).backward()
    assert T.theta.grad is not None
    assert "(tau): Temperature(0.7, learnable=True)" in repr(loss)
    assert repr(loss).count("Temperature") == 1


def test_compiled_code_sees_the_temperature_change():
    T = nn.Temperature(4.0, end=0.1, steps=5)
    scores = torch.randn(3, 6)
    count = CompileCounter()
    compiled = torch.compile(lambda x: ns.neuralsort(x, tau=T()).sort(x), backend=count)
    for _ in range(5):
        torch.testing.assert_close(compiled(scores), ns.neuralsort(scores, tau=T()).sort(scores))
        T.step()
    assert count.frame_count <= 2
    torch._dynamo.reset()


BAD = {
    "a start of 0": (lambda: nn.Temperature(0.0), ValueError, r"start.*positive.*got 0.*tau=0"),
    "a negative end": (
        lambda: nn.Temperature(1.0, end=-1.0, steps=5),
        ValueError,
        r"end.*positive.*got -1",
    ),
    "a start that is no number": (lambda: nn.Temperature("1"), TypeError, r"start.*number.*str"),
    "an end without steps": (
        lambda: nn.Temperature(1.0, end=0.5),
        ValueError,
        r"end.*steps.*together.*steps=None",
    ),
    "learned and annealed": (
        lambda: nn.Temperature(1.0, learnable=True, end=0.5, steps=5),
        ValueError,
        r"learnable.*end=0\.5.*exclude",
    ),
    "no steps": (lambda: nn.Temperature(1.0, end=0.5, steps=0), ValueError, r"steps.*1.*got 0"),
    "steps that are no count": (
        lambda: nn.Temperature(1.0, end=0.5, steps=1.5),
        TypeError,
        r"steps.*int.*float",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_temperatures_that_cannot_be(case):
    make, kind, message = BAD[case]
    with pytest.raises(kind, match=message):
        make()


def test_the_search_for_a_temperature_takes_a_few_tries():
    tried = []

    def entropy(tau: Tensor) -> Tensor:
        tried.append(tau)
        return tau.log().expand(3, 9)

    softness.looked_for(1.0, torch.ones(3, 1), entropy, None)
    assert len(tried) == softness.TRIED
