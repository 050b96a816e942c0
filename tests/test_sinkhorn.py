"""Sinkhorn on matrices of logits: its fixed point, its iterations, its gradients, its memory."""

import numpy as np
import pytest
import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck

import neuralsort.torch as ns
from tests import oracle
from tests.conftest import DTYPES, WEIGHT_ATOL, assert_near
from tests.portions import some_of
from tests.requests import REQUESTS, each_request

INF = float("inf")
each_request = each_request("to_dense", "matmul", "transpose", "rank", "log_prob", "entropy", "top")
each_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: str(d).removeprefix("torch."))


def logits(*shape: int, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64).to(dtype)


# -- values ----------------------------------------------------------------------------------------


@each_dtype
@pytest.mark.parametrize("tau", [0.1, 1.0, 10.0])
@pytest.mark.parametrize("iterations", [0, 1, 20])
def test_weights_are_those_of_the_iterations(dtype, tau, iterations):
    L = logits(2, 6, 6, dtype=dtype)
    P = ns.sinkhorn(L, tau=tau, iterations=iterations)
    expected = [oracle.balanced(one.numpy() / tau, iterations) for one in L.double()]
    assert P.dtype == P.to_dense().dtype == dtype
    error = (P.to_dense().double() - torch.from_numpy(np.stack(expected))).abs().max()
    assert error <= 2 * WEIGHT_ATOL[dtype]


def test_rows_sum_to_one_after_any_number_of_iterations_and_columns_in_the_limit():
    L = 3 * logits(4, 9, 9)
    gaps = []
    for iterations in (0, 5, 50, 500):
        matrix = ns.sinkhorn(L, iterations=iterations).to_dense()
        torch.testing.assert_close(matrix.sum(-1), torch.ones(4, 9, dtype=torch.float64))
        gaps.append((matrix.sum(-2) - 1).abs().max().item())
    assert gaps == sorted(gaps, reverse=True)
    assert gaps[-1] < 1e-10


def test_shifts_of_rows_and_columns_change_nothing_in_the_limit():
    L = logits(5, 5)
    before = ns.sinkhorn(L, iterations=300).to_dense()
    after = ns.sinkhorn(L + 7 * logits(5, 1) + logits(5), iterations=300).to_dense()
    torch.testing.assert_close(after, before)
    # Rows are normalised first: their shifts change nothing even before.
    torch.testing.assert_close(
        ns.sinkhorn(L + 1e6 * logits(5, 1), iterations=3).to_dense(),
        ns.sinkhorn(L, iterations=3).to_dense(),
        rtol=1e-8,
        atol=1e-8,
    )


def test_permuting_rows_and_columns_permutes_the_weights():
    L, rows, columns = logits(6, 6), torch.randperm(6), torch.randperm(6)
    before = ns.sinkhorn(L).to_dense()
    torch.testing.assert_close(
        ns.sinkhorn(L[rows][:, columns]).to_dense(), before[rows][:, columns]
    )


def test_temperature_scales_with_the_logits():
    L = logits(3, 5, 5)
    tau = torch.tensor([[0.5], [1.0], [2.0]], dtype=torch.float64)
    each = torch.stack([ns.sinkhorn(one / t).to_dense() for one, t in zip(L, tau, strict=True)])
    torch.testing.assert_close(ns.sinkhorn(L, tau=tau).to_dense(), each)


def test_small_tau_gives_the_best_assignment():
    L = logits(8, 5, 5)
    L += 3 * torch.rand(8, 5).argsort(-1).unsqueeze(-1).eq(torch.arange(5))  # by some margin
    expected = torch.tensor(np.stack([linear_sum_assignment(-one.numpy())[1] for one in L]))
    hard = ns.sinkhorn(L, tau=0)
    assert torch.equal(hard.permutation(), expected)
    assert torch.equal(hard.to_dense(), torch.nn.functional.one_hot(expected, 5).double())
    soft = ns.sinkhorn(L, tau=0.05, iterations=2000)
    assert torch.equal(soft.permutation(), expected)
    assert_near(soft.to_dense(), hard.to_dense(), 1e-2)


