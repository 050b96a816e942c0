"""Projections onto the permutahedron: against the minimax formula, in every corner of strength."""

import functools

import numpy as np
import pytest
import scipy.stats
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck

import neuralsort.torch as ns
from neuralsort.torch import permutahedron, registry
from tests import oracle
from tests.conftest import DTYPES, assert_near
from tests.strategies import strange_scores

INF, NAN = float("inf"), float("nan")
STRENGTHS = (1e-6, 1e-4, 0.1, 1.0, 10.0, 1e4)
REGULARIZATIONS = ("l2", "kl")
FUNCTIONS = {"sort": ns.fast_soft_sort, "rank": ns.fast_soft_rank}
ORACLES = {"sort": oracle.fast_soft_sort, "rank": oracle.fast_soft_rank}
SHORT_RTOL = {
    torch.float64: 1e-11,
    torch.float32: 1e-6,
    torch.bfloat16: 2**-8,
    torch.float16: 2**-11,
}

each_function = pytest.mark.parametrize("name", FUNCTIONS)
each_kind = pytest.mark.parametrize("kind", REGULARIZATIONS)
each_strength = pytest.mark.parametrize("strength", STRENGTHS)
each_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: str(d).removeprefix("torch."))


def expected(name: str, x: Tensor, strength: float, kind: str) -> Tensor:
    lists = x.double().reshape(-1, x.shape[-1])
    rows = [ORACLES[name](one.tolist(), strength, kind == "kl") for one in lists]
    return torch.from_numpy(np.stack(rows)).reshape(x.shape)


# -- values ----------------------------------------------------------------------------------------


@each_function
@each_kind
@each_strength
@each_dtype
def test_values_are_those_of_the_minimax_formula(name, kind, strength, dtype):
    for x in (torch.randn(3, 12), torch.tensor([2.0, 1.0, 2.0, 2.0, 0.5, 1.0, -1.0])):
        x = x.to(dtype)
        actual = FUNCTIONS[name](x, strength=strength, regularization=kind)
        assert actual.dtype == dtype
        assert_near(actual, expected(name, x, strength, kind), SHORT_RTOL[dtype])


@each_function
@each_kind
@pytest.mark.parametrize("strength", [0.01, 0.3, 2.0, 50.0])
def test_pooling_at_once_and_pair_by_pair_find_the_same_blocks(name, kind, strength, monkeypatch):
    """Smooth, cascading and random lists, with any share of the work done each way."""
    line = torch.linspace(-1, 1, 24)
    bent = torch.cat([line[:-1], torch.tensor([50.0])])
    rows = torch.stack(
        [torch.randn(24), line, line.exp(), bent, torch.randn(24).cumsum(0)]
    ).double()
    wanted = expected(name, rows, strength, kind)
    for rounds in (0, 1, 2, 8):
        monkeypatch.setattr(permutahedron, "ROUNDS", rounds)
        actual = FUNCTIONS[name](rows, strength=strength, regularization=kind)
        assert_near(actual, wanted, 1e-11)


def test_a_cascade_takes_no_quadratic_time():
    """One value that pools with all before it, one after the other."""
    x = torch.cat([torch.arange(100_000.0), torch.tensor([2e5])]).double()
    for kind, strength in (("l2", 1.0 - 1e-9), ("kl", 1e5)):
        ranks = ns.fast_soft_rank(x, strength=strength, regularization=kind)
        assert ranks.sum().item() == pytest.approx(100_001 * 100_002 / 2, rel=1e-9)
        assert (ranks.diff() >= -1e-6).all()


@each_function
@each_kind
@pytest.mark.parametrize("dim", [0, 1, -1])
@pytest.mark.parametrize("descending", [False, True])
def test_along_any_dimension_either_way(name, kind, dim, descending):
    x = torch.randn(4, 5, 3, dtype=torch.float64)
    soft = functools.partial(FUNCTIONS[name], strength=0.7, regularization=kind)
    lists = x.movedim(dim, -1)
    other = -soft(-lists) if name == "sort" else soft(-lists)
    wanted = (other if descending else soft(lists)).movedim(-1, dim)
    torch.testing.assert_close(soft(x, dim=dim, descending=descending), wanted)


