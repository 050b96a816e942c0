"""Relaxed permutations in JAX: laws, transformations, and the form for long lists.

Compiling takes nearly all the time of these tests, so each asks one compiled program for everything
it wants to know.
"""

import functools
import importlib

import numpy as np
import pytest

from tests import oracle
from tests.portions import some_of

jax = pytest.importorskip("jax")

import jax.numpy as jnp  # noqa: E402

import neuralsort.jax as ns  # noqa: E402

scored = importlib.import_module("neuralsort.jax.relaxations.scored")
blocks = importlib.import_module("neuralsort.jax.relaxations.engine.blocks")

SCORES = jnp.asarray(np.random.default_rng(0).normal(size=(2, 40)), jnp.float32)
VALUES = jnp.asarray(np.random.default_rng(1).normal(size=(2, 40, 3)), jnp.float32)


def soft(scores, **options):
    return ns.softsort(scores, power=2.0, **options)


METHODS = {"neuralsort": ns.neuralsort, "softsort": ns.softsort, "softsort_squared": soft}
RELAX = pytest.mark.parametrize("relax", METHODS.values(), ids=METHODS)


@pytest.fixture
def form(request, monkeypatch):
    """Whether lists of every length are dense, or none: then in blocks of a few rows."""
    monkeypatch.setattr(scored, "LONGEST_DENSE", 10**9 if request.param == "dense" else 0)
    monkeypatch.setattr(blocks, "MOST", 8)
    return request.param


# The two powers of SoftSort differ in one line.
KERNELS = [(n, f) for n in ("neuralsort", "softsort_squared") for f in ("dense", "long")]
TWO_KERNELS = pytest.mark.parametrize(("name", "form"), KERNELS, indirect=["form"])
ONE_OF_EACH = pytest.mark.parametrize(
    ("name", "form"),
    some_of(KERNELS, ("neuralsort", "long"), ("softsort_squared", "dense")),
    indirect=["form"],
)
LONG = pytest.mark.parametrize("form", ["long"], indirect=True)
WITH_INFINITIES = ("neuralsort", "softsort", "lapsum", "sinkhorn_sort", "sorting_network")


# -- order -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_permutation_is_the_stable_descending_sort(dtype):
    scores = (jnp.asarray(np.random.default_rng(0).normal(size=5000)) + 1e4).astype(dtype)
    expected = np.argsort(-np.asarray(scores, np.float64), kind="stable")
    np.testing.assert_array_equal(ns.neuralsort(scores, tau=1.0).permutation(), expected)


def test_the_peak_of_every_row_is_the_sorted_item():
    scores = jnp.asarray(np.random.default_rng(0).normal(size=5000) + 1e4, jnp.float32)
    P = ns.neuralsort(scores, tau=1.0)
    columns = P._kernel.columns(scored.order(*P._lists()))
    fall_of_rows = jax.jit(lambda start: P._kernel.fall(columns, start, 100))
    for start in (0, 1200, 4900):
        fall = np.asarray(fall_of_rows(jnp.asarray(start)))
        assert (fall[range(100), range(start, start + 100)] == 0).all()
        assert (fall >= 0).all()


@RELAX
def test_ties_infinities_and_masks_keep_their_rules(relax):
    scores = jnp.array([1.0, jnp.inf, 2.0, 1.0, -jnp.inf, 2.0, 9.0])
    mask = jnp.array([True] * 6 + [False])

    @jax.jit
    def ask(scores):
        P = relax(scores, tau=0.5, mask=mask)
        third = jax.grad(lambda s: relax(s, tau=0.5, mask=mask).rank()[2])(scores)
        return P.permutation(), P.to_dense(), P.sort(scores), third

    perm, weights, ordered, grad = map(np.asarray, ask(scores))
    np.testing.assert_array_equal(perm, [1, 2, 5, 0, 3, 4, 6])
    np.testing.assert_allclose(weights.sum(-1), 1, rtol=1e-6)
    np.testing.assert_array_equal(weights[:, 0], weights[:, 3])
    assert (weights[[0, 5, 6], [1, 4, 6]] == 1).all()
    np.testing.assert_array_equal(ordered[[0, 5]], [np.inf, -np.inf])
    assert np.isfinite(grad).all()
    assert (grad[[1, 4, 6]] == 0).all()


