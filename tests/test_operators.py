"""Operators on values: along any dimension, either way round, down to their hard counterparts."""

import functools

import numpy as np
import pytest
import scipy.stats
import torch
from torch import Tensor

import neuralsort.torch as ns
from tests.conftest import assert_near
from tests.methods import every_method

HARD = 1e-6  # a temperature at which nothing blends
RELAXATIONS = {
    "neuralsort": ns.neuralsort,
    "softsort": ns.softsort,
    "softsort, power 2": functools.partial(ns.softsort, power=2.0),
}
SHAPES_AND_DIMS = [
    ((7,), 0),
    ((7,), -1),
    ((4, 7), -1),
    ((7, 4), 0),
    ((7, 4), -2),
    ((2, 7, 3), 1),
    ((2, 3, 7), 2),
    ((2, 7, 3, 2), -3),
]

along_any_dim = pytest.mark.parametrize(("shape", "dim"), SHAPES_AND_DIMS)
either_way = pytest.mark.parametrize("descending", [False, True])
each_relaxation = pytest.mark.parametrize("relax", RELAXATIONS.values(), ids=RELAXATIONS.keys())


def far_apart(*shape: int) -> Tensor:
    """Distinct whole numbers in random order along every dimension."""
    count = int(np.prod(shape))
    return torch.randperm(count).to(torch.float64).reshape(shape) - count / 2


def lists_last(x: Tensor, dim: int) -> Tensor:
    return x.movedim(dim, -1)


# -- hard counterparts -----------------------------------------------------------------------------


@along_any_dim
@either_way
@each_relaxation
def test_soft_sort_tends_to_sort(shape, dim, descending, relax):
    x = far_apart(*shape)
    actual = ns.soft_sort(x, tau=HARD, dim=dim, descending=descending, relax=relax)
    torch.testing.assert_close(actual, x.sort(dim, descending=descending).values)


@along_any_dim
@either_way
@each_relaxation
def test_soft_rank_tends_to_rankdata(shape, dim, descending, relax):
    x = far_apart(*shape)
    actual = ns.soft_rank(x, tau=HARD, dim=dim, descending=descending, relax=relax)
    expected = scipy.stats.rankdata(-x.numpy() if descending else x.numpy(), axis=dim)
    torch.testing.assert_close(actual, torch.from_numpy(expected))


@either_way
def test_soft_rank_of_ties_is_the_average_as_in_rankdata(descending):
    x = torch.tensor([3.0, 1.0, 3.0, 2.0, 3.0, 1.0], dtype=torch.float64)
    actual = ns.soft_rank(x, tau=HARD, descending=descending)
    expected = scipy.stats.rankdata(-x.numpy() if descending else x.numpy(), method="average")
    torch.testing.assert_close(actual, torch.from_numpy(expected))


@along_any_dim
@pytest.mark.parametrize("largest", [True, False])
@pytest.mark.parametrize("k", [1, 3, 7])
@each_relaxation
def test_soft_topk_tends_to_topk(shape, dim, largest, k, relax):
    x = far_apart(*shape)
    actual = ns.soft_topk(x, k, tau=HARD, dim=dim, largest=largest, relax=relax)
    expected = x.topk(k, dim=dim, largest=largest, sorted=True)
    torch.testing.assert_close(actual.values, expected.values)
    membership = torch.zeros_like(x).scatter(dim, expected.indices, 1.0)
    torch.testing.assert_close(actual.weights, membership)


@along_any_dim
@pytest.mark.parametrize("q", [0.0, 0.1, 0.25, 1 / 3, 0.5, 0.77, 1.0])
@each_relaxation
def test_soft_quantile_tends_to_quantile(shape, dim, q, relax):
    x = far_apart(*shape)
    actual = ns.soft_quantile(x, q, tau=HARD, dim=dim, relax=relax)
    torch.testing.assert_close(actual, torch.quantile(x, q, dim=dim))


