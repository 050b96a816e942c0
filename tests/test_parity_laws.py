"""JAX and TensorFlow against the oracle, and the laws of the registry in every framework.

Compiling takes nearly all the time: lists have one shape, and the lists of all laws are one batch.
"""

import functools
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch

from neuralsort.torch import registry
from tests import oracle
from tests.frameworks import (
    PACKAGES,
    TOLERANCE,
    assert_same,
    jax,
    jnp,
    nj,
    nt,
    ntf,
    numpy_of,
    of,
    quick_jit,
    tf,
)
from tests.methods import METHODS, SOFTMAX, Method, SoftmaxMethod

BY_NAME = {method.name: method for method in METHODS}
SINGLE = ("neuralsort", "lapsum")


def relaxation(method: Method, package: Any) -> Any:
    found = method.relaxation_of(package)
    assert found is not None
    return found


def in_rooms(methods: Iterable[Method], *rooms: str) -> pytest.MarkDecorator:
    """Runs a test of `method`, `room` and `dtype` wherever a room has the method.

    In float32 a method or two in every run: programs are compiled for each dtype by itself.
    """
    cases = [
        pytest.param(
            method,
            room,
            dtype,
            id=f"{method.name}-{room}-{dtype}",
            marks=pytest.mark.long if dtype == "float32" and method.name not in SINGLE else (),
        )
        for method in methods
        for room in rooms
        for dtype in ("float64", "float32")
        if method.relaxation_of(PACKAGES[room])
    ]
    return pytest.mark.parametrize(("method", "room", "dtype"), cases, indirect=["dtype"])


# -- numbers ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Case:
    """Lists of scores with a temperature for each, and which items are there."""

    scores: list[list[float]]
    tau: float | list[float] = 1.0
    mask: list[list[bool]] | None = None

    def scores_as(self, dtype: str) -> np.ndarray:
        return np.asarray(self.scores, dtype)

    def taus(self) -> list[float]:
        return self.tau if isinstance(self.tau, list) else [self.tau] * len(self.scores)


A, B = [0.3, -1.2, 2.0, 0.9, 1.1], [1.5, -0.5, 1.0, 3.0, 0.0]

CASES = {  # of one shape where they can be, so that JAX compiles once
    "distinct": Case([A, B]),
    "cold": Case([A, B], tau=0.01),
    "hot": Case([A, B], tau=50.0),
    "ties": Case([[1.0, 3.0, 1.0, 3.0, 3.0], [2.0] * 5], tau=0.7),
    "offset": Case([[10000.5, 10001.0, 10000.25, 9999.0, 10000.0], A], tau=0.5),
    "tau per list": Case([A, B], tau=[0.25, 4.0]),
    "mask": Case([A, B], mask=[[True, False, True, True, True], [True, False, False, True, False]]),
    "one item": Case([[4.0]]),
}
"""The shared table."""


def tau_of(case: Case, dtype: str) -> float | np.ndarray:
    return np.asarray(case.tau, dtype)[:, None] if isinstance(case.tau, list) else case.tau


def with_torch(method: Method, case: Case, dtype: str, upstream: np.ndarray):
    scores = torch.tensor(case.scores_as(dtype), requires_grad=True)
    tau = tau_of(case, dtype)
    tau = torch.from_numpy(tau) if isinstance(tau, np.ndarray) else tau
    mask = None if case.mask is None else torch.tensor(case.mask)
    P = relaxation(method, nt)(scores, tau=tau, mask=mask).to_dense()
    (P * torch.tensor(upstream, dtype=P.dtype)).sum().backward()
    assert scores.grad is not None
    return P, scores.grad


@functools.cache
def compiled(name: str):
    """One program for all cases of a shape."""
    method = BY_NAME[name]

    def step(scores, tau, mask, upstream):
        def relax(scores):
            return relaxation(method, nj)(scores, tau=tau, mask=mask).to_dense()

        P, back = jax.vjp(relax, scores)
        return P, back(upstream)[0]

    return jax.jit(step)


def with_jax(method: Method, case: Case, dtype: str, upstream: np.ndarray):
    mask = None if case.mask is None else jnp.array(case.mask)
    tau = jnp.asarray(case.taus(), dtype)[:, None]
    P, grad = compiled(method.name)(case.scores_as(dtype), tau, mask, upstream.astype(dtype))
    assert P.dtype == grad.dtype == dtype
    return P, grad


def with_tf(method: Method, case: Case, dtype: str, upstream: np.ndarray):
    scores = tf.constant(case.scores_as(dtype))
    tau = tau_of(case, dtype)
    tau = tf.constant(tau) if isinstance(tau, np.ndarray) else tau
    mask = None if case.mask is None else tf.constant(case.mask)
    with tf.GradientTape() as tape:
        tape.watch(scores)
        P = relaxation(method, ntf)(scores, tau=tau, mask=mask)
        loss = tf.reduce_sum(P * tf.constant(upstream, P.dtype))
    assert P.dtype.name == dtype
    return P, tape.gradient(loss, scores)


RUNNERS = {"torch": with_torch, "jax": with_jax, "tf": with_tf}