@pytest.mark.parametrize(
    ("name", "compiled"),
    some_of(
        [(name, compiled) for name in WITH_INFINITIES for compiled in (False, True)],
        *((name, name in ("lapsum", "sinkhorn_sort")) for name in WITH_INFINITIES),
    ),
)
def test_values_of_what_takes_no_part_stay_in_their_places(name, compiled):
    """In every run compiled where there are most operations, each a program without `jit`."""
    relax, inf, nan = getattr(ns, name), jnp.inf, jnp.nan

    def sort(scores, x, mask):
        return relax(scores, tau=0.5, mask=mask).sort(x)

    sort = jax.jit(sort) if compiled else sort
    scores = jnp.array([inf, -inf, 0.3, inf, -inf])
    ordered = sort(scores, scores, None)
    np.testing.assert_allclose(ordered, [inf, inf, 0.3, -inf, -inf], rtol=1e-6)
    # As many items again: every operation is compiled for every length by itself.
    mask = jnp.array([True, True, False, False, False])
    ordered = sort(jnp.arange(5.0), jnp.array([1.0, 2.0, nan, nan, nan]), mask)
    assert np.isfinite(ordered[:2]).all()
    assert np.isnan(ordered[2:]).all()


@ONE_OF_EACH
@pytest.mark.parametrize("all_of_it", some_of([False, True], False))
def test_a_nan_spoils_its_own_list(name, form, all_of_it):
    @jax.jit
    def run(scores):
        P = METHODS[name](scores, tau=0.5)
        grad = jax.grad(lambda s: (METHODS[name](s, tau=0.5) @ VALUES).sum())(scores)
        values = [P @ VALUES, P.log_prob(P.permutation()), grad]
        if all_of_it or form == "dense":
            values += [P.to_dense(), P.mT @ VALUES, P.rank(), P.entropy()]
        return values, P.is_unimodal()

    found, unimodal = run(SCORES.at[0, 3].set(jnp.nan))
    for value, wanted in zip(found, run(SCORES)[0], strict=True):
        assert np.isnan(value[0]).all()
        np.testing.assert_array_equal(value[1], wanted[1])
    np.testing.assert_array_equal(unimodal, [False, True])


def test_temperature_zero_is_the_hard_permutation():
    scores = jnp.array([[1.0, 3.0, 2.0], [2.0, 2.0, 5.0]])
    hard = np.eye(3)[np.asarray(ns.neuralsort(scores).permutation())]
    np.testing.assert_array_equal(ns.neuralsort(scores, tau=0).to_dense(), hard)
    some = ns.neuralsort(scores, tau=jnp.array([[0.0], [1.0]])).to_dense()
    np.testing.assert_array_equal(some[0], hard[0])
    np.testing.assert_allclose(some[1], oracle.neuralsort([2.0, 2.0, 5.0], 1.0), atol=1e-6)


SHAPES = ((0,), (3, 0), (0, 4), (1,))


@pytest.mark.parametrize(
    ("relax", "shape", "compiled"),
    some_of(
        [
            (relax, shape, compiled)
            for relax in (ns.neuralsort, ns.sinkhorn_sort)
            for shape in SHAPES
            for compiled in (False, True)
        ],
        *((ns.neuralsort, shape, False) for shape in SHAPES),
        *((ns.sinkhorn_sort, shape, True) for shape in ((3, 0), (1,))),
    ),
)
def test_empty_and_single_lists(shape, relax, compiled):
    def ask(scores):
        P = relax(scores)
        each = P.log_prob(P.permutation()), P.sort(scores), P.rank(), P.entropy(), P.skipped_mass()
        return P.to_dense(), each

    matrix, values = (jax.jit(ask) if compiled else ask)(jnp.ones(shape))
    assert matrix.shape == (*shape, shape[-1])
    assert all(value.shape == shape for value in values)


