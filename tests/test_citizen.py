"""A good citizen of PyTorch: dtypes, transforms, compilation, autocast, and odd inputs."""

import copy

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

import neuralsort.torch as ns
from tests.conftest import DTYPES, GRADIENT_RTOL, VALUE_RTOL, assert_near
from tests.methods import SOFTMAX, in_form, methods
from tests.portions import some_of
from tests.requests import PLAIN, REQUESTS, each_request

each_method = pytest.mark.parametrize("method", methods())
each_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: str(d).removeprefix("torch."))

ASKED = (*PLAIN, "top", "straight_through")
each_request = each_request(*ASKED)


# -- dtypes ----------------------------------------------------------------------------------------


@each_dtype
@each_method
@each_request
def test_results_have_the_dtype_of_the_scores(method, dtype, form, request_):
    scores, x = torch.randn(2, 9).to(dtype), torch.randn(2, 9, 3).to(dtype)
    scores.requires_grad_()
    P = method.relax(scores, tau=0.5)
    value = REQUESTS[request_](P, x)
    assert P.dtype == P.to_dense().dtype == value.dtype == dtype
    (gradient,) = torch.autograd.grad(value.sum(), scores)
    assert gradient.dtype == dtype


@each_dtype
@each_method
@each_request
def test_short_types_are_computed_in_float32(method, dtype, form, request_):
    """Against float64 of the same inputs: no more error than rounding the result once."""
    scores, x = torch.randn(2, 60).to(dtype), torch.randn(2, 60, 3).to(dtype)
    upstream = torch.randn(2, 60).to(dtype)
    results = []
    for kind in (dtype, torch.float64):
        s = scores.to(kind).requires_grad_()
        value = REQUESTS[request_](method.relax(s, tau=0.8), x.to(kind))
        weight = upstream.to(kind) if value.dim() == 2 else upstream.to(kind).unsqueeze(-1)
        weight = weight[:, : value.shape[1]].expand_as(value)
        (gradient,) = torch.autograd.grad(value, s, weight)
        results.append((value, gradient))
    (value, gradient), (exact, exact_gradient) = results
    assert_near(value, exact, VALUE_RTOL[dtype])
    assert_near(gradient, exact_gradient, GRADIENT_RTOL[dtype])


@each_dtype
def test_operators_keep_the_dtype(dtype):
    x = torch.randn(3, 8).to(dtype)
    assert ns.soft_sort(x).dtype == dtype
    assert ns.soft_sort_by(x, x).dtype == dtype
    assert ns.soft_rank(x).dtype == dtype
    assert {part.dtype for part in ns.soft_topk(x, 2)} == {dtype}
    assert ns.soft_quantile(x, 0.3).dtype == dtype
    assert ns.soft_median(x).dtype == dtype


def test_a_float64_temperature_does_not_promote_float32_scores(form):
    scores = torch.randn(4, 6)
    tau = torch.tensor(0.5, dtype=torch.float64)
    assert ns.neuralsort(scores, tau=tau).to_dense().dtype == torch.float32
    assert ns.neuralsort(scores, tau=tau).sort(scores).dtype == torch.float32


# -- transforms ------------------------------------------------------------------------------------


@each_method
@each_request
def test_vmap_equals_a_loop(method, form, request_):
    scores = torch.randn(4, 3, 20, dtype=torch.float64)
    x = torch.randn(4, 3, 20, 2, dtype=torch.float64)
    ask = REQUESTS[request_]

    def one(s: Tensor, x: Tensor) -> Tensor:
        return ask(method.relax(s, tau=0.5), x)

    expected = torch.stack([one(s, y) for s, y in zip(scores, x, strict=True)])
    torch.testing.assert_close(torch.vmap(one)(scores, x), expected)


def test_vmap_over_payload_temperature_and_mask(form):
    scores = torch.randn(6, dtype=torch.float64)
    x = torch.randn(5, 6, dtype=torch.float64)
    tau = torch.rand(5, dtype=torch.float64) + 0.5
    mask = torch.rand(5, 6) < 0.7

    def one(x: Tensor, tau: Tensor, mask: Tensor) -> Tensor:
        return ns.neuralsort(scores, tau=tau, mask=mask) @ x

    expected = torch.stack([one(*item) for item in zip(x, tau, mask, strict=True)])
    torch.testing.assert_close(torch.vmap(one)(x, tau, mask), expected)


@each_method
@pytest.mark.parametrize("request_", ["matmul", "transpose", "rank", "log_prob", "entropy"])
def test_vmap_of_grad_gives_gradients_per_sample(method, form, request_):
    scores = torch.randn(4, 7, dtype=torch.float64)
    x = torch.randn(7, 2, dtype=torch.float64)

    def loss(s: Tensor) -> Tensor:
        return REQUESTS[request_](method.relax(s, tau=0.5), x).square().sum()

    expected = torch.stack([torch.func.grad(loss)(s) for s in scores])
    torch.testing.assert_close(torch.vmap(torch.func.grad(loss))(scores), expected)