def test_permutation_is_the_assignment_where_rows_compete():
    L = torch.tensor([[2.0, 1.9, 0.0], [2.0, 0.0, 0.0], [0.0, 0.0, 1.0]])
    P = ns.sinkhorn(L, iterations=0)
    assert P.to_dense().argmax(-1).tolist() == [0, 0, 2]
    assert P.permutation().tolist() == [1, 0, 2]
    assert not P.is_unimodal()


@pytest.mark.parametrize("tolerance", [1e-2, 1e-8])
def test_tolerance_bounds_the_column_sums(tolerance):
    L = 2 * logits(3, 7, 7)
    matrix = ns.sinkhorn(L, iterations=10_000, tolerance=tolerance).to_dense()
    assert (matrix.sum(-2) - 1).abs().max() <= 2 * tolerance
    if tolerance == 1e-2:  # and no more was done than that needs
        assert (matrix.sum(-2) - 1).abs().max() >= 1e-6


def test_forbidden_places_get_no_weight_and_no_gradient():
    L = logits(4, 4)
    L[0, 1] = L[2, 2] = -INF
    L.requires_grad_()
    tau = torch.tensor(0.7, dtype=torch.float64, requires_grad=True)
    P = ns.sinkhorn(L, tau=tau, iterations=200)
    assert P.to_dense()[0, 1] == P.to_dense()[2, 2] == 0
    assert (P.to_dense().sum(-2) - 1).abs().max() < 1e-6
    loss = P.to_dense().square().sum() + P.entropy().sum() + P.rank().square().sum()
    to_logits, to_tau = torch.autograd.grad(loss, (L, tau))
    assert to_logits.isfinite().all()
    assert to_tau.isfinite()
    assert to_logits[0, 1] == to_logits[2, 2] == 0


def test_huge_logits_do_not_overflow():
    L = 1e30 * torch.randn(3, 5, 5)
    L.requires_grad_()
    P = ns.sinkhorn(L)
    assert P.to_dense().isfinite().all()
    torch.testing.assert_close(P.to_dense().sum(-1), torch.ones(3, 5))
    assert torch.autograd.grad(P.entropy().sum(), L)[0].isfinite().all()


@pytest.mark.parametrize("shape", [(3, 3, 3), (2, 4, 5, 5), (40, 1, 1), (7, 0, 3, 3)])
def test_many_small_matrices_are_as_each_of_them_alone(shape, fast_mode):
    """They lie side by side in memory, whatever the batch is made of."""
    L = logits(*shape)
    if L.numel() and shape[-1] > 1:
        L[0, ..., 0, 1] = -INF
    L.requires_grad_()
    upstream = logits(*shape)
    P = ns.sinkhorn(L, tau=0.3)
    (gradient,) = torch.autograd.grad(P.to_dense(), L, upstream)
    assert P.shape == gradient.shape == L.shape
    flat = [x.reshape(-1, *shape[-2:]) for x in (L, upstream, P.to_dense(), gradient)]
    for one, into, weights, slope in zip(*flat, strict=True):
        alone = one.detach().requires_grad_()
        expected = ns.sinkhorn(alone, tau=0.3).to_dense()
        torch.testing.assert_close(weights, expected)
        torch.testing.assert_close(slope, torch.autograd.grad(expected, alone, into)[0])

    def ask(L: Tensor, tau: Tensor) -> Tensor:
        return ns.sinkhorn(L, tau=tau, iterations=3).to_dense()

    if len(L) == 3:
        finite, _, tau = arguments(*shape)
        assert gradcheck(ask, (finite, tau))
        assert gradgradcheck(ask, (finite, tau), fast_mode=fast_mode)
        swapped = L.detach().movedim(0, 1).requires_grad_()  # in another layout
        torch.testing.assert_close(ns.sinkhorn(swapped.movedim(1, 0), tau=0.3).to_dense(), flat[2])


