"""What a relaxed permutation remembers: nothing of another mode, nothing of scores that changed."""

import pytest
import torch

import neuralsort.torch as ns
from tests.methods import every_form


@every_form()
def test_what_was_asked_in_inference_mode_does_not_spoil_gradients(method, form):
    scores = torch.randn(2, 6, requires_grad=True)
    P = method.relax(scores, tau=0.5)
    with torch.inference_mode():
        inside = P.permutation(), P.sort(scores), P.rank(), P.entropy()
    outside = P.sort(scores), P.rank(), P.entropy()
    assert torch.equal(P.permutation(), inside[0])
    for one, other in zip(inside[1:], outside, strict=True):
        assert torch.allclose(one, other)
    sum(x.sum() for x in outside).backward()
    assert scores.grad is not None
    assert scores.grad.isfinite().all()


@every_form()
@pytest.mark.parametrize("hardened", [False, True])
def test_what_was_made_in_inference_mode_has_gradients_outside(method, form, hardened):
    scores = torch.randn(2, 6, requires_grad=True)
    gradients = []
    for inside in (True, False):
        with torch.inference_mode(inside):
            P = method.relax(scores, tau=0.5)
            P = P.straight_through() if hardened else P
        gradients += torch.autograd.grad(P.sort(scores).square().sum(), scores)
    assert torch.equal(*gradients)


def test_a_matrix_hardened_in_inference_mode_still_has_gradients():
    matrix = torch.rand(4, 4).softmax(-1).requires_grad_()
    P = ns.RelaxedPermutation.from_dense(matrix)
    with torch.inference_mode():
        P.permutation()
    P.straight_through().sort(torch.randn(4)).sum().backward()
    assert matrix.grad is not None


@every_form()
@pytest.mark.parametrize("asked_before", [False, True])
def test_scores_changed_in_place_are_refused(method, form, asked_before):
    scores = torch.randn(6)
    P = method.relax(scores, tau=0.5)
    if asked_before:
        P.sort(scores)
    scores.mul_(-1)
    assert_refused(P)


def assert_refused(P):
    everything = {
        "sort": lambda: P.sort(torch.randn(6)),
        "permutation": P.permutation,
        "rank": P.rank,
        "matrix": P.to_dense,
        "memberships": lambda: P.memberships(2),
        "transpose": lambda: P.mT @ torch.randn(6),
        "copy": P.detach,
        "cast": lambda: P.to(torch.float64),
    }
    for ask in everything.values():
        with pytest.raises(RuntimeError, match="changed in place.*Make it again"):
            ask()


@every_form()
@pytest.mark.parametrize("changed", ["scores", "mask"])
def test_beside_a_mask_both_are_refused_when_they_changed(method, form, changed):
    scores, mask = torch.randn(6), torch.arange(6) < 4
    P = method.relax(scores, tau=0.5, mask=mask)
    P.sort(scores)
    (scores if changed == "scores" else mask)[0] = 0
    assert_refused(P)


def test_a_matrix_that_changed_is_hardened_anew():
    matrix = torch.eye(3)
    P = ns.RelaxedPermutation.from_dense(matrix)
    assert P.permutation().tolist() == [0, 1, 2]
    first = P.top(2)
    matrix.copy_(torch.eye(3)[[1, 0, 2]])
    assert P.permutation().tolist() == [1, 0, 2]
    assert first.permutation().tolist() == [1, 0]


@every_form()
def test_a_temperature_changed_in_place_is_that_of_before(method, form):
    scores, tau = torch.randn(6), torch.tensor(0.5, dtype=torch.float64)
    P = method.relax(scores, tau=tau)
    tau.mul_(4)
    before = torch.tensor(0.5, dtype=torch.float64)
    expected = method.relax(scores, tau=before).to_dense()
    for Q in (P, P.detach(), P[...], P.to(torch.float64).to(torch.float32)):
        assert torch.equal(Q.to_dense(), expected)
