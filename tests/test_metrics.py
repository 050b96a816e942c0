"""Metrics against SciPy, scikit-learn and loops; padding, ties, and lists without an answer."""

import functools

import numpy as np
import pytest
import scipy.stats
import sklearn.metrics
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

import neuralsort.torch as ns
from neuralsort.torch import metrics
from tests import oracle

ON_PERMUTATIONS = (metrics.exact_match, metrics.element_wise)
PRECISION, RECALL = (
    functools.partial(metric, k=3) for metric in (metrics.precision_at_k, metrics.recall_at_k)
)
RETRIEVAL = (metrics.average_precision, metrics.reciprocal_rank, PRECISION, RECALL)
ON_RELEVANCE = (metrics.ndcg, metrics.mean_reciprocal_rank, *RETRIEVAL)
ON_ORDERS = (metrics.spearman, metrics.kendall_tau)

each_metric = pytest.mark.parametrize(
    "metric",
    [*ON_RELEVANCE, *ON_ORDERS],
    ids=lambda metric: getattr(metric, "func", metric).__name__,
)


def ranked(lists: int, n: int, ties: bool = False) -> tuple[Tensor, Tensor]:
    scores = torch.randn(lists, n, dtype=torch.float64)
    if ties:
        scores = scores.round()
    return scores, torch.randint(0, 4, (lists, n))


# -- permutations ----------------------------------------------------------------------------------


def test_exact_match_and_element_wise_count_right_places():
    target = torch.tensor([[0, 1, 2, 3], [3, 2, 1, 0], [1, 0, 3, 2]])
    perm = torch.tensor([[0, 1, 2, 3], [3, 1, 2, 0], [0, 1, 2, 3]])
    assert metrics.exact_match(perm, target, reduction="none").tolist() == [1, 0, 0]
    assert metrics.element_wise(perm, target, reduction="none").tolist() == [1, 0.5, 0]
    assert metrics.exact_match(perm, target).item() == pytest.approx(1 / 3)
    assert metrics.element_wise(perm, target).item() == pytest.approx(0.5)


def test_permutation_metrics_agree_with_a_relaxation_at_its_argmax():
    scores = torch.randn(20, 6)
    target = scores.argsort(-1, descending=True)
    P = ns.neuralsort(scores)
    assert metrics.exact_match(P.permutation(), target) == 1
    assert metrics.element_wise(P.permutation().flip(-1), target) == 0


@pytest.mark.parametrize("metric", ON_PERMUTATIONS)
def test_only_the_places_of_present_items_count(metric):
    mask = torch.tensor([[True, False, True, True], [False] * 4])
    target = torch.tensor([[3, 0, 2, 1], [0, 1, 2, 3]])
    perm = torch.tensor([[3, 0, 2, -1], [3, 2, 1, 0]])
    assert metric(perm, target, mask=mask, reduction="none").tolist() == [1, 1]
    perm[0, 2] = 0
    assert metric(perm, target, mask=mask, reduction="none")[0] < 1


# -- peers -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("k", [1, 3, 10, None])
def test_ndcg_is_scikit_learn_s(k, ties):
    """Which takes gains instead of relevance, and shares gains among ties likewise."""
    scores, relevance = ranked(30, 7, ties)
    relevance[0] = 0
    actual = metrics.ndcg(scores, relevance, k=k, reduction="none")
    for i in range(len(scores)):
        gains = 2.0 ** relevance[i : i + 1].numpy() - 1
        expected = sklearn.metrics.ndcg_score(gains, scores[i : i + 1].numpy(), k=k)
        assert actual[i].item() == pytest.approx(expected, abs=1e-12)


@given(data=st.data())
def test_ndcg_is_the_oracle_s(data):
    n = data.draw(st.integers(1, 8))
    scores = data.draw(st.lists(st.integers(-2, 2), min_size=n, max_size=n))
    relevance = data.draw(st.lists(st.integers(0, 4), min_size=n, max_size=n))
    k = data.draw(st.integers(1, 10))
    actual = metrics.ndcg(torch.tensor(scores).double(), torch.tensor(relevance), k=k)
    assert actual.item() == pytest.approx(oracle.ndcg(scores, relevance, k), abs=1e-12)


@pytest.mark.filterwarnings("ignore::scipy.stats.ConstantInputWarning")
@pytest.mark.parametrize("ties", [False, True])
def test_spearman_is_scipy_s(ties):
    x, target = ranked(30, 7, ties)
    actual = metrics.spearman(x, target, reduction="none")
    for i in range(len(x)):
        expected = scipy.stats.spearmanr(x[i].numpy(), target[i].numpy()).statistic
        assert actual[i].item() == pytest.approx(np.nan_to_num(expected), abs=1e-12)