@along_any_dim
def test_soft_quantile_of_several_q_is_shaped_as_in_torch(shape, dim):
    x = far_apart(*shape)
    q = torch.tensor([0.1, 0.5, 0.9], dtype=torch.float64)
    actual = ns.soft_quantile(x, q, tau=HARD, dim=dim)
    torch.testing.assert_close(actual, torch.quantile(x, q, dim=dim))


@pytest.mark.parametrize("n", [1, 2, 5, 6])
@each_relaxation
def test_soft_median_tends_to_the_median(n, relax):
    x = far_apart(3, n)
    actual = ns.soft_median(x, tau=HARD, relax=relax)
    torch.testing.assert_close(actual, torch.from_numpy(np.median(x.numpy(), axis=-1)))


# -- the payload -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("shape", "payload", "dim"),
    [
        ((7,), (), 0),
        ((7,), (3,), 0),
        ((7,), (3, 2), -1),
        ((4, 7), (), -1),
        ((4, 7), (3,), -1),
        ((4, 7), (3,), 1),
        ((7, 4), (), 0),
        ((7, 4), (3,), 0),
        ((7, 4), (3, 2), -2),
        ((2, 7, 3), (5,), 1),
    ],
)
@either_way
@each_relaxation
def test_soft_sort_by_tends_to_indexing_with_argsort(shape, payload, dim, descending, relax):
    key = far_apart(*shape)
    values = torch.randn(*shape, *payload, dtype=torch.float64)
    actual = ns.soft_sort_by(values, key, tau=HARD, dim=dim, descending=descending, relax=relax)
    order = key.argsort(dim, descending=descending)
    order = order.reshape(*shape, *(1 for _ in payload)).expand(values.shape)
    dim = dim % len(shape)  # the key's dimension, not the payload's
    torch.testing.assert_close(actual, values.gather(dim, order))


def test_soft_sort_by_its_own_key_is_soft_sort():
    x = torch.randn(4, 9, dtype=torch.float64)
    torch.testing.assert_close(ns.soft_sort_by(x, x, tau=0.3), ns.soft_sort(x, tau=0.3))


def test_soft_sort_by_differentiates_key_and_values():
    key = torch.randn(2, 5, dtype=torch.float64, requires_grad=True)
    values = torch.randn(2, 5, 3, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda k, v: ns.soft_sort_by(v, k, tau=0.8), (key, values))


# -- what they are made of, at any temperature -----------------------------------------------------


@along_any_dim
@either_way
@each_relaxation
def test_operators_are_products_with_the_relaxation(shape, dim, descending, relax, form):
    x = torch.randn(shape, dtype=torch.float64)
    P = relax(lists_last(x, dim), tau=0.7).to_dense()
    n = P.shape[-1]
    P = P if descending else P.flip(-2)
    column = lists_last(x, dim).unsqueeze(-1)
    rank = (torch.arange(1, n + 1, dtype=P.dtype).unsqueeze(-1) * P).sum(-2) / P.sum(-2)
    options = {"tau": 0.7, "dim": dim, "relax": relax}

    sort = ns.soft_sort(x, descending=descending, **options)
    assert_near(lists_last(sort, dim), (P @ column).squeeze(-1), 1e-11, 1)
    ranks = ns.soft_rank(x, descending=descending, **options)
    assert_near(lists_last(ranks, dim), rank, 1e-11, 1)
    values, weights = ns.soft_topk(x, 3, largest=descending, **options)
    assert_near(lists_last(values, dim), (P[..., :3, :] @ column).squeeze(-1), 1e-11, 1)
    assert_near(lists_last(weights, dim), P[..., :3, :].sum(-2), 1e-11, 1)


@each_relaxation
def test_soft_quantile_interpolates_the_soft_sort(relax, form):
    x = torch.randn(3, 9, dtype=torch.float64)
    ascending = ns.soft_sort(x, tau=0.7, relax=relax)
    actual = ns.soft_quantile(x, 0.3, tau=0.7, relax=relax)  # 0.3 * 8 = 2.4
    torch.testing.assert_close(actual, 0.6 * ascending[:, 2] + 0.4 * ascending[:, 3])
    torch.testing.assert_close(ns.soft_median(x, tau=0.7, relax=relax), ascending[:, 4])