@pytest.mark.parametrize("row", [m for m in registry.METHODS.values() if m.gives == "values"])
def test_laws_of_the_registry(row):
    x = torch.randn(3, 15, dtype=torch.float64)
    ranks = "rank" in row.name
    soft = row.function(x, strength=0.5)
    pi = torch.randperm(15)
    assert_near(row.function(x[:, pi], strength=0.5), soft[:, pi] if ranks else soft, 1e-12)
    assert_near(row.function(x + 3, strength=0.5), soft if ranks else soft + 3, 1e-12)
    if "scale" in row.laws:
        assert_near(row.function(8 * x, strength=4.0), soft, 1e-12)
    hard = scipy.stats.rankdata(x.numpy(), axis=-1) if ranks else np.sort(x.numpy(), axis=-1)
    assert_near(row.function(x, strength=1e-6), torch.from_numpy(hard), 1e-9)


@each_kind
def test_results_lie_on_the_permutahedron(kind):
    x = torch.randn(5, 20, dtype=torch.float64)
    for strength in STRENGTHS:
        ranks = ns.fast_soft_rank(x, strength=strength, regularization=kind)
        assert_near(ranks.sum(-1), torch.full((5,), 210.0), 1e-12)
        assert ranks.min() >= 1 - 1e-9
        assert ranks.max() <= 20 + 1e-9
        soft = ns.fast_soft_sort(x, strength=strength, regularization=kind)
        assert (soft.diff(dim=-1) >= -1e-12).all()
        if kind == "l2":
            assert_near(soft.sum(-1), x.sum(-1), 1e-11, 1)


@each_function
@each_kind
def test_strength_zero_is_the_hard_one(name, kind):
    x = torch.tensor([[3.0, 1.0, 3.0, 2.0, 3.0, 1.0], [1.0, 2.0, 3.0, 4.0, 5.0, 6.0]])
    hard = scipy.stats.rankdata(x.numpy(), axis=-1) if name == "rank" else np.sort(x.numpy(), -1)
    for strength in (0, 0.0, 1e-12, 1e-17, 1e-300, 5e-324):
        actual = FUNCTIONS[name](x, strength=strength, regularization=kind)
        torch.testing.assert_close(actual, torch.from_numpy(hard).float())
    x.requires_grad_()
    value = FUNCTIONS[name](x, strength=0, regularization=kind)
    upstream = torch.randn_like(value)
    (gradient,) = torch.autograd.grad(value, x, upstream)
    wanted = torch.zeros_like(x)
    if name == "sort":
        (wanted,) = torch.autograd.grad(x.sort(-1).values, x, upstream)
    assert torch.equal(gradient, wanted)


# -- derivatives -----------------------------------------------------------------------------------


@each_function
@each_kind
@each_strength
@pytest.mark.parametrize("check", [gradcheck, gradgradcheck])
def test_derivatives(name, kind, strength, check):
    x = torch.randn(2, 6, dtype=torch.float64, requires_grad=True)
    atol = 1e-5 * max(1, 1 / strength) if name == "rank" else 1e-5
    assert check(lambda x: FUNCTIONS[name](x, strength=strength, regularization=kind), x, atol=atol)


@each_kind
def test_tied_items_have_the_mean_of_their_ranks_and_equal_gradients(kind):
    x = torch.tensor([1.0, 2.0, 1.0, 0.0], dtype=torch.float64, requires_grad=True)
    ranks = ns.fast_soft_rank(x, strength=1e-3, regularization=kind)
    assert ranks[0] == ranks[2]
    (gradient,) = torch.autograd.grad(ranks[0] + ranks[2] + 3 * ranks[1], x)
    torch.testing.assert_close(gradient[0], gradient[2])


@each_function
@each_kind
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["float64", "float32"])
@pytest.mark.parametrize("strength", [1e-8, 1e-4, 1.0, 1e8])
@given(data=st.data())
def test_nothing_is_nan_for_finite_values(name, kind, dtype, strength, data):
    x = data.draw(strange_scores(dtype)).requires_grad_()
    value = FUNCTIONS[name](x, strength=strength, regularization=kind)
    assert not value.isnan().any()
    (gradient,) = torch.autograd.grad(value.sum(), x)
    assert not gradient.isnan().any()


# -- edges -----------------------------------------------------------------------------------------