@pytest.mark.parametrize("ties", [False, True])
def test_kendall_tau_is_scipy_s(ties):
    x, target = ranked(30, 7, ties)
    actual = metrics.kendall_tau(x, target, reduction="none")
    for i in range(len(x)):
        expected = scipy.stats.kendalltau(x[i].numpy(), target[i].numpy()).statistic
        assert actual[i].item() == pytest.approx(np.nan_to_num(expected), abs=1e-12)


def test_mean_reciprocal_rank_is_scikit_learn_s():
    """Its label ranking average precision with one relevant label is the reciprocal rank."""
    scores = torch.randn(30, 7, dtype=torch.float64)
    relevance = torch.nn.functional.one_hot(torch.randint(0, 7, (30,)), 7)
    expected = sklearn.metrics.label_ranking_average_precision_score(
        relevance.numpy(), scores.numpy()
    )
    assert metrics.mean_reciprocal_rank(scores, relevance).item() == pytest.approx(expected)


def test_mean_reciprocal_rank_sees_the_first_relevant_item():
    scores = torch.tensor([[4.0, 3.0, 2.0, 1.0]]).expand(4, 4)
    relevance = torch.tensor([[0, 0, 2, 1], [3, 0, 0, 0], [0, 0, 0, 0], [0, 1, 4, 4]])
    value = metrics.mean_reciprocal_rank(scores, relevance, reduction="none")
    torch.testing.assert_close(value, torch.tensor([1 / 3, 1.0, 0.0, 0.5]))
    value = metrics.mean_reciprocal_rank(scores, relevance, k=2, reduction="none")
    torch.testing.assert_close(value, torch.tensor([0.0, 1.0, 0.0, 0.5]))


# -- retrieval -------------------------------------------------------------------------------------


def test_average_precision_is_scikit_learn_s():
    scores = torch.randn(30, 7, dtype=torch.float64)
    relevance = torch.randint(0, 2, (30, 7))
    relevance[:, 0] = 1
    found = metrics.average_precision(scores, relevance, reduction="none")
    for value, s, r in zip(found, scores, relevance, strict=True):
        wanted = sklearn.metrics.average_precision_score(r.numpy(), s.numpy())
        assert value.item() == pytest.approx(wanted, abs=1e-12)


@given(data=st.data())
def test_retrieval_metrics_are_the_oracle_s(data):
    n = data.draw(st.integers(1, 8))
    scores = data.draw(st.lists(st.integers(-2, 2), min_size=n, max_size=n))
    relevance = data.draw(st.lists(st.integers(0, 2), min_size=n, max_size=n))
    k = data.draw(st.integers(1, 10))
    lists = torch.tensor(scores).double(), torch.tensor(relevance)
    found, count = oracle.found_at(scores, relevance, k), sum(r > 0 for r in relevance)
    assert metrics.precision_at_k(*lists, k=k).item() == pytest.approx(found / k)
    assert metrics.recall_at_k(*lists, k=k).item() == pytest.approx(found / max(count, 1))
    wanted = oracle.average_precision(scores, relevance, k)
    assert metrics.average_precision(*lists, k=k).item() == pytest.approx(wanted)
    first = metrics.mean_reciprocal_rank(*lists, k=k)
    assert metrics.reciprocal_rank(*lists, k=k) == first


@pytest.mark.parametrize("metric", [getattr(metric, "func", metric) for metric in RETRIEVAL])
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_several_cutoffs_in_one_call(metric, reduction):
    scores, relevance = ranked(6, 5)
    scores, relevance = scores.view(2, 3, 5), relevance.view(2, 3, 5)
    several = metric(scores, relevance, k=(1, 3, 9), reduction=reduction)
    each = [metric(scores, relevance, k=k, reduction=reduction) for k in (1, 3, 9)]
    torch.testing.assert_close(several, torch.stack(each, -1))
    one = metric(scores, relevance, k=[3], reduction=reduction)
    torch.testing.assert_close(one, each[1].unsqueeze(-1))


def test_ranking_from_sorts_by_relevance_with_absent_items_last():
    relevance = torch.randint(0, 3, (20, 7))
    mask = torch.rand(20, 7) < 0.6
    for dtype in (torch.int64, torch.float32, torch.bfloat16, torch.uint8):
        found = ns.ranking_from(relevance.to(dtype), mask)
        for one, r, m in zip(found.tolist(), relevance.tolist(), mask.tolist(), strict=True):
            assert one == sorted(range(7), key=lambda i: (not m[i], -r[i] if m[i] else 0, i))
    stable = relevance.argsort(dim=-1, descending=True, stable=True)
    assert torch.equal(ns.ranking_from(relevance), stable)
    assert torch.equal(ns.ranking_from(relevance > 1), ns.ranking_from((relevance > 1).int()))
    junk = torch.where(mask, relevance.double(), torch.nan)
    assert torch.equal(ns.ranking_from(junk, mask), ns.ranking_from(relevance, mask))


