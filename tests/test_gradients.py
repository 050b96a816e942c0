"""First and second derivatives against finite differences, for every request and both forms."""

import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck

import neuralsort.torch as ns
from tests.methods import every_form, in_form, methods
from tests.portions import some_of
from tests.requests import PLAIN, REQUESTS, each_request

each_method = pytest.mark.parametrize("method", methods())
ASKED = (*PLAIN, "to_dense", "top", "top transpose")
each_request = each_request(*ASKED)

TWICE = [name for name in ASKED if name != "entropy"]
"""Entropy is a diagnostic: without the matrix it has first derivatives only."""


def spread_out(*shape: int) -> Tensor:
    """Scores further apart than the steps of the finite differences."""
    ranks = torch.rand(*shape).argsort(-1).to(torch.float64)
    return (0.4 * (ranks + 0.3 * torch.rand(*shape, dtype=torch.float64))).requires_grad_()


def inputs(*shape: int) -> tuple[Tensor, Tensor, Tensor]:
    """Scores, a payload, and a temperature for each list."""
    x = torch.randn(*shape, 2, dtype=torch.float64, requires_grad=True)
    tau = (0.5 + torch.rand(*shape[:-1], 1, dtype=torch.float64)).requires_grad_()
    return spread_out(*shape), x, tau


@each_method
@each_request
@pytest.mark.parametrize("n", some_of([4, 5], 4))
def test_gradcheck(method, request_, form, n):
    ask = REQUESTS[request_]
    assert gradcheck(lambda s, x, tau: ask(method.relax(s, tau=tau), x), inputs(2, n))


@pytest.mark.slow
@each_method
@pytest.mark.parametrize("request_", TWICE)
def test_gradgradcheck(method, request_, form, fast_mode):
    def ask(s: Tensor, x: Tensor, tau: Tensor) -> Tensor:
        return REQUESTS[request_](method.relax(s, tau=tau), x)

    assert gradgradcheck(ask, inputs(2, 4), fast_mode=fast_mode)


def long_cases() -> list:
    """Narrow blocks in every run, and wide ones for one request of each kind."""
    checks = [(name, gradcheck) for name in ASKED] + [(name, gradgradcheck) for name in TWICE]
    cases = [(name, check, tau) for name, check in checks for tau in (0.05, 30.0)]
    wide = ("matmul", "rank", "entropy")
    return some_of(cases, *(c for c in cases if c[2] < 1 or (c[0] in wide and c[1] is gradcheck)))


@pytest.mark.slow
@each_method
@pytest.mark.parametrize(("request_", "check", "tau"), long_cases())
def test_gradients_in_long_lists(method, request_, check, tau):
    """Along random directions, where the banded form has many blocks, narrow and wide."""
    ask = REQUESTS[request_]
    scores = spread_out(150)
    x = torch.randn(150, 2, dtype=torch.float64, requires_grad=True)
    temperature = torch.tensor(tau, dtype=torch.float64, requires_grad=True)
    with in_form("banded"):
        assert check(
            lambda s, x, tau: ask(method.relax(s, tau=tau), x),
            (scores, x, temperature),
            fast_mode=True,
            rtol=1e-2,
            atol=1e-4,
        )


@each_method
def test_second_derivative_of_entropy_is_right_or_refused(method, form):
    s, _, tau = inputs(2, 4)
    try:
        assert gradgradcheck(lambda s, tau: method.relax(s, tau=tau).entropy(), (s, tau))
    except RuntimeError as refusal:
        if form == "dense" or "entropy" not in str(refusal) or "to_dense" not in str(refusal):
            raise


@pytest.mark.slow
@each_method
def test_gradients_through_a_mask(method, form, fast_mode):
    mask = torch.tensor([[True, False, True, True, True], [True, True, True, False, False]])
    s, x, tau = inputs(2, 5)

    def product(s: Tensor, x: Tensor, tau: Tensor) -> Tensor:
        return method.relax(s, tau=tau, mask=mask) @ x

    def rank(s: Tensor, tau: Tensor) -> Tensor:
        return method.relax(s, tau=tau, mask=mask).rank()

    for ask, given in ((product, (s, x, tau)), (rank, (s, tau))):
        assert gradcheck(ask, given)
        assert gradgradcheck(ask, given, fast_mode=fast_mode)


@each_method
@pytest.mark.parametrize("request_", ["matmul", "rank", "log_prob"])
def test_second_derivatives_of_both_forms_agree(method, request_):
    """Hessian times vector, at a length where bands have many blocks."""
    ask = REQUESTS[request_]
    scores = torch.randn(300, dtype=torch.float64)
    x, direction = torch.randn(300, 2, dtype=torch.float64), torch.randn(300, dtype=torch.float64)
    results = {}
    for form in ("dense", "banded"):
        with in_form(form):
            s = scores.clone().requires_grad_()
            loss = ask(method.relax(s, tau=0.5), x).square().sum()
            (first,) = torch.autograd.grad(loss, s, create_graph=True)
            (results[form],) = torch.autograd.grad(first @ direction, s)
    error = (results["banded"] - results["dense"]).abs().max()
    assert error <= 1e-9 * results["dense"].abs().max()


