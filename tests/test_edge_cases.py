"""Masks, ties, tau = 0, infinities, NaN: what happens is decided, and the same in both forms."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

import neuralsort.torch as ns
from tests.conftest import DTYPES, WEIGHT_ATOL, assert_near
from tests.methods import methods
from tests.requests import REQUESTS, each_request
from tests.strategies import strange_scores

INF, NAN = float("inf"), float("nan")
TAUS = (1e-3, 0.3, 5.0)
ROUNDING = {"dense": 1e-13, "banded": 1e-11}
"""How near two float64 results are that may take different blocks to the same answer."""

each_method = pytest.mark.parametrize("method", methods())
each_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: str(d).removeprefix("torch."))


def double(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


# -- masks -----------------------------------------------------------------------------------------


def everything(P: ns.RelaxedPermutation, x: Tensor) -> dict[str, Tensor]:
    """All that P can be asked, keyed by whether positions or items are last."""
    return {
        "matmul": (P @ x),
        "transpose": (P.mT @ x),
        "sort": P.sort(x[..., 0]),
        "rank": P.rank(),
        "entropy": P.entropy(),
        "log_prob": P.log_prob(P.permutation()),
    }


BY_ITEM = ("transpose", "rank")


@each_method
@pytest.mark.parametrize("tau", TAUS)
@pytest.mark.parametrize("garbage", [0.0, 1e9, -INF, INF, NAN])
def test_padding_changes_nothing_for_present_items(method, form, tau, garbage):
    """Values and gradients are those of the shorter list, whatever stands in the absent places."""
    alone = torch.randn(21, dtype=torch.float64, requires_grad=True)
    present = torch.randperm(34)[:21].sort().values
    mask = torch.zeros(34, dtype=torch.bool)
    mask[present] = True
    padded = torch.full((34,), garbage, dtype=torch.float64)
    padded[present] = alone.detach()
    padded.requires_grad_()
    x = torch.randn(34, 2, dtype=torch.float64)

    expected = everything(method.relax(alone, tau=tau), x[present])
    actual = everything(method.relax(padded, tau=tau, mask=mask), x)
    for name in expected:
        if name == "transpose":  # of the leading positions, with the payload of those positions
            expected[name] = method.relax(alone, tau=tau).mT @ x[:21]
        mine = actual[name][present] if name in BY_ITEM else actual[name][:21]
        assert_near(mine, expected[name], ROUNDING[form], 1)
        upstream = torch.randn_like(mine)
        (gradient,) = torch.autograd.grad(mine, padded, upstream, retain_graph=True)
        (wanted,) = torch.autograd.grad(expected[name], alone, upstream, retain_graph=True)
        assert_near(gradient[present], wanted, 10 * ROUNDING[form], 1 / tau)
        assert torch.equal(gradient[~mask], torch.zeros(13, dtype=torch.float64))


@each_method
@pytest.mark.parametrize("garbage", [0.0, INF, NAN])
def test_last_rows_place_absent_items_in_index_order(method, form, garbage):
    scores = torch.tensor([garbage, 2.0, garbage, 5.0, 3.0, garbage])
    mask = torch.tensor([False, True, False, True, True, False])
    P = method.relax(scores, tau=1.0, mask=mask)
    matrix = P.to_dense()
    assert torch.equal(matrix[3:], torch.eye(6)[[0, 2, 5]])
    assert torch.equal(matrix[:3][:, ~mask], torch.zeros(3, 3))
    assert P.permutation().tolist() == [3, 4, 1, 0, 2, 5]
    assert torch.equal((P @ torch.eye(6))[3:], torch.eye(6)[[0, 2, 5]])
    torch.testing.assert_close(P.rank()[~mask], torch.tensor([4.0, 5.0, 6.0]))
    assert torch.equal(P.entropy()[3:], torch.zeros(3))


@each_method
def test_the_tail_of_gradients_flows_to_the_payload_only(method, form):
    scores = torch.randn(6, dtype=torch.float64, requires_grad=True)
    x = torch.randn(6, 2, dtype=torch.float64, requires_grad=True)
    mask = torch.tensor([True, False, True, True, False, True])
    tail = (method.relax(scores, tau=1.0, mask=mask) @ x)[4:]
    to_scores, to_x = torch.autograd.grad(tail.sum(), (scores, x), materialize_grads=True)
    assert torch.equal(to_scores, torch.zeros_like(to_scores))
    assert torch.equal(to_x, (~mask).double().unsqueeze(-1).expand(6, 2))


@each_method
def test_soft_sort_of_a_masked_list_ignores_garbage(method, form):
    scores = double(1.0, NAN, 3.0, INF, 2.0).requires_grad_()
    mask = torch.tensor([True, False, True, False, True])
    head = method.relax(scores, tau=0.5, mask=mask).sort(scores)[:3]
    (gradient,) = torch.autograd.grad(head.square().sum(), scores)
    alone = double(1.0, 3.0, 2.0).requires_grad_()
    expected = method.relax(alone, tau=0.5).sort(alone)
    (wanted,) = torch.autograd.grad(expected.square().sum(), alone)
    assert_near(head, expected, ROUNDING[form])
    assert_near(gradient[mask], wanted, 10 * ROUNDING[form])


@each_method
def test_lists_without_items_and_without_gaps(method, form):
    """All absent: the identity. All present: as if there were no mask."""
    scores = torch.randn(2, 8, dtype=torch.float64, requires_grad=True)
    mask = torch.tensor([[False], [True]]).expand(2, 8)
    P = method.relax(scores, tau=0.5, mask=mask)
    assert torch.equal(P.to_dense()[0], torch.eye(8, dtype=torch.float64))
    assert_near(P.to_dense()[1], method.relax(scores[1], tau=0.5).to_dense(), ROUNDING[form], 1)
    assert P.permutation()[0].tolist() == list(range(8))
    (gradient,) = torch.autograd.grad(P.sort(scores)[0].square().sum(), scores)
    # Each item stands at its own place; nothing comes through P.
    assert_near(gradient[0], 2 * scores[0], 1e-14)
    assert torch.equal(gradient[1], torch.zeros_like(gradient[1]))


def test_a_mask_may_be_shared_by_the_lists_of_a_batch(form):
    scores = torch.randn(3, 2, 7)
    mask = torch.tensor([True, True, False, True, False, True, True])
    shared = ns.neuralsort(scores, tau=0.5, mask=mask).to_dense()
    each = ns.neuralsort(scores, tau=0.5, mask=mask.expand(3, 2, 7)).to_dense()
    assert torch.equal(shared, each)


# -- ties ------------------------------------------------------------------------------------------


TIED = (2.0, 1.0, 2.0, 0.5, 1.0, 2.0, -1.0, 1.0, 2.0)


@each_method
@each_dtype
def test_tied_items_have_equal_weights_to_the_bit(method, dtype):
    for n in (9, 200):
        scores = torch.tensor(TIED, dtype=dtype).repeat(n // 9 + 1)[:n]
        for tau in TAUS:
            matrix = method.relax(scores, tau=tau).to_dense()
            for value in set(TIED):
                columns = matrix[:, scores == value]
                assert torch.equal(columns, columns[:, :1].expand_as(columns))


@each_method
@each_dtype
def test_tied_items_are_placed_as_by_a_stable_sort(method, dtype, form):
    scores = torch.tensor([TIED, TIED[::-1]], dtype=dtype)
    expected = torch.sort(scores, descending=True, stable=True).indices
    for tau in (0.0, *TAUS):
        P = method.relax(scores, tau=tau)
        assert torch.equal(P.permutation(), expected)
        if tau:
            written_down = ns.RelaxedPermutation.from_dense(P.to_dense())
            assert torch.equal(written_down.permutation(), expected)


@each_method
@pytest.mark.parametrize("tau", TAUS)
@each_request("matmul", "transpose", "rank", "entropy")
@pytest.mark.parametrize(
    "values", [TIED, (0.7,) * 9, (1.0, 1.0 + 1e-9) * 9], ids=["some", "all", "pairs"]
)
def test_gradients_at_ties_are_those_of_the_formula_with_sign_zero(
    method, form, tau, request_, values
):
    """And so finite, and with no preference among tied items."""
    x = torch.randn(len(values), 2, dtype=torch.float64)
    scores = double(*values).requires_grad_()
    actual = REQUESTS[request_](method.relax(scores, tau=tau), x)
    upstream = torch.randn_like(actual)
    (gradient,) = torch.autograd.grad(actual, scores, upstream)

    matrix = ns.RelaxedPermutation.from_dense(method.formula_weights(scores, tau))
    (expected,) = torch.autograd.grad(REQUESTS[request_](matrix, x), scores, upstream)
    assert gradient.isfinite().all()
    assert_near(gradient, expected, 1e-8, 1 / tau)


@each_method
@pytest.mark.parametrize("tau", TAUS)
def test_gradients_at_ties_follow_a_permutation_of_the_items(method, form, tau):
    scores = double(*TIED)
    x, pi = torch.randn(9, 3, dtype=torch.float64), torch.randperm(9)
    upstream = torch.randn(9, 3, dtype=torch.float64)

    def gradient(scores: Tensor, x: Tensor) -> Tensor:
        scores = scores.clone().requires_grad_()
        P = method.relax(scores, tau=tau)
        loss = ((P @ x) * upstream).sum() + (P.rank() * x[:, 0]).sum() + P.entropy().sum()
        return torch.autograd.grad(loss, scores)[0]

    assert_near(gradient(scores[pi], x[pi]), gradient(scores, x)[pi], 1e-11)


# -- tau = 0 ---------------------------------------------------------------------------------------


@each_method
@pytest.mark.parametrize("tau", [0, 0.0])
def test_tau_zero_is_the_hard_permutation(method, form, tau):
    scores, x = torch.randn(3, 12, requires_grad=True), torch.randn(3, 12, 2, requires_grad=True)
    P = method.relax(scores, tau=tau)
    order = scores.argsort(dim=-1, descending=True, stable=True)
    gathered = x.gather(1, order.unsqueeze(-1).expand(3, 12, 2))
    assert torch.equal(P.permutation(), order)
    assert torch.equal(P.to_dense(), torch.nn.functional.one_hot(order, 12).float())
    assert torch.equal(P @ x, gathered)
    assert torch.equal(P.sort(scores), scores.sort(-1, descending=True).values)
    assert torch.equal(P.rank(), order.argsort(-1) + 1.0)
    assert torch.equal(P.entropy(), torch.zeros(3, 12))
    assert torch.equal(P.log_prob(order), torch.zeros(3, 12))

    upstream = torch.randn(3, 12, 2)
    to_x, to_scores = torch.autograd.grad(P @ x, (x, scores), upstream, materialize_grads=True)
    (expected,) = torch.autograd.grad(gathered, x, upstream)
    assert torch.equal(to_x, expected)
    assert torch.equal(to_scores, torch.zeros(3, 12))


@each_method
@pytest.mark.parametrize("shape", [(), (3, 1)])
def test_a_tensor_of_zeros_is_tau_zero_too(method, form, shape):
    """Its value is not known beforehand, so products may round; nothing else may differ."""
    scores, x = torch.randn(3, 12, requires_grad=True), torch.randn(3, 12, 2)
    tau = torch.zeros(shape, requires_grad=True)
    P, hard = method.relax(scores, tau=tau), method.relax(scores, tau=0)
    assert torch.equal(P.to_dense(), hard.to_dense())
    assert torch.equal(P.permutation(), hard.permutation())
    assert_near(P @ x, hard @ x, 1e-6)
    assert_near(P.rank(), hard.rank(), 1e-6)
    gradients = torch.autograd.grad((P @ x).square().sum(), (scores, tau), materialize_grads=True)
    for gradient in gradients:
        assert_near(gradient, torch.zeros_like(gradient), 1e-4, 1)


def test_one_list_may_be_hard_and_the_next_soft(form):
    scores = torch.randn(2, 12, dtype=torch.float64)
    tau = torch.tensor([[0.0], [0.7]], dtype=torch.float64)
    mixed = ns.neuralsort(scores, tau=tau)
    x = torch.randn(2, 12, 3, dtype=torch.float64)
    for b in range(2):
        alone = ns.neuralsort(scores[b], tau=tau[b].item())
        assert_near((mixed @ x)[b], alone @ x[b], ROUNDING[form], 1)
        assert_near(mixed.rank()[b], alone.rank(), ROUNDING[form])


def test_tau_zero_with_ties_is_still_a_permutation(form):
    P = ns.neuralsort(torch.tensor(TIED), tau=0)
    order = torch.tensor(TIED).argsort(descending=True, stable=True)
    assert torch.equal(P.to_dense(), torch.nn.functional.one_hot(order, 9).float())


@each_method
def test_tau_zero_respects_the_mask(method, form):
    mask = torch.tensor([True, False, True, True, False])
    P = method.relax(torch.tensor([1.0, 9.0, 3.0, 2.0, 7.0]), tau=0, mask=mask)
    assert P.permutation().tolist() == [2, 3, 0, 1, 4]
    assert torch.equal(P.to_dense(), torch.eye(5)[[2, 3, 0, 1, 4]])


# -- infinities ------------------------------------------------------------------------------------


@each_method
@each_dtype
@pytest.mark.parametrize("tau", TAUS)
def test_infinities_go_to_their_end_and_finite_items_do_not_notice(method, dtype, form, tau):
    """Blocks on the diagonal of the sorted matrix: +inf, shared equally; finite; -inf."""
    scores = torch.tensor([0.3, INF, -1.0, -INF, INF, 0.7, -INF, -INF], dtype=dtype)
    up, down, finite = [1, 4], [3, 6, 7], [0, 2, 5]
    expected = torch.zeros(8, 8, dtype=torch.float64)
    expected[:2, up] = 1 / 2
    expected[5:, down] = 1 / 3
    alone = method.relax(scores[finite], tau=tau).to_dense().double()
    expected[2:5, finite] = alone
    P = method.relax(scores, tau=tau)
    assert (P.to_dense().double() - expected).abs().max() <= WEIGHT_ATOL[dtype]
    product = (P @ torch.eye(8, dtype=dtype)).double()
    assert (product - expected).abs().max() <= WEIGHT_ATOL[dtype]
    assert P.permutation().tolist() == [1, 4, 5, 0, 2, 3, 6, 7]
    assert P.rank().isfinite().all()
    assert P.entropy().isfinite().all()


@each_method
@pytest.mark.parametrize("tau", TAUS)
@each_request("matmul", "transpose", "rank", "entropy")
def test_gradients_beside_infinities_are_those_of_the_finite_items(method, form, tau, request_):
    finite = torch.tensor([0, 2, 3, 5])
    scores = double(0.3, INF, -1.0, 0.35, -INF, 0.7).requires_grad_()
    x = torch.randn(6, 2, dtype=torch.float64)
    actual = REQUESTS[request_](method.relax(scores, tau=tau), x)
    actual = actual[finite] if request_ in BY_ITEM else actual[1:5]
    upstream = torch.randn_like(actual)
    (gradient,) = torch.autograd.grad(actual, scores, upstream)

    alone = scores.detach()[finite].requires_grad_()
    x = x[1:5] if request_ in BY_ITEM else x[finite]
    wanted = REQUESTS[request_](method.relax(alone, tau=tau), x)
    (expected,) = torch.autograd.grad(wanted, alone, upstream)
    assert_near(gradient[finite], expected, 10 * ROUNDING[form], 1 / tau)
    assert_near(gradient[[1, 4]], torch.zeros(2), 10 * ROUNDING[form], 1 / tau)


@each_method
@pytest.mark.parametrize("tau", [0.0, *TAUS])
def test_soft_sort_of_infinities(method, form, tau):
    x = torch.tensor([1.0, INF, 2.0, -INF, 3.0], dtype=torch.float64, requires_grad=True)
    alone = ns.soft_sort(double(1.0, 2.0, 3.0), tau=tau, relax=method.relax)
    actual = ns.soft_sort(x, tau=tau, relax=method.relax)
    assert actual[0] == -INF
    assert actual[-1] == INF
    assert_near(actual[1:4], alone, ROUNDING[form])
    (gradient,) = torch.autograd.grad(actual[1:4].sum(), x)
    assert gradient.isfinite().all()


@each_method
def test_temperature_gets_a_finite_gradient_beside_infinities(method, form):
    scores = double(0.3, INF, -1.0, 0.35, -INF, 0.7)
    tau = torch.tensor(0.5, dtype=torch.float64, requires_grad=True)
    x = torch.randn(6, dtype=torch.float64)
    (gradient,) = torch.autograd.grad((method.relax(scores, tau=tau) @ x).square().sum(), tau)
    alone = method.relax(scores[[0, 2, 3, 5]], tau=tau) @ x[[0, 2, 3, 5]]
    (expected,) = torch.autograd.grad(alone.square().sum(), tau)
    assert_near(gradient, expected, 10 * ROUNDING[form])


@each_method
def test_a_list_of_infinities_only(method, form):
    P = method.relax(torch.tensor([[INF, INF, INF], [-INF, INF, -INF]]), tau=1.0)
    expected = torch.tensor(
        [[[1 / 3] * 3] * 3, [[0.0, 1.0, 0.0], [0.5, 0.0, 0.5], [0.5, 0.0, 0.5]]]
    )
    torch.testing.assert_close(P.to_dense(), expected)


@each_method
def test_infinite_scores_get_no_gradient(method, form):
    scores = torch.tensor([[-INF] * 4, [INF, 1.0, -INF, -INF]], requires_grad=True)
    value = (method.relax(scores, tau=1e-3).to_dense() * torch.randn(4, 4)).sum()
    (gradient,) = torch.autograd.grad(value, scores)
    assert (gradient[scores.isinf()] == 0).all()


@each_method
def test_a_straight_through_sort_beside_infinities(method, form):
    """Values are sorted exactly, gradients are those of the soft sort."""
    scores = torch.tensor([1.0, -INF, 2.0, INF], requires_grad=True)
    P = method.relax(scores, tau=1.0)
    hard = P.straight_through().sort(scores.detach())
    assert hard.tolist() == [INF, 2.0, 1.0, -INF]
    (gradient,) = torch.autograd.grad(hard[1], scores, retain_graph=True)
    (expected,) = torch.autograd.grad(P.sort(scores.detach())[1], scores)
    assert_near(gradient, expected, 1e-6)
    assert gradient.abs().sum() > 0


# -- offsets ---------------------------------------------------------------------------------------


@each_method
@pytest.mark.parametrize("offset", [1e4, 1e7, -1e7])
def test_an_offset_costs_the_soft_sort_no_digits(method, form, offset):
    """The gradient in float32 of values far from 0; they are whole, so the offset is exact."""
    scores = offset + torch.tensor([0.0, 1.0, 2.0, 5.0, 3.0])
    weight = torch.tensor([1.0, 2.0, -1.0, 3.0, 0.5], dtype=torch.float64)
    found = {}
    for dtype in (torch.float32, torch.float64):
        x = scores.to(dtype).requires_grad_()
        y = method.relax(x, tau=1.0).sort(x)
        found[dtype] = y, torch.autograd.grad(y.double() @ weight, x)[0]
    (y, gradient), (exact, expected) = found.values()
    assert_near(y, exact, 2e-7)
    assert_near(gradient, expected, 5e-6)


@each_method
def test_soft_sort_keeps_the_digits_of_small_values(method, form):
    x = torch.tensor([1e4, 1e-4, 30.0, 2e-4])
    torch.testing.assert_close(
        method.relax(x, tau=1e-12).sort(x), x.sort(descending=True).values, rtol=3e-7, atol=0
    )


# -- NaN -------------------------------------------------------------------------------------------


@each_method
@pytest.mark.parametrize("tau", TAUS)
def test_nan_poisons_its_own_list_and_no_other(method, form, tau):
    clean = torch.randn(3, 40, dtype=torch.float64)
    scores = clean.clone()
    scores[1, 17] = NAN
    scores.requires_grad_()
    x = torch.randn(3, 40, 2, dtype=torch.float64)
    P, Q = method.relax(scores, tau=tau), method.relax(clean.requires_grad_(), tau=tau)
    others = [0, 2]
    for ask in (
        REQUESTS[name] for name in ("matmul", "transpose", "rank", "entropy", "to_dense", "sort")
    ):
        value, expected = ask(P, x), ask(Q, x)
        assert value[1].isnan().all()
        assert_near(value[others], expected[others], ROUNDING[form], 1)
        (gradient,) = torch.autograd.grad(value.sum(), scores, retain_graph=True)
        (wanted,) = torch.autograd.grad(expected[others].sum(), clean, retain_graph=True)
        assert_near(gradient[others], wanted[others], 10 * ROUNDING[form], 1 / tau)


# -- anything finite -------------------------------------------------------------------------------


@each_method
@each_dtype
@given(data=st.data())
def test_finite_scores_give_finite_weights(method, dtype, form, data):
    scores = data.draw(strange_scores(dtype)).requires_grad_()
    tau = data.draw(st.sampled_from((1e-6, 1e-3, 1.0, 1e3)))
    P = method.relax(scores, tau=tau)
    identity = torch.eye(len(scores), dtype=dtype)
    assert torch.equal(P.permutation(), scores.detach().argsort(descending=True, stable=True))
    for matrix in (P.to_dense(), P @ identity, P.mT @ identity):
        assert matrix.isfinite().all()
    rows = (P @ identity).detach().double()
    assert (rows.sum(-1) - 1).abs().max() <= 8 * WEIGHT_ATOL[dtype]
    for soft in (P.rank(), P.entropy()):
        assert soft.isfinite().all()


@each_method
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["float64", "float32"])
@given(data=st.data())
def test_finite_scores_give_no_nan_gradients(method, dtype, form, data):
    scores = data.draw(strange_scores(dtype)).requires_grad_()
    tau = data.draw(st.sampled_from((1e-3, 1.0, 1e3)))
    P = method.relax(scores, tau=tau)
    x = torch.arange(1.0, len(scores) + 1, dtype=dtype)
    for value in (P @ x, P.mT @ x, P.rank(), P.entropy()):
        (gradient,) = torch.autograd.grad(value.sum(), scores, retain_graph=True)
        assert not gradient.isnan().any()


# -- what a look without gradients leaves behind ---------------------------------------------------

LOOKS = ["permutation", "entropy", "rank", "to_dense"]


@pytest.mark.parametrize("n", [5, 50, 600])
@pytest.mark.parametrize("look", LOOKS)
@pytest.mark.parametrize("method", methods())
def test_a_look_under_no_grad_leaves_later_gradients_alone(method, look, n):
    if n == 600 and not method.two_forms:
        n = 60
    x = torch.randn(n, dtype=torch.float64, requires_grad=True)
    payload = torch.randn(n, dtype=torch.float64)

    def gradients(P):
        values = [P.sort(payload), P.rank(), P.log_prob(P.permutation()), P.to_dense()]
        values.append(P.straight_through().sort(payload))
        return [torch.autograd.grad(v.square().sum(), x, retain_graph=True)[0] for v in values]

    expected = gradients(method.relax(x, tau=0.5))
    P = method.relax(x, tau=0.5)
    with torch.no_grad():
        getattr(P, look)()
    for actual, other in zip(gradients(P), expected, strict=True):
        torch.testing.assert_close(actual, other)


# -- scores far from the others --------------------------------------------------------------------


@pytest.mark.parametrize("outlier", [1e17, -1e17, 3e38, -3.4e38])
@pytest.mark.parametrize("n", [4, 40])
@pytest.mark.parametrize("tau", [1.0, 1e-4])
def test_a_distant_score_changes_nothing_among_the_others(outlier, n, tau):
    x = torch.randn(n - 1)
    P, alone = (ns.neuralsort(s, tau=tau) for s in (torch.cat([x, torch.tensor([outlier])]), x))
    rows = slice(1, None) if outlier > 0 else slice(0, -1)
    torch.testing.assert_close(P.to_dense()[rows, :-1], alone.to_dense())
    own = alone.permutation()
    order = torch.cat([torch.tensor([n - 1]), own] if outlier > 0 else [own, torch.tensor([n - 1])])
    torch.testing.assert_close(P.log_prob(order)[rows], alone.log_prob(own))


def test_a_vanishing_temperature_is_a_hard_sort():
    P = ns.neuralsort(torch.tensor([1.0, 3.0, 2.0]), tau=1e-300)
    assert torch.equal(P.to_dense(), torch.eye(3)[[1, 2, 0]])


@pytest.mark.parametrize("tau", [np.float32(0.5), np.float64(0.5), np.int64(1), 1])
def test_numbers_of_numpy_are_numbers(tau):
    scores = torch.randn(5)
    P = ns.neuralsort(scores, tau=tau).to_dense()
    assert torch.equal(P, ns.neuralsort(scores, tau=float(tau)).to_dense())


@each_method
def test_a_longer_payload_keeps_its_offset(method, form):
    """float32 scores, and a float64 payload whose offset float32 does not hold."""
    scores, payload = torch.randn(40), torch.rand(40, dtype=torch.float64)
    P = method.relax(scores, tau=0.1)
    expected = P.to_dense().double() @ payload
    assert_near(P.sort(123_456_789 + payload) - 123_456_789, expected, 1e-6, 1)
