"""Long lists in JAX: the band engine, blocks of rows, windows of them, memory, float32.

Compiling takes nearly all the time of these tests, so each asks one compiled program for everything
it wants to know.
"""

import functools
import importlib
import os
import subprocess
import sys

import numpy as np
import pytest

jax = pytest.importorskip("jax")

import jax.numpy as jnp  # noqa: E402
import torch  # noqa: E402

import neuralsort.jax as ns  # noqa: E402
from tests import soak  # noqa: E402
from tests.portions import some_of  # noqa: E402
from tests.xla import AS_USERS, BUFFERS_OF_USERS  # noqa: E402

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


def what_random_rows_leave_out(P):
    return {
        "product": P @ VALUES,
        "top transposed": P.top(5).mT @ VALUES[:, :5],
        "log_prob": P.log_prob(jnp.roll(P.permutation(), 3, -1)),
        "entropy": P.entropy(),
    }


def everything(P):
    return what_random_rows_leave_out(P) | {
        "transpose": P.mT @ VALUES,
        "sort": P.sort(VALUES[..., 0]),
        "sort of many": P.sort(VALUES[0].T[:, None]),
        "rank": P.rank(),
    }


@pytest.mark.parametrize(
    ("relax", "whole"),
    some_of(
        [(relax, whole) for relax in (ns.neuralsort, soft) for whole in (False, True)],
        (ns.neuralsort, False),
    ),
)
def test_long_form_equals_the_dense_one(relax, whole, in_blocks, x64, monkeypatch):
    """Windows that are wide enough, and none; a list with absent items, and one without.

    Of the band engine a part in every run, since `test_random_rows_of_random_problems` has others.
    """
    assert "matrix-free" in repr(relax(SCORES))

    def ask(bandwidth):
        P = relax(SCORES, tau=1e-3, mask=MASK, bandwidth=bandwidth)
        return P.skipped_mass(), everything(P) if whole else what_random_rows_leave_out(P)

    _, every_item = jax.jit(lambda: ask(None))()
    skipped, windows = jax.jit(lambda: ask(14))()
    assert skipped.max() <= 1e-14
    monkeypatch.setattr(scored, "LONGEST_DENSE", 10**9)
    _, dense = jax.jit(lambda: ask(None))()
    for name, value in dense.items():
        assert_near(every_item[name], value, 4e-12, name)
        assert_near(windows[name], value, 4e-12, name)


@pytest.mark.parametrize(
    ("relax", "bandwidth", "whole"),
    some_of(
        [
            (relax, bandwidth, whole)
            for relax in (ns.neuralsort, soft)
            for bandwidth in (None, 14)
            for whole in (False, True)
        ],
        (ns.neuralsort, 14, False),  # without windows: by random rows
        (soft, None, True),
    ),
)
def test_gradients_of_the_long_form_are_those_of_the_dense_one(
    relax, bandwidth, whole, in_blocks, x64, monkeypatch
):
    def gradients(bandwidth):
        def loss(scores, tau):
            P = relax(scores, tau=tau, bandwidth=bandwidth, mask=MASK)
            log_prob = P.log_prob(P.permutation())
            sums = ((P @ VALUES) ** 2).sum() + P.rank()[0, 3] + log_prob[:, ::3].sum()
            if not whole:
                return sums
            spread = P.top(9).mT @ VALUES[:, :9]
            return sums + (P.sort(VALUES[..., 0]) ** 3).sum() + spread.max()

        return jax.jit(jax.grad(loss, argnums=(0, 1)))(jnp.asarray(SCORES), 1e-3)

    ours = gradients(bandwidth)
    monkeypatch.setattr(scored, "LONGEST_DENSE", 10**9)
    for mine, wanted in zip(ours, gradients(None), strict=True):
        assert_near(mine, wanted, 1.6e-11, "gradient")


# -- windows ---------------------------------------------------------------------------------------


