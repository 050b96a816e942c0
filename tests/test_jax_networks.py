"""Sorting networks in JAX: the comparators one by one, in float32 too, and every derivative."""

import functools

import numpy as np
import pytest

from tests import oracle
from tests.portions import some_of

jax = pytest.importorskip("jax")

import jax.numpy as jnp  # noqa: E402

import neuralsort.jax as ns  # noqa: E402
from neuralsort.jax.relaxations.networks import KINDS, Network  # noqa: E402

each_kind = pytest.mark.parametrize("kind", KINDS)
INF, NAN = float("inf"), float("nan")


@functools.cache
def compared(kind, n):
    """The pairs of items that a network compares; the first shall get the smaller value."""
    network = Network(kind == "bitonic", "cauchy")
    layers = network.layers(n)
    spare, pairs = int(jax.jit(lambda: network.places(n, None).spare[0])()), []
    for partner, side, run in zip(layers.partner, layers.side, layers.run, strict=True):
        side = side if spare // run % 2 == 0 else -side
        for wire in np.flatnonzero(side > 0):
            if wire >= spare and partner[wire] >= spare and partner[wire] != wire:
                pairs.append((int(wire) - spare, int(partner[wire]) - spare))
    return pairs


@each_kind
@pytest.mark.parametrize("n", range(1, 21))
def test_networks_sort_by_the_zero_one_principle(kind, n):
    assert oracle.unsorted_zeros_and_ones(n, compared(kind, n)) == 0


@each_kind
def test_networks_compare_what_the_textbook_does_at_every_length(kind):
    for n in (*range(1, 24), 44, 86, *((139, 200, 300) if kind == "bitonic" else ())):
        assert sorted(compared(kind, n)) == sorted(oracle.comparators(n, kind))


@each_kind
@pytest.mark.parametrize("n", some_of([22, 44, 139, 300, 700], 22, 139))
def test_networks_sort_permutations(kind, n):
    lists = jnp.asarray([np.random.default_rng(n + i).permutation(n) for i in range(8)], float)
    found = ns.sorting_network(lists, tau=1e-12, kind=kind).sort(lists)
    np.testing.assert_allclose(found, np.tile(np.arange(n)[::-1], (8, 1)), atol=1e-3)


@each_kind
@pytest.mark.parametrize("n", some_of([50, 200], 50))
def test_padded_lists_are_sorted_wherever_their_items_are(kind, n):
    rng, count = np.random.default_rng(0), np.arange(n + 1)
    lists = np.stack([rng.permutation(n) for _ in count]).astype(np.float32)
    mask = np.stack([rng.permutation(n) < m for m in count])
    lists = np.where(mask, lists, -1)
    P = ns.sorting_network(jnp.asarray(lists), tau=1e-12, kind=kind, mask=jnp.asarray(mask))
    np.testing.assert_allclose(P.sort(jnp.asarray(lists)), -np.sort(-lists, -1), atol=1e-3)


@pytest.mark.parametrize(
    ("kind", "swap"),
    some_of(
        [
            ("odd_even", "logistic"),
            ("bitonic", "cauchy"),
            ("bitonic", "reciprocal"),
            ("odd_even", "optimal"),
        ],
        ("bitonic", "cauchy"),
        ("odd_even", "optimal"),
    ),
)
def test_float32_weights_are_those_of_the_comparators_one_by_one(kind, swap):
    """At an offset, at temperatures from cold to hot, whatever is asked."""
    n, rng = 6, np.random.default_rng(0)
    scores = (rng.normal(size=(3, n)) + 1e4).astype(np.float32)
    taus = np.array([[1e-3], [0.1], [10.0]], np.float32)

    @jax.jit
    def ask(scores, tau):
        P, eye = ns.sorting_network(scores, tau=tau, kind=kind, swap=swap), jnp.eye(n)
        return P.to_dense(), P @ eye, (P.mT @ eye).mT, P.top(2) @ eye, P.rank()

    matrix, product, transposed, top, rank = ask(scores, taus)
    wanted = [
        oracle.sorting_network(one.tolist(), float(tau), kind, swap)
        for one, (tau,) in zip(scores, taus, strict=True)
    ]
    for found in (matrix, product, transposed):
        np.testing.assert_allclose(found, wanted, atol=5e-7)
    np.testing.assert_allclose(top, np.stack(wanted)[:, :2], atol=5e-7)
    np.testing.assert_allclose(rank, np.arange(1.0, n + 1) @ np.stack(wanted), rtol=1e-6)
    np.testing.assert_allclose(matrix.sum(-2), 1, atol=1e-6)


