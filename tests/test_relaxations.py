"""The laws of a relaxed permutation, for every method of the registry, dtype and form.

Through `weights` the dense form shows its matrix, and the banded one its products with the unit
vectors, so that both engines stand under every law.
"""

import functools
import importlib
import itertools
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck

import neuralsort.torch as ns
from neuralsort.torch import registry
from tests import oracle
from tests.conftest import DTYPES, VALUE_RTOL, WEIGHT_ATOL, assert_near
from tests.methods import METHODS, SOFTMAX, Method, every_form, every_method, methods
from tests.portions import some_of
from tests.requests import PLAIN, REQUESTS, each_request
from tests.strategies import masked_sortables, sortables
from tests.test_gradients import inputs

INF, NAN = float("inf"), float("nan")
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


# -- the registry ----------------------------------------------------------------------------------


def test_every_relaxation_of_scores_is_tested():
    rows = {m.name for m in registry.METHODS.values() if (m.takes, m.gives) == ("scores", "P")}
    assert rows == {method.name for method in METHODS}


def test_rows_of_the_registry_are_complete():
    for name, row in registry.METHODS.items():
        assert name == row.name
        assert row.laws <= set(registry.LAWS)
        assert all((row.time, row.memory, row.reference))
        public = row.function.func if isinstance(row.function, functools.partial) else row.function
        assert getattr(ns, public.__name__) is public
        if row.gives == "P":
            assert "rows" in row.laws


def test_every_public_relaxation_is_registered():
    functions = {
        row.function.func if isinstance(row.function, functools.partial) else row.function
        for row in registry.METHODS.values()
    }
    relaxations = importlib.import_module("neuralsort.torch.relaxations")
    gates = {relaxations.midpoint_threshold, relaxations.sparse_threshold}  # no permutation: no row
    assert {getattr(relaxations, name) for name in relaxations.__all__} - gates <= functions


def test_docs_table_is_that_of_the_registry():
    page = (Path(__file__).parent.parent / "docs" / "relaxations.md").read_text()
    for row in registry.METHODS.values():
        keeps = ", ".join(law for law in registry.LAWS if law in row.laws)
        cells = (f"`{row.name}`", row.takes, row.gives, keeps, row.time, row.memory)
        assert f"| {' | '.join(cells)} |" in page
        assert row.reference.split(" et al")[0].split(" and ")[0] in page


# -- agreement with the equations ------------------------------------------------------------------


@every_form()
@each_dtype
@pytest.mark.parametrize("tau", TAUS)
def test_weights_are_those_of_the_equation(method, dtype, form, tau):
    scores = torch.randn(2, 17).to(dtype)
    P = method.relax(scores, tau=tau)
    expected = np.stack([method.weights(list_.tolist(), tau) for list_ in scores.double()])
    assert P.shape == (2, 17, 17)
    assert_weights(weights(P, form), expected, dtype)


@every_form()
@each_dtype
@given(data=st.data())
def test_weights_are_those_of_the_equation_at_any_scale(method, dtype, form, data):
    problem = data.draw(sortables(dtype))
    tau = in_steps(method, data.draw(SOFTNESS), problem.step)
    expected = method.weights(problem.scores.tolist(), tau)
    assert_weights(weights(method.relax(problem.scores, tau=tau), form), expected, dtype)


@every_form()
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


@every_form()
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


@pytest.mark.parametrize("method", every_method("columns"))
@pytest.mark.parametrize("tau", [0.5, 1.0, 20.0])
def test_columns_sum_to_one(method, tau):
    scores = torch.randn(3, 2, 13, dtype=torch.float64)
    matrix = method.relax(scores, tau=tau, **method.converge).to_dense()
    assert (matrix.sum(-2) - 1).abs().max() <= 1e-9


@pytest.mark.parametrize("method", every_method())
def test_columns_are_claimed_wherever_they_sum_to_one(method):
    matrix = method.relax(torch.randn(3, 13, dtype=torch.float64), tau=1.0, **method.converge)
    summed = (matrix.to_dense().sum(-2) - 1).abs().max() <= 1e-9
    assert bool(summed) == ("columns" in method.laws)