@KERNELS
def test_insufficient_bandwidth_is_reported_and_repaired(relax, in_blocks):
    """To the last bit where XLA compiles as it does for users."""
    scores = jnp.asarray(SCORES[0], jnp.float32)

    @functools.partial(jax.jit, compiler_options=AS_USERS)
    def ask(scores):
        narrow, exact = relax(scores, tau=5.0, bandwidth=3), relax(scores, tau=5.0, bandwidth=40)
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

    @jax.jit
    def ask(scores):
        P, exact = (ns.neuralsort(scores, tau=1e-3, bandwidth=b) for b in (14, None))
        last_first = jnp.flip(P.permutation())
        return P.skipped_mass(), P.log_prob(last_first), exact.log_prob(last_first)

    skipped, found, wanted = ask(jnp.asarray(SCORES[0], jnp.float32))
    assert skipped.max() <= 1e-7
    np.testing.assert_array_equal(found, wanted)


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
    @jax.jit
    def skipped(scores):
        P = ns.neuralsort(scores, bandwidth=1)
        others = P, P.straight_through(), P.top(2), ns.sinkhorn_sort(scores)
        return [(other.skipped_mass(), jnp.zeros(other.shape[:-1])) for other in others]

    for found, wanted in skipped(jnp.ones((2, 3))):
        np.testing.assert_array_equal(found, wanted)


@pytest.mark.parametrize("value", [0, -1])
def test_bandwidth_must_be_positive(value):
    with pytest.raises(ValueError, match="at least 1"):
        ns.neuralsort(jnp.ones(3), bandwidth=value)


# -- the band engine -------------------------------------------------------------------------------


def engine_answers(scores, tau, mask, payload, upstream):
    """What is checked of one problem, in one program: values, gradients, ranks, columns."""

    def values(scores, tau, payload):
        return ns.neuralsort(scores, tau=tau, mask=mask).sort(payload)

    out, back = jax.vjp(values, scores, tau, payload)
    P = ns.neuralsort(scores, tau=tau, mask=mask)
    return out, *back(upstream), P.rank(), P.mT @ upstream[..., None]


@pytest.mark.parametrize(
    ("kind", "seeds"), some_of([("float32", 10), ("float32", 32), ("float64", 32)], ("float32", 10))
)
def test_random_rows_of_random_problems(kind, seeds, request):
    """Clusters, ties, heavy tails and crowds; temperatures from 1e-6 to 1e6 gaps; masks."""
    if kind == "float64":
        request.getfixturevalue("x64")
    ask, dtype = jax.jit(engine_answers), np.dtype(kind)
    value_bound, gradient_bound = (
        soak.VALUE[getattr(torch, kind)],
        soak.GRADIENT[getattr(torch, kind)],
    )
    for seed in range(seeds):
        rng = np.random.default_rng(seed)
        story, scores = soak._scores(rng, 2, 600)
        scores = scores.astype(dtype)
        gaps = np.diff(np.sort(scores[np.isfinite(scores)]))
        gap = np.median(gaps[gaps > 0]) if (gaps > 0).any() else 1.0
        tau = np.clip(gap * 10 ** rng.uniform(-6, 6, (2, 1)), 1e-30, 1e30).astype(dtype)
        if seed % 5 == 0:
            tau[0] = 0.0  # a hard list beside a soft one
        mask = rng.random((2, 600)) < rng.choice([0.7, 1.0])
        mask[:, 0] = True
        payload = rng.standard_normal((2, 600)).astype(dtype)
        tensors = map(torch.from_numpy, (scores, tau.astype(float), mask, payload))
        problem = soak.Problem(seed, *list(tensors)[:3], "neuralsort", 1.0, torch.tensor(payload))
        rows = {}
        for b in range(2):
            i = int(rng.integers(mask[b].sum()))
            rows[b, i] = soak.expected_row(problem, b, i)
        upstream = np.zeros((2, 600), dtype)
        for at in rows:
            upstream[at] = 1
        found = ask(*map(jnp.asarray, (scores, tau, mask, payload, upstream)))
        values, to_scores, to_tau, to_payload, rank, columns = (np.float64(x) for x in found)
        for (b, i), row in rows.items():
            what = f"seed {seed}, {story}, tau {tau[b, 0]:.3g}, list {b}, row {i}: "
            expected = float((row.weights * payload[b, row.items]).sum())
            assert abs(values[b, i] - expected) <= value_bound, what + "value"
            weights = np.zeros(600)
            weights[row.items] = row.weights
            assert np.abs(to_payload[b] - weights).max() <= value_bound, what + "payload"
            assert np.abs(columns[b, :, 0] - weights).max() <= value_bound, what + "column"
            slope = np.zeros(600)
            slope[row.items] = soak.expected_gradient(problem, b, row)
            unit = float(tau[b, 0]) or 1.0
            scale = max(np.abs(slope).max(), 1 / unit)
            assert np.abs(to_scores[b] - slope).max() <= gradient_bound * scale, what + "gradient"
            heat = soak.expected_tau_gradient(problem, b, row)
            assert abs(to_tau[b, 0] * tau[b, 0] - heat) <= gradient_bound, what + "temperature"
            column = soak.expected_column(problem, b, i)
            place = np.arange(1, len(column) + 1)
            mean = float((column * place).sum() / column.sum())
            spread = float(np.sqrt((column * (place - mean) ** 2).sum() / column.sum()))
            bound = value_bound * (1 + spread) + mean * np.finfo(dtype).eps
            assert abs(rank[b, row.items[i]] - mean) <= bound, what + "rank"


