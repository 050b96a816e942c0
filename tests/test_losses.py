"""Every loss over one table: oracle, padding, derivatives, lists that teach nothing, limits."""

import functools
import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest
import scipy.stats
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck

import neuralsort.torch as ns
from neuralsort.torch import metrics, registry
from tests import oracle
from tests.conftest import GRADIENT_RTOL, VALUE_RTOL, assert_near

TAU = 0.7
SHARES = {1: 0.25, 3: 0.75}
HARD = 1e-6  # a temperature at which nothing blends

Example = tuple[Tensor, Tensor]


# -- what a loss compares with, and how it is padded -----------------------------------------------


def order(n: int) -> Tensor:
    return torch.randperm(n)


def flags(n: int) -> Tensor:
    return torch.rand(n) < 0.5


def grades(n: int) -> Tensor:
    """Graded relevance in which something is to be learned, with ties."""
    relevance = torch.randint(0, 4, (n,))
    relevance[0], relevance[-1] = 0, 3
    return relevance[torch.randperm(n)]


def hits(n: int) -> Tensor:
    """Relevant or not, some of both."""
    relevant = torch.rand(n) < 0.3
    relevant[0], relevant[-1] = True, n == 1
    return relevant[torch.randperm(n)].long()


def label(n: int) -> Tensor:
    return torch.randint(0, n, ())


def pad_items(other: Tensor, where: Tensor, n: int) -> Tensor:
    junk = torch.full((n,), 7, dtype=torch.int64).to(other.dtype)
    return junk.scatter(0, where, other)


def pad_order(other: Tensor, where: Tensor, n: int) -> Tensor:
    junk = torch.full((n - len(where),), -1)
    return torch.cat([where[other], junk])


def pad_label(other: Tensor, where: Tensor, n: int) -> Tensor:
    return where[other] if len(where) else torch.tensor(0)


@dataclass(frozen=True)
class Loss:
    """A loss, its oracle for one list, and what it compares with."""

    name: str
    call: Callable[..., Tensor]  # (scores, other, *, tau, mask, reduction)
    expected: Callable[..., float]  # (scores, other) of one list
    draw: Callable[[int], Tensor] = grades
    pad: Callable[[Tensor, Tensor, int], Tensor] = pad_items
    needs: int = 1  # items
    tempered: bool = True

    def __call__(self, scores: Tensor, other: Tensor, tau: float | Tensor = TAU, **options):
        if self.tempered:
            options["tau"] = tau
        return self.call(scores, other, **options)


def of_permutation(loss: Callable[..., Tensor], relax=ns.neuralsort) -> Callable[..., Tensor]:
    """A loss on P as one on scores."""

    def call(scores, other, *, tau, mask=None, **options):
        return loss(relax(scores, tau=tau, mask=mask), other, mask=mask, **options)

    return call


def as_matrix(scores, *, tau, mask=None):
    """NeuralSort written down: what it holds of absent items is exactly 0."""
    return ns.RelaxedPermutation.from_dense(ns.neuralsort(scores, tau=tau, mask=mask).to_dense())


def from_matrix(expected: Callable[..., float], **options) -> Callable[..., float]:
    return lambda scores, other: expected(oracle.neuralsort(scores, TAU), other, **options)