# -- masks -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("tau", [0, 0.5])
def test_padding_changes_nothing_for_present_items(tau):
    L = logits(2, 6, 6)
    mask = torch.tensor(
        [[True, False, True, True, False, True], [False, False, True] + [False] * 3]
    )
    L[0, :, 1] = float("nan")
    L.requires_grad_()
    P = ns.sinkhorn(L, tau=tau, mask=mask)
    for b in range(2):
        present, m = mask[b], int(mask[b].sum())
        alone = L.detach()[b, :m][:, present].clone().requires_grad_()
        expected = ns.sinkhorn(alone, tau=tau).to_dense()
        actual = P.to_dense()[b]
        torch.testing.assert_close(actual[:m][:, present], expected)
        assert torch.equal(actual[m:], torch.eye(6, dtype=torch.float64)[~present])
        assert (actual[:m][:, ~present] == 0).all()
        if tau:
            (wanted,) = torch.autograd.grad(expected.square().sum(), alone)
            (gradient,) = torch.autograd.grad(actual.square().sum(), L, retain_graph=True)
            torch.testing.assert_close(gradient[b, :m][:, present], wanted)
            gradient[b, :m, present] = 0
            assert torch.equal(gradient, torch.zeros_like(gradient))


# -- gradients -------------------------------------------------------------------------------------


def arguments(*shape: int) -> tuple[Tensor, Tensor, Tensor]:
    tau = 0.5 + torch.rand(*shape[:-2], 1, dtype=torch.float64)
    x = torch.randn(*shape[:-1], 2, dtype=torch.float64)
    return logits(*shape).requires_grad_(), x.requires_grad_(), tau.requires_grad_()


@each_request
def test_derivatives(request_, fast_mode):
    """Of the iterations as they are, not of their limit."""
    mask = torch.tensor([[True, False, True, True], [True, True, True, True]])
    for iterations, mask_ in ((0, None), (3, None), (3, mask)):

        def ask(L: Tensor, x: Tensor, tau: Tensor) -> Tensor:
            P = ns.sinkhorn(L, tau=tau, iterations=iterations, mask=mask_)  # noqa: B023
            return REQUESTS[request_](P, x).nan_to_num(neginf=0.0)

        assert gradcheck(ask, arguments(2, 4, 4))
        assert gradgradcheck(ask, arguments(2, 4, 4), fast_mode=fast_mode)


def test_gradients_with_a_tolerance_are_those_of_the_iterations_done():
    L, _, _ = arguments(3, 5, 5)
    P = ns.sinkhorn(L, iterations=1000, tolerance=1e-3)
    done = next(
        k for k in range(1000) if torch.equal(ns.sinkhorn(L, iterations=k).to_dense(), P.to_dense())
    )
    upstream = logits(3, 5, 5)
    (actual,) = torch.autograd.grad(P.to_dense(), L, upstream)
    (expected,) = torch.autograd.grad(ns.sinkhorn(L, iterations=done).to_dense(), L, upstream)
    assert torch.equal(actual, expected)


def test_what_is_kept_for_the_gradient_hardly_grows_with_the_iterations():
    kept = {}
    for iterations in (1, 100):
        sizes = []

        def pack(x: Tensor, sizes: list = sizes) -> Tensor:
            sizes.append(x.numel())
            return x

        L = logits(1, 64, 64).requires_grad_()
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
            ns.sinkhorn(L, iterations=iterations).to_dense()
        kept[iterations] = sum(sizes)
    assert kept[100] - kept[1] == 2 * 64 * 99  # two numbers per item and iteration


def test_vmap_equals_a_loop():
    L = logits(4, 3, 5, 5)
    expected = torch.stack([ns.sinkhorn(one).to_dense() for one in L])
    torch.testing.assert_close(torch.vmap(lambda one: ns.sinkhorn(one).to_dense())(L), expected)

    def loss(one: Tensor) -> Tensor:
        return ns.sinkhorn(one).to_dense().square().sum()

    for lists in (L, logits(2, 6, 3, 3)):  # few matrices of their size at a time, and many
        expected = torch.stack([torch.func.grad(loss)(one) for one in lists])
        torch.testing.assert_close(torch.vmap(torch.func.grad(loss))(lists), expected)
        turned = torch.vmap(torch.func.grad(loss), in_dims=1)(lists.movedim(0, 1))
        torch.testing.assert_close(turned, expected)


