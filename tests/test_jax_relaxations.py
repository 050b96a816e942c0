"""Relaxed permutations in JAX: laws, transformations, and the form for long lists.

Compiling takes nearly all the time of these tests, so each asks one compiled program for everything
it wants to know.
"""

import importlib
import subprocess
import sys

import numpy as np
import pytest

from tests import oracle

jax = pytest.importorskip("jax")

import jax.numpy as jnp  # noqa: E402

import neuralsort.jax as ns  # noqa: E402

lazy = importlib.import_module("neuralsort.jax.relaxations.lazy")
blocks = importlib.import_module("neuralsort.jax.relaxations.blocks")

SCORES = jnp.asarray(np.random.default_rng(0).normal(size=(2, 40)), jnp.float32)
VALUES = jnp.asarray(np.random.default_rng(1).normal(size=(2, 40, 3)), jnp.float32)


def soft(scores, **options):
    return ns.softsort(scores, power=2.0, **options)


METHODS = {"neuralsort": ns.neuralsort, "softsort": ns.softsort, "softsort_squared": soft}
RELAX = pytest.mark.parametrize("relax", METHODS.values(), ids=METHODS)


@pytest.fixture
def x64():
    jax.config.update("jax_enable_x64", True)
    yield
    jax.config.update("jax_enable_x64", False)


@pytest.fixture
def form(request, monkeypatch):
    """Whether lists of every length are dense, or none: then in blocks of a few rows."""
    monkeypatch.setattr(lazy, "LONGEST_DENSE", 10**9 if request.param == "dense" else 0)
    monkeypatch.setattr(blocks, "MOST", 8)
    return request.param


# The two powers of SoftSort differ in one line.
TWO_KERNELS = pytest.mark.parametrize(
    ("name", "form"),
    [(n, f) for n in ("neuralsort", "softsort_squared") for f in ("dense", "long")],
    indirect=["form"],
)
LONG = pytest.mark.parametrize("form", ["long"], indirect=True)


# -- order -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_permutation_is_the_stable_descending_sort(dtype):
    scores = (jnp.asarray(np.random.default_rng(0).normal(size=5000)) + 1e4).astype(dtype)
    expected = np.argsort(-np.asarray(scores, np.float64), kind="stable")
    np.testing.assert_array_equal(ns.neuralsort(scores, tau=1.0).permutation(), expected)


def test_the_peak_of_every_row_is_the_sorted_item():
    scores = jnp.asarray(np.random.default_rng(0).normal(size=5000) + 1e4, jnp.float32)
    P = ns.neuralsort(scores, tau=1.0)
    columns = P._kernel.columns(lazy.order(*P._lists()))
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


@TWO_KERNELS
def test_a_nan_spoils_its_own_list(name, form):
    @jax.jit
    def run(scores):
        P = METHODS[name](scores, tau=0.5)
        grad = jax.grad(lambda s: (METHODS[name](s, tau=0.5) @ VALUES).sum())(scores)
        values = P.to_dense(), P @ VALUES, P.mT @ VALUES, P.rank(), P.entropy()
        return (*values, P.log_prob(P.permutation()), grad), P.is_unimodal()

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


@pytest.mark.parametrize("shape", [(0,), (3, 0), (0, 4), (1,)])
def test_empty_and_single_lists(shape):
    scores = jnp.ones(shape)
    P = ns.neuralsort(scores)
    assert P.to_dense().shape == (*shape, shape[-1])
    assert P.sort(scores).shape == shape
    assert P.rank().shape == shape


def test_short_dtypes_are_computed_in_float32():
    scores = SCORES.astype(jnp.bfloat16)
    P = ns.neuralsort(scores, tau=0.3)
    exact = ns.neuralsort(scores.astype(jnp.float32), tau=0.3)
    assert P.dtype == P.to_dense().dtype == P.sort(scores).dtype == jnp.bfloat16
    np.testing.assert_array_equal(P.to_dense(), exact.to_dense().astype(jnp.bfloat16))


# -- long lists ------------------------------------------------------------------------------------


def everything(P):
    perm = jnp.flip(P.permutation(), -1)
    return {
        "product": P @ VALUES,
        "one payload": P @ VALUES[0],
        "transpose": P.mT @ VALUES,
        "sort": P.sort(VALUES[..., 0]),
        "rank": P.rank(),
        "top": P.top(5) @ VALUES,
        "top transposed": P.top(5).mT @ VALUES[:, :5],
        "log_prob": P.log_prob(perm),
        "entropy": P.entropy(),
        "straight-through": P.straight_through() @ VALUES,
    }


@LONG
@RELAX
def test_long_form_equals_the_dense_one(relax, form, monkeypatch):
    assert "matrix-free" in repr(relax(SCORES))
    long_form = jax.jit(lambda s: everything(relax(s, tau=0.02)))(SCORES)
    monkeypatch.setattr(lazy, "LONGEST_DENSE", 10**9)
    dense = jax.jit(lambda s: everything(relax(s, tau=0.02)))(SCORES)
    for name, value in dense.items():
        np.testing.assert_allclose(long_form[name], value, rtol=2e-5, atol=2e-5, err_msg=name)


@LONG
@pytest.mark.parametrize("relax", [ns.neuralsort, soft], ids=["neuralsort", "softsort_squared"])
def test_gradients_of_the_long_form_are_those_of_the_dense_one(relax, form, monkeypatch):
    def gradients(bandwidth):
        def loss(scores, tau):
            P = relax(scores, tau=tau, bandwidth=bandwidth)
            return ((P @ VALUES) ** 2).sum() + (P.top(9).mT @ VALUES[:, :9]).max() + P.rank()[0, 3]

        return jax.jit(jax.grad(loss, argnums=(0, 1)))(SCORES, 1e-3)

    ours = *gradients(None), *gradients(14)
    monkeypatch.setattr(lazy, "LONGEST_DENSE", 10**9)
    for mine, wanted in zip(ours, gradients(None) * 2, strict=True):
        np.testing.assert_allclose(mine, wanted, rtol=1e-4, atol=1e-5 * float(abs(wanted).max()))