LOSSES = (
    Loss(
        "permutation_cross_entropy",
        of_permutation(ns.permutation_cross_entropy),
        from_matrix(oracle.permutation_cross_entropy),
        order,
        pad_order,
    ),
    Loss(
        "permutation_cross_entropy of softsort",
        of_permutation(ns.permutation_cross_entropy, ns.softsort),
        lambda scores, other: oracle.permutation_cross_entropy(
            oracle.softsort(scores, TAU, 1), other
        ),
        order,
        pad_order,
    ),
    Loss(
        "permutation_cross_entropy of a matrix",
        of_permutation(ns.permutation_cross_entropy, as_matrix),
        from_matrix(oracle.permutation_cross_entropy),
        order,
        pad_order,
    ),
    Loss(
        "knn_loss",
        of_permutation(functools.partial(ns.knn_loss, k=3)),
        from_matrix(oracle.knn_loss, k=3),
        flags,
        needs=3,
    ),
    Loss(
        "topk_cross_entropy",
        functools.partial(ns.topk_cross_entropy, k=2),
        from_matrix(oracle.topk_cross_entropy, shares={2: 1.0}),
        label,
        pad_label,
        needs=2,
    ),
    Loss(
        "topk_cross_entropy of several k",
        functools.partial(ns.topk_cross_entropy, k=SHARES),
        from_matrix(oracle.topk_cross_entropy, shares=SHARES),
        label,
        pad_label,
        needs=3,
    ),
    Loss(
        "topk_cross_entropy of a matrix",
        functools.partial(ns.topk_cross_entropy, k=3, relax=as_matrix),
        from_matrix(oracle.topk_cross_entropy, shares={3: 1.0}),
        label,
        pad_label,
        needs=3,
    ),
    Loss(
        "plackett_luce_nll",
        ns.plackett_luce_nll,
        oracle.plackett_luce_loss,
        order,
        pad_order,
        tempered=False,
    ),
    Loss(
        "neural_ndcg",
        functools.partial(ns.neural_ndcg, k=4, iterations=2),
        from_matrix(oracle.neural_ndcg, k=4, iterations=2),
    ),
    Loss(
        "neural_ndcg, unscaled",
        functools.partial(ns.neural_ndcg, iterations=0),
        from_matrix(oracle.neural_ndcg, k=100, iterations=0),
    ),
    Loss(
        "approx_ndcg",
        ns.approx_ndcg,
        functools.partial(oracle.approx_ndcg, tau=TAU),
    ),
    Loss("spearman_loss", ns.spearman_loss, from_matrix(oracle.spearman_loss)),
    Loss("kendall_loss", ns.kendall_loss, functools.partial(oracle.kendall_loss, tau=TAU)),
    Loss("ranknet_loss", ns.ranknet_loss, functools.partial(oracle.ranknet_loss, tau=TAU)),
    Loss("listnet_loss", ns.listnet_loss, functools.partial(oracle.listnet_loss, tau=TAU)),
    Loss("lambda_loss", ns.lambda_loss, functools.partial(oracle.lambda_loss, tau=TAU, k=100)),
    Loss(
        "lambda_loss of the first places",
        functools.partial(ns.lambda_loss, k=2),
        functools.partial(oracle.lambda_loss, tau=TAU, k=2),
    ),
    Loss(
        "smooth_ap_loss",
        ns.smooth_ap_loss,
        functools.partial(oracle.smooth_ap_loss, tau=TAU),
        hits,
    ),
    Loss(
        "recall_at_k_loss",
        functools.partial(ns.recall_at_k_loss, k=(1, 3), rank_tau=0.5),
        functools.partial(oracle.recall_at_k_loss, tau=TAU, k=(1, 3), rank_tau=0.5),
        hits,
    ),
)
BY_NAME = {loss.name: loss for loss in LOSSES}
ON_GRADES = [loss for loss in LOSSES if loss.draw in (grades, hits)]
OVER_PAIRS = (
    "approx_ndcg",
    "kendall_loss",
    "ranknet_loss",
    "lambda_loss",
    "lambda_loss of the first places",
    "smooth_ap_loss",
    "recall_at_k_loss",
)

# A matrix that was written down has lost the log-weights below the smallest number.
UNWRITTEN = [loss for loss in LOSSES if "of a matrix" not in loss.name]

each_loss = pytest.mark.parametrize("loss", LOSSES, ids=BY_NAME)
each_unwritten_loss = pytest.mark.parametrize("loss", UNWRITTEN, ids=lambda loss: loss.name)
each_ranking_loss = pytest.mark.parametrize("loss", ON_GRADES, ids=lambda loss: loss.name)


def example(loss: Loss, n: int) -> Example:
    return torch.randn(n, dtype=torch.float64), loss.draw(n)


def batch(loss: Loss, lists: int, n: int) -> Example:
    scores, others = zip(*(example(loss, n) for _ in range(lists)), strict=True)
    return torch.stack(scores), torch.stack(others)


def gradient(value: Tensor, *of: Tensor) -> Tensor:
    return torch.autograd.grad(value, of)[0]


def padded(loss: Loss, scores: Tensor, other: Tensor, where: Tensor, n: int, junk: float):
    """The list with its items at the places `where` of a longer one, and the mask."""
    longer = torch.full((n,), junk, dtype=scores.dtype).scatter(0, where, scores)
    mask = torch.zeros(n, dtype=torch.bool).scatter(0, where, True)
    return longer, loss.pad(other, where, n), mask


