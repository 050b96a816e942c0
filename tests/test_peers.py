"""The same numbers as other packages, where these are installed and are right."""

import functools

import numpy as np
import pytest
import scipy.optimize
import torch

import neuralsort.torch as ns
from neuralsort.torch.relaxations.networks import SWAPS

ATOL = {torch.float32: 1e-5, torch.float64: 1e-9}
each_dtype = pytest.mark.parametrize("dtype", ATOL, ids=["float32", "float64"])


def assert_same(actual, expected, dtype) -> None:
    assert actual.dtype == dtype
    torch.testing.assert_close(actual, expected, rtol=0, atol=ATOL[dtype])


# -- torchsort -------------------------------------------------------------------------------------


@each_dtype
@pytest.mark.parametrize("strength", [0.5, 1.0, 10.0])
@pytest.mark.parametrize("kind", ["l2", "kl"])
@pytest.mark.parametrize("name", ["soft_sort", "soft_rank"])
def test_torchsort(dtype, strength, kind, name):
    """In float32 on lists of 10: with more, the peer loses digits that this library does not."""
    torchsort = pytest.importorskip("torchsort", reason="torchsort is not installed")
    n = 10 if dtype is torch.float32 else 200
    x = torch.randn(16, n, dtype=dtype, requires_grad=True)
    ours = getattr(ns, f"fast_{name}")(x, strength=strength, regularization=kind)
    theirs = getattr(torchsort, name)(x, kind, strength)
    assert_same(ours, theirs, dtype)
    upstream = torch.randn_like(ours)
    (actual,) = torch.autograd.grad(ours, x, upstream)
    (expected,) = torch.autograd.grad(theirs, x, upstream)
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=10 * ATOL[dtype])


def test_finite_where_torchsort_is_not():
    torchsort = pytest.importorskip("torchsort", reason="torchsort is not installed")
    x = torch.randn(4, 20, requires_grad=True)
    (theirs,) = torch.autograd.grad(torchsort.soft_rank(x, "kl", 1e-4).square().sum(), x)
    ours = ns.fast_soft_rank(x, strength=1e-4, regularization="kl")
    (gradient,) = torch.autograd.grad(ours.square().sum(), x)
    assert gradient.isfinite().all()
    torch.testing.assert_close(ours, x.argsort().argsort() + 1.0)
    assert theirs.isnan().any()  # if no longer so, say it in the docs


# -- diffsort --------------------------------------------------------------------------------------


@each_dtype
@pytest.mark.parametrize(
    ("kind", "n"),
    [
        *[("odd_even", n) for n in (2, 5, 8, 11, 16, 32)],
        *[("bitonic", n) for n in (2, 4, 5, 8, 16, 32)],
    ],
)
@pytest.mark.parametrize("swap", SWAPS)
def test_diffsort(dtype, kind, swap, n):
    """Its matrix is ours transposed, with positions from the smallest.

    Bitonic networks are the same for powers of two; others have to turn some runs round.
    """
    diffsort = pytest.importorskip("diffsort", reason="diffsort is not installed")
    x = torch.randn(16, n, dtype=dtype, requires_grad=True)
    network = diffsort.DiffSortNet(kind, n, steepness=1 / 0.3, distribution=swap)
    values, matrix = network(x)
    P = ns.sorting_network(x, tau=0.3, kind=kind, swap=swap)
    assert_same(P.to_dense(), matrix.mT.flip(-2), dtype)
    assert_same(P.sort(x), values.flip(-1), dtype)
    upstream = torch.randn_like(values)
    (actual,) = torch.autograd.grad(P.sort(x), x, upstream)
    (expected,) = torch.autograd.grad(values.flip(-1), x, upstream)
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=10 * ATOL[dtype])


def test_diffsort_bitonic_networks_miss_at_some_lengths_and_ours_do_not():
    diffsort = pytest.importorskip("diffsort", reason="diffsort is not installed")
    lists = torch.stack([torch.randperm(22) for _ in range(200)]).double()
    ordered = lists.sort(-1, descending=True).values
    theirs = diffsort.DiffSortNet("bitonic", 22, steepness=1e12, distribution="cauchy")(lists)[0]
    ours = ns.sorting_network(lists, tau=1e-12, kind="bitonic").sort(lists)
    torch.testing.assert_close(ours, ordered)
    assert (theirs.flip(-1) - ordered).abs().max() > 0.5  # if no longer so, say it in the docs


# -- POT -------------------------------------------------------------------------------------------


@each_dtype
@pytest.mark.parametrize("tau", [0.3, 1.0, 5.0])
def test_pot_sinkhorn(dtype, tau):
    ot = pytest.importorskip("ot", reason="POT is not installed")
    logits = torch.randn(4, 12, 12, dtype=dtype)
    ours = ns.sinkhorn(logits, tau=tau, iterations=20_000, tolerance=ATOL[dtype] / 100)
    ones = np.full(12, 1 / 12)
    for matrix, one in zip(ours.to_dense(), logits.double(), strict=True):
        options = {"method": "sinkhorn_log", "numItermax": 20_000, "stopThr": 1e-13}
        plan = ot.sinkhorn(ones, ones, -one.numpy(), tau, **options)
        assert_same(matrix, torch.from_numpy(12 * plan).to(dtype), dtype)


