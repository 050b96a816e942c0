"""The bounds of docs/numerics.md, each at its worst case."""

import functools
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import neuralsort.torch as ns
from neuralsort._interpolation import (
    exponential_error,
    fewest_nodes,
    neuralsort_error,
    softsort_error,
)
from neuralsort.torch.relaxations.engine import bands
from neuralsort.torch.relaxations.engine.bands import REACH, TOLERANCE
from neuralsort.torch.relaxations.engine.between import all_falls, fall_between
from neuralsort.torch.relaxations.engine.chebyshev import chebyshev
from neuralsort.torch.relaxations.engine.queries import PRODUCT
from neuralsort.torch.relaxations.engine.tiles import SMALLEST, Tiles
from neuralsort.torch.relaxations.neuralsort import NeuralSortBands
from neuralsort.torch.relaxations.ordering import WALL
from neuralsort.torch.relaxations.softsort import SoftSortBands

POINTS = torch.linspace(-1, 1, 401, dtype=torch.float64)
ROUNDING = 1e-13  # of interpolation itself
SQUARED = functools.partial(ns.softsort, power=2.0)


def interpolation_error(function, nodes: int) -> float:
    """The largest error of interpolating a function at Chebyshev nodes."""
    node, matrix = chebyshev(POINTS, nodes)
    return (matrix @ function(node) - function(POINTS)).abs().max().item()


# -- interpolation ---------------------------------------------------------------------------------


@pytest.mark.parametrize("nodes", [8, 16, 24, 32, 44])
@pytest.mark.parametrize("a", [0.5, 3.0, 6.0, 12.0, 22.0])
def test_exponentials_err_by_no_more_than_their_bound(nodes, a):
    error = interpolation_error(lambda t: (a * t).exp(), nodes)
    assert error <= exponential_error(a, nodes) + ROUNDING * math.exp(a)


@pytest.mark.parametrize("nodes", [16, 24, 32])
def test_the_bound_of_exponentials_is_not_idle(nodes):
    """Within a factor of 10 where it matters, around a = nodes / 2."""
    a = nodes / 2
    error = interpolation_error(lambda t: (a * t).exp(), nodes)
    assert exponential_error(a, nodes) < 10 * error


@pytest.mark.parametrize("nodes", [8, 16, 24, 32, 44])
def test_no_column_of_neuralsort_errs_by_more_than_the_bound(nodes):
    """Over every way to spend |2 r d|: in the block, beside it, beyond it."""
    bound = neuralsort_error(nodes, REACH)
    for inside in np.linspace(0, REACH / 2, 7):
        for beside in np.linspace(0, REACH - inside, 7):
            for beyond in np.linspace(0, 2 * nodes, 65):
                error = exponential_error(inside + beside + beyond, nodes)
                assert error * math.exp(-beside - 2 * beyond) <= bound * (1 + 1e-9)


@pytest.mark.parametrize("nodes", [8, 16, 24, 32])
@pytest.mark.parametrize("centre", [0.0, 0.7, 1.5, 4.0])
def test_no_column_of_softsort_errs_by_more_than_the_bound(nodes, centre):
    half = REACH / 4
    error = interpolation_error(lambda t: (-((half * t - centre) ** 2)).exp(), nodes)
    assert error <= softsort_error(nodes, half) + ROUNDING


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("bands", [NeuralSortBands, SoftSortBands])
@pytest.mark.parametrize("n", [600, 10**4, 10**6, 10**8])
def test_all_columns_together_err_by_no_more_than_the_tolerance(dtype, bands, n):
    bound, width = bands.error
    nodes = fewest_nodes(bound, width, TOLERANCE[dtype] / n)
    assert n * bound(nodes, width) <= TOLERANCE[dtype]
    assert nodes == 8 or n * bound(nodes - 4, width) > TOLERANCE[dtype]