# -- values ----------------------------------------------------------------------------------------


@each_loss
@pytest.mark.parametrize("n", [3, 4, 9])
def test_value_is_the_oracle_s(loss, n, form):
    scores, other = batch(loss, 4, n)
    actual = loss(scores, other, reduction="none")
    expected = [loss.expected(s, o) for s, o in zip(scores.tolist(), other.tolist(), strict=True)]
    assert_near(actual, torch.tensor(expected, dtype=torch.float64), 1e-10, floor=1.0)


@each_loss
def test_reductions_are_over_lists(loss):
    scores, other = batch(loss, 6, 5)
    scores, other = scores.view(2, 3, 5), other.view(2, 3, *other.shape[1:])
    each = loss(scores, other, reduction="none")
    assert each.shape == (2, 3)
    torch.testing.assert_close(loss(scores, other), each.mean())
    torch.testing.assert_close(loss(scores, other, reduction="mean"), each.mean())
    torch.testing.assert_close(loss(scores, other, reduction="sum"), each.sum())


@each_unwritten_loss
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_short_types_compute_in_float32(loss, dtype):
    scores, other = batch(loss, 3, 6)
    short = scores.to(dtype).requires_grad_()
    value = loss(short, other)
    assert value.dtype is torch.float32
    long = short.detach().double().requires_grad_()
    expected = loss(long, other)
    assert_near(value, expected, 4 * VALUE_RTOL[dtype], floor=1.0)
    assert_near(
        gradient(value, short), gradient(expected, long), 4 * GRADIENT_RTOL[dtype], floor=0.1
    )


@pytest.mark.parametrize(
    "loss", [loss for loss in LOSSES if loss.tempered], ids=lambda loss: loss.name
)
def test_one_temperature_per_list(loss):
    scores, other = batch(loss, 2, 5)
    tau = torch.tensor([[0.4], [1.3]], dtype=torch.float64)
    actual = loss(scores, other, tau=tau, reduction="none")
    for i in range(2):
        torch.testing.assert_close(actual[i], loss(scores[i], other[i], tau=tau[i].item()))


# -- padding ---------------------------------------------------------------------------------------


@each_loss
@given(data=st.data())
def test_padding_changes_neither_value_nor_gradient(loss, data, form):
    """Whatever the absent items hold, and wherever they stand."""
    m = data.draw(st.integers(loss.needs, 6), label="present")
    n = m + data.draw(st.integers(0, 4), label="absent")
    torch.manual_seed(data.draw(st.integers(0, 2**20), label="seed"))
    junk = data.draw(st.sampled_from([0.0, 1e30, np.inf, -np.inf, np.nan]), label="junk")
    where = torch.tensor(data.draw(st.permutations(range(n)), label="where")[:m]).sort().values
    scores, other = example(loss, m)
    longer, other_longer, mask = padded(loss, scores, other, where, n, junk)

    scores.requires_grad_()
    longer.requires_grad_()
    expected = loss(scores, other)
    actual = loss(longer, other_longer, mask=mask)
    assert_near(actual, expected, 1e-12, floor=1.0)
    grad = gradient(actual, longer)
    assert_near(grad[where], gradient(expected, scores), 1e-11, floor=1.0)
    assert (grad[~mask] == 0).all()


@each_loss
def test_lists_of_many_lengths_share_a_batch(loss, form):
    """A list's loss does not depend on how long the longest other list is."""
    n, pieces = 7, []
    for m in (loss.needs, 4, 7):
        where = torch.randperm(n)[:m].sort().values
        pieces.append((*example(loss, m), where))
    rows = [padded(loss, s, o, where, n, np.nan) for s, o, where in pieces]
    scores, other, mask = (torch.stack(column) for column in zip(*rows, strict=True))
    actual = loss(scores, other, mask=mask, reduction="none")
    expected = torch.stack([loss(s, o) for s, o, _ in pieces])
    torch.testing.assert_close(actual, expected)