@each_kind
def test_edges_keep_their_rules(kind):
    lists = {
        "infinities": ([1.0, INF, 0.5, -INF, INF, 2.0], [True] * 6, 0.3),
        "absent": ([1.0, NAN, 3.0, INF, 2.0, 0.0], [True, False, True, False, True, False], 0.3),
        "hard": ([2.0, 1.0, 2.0, 3.0, 1.0, 2.0], [True] * 6, 0.0),
        "huge": ([3e38, -3e38, 1.0, 3e38, 0.0, -1e-30], [True] * 6, 1e-3),
        "NaN": ([1.0, NAN, 3.0, 4.0, 2.0, 0.0], [True] * 6, 0.3),
    }
    scores, mask, tau = (jnp.array(x) for x in zip(*lists.values(), strict=True))

    @jax.jit
    def ask(scores, tau):
        def rank(scores, tau):
            return ns.sorting_network(scores, tau=tau[:, None], kind=kind, mask=mask).rank()

        def loss(*args):
            return rank(*args)[:, 2].sum()

        P = ns.sorting_network(scores, tau=tau[:, None], kind=kind, mask=mask)
        grads = jax.grad(loss, argnums=(0, 1))(scores, tau)
        return P.to_dense(), P.sort(scores), P.permutation(), P.is_unimodal(), grads

    weights, ordered, perm, unimodal, (to_scores, to_tau) = jax.tree.map(
        np.asarray, ask(scores, tau)
    )
    infinite, absent, hard, huge, spoilt = range(5)
    np.testing.assert_allclose(weights[:4].sum(-1), 1, atol=1e-6)
    np.testing.assert_allclose(weights[:4].sum(-2), 1, atol=1e-6)
    np.testing.assert_array_equal(weights[infinite][:2, [1, 4]].sum(-1), 1)
    assert weights[infinite][5, 3] == 1
    np.testing.assert_array_equal(ordered[infinite][[0, 1, 5]], [INF, INF, -INF])
    assert np.isfinite(ordered[infinite][2:5]).all()
    alone = oracle.masked(
        lambda s: oracle.sorting_network(s, float(tau[absent]), kind, "cauchy"),
        [1.0, 0.0, 3.0, 0.0, 2.0, 0.0],
        lists["absent"][1],
    )
    np.testing.assert_allclose(weights[absent], alone, atol=5e-7)
    np.testing.assert_array_equal(weights[hard], np.eye(6)[perm[hard]])
    np.testing.assert_array_equal(perm[hard], [3, 0, 2, 5, 1, 4])
    np.testing.assert_array_equal(
        ordered[huge][[0, 1, 5]], np.array([3e38, 3e38, -3e38], np.float32)
    )
    assert np.isnan(weights[spoilt]).all()
    assert not unimodal[spoilt]
    assert np.isfinite(to_scores[:4]).all()
    assert np.isfinite(to_tau[:4]).all()
    assert np.isnan(to_scores[spoilt]).all()


def textbook(point, n, kind):
    """Comparators one by one, for autodiff."""
    x, weights = list(point[:n] / point[n]), list(jnp.eye(n))
    for a, b in oracle.comparators(n, kind):
        share = jnp.arctan(x[a] - x[b]) / jnp.pi + 0.5
        for values in (x, weights):
            first, second = values[a], values[b]
            values[a] = (1 - share) * first + share * second
            values[b] = share * first + (1 - share) * second
    return jnp.stack(weights[::-1])


