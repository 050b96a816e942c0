"""P used like the matrix it stands for: entries, products, copies, trees, and what is refused."""

import copy
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils import _pytree

import neuralsort.torch as ns
from tests.methods import in_form
from tests.portions import some_of

S = torch.randn(2, 3, 7, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
TAU = torch.tensor([[[0.4], [0.5], [0.6]]], dtype=torch.float64)
MASK = torch.tensor([True, True, False, True, True, True, True])

OPERATORS: dict[str, Callable[[Tensor], Any]] = {
    "neuralsort": lambda s: ns.neuralsort(s, tau=0.5),
    "softsort": lambda s: ns.softsort(s, tau=0.5),
    "softsort squared": lambda s: ns.softsort(s, tau=0.5, power=2.0),
    "lapsum": lambda s: ns.lapsum(s, tau=0.5),
    "sinkhorn_sort": lambda s: ns.sinkhorn_sort(s, tau=0.5),
    "odd-even": lambda s: ns.sorting_network(s, swap="logistic"),
    "bitonic": lambda s: ns.sorting_network(s, kind="bitonic"),
    "sinkhorn": lambda s: ns.sinkhorn(s.unsqueeze(-1) * torch.linspace(1, -1, 7).to(s)),
    "from_dense": lambda s: ns.RelaxedPermutation.from_dense(ns.softsort(s).to_dense()),
    "temperatures": lambda s: ns.neuralsort(s, tau=TAU),
    "mask": lambda s: ns.neuralsort(s, tau=torch.tensor(0.5), mask=MASK),
    "masked network": lambda s: ns.sorting_network(s, mask=MASK),
    "top": lambda s: ns.neuralsort(s, tau=0.5).top(4),
    "hard": lambda s: ns.neuralsort(s, tau=0.0),
    "straight-through": lambda s: ns.softsort(s, tau=0.5).straight_through(),
    "composed": lambda s: ns.neuralsort(s, tau=0.5) @ ns.softsort(s[0, 0] ** 2),
    "transpose": lambda s: ns.neuralsort(s, tau=0.5).mT,
    "transpose of top": lambda s: ns.softsort(s, tau=0.5).top(4).mT,
}

each_operator = pytest.mark.parametrize("name", OPERATORS)

KEYS = {
    "row": (..., 2, slice(None)),
    "last row": (..., -1, slice(None)),
    "entry": (..., 1, 3),
    "column": (..., slice(None), 3),
    "rows": (..., slice(1, 4), slice(None)),
    "every second": (..., slice(None, None, 2), slice(1, 3)),
    "block": (..., slice(0, 2), slice(2, 4)),
    "row of a list": (1, 2, 0),
    "entry of a list": (0, 1, 2, 3),
    "negative": (-1, -1, -1, -1),
    "several rows": (..., torch.tensor([3, 0, -1]), slice(None)),
    "several entries": (..., torch.tensor([3, 0, -1]), torch.tensor([[1], [2]])),
    "a list of columns": (..., slice(None), [3, 0]),
    "lists and rows": (torch.tensor([1, 0]), slice(None), 2),
    "a NumPy number": (..., np.int64(2), np.int64(3)),
}


@each_operator
@pytest.mark.parametrize("key", KEYS)
def test_entries_are_those_of_the_matrix(name, key, form):
    scores = S.clone().requires_grad_()
    expected = OPERATORS[name](scores).to_dense()[KEYS[key]]
    found = OPERATORS[name](scores)[KEYS[key]]
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-12)
    if expected.requires_grad:
        upstream = torch.randn_like(expected)
        (wanted,) = torch.autograd.grad(expected, scores, upstream)
        (gradient,) = torch.autograd.grad(found, scores, upstream)
        torch.testing.assert_close(gradient, wanted, rtol=1e-8, atol=1e-11)


@each_operator
@pytest.mark.parametrize("key", [0, (1, 2), (slice(None), 1), (..., 1, slice(None), slice(None)),
                                 (torch.tensor([1, 0]),), ([1, 1], [0, 2]), ..., slice(None)],
                         ids=str)  # fmt: skip
def test_lists_of_a_batch_are_operators(name, key, form):
    P = OPERATORS[name](S)
    some = P[key]
    assert type(some) is type(P)
    torch.testing.assert_close(some.to_dense(), P.to_dense()[key], rtol=1e-9, atol=1e-12)