@along_any_dim
@pytest.mark.parametrize("k", [1, 4, 7])
@pytest.mark.parametrize("largest", [True, False])
def test_soft_topk_weights_sum_to_k(shape, dim, k, largest, form):
    x = torch.randn(shape, dtype=torch.float64)
    weights = ns.soft_topk(x, k, tau=2.0, dim=dim, largest=largest).weights
    assert weights.shape == x.shape
    assert weights.min() >= -1e-11
    total = weights.sum(dim)
    torch.testing.assert_close(total, torch.full_like(total, k))


def test_soft_topk_is_a_named_tuple():
    result = ns.soft_topk(torch.randn(2, 6), 2, tau=0.1)
    assert result._fields == ("values", "weights")
    values, weights = result
    assert values.shape == (2, 2)
    assert weights.shape == (2, 6)


@pytest.mark.parametrize(
    "operator",
    [
        lambda x, tau: ns.soft_sort(x, tau=tau),
        lambda x, tau: ns.soft_sort(x, tau=tau, descending=True),
        lambda x, tau: ns.soft_sort(x, tau=tau, dim=0),
        lambda x, tau: ns.soft_rank(x, tau=tau),
        lambda x, tau: ns.soft_topk(x, 2, tau=tau).values,
        lambda x, tau: ns.soft_topk(x, 2, tau=tau, largest=False).weights,
        lambda x, tau: ns.soft_quantile(x, 0.3, tau=tau),
        lambda x, tau: ns.soft_median(x, tau=tau, dim=0),
    ],
)
def test_operators_differentiate_scores_and_temperature(operator, form):
    x = torch.randn(4, 5, dtype=torch.float64, requires_grad=True)
    tau = torch.tensor(0.9, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(operator, (x, tau))


def test_operators_take_one_temperature_per_list():
    """One per list of the input with its lists last, as a relaxation takes it."""
    x = far_apart(2, 7)
    tau = torch.tensor([[HARD], [1.0]], dtype=torch.float64)
    for operator in (ns.soft_sort, ns.soft_rank):
        actual = operator(x, tau=tau)
        expected = torch.stack([operator(x[0], tau=HARD), operator(x[1], tau=1.0)])
        torch.testing.assert_close(actual, expected)


def test_relax_may_be_any_function_of_scores():
    """A relaxation from elsewhere: a matrix wrapped by from_dense."""

    def halfway(scores, *, tau):
        hard = torch.nn.functional.one_hot(scores.argsort(-1, descending=True), scores.shape[-1])
        return ns.RelaxedPermutation.from_dense(0.5 * hard + 0.5 / scores.shape[-1])

    x = torch.tensor([1.0, 4.0, 2.0, 5.0])
    torch.testing.assert_close(
        ns.soft_sort(x, relax=halfway), 0.5 * x.sort().values + 0.5 * x.mean()
    )


# -- which temperature -----------------------------------------------------------------------------


@pytest.mark.parametrize("ranks", [0.7, 1.0, 3.0, 10.0])
@pytest.mark.parametrize("gap", [1e-3, 1.0, 50.0])
def test_tau_for_blur_blends_that_many_ranks(ranks, gap):
    """With equal gaps, rows are discrete Gaussians; away from the ends their width is known."""
    n = 201
    scores = gap * torch.randperm(n).to(torch.float64)
    P = ns.neuralsort(scores, tau=ns.tau_for_blur(scores, ranks=ranks))
    position = scores.argsort(descending=True).argsort().to(torch.float64)
    middle = P.to_dense()[n // 2]
    mean = (middle * position).sum()
    width = (middle * (position - mean) ** 2).sum().sqrt()
    torch.testing.assert_close(width.item(), ranks, rtol=0.1, atol=0)


def test_tau_for_blur_scales_with_the_scores_and_ignores_their_offset():
    scores = torch.randn(5, 30, dtype=torch.float64)
    tau = torch.as_tensor(ns.tau_for_blur(scores))
    torch.testing.assert_close(torch.as_tensor(ns.tau_for_blur(7 * scores)), 7 * tau)
    torch.testing.assert_close(torch.as_tensor(ns.tau_for_blur(scores + 3)), tau)
    assert (torch.as_tensor(ns.tau_for_blur(scores, ranks=2.0)) > tau).all()


def test_tau_for_blur_is_a_temperature_for_every_operator():
    x = torch.randn(3, 20)
    tau = ns.tau_for_blur(x, ranks=0.5)
    assert ns.soft_sort(x, tau=tau).shape == x.shape
    assert (ns.soft_rank(x, tau=tau) - ns.soft_rank(x, tau=HARD)).abs().max() < 3


# -- padded lists ----------------------------------------------------------------------------------

PADDED = {
    "soft_sort": lambda x, mask, **o: ns.soft_sort(x, tau=0.7, mask=mask, **o),
    "soft_sort, descending": lambda x, mask, **o: ns.soft_sort(
        x, tau=0.7, descending=True, mask=mask, **o
    ),
    "soft_sort_by": lambda x, mask, **o: ns.soft_sort_by(x**2, x, tau=0.7, mask=mask, **o),
    "soft_rank": lambda x, mask, **o: ns.soft_rank(x, tau=0.7, mask=mask, **o),
    "soft_rank, descending": lambda x, mask, **o: ns.soft_rank(
        x, tau=0.7, descending=True, mask=mask, **o
    ),
    "soft_topk": lambda x, mask, **o: ns.soft_topk(x, 2, tau=0.7, mask=mask, **o).values,
    "soft_topk, smallest": lambda x, mask, **o: (
        ns.soft_topk(x, 2, tau=0.7, largest=False, mask=mask, **o).values
    ),
    "weights of soft_topk": lambda x, mask, **o: (
        ns.soft_topk(x, 2, tau=0.7, mask=mask, **o).weights
    ),
    "soft_quantile": lambda x, mask, **o: ns.soft_quantile(
        x, torch.tensor([0.0, 0.3, 1.0]), tau=0.7, mask=mask, **o
    ),
    "soft_median": lambda x, mask, **o: ns.soft_median(x, tau=0.7, mask=mask, **o),
    "tau_for_blur": lambda x, mask, relax: ns.tau_for_blur(x, mask=mask),
}
PER_ITEM = {"soft_rank", "soft_rank, descending", "weights of soft_topk"}
PER_PLACE = {"soft_sort", "soft_sort, descending", "soft_sort_by"}


@pytest.mark.parametrize("name", PADDED)
@each_relaxation
@pytest.mark.parametrize("padding", [0.0, 1e6, -1e6])
def test_absent_items_change_nothing(name, relax, padding):
    x = torch.randn(3, 5, dtype=torch.float64)
    mask = torch.tensor([True, False, True, True, False, True, False, True]).expand(3, 8)
    padded = torch.full((3, 8), padding, dtype=torch.float64)
    padded = padded.masked_scatter(mask, x).requires_grad_()
    x.requires_grad_()
    actual, expected = (PADDED[name](a, m, relax=relax) for a, m in ((padded, mask), (x, None)))
    if name in PER_ITEM:
        actual = actual[:, mask[0]]
    elif name in PER_PLACE:
        actual = actual[:, :5]
    torch.testing.assert_close(actual, expected)
    if expected.requires_grad:
        upstream = torch.randn_like(expected)
        (to_padded,) = torch.autograd.grad(actual, padded, upstream)
        (to_x,) = torch.autograd.grad(expected, x, upstream)
        torch.testing.assert_close(to_padded[:, mask[0]], to_x)
        assert not to_padded[:, ~mask[0]].any()


def test_absent_items_come_last_in_index_order():
    x = torch.tensor([3.0, 8.0, 1.0, 9.0, 2.0])
    mask = torch.tensor([True, False, True, False, True])
    for descending, present in ((False, [1.0, 2.0, 3.0]), (True, [3.0, 2.0, 1.0])):
        actual = ns.soft_sort(x, tau=HARD, descending=descending, mask=mask)
        torch.testing.assert_close(actual, torch.tensor([*present, 8.0, 9.0]))
    torch.testing.assert_close(
        ns.soft_rank(x, tau=HARD, mask=mask), torch.tensor([3.0, 4.0, 1.0, 5.0, 2.0])
    )


def test_lists_may_be_of_different_lengths_along_any_dim():
    x = torch.tensor([[1.0, 2.0, 3.0, 99.0], [5.0, 7.0, 99.0, 99.0], [99.0, 99.0, 99.0, 99.0]])
    median = ns.soft_median(x.mT, tau=HARD, dim=0, mask=(x < 99).mT)
    torch.testing.assert_close(median, torch.tensor([2.0, 6.0, torch.nan]), equal_nan=True)


def test_ties_keep_their_order_in_a_hard_sort_either_way():
    key, payload = torch.tensor([1.0, 1.0, 0.0]), torch.tensor([10.0, 20.0, 30.0])
    assert ns.soft_sort_by(payload, key, tau=0).tolist() == [30, 10, 20]
    assert ns.soft_sort_by(payload, key, tau=0, descending=True).tolist() == [10, 20, 30]


INF = float("inf")


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_temperatures_of_lists_with_infinite_items_are_those_of_the_others(dtype):
    scores = torch.tensor([3.0, INF, 1.0, -INF, 2.0, INF, 5.0, 4.0, -INF], dtype=dtype)
    alone = ns.tau_for_blur(scores[scores.isfinite()], ranks=2.0)
    assert torch.equal(ns.tau_for_blur(scores, ranks=2.0), alone)
    assert torch.equal(alone, torch.full_like(alone, 8.0))
    assert ns.tau_for_blur(torch.full((4,), INF, dtype=dtype)) == 1
    assert ns.tau_for_blur(torch.tensor([1.0, float("nan")], dtype=dtype)).isnan()


def test_temperatures_do_not_overflow():
    wide = torch.tensor([-6e4, 0.0, 1.0, 6e4], dtype=torch.float16)
    assert_near(ns.tau_for_blur(wide), torch.tensor([8e4]), 1e-3)
    assert ns.tau_for_blur(wide).dtype is torch.float32
    wide = torch.tensor([-3e38, -3e38, 0.0, 3e38, 3e38])
    assert ns.tau_for_blur(wide, ranks=0.5) == 3e38 / 2
    assert ns.tau_for_blur(wide, ranks=100.0) == torch.finfo(torch.float32).max


@pytest.mark.parametrize("method", every_method())
@pytest.mark.parametrize("held", [float("nan"), INF])
def test_what_absent_items_hold_stays_in_their_rows(method, held):
    key, mask = torch.randn(2, 6), torch.ones(2, 6, dtype=torch.bool)
    mask[0, 2] = mask[1, 0] = mask[1, 4] = False
    values = torch.randn(2, 6, 3)
    plain = ns.soft_sort_by(values, key, mask=mask, relax=method.relax)
    hostile = values.masked_fill(~mask.unsqueeze(-1), held).requires_grad_()
    found = ns.soft_sort_by(hostile, key, mask=mask, relax=method.relax)
    assert torch.equal(found[0, :5], plain[0, :5])
    assert torch.equal(found[1, :4], plain[1, :4])
    assert not found[0, 5:].isfinite().any()
    assert not found[1, 4:].isfinite().any()
    (to_values,) = torch.autograd.grad(found[0, :5].sum() + found[1, :4].sum(), hostile)
    assert to_values.isfinite().all()
    assert not to_values[~mask].any()
