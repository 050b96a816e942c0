"""Soft neighbours: the oracle, the hard limit, masks, chunks, samples, messages."""

import functools

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import neuralsort.torch as ns
from neuralsort.torch import knn as knn_room
from neuralsort.torch import nn
from neuralsort.torch.knn import soft_neighbours, squared_distances
from tests import oracle

GENERATOR = torch.Generator().manual_seed(0)
QUERIES = torch.randn(7, 3, generator=GENERATOR, dtype=torch.float64)
CANDIDATES = torch.randn(11, 3, generator=GENERATOR, dtype=torch.float64)
LABELS = torch.eye(4, dtype=torch.float64)[torch.arange(11) % 4]


def test_distances_are_those_of_the_definition():
    expected = (QUERIES.unsqueeze(1) - CANDIDATES).square().sum(-1)
    torch.testing.assert_close(squared_distances(QUERIES, CANDIDATES), expected)


def test_distances_survive_a_common_offset():
    """The plain formula in float32 has an error of about 1 here."""
    moved = squared_distances((QUERIES + 1e3).float(), (CANDIDATES + 1e3).float())
    expected = squared_distances(QUERIES, CANDIDATES)
    torch.testing.assert_close(moved.double(), expected, atol=2e-3, rtol=1e-3)


def test_distance_from_itself_is_zero_with_zero_gradient():
    x = QUERIES.clone().requires_grad_()
    own = squared_distances(x, x).diagonal()
    assert (own <= 1e-15).all()
    (gradient,) = torch.autograd.grad(own.sum(), x)
    torch.testing.assert_close(gradient, torch.zeros_like(x), atol=1e-12, rtol=0)


@pytest.mark.parametrize("tau", [0.1, 1.0, 10.0])
def test_rows_are_those_of_the_oracle(tau):
    rows = nn.DifferentiableKNN(3, tau=tau)(QUERIES, CANDIDATES, LABELS)
    assert rows.shape == (7, 3, 4)
    for query, row in zip(QUERIES.numpy(), rows.numpy(), strict=True):
        scores = [-float(((query - c) ** 2).sum()) for c in CANDIDATES.numpy()]
        expected = oracle.neuralsort(scores, tau)[:3] @ LABELS.numpy()
        np.testing.assert_allclose(row, expected, atol=1e-10)


def test_labels_may_be_integers():
    knn = nn.DifferentiableKNN(3)
    rows = knn(QUERIES, CANDIDATES, LABELS.long())
    torch.testing.assert_close(rows, knn(QUERIES, CANDIDATES, LABELS))


def test_the_loss_of_the_layer_is_the_loss_of_the_paper():
    knn = nn.DifferentiableKNN(3, tau=0.7)
    classes = torch.arange(7) % 4
    rows = knn(QUERIES, CANDIDATES, LABELS)
    by_rows = -rows.gather(-1, classes.view(-1, 1, 1).expand(-1, 3, 1)).mean()
    same = LABELS.argmax(-1) == classes.unsqueeze(-1)
    by_loss = ns.knn_loss(knn.neighbours(QUERIES, CANDIDATES), same, k=3)
    torch.testing.assert_close(by_rows, by_loss)


def test_hard_limit_is_the_nearest_candidates():
    order = soft_neighbours(QUERIES, CANDIDATES, k=4, tau=0.0).permutation()
    distances = (QUERIES.unsqueeze(1) - CANDIDATES).square().sum(-1)
    assert torch.equal(order, distances.argsort(-1)[:, :4])


def test_no_query_is_its_own_neighbour_under_the_mask():
    others = ~torch.eye(7, dtype=torch.bool)
    P = soft_neighbours(QUERIES, QUERIES, k=6, tau=5.0, mask=others)
    assert P.to_dense().diagonal(dim1=0, dim2=-1).eq(0).all()
    without = [
        soft_neighbours(QUERIES[i : i + 1], QUERIES[others[i]], k=6, tau=5.0) for i in range(7)
    ]
    for i, one in enumerate(without):
        torch.testing.assert_close(P.to_dense()[i][:, others[i]], one.to_dense()[0])


@pytest.mark.parametrize("absent", [float("nan"), float("inf"), 1e12])
def test_a_candidate_of_nobody_may_hold_anything(absent):
    knn, there = nn.DifferentiableKNN(3, tau=0.5), torch.arange(11) != 4
    candidates = CANDIDATES.clone()
    candidates[4] = absent
    candidates.requires_grad_()
    rows = knn(QUERIES, candidates, LABELS, mask=there.expand(7, 11))
    torch.testing.assert_close(rows, knn(QUERIES, CANDIDATES[there], LABELS[there]))
    rows.square().sum().backward()
    assert candidates.grad[4].eq(0).all()
    assert candidates.grad.isfinite().all()


def test_places_of_neighbours_that_are_not_there_hold_nothing():
    mask = torch.zeros(7, 11, dtype=torch.bool)
    mask[:, :2] = True
    rows = nn.DifferentiableKNN(3)(QUERIES, CANDIDATES, LABELS, mask=mask)
    torch.testing.assert_close(rows.sum(-1), torch.tensor([1.0, 1.0, 0.0]).double().expand(7, 3))


def test_chunks_change_nothing(monkeypatch):
    knn = nn.DifferentiableKNN(3)
    mask = torch.rand(7, 11, generator=GENERATOR) < 0.7
    masks = None, mask, mask[:1], mask[0]
    whole = [knn(QUERIES, CANDIDATES, LABELS, mask=one) for one in masks]
    monkeypatch.setattr(knn_room, "LARGEST", 25)
    for one, expected in zip(masks, whole, strict=True):
        torch.testing.assert_close(knn(QUERIES, CANDIDATES, LABELS, mask=one), expected)
    assert knn(QUERIES[:0], CANDIDATES, LABELS).shape == (0, 3, 4)