def test_rows_can_be_walked_through():
    P: Any = ns.neuralsort(S[0, 0])
    assert torch.equal(torch.stack(list(P)), P.to_dense())


@pytest.mark.parametrize("n", some_of([200_000, 1_000_000], 200_000))
def test_a_row_of_very_long_lists_never_writes_the_matrix(n):
    """Of 160 gigabytes, or 4,000."""
    P = ns.neuralsort(torch.linspace(0, 1, n), tau=1e-4)
    row = P[n // 2, :]
    assert row.shape == (n,)
    assert abs(row.sum().item() - 1) < 1e-4
    assert row.argmax() == P.permutation()[n // 2]
    assert P[5, n - 6] == P[5, :].amax()
    assert P[0, 0] == 0


# -- shapes ----------------------------------------------------------------------------------------


@each_operator
def test_shapes_are_those_of_the_matrix(name, form):
    P = OPERATORS[name](S)
    matrix = P.to_dense()
    assert P.ndim == matrix.ndim == 4
    assert P.size() == P.shape == matrix.shape
    assert [P.size(i) for i in (-2, -1, 0)] == [matrix.size(i) for i in (-2, -1, 0)]


# -- products --------------------------------------------------------------------------------------


@each_operator
@pytest.mark.parametrize("shape", [(), (4,), (3, 4), (2, 1, 4)], ids=str)
def test_products_from_the_left_are_those_of_the_matrix(name, shape, form):
    P = OPERATORS[name](S)
    x = torch.randn(*shape, P.shape[-2], dtype=torch.float64)
    expected = x @ P.to_dense()
    for found in (x @ P, torch.matmul(x, P), x.matmul(P), torch.linalg.matmul(x, P)):
        torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-11)


def test_gradients_of_products_from_the_left(form):
    scores = S.clone().requires_grad_()
    x = torch.randn(5, 7, dtype=torch.float64, requires_grad=True)
    upstream = torch.randn(2, 3, 5, 7, dtype=torch.float64)
    matrix = ns.neuralsort(scores, tau=0.5).to_dense()
    wanted = torch.autograd.grad(x @ matrix, (scores, x), upstream)
    found = torch.autograd.grad(x @ ns.neuralsort(scores, tau=0.5), (scores, x), upstream)
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other)


@each_operator
def test_products_of_operators_are_operators(name, form):
    P = OPERATORS[name](S)
    if not isinstance(P, ns.RelaxedPermutation):
        return
    Q = ns.softsort(S[:1] + torch.arange(7) % 3, tau=0.3)
    PQ = P @ Q
    expected = P.to_dense() @ Q.to_dense()
    assert isinstance(PQ, ns.RelaxedPermutation)
    torch.testing.assert_close(PQ.to_dense(), expected, rtol=1e-9, atol=1e-12)
    x = torch.randn(7, 2, dtype=torch.float64)
    torch.testing.assert_close(PQ @ x, expected @ x, rtol=1e-9, atol=1e-11)
    y = torch.randn(P.shape[-2], dtype=torch.float64)
    torch.testing.assert_close(PQ.mT @ y, expected.mT @ y, rtol=1e-9, atol=1e-11)
    dense = ns.RelaxedPermutation.from_dense(expected) if PQ.shape[-2] == 7 else None
    if dense is not None:
        torch.testing.assert_close(PQ.rank(), dense.rank(), rtol=1e-9, atol=1e-11)
        torch.testing.assert_close(PQ.entropy(), dense.entropy(), rtol=1e-8, atol=1e-9)
    torch.testing.assert_close(PQ.top(2).to_dense(), expected[..., :2, :], rtol=1e-9, atol=1e-12)
    order = Q.permutation().expand(2, 3, 7).gather(-1, P.permutation())
    assert torch.equal(PQ.permutation(), order)
    hard = ns.neuralsort(S, tau=0.0) @ ns.neuralsort(-S, tau=0.0)
    assert torch.equal(hard.to_dense().argmax(-1), hard.permutation())


# -- copies ----------------------------------------------------------------------------------------

COPIES = {
    "pickle": lambda P: pickle.loads(pickle.dumps(P)),
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
    "detach": lambda P: P.detach(),
    "to nothing new": lambda P: P.to("cpu", torch.float64),
    "tree": lambda P: _pytree.tree_map(torch.clone, P),
}