@pytest.mark.parametrize(
    "twice", [False, pytest.param(True, marks=pytest.mark.long)], ids=["once", "twice"]
)
def test_engine_maps_and_has_every_derivative(in_blocks, x64, monkeypatch, twice):
    """Under vmap, forwards, and twice: the latter two in blocks of rows.

    Twice in `make test-all`; every run has Hessians of both forms in `test_jax_relaxations.py`.
    """
    scores, x = jnp.asarray(SCORES[:, :20]), jnp.asarray(VALUES[:, :20, 0])

    def loss(scores, x, tau):
        P = ns.neuralsort(scores, tau=tau)
        return (P.sort(x) ** 2).sum() + ((P.rank() * x).sum() if twice else 0.0)

    def sorted_only(scores, tau):
        return (ns.neuralsort(scores, tau=tau).sort(x[0]) ** 2).sum()

    def ask():
        first = jax.vmap(jax.value_and_grad(loss, argnums=(0, 1)), (0, 0, None))(scores, x, 0.1)
        forwards = jax.jvp(sorted_only, (scores[0], 0.1), (x[0], 1.0))[1]
        if not twice:
            return first, forwards
        slope = jax.grad(sorted_only, argnums=(0, 1))
        over_reverse = jax.jvp(slope, (scores[0], 0.1), (x[0], 1.0))[1]
        over_gradient = jax.grad(lambda s: (slope(s, 0.1)[0] * x[1]).sum())(scores[0])
        return first, forwards, over_reverse, over_gradient

    ours = jax.jit(lambda: ask())()
    monkeypatch.setattr(scored, "LONGEST_DENSE", 10**9)
    for mine, wanted in zip(*map(jax.tree.leaves, (ours, jax.jit(lambda: ask())())), strict=True):
        assert_near(mine, wanted, 1e-10, "derivative")


def test_values_that_are_not_finite_count_where_they_have_weight(in_blocks):
    scores = jnp.asarray(SCORES[0], jnp.float32).at[3].set(jnp.inf).at[7].set(-jnp.inf)
    x = jnp.asarray(VALUES[0, :, 0], jnp.float32)
    sort = jax.jit(lambda x: ns.neuralsort(scores, tau=0.01).sort(x))
    plain, odd = sort(x), sort(x.at[3].set(jnp.nan).at[7].set(-jnp.inf))
    np.testing.assert_array_equal(odd[1:-1], plain[1:-1])
    assert np.isnan(odd[0])
    assert odd[-1] == -np.inf


def test_rows_beside_a_crowd_of_ties():
    """A window of 100,000 columns for 64 rows: float32 holds."""
    crowd, rows, far = 100_000, 64, 1.5 / 64
    scores = np.concatenate([np.zeros(crowd), far + np.arange(1, rows + 1) * 1e-6])
    scores = scores.astype(np.float32)[::-1].copy()
    x = np.where(scores > far / 2, 1.0, 0.0).astype(np.float32)
    found = jax.jit(lambda s, x: ns.neuralsort(s, tau=1.0).top(64).sort(x))(scores, x)
    gaps = -np.diff(np.float64(scores))
    for i in (0, 31, 63):
        right = np.cumsum(gaps[i:] * (2 * np.arange(len(gaps) - i) + 1))
        left = np.cumsum(gaps[:i][::-1] * (2 * np.arange(i) + 1))
        weights = np.exp(-np.concatenate([left[::-1], [0], right]))
        assert abs(found[i] - (weights * x).sum() / weights.sum()) <= 2e-6


# -- precision and memory --------------------------------------------------------------------------


@functools.cache
def sort_at_offset(derive):
    """`P @ x` at n = 3000 in float32 and its gradient, compiled once for all temperatures."""

    def sort_and_gradient(scores, tau, x, upstream):
        def sort(scores):
            return ns.neuralsort(scores, tau=tau).sort(x)

        if not derive:
            return sort(scores), None
        value, back = jax.vjp(sort, scores)
        return value, back(upstream)[0]

    return jax.jit(sort_and_gradient, compiler_options=AS_USERS)