# -- straight-through ------------------------------------------------------------------------------


def test_straight_through_has_the_value_of_hard_and_the_gradient_of_soft():
    hard = torch.tensor([1.0, 0.0, 0.0], requires_grad=True)
    soft = torch.tensor([0.5, 0.3, 0.2], requires_grad=True)
    upstream = torch.tensor([2.0, -1.0, 4.0])
    value = ns.straight_through(hard, soft)
    to_hard, to_soft = torch.autograd.grad(value, (hard, soft), upstream, materialize_grads=True)
    assert torch.equal(value, hard)
    assert torch.equal(to_soft, upstream)
    assert torch.equal(to_hard, torch.zeros(3))


def test_straight_through_is_exact_where_hard_plus_soft_minus_soft_is_not():
    hard, soft = torch.tensor([1e-8, 1.0]), torch.tensor([1e8, 0.1], requires_grad=True)
    assert torch.equal(ns.straight_through(hard, soft), hard)


def test_straight_through_passes_second_derivatives_of_soft():
    w = torch.tensor([0.3, -0.7], dtype=torch.float64, requires_grad=True)
    value = ns.straight_through(w.detach().sign(), w**3).sum()
    (first,) = torch.autograd.grad(value, w, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), w)
    torch.testing.assert_close(first, 3 * w**2)
    torch.testing.assert_close(second, 6 * w)


@each_method
def test_straight_through_permutation_differentiates_as_the_relaxed_one(method, form):
    s, x, tau = inputs(2, 6)
    upstream = torch.randn(2, 6, 2, dtype=torch.float64)
    P = method.relax(s, tau=tau)
    soft = torch.autograd.grad(P @ x, (s, tau), upstream, retain_graph=True)
    through = torch.autograd.grad(P.straight_through() @ x, (s, tau), upstream, retain_graph=True)
    for one, other in zip(through, soft, strict=True):
        torch.testing.assert_close(one, other)
    (to_x,) = torch.autograd.grad(P.straight_through() @ x, x, upstream)
    (hard,) = torch.autograd.grad(method.relax(s, tau=0) @ x, x, upstream)
    assert torch.equal(to_x, hard)


@each_method
def test_straight_through_differentiates_products_with_vectors_as_the_relaxed_one(method, form):
    s, x, tau = inputs(2, 6)
    vector = x[0, :, 0].detach()
    P = method.relax(s, tau=tau)
    Q = P.straight_through()
    for soft, through in ((P @ vector, Q @ vector), (P.mT @ vector, Q.mT @ vector)):
        upstream = torch.randn_like(soft)
        expected = torch.autograd.grad(soft, (s, tau), upstream, retain_graph=True)
        actual = torch.autograd.grad(through, (s, tau), upstream, retain_graph=True)
        for one, other in zip(actual, expected, strict=True):
            torch.testing.assert_close(one, other)


@every_form()
def test_log_prob_of_items_that_take_no_part_leaves_the_other_gradients_finite(method, form):
    """A weight of exactly 0 beside others: absent items, and infinitely high or low ones."""
    s = torch.tensor([[0.3, 1.0, torch.inf, -0.7, -torch.inf, 0.2, -1.5]], dtype=torch.float64)
    tau = torch.full((1, 1), 0.5, dtype=torch.float64, requires_grad=True)
    mask = torch.tensor([[True, False, True, True, True, True, True]])
    s.requires_grad_()
    value = method.relax(s, tau=tau, mask=mask).log_prob(torch.arange(7).unsqueeze(0))
    some = value.isfinite()
    assert some.any()
    assert not some.all()
    for gradient in torch.autograd.grad(value[some].sum(), (s, tau)):
        assert gradient.isfinite().all()


def test_log_prob_of_a_vanishing_weight_has_a_finite_gradient():
    matrix = torch.tensor([[1.0, 1e-40], [0.0, 1.0]], requires_grad=True)
    value = ns.RelaxedPermutation.from_dense(matrix).log_prob(torch.tensor([1, 0]))
    assert value[0].isfinite()
    assert value[1].isneginf()
    (to_matrix,) = torch.autograd.grad(value[:1].sum() + value[1:].exp().sum(), matrix)
    assert to_matrix.isfinite().all()


@pytest.mark.parametrize("n", [6, 100, 600])
def test_an_offset_of_the_scores_does_not_drown_the_gradient_to_the_temperature(n):
    scores, x = torch.randn(3, n), torch.randn(n)
    gradients = []
    for offset, dtype in ((0.0, torch.float64), (64.0, torch.float32)):
        s = (scores.double().mul(1024).round() / 1024 + offset).to(dtype)  # no digit is lost
        tau = torch.full((3, 1), 0.0625, dtype=dtype, requires_grad=True)
        ns.neuralsort(s, tau=tau).sort(x.to(dtype)).square().sum().backward()
        gradients.append(tau.grad)
    wanted, found = gradients
    assert (found - wanted).abs().max() <= 1e-4 * wanted.abs().max()