# -- padding and lists without an answer -----------------------------------------------------------


@each_metric
@pytest.mark.parametrize("junk", [0.0, 1e30, np.inf, -np.inf, np.nan])
def test_padding_changes_nothing(metric, junk):
    scores, relevance = ranked(10, 5, ties=True)
    where = torch.stack([torch.randperm(9)[:5].sort().values for _ in range(10)])
    longer = torch.full((10, 9), junk, dtype=torch.float64).scatter(-1, where, scores)
    other = torch.full((10, 9), 9).scatter(-1, where, relevance)
    mask = torch.zeros(10, 9, dtype=torch.bool).scatter(-1, where, True)
    actual = metric(longer, other, mask=mask, reduction="none")
    torch.testing.assert_close(actual, metric(scores, relevance, reduction="none"))


@each_metric
def test_undefined_is_zero(metric):
    """Nothing relevant, all tied, one item, none."""
    scores = torch.randn(3, 4)
    if metric in ON_RELEVANCE:
        assert metric(scores, torch.zeros(3, 4)) == 0
        assert metric(torch.randn(2, 1), torch.zeros(2, 1)) == 0
    else:
        assert metric(scores, torch.ones(3, 4)) == 0
        assert metric(torch.ones(3, 4), scores) == 0
        assert metric(torch.randn(2, 1), torch.ones(2, 1)) == 0
    nobody = torch.zeros(3, 4, dtype=torch.bool)
    assert metric(scores, torch.ones(3, 4), mask=nobody) == 0
    assert metric(torch.randn(2, 0), torch.ones(2, 0)) == 0


@each_metric
def test_metrics_carry_no_gradient_and_reduce_over_lists(metric):
    scores, relevance = ranked(6, 5)
    scores.requires_grad_()
    each = metric(scores.view(2, 3, 5), relevance.view(2, 3, 5), reduction="none")
    assert each.shape == (2, 3)
    assert not each.requires_grad
    torch.testing.assert_close(metric(scores, relevance), each.mean())
    torch.testing.assert_close(metric(scores, relevance, reduction="sum"), each.sum())


def test_ndcg_of_enormous_relevance():
    scores, relevance = torch.tensor([0.1, 0.2, 0.3]), torch.tensor([2000.0, 0.0, 1999.0])
    # Only the two large gains count: 1/2 for the first place and 1 for the third, against the best.
    found, ideal = 0.5 / np.log2(2) + 1 / np.log2(4), 1 / np.log2(2) + 0.5 / np.log2(3)
    assert metrics.ndcg(scores, relevance).item() == pytest.approx(found / ideal, rel=1e-6)


@pytest.mark.parametrize("metric", [*ON_RELEVANCE, metrics.spearman, metrics.kendall_tau])
def test_a_nan_spoils_its_own_list_only(metric):
    scores, relevance = ranked(3, 5)
    relevance[:, 0], relevance[:, 1] = 1, 0
    scores[1, 2] = torch.nan
    value = metric(scores, relevance, reduction="none")
    assert value.isnan().tolist() == [False, True, False]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
@each_metric
def test_short_types_are_measured_in_float32(metric, dtype):
    scores, relevance = ranked(4, 6)
    value = metric(scores.to(dtype), relevance)
    assert value.dtype is torch.float32
    expected = metric(scores.to(dtype).double(), relevance)
    torch.testing.assert_close(value.double(), expected, rtol=1e-6, atol=1e-6)


def test_large_integers_are_told_apart():
    """Beyond 2^53 neighbouring integers are one float64."""
    target = 2**60 + torch.tensor([1, 0, 2])
    x = torch.tensor([1.0, 2.0, 3.0])
    torch.testing.assert_close(metrics.spearman(x, target), torch.tensor(0.5))
    small = ns.spearman_loss(x, torch.tensor([1, 0, 2]), tau=0.1)
    torch.testing.assert_close(ns.spearman_loss(x, target, tau=0.1), small)
    mask = torch.tensor([True, True, False])
    torch.testing.assert_close(metrics.spearman(x, target, mask=mask), torch.tensor(-1.0))
    flags = torch.tensor([False, True, True])
    expected = metrics.spearman(x, flags.double())
    torch.testing.assert_close(metrics.spearman(x, flags), expected)
