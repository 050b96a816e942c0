"""Gates: weights in [0, 1] that sum to k, over every rule for the threshold."""

import math

import numpy as np
import pytest
import scipy.optimize
import torch
from hypothesis import given
from hypothesis import strategies as st

import neuralsort.torch as ns

SOLVED = {"lapsum": ns.lapsum, "sparse_threshold": ns.sparse_threshold}
GATES = {**SOLVED, "midpoint_threshold": ns.midpoint_threshold}
each_gate = pytest.mark.parametrize("name", GATES)
each_solved = pytest.mark.parametrize("name", SOLVED)

CDF = {
    "lapsum": lambda d: (
        np.where(d < 0, np.exp(np.minimum(d, 0)), 2 - np.exp(-np.maximum(d, 0))) / 2
    ),
    "sparse_threshold": lambda d: np.clip(d, 0.0, 1.0),
}


def oracle(name: str, scores: np.ndarray, k: int, tau: float) -> np.ndarray:
    """The threshold by a root finder."""

    def excess(t: float) -> float:
        return CDF[name]((scores - t) / tau).sum() - k

    low, high = scores.min() - 40 * tau, scores.max() + 40 * tau
    t = scipy.optimize.brentq(excess, low, high, xtol=1e-15, rtol=1e-15)
    return CDF[name]((scores - t) / tau)


# -- the weights -----------------------------------------------------------------------------------


@each_solved
@pytest.mark.parametrize("tau", [0.05, 0.7, 30.0])
def test_weights_are_those_of_a_root_finder(name, tau):
    x = torch.randn(5, 9, dtype=torch.float64)
    for k in range(1, 9):
        weights = ns.soft_topk_mask(x, k, tau=tau, relax=GATES[name])
        expected = np.stack([oracle(name, row, k, tau) for row in x.numpy()])
        np.testing.assert_allclose(weights.numpy(), expected, atol=1e-9)


@each_solved
@pytest.mark.parametrize("offset", [0.0, 1000.0])
@pytest.mark.parametrize("tau", [1e-6, 1e-3, 0.1, 1.0, 100.0, 1e8])
@pytest.mark.parametrize("k", [1, 1000, 50_000, 99_999])
def test_weights_of_long_float32_lists_sum_to_k(name, offset, tau, k):
    x = torch.randn(100_000, generator=torch.Generator().manual_seed(k)) + offset
    weights = ns.soft_topk_mask(x, k, tau=tau, relax=GATES[name])
    assert weights.dtype is torch.float32
    assert weights.min() >= 0
    assert weights.max() <= 1
    assert abs(weights.double().sum().item() - k) <= 1e-6 * k


def test_memberships_of_lapsum_are_sums_of_its_rows():
    x = torch.randn(4, 700, dtype=torch.float64)
    x[1, ::3] = x[1, 0]  # ties
    P = ns.lapsum(x, tau=0.3)
    ones = torch.ones(50, dtype=torch.float64)
    torch.testing.assert_close(P.memberships(50), P.top(50).mT @ ones)


