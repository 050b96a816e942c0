"""The laws of a relaxed permutation, for every method, dtype and form.

Through `weights` the dense form shows its matrix, and the banded one its products with the unit
vectors, so that both engines stand under every law.
"""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

import neuralsort.torch as ns
from tests import oracle
from tests.conftest import DTYPES, WEIGHT_ATOL
from tests.methods import Method, methods
from tests.strategies import masked_sortables, sortables

TAUS = (0.05, 1.0, 20.0)
SOFTNESS = st.sampled_from((0.1, 0.5, 1.0, 4.0))  # temperatures, in steps

each_method = pytest.mark.parametrize("method", methods())
each_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: str(d).removeprefix("torch."))


def weights(P: ns.RelaxedPermutation, form: str) -> Tensor:
    if form == "dense":
        return P.to_dense()
    return P @ torch.eye(P.shape[-1], dtype=P.dtype)


def on_grid(dtype: torch.dtype, *shape: int) -> Tensor:
    """Distinct multiples of 1/4, exact in every dtype even after a shift by 4 or doubling."""
    steps = torch.rand(*shape[:-1], 48).argsort(-1)[..., : shape[-1]] - 24
    return (steps / 4).to(dtype)


def in_steps(method: Method, softness: float, step: float) -> float:
    """A temperature that does to gaps of one step what `softness` does to gaps of 1."""
    return softness * step**method.homogeneity


def assert_weights(actual: Tensor, expected: Tensor | np.ndarray, dtype: torch.dtype) -> None:
    assert actual.dtype == dtype
    error = (actual.detach().double() - torch.as_tensor(expected).double()).abs().max()
    assert error <= WEIGHT_ATOL[dtype]


# -- agreement with the equations ------------------------------------------------------------------


@each_method
@each_dtype
@pytest.mark.parametrize("tau", TAUS)
def test_weights_are_those_of_the_equation(method, dtype, form, tau):
    scores = torch.randn(2, 17).to(dtype)
    P = method.relax(scores, tau=tau)
    expected = np.stack([method.weights(list_.tolist(), tau) for list_ in scores.double()])
    assert P.shape == (2, 17, 17)
    assert_weights(weights(P, form), expected, dtype)


@each_method
@each_dtype
@given(data=st.data())
def test_weights_are_those_of_the_equation_at_any_scale(method, dtype, form, data):
    problem = data.draw(sortables(dtype))
    tau = in_steps(method, data.draw(SOFTNESS), problem.step)
    expected = method.weights(problem.scores.tolist(), tau)
    assert_weights(weights(method.relax(problem.scores, tau=tau), form), expected, dtype)


@each_method
@each_dtype
@given(data=st.data())
def test_masked_weights_are_those_of_the_present_items(method, dtype, form, data):
    problem, mask = data.draw(masked_sortables(dtype))
    tau = in_steps(method, data.draw(SOFTNESS), problem.step)
    P = method.relax(problem.scores, tau=tau, mask=mask)
    expected = oracle.masked(
        lambda scores: method.weights(scores, tau), problem.scores.tolist(), mask.tolist()
    )
    assert_weights(weights(P, form), expected, dtype)
    assert P.permutation().tolist() == problem.order


@each_method
@pytest.mark.parametrize("tau", [1e-3, 0.1, 1.0, 16.0])
def test_derived_quantities_are_those_of_the_equation(method, form, tau):
    scores = torch.randn(23, dtype=torch.float64)
    P = method.relax(scores, tau=tau)
    matrix = method.weights(scores.tolist(), tau)
    order = oracle.stable_descending(scores.tolist())
    target = np.roll(order, 2)
    log_matrix = oracle.log_softmax(method.logits(scores.tolist(), tau))
    expected_log_prob = [log_matrix[i, j] for i, j in enumerate(target)]

    def close(actual, expected, rtol=1e-12):
        np.testing.assert_allclose(actual.numpy(), expected, rtol=rtol, atol=1e-11)

    close(P.sort(scores), oracle.soft_sort(matrix, scores.tolist()))
    close(P.rank(), oracle.soft_rank(matrix))
    close(P.entropy(), oracle.entropy(matrix))
    close(P.log_prob(torch.tensor(target)), expected_log_prob, rtol=1e-11)
    assert P.permutation().tolist() == order == oracle.argmax_with_ties(matrix)