def test_knn_loss_averages_over_the_candidates_there_are():
    scores = torch.tensor([0.0, -1.0, -2.0, 5.0])
    mask = torch.tensor([True, True, False, False])
    P = ns.neuralsort(scores, tau=HARD, mask=mask)
    same = torch.tensor([True, False, True, True])
    assert ns.knn_loss(P, same, k=3, mask=mask).item() == pytest.approx(-0.5)


# -- derivatives -----------------------------------------------------------------------------------


@pytest.mark.slow
@each_loss
@pytest.mark.parametrize("masked", [False, True])
def test_gradcheck(loss, masked, form, fast_mode):
    scores, other = batch(loss, 2, 5)
    mask = None
    if masked:
        mask = torch.ones(2, 5, dtype=torch.bool)
        mask[1, 3:] = False
        if loss.pad is pad_label:
            other = other.clamp(max=2)
        if loss.pad is pad_order:
            other[1] = torch.tensor([2, 0, 1, 4, 3])
    scores.requires_grad_()
    tau = torch.tensor(TAU, dtype=torch.float64, requires_grad=loss.tempered)

    def call(scores, tau):
        return loss(scores, other, tau=tau, mask=mask, reduction="none")

    assert gradcheck(call, (scores, tau))
    assert gradgradcheck(call, (scores, tau), atol=1e-4, fast_mode=fast_mode)


# -- lists that teach nothing ----------------------------------------------------------------------


def still(value: Tensor, scores: Tensor, expected: float | None) -> None:
    """A finite value, the stated one, and no gradient."""
    assert value.isfinite().all()
    if expected is not None:
        torch.testing.assert_close(value, torch.full_like(value, expected))
    assert (gradient(value.sum(), scores) == 0).all()


@each_loss
def test_a_list_without_items_has_loss_zero(loss, form):
    scores, other = batch(loss, 2, 4)
    scores[0] = torch.nan
    mask = torch.tensor([[False] * 4, [True] * 4])
    scores.requires_grad_()
    value = loss(scores, other, mask=mask, reduction="none")
    still(value[:1], scores, 0.0)
    torch.testing.assert_close(value[1], loss(scores[1], other[1]))


@pytest.mark.parametrize(
    "loss", [loss for loss in LOSSES if loss.needs == 1], ids=lambda loss: loss.name
)
def test_a_list_of_one_item_has_loss_zero(loss, form):
    """It has one order: nothing to lose, nothing to learn."""
    scores = torch.randn(3, 1, dtype=torch.float64, requires_grad=True)
    other = torch.zeros(3, 1, dtype=torch.int64)
    still(loss(scores, other, reduction="none"), scores, 0.0)


@each_ranking_loss
@pytest.mark.parametrize("grade", [0, 2])
def test_tied_labels_teach_nothing(loss, grade, form):
    """All equal: no order is better. A loss of NDCG is finite, and 0 if nothing is relevant."""
    scores = torch.randn(2, 5, dtype=torch.float64, requires_grad=True)
    relevance = torch.full((2, 5), grade)
    value = loss(scores, relevance, reduction="none")
    if "ndcg" in loss.name and grade:
        assert value.isfinite().all()
        assert gradient(value.sum(), scores).isfinite().all()
    else:
        still(value, scores, 0.0)


@each_unwritten_loss
@pytest.mark.parametrize("scale", [0.0, 1e-30, 1e30])
def test_tied_tiny_and_enormous_scores_stay_finite(loss, scale, form):
    scores, other = batch(loss, 3, 5)
    scores = (scale * scores).requires_grad_()
    value = loss(scores, other, reduction="none")
    assert value.isfinite().all()
    assert gradient(value.sum(), scores).isfinite().all()


@pytest.mark.parametrize(
    ("loss", "expected"),
    [
        (ns.ranknet_loss, [1 / 3, 0.0, -1 / 3]),
        (functools.partial(ns.kendall_loss, tau=1.0), [2 / 3, 0.0, -2 / 3]),
    ],
)
def test_tied_scores_are_pulled_apart(loss, expected):
    """A scorer that starts at 0 for every item must be able to learn."""
    scores = torch.zeros(3, requires_grad=True)
    found = gradient(loss(scores, torch.arange(3)), scores)
    torch.testing.assert_close(found, torch.tensor(expected))