@each_operator
@pytest.mark.parametrize("way", COPIES)
def test_copies_answer_alike(name, way, form):
    P = OPERATORS[name](S)
    _ = P @ torch.ones(P.shape[-1], dtype=torch.float64)  # whatever it keeps
    other = COPIES[way](P)
    assert type(other) is type(P)
    assert repr(other) == repr(P)
    if name == "composed":  # a product with as many matrices as lists may round otherwise
        torch.testing.assert_close(other.to_dense(), P.to_dense(), rtol=1e-14, atol=1e-15)
    else:
        assert torch.equal(other.to_dense(), P.to_dense())
    if isinstance(P, ns.RelaxedPermutation):
        assert torch.equal(other.permutation(), P.permutation())


def test_a_pickle_holds_no_more_than_the_scores():
    P = ns.neuralsort(torch.randn(512))
    P.to_dense()
    assert len(pickle.dumps(P)) < 10_000


@each_operator
def test_detached_operators_have_no_gradient(name, form):
    P = OPERATORS[name](S.clone().requires_grad_()).detach()
    assert not P.to_dense().requires_grad


@each_operator
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_operators_in_another_dtype(name, dtype, form):
    scores = S.clone().requires_grad_()
    P = OPERATORS[name](scores)
    other = P.to(dtype)
    assert type(other) is type(P)
    assert other.dtype == other.to_dense().dtype == dtype
    tolerance = 1e-5 if dtype is torch.float32 else 0.05
    assert (other.to_dense() - P.to_dense()).abs().max() < tolerance
    if P.to_dense().requires_grad:
        other.to_dense().square().sum().backward()
        assert scores.grad is not None
        assert scores.grad.dtype == torch.float64


def test_operators_on_another_device():
    P = ns.neuralsort(torch.randn(2, 5), mask=torch.rand(2, 5) < 0.5, tau=torch.rand(2, 1))
    assert P.to("meta").device.type == "meta"
    assert P.to("meta", torch.float64).to_dense().shape == (2, 5, 5)


@each_operator
def test_numpy_gets_the_matrix(name, form):
    P = OPERATORS[name](S.clone().requires_grad_())
    assert np.array_equal(np.asarray(P), P.to_dense().detach().numpy())
    assert np.asarray(P, np.float32).dtype == np.float32


def test_numpy_gets_short_types_as_float32():
    P = ns.neuralsort(S.bfloat16())
    assert np.array_equal(np.asarray(P), P.to_dense().float().numpy())


# -- trees -----------------------------------------------------------------------------------------


@each_operator
def test_vmap_returns_operators(name, form):
    if name in ("temperatures", "composed"):  # which look at the whole batch
        return
    expected = OPERATORS[name](S)
    found = torch.vmap(OPERATORS[name])(S)
    assert type(found) is type(expected)
    torch.testing.assert_close(found.to_dense(), expected.to_dense())


@each_operator
def test_vmap_takes_operators(name, form):
    P, x = OPERATORS[name](S), torch.randn(2, 7, dtype=torch.float64)
    x = x[:, : P.shape[-1]]
    found = torch.vmap(lambda P, x: P @ x)(P, x)
    torch.testing.assert_close(found, torch.stack([P[b] @ x[b] for b in range(2)]))


def test_vmap_gives_every_operator_its_temperature(form):
    tau = torch.tensor([0.2, 0.5, 1.0], dtype=torch.float64)
    found = torch.vmap(lambda tau: ns.neuralsort(S[0, 0], tau=tau))(tau)
    expected = ns.neuralsort(S[0, 0].expand(3, 7), tau=tau.unsqueeze(-1))
    torch.testing.assert_close(found.to_dense(), expected.to_dense())


def test_composed_operators_of_different_batches_pass_through_vmap(form):
    def compose(s: Tensor) -> ns.RelaxedPermutation:
        return ns.neuralsort(s, tau=0.5) @ ns.softsort(s[0], tau=0.5)

    found = torch.vmap(compose)(S)
    expected = torch.stack([compose(s).to_dense() for s in S])
    torch.testing.assert_close(found.to_dense(), expected)


