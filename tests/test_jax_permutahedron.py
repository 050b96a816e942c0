"""Projections onto the permutahedron in JAX: against the minimax formula, at every edge."""

import functools

import numpy as np
import pytest
import scipy.stats

from tests import oracle
from tests.portions import some_of

jax = pytest.importorskip("jax")

import jax.numpy as jnp  # noqa: E402

import neuralsort.jax as ns  # noqa: E402

INF, NAN = float("inf"), float("nan")
FUNCTIONS = {"sort": ns.fast_soft_sort, "rank": ns.fast_soft_rank}
ORACLES = {"sort": oracle.fast_soft_sort, "rank": oracle.fast_soft_rank}
LINE = np.linspace(-1, 1, 11)

each_function = pytest.mark.parametrize("name", FUNCTIONS)
each_kind = pytest.mark.parametrize("kind", ["l2", "kl"])


@each_function
@each_kind
def test_float32_values_are_those_of_the_minimax_formula(name, kind):
    """Random, smooth, cascading and tied lists, which are no power of 2 long."""
    rng = np.random.default_rng(0)
    walk, bent = rng.normal(size=11).cumsum(), np.append(LINE[:-1], 50.0)
    tied = [2.0, 1.0, 0.5] * 3 + [2.0, -1.0]
    lists = np.array([rng.normal(size=11), LINE, np.exp(LINE), walk, bent, tied], np.float32)
    for strength in (0.1, 2.0):
        options = {"strength": strength, "regularization": kind}
        soft = jax.jit(functools.partial(FUNCTIONS[name], **options))(jnp.asarray(lists))
        wanted = [ORACLES[name](x.tolist(), strength, kind == "kl") for x in lists]
        np.testing.assert_allclose(soft, wanted, rtol=1e-6, atol=1e-6)


@each_function
@each_kind
def test_edges_keep_their_rules(name, kind):
    """A tiny strength is hard, under jit too; infinities stay; a NaN spoils its own list."""
    x = jnp.array(
        [[3.0, 1.0, 3.0, 2.0, 3.0, 1.0], [1.0, INF, 2.0, -INF, 3.0, INF], [NAN] + [1.0] * 5]
    )
    soft = functools.partial(FUNCTIONS[name], regularization=kind)

    @jax.jit
    def ask(x):
        grad = jax.grad(lambda x: soft(x, strength=1.0)[:, 2].sum())(x)
        return [soft(x, strength=s) for s in (0.0, 1e-300, 1.0)], grad

    (zero, tiny, one), grad = ask(x)
    hard = np.sort(x[:2], -1) if name == "sort" else scipy.stats.rankdata(x[:2], axis=-1)
    for value in (zero, tiny):
        np.testing.assert_allclose(value[:2], hard, rtol=1e-6)
    ends = [0, 4, 5] if name == "sort" else [1, 3, 5]
    np.testing.assert_allclose(one[1, ends], hard[1, ends], rtol=1e-6)
    for value in (zero, tiny, one):
        assert np.isnan(value[2]).all()
    assert np.isfinite(grad[:2]).all()


def test_kinks_have_the_derivatives_of_blocks_kept_apart():
    """Neighbours that are in order to the last bit are not pooled."""
    x = jnp.array([1.0, 2.0, 3.0])
    np.testing.assert_array_equal(jax.jit(jax.jacrev(ns.fast_soft_sort))(x), np.eye(3))


@each_kind
def test_ranks_that_are_hard_have_no_gradient(kind):
    def loss(x):
        ranks = ns.fast_soft_rank(x, strength=1e-12, regularization=kind)
        return (ranks * jnp.array([0.3, 1.7, -0.6])).sum()

    assert (jax.jit(jax.grad(loss))(jnp.array([1.1, 0.3, 2.7])) == 0).all()


def test_second_derivatives_are_those_of_finite_differences():
    x = jnp.asarray(np.random.default_rng(0).normal(size=5), jnp.float32)

    def loss(x):
        return (ns.fast_soft_rank(x, strength=1.0, regularization="kl") ** 3).sum()

    hessian, gradient = jax.jit(jax.hessian(loss))(x), jax.jit(jax.grad(loss))
    step = jnp.asarray(1e-2 * np.eye(5), jnp.float32)
    wanted = [(gradient(x + h) - gradient(x - h)) / 2e-2 for h in step]
    np.testing.assert_allclose(hessian, wanted, atol=5e-3 * float(abs(hessian).max()))


def test_long_cascades_keep_the_sum_of_their_ranks():
    """One value that pools with all before it; vmap equals a batch."""
    n = 300
    x = jnp.stack([jnp.arange(float(n)).at[-1].set(2.0 * n), jnp.ones(n)])
    soft = functools.partial(ns.fast_soft_rank, strength=1.001)
    ranks, mapped = jax.jit(lambda x: (soft(x), jax.vmap(soft)(x)))(x)
    ranks = np.asarray(ranks, np.float64)
    np.testing.assert_allclose(ranks.sum(-1), n * (n + 1) / 2, rtol=1e-6)
    np.testing.assert_allclose(ranks[1], (n + 1) / 2, rtol=1e-6)
    assert (np.diff(ranks[0]) >= 0).all()
    np.testing.assert_allclose(mapped, ranks, rtol=1e-6)


@each_function
@pytest.mark.parametrize(
    ("shape", "compiled"),
    some_of(
        [(shape, compiled) for shape in ((3, 0), (0, 4), (2, 1)) for compiled in (True, False)],
        *(((3, 0), True), ((0, 4), True), ((2, 1), False)),
    ),
)
def test_empty_and_shortest_lists(name, shape, compiled):
    """Without `jit` every operation is a program: once in every run."""
    soft = functools.partial(FUNCTIONS[name], dim=-1)
    value = (jax.jit(soft) if compiled else soft)(jnp.full(shape, 3.0))
    assert value.shape == shape
    assert (value == (3.0 if name == "sort" else 1.0)).all()


def test_huge_values_do_not_overflow():
    """Far apart they pool into one block, whose mean is 0: to float32 of the largest."""
    x = jnp.array([1e38, -1e38, 3e38, -3e38, 0.0])

    def second(x):
        soft = ns.fast_soft_sort(x)
        return soft[1], soft

    gradient, soft = jax.jit(jax.grad(second, has_aux=True))(x)
    np.testing.assert_allclose(soft, [-2.0, -1.0, 0.0, 1.0, 2.0], atol=1e-6 * 3e38)
    np.testing.assert_allclose(gradient, 0.2, rtol=1e-6)