@each_method
@pytest.mark.parametrize("request_", ["matmul", "transpose", "rank", "log_prob", "entropy"])
def test_vjp_and_grad_equal_autograd(method, form, request_):
    scores = torch.randn(2, 7, dtype=torch.float64)
    x = torch.randn(2, 7, 3, dtype=torch.float64)

    def function(s: Tensor, x: Tensor) -> Tensor:
        return REQUESTS[request_](method.relax(s, tau=0.5), x)

    s = scores.clone().requires_grad_()
    value = function(s, x)
    upstream = torch.randn_like(value)
    (expected,) = torch.autograd.grad(value, s, upstream)
    _, pull = torch.func.vjp(lambda s: function(s, x), scores)
    torch.testing.assert_close(pull(upstream)[0], expected)
    gradient = torch.func.grad(lambda s: (function(s, x) * upstream).sum())(scores)
    torch.testing.assert_close(gradient, expected)


@each_method
@each_request
def test_jvp_is_the_transpose_of_vjp(method, form, request_):
    """PyTorch may forbid forward mode for the banded form; then it must say so."""
    scores, x = torch.randn(7, dtype=torch.float64), torch.randn(7, 2, dtype=torch.float64)
    direction = torch.randn(7, dtype=torch.float64)

    def function(s: Tensor) -> Tensor:
        return REQUESTS[request_](method.relax(s, tau=0.5), x)

    try:
        value, tangent = torch.func.jvp(function, (scores,), (direction,))
    except (RuntimeError, NotImplementedError) as refusal:
        if form == "dense" or "jvp" not in str(refusal):
            raise
        return
    upstream = torch.randn_like(value)
    (gradient,) = torch.func.vjp(function, scores)[1](upstream)
    torch.testing.assert_close((upstream * tangent).sum(), gradient @ direction)


@each_method
def test_jacobians_and_hessians_of_the_dense_form(method):
    scores, x = torch.randn(5, dtype=torch.float64), torch.randn(5, dtype=torch.float64)

    def loss(s: Tensor) -> Tensor:
        return (method.relax(s, tau=0.5) @ x).square().sum()

    def formula(s: Tensor) -> Tensor:
        return (method.formula_weights(s, 0.5) @ x).square().sum()

    with in_form("dense"):
        rows = torch.func.jacrev(lambda s: method.relax(s, tau=0.5) @ x)(scores)
        columns = torch.func.jacfwd(lambda s: method.relax(s, tau=0.5) @ x)(scores)
        torch.testing.assert_close(rows, columns)
        hessian = torch.func.hessian(loss)(scores)
    torch.testing.assert_close(hessian, torch.autograd.functional.hessian(formula, scores))
    torch.testing.assert_close(hessian, hessian.mT)


# -- compilation -----------------------------------------------------------------------------------


def losses_of(method, asked=ASKED):
    """A function that asks everything of one method, so that one compiled program shows all."""
    asked = asked if method.name == "neuralsort" else ("matmul", "rank")

    def losses(s: Tensor, x: Tensor) -> list[Tensor]:
        P = method.relax(s, tau=0.5)
        return [REQUESTS[name](P, x).square().sum() for name in asked]

    return losses


def assert_same_when_compiled(function, **options) -> None:
    """Every result, and the gradients of each by itself."""
    torch._dynamo.reset()
    compiled = torch.compile(function, backend="aot_eager", **options)
    torch.manual_seed(0)
    scores = torch.randn(3, 12, dtype=torch.float64, requires_grad=True)
    x = torch.randn(3, 12, 2, dtype=torch.float64, requires_grad=True)
    for i, wanted in enumerate(function(scores, x)):
        value = compiled(scores, x)[i]
        torch.testing.assert_close(value, wanted)
        actual, expected = (
            torch.autograd.grad(y, (scores, x), materialize_grads=True, retain_graph=y is wanted)
            for y in (value, wanted)
        )
        torch.testing.assert_close(actual, expected)


@pytest.mark.long  # in every run: one graph, and the same gradients, in `test_compiled.py`
@each_method
def test_dense_form_compiles_into_one_graph(method):
    with in_form("dense"):
        assert_same_when_compiled(losses_of(method), fullgraph=True)


