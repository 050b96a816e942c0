"""P in JAX used like the matrix it stands for, as in PyTorch: entries, products, refusals."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.frameworks import assert_same, jax, jnp, nj, nt, numpy_of, of, quick_jit
from tests.portions import some_of

pytestmark = pytest.mark.usefixtures("x64")

SCORES = np.random.default_rng(0).normal(size=(2, 3, 7))
MASK = np.array([True, True, False, True, True, True, True])
TOLERANCE = 1e-11

OPERATORS: dict[str, Callable[[Any, Any], Any]] = {
    "neuralsort": lambda ns, s: ns.neuralsort(s, tau=0.5),
    "softsort": lambda ns, s: ns.softsort(s, tau=0.5, power=2.0),
    "sinkhorn_sort": lambda ns, s: ns.sinkhorn_sort(s, tau=0.5),
    "bitonic": lambda ns, s: ns.sorting_network(s, kind="bitonic"),
    "mask": lambda ns, s: ns.neuralsort(s, tau=0.5, mask=of(ns, MASK)),
    "top": lambda ns, s: ns.neuralsort(s, tau=0.5).top(4),
    "hard": lambda ns, s: ns.neuralsort(s, tau=0.0),
    "straight-through": lambda ns, s: ns.softsort(s, tau=0.5).straight_through(),
    "composed": lambda ns, s: ns.neuralsort(s, tau=0.5) @ ns.softsort(s[0, 0] ** 2),
    "transpose": lambda ns, s: ns.softsort(s, tau=0.5).top(4).mT,
}

KEYS: dict[str, Any] = {
    "row": (..., 2, slice(None)),
    "entry": (..., 1, -2),
    "column": (..., slice(None), 3),
    "rows": (..., slice(1, 4), slice(None, None, 2)),
    "entry of a list": (0, 1, 2, 3),
    "several rows": (..., np.array([3, 0, -1]), slice(None)),
    "a list of columns": (..., slice(None), [3, 0]),
    "a list of a batch": 1,
    "lists of a batch": (slice(None), [2, 0]),
}

each_operator = pytest.mark.parametrize("name", OPERATORS)


def each_operator_and_form(*of_long_lists: str) -> pytest.MarkDecorator:
    """Every run has all operators in dense form, and these in the form for long lists."""
    cases = [(form, name) for form in ("dense", "matrix-free") for name in OPERATORS]
    every_run = [case for case in cases if case[0] == "dense" or case[1] in of_long_lists]
    return pytest.mark.parametrize(
        ("length", "name"), some_of(cases, *every_run), indirect=["length"]
    )


each_form = pytest.mark.parametrize("length", ["dense", "matrix-free"], indirect=True)


@pytest.fixture
def length(request, monkeypatch):
    if request.param == "matrix-free":
        monkeypatch.setattr("neuralsort.jax.relaxations.scored.LONGEST_DENSE", 0)


def matrix_of(x: Any) -> np.ndarray:
    return numpy_of(x.to_dense() if hasattr(x, "to_dense") else x)


@each_operator_and_form("softsort", "hard", "straight-through", "transpose")
def test_entries_are_those_of_pytorch(name, length):
    """All in one program: compiling takes nearly all the time."""
    theirs = OPERATORS[name](nt, of(nt, SCORES))

    @quick_jit
    def entries(scores: Any) -> dict[str, Any]:
        P = OPERATORS[name](nj, scores)
        found = {key: P[index] for key, index in KEYS.items()}
        for key, index in KEYS.items():
            lazy = hasattr(theirs[index], "permutation")
            assert hasattr(found[key], "to_dense") == lazy or name == "transpose"
        return {key: x.to_dense() if hasattr(x, "to_dense") else x for key, x in found.items()}

    for key, found in entries(of(nj, SCORES)).items():
        assert_same(numpy_of(found), matrix_of(theirs[KEYS[key]]), TOLERANCE, key)


def test_entries_without_a_compiler_are_the_same():
    P = OPERATORS["neuralsort"](nj, of(nj, SCORES))
    matrix = np.asarray(P.to_dense())
    for key, index in KEYS.items():
        assert_same(matrix_of(P[index]), matrix[index], TOLERANCE, key)


@each_operator
def test_shapes_and_arrays(name):
    P = quick_jit(lambda scores: OPERATORS[name](nj, scores))(of(nj, SCORES))
    matrix = P.to_dense()
    assert (P.ndim, P.size, P.shape) == (matrix.ndim, matrix.size, matrix.shape)
    assert np.array_equal(np.asarray(P), np.asarray(matrix))
    assert np.asarray(P, np.float32).dtype == np.float32


@each_operator_and_form("softsort", "transpose")
def test_products_from_the_left(name, length):
    rows = OPERATORS[name](nt, of(nt, SCORES)).shape[-2]
    rng = np.random.default_rng(1)
    payloads = [rng.normal(size=(*shape, rows)) for shape in ((), (4,), (3, 4))]

    @quick_jit
    def products(scores: Any) -> tuple[Any, list[Any]]:
        P = OPERATORS[name](nj, scores)
        return P.to_dense(), [(jnp.asarray(x) @ P, x @ P) for x in payloads]

    matrix, found = products(of(nj, SCORES))
    for x, (of_jax, of_numpy) in zip(payloads, found, strict=True):
        expected = x @ np.asarray(matrix)
        assert_same(np.asarray(of_jax), expected, TOLERANCE, "JAX's array")
        assert_same(np.asarray(of_numpy), expected, TOLERANCE, "NumPy's array")


@each_operator_and_form("softsort", "mask")
def test_products_of_operators_are_those_of_pytorch(name, length):
    if name == "transpose":
        return

    def asked(ns: Any, P: Any) -> dict[str, Any]:
        rank = {} if name == "top" else {"rank": P.rank()}
        return rank | {
            "to_dense": P.to_dense(),
            "product": P @ of(ns, SCORES[0, 0]),
            "top": P.top(2).to_dense(),
            "entropy": P.entropy(),
            "permutation": P.permutation(),
        }

    def composed(ns: Any, scores: Any) -> dict[str, Any]:
        other = ns.softsort(of(ns, SCORES[:1] ** 2), tau=0.3)
        return asked(ns, OPERATORS[name](ns, scores) @ other)

    found = quick_jit(lambda scores: composed(nj, scores))(of(nj, SCORES))
    for what, wanted in composed(nt, of(nt, SCORES)).items():
        assert_same(numpy_of(found[what]), numpy_of(wanted), TOLERANCE, what)


@each_form
def test_a_row_under_jit_and_grad(length):
    def row(s: Any, i: Any) -> Any:
        return nj.neuralsort(s, tau=0.5)[i, :]

    def row_of_matrix(s: Any, i: Any) -> Any:
        return nj.neuralsort(s, tau=0.5).to_dense()[i]

    @jax.jit
    def both(scores: Any, i: Any) -> Any:
        def derived(s: Any, take: Any) -> Any:
            row = take(s, i)
            return row @ jnp.arange(7.0), row

        return [jax.grad(derived, has_aux=True)(scores, take) for take in (row, row_of_matrix)]

    (one, found), (other, expected) = both(of(nj, SCORES[0, 0]), 3)
    assert_same(np.asarray(found), np.asarray(expected), TOLERANCE, "jit")
    assert_same(np.asarray(one), np.asarray(other), TOLERANCE, "gradient")


def test_composed_operators_pass_through_vmap():
    def compose(s: Any) -> Any:
        return nj.neuralsort(s, tau=0.5) @ nj.softsort(s[0], tau=0.5)

    found = jax.vmap(compose)(of(nj, SCORES)).to_dense()
    expected = np.stack([np.asarray(compose(of(nj, s)).to_dense()) for s in SCORES])
    assert_same(np.asarray(found), expected, TOLERANCE, "vmap")


REFUSED = {
    "sum": (lambda P: P.sum(), AttributeError),
    "plus": (lambda P: P + 1, TypeError),
    "times": (lambda P: 2.0 * P, TypeError),
    "P^T P": (lambda P: P.mT @ P, TypeError),
    "P P^T": (lambda P: P @ P.mT, TypeError),
    "a new dimension": (lambda P: P[None], TypeError),
    "a mask": (lambda P: P[..., np.ones(7, bool), :], TypeError),
    "a truth value": (lambda P: P[True], TypeError),
    "a float": (lambda P: P[..., 1.5, :], TypeError),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_needs_the_matrix_says_so(what):
    ask, error = REFUSED[what]
    with pytest.raises(error, match=r"to_dense\(\)"):
        ask(nj.neuralsort(of(nj, SCORES)))


WRONG = {
    "row": (lambda P: P[..., 7, :], IndexError, r"from -7 to 6 .* got 7"),
    "rows": (lambda P: P[..., np.array([0, 9]), :], IndexError, r"-7 to 6 .* got \[0, 9\]"),
    "too many": (lambda P: P[0, 0, 0, 0, 0], IndexError, r"at most 4 indices.* got 5"),
    "left": (lambda P: np.ones((3, 5)) @ P, ValueError, r"7 columns.*got shape \(3, 5\).*mT"),
    "operator": (lambda P: P @ P.top(3), ValueError, r"rows in Q.*7, got 3.*top"),
    "batch": (lambda P: P @ nj.neuralsort(jnp.ones((5, 7))), ValueError, r"broadcasts against"),
}


@pytest.mark.parametrize("what", WRONG)
def test_what_does_not_fit_says_so(what):
    ask, error, message = WRONG[what]
    with pytest.raises(error, match=message):
        ask(nj.neuralsort(of(nj, SCORES)))