@each_dtype
@pytest.mark.parametrize("tau", [2.0, 10.0])
def test_pot_sinkhorn_sort(dtype, tau):
    """Entropic transport to equally spaced targets at half the squared distance."""
    ot = pytest.importorskip("ot", reason="POT is not installed")
    scores = torch.randn(4, 10, dtype=dtype)
    target = np.arange(9.0, -10.0, -2)
    ours = ns.sinkhorn_sort(scores, tau=tau, iterations=20_000, tolerance=ATOL[dtype] / 100)
    ones = np.full(10, 1 / 10)
    for matrix, one in zip(ours.to_dense(), scores.double().numpy(), strict=True):
        cost = (target[:, None] - one[None, :]) ** 2 / 2
        options = {"method": "sinkhorn_log", "numItermax": 20_000, "stopThr": 1e-13}
        plan = ot.sinkhorn(ones, ones, cost, tau, **options)
        assert_same(matrix, torch.from_numpy(10 * plan).to(dtype), dtype)


# -- OTT -------------------------------------------------------------------------------------------


def balanced(log: np.ndarray) -> np.ndarray:
    """Sinkhorn's iterations by hand, rows and columns of sum 1."""
    for _ in range(5000):
        log = log - np.logaddexp.reduce(log, 1, keepdims=True)
        log = log - np.logaddexp.reduce(log, 0, keepdims=True)
    return np.exp(log)


@pytest.mark.parametrize("epsilon", [0.05, 0.3])
def test_conversion_of_ott_epsilon(epsilon):
    """Targets from 0 to 1 at squared distance: what OTT transports to, without its squashing."""
    x = np.random.default_rng(0).normal(size=9)
    targets = np.linspace(1.0, 0.0, 9)
    plan = balanced(-((targets[:, None] - x[None]) ** 2) / epsilon)
    options = {"tau": 8 * epsilon, "iterations": 20_000, "tolerance": 1e-12}
    ours = ns.sinkhorn_sort(torch.tensor(x), **options).to_dense()
    np.testing.assert_allclose(ours.numpy(), plan, atol=1e-9)


@pytest.mark.long  # POT has the same, above; OTT takes seconds to import and to compile
def test_ott():
    pytest.importorskip("ott", reason="ott-jax is not installed")
    jnp = pytest.importorskip("jax.numpy")
    soft_sort = pytest.importorskip("ott.tools.soft_sort")
    x = np.random.default_rng(0).normal(size=9)
    options = {"epsilon": 0.1, "squashing_fun": lambda z: z, "threshold": 1e-5}
    theirs = soft_sort.sort(jnp.asarray(x), max_iterations=20_000, **options)
    relax = functools.partial(ns.sinkhorn_sort, iterations=20_000, tolerance=1e-9)
    ours = ns.soft_sort(torch.tensor(x), tau=0.8, relax=relax)
    np.testing.assert_allclose(ours.numpy(), np.asarray(theirs), atol=1e-3)


# -- fast-soft-sort --------------------------------------------------------------------------------


def test_published_examples_of_fast_soft_sort():
    """The numbers that its README prints."""
    x = torch.tensor([[5.0, 1.0, 2.0], [2.0, 1.0, 5.0]], dtype=torch.float64)
    third = torch.tensor([5.0, 8.0, 11.0], dtype=torch.float64) / 3
    torch.testing.assert_close(ns.fast_soft_sort(x, tau=1.0), third.expand(2, 3))
    torch.testing.assert_close(ns.fast_soft_sort(x, tau=0.1), x.sort(-1).values)
    ranks = torch.tensor([[3.0, 1.25, 1.75], [1.75, 1.25, 3.0]], dtype=torch.float64)
    torch.testing.assert_close(ns.fast_soft_rank(x, tau=2.0), ranks)


@pytest.mark.parametrize("kind", ["l2", "kl"])
def test_fast_soft_sort(kind):
    theirs = pytest.importorskip("fast_soft_sort.numpy_ops", reason="it is not installed")
    x = torch.randn(20, dtype=torch.float64)
    for name, peer in (("fast_soft_rank", theirs.SoftRank), ("fast_soft_sort", theirs.SoftSort)):
        expected = peer(x.numpy(), regularization_strength=0.7, regularization=kind).compute()
        ours = getattr(ns, name)(x, tau=0.7, regularization=kind)
        np.testing.assert_allclose(ours.numpy(), expected, atol=1e-9)


# -- SciPy -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("strength", [1e-3, 0.1, 1.0, 10.0])
def test_scipy_isotonic_regression(strength):
    """The dual of the projection, on lists too long for the minimax formula."""
    x = torch.randn(5000, dtype=torch.float64)
    s = np.sort(x.numpy() / strength)[::-1]
    w = np.arange(5000, 0, -1.0)
    dual = scipy.optimize.isotonic_regression(s - w, increasing=False).x
    ranks = ns.fast_soft_rank(x, strength=strength).sort(descending=True).values
    np.testing.assert_allclose(ranks.numpy(), s - dual, atol=1e-8)


def test_scipy_assignment():
    logits = torch.randn(20, 9, 9)
    expected = [scipy.optimize.linear_sum_assignment(-one.numpy())[1] for one in logits]
    assert np.array_equal(ns.sinkhorn(logits, tau=0).permutation().numpy(), np.stack(expected))
