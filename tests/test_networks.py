"""Sorting networks: they sort, by layers that are what the literature says they are."""

import itertools
from collections.abc import Sequence

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck
from torch.fx.experimental.proxy_tensor import make_fx

import neuralsort.torch as ns
from neuralsort.torch.relaxations.layers import bitonic, compare, mix, next_power, odd_even
from neuralsort.torch.relaxations.networks import KINDS, SWAPS, Network
from neuralsort.torch.relaxations.ordering import Ordered
from tests import oracle
from tests.conftest import assert_near
from tests.portions import some_of
from tests.requests import REQUESTS
from tests.test_gradients import inputs

each_kind = pytest.mark.parametrize("kind", KINDS)
each_swap = pytest.mark.parametrize("swap", SWAPS)
LAYERS = {"odd_even": odd_even, "bitonic": bitonic}


@each_kind
@pytest.mark.parametrize("n", range(2, 12))
def test_zeros_and_ones_are_sorted_whatever_their_order(kind, n):
    """By the 0-1 principle, a network that sorts all of these sorts everything."""
    lists = torch.tensor(list(itertools.product((0.0, 1.0), repeat=n)))
    P = ns.sorting_network(lists, tau=1e-9, kind=kind, swap="logistic")
    assert torch.equal(P.sort(lists), lists.sort(-1, descending=True).values)


def compared(kind: str, n: int, mask: Tensor | None = None) -> list[tuple[int, int]]:
    """The pairs of items that a network compares; the first shall get the smaller value."""
    network = Network(kind, "logistic", Ordered(torch.zeros(n), 1.0, mask))
    item = torch.full((network.width,), -1)
    item[network.live] = torch.arange(int(network.count))
    pairs = []
    for layer in network.layers:
        if int(network.count) <= layer.longer:
            continue
        a, b = layer.split(item, -1)
        directions = layer.directions(network.spare, torch.float64)
        falls = torch.zeros_like(a, dtype=torch.bool) if directions is None else directions < 0
        a, b = torch.where(falls, b, a), torch.where(falls, a, b)
        both = (a >= 0) & (b >= 0)
        pairs += zip(a[both].tolist(), b[both].tolist(), strict=True)
    return pairs


@each_kind
@pytest.mark.parametrize("n", range(1, 21))
def test_networks_sort_by_the_zero_one_principle(kind, n):
    assert oracle.unsorted_zeros_and_ones(n, compared(kind, n)) == 0
    absent_last = torch.arange(32) < n  # the same items in a longer, padded list
    assert compared(kind, 32, absent_last) == compared(kind, n)


