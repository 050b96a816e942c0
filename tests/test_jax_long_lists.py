"""Long lists in JAX: blocks of rows in place of the matrix, windows of them, memory, float32.

Compiling takes nearly all the time of these tests, so each asks one compiled program for everything
it wants to know.
"""

import importlib
import os
import subprocess
import sys

import numpy as np
import pytest

jax = pytest.importorskip("jax")

import jax.numpy as jnp  # noqa: E402

import neuralsort.jax as ns  # noqa: E402

scored = importlib.import_module("neuralsort.jax.relaxations.scored")
blocks = importlib.import_module("neuralsort.jax.relaxations.engine.blocks")

SCORES = np.random.default_rng(0).normal(size=(2, 40))
VALUES = np.random.default_rng(1).normal(size=(2, 40, 3))
MASK = np.random.default_rng(2).uniform(size=(2, 40)) < [[0.8], [1.0]]  # the second is complete


def soft(scores, **options):
    return ns.softsort(scores, power=2.0, **options)


METHODS = {"neuralsort": ns.neuralsort, "softsort": ns.softsort, "softsort_squared": soft}
RELAX = pytest.mark.parametrize("relax", METHODS.values(), ids=METHODS)
KERNELS = pytest.mark.parametrize("relax", [ns.neuralsort, soft], ids=["neuralsort", "softsort"])


@pytest.fixture
def in_blocks(monkeypatch):
    """No list is dense: all are in blocks of a few rows."""
    monkeypatch.setattr(scored, "LONGEST_DENSE", 0)
    monkeypatch.setattr(blocks, "MOST", 8)


def assert_near(found, wanted, rtol, what):
    """The largest error is at most rtol times the largest magnitude; infinities are the same."""
    found, wanted = np.asarray(found), np.asarray(wanted)
    finite = np.isfinite(wanted)
    np.testing.assert_array_equal(found[~finite], wanted[~finite], what)
    found, wanted = found[finite], wanted[finite]
    assert np.abs(found - wanted).max() <= rtol * max(1.0, np.abs(wanted).max()), what


# -- the same as the matrix ------------------------------------------------------------------------


def everything(P):
    perm = jnp.roll(P.permutation(), 3, -1)
    return {
        "product": P @ VALUES,
        "transpose": P.mT @ VALUES,
        "sort": P.sort(VALUES[..., 0]),
        "sort of many": P.sort(VALUES[0].T[:, None]),
        "rank": P.rank(),
        "top transposed": P.top(5).mT @ VALUES[:, :5],
        "log_prob": P.log_prob(perm),
        "entropy": P.entropy(),
    }


@KERNELS
def test_long_form_equals_the_dense_one(relax, in_blocks, x64, monkeypatch):
    """Windows that are wide enough, and none; a list with absent items, and one without."""
    assert "matrix-free" in repr(relax(SCORES))

    def ask(bandwidth):
        P = relax(SCORES, tau=1e-3, mask=MASK, bandwidth=bandwidth)
        return P.skipped_mass(), everything(P)

    _, every_item = jax.jit(lambda: ask(None))()
    skipped, windows = jax.jit(lambda: ask(14))()
    assert skipped.max() <= 1e-14
    monkeypatch.setattr(scored, "LONGEST_DENSE", 10**9)
    _, dense = jax.jit(lambda: ask(None))()
    for name, value in dense.items():
        assert_near(every_item[name], value, 4e-12, name)
        assert_near(windows[name], value, 4e-12, name)


@KERNELS
def test_gradients_of_the_long_form_are_those_of_the_dense_one(relax, in_blocks, x64, monkeypatch):
    def gradients(bandwidth):
        def loss(scores, tau):
            P = relax(scores, tau=tau, bandwidth=bandwidth, mask=MASK)
            spread, log_prob = P.top(9).mT @ VALUES[:, :9], P.log_prob(P.permutation())
            sums = ((P @ VALUES) ** 2).sum() + (P.sort(VALUES[..., 0]) ** 3).sum() + spread.max()
            return sums + P.rank()[0, 3] + log_prob[:, ::3].sum()

        return jax.jit(jax.grad(loss, argnums=(0, 1)))(jnp.asarray(SCORES), 1e-3)

    ours = *gradients(None), *gradients(14)
    monkeypatch.setattr(scored, "LONGEST_DENSE", 10**9)
    for mine, wanted in zip(ours, gradients(None) * 2, strict=True):
        assert_near(mine, wanted, 1.6e-11, "gradient")


