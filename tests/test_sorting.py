"""Long lists are sorted by NumPy: the same as by torch, values, order and derivatives."""

import pytest
import torch
from torch import Tensor
from torch.autograd import forward_ad

import neuralsort.torch as ns
from neuralsort.torch import tracing
from neuralsort.torch.tracing import MANY, stable_sort
from tests.conftest import assert_near

INF, NAN = float("inf"), float("nan")
N = MANY // 4 + 3


def hostile() -> Tensor:
    """Lists with ties, both zeros, both infinities, the smallest and the largest numbers."""
    x = torch.randn(2, 3, N)
    x[0, :, ::3] = x[0, :, ::3].round()
    x[1, 0, ::5], x[1, 0, 1::5] = 0.0, -0.0
    x[1, 1, 7::100], x[1, 1, 9::100] = INF, -INF
    x[1, 2] *= torch.finfo(x.dtype).tiny
    x[0, 2, :4] = torch.tensor([1, -1, 1e-45, -1e-45]) * torch.finfo(x.dtype).max
    return x


each_direction = pytest.mark.parametrize("descending", [True, False])


@each_direction
@pytest.mark.parametrize("dtype", tracing.FLOATS, ids=str)
@pytest.mark.parametrize("layout", ["whole", "turned", "one"])
def test_values_and_order_are_those_of_torch(dtype, descending, layout):
    x = hostile().to(dtype)
    if layout == "turned":
        x = x.movedim(-1, 0).contiguous().movedim(0, -1)  # other strides
    elif layout == "one":
        x = x.flatten()
    assert tracing._sorted_fast(x, descending) is not None
    values, perm = stable_sort(x, descending=descending)
    expected = torch.sort(x, dim=-1, descending=descending, stable=True)
    assert torch.equal(perm, expected.indices)
    assert torch.equal(values, expected.values)
    assert values.dtype == dtype


@each_direction
@pytest.mark.parametrize("sign", [1, -1])
def test_a_nan_is_the_largest_whatever_its_sign(sign, descending):
    x = hostile()
    x[1, 1, 5] = torch.copysign(torch.tensor(NAN), torch.tensor(float(sign)))
    perm = stable_sort(x, descending=descending)[1]
    assert torch.equal(perm, torch.sort(x, descending=descending, stable=True).indices)


def test_derivatives_are_those_of_torch():
    x, grad, towards = torch.randn(2, N), torch.randn(2, N), torch.randn(2, N)
    x.requires_grad_()
    (found,) = torch.autograd.grad(stable_sort(x)[0].square(), x, grad, create_graph=True)
    (expected,) = torch.autograd.grad(x.sort(-1).values.square(), x, grad, create_graph=True)
    assert torch.equal(found, expected)
    again = [torch.autograd.grad(one, x, towards)[0] for one in (found, expected)]
    assert torch.equal(*again)
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(x.detach(), towards)
        tangent = forward_ad.unpack_dual(stable_sort(dual)[0]).tangent
    assert torch.equal(tangent, towards.gather(-1, x.sort(-1).indices))


@pytest.mark.parametrize("relax", [ns.neuralsort, ns.softsort, ns.lapsum])
def test_relaxations_are_the_same_sorted_either_way(relax, monkeypatch):
    scores, grad = torch.randn(3, N).requires_grad_(), torch.randn(3, N)

    def answers() -> list[Tensor]:
        y = relax(scores, tau=0.5).sort(scores)
        return [y, *torch.autograd.grad(y, scores, grad)]

    found = answers()
    monkeypatch.setattr(tracing, "MANY", 10**9)
    for one, other in zip(found, answers(), strict=True):
        assert_near(one, other, 1e-6)