def test_operators_compile_into_one_graph():
    def all_of_them(s: Tensor, x: Tensor) -> list[Tensor]:
        return [
            ns.soft_sort(s, tau=0.5, dim=0).square().sum(),
            ns.soft_rank(s, tau=0.5).square().sum(),
            ns.soft_sort_by(x, s, tau=0.5).square().sum(),
            ns.soft_topk(s, 3, tau=0.5).values.square().sum(),
            ns.soft_median(s, tau=0.5).square().sum(),
        ]

    assert_same_when_compiled(all_of_them, fullgraph=True)


PART = ("transpose", "rank", "log_prob", "entropy")


@pytest.mark.parametrize(
    ("method", "asked"),
    some_of(
        [(method, asked) for method in SOFTMAX for asked in (PART, ASKED)],
        *((method, PART) for method in SOFTMAX if method.name == "neuralsort"),
    ),
)
def test_banded_form_is_the_same_when_compiled(method, asked):
    with in_form("banded"):
        assert_same_when_compiled(losses_of(method, asked))


@each_method
@each_request
def test_dense_form_reads_no_values(method, request_):
    """With fake tensors there are none: an `.item()` would raise."""
    with in_form("dense"), FakeTensorMode():
        scores = torch.randn(3, 20, requires_grad=True)
        x = torch.randn(3, 20, 2)
        value = REQUESTS[request_](method.relax(scores, tau=torch.rand(3, 1)), x)
        (gradient,) = torch.autograd.grad(value.sum(), scores)
        assert gradient.shape == (3, 20)


def test_dense_form_with_a_mask_reads_no_values():
    with in_form("dense"), FakeTensorMode():
        scores = torch.randn(3, 20, requires_grad=True)
        mask = torch.ones(3, 20, dtype=torch.bool)
        value = ns.neuralsort(scores, tau=0.5, mask=mask).sort(scores)
        (gradient,) = torch.autograd.grad(value.sum(), scores)
        assert gradient.shape == (3, 20)


# -- autocast --------------------------------------------------------------------------------------


@each_method
@each_request
def test_autocast_does_not_cost_precision(method, form, request_):
    scores = torch.randn(2, 60, requires_grad=True)
    x = torch.randn(2, 60, 3)
    expected = REQUESTS[request_](method.relax(scores, tau=0.5), x)
    (wanted,) = torch.autograd.grad(expected.square().sum(), scores)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        value = REQUESTS[request_](method.relax(scores, tau=0.5), x)
        loss = value.square().sum()
    (gradient,) = torch.autograd.grad(loss, scores)
    assert value.dtype == torch.float32
    assert_near(value, expected, 1e-6)
    assert_near(gradient, wanted, 1e-5)


def test_scores_from_a_network_under_autocast(form):
    linear = torch.nn.Linear(4, 1)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        scores = linear(torch.randn(3, 9, 4)).squeeze(-1)
        soft = ns.soft_sort(scores, tau=0.5)
    assert scores.dtype == soft.dtype == torch.bfloat16
    soft.float().square().sum().backward()
    assert linear.weight.grad.isfinite().all()


# -- odd inputs ------------------------------------------------------------------------------------


@each_method
@each_request
def test_strides_do_not_matter(method, form, request_):
    """Transposed, sliced and expanded inputs give what their copies give."""
    ask = REQUESTS[request_]
    x = torch.randn(3, 2, 20, dtype=torch.float64).transpose(0, 1).mT[..., :2]  # (2, 20, 2)
    base = torch.randn(40, 2, dtype=torch.float64)
    views = {
        "transposed": base[:20].mT,
        "sliced": base.mT[:, ::2],
        "flipped": base[:20].mT.flip(-1),
        "expanded": base[:20, 0].expand(2, 20),
    }
    for scores in views.values():
        expected = ask(method.relax(scores.contiguous(), tau=0.5), x.contiguous())
        torch.testing.assert_close(ask(method.relax(scores, tau=0.5), x), expected)


def test_gradients_of_expanded_inputs(form):
    base = torch.randn(6, dtype=torch.float64, requires_grad=True)
    loss = ns.neuralsort(base.expand(3, 6), tau=0.5).sort(base).square().sum()
    (gradient,) = torch.autograd.grad(loss, base)
    once = ns.neuralsort(base, tau=0.5).sort(base).square().sum()
    torch.testing.assert_close(gradient, 3 * torch.autograd.grad(once, base)[0])