@pytest.mark.parametrize("tau", [0.01, 1.0, 16.0])
@pytest.mark.parametrize("derive", some_of([False, True], False))
def test_float32_is_accurate_at_an_offset(tau, derive):
    """At n = 3000 and an offset of 10^4: `P @ x` and its gradient against float64.

    The gradient in `make test-all`; every run has random rows of it, above.
    """
    n, rng = 3000, np.random.default_rng(0)
    scores = np.float32(rng.normal(size=n) + 1e4)
    x, upstream = np.float32(rng.normal(size=n)), np.float32(rng.normal(size=n))
    value, gradient = sort_at_offset(derive)(scores, jnp.asarray(tau, jnp.float32), x, upstream)
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
    if derive:
        assert np.abs(gradient - wanted_gradient).max() <= 2e-6 * np.abs(wanted_gradient).max()


FIFTY_THOUSAND = """
import jax, jax.numpy as jnp, numpy as np
import neuralsort.jax as ns

rng = np.random.default_rng(0)
scores, x = (jnp.asarray(rng.normal(size=s), jnp.float32) for s in (50_000, (50_000, 4)))

def loss(scores, x):
    return ((ns.neuralsort(scores, tau=1.0, bandwidth=1024) @ x) ** 2).sum()

program = jax.jit(jax.value_and_grad(loss, argnums=(0, 1)))
loss, gradients = jax.block_until_ready(program(scores, x))
assert np.isfinite(loss) and all(np.isfinite(g).all() and g.any() for g in gradients)
assert ns.neuralsort(scores, tau=1.0, bandwidth=1024).skipped_mass().max() <= 1e-7
status = dict(line.split(":") for line in open("/proc/self/status"))
print(int(status["VmHWM"].split()[0]) * 1024)
"""


@pytest.mark.long
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc/self/status")
def test_fifty_thousand_items_in_windows_take_less_than_two_gibibytes():
    """Forward and backward under jit: all that a process of its own ever held.

    In every run by the compiler's account, of a million items, below.
    """
    script = [sys.executable, "-c", FIFTY_THOUSAND]
    as_users = {name: value for name, value in os.environ.items() if name != "XLA_FLAGS"}
    done = subprocess.run(script, capture_output=True, text=True, env=as_users)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 2**31


@pytest.mark.long
def test_fifty_thousand_items_take_less_than_a_gibibyte():
    """By the compiler's account of its buffers, which hold for any data; as of a million below."""

    def loss(scores, x):
        return ((ns.neuralsort(scores, tau=1.0) @ x) ** 2).sum()

    scores, x = (jax.ShapeDtypeStruct(s, jnp.float32) for s in ((50_000,), (50_000, 4)))
    compiled = jax.jit(jax.value_and_grad(loss, argnums=(0, 1))).lower(scores, x)
    buffers = compiled.compile(BUFFERS_OF_USERS).memory_analysis().temp_size_in_bytes
    assert 0 < buffers < 2**30


def test_a_million_items_take_less_than_two_gibibytes():
    """By the compiler's account of its buffers, which hold for any data and temperature."""

    def loss(scores, x, tau):
        return (ns.neuralsort(scores, tau=tau).sort(x) ** 2).sum()

    million, tau = (jax.ShapeDtypeStruct(s, jnp.float32) for s in ((10**6,), ()))
    compiled = jax.jit(jax.grad(loss, argnums=(0, 1, 2))).lower(million, million, tau)
    assert 0 < compiled.compile(BUFFERS_OF_USERS).memory_analysis().temp_size_in_bytes < 2**31


@pytest.mark.parametrize("of", some_of(["value", "gradient"], "gradient"))
def test_a_million_items_in_windows_take_less_than_half_a_gibibyte(of):
    """By the compiler's account of its buffers, with windows of 1024 ranks to either side."""

    def sort(scores, x):
        return ns.neuralsort(scores, tau=1.0, bandwidth=1024).sort(x)

    def loss(scores, x):
        return (sort(scores, x) ** 2).sum()

    million = jax.ShapeDtypeStruct((10**6,), jnp.float32)
    function, most = {"value": (sort, 2**28), "gradient": (jax.grad(loss, (0, 1)), 2**29)}[of]
    compiled = jax.jit(function).lower(million, million).compile(BUFFERS_OF_USERS)
    assert 0 < compiled.memory_analysis().temp_size_in_bytes < most