@every_form("equivariance")
@each_dtype
def test_permuting_items_permutes_columns(method, dtype, form):
    scores = on_grid(dtype, 3, 21)
    scores[:, 5] = scores[:, 11]  # a tie
    pi = torch.randperm(21)
    for tau in TAUS:
        before = weights(method.relax(scores, tau=tau), form)
        after = weights(method.relax(scores[:, pi], tau=tau), form)
        assert_weights(after, before[..., pi], dtype)


@every_form("shift")
@each_dtype
def test_a_shift_changes_nothing(method, dtype, form):
    scores = on_grid(dtype, 3, 21)
    for tau in TAUS:
        before = weights(method.relax(scores, tau=tau), form)
        after = weights(method.relax(scores + 4, tau=tau), form)
        assert_weights(after, before, dtype)


@every_form("scale")
@each_dtype
def test_scores_and_temperature_scale_together(method, dtype, form):
    scores = on_grid(dtype, 3, 21)
    for tau in TAUS:
        before = weights(method.relax(scores, tau=tau), form)
        for c in (0.5, 16.0):
            after = weights(method.relax(c * scores, tau=c**method.homogeneity * tau), form)
            assert_weights(after, before, dtype)


@every_form("ties")
@each_dtype
@given(data=st.data())
def test_small_tau_gives_the_known_permutation(method, dtype, form, data):
    problem = data.draw(sortables(dtype))
    P = method.relax(problem.scores, tau=in_steps(method, method.cold, problem.step))
    assert P.permutation().tolist() == problem.order
    assert_weights(weights(P, form), oracle.limit_matrix(problem.scores.tolist()), dtype)


@every_form("limit")
@each_dtype
@given(data=st.data())
def test_small_tau_gives_the_permutation_matrix_where_nothing_is_tied(method, dtype, form, data):
    problem = data.draw(sortables(dtype, ties=False))
    P = method.relax(problem.scores, tau=in_steps(method, method.cold, problem.step))
    assert_weights(weights(P, form), oracle.hard_matrix(problem.order), dtype)


@every_form("unimodality")
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


@pytest.mark.parametrize("method", every_method("unimodality"))
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


# -- what every relaxation of scores does ----------------------------------------------------------
#
# The softmax methods go through the same and more in the files on forms, edges and citizenship.


def other_forms() -> pytest.MarkDecorator:
    mark = every_form()
    softmax = {method.name for method in SOFTMAX}
    cases = [case for case in mark.args[1] if case.values[0].name not in softmax]
    return pytest.mark.parametrize(mark.args[0], cases, indirect=["form"])


each_other = other_forms()
ASKED = (*PLAIN, "to_dense", "top", "top transpose")
each_request = each_request(*ASKED)


@each_other
@pytest.mark.parametrize("request_", some_of(ASKED, *(r for r in ASKED if "top" not in r), "top"))
def test_gradcheck_and_gradgradcheck(method, form, request_, fast_mode):
    def ask(s: Tensor, x: Tensor, tau: Tensor) -> Tensor:
        return REQUESTS[request_](method.relax(s, tau=tau), x)

    assert gradcheck(ask, inputs(2, 4))
    assert gradgradcheck(ask, inputs(1, 5), fast_mode=fast_mode)


@each_other
def test_gradients_through_a_mask(method, form, fast_mode):
    mask = torch.tensor([[True, False, True, True, True], [True, True, True, False, False]])
    s, x, tau = inputs(2, 5)
    assert gradcheck(lambda s, x, t: method.relax(s, tau=t, mask=mask) @ x, (s, x, tau))

    def rank(s: Tensor, tau: Tensor) -> Tensor:
        return method.relax(s, tau=tau, mask=mask).rank()

    assert gradcheck(rank, (s, tau))
    assert gradgradcheck(rank, (s, tau), fast_mode=fast_mode)