def test_derivatives_of_both_modes_and_orders(x64):
    x = jnp.array([1.0, -2.0, 0.5])
    point = jnp.array([0.3, -1.2, 2.0, 0.7])  # the last is tau

    def ours(point):
        return ns.sorting_network(point[:-1], tau=point[-1:], kind="bitonic").sort(x)[1]

    def theirs(point):
        return (textbook(point, 3, "bitonic") @ x)[1]

    for derive in (jax.jacfwd, jax.hessian):
        mine, wanted = jax.jit(derive(ours))(point), jax.jit(derive(theirs))(point)
        np.testing.assert_allclose(mine, wanted, atol=1e-12 * float(abs(wanted).max()))


def test_products_of_long_lists_do_not_take_the_matrix():
    """4096 items: the matrix would have 67 million bytes, and 78 layers of it be kept."""

    def loss(scores):
        return ns.sorting_network(scores, tau=1e-6, kind="bitonic").sort(scores)[7]

    compiled = jax.jit(jax.grad(loss)).lower(jnp.zeros(4096)).compile()
    assert 0 < compiled.memory_analysis().temp_size_in_bytes < 2 * 4096**2


def test_operators_are_pytrees_and_vmap_equals_a_batch():
    scores = jnp.asarray(np.random.default_rng(0).normal(size=(3, 5)), jnp.float32)
    P = ns.sorting_network(scores)
    mapped = jax.vmap(ns.sorting_network)(scores)
    assert mapped.shape == (3, 5, 5)
    np.testing.assert_allclose(jax.vmap(lambda P: P.rank())(mapped), P.rank(), rtol=1e-6)
    payload = jnp.ones((2, 1, 5, 2))
    np.testing.assert_allclose(P @ payload, jnp.ones((2, 3, 5, 2)), atol=1e-6)


@pytest.mark.parametrize("shape", [(0,), (3, 0), (0, 4), (2, 1)])
def test_empty_and_single_lists(shape):
    P = ns.sorting_network(jnp.ones(shape), kind="bitonic")
    assert P.to_dense().shape == (*shape, shape[-1])
    assert P.rank().shape == shape


SWAPS = ("logistic", "cauchy", "reciprocal", "optimal")


@pytest.mark.parametrize(
    ("kind", "swap"),
    some_of(
        [(kind, swap) for kind in KINDS for swap in SWAPS],
        *(("odd_even", swap) for swap in SWAPS[::2]),
        *(("bitonic", swap) for swap in SWAPS[1::2]),
    ),
)
def test_payloads_that_differ_by_more_than_a_number_can_hold(kind, swap):
    """float32 near its largest: gradients are finite, and only the sorted items have any."""
    scores = jnp.asarray([2e38, -3e38, 3.3e38, 1e37, -1e38, 3e38], jnp.float32)

    @jax.jit
    def ask(scores, tau):
        def first(scores, tau):
            return ns.sorting_network(scores, tau=tau, kind=kind, swap=swap).sort(scores)[0]

        return jax.value_and_grad(first, argnums=(0, 1))(scores, tau)

    for tau in (1e-3, 1e30):
        value, (to_scores, to_tau) = ask(scores, jnp.asarray(tau, jnp.float32))
        np.testing.assert_allclose(value, 3.3e38, rtol=1e-6)
        np.testing.assert_allclose(to_scores, [0, 0, 1, 0, 0, 0], atol=1e-5)
        assert np.isfinite(to_tau)
    for tau in (1e37, 1e38):
        value, (to_scores, _) = ask(scores, jnp.asarray(tau, jnp.float32))
        assert np.isfinite(value)
        assert np.isfinite(to_scores).all()