@pytest.mark.parametrize("n", [2, 4, 8, 16])
def test_powers_of_two_have_the_textbook_bitonic_network(n):
    textbook = []
    for size in (2**i for i in range(1, n.bit_length())):
        for distance in (size // 2**i for i in range(1, size.bit_length())):
            for a in range(n):
                if a < a ^ distance:
                    pair = (a, a ^ distance)
                    textbook.append(pair if a & size == 0 else pair[::-1])
    assert compared("bitonic", n) == textbook


FEW_LENGTHS = [*range(1, 36), 47, 63, 64, 65, 96, 127, 128, 129, 192, 257, 333, 511, 600, 1025]
LENGTHS = [*range(1, 201), 209, 222, 250, 270, 300, 333, 350, 390, 410, 450, 511, 513, 555, 600]
LENGTHS += [650, 700, 777, 900, 1025, 1100]


@each_kind
@pytest.mark.parametrize(
    "lengths", [FEW_LENGTHS, pytest.param(LENGTHS, marks=pytest.mark.long)], ids=["few", "many"]
)
def test_networks_sort_permutations_of_every_length(kind, lengths):
    for n in lengths:
        lists = torch.stack([torch.randperm(n) for _ in range(2)]).double()
        found = ns.sorting_network(lists, tau=1e-12, kind=kind).sort(lists)
        assert_near(found, lists.sort(-1, descending=True).values, 1e-6)


@each_kind
def test_padded_lists_are_sorted_wherever_their_items_are(kind):
    count = torch.arange(201)
    lists = torch.stack([torch.randperm(200) for _ in count]).double()
    mask = torch.stack([torch.randperm(200) < m for m in count])
    P = ns.sorting_network(lists, tau=1e-12, kind=kind, mask=mask)
    sorted_ = lists.masked_fill(~mask, -1).sort(-1, descending=True).values
    assert_near(P.sort(lists.masked_fill(~mask, -1)), sorted_, 1e-6)


@each_kind
@each_swap
@pytest.mark.parametrize("n", [2, 3, 4, 5, 8, 9, 12, 16, 22])
def test_weights_are_those_of_the_comparators_one_by_one(kind, swap, n):
    scores = torch.randn(3, n, dtype=torch.float64)
    P = ns.sorting_network(scores, tau=0.4, kind=kind, swap=swap)
    expected = [oracle.sorting_network(one.tolist(), 0.4, kind, swap) for one in scores]
    expected = torch.from_numpy(np.stack(expected))
    assert_near(P.to_dense(), expected, 1e-13)
    assert_near(P @ torch.eye(n, dtype=torch.float64), expected, 1e-13)
    assert_near(P.mT @ torch.eye(n, dtype=torch.float64), expected.mT, 1e-13)
    assert_near(P.rank(), torch.arange(1.0, n + 1, dtype=torch.float64) @ expected, 1e-13)


DERIVED = [
    (swap, request_) for swap in SWAPS for request_ in ("matmul", "transpose", "to_dense", "rank")
]


@each_kind
@pytest.mark.parametrize(
    ("swap", "request_"),
    some_of(DERIVED, *(one for one in DERIVED if "cauchy" in one or one[1] in ("matmul", "rank"))),
)
def test_derivatives_for_every_swap(kind, swap, request_, fast_mode):
    def ask(s: Tensor, x: Tensor, tau: Tensor) -> Tensor:
        return REQUESTS[request_](ns.sorting_network(s, tau=tau, kind=kind, swap=swap), x)

    assert gradcheck(ask, inputs(1, 5))
    assert gradgradcheck(ask, inputs(2, 4), fast_mode=fast_mode)


@each_kind
@each_swap
def test_gradients_at_ties_are_those_nearby(kind, swap):
    """The swap functions are smooth where two items meet."""
    scores = torch.tensor([1.0, 2.0, 1.0, 0.5, 2.0], dtype=torch.float64, requires_grad=True)
    assert gradcheck(lambda s: ns.sorting_network(s, tau=0.7, kind=kind, swap=swap).rank(), scores)


@each_kind
@pytest.mark.parametrize("swap", ["cauchy", "reciprocal", "optimal"])
def test_no_sorted_value_falls_when_a_score_rises(kind, swap):
    scores = torch.randn(200, 6, dtype=torch.float64)

    def soft(s: Tensor) -> Tensor:
        return ns.sorting_network(s, tau=0.5, kind=kind, swap=swap).sort(s)

    jacobian = torch.vmap(torch.func.jacrev(soft))(scores)
    assert jacobian.min() >= -1e-12


def test_with_logistic_swaps_a_sorted_value_may_fall():
    pair = torch.tensor([0.0, 4.0], dtype=torch.float64)

    def soft(s: Tensor) -> Tensor:
        return ns.sorting_network(s, tau=1.0, swap="logistic").sort(s)

    assert torch.func.jacrev(soft)(pair).min() < 0


@each_swap
@pytest.mark.parametrize("v", [-1e300, -30.0, -0.5, -0.25, 0.0, 0.25, 0.5, 30.0, 1e300])
def test_swap_functions(swap, v):
    value = SWAPS[swap].share(torch.tensor(v, dtype=torch.float64)).item()
    assert 0 <= value <= 1
    np.testing.assert_allclose(value, oracle.SWAPS[swap](np.float64(v)), rtol=1e-12, atol=1e-16)


@each_swap
def test_slopes_of_swap_functions(swap):
    v = torch.tensor([-1e300, -100, -38, -30, -0.5, -0.25, 0, 0.25, 0.5, 30, 38, 100, 1e300])
    v = v.double().nan_to_num(posinf=1e300, neginf=-1e300).requires_grad_()
    share = SWAPS[swap].share(v)
    (wanted,) = torch.autograd.grad(share.sum(), v)
    slope = SWAPS[swap].slope(v.detach(), share.detach())
    np.testing.assert_allclose(slope, wanted, rtol=1e-12, atol=1e-30)


def test_gradients_are_those_of_rounded_shares():
    """Where a share has rounded to 1, the slope of what it would be must not count."""
    x = torch.tensor([39.0, -7.0, -54.0, 14.0], dtype=torch.float64, requires_grad=True)

    def gradient(again: bool) -> Tensor:
        P = ns.sorting_network(x, tau=1.0, swap="logistic")
        loss = P.log_prob(torch.arange(4)).sum()
        return torch.autograd.grad(loss, x, create_graph=again)[0]

    assert_near(gradient(False), gradient(True), 1e-12)


@each_swap
def test_infinite_scores_leave_the_others_as_they_are(swap):
    near = torch.tensor([0.0, 0.3], dtype=torch.float64)
    alone = ns.sorting_network(near, tau=0.3, swap=swap).to_dense()
    inf = torch.tensor([torch.inf], dtype=torch.float64)
    for place in range(3):
        one = torch.cat([near[:place], -inf, near[place:]])
        matrix = ns.sorting_network(one, tau=0.3, swap=swap).to_dense()
        assert_near(matrix[:2, one > -torch.inf], alone, 1e-12)


def test_digits_behind_a_whole_swap_are_kept():
    """Gradients of one list that differ by 1e20: as by torch's own operations."""
    y = torch.tensor([1e20, 2e20, 1.0, 2.0], dtype=torch.float64)
    x = torch.tensor([100.0, 100.5, 0.0, 0.5], dtype=torch.float64, requires_grad=True)
    weights = torch.tensor([1.0, 2, 3, 5], dtype=torch.float64)

    def gradient(again: bool) -> Tensor:
        P = ns.sorting_network(x, tau=1.0, kind="bitonic", swap="logistic")
        return torch.autograd.grad(((P @ y) * weights).sum(), x, create_graph=again)[0]

    assert_near(gradient(False)[2:], gradient(True)[2:], 1e-9)


@each_swap
def test_jacobians_of_matrices_in_batches(swap):
    s = torch.randn(5, dtype=torch.float64)

    def matrix(s: Tensor) -> Tensor:
        return ns.sorting_network(s, kind="bitonic", swap=swap).to_dense()

    jacobian = torch.autograd.functional.jacobian
    assert_near(jacobian(matrix, s, vectorize=True), jacobian(matrix, s), 1e-12)


def _slopes(outputs: list[Tensor], inputs: list[Tensor], grads: list[Tensor]) -> list[Tensor]:
    """Gradients of outputs, by either way there is to them, and gradients of these."""
    once = torch.autograd.grad(outputs, inputs, grads, retain_graph=True)
    again = torch.autograd.grad(outputs, inputs, grads, create_graph=True)
    cost = sum(one.sin().sum() for one in again)
    twice = torch.autograd.grad(
        cost, [*inputs, *grads], retain_graph=True, allow_unused=True, materialize_grads=True
    )
    return [*once, *again, *twice]


def assert_all_near(found: Sequence[Tensor], wanted: Sequence[Tensor]) -> None:
    for one, other in zip(found, wanted, strict=True):
        assert_near(one, other, 1e-12)


@each_kind
@each_swap
@pytest.mark.parametrize("n", [2, 3, 5, 8, 11])
def test_layers_compared_in_few_passes(kind, swap, n):
    """Against the operations one by one: values, gradients and their gradients."""
    layers = LAYERS[kind](n)
    width = next_power(n) if kind == "bitonic" else n
    spare = width - n
    live = torch.arange(width) >= spare
    start = torch.randn(2, width, dtype=torch.float64, requires_grad=True)

    x, wanted = start, []
    for layer in layers:
        a, b = layer.split(x, -1)
        directions = layer.directions(torch.tensor([spare]), x.dtype)
        wrong = a - b if directions is None else (a - b) * directions
        share = SWAPS[swap].share(wrong) * torch.logical_and(*layer.split(live, -1))
        x = layer.join(x, torch.lerp(a, b, share), torch.lerp(b, a, share))
        wanted.append(share)
    found = compare(start, layers, SWAPS[swap], spare)
    assert found is not None
    assert_all_near(found, wanted)

    for asked in ({0}, {len(layers) - 1}, {len(layers) // 2}, set(range(len(layers)))):
        grads = [torch.randn_like(found[i]).requires_grad_() for i in asked]
        slopes = [_slopes([all_[i] for i in asked], [start], grads) for all_ in (found, wanted)]
        assert_all_near(*slopes)


@each_kind
@pytest.mark.parametrize("n", [2, 5, 8])
@pytest.mark.parametrize("d", [1, 3])
def test_layers_mixed_in_few_passes(kind, n, d):
    layers = LAYERS[kind](n)
    x = torch.randn(2, layers[0].stop + (kind == "odd_even") * (n % 2), d, dtype=torch.float64)
    shares = [torch.rand_like(layer.split(x[..., 0], -1)[0]).requires_grad_() for layer in layers]
    x.requires_grad_()
    wanted = x
    for layer, share in zip(layers, shares, strict=True):
        a, b = layer.split(wanted, -2)
        share = share.unsqueeze(-1)
        wanted = layer.join(wanted, torch.lerp(a, b, share), torch.lerp(b, a, share), -2)
    found = mix(x, shares, layers)
    assert_near(found, wanted, 1e-12)
    grad = torch.randn_like(found).requires_grad_()
    for asked in ([x], [shares[0]], shares, [x, *shares]):
        assert_all_near(*(_slopes([one], asked, [grad]) for one in (found, wanted)))


@each_kind
@pytest.mark.parametrize("n", [1, 5])
@pytest.mark.parametrize("given", ["number", "temperatures", "mask"])
def test_gradients_are_the_same_where_they_are_differentiated(kind, n, given):
    """With a mask or temperatures, the shares of a layer are made of those before."""
    scores, x = (torch.randn(2, n, dtype=torch.float64, requires_grad=True) for _ in range(2))
    tau = torch.tensor([[0.5], [2.0]], dtype=torch.float64) if given == "temperatures" else 0.7
    mask = torch.arange(n) < torch.tensor([[n], [max(n - 2, 1)]]) if given == "mask" else None
    weights = torch.randn(2, n, dtype=torch.float64)

    def cost(scores: Tensor, x: Tensor) -> Tensor:
        P = ns.sorting_network(scores, tau=tau, mask=mask, kind=kind)
        return (P.sort(x).square() + P.sort(scores * x) * weights).sum()

    once = torch.autograd.grad(cost(scores, x), (scores, x))
    again = torch.autograd.grad(cost(scores, x), (scores, x), create_graph=True)
    assert_all_near(again, once)
    assert gradgradcheck(cost, (scores, x))


@each_kind
@each_swap
def test_large_payloads_beside_infinite_scores_have_gradients(kind, swap):
    def slope(size: float) -> Tensor:
        scores = torch.tensor([0.3, -torch.inf, 2.0], requires_grad=True)
        P = ns.sorting_network(scores, tau=0.5, kind=kind, swap=swap)
        return torch.autograd.grad(P.sort(torch.tensor([1.0, 5.0, 2.0]) * size)[0], scores)[0]

    assert_near(slope(1e12) / 1e12, slope(1.0), 1e-5)


@each_kind
@pytest.mark.parametrize("mask", [None, torch.arange(5) < 4], ids=["whole", "mask"])
def test_tangents_pass_products(kind, mask):
    scores, x, *tangents = torch.randn(4, 5, dtype=torch.float64)

    def soft_sort(scores: Tensor, x: Tensor) -> Tensor:
        return ns.sorting_network(scores, tau=0.7, mask=mask, kind=kind).sort(x)

    _, found = torch.func.jvp(soft_sort, (scores, x), tuple(tangents))
    jacobians = torch.autograd.functional.jacobian(soft_sort, (scores, x))
    assert_near(found, sum(j @ t for j, t in zip(jacobians, tangents, strict=True)), 1e-12)


@each_kind
def test_graphs_that_are_written_down_have_gradients(kind):
    def soft_sort(scores: Tensor) -> Tensor:
        return ns.sorting_network(scores, tau=0.7, kind=kind).sort(scores)

    scores = torch.randn(5, dtype=torch.float64)
    graph = make_fx(soft_sort)(scores)
    jacobian = torch.autograd.functional.jacobian
    assert_near(jacobian(graph, scores), jacobian(soft_sort, scores), 1e-12)


def test_products_of_long_lists_do_not_take_the_matrix():
    """8192 items: the matrix would have 67 million entries, and 105 layers of it be kept."""
    scores = torch.randn(8192, requires_grad=True)
    sizes = []

    def pack(x: Tensor) -> Tensor:
        sizes.append(x.numel())
        return x

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda x: x):
        soft = ns.sorting_network(scores, tau=1e-6, kind="bitonic").sort(scores)
    assert max(sizes) <= 2 * 8192
    assert_near(soft, scores.sort(descending=True).values, 1e-3)
    assert torch.autograd.grad(soft.sum(), scores)[0].isfinite().all()


@each_kind
def test_infinite_items_pass_through_whole(kind):
    """In any place, beside finite ones, among ties of their own."""
    inf = float("inf")
    values = torch.tensor([inf, inf, 1.0, 0.5, -inf], dtype=torch.float64)
    for order in itertools.permutations(range(5)):
        scores = values[list(order)]
        for swap in SWAPS:
            P = ns.sorting_network(scores, tau=0.1, kind=kind, swap=swap)
            matrix = P.to_dense()
            assert matrix.isfinite().all()
            assert_near(matrix[:2, scores == inf].sum(-1), torch.ones(2), 1e-12)
            assert_near(matrix[4, scores == -inf], torch.ones(1), 1e-12)
            assert P.sort(scores)[2:4].isfinite().all()


@each_kind
@each_swap
@pytest.mark.parametrize("tau", [1e-3, 1e30, 1e37, 1e38])
def test_payloads_that_differ_by_more_than_a_number_can_hold(kind, swap, tau):
    """float32 near its largest: values and gradients are those of float64."""
    scores = (2 * torch.rand(6) - 1) * 3.3e38

    def ask(scores: Tensor, tau: Tensor) -> list[Tensor]:
        scores, tau = scores.requires_grad_(), tau.requires_grad_()
        first = ns.sorting_network(scores, tau=tau, kind=kind, swap=swap).sort(scores)[0]
        return [first, *torch.autograd.grad(first, (scores, tau))]

    found = ask(scores.clone(), torch.tensor(tau))
    wanted = ask(scores.double(), torch.tensor(tau).double())
    for one, other in zip(found[:2], wanted[:2], strict=True):
        assert_near(one, other, 1e-5)
    assert found[2].isfinite()


def test_the_optimal_swap_has_one_slope_where_its_pieces_meet():
    """diffsort's own has two at exactly a quarter, of which autograd takes the sum."""
    v = torch.tensor([-0.25, 0.0, 0.25], dtype=torch.float64, requires_grad=True)
    (slope,) = torch.autograd.grad(SWAPS["optimal"].share(v).sum(), v)
    assert slope.tolist() == [1.0, 1.0, 1.0]


# -- error-free swaps ------------------------------------------------------------------------------


def error_free(scores: Tensor, tau: float, kind: str) -> Tensor:
    """Comparators one by one: the hard values, and the derivatives of the optimal swap."""
    n = len(scores)
    x, rows = list(scores), list(torch.eye(n, dtype=scores.dtype))
    for a, b in oracle.comparators(n, kind):
        share = SWAPS["optimal"].share((x[a] - x[b]) / tau)
        swap = bool(x[a] > x[b])
        for values in (x, rows):
            first, second = values[a], values[b]
            soft = (1 - share) * first + share * second, share * first + (1 - share) * second
            hard = (second, first) if swap else (first, second)
            values[a], values[b] = (
                h.detach() + s - s.detach() for h, s in zip(hard, soft, strict=True)
            )
    return torch.stack(rows[::-1])


@each_kind
@pytest.mark.parametrize("n", [2, 3, 5, 8, 11])
def test_error_free_networks_are_hard_with_the_derivatives_of_soft_comparators(kind, n):
    scores = torch.randn(n, dtype=torch.float64, requires_grad=True)
    upstream = torch.randn(n, n, dtype=torch.float64)
    P = ns.sorting_network(scores, tau=0.4, kind=kind, swap="error_free")
    expected = error_free(scores, 0.4, kind)
    eye = torch.eye(n, dtype=torch.float64)
    (wanted,) = torch.autograd.grad((expected * upstream).sum(), scores, allow_unused=True)
    wanted = torch.zeros_like(scores) if wanted is None else wanted
    for found in (P.to_dense(), P @ eye, (P.mT @ eye).mT):
        assert_near(found, expected, 1e-12)
        (gradient,) = torch.autograd.grad((found * upstream).sum(), scores, retain_graph=True)
        assert_near(gradient, wanted, 1e-12, floor=1.0)
    place = torch.arange(1.0, n + 1, dtype=torch.float64)
    found = torch.autograd.grad(P.rank() @ upstream[0], scores, retain_graph=True)
    matrix = ns.sorting_network(scores, tau=0.4, kind=kind, swap="error_free").to_dense()
    assert_near(*found, *torch.autograd.grad(place @ matrix @ upstream[0], scores), 1e-12, 1.0)


@each_kind
@pytest.mark.parametrize("n", [1, 9])
@pytest.mark.parametrize("tau", [1e-6, 0.3, 100.0])
def test_error_free_networks_sort_exactly_at_every_temperature(kind, tau, n):
    scores = torch.randn(50, n).round(decimals=1).requires_grad_()  # with ties
    P = ns.sorting_network(scores, tau=tau, kind=kind, swap="error_free")
    assert torch.equal(P.sort(scores), scores.sort(-1, descending=True).values)
    stable = scores.argsort(dim=-1, descending=True, stable=True)
    assert torch.equal(P.to_dense().argmax(-1), stable)
    assert torch.equal(P.permutation(), stable)
    assert torch.autograd.grad(P.sort(scores)[:, 0].sum(), scores)[0].isfinite().all()


@each_kind
def test_error_free_networks_take_masks(kind):
    scores = torch.randn(9, dtype=torch.float64, requires_grad=True)
    mask = torch.tensor([True, False, True, True, False, True, False, True, True])
    options = {"tau": 0.5, "kind": kind, "swap": "error_free"}
    x, upstream = (torch.randn(9, dtype=torch.float64) for _ in range(2))
    padded = ns.sorting_network(scores, mask=mask, **options) @ x
    alone = ns.sorting_network(scores[mask], **options) @ x[mask]
    assert torch.equal(padded[:6], alone)
    found, wanted = (
        torch.autograd.grad(y[:6] @ upstream[:6], scores, retain_graph=True)[0]
        for y in (padded, alone)
    )
    assert_near(found, wanted, 1e-12)


def test_error_free_networks_keep_infinities_and_spoil_lists_with_a_nan():
    inf, nan = float("inf"), float("nan")
    scores = torch.tensor([[1.0, inf, -inf, 2.0, inf], [1.0, nan, 0.0, 2.0, 3.0]])
    P = ns.sorting_network(scores.requires_grad_(), tau=0.5, swap="error_free")
    hard = ns.sorting_network(scores, tau=0.5).straight_through()
    torch.testing.assert_close(P.to_dense(), hard.to_dense(), equal_nan=True)
    assert torch.autograd.grad(P.rank()[0].sum(), scores)[0][0].isfinite().all()