@each_other
@pytest.mark.parametrize("tau", [0.01, 1.0])
@pytest.mark.parametrize("garbage", [0.0, INF, NAN])
def test_padding_changes_nothing_for_present_items(method, form, tau, garbage):
    alone = torch.randn(11, dtype=torch.float64, requires_grad=True)
    present = torch.randperm(19)[:11].sort().values
    mask = torch.zeros(19, dtype=torch.bool)
    mask[present] = True
    padded = torch.full((19,), garbage, dtype=torch.float64)
    padded[present] = alone.detach()
    padded.requires_grad_()
    x = torch.randn(19, 2, dtype=torch.float64)
    P, Q = method.relax(padded, tau=tau, mask=mask), method.relax(alone, tau=tau)
    pairs = {
        "product": ((P @ x)[:11], Q @ x[present]),
        "transposed": ((P.mT @ x)[present], Q.mT @ x[:11]),
        "rank": (P.rank()[present], Q.rank()),
        "sort": (P.sort(padded)[:11], Q.sort(alone)),
    }
    for name, (mine, expected) in pairs.items():
        assert_near(mine, expected, 1e-11, 1, name)
        upstream = torch.randn_like(mine)
        (gradient,) = torch.autograd.grad(mine, padded, upstream, retain_graph=True)
        (wanted,) = torch.autograd.grad(expected, alone, upstream, retain_graph=True)
        assert_near(gradient[present], wanted, 1e-10, 1 / tau, name)
        assert torch.equal(gradient[~mask], torch.zeros(8, dtype=torch.float64))
    absent = (~mask).nonzero().squeeze(-1)
    assert torch.equal(P.to_dense()[11:], torch.eye(19, dtype=torch.float64)[absent])
    assert P.permutation()[11:].tolist() == absent.tolist()


@each_other
def test_tau_zero_is_the_hard_permutation(method, form):
    scores = torch.randn(3, 12, requires_grad=True)
    order = scores.argsort(dim=-1, descending=True, stable=True)
    hard = torch.nn.functional.one_hot(order, 12).float()
    assert torch.equal(method.relax(scores, tau=0).to_dense(), hard)
    P = method.relax(scores, tau=torch.zeros(3, 1))
    assert_near(P.to_dense(), hard, 1e-6)
    (gradient,) = torch.autograd.grad(P.rank().square().sum(), scores)
    assert_near(gradient, torch.zeros(3, 12), 1e-6, 1)


@each_other
@each_dtype
@pytest.mark.parametrize("tau", [0.01, 1.0])
def test_infinities_go_to_their_end(method, dtype, form, tau):
    scores = torch.tensor([0.3, INF, -1.0, -INF, 0.7, -0.2], dtype=dtype, requires_grad=True)
    heat = torch.tensor(tau, dtype=torch.float64, requires_grad=True)
    P = method.relax(scores, tau=heat)
    assert P.to_dense()[0].tolist() == [0, 1, 0, 0, 0, 0]
    assert P.to_dense()[5].tolist() == [0, 0, 0, 1, 0, 0]
    assert P.permutation().tolist() == [1, 4, 0, 5, 2, 3]
    soft = P.sort(scores)
    assert (soft[0].item(), soft[5].item()) == (INF, -INF)
    for value in (soft[1:5], P.rank(), P.entropy(), P @ torch.ones(6, dtype=dtype)):
        assert value.isfinite().all()
        to_scores, to_heat = torch.autograd.grad(value.sum(), (scores, heat), retain_graph=True)
        assert to_scores.isfinite().all()
        assert to_heat.isfinite()


@each_other
def test_nan_spoils_its_own_list_and_no_other(method, form):
    clean = torch.randn(3, 9, dtype=torch.float64)
    scores = clean.clone()
    scores[1, 4] = NAN
    P, Q = method.relax(scores, tau=0.5), method.relax(clean, tau=0.5)
    x = torch.randn(3, 9, 2, dtype=torch.float64)
    for ask in map(REQUESTS.get, ASKED):
        value, expected = ask(P, x), ask(Q, x)
        assert value[1].isnan().all()
        assert_near(value[[0, 2]], expected[[0, 2]], 1e-12, 1)