def test_sparse_memberships_are_the_projection():
    """Onto the weights of sum k in the unit cube: no other such weights are nearer."""
    x, k, tau = torch.randn(12, dtype=torch.float64), 4, 0.8
    weights = ns.soft_topk_mask(x, k, tau=tau, relax=ns.sparse_threshold)
    assert ((weights == 0) | (weights == 1)).any()
    distance = (weights - x / tau).square().sum()
    for seed in range(200):
        other = torch.rand(12, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
        other = ns.soft_topk_mask(other.log(), k, tau=0.5)  # any point of the set
        assert (other - x / tau).square().sum() >= distance


def test_midpoint_is_its_formula():
    x = torch.tensor([0.3, -1.0, 2.0, 0.9])
    expected = torch.sigmoid((x - 0.6) / 0.5)
    torch.testing.assert_close(
        ns.soft_topk_mask(x, 2, tau=0.5, relax=ns.midpoint_threshold), expected
    )


@pytest.mark.parametrize("relax", [ns.sinkhorn_sort, ns.sorting_network, ns.softsort])
def test_relaxed_permutations_are_gates_too(relax):
    x = torch.randn(3, 6, dtype=torch.float64)
    weights = ns.soft_topk_mask(x, 2, tau=0.5, relax=relax)
    torch.testing.assert_close(weights, relax(x, tau=0.5).to_dense()[:, :2].sum(-2))


def test_weights_of_soft_topk_may_exceed_one_and_those_of_the_mask_do_not():
    """As the docs say: columns of NeuralSort need not sum to 1."""
    x = torch.tensor([5.1, -2.8, 4.7, 4.1, -0.7])
    assert ns.soft_topk(x, 3).weights.max() > 1.1
    assert ns.soft_topk(x, 3, relax=ns.lapsum).weights.max() <= 1
    assert ns.soft_topk_mask(x, 3).max() <= 1


# -- laws ------------------------------------------------------------------------------------------


@each_gate
@given(
    scores=st.lists(st.floats(-50, 50, width=32), min_size=1, max_size=12),
    k=st.integers(0, 12),
    tau=st.sampled_from([0.0, 1e-3, 0.5, 7.0]),
)
def test_weights_are_between_0_and_1_in_the_order_of_scores(name, scores, k, tau):
    x, k = torch.tensor(scores, dtype=torch.float64), min(k, len(scores))
    weights = ns.soft_topk_mask(x, k, tau=tau, relax=GATES[name])
    assert ((weights >= 0) & (weights <= 1)).all()
    if name in SOLVED:
        assert abs(weights.sum() - k) < 1e-9
    in_order = weights[x.argsort(stable=True, descending=True)]
    if tau > 0:
        assert (in_order.diff() <= 1e-12).all()
    hard = ns.soft_topk_mask(x, k, tau=tau, relax=GATES[name], hard=True)
    assert hard.sum() == k
    torch.testing.assert_close(hard[x.argsort(stable=True, descending=True)][:k].sum(), hard.sum())


@each_gate
def test_gradients(name, fast_mode):
    """In scores and temperature, first and second, with another k for every list."""
    k = torch.tensor([1, 3, 6])

    def gate(x, tau):
        return ns.soft_topk_mask(x, k, tau=tau, relax=GATES[name])

    for seed in range(3):
        generator = torch.Generator().manual_seed(seed)
        x = torch.randn(3, 7, dtype=torch.float64, generator=generator, requires_grad=True)
        tau = torch.tensor([[0.3], [0.9], [2.0]], dtype=torch.float64, requires_grad=True)
        assert torch.autograd.gradcheck(gate, (x, tau))
        assert torch.autograd.gradgradcheck(gate, (x, tau), fast_mode=fast_mode)


@each_gate
def test_ties_have_equal_weights_and_gradients(name):
    x = torch.tensor([1.0, 2.0, 2.0, 2.0, 0.0], requires_grad=True)
    weights = ns.soft_topk_mask(x, 2, tau=1.5, relax=GATES[name])
    assert weights[1] == weights[2] == weights[3]
    (gradient,) = torch.autograd.grad(weights[0], x)
    assert gradient.isfinite().all()
    torch.testing.assert_close(gradient[1], gradient[2])
    torch.testing.assert_close(gradient[1], gradient[3])


@each_gate
def test_masks_are_padding_invariant(name):
    x = torch.randn(4, 8, dtype=torch.float64)
    mask = torch.rand(4, 8, generator=torch.Generator().manual_seed(1)) < 0.6
    mask[0], mask[1, 1:], mask[1, 0] = False, False, True
    spoilt = torch.where(mask, x, torch.tensor([math.nan, math.inf] * 4)).requires_grad_()
    weights = ns.soft_topk_mask(spoilt, 3, tau=0.5, mask=mask, relax=GATES[name])
    weights.square().sum().backward()
    for row, there, ours, grad in zip(x, mask, weights, spoilt.grad, strict=True):
        short = row[there].requires_grad_()
        expected = ns.soft_topk_mask(short, min(3, len(short)), tau=0.5, relax=GATES[name])
        torch.testing.assert_close(ours[there], expected)
        assert (ours[~there] == 0).all()
        assert (grad[~there] == 0).all()
        if len(short):
            expected.square().sum().backward()
            torch.testing.assert_close(grad[there], short.grad)


@each_gate
def test_hard_masks_have_exactly_k_ones_and_the_soft_gradient(name):
    x = torch.randn(3, 5, requires_grad=True)
    k = torch.tensor([0, 2, 5])
    up = torch.randn(3, 5)
    hard = ns.soft_topk_mask(x, k, tau=0.7, hard=True, relax=GATES[name])
    assert torch.equal(hard.sum(-1), k.float())
    assert ((hard == 0) | (hard == 1)).all()
    for row, one, count in zip(x, hard, k.tolist(), strict=True):
        assert set(one.nonzero().flatten().tolist()) == set(row.topk(count).indices.tolist())
    soft = ns.soft_topk_mask(x, k, tau=0.7, relax=GATES[name])
    (ours,) = torch.autograd.grad((hard * up).sum(), x)
    (theirs,) = torch.autograd.grad((soft * up).sum(), x)
    torch.testing.assert_close(ours, theirs)


@each_gate
def test_infinite_scores_are_certain_and_a_nan_spoils_its_list(name):
    inf = math.inf
    x = torch.tensor(
        [
            [inf, 1.0, 2.0, -inf],
            [inf, inf, inf, 0.0],
            [1.0, -inf, -inf, -inf],
            [0.0, math.nan, 1, 2],
        ]
    ).requires_grad_()
    tau = torch.full((4, 1), 0.5, requires_grad=True)
    weights = ns.soft_topk_mask(x, 2, tau=tau, relax=GATES[name])
    assert weights[0, 0] == 1
    assert weights[0, 3] == 0
    torch.testing.assert_close(weights[0, 1:3].sum(), torch.tensor(1.0))
    torch.testing.assert_close(weights[1], torch.tensor([2 / 3, 2 / 3, 2 / 3, 0.0]))
    torch.testing.assert_close(weights[2], torch.tensor([1.0, 1 / 3, 1 / 3, 1 / 3]))
    assert weights[3].isnan().all()
    for gradient in torch.autograd.grad(weights[:3].square().sum(), (x, tau)):
        assert gradient.isfinite().all()


@each_gate
def test_extreme_scores_have_finite_gradients(name):
    x = torch.tensor([1e38, -1e38, 0.0, 1.0, 1e-38], requires_grad=True)
    tau = torch.tensor([1e-3], requires_grad=True)
    weights = ns.soft_topk_mask(x, 2, tau=tau, relax=GATES[name])
    for gradient in torch.autograd.grad(weights.square().sum(), (x, tau)):
        assert gradient.isfinite().all()


@each_gate
def test_dims_smallest_and_a_temperature_of_zero_in_a_tensor(name):
    x = torch.randn(2, 6, 3)
    tau = torch.tensor(0.5)
    ours = ns.soft_topk_mask(x, 2, tau=tau, dim=1, largest=False, relax=GATES[name])
    expected = ns.soft_topk_mask(-x.movedim(1, -1), 2, tau=0.5, relax=GATES[name]).movedim(-1, 1)
    torch.testing.assert_close(ours, expected)
    cold = ns.soft_topk_mask(x[..., 0], 2, tau=torch.tensor([[0.0], [0.5]]), relax=GATES[name])
    assert torch.equal(cold[0], ns.soft_topk_mask(x[0, :, 0], 2, tau=0))
    torch.testing.assert_close(
        cold[1], ns.soft_topk_mask(x[1, :, 0], 2, tau=0.5, relax=GATES[name])
    )


@each_gate
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_that_of_float32_rounded(name, dtype):
    x = torch.randn(3, 40).to(dtype)
    ours = ns.soft_topk_mask(x, 7, tau=0.5, relax=GATES[name])
    expected = ns.soft_topk_mask(x.float(), 7, tau=0.5, relax=GATES[name])
    assert ours.dtype is dtype
    assert torch.equal(ours, expected.to(dtype))


@each_gate
def test_odd_shapes(name):
    for shape in [(0,), (0, 3), (3, 0), (1,), (2, 1, 1)]:
        x = torch.randn(shape)
        weights = ns.soft_topk_mask(x, min(1, shape[-1]), relax=GATES[name])
        assert torch.equal(weights, torch.ones(shape))


@each_gate
def test_vmap_and_compile(name):
    x = torch.randn(3, 9)

    def gate(x):
        return ns.soft_topk_mask(x, 3, tau=0.5, relax=GATES[name])

    torch.testing.assert_close(torch.func.vmap(gate)(x), gate(x))
    compiled = torch.compile(gate, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(x), gate(x))


def test_messages():
    x = torch.randn(2, 3)
    with pytest.raises(TypeError, match="`k` expects whole numbers, got a tensor of torch.float32"):
        ns.soft_topk_mask(x, torch.ones(2))
    with pytest.raises(ValueError, match=r"broadcasts to \(2,\), got \(2, 1\). Leave the dim"):
        ns.soft_topk_mask(x, torch.ones(2, 1, dtype=torch.int64))
    with pytest.raises(ValueError, match="between 0 and the length of the list, 3, got 4"):
        ns.soft_topk_mask(x, torch.tensor([1, 4]))
    with pytest.raises(ValueError, match="between 0 and the length of the list, 3, got 5"):
        ns.soft_topk_mask(x, 5)
    with pytest.raises(TypeError, match=r"`relax\(scores\)` must give what has memberships"):
        ns.soft_topk_mask(x, 1, relax=ns.soft_rank)
    with pytest.raises(TypeError, match="`relax` expects a function such as neuralsort"):
        ns.soft_topk_mask(x, 1, relax="lapsum")
    with pytest.raises(TypeError, match="Lists with a mask need one that takes it"):
        ns.soft_topk_mask(x, 1, mask=x > 0, relax=lambda scores, tau: ns.lapsum(scores, tau=tau))


@pytest.mark.parametrize("k", [0, 2, 4])
@pytest.mark.parametrize("name", GATES)
def test_a_negative_temperature_that_cannot_be_seen_spoils_its_list_whatever_k_is(name, k):
    def gate(tau):
        return ns.soft_topk_mask(torch.arange(4.0), k, tau=tau, relax=GATES[name])

    weights = torch.vmap(gate)(torch.tensor([[1.0], [-1.0]]))
    assert not weights[0].isnan().any()
    assert weights[1].isnan().all()