def test_approx_ndcg_at_tied_scores_has_the_slope_it_has_nearby():
    relevance = torch.arange(3)
    loss = functools.partial(ns.approx_ndcg, relevance=relevance, tau=1.0)
    scores = torch.zeros(3, dtype=torch.float64, requires_grad=True)
    step = 1e-6 * torch.eye(3, dtype=torch.float64)
    slopes = torch.stack([(loss(s) - loss(-s)) / 2e-6 for s in step])
    torch.testing.assert_close(gradient(loss(scores), scores), slopes, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("n", [5, 600])
def test_spearman_loss_of_tied_values_is_one_without_gradient(n):
    """Where the correlation jumps, rounding must not become a direction."""
    x = torch.full((n,), 0.1, requires_grad=True)
    value = ns.spearman_loss(x, torch.arange(n), tau=1.0)
    still(value, x, 1.0)


def test_cross_entropy_is_infinite_where_the_weight_is_zero():
    P = ns.neuralsort(torch.tensor([1.0, 2.0, 3.0]), tau=0.0)
    assert ns.permutation_cross_entropy(P, torch.tensor([2, 1, 0])) == 0
    assert ns.permutation_cross_entropy(P, torch.tensor([0, 1, 2])) == torch.inf
    scores = torch.tensor([1.0, torch.inf, 3.0], requires_grad=True)
    loss = ns.permutation_cross_entropy(ns.neuralsort(scores), torch.tensor([0, 1, 2]))
    assert loss == torch.inf
    assert not gradient(loss, scores).isnan().any()


def test_topk_cross_entropy_is_infinite_for_a_label_that_is_ruled_out():
    logits = torch.randn(2, 4, requires_grad=True)
    mask = torch.tensor([True, True, False, True])
    loss = ns.topk_cross_entropy(
        logits, torch.tensor([2, 0]), k=2, tau=0.5, mask=mask, reduction="none"
    )
    assert loss[0] == torch.inf
    grad = gradient(loss.sum(), logits)
    assert (grad[0] == 0).all()
    assert grad[1].isfinite().all()
    assert grad[1].any()


@pytest.mark.parametrize(
    "loss",
    [
        ns.kendall_loss,
        ns.spearman_loss,
        ns.approx_ndcg,
        ns.ranknet_loss,
        ns.listnet_loss,
        ns.lambda_loss,
        ns.smooth_ap_loss,
        functools.partial(ns.recall_at_k_loss, k=2),
    ],
)
def test_a_nan_in_the_target_spoils_its_own_list_only(loss):
    x = torch.randn(3, 4)
    target = torch.tensor([[0.0, 1.0, 2.0, 3.0]]).repeat(3, 1)
    target[1, 2] = torch.nan
    each = loss(x, target, tau=1.0, reduction="none")
    assert each.isnan().tolist() == [False, True, False]
    mask = ~target.isnan()
    assert loss(x, target, tau=1.0, mask=mask).isfinite()


@pytest.mark.parametrize("loss", [ns.neural_ndcg, ns.approx_ndcg, ns.lambda_loss])
def test_enormous_relevance_does_not_overflow(loss):
    scores = torch.tensor([0.1, 0.2, 0.3], requires_grad=True)
    value = loss(scores, torch.tensor([200, 0, 199]), tau=0.1)
    wanted = loss(scores.double(), torch.tensor([200, 0, 199]), tau=0.1)
    torch.testing.assert_close(value, wanted.float())
    assert gradient(value, scores).isfinite().all()


def test_cross_entropy_sees_log_weights_far_below_the_smallest_number():
    scores = torch.tensor([0.0, 1e4, 2e4], requires_grad=True)
    loss = ns.permutation_cross_entropy(ns.neuralsort(scores), torch.tensor([0, 1, 2]))
    assert 1e4 < loss.item() < torch.inf
    grad = gradient(loss, scores)
    assert grad[0] < 0 < grad[2]


# -- hard counterparts -----------------------------------------------------------------------------


@pytest.mark.parametrize("k", [1, 3, 10, None])
@pytest.mark.parametrize("relax", [ns.neuralsort, ns.softsort])
def test_neural_ndcg_tends_to_the_metric(k, relax):
    scores, relevance = batch(BY_NAME["neural_ndcg"], 5, 8)
    actual = ns.neural_ndcg(scores, relevance, tau=HARD, k=k, relax=relax, reduction="none")
    expected = 1 - metrics.ndcg(scores, relevance, k=k, reduction="none")
    torch.testing.assert_close(actual, expected)


def test_other_ranking_losses_tend_to_their_metrics():
    x, target = batch(BY_NAME["kendall_loss"], 5, 8)
    approximate = ns.approx_ndcg(x, target, tau=HARD, reduction="none")
    torch.testing.assert_close(approximate, 1 - metrics.ndcg(x, target, reduction="none"))
    spearman = ns.spearman_loss(x, target, tau=HARD, reduction="none")
    torch.testing.assert_close(spearman, 1 - metrics.spearman(x, target, reduction="none"))
    kendall = ns.kendall_loss(x, target, tau=HARD, reduction="none")
    expected = [
        1 - scipy.stats.somersd(t, v).statistic
        for t, v in zip(target.numpy(), x.numpy(), strict=True)
    ]
    torch.testing.assert_close(kendall, torch.tensor(expected, dtype=torch.float64))
    untied = torch.randn(5, 8)
    kendall = ns.kendall_loss(x, untied, tau=HARD)
    torch.testing.assert_close(kendall, 1 - metrics.kendall_tau(x, untied))


def test_retrieval_losses_tend_to_their_metrics():
    x, relevance = batch(BY_NAME["smooth_ap_loss"], 20, 8)
    precision = ns.smooth_ap_loss(x, relevance, tau=HARD, reduction="none")
    expected = 1 - metrics.average_precision(x, relevance, reduction="none")
    torch.testing.assert_close(precision, expected)
    for k in (1, 3, 7):
        options = {"k": k, "tau": HARD, "rank_tau": 1e-3}
        recall = ns.recall_at_k_loss(x, relevance, **options, reduction="none")
        expected = 1 - metrics.recall_at_k(x, relevance, k=k, reduction="none")
        torch.testing.assert_close(recall, expected)


@pytest.mark.parametrize("k", [1, 3, None])
def test_lambda_loss_is_zero_only_where_the_ndcg_is_one(k):
    scores, relevance = batch(BY_NAME["lambda_loss"], 200, 4)
    loss = ns.lambda_loss(scores, relevance, tau=HARD, k=k, reduction="none")
    perfect = metrics.ndcg(scores, relevance, k=k, reduction="none") > 1 - 1e-9
    assert 0 < perfect.sum() < 200
    assert torch.equal(loss < 1e-3, perfect)


def test_listnet_loss_is_smallest_where_scores_are_the_relevance():
    _, relevance = batch(BY_NAME["listnet_loss"], 5, 6)
    scores = (2.0 * relevance.double() + 3.0).requires_grad_()
    slope = gradient(ns.listnet_loss(scores, relevance, tau=2.0), scores)
    assert slope.abs().max() < 1e-12


def test_knn_loss_tends_to_the_share_of_neighbours():
    distance = torch.rand(4, 9, dtype=torch.float64)
    same = torch.rand(4, 9) < 0.5
    actual = ns.knn_loss(ns.neuralsort(-distance, tau=HARD), same, k=4, reduction="none")
    nearest = distance.topk(4, largest=False).indices
    torch.testing.assert_close(actual, -same.gather(-1, nearest).double().mean(-1))


@pytest.mark.parametrize("k", [1, 3])
def test_topk_cross_entropy_tends_to_membership(k):
    logits = torch.randn(20, 6, dtype=torch.float64)
    labels = torch.randint(0, 6, (20,))
    loss = ns.topk_cross_entropy(logits, labels, k=k, tau=1e-3, reduction="none")
    inside = (logits.topk(k).indices == labels.unsqueeze(-1)).any(-1)
    assert (loss[inside] < 1).all()
    assert (loss[~inside] > 1).all()


def test_ranknet_loss_bounds_the_share_of_wrong_pairs():
    scores, relevance = batch(BY_NAME["ranknet_loss"], 30, 6)
    bound = ns.ranknet_loss(scores, relevance, reduction="none") / np.log(2)
    assert (bound >= ns.kendall_loss(scores, relevance, tau=HARD, reduction="none") / 2).all()


def test_scaled_columns_count_no_item_twice():
    """NeuralNDCG stays at or above 0; without the scaling it can fall below."""
    torch.manual_seed(1)
    scores = torch.randn(300, 6, dtype=torch.float64)
    relevance = torch.randint(0, 4, (300, 6))
    scaled = ns.neural_ndcg(scores, relevance, tau=2.0, iterations=100, reduction="none")
    assert scaled.min() >= -1e-9


# -- descent ---------------------------------------------------------------------------------------


@each_loss
def test_descent_finds_the_order(loss):
    """A few steps on the scores themselves lower the loss."""
    scores, other = batch(loss, 4, 6)
    scores.requires_grad_()
    optimiser = torch.optim.Adam([scores], lr=0.05)
    first = loss(scores, other)
    for _ in range(60):
        optimiser.zero_grad()
        loss(scores, other).backward()
        optimiser.step()
    assert loss(scores, other) < first - 0.1


# -- long lists ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "loss",
    [loss for loss in UNWRITTEN if loss.name not in OVER_PAIRS],
    ids=lambda loss: loss.name,
)
def test_the_matrix_is_never_written_for_long_lists(loss, monkeypatch):
    def refuse(self):
        raise AssertionError("wrote the matrix")

    lazy = __import__("neuralsort.torch.relaxations.scored", fromlist=["scored"])
    monkeypatch.setattr(lazy.ScorePermutation, "_matrix", refuse)
    scores, other = example(loss, 3000)
    scores = scores.float().requires_grad_()
    tau = ns.tau_for_blur(scores, ranks=2.0)
    value = loss(scores, other, tau=tau)
    assert value.isfinite()
    assert gradient(value, scores).isfinite().all()