@each_other
@each_dtype
@pytest.mark.parametrize("shape", [(0, 5), (0,), (3, 0), (1,), (3, 1)])
def test_empty_batches_and_the_shortest_lists(method, dtype, form, shape):
    scores = torch.randn(shape).to(dtype).requires_grad_()
    P = method.relax(scores, tau=0.5)
    assert P.shape == P.to_dense().shape == (*shape, shape[-1])
    assert (P @ torch.randn(shape[-1], 2).to(dtype)).shape == (*shape, 2)
    assert P.top(0).log_prob(P.permutation()[..., :0]).shape == (*shape[:-1], 0)
    for value in (P.sort(scores), P.rank(), P.entropy(), P.log_prob(P.permutation())):
        assert value.shape == shape
        assert value.dtype == dtype
    if shape[-1] == 1:
        assert torch.equal(P.to_dense(), torch.ones_like(P.to_dense()))


@each_other
@each_dtype
@each_request
def test_short_types_are_computed_in_float32(method, dtype, form, request_):
    scores, x = torch.randn(2, 30).to(dtype), torch.randn(2, 30, 3).to(dtype)
    results = []
    for kind in (dtype, torch.float64):
        s = scores.to(kind).requires_grad_()
        value = REQUESTS[request_](method.relax(s, tau=0.8), x.to(kind))
        (gradient,) = torch.autograd.grad(value.sin().sum(), s)
        assert value.dtype == gradient.dtype == kind
        results.append(value)
    assert_near(*results, 2 * VALUE_RTOL[dtype])


@each_other
@each_request
def test_vmap_equals_a_loop(method, form, request_):
    scores = torch.randn(4, 3, 6, dtype=torch.float64)
    x = torch.randn(4, 3, 6, 2, dtype=torch.float64)

    def one(s: Tensor, x: Tensor) -> Tensor:
        return REQUESTS[request_](method.relax(s, tau=0.5), x)

    expected = torch.stack([one(s, y) for s, y in zip(scores, x, strict=True)])
    torch.testing.assert_close(torch.vmap(one)(scores, x), expected)
    loss = torch.func.grad(lambda s, x: one(s, x).square().sum())
    expected = torch.stack([loss(s, y) for s, y in zip(scores, x, strict=True)])
    torch.testing.assert_close(torch.vmap(loss)(scores, x), expected)


@pytest.mark.long  # in every run: one graph, and the same gradients, in `test_compiled.py`
@pytest.mark.parametrize("method", [c for c in every_method() if c.values[0] not in SOFTMAX])
def test_short_lists_compile_into_one_graph(method):
    """But for LapSum, whose recurrences break the graph."""
    torch._dynamo.reset()
    n = 3 if "network" in method.name else 6  # every layer is code to compile, and every step
    few = {"iterations": 2} if method.name == "sinkhorn_sort" else {}
    scores = torch.randn(3, n, dtype=torch.float64, requires_grad=True)
    x = torch.randn(3, n, 2, dtype=torch.float64)

    def loss(s: Tensor) -> Tensor:
        return (method.relax(s, tau=0.5, **few) @ x).square().sum()

    compiled = torch.compile(loss, backend="aot_eager", fullgraph=method.name != "lapsum")
    torch.testing.assert_close(compiled(scores), loss(scores))
    (actual,) = torch.autograd.grad(compiled(scores), scores)
    torch.testing.assert_close(actual, torch.autograd.grad(loss(scores), scores)[0])


@each_other
def test_jvp_is_the_transpose_of_vjp_or_refused(method, form):
    scores, direction = torch.randn(2, 6, dtype=torch.float64)

    def ranks(s: Tensor) -> Tensor:
        return method.relax(s, tau=0.5).rank()

    try:
        _, tangent = torch.func.jvp(ranks, (scores,), (direction,))
    except NotImplementedError as refusal:
        assert method.name != "lapsum"
        assert "jvp" in str(refusal)  # noqa: PT017 - it may also succeed
        return
    torch.testing.assert_close(tangent, torch.func.jacrev(ranks)(scores) @ direction)