# -- windows ---------------------------------------------------------------------------------------


@KERNELS
def test_insufficient_bandwidth_is_reported_and_repaired(relax, in_blocks):
    scores = jnp.asarray(SCORES[0], jnp.float32)

    @jax.jit
    def ask(scores):
        narrow, exact = relax(scores, tau=5.0, bandwidth=3), relax(scores, tau=5.0)
        both = [(P.sort(scores), P.log_prob(P.permutation())) for P in (narrow, exact)]
        straight = narrow.straight_through().skipped_mass()
        return narrow.skipped_mass(), straight, exact.skipped_mass(), both

    skipped, straight, nothing, (narrow, exact) = ask(scores)
    assert skipped.max() > 1e-3
    np.testing.assert_array_equal(straight, skipped)
    assert (nothing == 0).all()
    for mine, wanted in zip(narrow, exact, strict=True):
        np.testing.assert_array_equal(mine, wanted)


def test_targets_outside_their_window_are_found(in_blocks):
    """Wide enough for the weights, but not for the items that are asked for."""
    scores = jnp.asarray(SCORES[0], jnp.float32)
    P, exact = (ns.neuralsort(scores, tau=1e-3, bandwidth=b) for b in (14, None))
    assert P.skipped_mass().max() <= 1e-7
    last_first = jnp.flip(P.permutation())
    np.testing.assert_array_equal(P.log_prob(last_first), exact.log_prob(last_first))


@RELAX
def test_skipped_mass_bounds_what_lies_outside_the_window(relax, in_blocks):
    scores, reach = jnp.asarray(SCORES[0], jnp.float32), 6
    far = np.abs(np.subtract.outer(range(40), range(40))) > reach + 8  # beyond any window

    @jax.jit
    def ask(tau):
        P = relax(scores, tau=tau, bandwidth=reach)
        return P.to_dense()[:, P.permutation()], P.skipped_mass()

    for tau in (0.01, 0.1, 1.0):
        weights, skipped = ask(tau)
        assert (np.where(far, weights, 0).sum(-1) <= skipped + 1e-7).all()


def test_only_long_lists_with_a_bandwidth_skip_anything():
    P = ns.neuralsort(jnp.ones((2, 3)), bandwidth=1)
    for other in (P, P.straight_through(), P.top(2), ns.sinkhorn_sort(jnp.ones((2, 3)))):
        np.testing.assert_array_equal(other.skipped_mass(), np.zeros(other.shape[:-1]))


@pytest.mark.parametrize("value", [0, -1])
def test_bandwidth_must_be_positive(value):
    with pytest.raises(ValueError, match="at least 1"):
        ns.neuralsort(jnp.ones(3), bandwidth=value)


# -- precision and memory --------------------------------------------------------------------------


AS_USERS = {"xla_backend_optimization_level": 3, "xla_llvm_disable_expensive_passes": False}
"""What XLA does unless it is told otherwise, as the settings of these tests do."""


@pytest.fixture(scope="module")
def sort_at_offset():
    """`P @ x` at n = 3000 in float32 and its gradient, compiled once for all temperatures."""

    def sort_and_gradient(scores, tau, x, upstream):
        value, back = jax.vjp(lambda s: ns.neuralsort(s, tau=tau).sort(x), scores)
        return value, back(upstream)[0]

    return jax.jit(sort_and_gradient, compiler_options=AS_USERS)


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
    as_users = {name: value for name, value in os.environ.items() if name != "XLA_FLAGS"}
    done = subprocess.run(script, capture_output=True, text=True, env=as_users)
    assert done.returncode == 0, done.stderr
    buffers, process = map(int, done.stdout.split())
    assert 0 < buffers < 2**30
    assert process < 2**31


def test_a_million_items_take_less_than_half_a_gibibyte():
    """By the compiler's account of its buffers, with windows of 1024 ranks to either side."""

    def sort(scores, x):
        return ns.neuralsort(scores, tau=1.0, bandwidth=1024).sort(x)

    def loss(scores, x):
        return (sort(scores, x) ** 2).sum()

    million = jax.ShapeDtypeStruct((10**6,), jnp.float32)
    for function, most in ((sort, 2**28), (jax.grad(loss, argnums=(0, 1)), 2**29)):
        compiled = jax.jit(function).lower(million, million).compile(AS_USERS)
        assert 0 < compiled.memory_analysis().temp_size_in_bytes < most