# -- the laws --------------------------------------------------------------------------------------


@each_method
@each_dtype
@pytest.mark.parametrize("tau", TAUS)
def test_rows_are_distributions(method, dtype, form, tau):
    P = method.relax(torch.randn(3, 2, 33).to(dtype), tau=tau)
    matrix = weights(P, form).double()
    tolerance = WEIGHT_ATOL[dtype]
    low = 0.0 if form == "dense" else -tolerance
    assert matrix.min() >= low
    assert matrix.max() <= 1 + (0.0 if form == "dense" else tolerance)
    assert (matrix.sum(-1) - 1).abs().max() <= 2 * tolerance


@pytest.mark.parametrize("method", methods("equivariance"))
@each_dtype
def test_permuting_items_permutes_columns(method, dtype, form):
    scores = on_grid(dtype, 3, 21)
    scores[:, 5] = scores[:, 11]  # a tie
    pi = torch.randperm(21)
    for tau in TAUS:
        before = weights(method.relax(scores, tau=tau), form)
        after = weights(method.relax(scores[:, pi], tau=tau), form)
        assert_weights(after, before[..., pi], dtype)


@pytest.mark.parametrize("method", methods("shift"))
@each_dtype
def test_a_shift_changes_nothing(method, dtype, form):
    scores = on_grid(dtype, 3, 21)
    for tau in TAUS:
        before = weights(method.relax(scores, tau=tau), form)
        after = weights(method.relax(scores + 4, tau=tau), form)
        assert_weights(after, before, dtype)


@pytest.mark.parametrize("method", methods("scale"))
@each_dtype
def test_scores_and_temperature_scale_together(method, dtype, form):
    scores = on_grid(dtype, 3, 21)
    for tau in TAUS:
        before = weights(method.relax(scores, tau=tau), form)
        for c in (0.5, 16.0):
            after = weights(method.relax(c * scores, tau=c**method.homogeneity * tau), form)
            assert_weights(after, before, dtype)


@pytest.mark.parametrize("method", methods("limit"))
@each_dtype
@given(data=st.data())
def test_small_tau_gives_the_known_permutation(method, dtype, form, data):
    problem = data.draw(sortables(dtype))
    P = method.relax(problem.scores, tau=in_steps(method, 1e-3, problem.step))
    assert P.permutation().tolist() == problem.order
    assert_weights(weights(P, form), oracle.limit_matrix(problem.scores.tolist()), dtype)


@pytest.mark.parametrize("method", methods("limit"))
@each_dtype
@given(data=st.data())
def test_small_tau_gives_the_permutation_matrix_where_nothing_is_tied(method, dtype, form, data):
    problem = data.draw(sortables(dtype, ties=False))
    P = method.relax(problem.scores, tau=in_steps(method, 1e-3, problem.step))
    assert_weights(weights(P, form), oracle.hard_matrix(problem.order), dtype)


@pytest.mark.parametrize("method", methods("unimodality"))
@each_dtype
@given(data=st.data())
def test_theorem_the_matrix_is_unimodal_and_peaks_at_the_sort(method, dtype, form, data):
    """The paper's Theorem, part 1, with the appendix's rule where scores are tied."""
    problem = data.draw(sortables(dtype))
    P = method.relax(problem.scores, tau=in_steps(method, data.draw(SOFTNESS), problem.step))
    written_down = ns.RelaxedPermutation.from_dense(P.to_dense())
    assert bool(P.is_unimodal())
    assert bool(written_down.is_unimodal())
    assert written_down.permutation().tolist() == P.permutation().tolist() == problem.order
    assert oracle.argmax_with_ties(P.to_dense().double().numpy()) == problem.order