@each_other
def test_operators_take_it(method, form):
    x = torch.randn(3, 5, 2, dtype=torch.float64)
    soft = ns.soft_sort(x, tau=0.3, dim=1, descending=True, relax=method.relax)
    lists = x.movedim(1, -1)
    P = method.relax(lists, tau=0.3)
    torch.testing.assert_close(soft, P.sort(lists).movedim(-1, 1))
    ascending = ns.soft_sort(x, tau=0.3, dim=1, relax=method.relax)
    Q = method.relax(-lists, tau=0.3)
    torch.testing.assert_close(ascending, -Q.sort(-lists).movedim(-1, 1))
    top = ns.soft_topk(x, 2, tau=0.3, dim=1, relax=method.relax)
    torch.testing.assert_close(top.weights.sum(1), torch.full((3, 2), 2.0, dtype=torch.float64))
    ranks = ns.soft_rank(x, tau=0.3, dim=1, relax=method.relax, descending=True)
    torch.testing.assert_close(ranks, P.rank().movedim(-1, 1))


@each_other
def test_both_forms_agree_on_lists_of_many_sizes(method, form):
    """Products against the matrix, for one P and many payloads, and the other way round."""
    scores = torch.randn(2, 40, dtype=torch.float64)
    P = method.relax(scores, tau=0.2)
    matrix = method.relax(scores, tau=0.2).to_dense()
    for x in (torch.randn(40), torch.randn(40, 3), torch.randn(5, 1, 40, 3)):
        x = x.double()
        assert_near(P @ x, matrix @ x, 1e-12)
        assert_near(P.mT @ x, matrix.mT @ x, 1e-12)
    assert_near(P.top(7) @ x, matrix[:, :7] @ x, 1e-12)
    assert_near(P.top(7).mT @ x[..., :7, :], matrix[:, :7].mT @ x[..., :7, :], 1e-12)
    order = torch.randperm(40).expand(2, 40)
    expected = matrix.gather(-1, order.unsqueeze(-1)).squeeze(-1).log()
    assert_near(P.log_prob(order), expected, 1e-9)


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


def test_the_first_rows_of_a_permutation_are_unimodal():
    P = ns.RelaxedPermutation.from_dense(torch.eye(4)[[3, 1, 2, 0]])
    assert P.top(2).is_unimodal()
    assert not ns.RelaxedPermutation.from_dense(torch.eye(4)[[3, 3, 2, 0]]).top(2).is_unimodal()