def test_losses_broadcast_samples_against_one_target():
    """Many relaxed permutations of the same lists: what stochastic relaxations give."""
    scores = torch.randn(5, 2, 4, dtype=torch.float64)
    target = torch.stack([torch.randperm(4), torch.randperm(4)])
    same = torch.rand(2, 4) < 0.5
    P = ns.neuralsort(scores, tau=TAU)
    assert ns.permutation_cross_entropy(P, target, reduction="none").shape == (5, 2)
    torch.testing.assert_close(
        ns.knn_loss(P, same, k=2, reduction="none")[3],
        ns.knn_loss(ns.neuralsort(scores[3], tau=TAU), same, k=2, reduction="none"),
    )


def test_cross_entropy_of_the_first_places():
    scores, target = example(BY_NAME["permutation_cross_entropy"], 6)
    P = ns.neuralsort(scores, tau=TAU)
    expected = -P.log_prob(target)[:2].mean()
    torch.testing.assert_close(ns.permutation_cross_entropy(P.top(2), target[:2]), expected)


# -- other relaxations -----------------------------------------------------------------------------

SORTING_METHODS = [m for m in registry.METHODS.values() if (m.takes, m.gives) == ("scores", "P")]


@pytest.mark.parametrize("method", SORTING_METHODS, ids=lambda method: method.name)
@pytest.mark.parametrize("name", ["neural_ndcg", "spearman_loss", "topk_cross_entropy"])
def test_every_relaxation_fits_every_loss(name, method):
    """In value and gradient, and padded alike."""
    loss = BY_NAME[name]
    scores, other = example(loss, 5)
    where = torch.tensor([0, 2, 3, 5, 6])
    longer, other_longer, mask = padded(loss, scores, other, where, 7, np.nan)
    scores.requires_grad_()
    longer.requires_grad_()
    expected = loss(scores, other, relax=method.function)
    assert expected.isfinite()
    actual = loss(longer, other_longer, mask=mask, relax=method.function)
    torch.testing.assert_close(actual, expected, rtol=1e-6, atol=1e-6)
    grad = gradient(expected, scores)
    assert grad.abs().max() > 0
    torch.testing.assert_close(gradient(actual, longer)[where], grad, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_losses_of_long_lists_in_half_precision_do_not_overflow(dtype):
    """The log-weights of a reversed list sum to more than float16 can say."""
    scores = torch.linspace(0, 100, 1000).to(dtype).requires_grad_()
    loss = ns.permutation_cross_entropy(ns.neuralsort(scores), torch.arange(1000))
    long = scores.detach().double()
    expected = ns.permutation_cross_entropy(ns.neuralsort(long), torch.arange(1000))
    assert loss.dtype is torch.float32
    assert loss > 3e4
    torch.testing.assert_close(loss.double(), expected, rtol=1e-5, atol=0)
    assert gradient(loss, scores).dtype is dtype


@each_unwritten_loss
def test_losses_under_autocast_are_float32(loss):
    scores, other = batch(loss, 3, 6)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        short = torch.nn.functional.linear(scores.float(), torch.eye(6))
        assert short.dtype is torch.bfloat16
        assert loss(short, other).dtype is torch.float32


# -- other ranks, and weights ----------------------------------------------------------------------


def test_spearman_takes_ranks_of_any_function():
    x, target = torch.randn(4, 8, dtype=torch.float64), torch.randn(4, 8)
    mask = torch.arange(8) < torch.tensor([[8], [5], [2], [0]])
    for options in ({}, {"mask": mask}):
        by_relaxation = ns.spearman_loss(x, target, tau=0.4, **options)
        by_rank = ns.spearman_loss(x, target, tau=0.4, rank=ns.soft_rank, **options)
        torch.testing.assert_close(by_rank, by_relaxation)
    fast = ns.spearman_loss(x, target, tau=1e-6, rank=ns.fast_soft_rank, reduction="none")
    hard = 1 - ns.metrics.spearman(x, target, reduction="none")
    torch.testing.assert_close(fast.float(), hard.float())
    options = {"tau": 0.3, "rank": ns.fast_soft_rank}
    padded = ns.spearman_loss(x, target, mask=mask, reduction="none", **options)
    for row, wanted, there, loss in zip(x, target, mask, padded, strict=True):
        short = ns.spearman_loss(row[there], wanted[there], **options)
        torch.testing.assert_close(loss, short)


def test_messages_about_ranks():
    x = torch.randn(3)
    with pytest.raises(TypeError, match="`rank` expects a function such as soft_rank"):
        ns.spearman_loss(x, x, tau=1.0, rank="fast")
    with pytest.raises(TypeError, match="`rank` expects a function that takes `tau=`"):
        ns.spearman_loss(x, x, tau=1.0, rank=lambda x: x)
    with pytest.raises(ValueError, match=r"must give one rank per item, shape \(3,\), got"):
        ns.spearman_loss(x, x, tau=1.0, rank=ns.soft_median)


WEIGHTED = {
    "spearman": functools.partial(ns.spearman_loss, tau=0.4),
    "kendall": functools.partial(ns.kendall_loss, tau=0.4),
    "ranknet": ns.ranknet_loss,
}


@pytest.mark.parametrize("name", WEIGHTED)
def test_weights_that_are_equal_change_nothing_and_absent_items_weigh_nothing(name):
    loss = functools.partial(WEIGHTED[name], reduction="none")
    x, target = torch.randn(3, 6, dtype=torch.float64), torch.randn(3, 6)
    mask = torch.arange(6) < torch.tensor([[6], [4], [1]])
    torch.testing.assert_close(loss(x, target, weights=torch.full((6,), 3.0)), loss(x, target))
    weights = torch.rand(3, 6).masked_fill(~mask, torch.nan)
    ours = loss(x, target, weights=weights, mask=mask)
    short = loss(x[1, :4], target[1, :4], weights=weights[1, :4])
    torch.testing.assert_close(ours[1], short)
    assert torch.equal(loss(x, target, weights=torch.zeros(6)), torch.zeros(3).double())


def test_weighted_losses_are_their_formulas():
    x, target = torch.randn(6, dtype=torch.float64), torch.tensor([3.0, 1.0, 2.0, 6.0, 5.0, 4.0])
    weights = torch.rand(6, dtype=torch.float64)
    ranks = ns.soft_rank(x, tau=0.4)
    cov = np.cov(ranks.numpy(), target.numpy(), aweights=weights.numpy(), ddof=0)
    expected = 1 - cov[0, 1] / np.sqrt(cov[0, 0] * cov[1, 1])
    ours = ns.spearman_loss(x, target, tau=0.4, weights=weights)
    assert abs(ours.item() - expected) < 1e-9
    total = norm = 0.0
    for i, j in itertools.permutations(range(6), 2):
        if target[i] > target[j]:
            pair = (weights[i] * weights[j]).item()
            total += pair * (1 - math.tanh((x[i] - x[j]).item() / 0.4))
            norm += pair
    assert abs(ns.kendall_loss(x, target, tau=0.4, weights=weights).item() - total / norm) < 1e-9