@pytest.mark.parametrize("method", methods("unimodality"))
@each_dtype
@pytest.mark.parametrize("offset", [0.0, 1e4])
def test_every_row_peaks_at_its_item_in_long_lists(method, dtype, offset):
    """To the bit: no entry of row i is above that of the i-th largest item."""
    scores = (torch.randn(1000, dtype=torch.float64) + offset).to(dtype)
    order = torch.sort(scores, descending=True, stable=True).indices
    for tau in (1e-4, 1e-2, 1.0, 100.0):
        matrix = method.relax(scores, tau=tau).to_dense()
        peak = matrix.gather(-1, order.unsqueeze(-1)).squeeze(-1)
        assert torch.equal(peak, matrix.amax(-1))


# -- matrices from elsewhere -----------------------------------------------------------------------


@given(data=st.data())
def test_from_dense_agrees_with_the_oracle_on_unimodality(data):
    """Rows of small whole numbers, so that maxima are often tied, over their sum."""
    n = data.draw(st.integers(1, 5))
    rows = st.lists(st.integers(0, 4), min_size=n, max_size=n).filter(any)
    matrix = np.array([data.draw(rows) for _ in range(n)], dtype=float)
    matrix /= matrix.sum(-1, keepdims=True)
    P = ns.RelaxedPermutation.from_dense(torch.from_numpy(matrix))
    expected = oracle.is_unimodal(matrix)
    assert P.is_unimodal().item() == expected
    if expected:
        assert P.permutation().tolist() == oracle.argmax_with_ties(matrix)
    else:
        assert sorted(P.permutation().tolist()) == list(range(n))


@pytest.mark.parametrize("broken", ["negative", "sum"])
def test_from_dense_is_not_unimodal_without_stochastic_rows(broken):
    matrix = torch.eye(3) + (0.0 if broken == "negative" else 0.1)
    if broken == "negative":
        matrix[0] = torch.tensor([1.1, -0.1, 0.0])
    assert not ns.RelaxedPermutation.from_dense(matrix).is_unimodal()


def test_the_papers_two_matrices():
    """The figure with the Venn diagram: left doubly stochastic, right unimodal."""
    left = torch.tensor([[0, 1 / 2, 1 / 2], [7 / 16, 3 / 16, 3 / 8], [9 / 16, 5 / 16, 1 / 8]])
    right = torch.tensor([[3 / 8, 1 / 8, 1 / 2], [3 / 4, 1 / 4, 0], [1 / 4, 1 / 2, 1 / 4]])
    P = ns.RelaxedPermutation.from_dense(torch.stack([left, right]))
    assert P.is_unimodal().tolist() == [False, True]
    assert P.permutation()[1].tolist() == [2, 0, 1]


def test_from_dense_takes_the_best_assignment_where_rows_compete():
    matrix = torch.tensor([[0.6, 0.4, 0.0], [0.9, 0.1, 0.0], [0.0, 0.2, 0.8]])
    P = ns.RelaxedPermutation.from_dense(matrix)
    assert not P.is_unimodal()
    assert P.permutation().tolist() == [1, 0, 2]  # 0.4 + 0.9 + 0.8, not 0.6 + 0.1 + 0.8


def test_from_dense_keeps_the_matrix_and_its_gradient():
    matrix = torch.softmax(torch.randn(2, 4, 4, dtype=torch.float64), -1).requires_grad_()
    x = torch.randn(2, 4, 3, dtype=torch.float64)
    P = ns.RelaxedPermutation.from_dense(matrix)
    assert torch.equal(P.to_dense(), matrix)
    torch.testing.assert_close(P @ x, matrix @ x)
    torch.testing.assert_close(P.mT @ x, matrix.mT @ x)
    torch.testing.assert_close(P.top(2) @ x, matrix[:, :2] @ x)
    expected_rank = (torch.arange(1.0, 5)[:, None] * matrix).sum(-2) / matrix.sum(-2)
    torch.testing.assert_close(P.rank(), expected_rank)
    (gradient,) = torch.autograd.grad((P @ x).sum(), matrix)
    torch.testing.assert_close(gradient, x.sum(-1).unsqueeze(-2).expand(2, 4, 4))