@pytest.mark.parametrize("n", [1, 9, 32, 33, 70, 200])
@pytest.mark.parametrize(
    "relax",
    [ns.neuralsort, ns.softsort, functools.partial(ns.softsort, power=2.0)],
    ids=["neuralsort", "softsort", "softsort-squared"],
)
def test_ordinary_lists_have_the_derivatives_of_others(relax, n):
    """Short lists of float32 go a way of their own: against float64, which does not."""
    forward = torch.autograd.forward_ad
    for tied, tau, batch in ((False, 1.0, (3,)), (True, 0.4, (2, 2)), (False, 0.1, ())):
        scores, upstream = torch.randn(*batch, n), torch.randn(*batch, n, n)
        towards = torch.randn(*batch, n)
        if tied:
            scores[..., n // 2 :: 3] = 0.5
        found = []
        for dtype in (torch.float32, torch.float64):
            s, up = scores.to(dtype).requires_grad_(), upstream.to(dtype)
            matrix = relax(s, tau=tau).to_dense()
            (plain,) = torch.autograd.grad(matrix, s, up, retain_graph=True)
            (once,) = torch.autograd.grad(matrix, s, up, create_graph=True)
            (twice,) = torch.autograd.grad(once, s, towards.to(dtype), allow_unused=True)
            with forward.dual_level():
                dual = forward.make_dual(scores.to(dtype), towards.to(dtype))
                tangent = forward.unpack_dual(relax(dual, tau=tau).to_dense()).tangent
            top = relax(s, tau=tau).top(n // 2).to_dense()
            (of_top,) = torch.autograd.grad(top, s, up[..., : n // 2, :])
            found.append((matrix, plain, once, twice, tangent, top, of_top))
        for one, exact in zip(*found, strict=True):
            if exact is not None and exact.numel():
                scale = max(exact.abs().max().item(), 1e-3)
                assert (one - exact).abs().max() <= 2e-5 * scale


@pytest.mark.parametrize("offset", [0.0, 1e4])
@pytest.mark.parametrize("rows", [7, 3])
def test_short_lists_are_sorted_without_their_matrix_as_with_it(rows, offset):
    """Values, first and second derivatives and tangents, of scores by themselves and of others."""
    forward = torch.autograd.forward_ad
    for itself, tied, tau, batch in (
        (True, False, 1.0, (3,)),
        (True, True, 0.4, (2, 2)),
        (False, False, 1e-3, (3,)),  # where exponentials of logits would overflow
        (False, True, 1.0, ()),
    ):
        scores, other = torch.randn(*batch, 7) + offset, torch.randn(*batch, 7) + offset
        if tied:
            scores[..., ::3] = scores[..., :1]
        upstream, towards = torch.randn(*batch, rows), torch.randn(*batch, 7)
        found = []
        for dtype in (torch.float32, torch.float64):
            s = scores.to(dtype).requires_grad_()
            x = s if itself else other.to(dtype).requires_grad_()
            wanted, up = ((s,) if itself else (s, x)), upstream.to(dtype)

            def answer(s: Tensor, x: Tensor, tau=tau) -> Tensor:
                return ns.neuralsort(s, tau=tau).top(rows).sort(x)

            y = answer(s, x)
            plain = torch.autograd.grad(y, wanted, up, retain_graph=True)
            once = torch.autograd.grad(y, wanted, up, create_graph=True)
            twice = torch.autograd.grad(once[0], wanted, towards.to(dtype))
            with forward.dual_level():
                dual = forward.make_dual(scores.to(dtype), towards.to(dtype))
                tangent = forward.unpack_dual(answer(dual, dual if itself else x)).tangent
            found.append((y - offset, *plain, *once, *twice, tangent))
        for one, exact in zip(*found, strict=True):
            scale = max(exact.abs().max().item(), 1.0)
            assert (one - exact).abs().max() <= (2e-5 + 1e-7 * offset) * scale


def test_a_matrix_that_is_there_is_not_computed_again_to_sort(monkeypatch):
    P = ns.neuralsort(torch.randn(3, 7))
    matrix = P.to_dense()
    monkeypatch.setattr(type(P._kernel), "matrix", None)
    monkeypatch.setattr(type(P._kernel), "sorted", None)
    x = torch.randn(3, 7)
    assert_near(P.sort(x), (matrix @ x.unsqueeze(-1)).squeeze(-1), 1e-6)


def test_ties_have_their_gradient_beside_a_list_that_holds_nan():
    scores, upstream = torch.randn(2, 40), torch.randn(2, 40, 40)
    scores[0, ::3] = 0.5
    scores[1, 0] = torch.nan
    alone, beside = scores[:1].clone().requires_grad_(), scores.clone().requires_grad_()
    (expected,) = torch.autograd.grad(ns.neuralsort(alone).to_dense(), alone, upstream[:1])
    (found,) = torch.autograd.grad(ns.neuralsort(beside).to_dense(), beside, upstream)
    assert_near(found[:1], expected, 1e-5)


def test_batched_gradients_are_those_of_a_loop():
    functions = (
        lambda s: ns.neuralsort(s).to_dense(),
        lambda s: ns.neuralsort(s).sort(s),
        lambda s: ns.softsort(s).to_dense(),
        ns.fast_soft_rank,
        ns.fast_soft_sort,
    )
    for function, n in itertools.product(functions, (9, 40)):
        scores = torch.randn(n)
        found, expected = (
            torch.autograd.functional.jacobian(function, scores, vectorize=vectorize)
            for vectorize in (True, False)
        )
        assert_near(found, expected, 1e-5)