def expected(method: SoftmaxMethod, case: Case, dtype: str, upstream: np.ndarray):
    """Weights by the oracle and gradients by the printed formula, list by list, unpadded."""
    scores = case.scores_as(dtype).astype(np.float64)
    n = scores.shape[-1]
    weights, gradients = np.zeros((*scores.shape, n)), np.zeros(scores.shape)
    for b, (row, tau) in enumerate(zip(scores, case.taus(), strict=True)):
        there = np.array([True] * n if case.mask is None else case.mask[b])
        items, absent = np.flatnonzero(there), np.flatnonzero(~there)
        m = len(items)
        weights[b, :m, items] = method.weights(row[items], tau).T
        weights[b, range(m, n), absent] = 1.0
        s = torch.tensor(row[items], requires_grad=True)
        P = torch.softmax(method.formula(s - row[items][0]) / tau, -1)
        (P * torch.tensor(upstream[b][:m][:, items])).sum().backward()
        gradients[b, items] = s.grad
    return weights, gradients


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
@in_rooms(SOFTMAX, "torch", "jax", "tf")
def test_values_and_gradients_are_the_oracle_s(method, room, case, dtype):
    shape = (len(case.scores), *[len(case.scores[0])] * 2)
    upstream = np.random.default_rng(0).normal(size=shape)
    weights, gradient = expected(method, case, dtype, upstream)
    P, grad = (numpy_of(x) for x in RUNNERS[room](method, case, dtype, upstream))
    assert_same(P, weights, TOLERANCE[dtype], "weights")
    assert_same(grad, gradient, TOLERANCE[dtype], "gradient")


# -- laws ------------------------------------------------------------------------------------------

LIST = np.array([0.25, -1.25, 2.0, 0.875, 1.125])  # multiples of 1/8: shifts and scales are exact
STEP = 0.25  # the smallest difference
ORDER = np.array([3, 1, 4, 0, 2])
TAU = 0.5


def lists_of(method: Method) -> dict[str, tuple[np.ndarray, float]]:
    """Scores and temperature of each list that the laws speak of."""
    return {
        "plain": (LIST, TAU),
        "permuted": (LIST[ORDER], TAU),
        "shifted": (LIST + 4.0, TAU),
        "scaled": (LIST * 2.0, TAU * 2.0**method.homogeneity),
        "cold": (LIST, method.cold * STEP**method.homogeneity),
        "tied": (np.array([1.0, 2.0, 1.0, 2.0, 2.0]), TAU),
    }


@functools.cache
def matrices(name: str, room: str, dtype: str, converged: bool) -> dict[str, np.ndarray]:
    """The matrices of these lists, in one batch with a temperature for each."""
    package, method = PACKAGES[room], BY_NAME[name]
    lists = lists_of(method)
    relax = functools.partial(relaxation(method, package), **(method.converge if converged else {}))
    scores = np.array([scores for scores, _ in lists.values()], dtype)
    taus = np.array([[tau] for _, tau in lists.values()], dtype)
    if room == "jax":
        dense = quick_jit(lambda s, tau: relax(s, tau=tau).to_dense())(scores, taus)
    else:
        dense = relax(of(package, scores), tau=of(package, taus))
    return dict(zip(lists, numpy_of(dense), strict=True))


def rows(P: dict[str, np.ndarray]) -> tuple[Any, Any]:
    return np.array([x.sum(-1) for x in P.values()]), np.ones((len(P), 5))


def columns(P: dict[str, np.ndarray]) -> tuple[Any, Any]:
    return P["plain"].sum(-2), np.ones(5)


def equivariance(P: dict[str, np.ndarray]) -> tuple[Any, Any]:
    return P["permuted"], P["plain"][:, ORDER]


def shift(P: dict[str, np.ndarray]) -> tuple[Any, Any]:
    return P["shifted"], P["plain"]


def scale(P: dict[str, np.ndarray]) -> tuple[Any, Any]:
    return P["scaled"], P["plain"]


def limit(P: dict[str, np.ndarray]) -> tuple[Any, Any]:
    return P["cold"], oracle.hard_matrix(oracle.stable_descending(LIST))


def ties(P: dict[str, np.ndarray]) -> tuple[Any, Any]:
    return P["tied"][:, [0, 1, 1]], P["tied"][:, [2, 3, 4]]


def unimodality(P: dict[str, np.ndarray]) -> tuple[Any, Any]:
    return P["plain"].argmax(-1), np.array(oracle.stable_descending(LIST))


LAWS = {
    law.__name__: law
    for law in (rows, columns, equivariance, shift, scale, limit, ties, unimodality)
}
"""Each gives what must be equal."""


def test_every_law_of_the_registry_is_checked():
    assert set(LAWS) == set(registry.LAWS)


@in_rooms(METHODS, "jax", "tf")
def test_laws_hold_in_every_framework(method, room, dtype):
    for law in method.laws:
        P = matrices(method.name, room, dtype, converged=law == "columns" and bool(method.converge))
        found, wanted = LAWS[law](P)
        assert_same(found, wanted, TOLERANCE[dtype], law)


@in_rooms(METHODS, "jax", "tf")
def test_weights_are_the_oracle_s(method, room, dtype):
    found = matrices(method.name, room, dtype, converged=False)
    for name in ("plain", "tied"):
        scores, tau = lists_of(method)[name]
        assert_same(found[name], method.weights(scores, tau), TOLERANCE[dtype], name)