class Largest(TorchDispatchMode):
    """Watches for the largest tensor that is made."""

    numel = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        out = function(*args, **(kwargs or {}))
        sizes = [x.numel() for x in tree_leaves(out) if isinstance(x, torch.Tensor)]
        self.numel = max([self.numel, *sizes])
        return out


@pytest.mark.parametrize("mask", [None, torch.arange(40) != 3])
@pytest.mark.parametrize(("d", "what"), [(500, "features"), (3, "rows")])
def test_no_tensor_of_queries_by_candidates_by_features_or_rows(d, what, mask):
    q, n = 6, 40
    points = torch.randn(q, d, requires_grad=True), torch.randn(n, d, requires_grad=True)
    with Largest() as seen:
        nn.DifferentiableKNN(2)(*points, torch.eye(n), mask=mask).sum().backward()
    assert seen.numel < q * n * {"features": d, "rows": n}[what] / 2


def test_only_k_rows_are_computed():
    assert soft_neighbours(QUERIES, CANDIDATES, k=2).shape == (7, 2, 11)
    assert soft_neighbours(QUERIES, CANDIDATES, k=2, samples=5).shape == (5, 7, 2, 11)


def test_samples_have_noise_of_their_own_and_average_to_placket_luce():
    generator = torch.Generator().manual_seed(1)
    draws = soft_neighbours(
        QUERIES[:1].expand(2, 3), CANDIDATES, k=1, tau=0.0, samples=20_000, generator=generator
    ).to_dense()
    assert not torch.equal(draws[:, 0], draws[:, 1])
    share = draws.mean(0)[:, 0]
    expected = (-squared_distances(QUERIES[:1], CANDIDATES)).softmax(-1).expand(2, 11)
    torch.testing.assert_close(share, expected, atol=0.015, rtol=0)


def test_samples_repeat_with_their_generator():
    draw = functools.partial(soft_neighbours, QUERIES, CANDIDATES, k=2, samples=3)
    one, two = (draw(generator=torch.Generator().manual_seed(5)).to_dense() for _ in range(2))
    assert torch.equal(one, two)


def test_gradients_flow_to_both():
    knn = nn.DifferentiableKNN(2, tau=0.9)
    points = QUERIES[:3].clone().requires_grad_(), CANDIDATES[:5].clone().requires_grad_()
    assert torch.autograd.gradcheck(lambda q, c: knn(q, c, LABELS[:5]), points)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_computes_long(dtype):
    short = squared_distances(QUERIES.to(dtype), CANDIDATES.to(dtype))
    long = squared_distances(QUERIES.to(dtype).double(), CANDIDATES.to(dtype).double())
    assert short.dtype is dtype
    torch.testing.assert_close(short.double(), long, rtol=2**-7, atol=1e-3)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_sorts_distances_that_it_could_not_hold(dtype):
    generator = torch.Generator().manual_seed(0)
    points = (12 * torch.randn(64, 512, generator=generator)).to(dtype)
    found = soft_neighbours(points, points, k=5, tau=100.0).permutation()
    expected = soft_neighbours(points.double(), points.double(), k=5, tau=100.0).permutation()
    assert torch.equal(found, expected)


@pytest.mark.parametrize(
    ("call", "kind", "message"),
    [
        (lambda: soft_neighbours(QUERIES.long(), CANDIDATES, k=1), TypeError, r"`queries`.*int64"),
        (lambda: soft_neighbours(QUERIES[0], CANDIDATES, k=1), ValueError, r"\(\.\.\., m, d\).*3"),
        (
            lambda: soft_neighbours(QUERIES, CANDIDATES[:, :2], k=1),
            ValueError,
            r"one space, got 3 and 2 features.*same network",
        ),
        (lambda: soft_neighbours(QUERIES, CANDIDATES, k=12), ValueError, r"`k`.*12"),
        (
            lambda: nn.DifferentiableKNN(1)(QUERIES, CANDIDATES, LABELS.argmax(-1)),
            ValueError,
            r"labels \(n, c\), got \(7, 3\), \(11, 3\) and \(11,\).*one_hot",
        ),
        (lambda: soft_neighbours(QUERIES, CANDIDATES, k=0), ValueError, r"at least 1, got 0"),
        (lambda: soft_neighbours(QUERIES, CANDIDATES, k=1, samples=0), ValueError, r"`samples`"),
        (
            lambda: soft_neighbours(QUERIES, CANDIDATES, k=1, mask=torch.ones(7, 11)),
            TypeError,
            r"mask.*bool",
        ),
    ],
)
def test_messages(call, kind, message):
    with pytest.raises(kind, match=message):
        call()


def test_labels_that_are_no_numbers_concern_only_those_who_may_ask():
    queries, points, labels = torch.randn(3, 2), torch.randn(6, 2), torch.rand(6, 4)
    mask = torch.ones(3, 6, dtype=torch.bool)
    mask[:2, 1] = False  # the third query may ask for the point without a label
    knn = ns.nn.DifferentiableKNN(2, tau=0.5)
    expected = knn(queries, points, labels, mask=mask)
    labels[1] = float("nan")
    found = knn(queries, points, labels, mask=mask)
    assert torch.equal(found[:2], expected[:2])
    assert found[2].isnan().all()