@pytest.mark.parametrize("relax", [ns.neuralsort, ns.softsort, ns.sinkhorn_sort])
def test_a_tiny_temperature_is_not_zero(relax):
    weights = jax.jit(lambda s: relax(s, tau=1e-40).to_dense())(jnp.array([1.0, 1.0, 0.0]))
    np.testing.assert_allclose(weights, [[0.5, 0.5, 0], [0.5, 0.5, 0], [0, 0, 1]])


# -- payloads --------------------------------------------------------------------------------------

INF, NAN = float("inf"), float("nan")
network = functools.partial(ns.sorting_network, tau=1.0)
EVERY = pytest.mark.parametrize(
    "relax",
    some_of([ns.neuralsort, ns.softsort, ns.sinkhorn_sort, network], ns.neuralsort, network),
    ids=["neuralsort", "softsort", "sinkhorn_sort", "sorting_network"],
)


@EVERY
def test_what_is_not_finite_stays_in_its_place(relax):
    """Infinite scores and what stands behind a mask, in values and gradients, hard or not."""
    scores = jnp.array([[1.0, -INF, 2.0, 7.0], [1.0, NAN, 2.0, INF]])
    mask = jnp.array([[True, True, True, True], [True, False, True, True]])

    @jax.jit
    def ask(scores):
        def sort(scores, hard):
            P = relax(scores, mask=mask)
            return (P.straight_through() if hard else P).sort(scores)

        grads = [jax.grad(lambda s, h: sort(s, h)[:, 1].sum())(scores, h) for h in (False, True)]
        return sort(scores, False), sort(scores, True), grads

    soft, hard, grads = ask(scores)
    np.testing.assert_array_equal(hard, [[7.0, 2.0, 1.0, -INF], [INF, 2.0, 1.0, NAN]])
    np.testing.assert_array_equal(soft[0, 3], -INF)
    np.testing.assert_array_equal(soft[1, [0, 3]], [INF, NAN])
    assert np.isfinite(soft[0, :3]).all()
    assert np.isfinite(soft[1, 1:3]).all()
    for grad in grads:
        assert np.isfinite(grad).all()
        np.testing.assert_array_equal(grad[[0, 1, 1], [1, 1, 3]], 0)


def test_sinkhorn_keeps_what_is_behind_its_mask_there():
    P = ns.sinkhorn(jnp.zeros((3, 3)), mask=jnp.array([True, False, True]))
    np.testing.assert_allclose(P.sort(jnp.array([1.0, NAN, 2.0])), [1.5, 1.5, NAN])


@EVERY
@pytest.mark.parametrize("offset", some_of([1e4, 1e7], 1e7))
def test_an_offset_of_the_payload_costs_its_gradient_no_digits(relax, offset):
    x, upstream = jnp.array([0.0, 1.0, 2.0, 5.0, 3.0]), jnp.array([0.3, -1.0, 2.0, 0.7, 0.1])
    gradient = jax.jit(jax.grad(lambda x: (relax(x, tau=1.0).sort(x) * upstream).sum()))
    np.testing.assert_allclose(gradient(x + offset), gradient(x), atol=1e-6)


def test_a_payload_keeps_the_digits_of_its_small_values():
    scores, x = jnp.array([3.0, 2.0, 1.0]), jnp.array([1e8, 1.5, 0.25])
    np.testing.assert_array_equal(ns.neuralsort(scores, tau=1e-3).sort(x), x)