@each_kind
@pytest.mark.parametrize("strength", [0, 1e-4, 1.0])
def test_infinities_stand_at_their_ends_and_finite_items_do_not_notice(kind, strength):
    x = torch.tensor([1.0, INF, 2.0, -INF, 3.0, INF], dtype=torch.float64, requires_grad=True)
    options = {"strength": strength, "regularization": kind}
    soft = ns.fast_soft_sort(x, **options)
    assert soft[[0, 4, 5]].tolist() == [-INF, INF, INF]
    (gradient,) = torch.autograd.grad(soft[1:4].sum(), x)
    assert gradient.isfinite().all()
    ranks = ns.fast_soft_rank(x, **options)
    assert ranks[[1, 3, 5]].tolist() == pytest.approx([5.5, 1.0, 5.5])
    assert torch.autograd.grad(ranks.square().sum(), x)[0].isfinite().all()
    if kind == "l2":  # whose blocks do not depend on the ranks before them
        finite = ns.fast_soft_rank(torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64), **options)
        torch.testing.assert_close(ranks[[0, 2, 4]], finite + 1)


@each_function
@each_kind
@pytest.mark.parametrize("strength", [0, 1.0])
def test_nan_spoils_its_own_list_and_no_other(name, kind, strength):
    x = torch.randn(3, 6)
    clean = FUNCTIONS[name](x, strength=strength, regularization=kind)
    x[1, 2] = NAN
    spoilt = FUNCTIONS[name](x, strength=strength, regularization=kind)
    assert spoilt[1].isnan().all()
    assert torch.equal(spoilt[[0, 2]], clean[[0, 2]])


@each_function
@each_kind
@pytest.mark.parametrize("shape", [(0,), (3, 0), (0, 4), (1,), (2, 1)])
@pytest.mark.parametrize("strength", [0, 1.0])
def test_empty_and_shortest_lists(name, kind, shape, strength):
    x = torch.randn(shape, requires_grad=True)
    value = FUNCTIONS[name](x, strength=strength, regularization=kind)
    assert value.shape == shape
    assert torch.autograd.grad(value.sum(), x)[0].shape == shape
    if shape[-1] == 1:
        torch.testing.assert_close(value, x if name == "sort" else torch.ones(shape))


@each_function
@each_kind
def test_vmap_equals_a_loop_and_compiled_is_the_same(name, kind):
    x = torch.randn(4, 3, 7, dtype=torch.float64)
    soft = functools.partial(FUNCTIONS[name], strength=0.5, regularization=kind)
    torch.testing.assert_close(torch.vmap(soft)(x), soft(x))

    def loss(x: Tensor) -> Tensor:
        return soft(x).square().sum()

    gradients = torch.stack([torch.func.grad(loss)(one) for one in x])
    torch.testing.assert_close(torch.vmap(torch.func.grad(loss))(x), gradients)
    torch._dynamo.reset()
    compiled = torch.compile(loss, backend="aot_eager")
    torch.testing.assert_close(compiled(x), loss(x))


def test_long_lists_in_float32_are_as_good_as_in_float64():
    x = torch.randn(10**5)
    for strength in (1e-3, 1.0, 100.0):
        for soft in FUNCTIONS.values():
            exact = soft(x.double(), strength=strength)
            assert_near(soft(x, strength=strength), exact, 1e-6)


# -- masks and temperatures ------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["l2", "kl"])
@pytest.mark.parametrize("name", ["fast_soft_rank", "fast_soft_sort"])
@pytest.mark.parametrize("descending", [False, True])
@pytest.mark.parametrize("tau", [0.0, 0.3, 2.0])
def test_masks_are_padding_invariant(kind, name, descending, tau):
    function = getattr(ns, name)
    options = {"tau": tau, "regularization": kind, "descending": descending}
    x = torch.randn(4, 6, dtype=torch.float64)
    x[0, 0] = torch.inf
    mask = torch.tensor([[1, 1, 0, 1, 1, 0], [1] * 6, [0, 1, 0, 0, 1, 0], [0] * 6]).bool()
    spoilt = torch.where(mask, x, torch.tensor([torch.nan, torch.inf] * 3)).requires_grad_()
    padded = function(spoilt, mask=mask, **options)
    weights = torch.randn_like(padded)
    for row, there, ours, own in zip(x, mask, padded, spoilt, strict=True):
        count = int(there.sum())
        short = function(row[there], **options)
        if name == "fast_soft_rank":
            torch.testing.assert_close(ours[there], short)
            rest = torch.arange(count + 1.0, 7, dtype=torch.float64)
            assert torch.equal(ours[~there], rest)  # absent items come last, in index order
        else:
            torch.testing.assert_close(ours[:count], short)
            torch.testing.assert_close(ours[count:], own[~there], equal_nan=True)
    if name == "fast_soft_rank":
        (gradient,) = torch.autograd.grad((padded * weights)[1:3].sum(), spoilt)
        assert (gradient[~mask] == 0).all()