def test_torch_func_returns_operators(form):
    scores = S[0]

    def loss(s: Tensor) -> tuple[Tensor, ns.RelaxedPermutation]:
        P = ns.neuralsort(s, tau=0.5)
        return P.sort(s).square().sum(), P

    gradient, (_, P) = torch.func.grad_and_value(loss, has_aux=True)(scores)
    assert torch.equal(P.to_dense(), ns.neuralsort(scores, tau=0.5).to_dense())
    assert gradient.shape == scores.shape
    out, _ = torch.func.vjp(lambda s: ns.softsort(s), scores)
    assert isinstance(out, ns.RelaxedPermutation)


def test_trees_may_hold_anything_for_a_while():
    P = ns.neuralsort(S, mask=MASK, tau=TAU)
    shapes = _pytree.tree_map(lambda x: tuple(x.shape), P)
    assert "(2, 3, 7)" in repr(shapes)
    assert _pytree.tree_leaves(shapes)[0] == 2
    back = _pytree.tree_unflatten(_pytree.tree_leaves(P), _pytree.tree_structure(P))
    assert torch.equal(back.to_dense(), P.to_dense())


def test_structures_of_alike_operators_are_equal():
    structures = {name: _pytree.tree_structure(make(S)) for name, make in OPERATORS.items()}
    for name, make in OPERATORS.items():
        assert structures[name] == _pytree.tree_structure(make(S + 1)), name
    assert structures["neuralsort"] != structures["softsort"] != structures["softsort squared"]


# -- refusals --------------------------------------------------------------------------------------

REFUSED = {
    "sum": (lambda P: P.sum(), AttributeError),
    "T": (lambda P: P.T, AttributeError),
    "torch.sum": (lambda P: torch.sum(P), TypeError),
    "torch.mm": (lambda P: torch.mm(S[0], P), TypeError),
    "plus a number": (lambda P: P + 1, TypeError),
    "a number times": (lambda P: 2 * P, TypeError),
    "minus itself": (lambda P: P - P, TypeError),
    "plus a tensor": (lambda P: P + S, TypeError),
    "a tensor plus": (lambda P: S + P, TypeError),
    "float": (lambda P: float(P), TypeError),
    "less than": (lambda P: P < 1, TypeError),
    "P^T P": (lambda P: P.mT @ P, TypeError),
    "P P^T": (lambda P: P @ P.mT, TypeError),
    "a new dimension": (lambda P: P[None], TypeError),
    "a mask": (lambda P: P[..., torch.ones(7, dtype=torch.bool), :], TypeError),
    "a truth value": (lambda P: P[True], TypeError),
    "a float": (lambda P: P[..., 1.5, :], TypeError),
    "integers": (lambda P: P.to(torch.int64), TypeError),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_needs_the_matrix_says_so(what):
    ask, error = REFUSED[what]
    with pytest.raises(error, match=r"to_dense\(\)"):
        ask(ns.neuralsort(S))


WRONG = {
    "row": (lambda P: P[..., 7, :], IndexError, r"from -7 to 6 .* got 7"),
    "rows": (
        lambda P: P[..., torch.tensor([0, 9]), :],
        IndexError,
        r"-7 to 6 .* got \[0, 9\]",
    ),
    "list": (lambda P: P[2], IndexError, r"from -2 to 1 .* got 2"),
    "too many": (lambda P: P[0, 0, 0, 0, 0], IndexError, r"at most 4 indices.* got 5"),
    "left": (lambda P: torch.ones(3, 5) @ P, ValueError, r"7 columns.*got shape \(3, 5\).*mT"),
    "operator": (lambda P: P @ P.top(3), ValueError, r"rows in Q.*7, got 3.*top"),
    "batch": (lambda P: P @ ns.neuralsort(torch.ones(5, 7)), ValueError, r"broadcasts against"),
    "NumPy": (lambda P: np.ones((3, 7)) @ P, TypeError, r"floating-point tensor, got ndarray"),
    "name": (lambda P: P.nonsense, AttributeError, r"no attribute 'nonsense'"),
}


@pytest.mark.parametrize("what", WRONG)
def test_what_does_not_fit_says_so(what, form):
    ask, error, message = WRONG[what]
    with pytest.raises(error, match=message):
        ask(ns.neuralsort(S))


def test_forms_are_kept_by_copies():
    with in_form("banded"):
        P = ns.neuralsort(S)
    assert "matrix-free" in repr(pickle.loads(pickle.dumps(P)))