@each_method
@each_dtype
@pytest.mark.parametrize(
    "shape", [(0, 5), (2, 0, 5), (0, 600), (0,), (3, 0), (0, 0), (1,), (3, 1), (0, 1)]
)
def test_empty_batches_and_the_shortest_lists(method, dtype, form, shape):
    scores = torch.randn(shape).to(dtype).requires_grad_()
    n = shape[-1]
    x = torch.randn(*shape, 2).to(dtype)
    P = method.relax(scores, tau=0.5)
    assert P.shape == P.to_dense().shape == (*shape, n)
    assert P.permutation().shape == shape
    assert P.is_unimodal().shape == P.top(0).is_unimodal().shape == shape[:-1]
    assert P.top(0).log_prob(P.permutation()[..., :0]).shape == (*shape[:-1], 0)
    for value in (P @ x, P.mT @ x):
        assert value.shape == (*shape, 2)
    for value in (P.sort(scores), P.rank(), P.entropy(), P.log_prob(P.permutation())):
        assert value.shape == shape
    (gradient,) = torch.autograd.grad(P.sort(scores).sum() + P.rank().sum(), scores)
    assert gradient.shape == shape
    if n == 1:
        assert torch.equal(P.to_dense(), torch.ones_like(P.to_dense()))
        assert torch.equal(P @ x, x)
        assert torch.equal(gradient, torch.ones_like(gradient))


@pytest.mark.parametrize("shape", [(0, 5), (3, 1), (1,)])
def test_operators_on_empty_batches_and_single_items(shape):
    x = torch.randn(shape)
    assert ns.soft_sort(x).shape == shape
    assert ns.soft_rank(x).shape == shape
    assert ns.soft_sort_by(x, x).shape == shape
    assert ns.soft_topk(x, 1).values.shape == (*shape[:-1], 1)
    assert ns.soft_median(x).shape == shape[:-1]


def test_repr_says_what_it_is(form):
    text = repr(ns.neuralsort(torch.randn(2, 5)))
    assert "RelaxedPermutation" in text
    assert "(2, 5, 5)" in text
    assert "float32" in text
    assert len(text) < 200


def test_deepcopy(form):
    scores, x = torch.randn(2, 5), torch.randn(2, 5, 3)
    P = ns.neuralsort(scores, tau=0.5)
    assert torch.equal(copy.deepcopy(P) @ x, P @ x)


def test_nothing_is_written_to_the_inputs(form):
    scores, x = torch.randn(3, 9), torch.randn(3, 9, 2)
    mask, tau = torch.rand(3, 9) < 0.8, torch.rand(3, 1)
    before = [tensor.clone() for tensor in (scores, x, mask, tau)]
    P = ns.neuralsort(scores, tau=tau, mask=mask)
    for ask in map(REQUESTS.get, ASKED):
        ask(P, x)
    for tensor, copy_ in zip((scores, x, mask, tau), before, strict=True):
        assert torch.equal(tensor, copy_)


def test_no_global_state_is_touched(form):
    """Neither the random state, nor the default dtype, nor the number of threads."""
    state, threads = torch.get_rng_state(), torch.get_num_threads()
    scores = torch.linspace(0, 1, 50).requires_grad_()
    ns.neuralsort(scores, tau=0.1).sort(scores).sum().backward()
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.get_default_dtype() == torch.float32
    assert torch.get_num_threads() == threads


def test_results_do_not_depend_on_the_default_dtype(form):
    scores = torch.randn(2, 30)
    expected = ns.neuralsort(scores, tau=0.3).sort(scores)
    try:
        torch.set_default_dtype(torch.float64)
        actual = ns.neuralsort(scores, tau=0.3).sort(scores)
    finally:
        torch.set_default_dtype(torch.float32)
    assert actual.dtype == torch.float32
    torch.testing.assert_close(actual, expected)


def test_no_grad_and_inference_mode(form):
    scores = torch.randn(2, 30, requires_grad=True)
    expected = ns.neuralsort(scores, tau=0.3).sort(scores)
    for mode in (torch.no_grad, torch.inference_mode):
        with mode():
            value = ns.neuralsort(scores, tau=0.3).sort(scores)
        assert not value.requires_grad
        assert torch.equal(value, expected.detach())


@pytest.mark.parametrize("relax", [ns.neuralsort, ns.softsort], ids=["neuralsort", "softsort"])
def test_compiled_padded_lists_are_those_of_eager(relax):
    x = torch.tensor([1.0, 2.0, 3.0, -torch.inf], dtype=torch.float64, requires_grad=True)
    mask = torch.tensor([True, True, False, True])

    def function(x: Tensor) -> Tensor:
        P = relax(x, mask=mask)
        return torch.cat([P.to_dense().flatten(), P.log_prob(torch.tensor([1, 0, 3, 2]))])

    expected = function(x)
    actual = torch.compile(function, backend="aot_eager")(x)
    torch.testing.assert_close(actual, expected)
    upstream = torch.randn_like(expected)
    (to_x,) = torch.autograd.grad(actual, x, upstream)
    torch.testing.assert_close(to_x, torch.autograd.grad(expected, x, upstream)[0])