@pytest.mark.parametrize("iterations", some_of([3, 20], 3))
def test_it_compiles_into_one_graph(iterations):
    torch._dynamo.reset()
    L = logits(2, 5, 5).requires_grad_()

    def loss(L: Tensor) -> Tensor:
        return ns.sinkhorn(L, tau=0.5, iterations=iterations).rank().square().sum()

    compiled = torch.compile(loss, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(L), loss(L))
    (actual,) = torch.autograd.grad(compiled(L), L)
    torch.testing.assert_close(actual, torch.autograd.grad(loss(L), L)[0])


@pytest.mark.parametrize("shape", [(0, 3, 3), (2, 0, 0), (1, 1), (3, 1, 1)])
def test_empty_batches_and_the_smallest_matrices(shape):
    L = torch.randn(shape, requires_grad=True)
    for P in (ns.sinkhorn(L), ns.gumbel_sinkhorn(L), ns.sinkhorn(L, tau=0)):
        assert P.to_dense().shape == P.shape == shape
        assert P.permutation().shape == P.rank().shape == P.entropy().shape == shape[:-1]


# -- Gumbel-Sinkhorn -------------------------------------------------------------------------------


def test_gumbel_sinkhorn_is_sinkhorn_of_perturbed_logits():
    from neuralsort.torch.noise import gumbel

    L = logits(3, 5, 5)
    P = ns.gumbel_sinkhorn(L, tau=0.3, generator=torch.Generator().manual_seed(4))
    noise = gumbel(L.shape, generator=torch.Generator().manual_seed(4))
    torch.testing.assert_close(P.to_dense(), ns.sinkhorn(L + noise, tau=0.3).to_dense())


def test_gumbel_sinkhorn_draws_for_every_matrix():
    P = ns.gumbel_sinkhorn(torch.zeros(6, 4, 4), tau=0.1)
    matrix = P.to_dense()
    assert all(not torch.equal(matrix[a], matrix[b]) for a in range(6) for b in range(a))
    state = torch.get_rng_state()
    ns.gumbel_sinkhorn(torch.zeros(4, 4), generator=torch.Generator().manual_seed(0))
    assert torch.equal(torch.get_rng_state(), state)


def test_gumbel_sinkhorn_of_equal_logits_is_uniform_over_permutations():
    """Each of the 6 orders of 3 items equally often, at a temperature of 0."""
    draws = 6000
    generator = torch.Generator().manual_seed(0)
    P = ns.gumbel_sinkhorn(torch.zeros(draws, 3, 3), tau=0, generator=generator)
    code = (P.permutation() * torch.tensor([9, 3, 1])).sum(-1)
    counts = code.unique(return_counts=True)[1].double()
    assert len(counts) == 6
    chi_squared = ((counts - draws / 6) ** 2 / (draws / 6)).sum()
    assert chi_squared < 20.5  # 0.999 of the distribution with 5 degrees of freedom


@each_dtype
def test_gumbel_sinkhorn_keeps_the_dtype_and_its_gradient_reaches_the_logits(dtype):
    L = logits(2, 4, 4, dtype=dtype).requires_grad_()
    P = ns.gumbel_sinkhorn(L, tau=0.5)
    assert P.dtype == P.to_dense().dtype == dtype
    (gradient,) = torch.autograd.grad(P.to_dense().square().sum(), L)
    assert gradient.dtype == dtype
    assert gradient.abs().max() > 0


# -- transport of scores ---------------------------------------------------------------------------


def test_sinkhorn_sort_starts_from_neuralsort():
    scores = torch.randn(3, 9, dtype=torch.float64)
    start = ns.sinkhorn_sort(scores, tau=0.7, iterations=0)
    torch.testing.assert_close(start.to_dense(), ns.neuralsort(scores, tau=0.7).to_dense())


def test_sinkhorn_sort_is_entropic_transport_to_equally_spaced_targets():
    scores = torch.randn(3, 7, dtype=torch.float64)
    target = torch.arange(6, -7, -2, dtype=torch.float64)
    outer = target.unsqueeze(-1) * scores.unsqueeze(-2)
    for cost in (outer, -((scores.unsqueeze(-2) - target.unsqueeze(-1)) ** 2) / 2):
        expected = ns.sinkhorn(cost, tau=4.0, iterations=3000).to_dense()
        actual = ns.sinkhorn_sort(scores, tau=4.0, iterations=3000).to_dense()
        torch.testing.assert_close(actual, expected)