@EVERY
def test_huge_scores_are_sorted(relax):
    scores = jnp.array([1e38, -1e38, 3e38, -3e38, 0.0])

    @jax.jit
    def ask(scores):
        return relax(scores).sort(scores), jax.grad(lambda s: relax(s).sort(s)[1])(scores)

    ordered, grad = ask(scores)
    np.testing.assert_allclose(ordered, scores[np.array([2, 0, 4, 1, 3])], atol=1e32)
    if relax is not network:
        np.testing.assert_array_equal(grad, [1.0, 0.0, 0.0, 0.0, 0.0])


def test_short_dtypes_are_computed_in_float32():
    scores = SCORES.astype(jnp.bfloat16)
    P = ns.neuralsort(scores, tau=0.3)
    exact = ns.neuralsort(scores.astype(jnp.float32), tau=0.3)
    assert P.dtype == P.to_dense().dtype == P.sort(scores).dtype == jnp.bfloat16
    np.testing.assert_array_equal(P.to_dense(), exact.to_dense().astype(jnp.bfloat16))


# -- transformations -------------------------------------------------------------------------------


def textbook(name, scores, tau):
    """The printed matrices, for autodiff away from ties."""
    n = scores.shape[-1]
    if name == "neuralsort":
        spread = jnp.abs(scores[:, None] - scores).sum(-1)
        logits = (n + 1 - 2 * jnp.arange(1, n + 1))[:, None] * scores - spread
    else:
        distance = jnp.sort(scores, descending=True)[:, None] - scores
        logits = -(distance**2)
    return jax.nn.softmax(logits / tau, -1)


@ONE_OF_EACH
def test_derivatives_of_both_modes_and_orders(name, form, x64):
    x = jnp.array([1.0, -2.0, 0.5, 3.0])
    point = jnp.array([0.3, -1.2, 2.0, 0.9, 0.7])  # the last is tau

    def ours(point):
        return METHODS[name](point[:-1], tau=point[-1:]).sort(x)

    def theirs(point):
        return textbook(name, point[:-1], point[-1]) @ x

    @jax.jit
    def derivatives(point):
        ways = jax.jacrev, jax.jacfwd, jax.hessian
        return [(derive(ours)(point), derive(theirs)(point)) for derive in ways]

    for mine, wanted in derivatives(point):
        np.testing.assert_allclose(mine, wanted, atol=1e-11 * float(abs(wanted).max()))


def test_jit_and_vmap_equal_eager():
    def sort(scores):
        return ns.neuralsort(scores, tau=0.3).sort(scores)

    eager = sort(SCORES)
    np.testing.assert_allclose(jax.jit(sort)(SCORES), eager, atol=1e-6)
    np.testing.assert_allclose(jax.vmap(sort)(SCORES), eager, atol=1e-6)


def test_operators_are_pytrees():
    """They cross `jit` and `vmap` both ways, and hold what they were made of."""
    relax = ns.neuralsort
    P = jax.jit(lambda s: relax(s, tau=0.3))(SCORES)
    assert isinstance(P, ns.RelaxedPermutation)
    np.testing.assert_allclose(P.to_dense(), relax(SCORES, tau=0.3).to_dense(), atol=1e-6)
    batched = jax.vmap(lambda s: relax(s, tau=0.3))(SCORES)
    assert batched.shape == (2, 40, 40)
    np.testing.assert_allclose(batched.rank(), P.rank(), rtol=1e-5)
    np.testing.assert_allclose(jax.vmap(lambda P: P.rank())(P), P.rank(), rtol=1e-5)
    hard = jax.jit(lambda P: P.straight_through())(P)
    np.testing.assert_array_equal(hard.permutation(), P.permutation())
    wrapped = jax.jit(ns.RelaxedPermutation.from_dense)(P.to_dense())
    np.testing.assert_array_equal(wrapped.permutation(), P.permutation())