@LONG
def test_insufficient_bandwidth_is_reported_and_repaired(form):
    scores = SCORES[0]
    narrow = ns.neuralsort(scores, tau=5.0, bandwidth=3)
    assert narrow.skipped_mass().max() > 1e-3
    exact = ns.neuralsort(scores, tau=5.0)
    assert (exact.skipped_mass() == 0).all()
    np.testing.assert_array_equal(narrow.sort(scores), exact.sort(scores))
    enough = ns.neuralsort(scores, tau=1e-3, bandwidth=14)
    assert enough.skipped_mass().max() <= 1e-7


@LONG
def test_skipped_mass_bounds_what_lies_outside_the_window(form):
    scores, reach = SCORES[0], 6
    for tau in (0.01, 0.1, 1.0):
        P = ns.neuralsort(scores, tau=tau, bandwidth=reach)
        weights = np.asarray(P.to_dense())[:, np.asarray(P.permutation())]
        far = np.abs(np.subtract.outer(range(40), range(40))) > reach + 8  # beyond any window
        assert (np.where(far, weights, 0).sum(-1) <= P.skipped_mass() + 1e-7).all()


@pytest.fixture(scope="module")
def sort_at_offset():
    """`P @ x` at n = 3000 in float32 and its gradient, compiled once for all temperatures."""

    def sort_and_gradient(scores, tau, x, upstream):
        value, back = jax.vjp(lambda s: ns.neuralsort(s, tau=tau).sort(x), scores)
        return value, back(upstream)[0]

    return jax.jit(sort_and_gradient)


@pytest.mark.parametrize("tau", [0.01, 1.0, 16.0])
def test_float32_is_accurate_at_an_offset(tau, sort_at_offset):
    """At n = 3000 and an offset of 10^4: `P @ x` and its gradient against float64."""
    n, rng = 3000, np.random.default_rng(0)
    scores = np.float32(rng.normal(size=n) + 1e4)
    x, upstream = np.float32(rng.normal(size=n)), np.float32(rng.normal(size=n))
    value, gradient = sort_at_offset(scores, jnp.asarray(tau, jnp.float32), x, upstream)
    tau = float(np.float32(tau))

    s = np.float64(scores)
    coefficient = n + 1 - 2.0 * np.arange(1, n + 1)[:, None]
    signs = np.sign(s[:, None] - s)
    centred = s - s.mean()
    logits = (coefficient * centred - np.abs(s[:, None] - s).sum(-1)) / tau
    P = np.exp(logits - logits.max(-1, keepdims=True))
    P /= P.sum(-1, keepdims=True)
    wanted = P @ x
    to_logits = P * (upstream[:, None] * x - (upstream * wanted)[:, None]) / tau
    c = to_logits.sum(0)
    wanted_gradient = (coefficient * to_logits).sum(0) - c * signs.sum(1) - signs @ c
    assert np.abs(value - wanted).max() <= 1e-6 * np.abs(x).max()
    assert np.abs(gradient - wanted_gradient).max() <= 2e-6 * np.abs(wanted_gradient).max()


FIFTY_THOUSAND = """
import jax, jax.numpy as jnp, numpy as np
import neuralsort.jax as ns

rng = np.random.default_rng(0)
scores, x = (jnp.asarray(rng.normal(size=s), jnp.float32) for s in (50_000, (50_000, 4)))

def compiled(bandwidth):
    def loss(scores, x):
        return ((ns.neuralsort(scores, tau=1.0, bandwidth=bandwidth) @ x) ** 2).sum()

    return jax.jit(jax.value_and_grad(loss, argnums=(0, 1))).lower(scores, x).compile()

every_item = compiled(None).memory_analysis()
loss, gradients = jax.block_until_ready(compiled(1024)(scores, x))
assert np.isfinite(loss) and all(np.isfinite(g).all() and g.any() for g in gradients)
assert ns.neuralsort(scores, tau=1.0, bandwidth=1024).skipped_mass().max() <= 1e-7
status = dict(line.split(":") for line in open("/proc/self/status"))
print(every_item.temp_size_in_bytes, int(status["VmHWM"].split()[0]) * 1024)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc/self/status")
def test_fifty_thousand_items_take_less_than_two_gibibytes():
    """Forward and backward under jit, in a process of its own.

    Without a bandwidth, by the compiler's account of its buffers, which hold for any data; with
    one, by all that the process ever held.
    """
    script = [sys.executable, "-c", FIFTY_THOUSAND]
    done = subprocess.run(script, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    buffers, process = map(int, done.stdout.split())
    assert 0 < buffers < 2**30
    assert process < 2**31


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


@TWO_KERNELS
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


@pytest.mark.parametrize("value", [0, -1])
def test_bandwidth_must_be_positive(value):
    with pytest.raises(ValueError, match="at least 1"):
        ns.neuralsort(SCORES, bandwidth=value)


def test_bandwidth_must_be_static():
    with pytest.raises(TypeError, match="known when the function is traced"):
        jax.jit(lambda s, b: ns.neuralsort(s, bandwidth=b).rank())(SCORES, 3)


# -- Sinkhorn --------------------------------------------------------------------------------------


def test_sinkhorn_sort_is_the_oracle_s():
    scores = [0.5, 2.0, 1.0, 1.5]
    ours = ns.sinkhorn_sort(jnp.array(scores), tau=0.8, iterations=6).to_dense()
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