@pytest.mark.parametrize("name", ["fast_soft_rank", "fast_soft_sort"])
def test_tau_is_strength_and_may_be_a_tensor(name):
    function = getattr(ns, name)
    x = torch.randn(3, 5, dtype=torch.float64, requires_grad=True)
    assert torch.equal(function(x, tau=0.7), function(x, strength=0.7))
    assert torch.equal(function(x), function(x, tau=1.0))
    tau = torch.tensor([[0.3], [0.9], [0.0]], dtype=torch.float64)
    soft = function(x, tau=tau)
    for row, ours, one in zip(x, soft, tau.flatten().tolist(), strict=True):
        torch.testing.assert_close(ours, function(row, tau=one))
    tau = torch.tensor([[0.3], [0.9], [2.0]], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x, tau: function(x, tau=tau), (x, tau))
    with pytest.raises(ValueError, match="`tau` and `strength` are two names of one thing"):
        function(x, tau=1.0, strength=1.0)


@pytest.mark.parametrize("entropic", [False, True])
@pytest.mark.parametrize("n", [0, 1, 2, 7, 60, 300])
def test_blocks_at_once_are_those_of_pooling(n, entropic):
    """What devices other than the CPU do with short lists, at every strength, with ties, walls."""
    lists = torch.randn(6, n, dtype=torch.float64)
    lists[1] = (4 * lists[1]).round() / 4  # blocks of equal values beside each other
    lists[2] += 100
    lists[3] = 0
    values = lists.sort(-1, descending=True).values
    walls = torch.zeros(6, n, dtype=torch.bool)
    walls[:, :1] = walls[4, ::5] = True
    countdown = torch.arange(n, 0, -1, dtype=torch.float64).expand(6, n)
    for strength in (1e-3, 0.25, 1.0, 8.0, 1e3):
        for z, w in ((countdown / strength, values), (values / strength, countdown)):
            found = permutahedron._blocks_at_once(z, w, walls, entropic)
            assert torch.equal(found, permutahedron._blocks(z, w, walls, entropic))


@pytest.mark.parametrize("function", [ns.fast_soft_sort, ns.fast_soft_rank])
@pytest.mark.parametrize("descending", [False, True])
@pytest.mark.parametrize("shape", [(7,), (3, 2, 15), (2, 300)])
def test_ordinary_lists_of_float32_are_projected_as_those_of_float64(function, descending, shape):
    """The first go through NumPy, the others do not; tied items have gradients of their own."""
    x, g = torch.randn(shape), torch.randn(shape)
    x[..., 1:4] = x[..., :1]
    for tau in (0.01, 0.3, 1.0, 5.0):
        found = []
        for dtype in (torch.float32, torch.float64):
            leaf = x.to(dtype).requires_grad_()
            value = function(leaf, tau=tau, descending=descending)
            (gradient,) = torch.autograd.grad(value, leaf, g.to(dtype), create_graph=True)
            (plain,) = torch.autograd.grad(value, leaf, g.to(dtype))
            with torch.autograd.forward_ad.dual_level():
                dual = torch.autograd.forward_ad.make_dual(x.to(dtype), g.to(dtype))
                moved = function(dual, tau=tau, descending=descending)
                tangent = torch.autograd.forward_ad.unpack_dual(moved).tangent
            found.append((value, gradient, plain, tangent))
        for one, exact in zip(*found, strict=True):
            torch.testing.assert_close(one.double(), exact, rtol=2e-6, atol=2e-6 / min(tau, 1.0))