def test_matrices_that_are_not_unimodal_are_assigned_under_jit_and_vmap():
    matrix = jnp.array([[0.6, 0.4, 0.0], [0.5, 0.1, 0.4], [0.1, 0.2, 0.7]])
    harden = jax.jit(lambda m: ns.RelaxedPermutation.from_dense(m).permutation())
    np.testing.assert_array_equal(harden(matrix), [1, 0, 2])
    stack = jnp.stack([matrix, jnp.eye(3)])
    np.testing.assert_array_equal(jax.vmap(harden)(stack), [[1, 0, 2], [0, 1, 2]])
    unimodal = ns.RelaxedPermutation.from_dense(stack).is_unimodal()
    np.testing.assert_array_equal(unimodal, [False, True])


def test_straight_through_is_hard_forward_and_soft_backward():
    scores, x = SCORES[0], VALUES[0, :, 0]

    def sort(scores, hard):
        P = ns.neuralsort(scores, tau=0.5)
        return (P.straight_through() if hard else P).sort(x)

    np.testing.assert_array_equal(sort(scores, True), x[ns.neuralsort(scores).permutation()])
    soft, back = jax.vjp(lambda s: sort(s, False), scores)
    _, hard_back = jax.vjp(lambda s: sort(s, True), scores)
    np.testing.assert_array_equal(back(soft)[0], hard_back(soft)[0])


def test_straight_through_gradients_of_the_first_places_are_those_of_the_relaxed_ones():
    upstream = jnp.arange(40.0)

    @jax.jit
    def gradients(scores):
        def spread(scores, hard):
            P = ns.neuralsort(scores, tau=0.5)
            P = P.straight_through() if hard else P
            return (P.top(2).mT @ jnp.array([1.0, 2.0])) @ upstream

        return [jax.grad(spread)(scores, hard) for hard in (True, False)]

    np.testing.assert_array_equal(*gradients(SCORES[0]))


# -- Sinkhorn --------------------------------------------------------------------------------------


def test_sinkhorn_sort_is_the_oracle_s():
    scores = [0.5, 2.0, 1.0, 1.5]
    relax = jax.jit(lambda s: ns.sinkhorn_sort(s, tau=0.8, iterations=6).to_dense())
    ours = relax(jnp.array(scores))
    np.testing.assert_allclose(ours, oracle.sinkhorn_sort(scores, 0.8, 6), atol=1e-6)


def test_sinkhorn_stops_at_its_tolerance():
    logits = jnp.asarray(np.random.default_rng(0).normal(size=(5, 5)), jnp.float32)
    loose = ns.sinkhorn(logits, iterations=500, tolerance=1e-1).to_dense()
    tight = ns.sinkhorn(logits, iterations=500, tolerance=1e-6).to_dense()
    off = [float(abs(m.sum(0) - 1).max()) for m in (loose, tight)]
    assert off[1] < 1e-5 < off[0] < 0.1


def test_gumbel_sinkhorn_draws_by_its_key():
    logits = jnp.zeros((4, 3, 3))
    first, again, other = (
        ns.gumbel_sinkhorn(logits, tau=0.2, key=jax.random.key(k)).to_dense() for k in (0, 0, 1)
    )
    np.testing.assert_array_equal(first, again)
    assert (first != other).any()
    assert (first[0] != first[1]).any()


@pytest.mark.parametrize("tolerance", [None, 1e-6])
def test_sinkhorn_keeps_n_numbers_per_iteration_for_the_gradient(tolerance):
    """At n = 256 a matrix has 262,144 bytes: a hundred iterations must not keep one each."""

    def loss(logits):
        P = ns.sinkhorn(logits, iterations=100, tolerance=tolerance)
        return (P.to_dense() ** 2).sum()

    compiled = jax.jit(jax.grad(loss)).lower(jnp.zeros((256, 256))).compile()
    assert 0 < compiled.memory_analysis().temp_size_in_bytes < 20 * 4 * 256**2