@pytest.mark.parametrize("side", ["above", "below"])
@pytest.mark.parametrize("spent", [3.0, 6.0, 9.0, 12.0, 16.0, 20.0])
def test_a_crowd_at_the_most_harmful_distance(side, spent):
    """One block of rows that is as wide as allowed, and a crowd of ties beyond its neighbours."""
    size, crowd = 256, 20_000
    block = np.full(size, REACH / 2 / size / (size // 2))  # half of the reach on either side
    beside = np.full(size // 2, REACH / 2 / size / (size // 2))
    beyond = np.array([max(spent - REACH, 0.0) / size])
    gaps = np.concatenate([block, beside, beyond, np.zeros(crowd)])
    scores = -np.concatenate([[0.0], np.cumsum(gaps)])
    if side == "above":
        scores = -scores
    scores = torch.from_numpy(scores)
    many = (scores == scores[-1]).double()
    for dtype in TOLERANCE:
        soft = ns.neuralsort(scores.to(dtype), tau=1.0) @ many.to(dtype)
        rows = torch.arange(0, len(scores), 97)
        ordered = torch.sort(scores, descending=True, stable=True)
        open_gaps = torch.cat([-ordered.values.diff(), torch.tensor([math.inf]).double()])
        for i in rows.tolist():
            weights = all_falls(open_gaps, i, i + 1)[0].neg().exp()
            expected = (weights * many[ordered.indices]).sum() / weights.sum()
            bound = TOLERANCE[dtype] + 64 * torch.finfo(dtype).eps
            assert abs(soft[i].item() - expected.item()) <= bound


@pytest.mark.parametrize("nodes", [24, 32, 44])
@pytest.mark.parametrize(("a", "most"), [(REACH / 2, 32), (REACH, 5_000)])
def test_interpolation_multiplies_roundings_by_no_more(nodes, a, most):
    """Nodes may weigh up to exp(2 a) times as much as the row they are interpolated for."""
    node, matrix = chebyshev(POINTS, nodes)
    heavier = (a * (node - POINTS.unsqueeze(-1))).exp()
    assert (matrix.abs() * heavier).sum(-1).max() < most


@pytest.mark.parametrize("crowd", [2_688, 100_992])
def test_a_crowd_that_ends_in_the_middle_of_a_block(crowd):
    """The mass of a row changes from one end of the block to the other by exp(reach)."""
    size = 256
    assert crowd % size == size // 2
    scores = torch.zeros(crowd + size // 2, dtype=torch.float64)
    scores[:crowd] = REACH / 2 / size
    many = (scores > 0).double()
    open_gaps = torch.cat([-scores.diff(), torch.tensor([math.inf]).double()])
    for dtype in TOLERANCE:
        soft = ns.neuralsort(scores.to(dtype), tau=1.0) @ many.to(dtype)
        for i in range(crowd - size // 2, len(scores), 17):
            weights = all_falls(open_gaps, i, i + 1)[0].neg().exp()
            expected = (weights * many).sum() / weights.sum()
            bound = TOLERANCE[dtype] + 64 * torch.finfo(dtype).eps
            assert abs(soft[i].item() - expected.item()) <= bound


def test_rows_beside_a_crowd_do_not_round_like_it():
    """A crowd at the reach, that weighs as much as the block at its far end."""
    size, crowd = 64, 64 * 4001
    scores = torch.zeros(crowd + size, dtype=torch.float64)
    scores[:crowd], scores[crowd : crowd + size // 2] = REACH / size, REACH / 2 / size
    many = (scores == scores[0]).double()
    open_gaps = torch.cat([-scores.diff(), torch.tensor([math.inf]).double()])
    for dtype, bound in {torch.float32: 1e-6, torch.float64: 1e-12}.items():
        soft = ns.neuralsort(scores.to(dtype), tau=1.0) @ many.to(dtype)
        for i in range(crowd, len(scores), 5):
            weights = all_falls(open_gaps, i, i + 1)[0].neg().exp()
            expected = (weights * many).sum() / weights.sum()
            assert abs(soft[i].item() - expected.item()) <= bound


@pytest.mark.parametrize("crowd", [300_000, pytest.param(3_000_000, marks=pytest.mark.long)])
def test_rows_beside_a_crowd_do_not_round_like_it_in_softsort(crowd):
    size, distance = 256, 0.8
    near = torch.linspace(3.0, 0.0, size)
    scores = torch.cat([torch.full((crowd,), 3.0 + distance), near])
    soft = ns.softsort(scores, tau=1.0, power=2) @ (scores == scores[0]).float()
    own = near.double()
    mass = torch.exp(-((own.unsqueeze(-1) - own) ** 2)).sum(-1)
    share = crowd * torch.exp(-((own - scores[0].double()) ** 2))
    # Squared distances of 16 round by 1e-6, for the whole crowd alike.
    torch.testing.assert_close(soft[crowd:].double(), share / (share + mass), rtol=0.0, atol=4e-6)


# -- sums that do not cancel -----------------------------------------------------------------------

gap = st.one_of(
    st.just(0.0),
    st.floats(1e-12, 1e-3),
    st.floats(1e-3, 50.0),
    st.just(WALL),
)


def as_lists(gaps: list[float], lists: int) -> torch.Tensor:
    """The same gaps in a few lists, shifted, each ending in a wall."""
    rows = [torch.tensor(gaps, dtype=torch.float64).roll(k) for k in range(lists)]
    out = torch.stack(rows)
    out[:, -1] = WALL
    return out


@settings(max_examples=60, deadline=None)
@given(st.lists(gap, min_size=17, max_size=300), st.integers(1, 3), st.floats(0.5, 40.0))
def test_windows_leave_out_nothing_within_the_threshold(gaps, lists, within):
    """Against the falls of all pairs: every item within the threshold is in the window."""
    g = as_lists(gaps, lists)
    n = g.shape[-1]
    tiles = Tiles(g, within)
    falls = all_falls(g)
    distance = torch.stack([(all_falls_plain(row)) for row in g])
    for level in range(tiles.levels):
        size, per_list = SMALLEST << level, tiles.whole >> level
        count = -(-n // size)
        tile = torch.cat([b * per_list + torch.arange(count) for b in range(lists)])
        for ranked, away in ((True, falls), (False, distance)):
            left, right = tiles.reach(torch.full_like(tile, level), tile, within, ranked)
            for k, t in enumerate(tile.tolist()):
                b, t = divmod(t, per_list)
                begin, end = max(0, (t - left[k].item()) * size), (t + 1 + right[k].item()) * size
                rows = away[b, t * size : (t + 1) * size]
                outside = torch.cat([rows[:, :begin], rows[:, end:]], 1)
                assert not (outside < within * (1 - 1e-9)).any()


def all_falls_plain(gaps: torch.Tensor) -> torch.Tensor:
    """Distances between all pairs, outward from each."""
    n = len(gaps)
    out = torch.zeros(n, n, dtype=gaps.dtype)
    for i in range(n):
        out[i, i + 1 :] = gaps[i:-1].cumsum(0)
        out[i, :i] = gaps[:i].flip(0).cumsum(0).flip(0)
    return out


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.one_of(gap, st.just(math.inf), st.just(1e30)), min_size=2, max_size=70),
    st.randoms(use_true_random=False),
)
def test_falls_between_are_exact_beside_gaps_of_any_width(gaps, random):
    g = torch.tensor(gaps, dtype=torch.float64)
    n = len(g)
    place = torch.tensor([random.randrange(n) for _ in range(n)])
    exact = []
    for i, j in enumerate(place.tolist()):
        between = gaps[i:j] if j > i else gaps[j:i][::-1]
        exact.append(math.fsum((2 * k + 1) * x for k, x in enumerate(between)))
    expected = torch.tensor(exact, dtype=torch.float64)
    assert torch.allclose(fall_between(g, place), expected, rtol=1e-14, atol=0)
    assert torch.allclose(all_falls(g).gather(-1, place[:, None])[:, 0], expected, rtol=1e-13)


# -- peaks -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [2, 3, 20, 40, 300])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_no_item_outweighs_the_one_that_belongs_there(n, dtype):
    """Near ties, where logits differ by less than they round."""
    for _ in range(20):
        base = 1e4 * torch.randn(1, dtype=torch.float64)
        scores = base * (1 + 2e-16 * torch.randint(0, 9, (n,), dtype=torch.float64))
        scores = scores + (torch.rand(n) < 0.2) * torch.randn(n, dtype=torch.float64) * 5e3
        for tau in (0.1, 1.0, 30.0):
            P = ns.neuralsort(scores.to(dtype), tau=tau)
            matrix = P.to_dense()
            own = matrix.gather(-1, P.permutation().unsqueeze(-1))
            assert (matrix <= own).all()


# -- what is kept between visits -------------------------------------------------------------------


@pytest.mark.parametrize(
    "relax", [ns.neuralsort, ns.softsort, SQUARED], ids=["neuralsort", "softsort", "squared"]
)
@pytest.mark.parametrize("kept", [0, 50_000])
def test_what_is_kept_changes_nothing(monkeypatch, relax, kept):
    """Neither weights that are kept, all or some, nor those that are made again."""
    generator = torch.Generator().manual_seed(0)
    scores, payload, upstream = torch.randn(3, 2, 1500, generator=generator)
    tau = torch.tensor([[0.1], [30.0]])

    def answers():
        inputs = [x.clone().requires_grad_() for x in (scores, tau, payload)]
        P = relax(inputs[0], tau=inputs[1])
        first = P.sort(inputs[2])
        gradients = torch.autograd.grad(first, inputs, upstream)
        return first, *gradients, P.rank(), P.entropy(), P.sort(inputs[2])

    expected = answers()
    monkeypatch.setattr(bands, "KEPT", kept)
    for got, wanted in zip(answers(), expected, strict=True):
        torch.testing.assert_close(got, wanted, rtol=0, atol=0)


def test_no_more_is_kept_than_there_is_room_for(monkeypatch):
    monkeypatch.setattr(bands, "KEPT", 50_000)
    gaps = torch.full((2, 3000), 0.01, dtype=torch.float64)
    gaps[:, -1] = WALL
    made = NeuralSortBands(gaps, torch.float32)
    PRODUCT.value(made, torch.randn(1, 2, 3000))
    batches = [one for level in made._batches.values() for part in level for one in part]
    entries = [one.made.entries for one in batches if one.made is not None]
    assert sum(entries) <= 50_000
    assert all(one.norm is not None for one in batches)
