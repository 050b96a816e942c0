"""Compiled against eager: values, gradients, and how many graphs it takes.

One compiled function per method asks everything at once, with the scores as their own payload.
`inductor` is the default backend, and needs a C++ compiler; `aot_eager` runs the traced forward and
backward graphs as they are, so that what is tested is what we hand to a compiler.
"""

import shutil
from typing import Any

import pytest
import torch
import torch._dynamo
from torch import Tensor
from torch._dynamo.exc import Unsupported
from torch._dynamo.testing import CompileCounterWithBackend

import neuralsort.torch as ns
from neuralsort.torch import registry
from tests.conftest import GRADIENT_RTOL, VALUE_RTOL, assert_near
from tests.methods import METHODS
from tests.portions import some_of
from tests.requests import REQUESTS

ASKED = ("to_dense", "matmul", "transpose", "rank", "log_prob", "entropy")
PART = ("transpose", "log_prob")
COMPILER = shutil.which("g++")
BY_NAME = {method.name: method for method in METHODS}
FEW_STEPS: dict[str, dict[str, int]] = dict.fromkeys(
    ("sinkhorn", "gumbel_sinkhorn", "sinkhorn_sort"), {"iterations": 3}
)
"""Options of methods whose steps are each code to compile."""
LAID_OUT = ("odd_even_network", "bitonic_network")
"""Networks are laid out for the next power of two, or a largest length that is stated."""


@pytest.fixture(autouse=True)
def fresh_compiler():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


needs_compiler = pytest.mark.skipif(COMPILER is None, reason="inductor needs a C++ compiler")


def value_and_gradients(function, *inputs: Tensor) -> list[Tensor]:
    """All results, and the gradients of all of them together: compiled graphs go back once."""
    inputs = tuple(x.detach().clone().requires_grad_() for x in inputs)
    values = function(*inputs)
    weights = [torch.linspace(-1, 2, x.numel(), dtype=x.dtype).view(x.shape) for x in values]
    return [*(x.detach() for x in values), *torch.autograd.grad(values, inputs, weights)]


def assert_same(function, *inputs: Tensor, backend: str = "aot_eager") -> None:
    """Results and gradients are those of eager code."""
    expected = value_and_gradients(function, *inputs)
    actual = value_and_gradients(torch.compile(function, backend=backend), *inputs)
    for i, (one, other) in enumerate(zip(actual, expected, strict=True)):
        left = len(expected) - len(inputs)
        what = f"result {i}" if i < left else f"gradient to input {i - left}"
        rtol = (VALUE_RTOL if i < left else GRADIENT_RTOL)[inputs[0].dtype]
        assert_near(one, other, rtol, 1, what)


def everything_of(method, names=ASKED):
    options, whole = FEW_STEPS.get(method.name, {}), names is ASKED

    def everything(scores: Tensor, x: Tensor) -> list[Tensor]:
        P = method.relax(scores, tau=0.5, **options)
        both = torch.stack([scores, x], -1)  # the scores as their own payload, and another
        asked = [REQUESTS[name](P, both) for name in names]
        return [P.sort(scores), P.sort(x), *asked] if whole else [P.sort(scores), *asked]

    return everything


@pytest.fixture
def two_threads():
    """Generated code differs with one thread: scatters are fused there."""
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def inputs_for(method) -> tuple[Tensor, Tensor]:
    """Scores and a payload."""
    n = 3 if "network" in method.name else 9  # every layer is code to compile
    return 1.5 * torch.randn(3, n), torch.randn(3, n)


def everything_cases() -> list:
    """By `aot_eager` in every run: all of one method, and a part of others unlike it."""
    long, cases = pytest.mark.long, []
    for method in METHODS:
        part = method.name != "neuralsort"
        names = [f"{method.name}-{backend}" for backend in ("inductor", "aot_eager")]
        compiled = [needs_compiler, long]
        cases.append(pytest.param(method, "inductor", ASKED, id=names[0], marks=compiled))
        traced = long if part else ()
        cases.append(pytest.param(method, "aot_eager", ASKED, id=names[1], marks=traced))
        if part:
            alike = method.name in ("softsort_squared", "odd_even_network")
            marks = long if alike else ()
            name = f"{method.name}, part"
            cases.append(pytest.param(method, "aot_eager", PART, id=name, marks=marks))
    return cases


@pytest.mark.parametrize(("method", "backend", "asked"), everything_cases())
@pytest.mark.usefixtures("two_threads")
def test_everything_is_the_same_compiled(method, backend, asked):
    """By `inductor` in `make test-all`; every run has a part of it below."""
    assert_same(everything_of(method, asked), *inputs_for(method), backend=backend)


@needs_compiler
@pytest.mark.parametrize(
    ("left", "right"),
    some_of(
        [*((name, "sinkhorn_sort") for name in BY_NAME), ("softsort", "softsort")],
        ("softsort", "sinkhorn_sort"),
    ),
)
@pytest.mark.usefixtures("two_threads")
def test_what_the_default_backend_has_got_wrong_is_the_same(left, right):
    """It mixes up rows where gradients of two layouts meet before a softmax, as in products from
    both sides; and it may lose the gradient of a scatter that is added to another, as in a sort of
    the scores. Both in one program, which takes seconds to compile; they share no scores.
    """
    method, options = BY_NAME[left], FEW_STEPS.get(left, {})
    relax = registry.METHODS[right].function
    one_step = {"iterations": 1} if right in FEW_STEPS else {}

    def both(scores: Tensor, x: Tensor, others: Tensor) -> list[Tensor]:
        P = method.relax(scores, tau=0.5, **options)
        columns = torch.stack([scores, x], -1)
        sort = relax(others, tau=0.5, **one_step).sort(others)
        return [P @ columns, P.mT @ columns, sort]

    assert_same(both, *inputs_for(method), 1.5 * torch.randn(3, 9), backend="inductor")


WITH_FUNCTIONS = {
    **{m.name: lambda s, m=m: m.relax(s, tau=0.5).sort(s) for m in METHODS},
    "rank": lambda s: ns.neuralsort(s, tau=0.5).rank(),
    "float32": lambda s: ns.neuralsort(s.float(), tau=s[:1].exp().float()).sort(s.float()).double(),
    "gate": lambda s: ns.soft_topk_mask(s, 2, tau=0.5),
    "sparse gate": lambda s: ns.soft_topk_mask(s, 2, tau=0.5, relax=ns.sparse_threshold),
    "midpoint gate": lambda s: ns.soft_topk_mask(s, 2, tau=0.5, relax=ns.midpoint_threshold),
    "learned gate": lambda s: ns.soft_topk_mask(s, 2, tau=s[:1].exp()),
    "far gate": lambda s: ns.soft_topk_mask(s, 2, tau=1e-3),
    "projection": ns.fast_soft_sort,
}
"""What has autograd functions of its own, as a function of the scores."""


@pytest.mark.parametrize(
    "name",
    some_of(
        WITH_FUNCTIONS,
        *("neuralsort", "float32", "softsort", "lapsum", "bitonic_network"),
        *("learned gate", "sparse gate", "projection"),
    ),
)
def test_second_derivatives_are_the_same_compiled(name):
    """Where torch would take for a constant what an autograd Function has saved."""
    function = WITH_FUNCTIONS[name]
    scores = torch.tensor([0.3, -1.2, 0.9, 0.1], dtype=torch.float64)
    weights = torch.tensor([1.0, -2.0, 0.5, 3.0], dtype=torch.float64)

    def first(s: Tensor) -> Tensor:
        return torch.func.grad(lambda x: (function(x.sinh()) * weights).sum())(s)

    def second(s: Tensor) -> Tensor:
        return torch.func.grad(lambda x: first(x).square().sum())(s)

    expected = second(scores)
    actual = torch.compile(second, fullgraph=True, backend="eager")(scores)
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", some_of(BY_NAME, "neuralsort", "lapsum", "bitonic_network"))
def test_lists_are_mapped_in_compiled_code(name):
    method = BY_NAME[name]

    def soft_sort(scores: Tensor) -> Tensor:
        return torch.vmap(lambda s: method.relax(s, tau=0.5).sort(s))(scores)

    scores, _ = inputs_for(method)
    actual = torch.compile(soft_sort, fullgraph=True, backend="aot_eager")(scores)
    assert_near(actual, method.relax(scores, tau=0.5).sort(scores), VALUE_RTOL[scores.dtype], 1)


# -- how many graphs -------------------------------------------------------------------------------

SHAPES = ((3, 7), (4, 7), (5, 9), (1, 9), (6, 12), (2, 5), (8, 31), (7, 40), (3, 33), (16, 64))
SHAPES = (*SHAPES, (2, 100), (9, 13))
"""Twelve (batch, n), one of them a batch of one, which torch always compiles apart."""
FEW_SHAPES = ((3, 7), (4, 7), (5, 9), (2, 33), (16, 64))
"""Without that one: one program in place of two."""

MOST_GRAPHS = 4


def answer_of(method: registry.Method):
    """A function of lists and a temperature, and what makes lists."""
    option = "tau" if method.gives == "P" else "strength"
    others = FEW_STEPS.get(method.name, {})

    def answer(x: Tensor, softness: float) -> Tensor:
        made = method.function(x, **{option: softness}, **others)
        if method.gives == "values":
            return made
        return made.sort(x) if method.takes == "scores" else made @ x[..., :3]

    return answer


def lists_for(method: registry.Method, batch: int, n: int) -> Tensor:
    return torch.randn(batch, n) if method.takes == "scores" else torch.randn(batch, n, n)


def graphs_for(method: registry.Method, calls: list[tuple[Tensor, float]], **options: Any) -> int:
    """How many graphs it takes, while every answer is that of eager code."""
    counter = CompileCounterWithBackend("eager")
    answer = answer_of(method)
    compiled = torch.compile(answer, backend=counter, fullgraph=True, **options)
    for x, softness in calls:
        torch.manual_seed(3)
        expected = answer(x, softness)
        torch.manual_seed(3)
        torch.testing.assert_close(compiled(x, softness), expected, rtol=1e-5, atol=1e-5)
    return counter.frame_count


@pytest.mark.parametrize(
    "name",
    some_of(
        registry.METHODS, "neuralsort", "sinkhorn", "bitonic_network", "fast_soft_rank_kl", "lapsum"
    ),
)
def test_a_number_that_changes_takes_two_graphs(name):
    """Where torch finds out that it changes; every method has one that changes below."""
    method = registry.METHODS[name]
    x = lists_for(method, 3, 3 if method.name in LAID_OUT else 6)
    assert graphs_for(method, [(x, 1 - 0.1 * i) for i in range(8)]) <= 2


ANY_SHAPE = sorted(set(registry.METHODS) - set(LAID_OUT))


@pytest.mark.parametrize(
    "name", some_of(ANY_SHAPE, "softsort", "lapsum", "sinkhorn_sort", "fast_soft_rank_kl")
)
def test_short_lists_of_several_shapes_take_few_graphs(name):
    assert_few_graphs(name, FEW_SHAPES, dynamic=True)


@pytest.mark.parametrize("name", some_of(ANY_SHAPE, "neuralsort", "fast_soft_rank"))
def test_short_lists_of_many_shapes_take_few_graphs(name):
    assert_few_graphs(name, SHAPES, dynamic=True)


@pytest.mark.parametrize("name", some_of(ANY_SHAPE, "neuralsort", "fast_soft_rank"))
def test_short_lists_take_few_graphs_where_torch_finds_out_what_changes(name):
    assert_few_graphs(name, SHAPES, dynamic=None)


def assert_few_graphs(name: str, shapes: tuple[tuple[int, int], ...], dynamic: bool | None) -> None:
    method = registry.METHODS[name]
    calls = [(lists_for(method, *shape), 1 - 0.05 * i) for i, shape in enumerate(shapes)]
    most = MOST_GRAPHS if shapes is SHAPES else MOST_GRAPHS - 1
    assert graphs_for(method, calls, dynamic=dynamic) <= most


def test_a_gate_takes_one_graph_for_many_lengths():
    def gate(x: Tensor) -> Tensor:
        return ns.soft_topk_mask(x, 3, tau=0.5)

    counter = CompileCounterWithBackend("eager")
    compiled = torch.compile(gate, backend=counter, fullgraph=True, dynamic=True)
    for shape in ((3, 7), (4, 9), (5, 12)):
        x = torch.randn(shape)
        torch.testing.assert_close(compiled(x), gate(x), rtol=1e-5, atol=1e-5)
    assert counter.frame_count == 1


SHORTEST, SHORT = ((2, 2), (3, 3), (4, 4), (2, 3)), ((2, 3), (3, 4), (4, 6), (5, 8), (2, 7))
"""Shapes with lengths up to two powers of two: 2 and 4, or 4 and 8, which has twice the layers."""


@pytest.mark.parametrize("name", LAID_OUT)
@pytest.mark.parametrize("shapes", some_of([(SHORTEST,), (SHORT,)], (SHORTEST,)))
def test_networks_take_one_graph_for_lengths_up_to_a_power_of_two(name, shapes):
    method = registry.METHODS[name]
    calls = [(lists_for(method, *shape), 1 - 0.1 * i) for i, shape in enumerate(shapes)]
    assert graphs_for(method, calls, dynamic=True) == 2


@pytest.mark.parametrize("name", LAID_OUT)
@pytest.mark.parametrize("largest", some_of([4, 8], 4))
def test_networks_take_one_graph_up_to_a_length_that_is_stated(name, largest):
    method = registry.METHODS[name]
    lengths = [n for n in (6, 3, 8, 5, 7, 4) if n <= largest]
    calls = [(lists_for(method, n, n), 1 - 0.1 * n) for n in lengths]
    for lists, _ in calls:
        torch._dynamo.mark_dynamic(lists, 1, min=3, max=largest)
    assert graphs_for(method, calls, dynamic=True) == 1


@pytest.mark.parametrize("module", [ns.nn.NeuralSort(), ns.nn.SoftTopK(2)], ids=repr)
def test_an_annealed_attribute_takes_two_graphs(module):
    x = torch.randn(3, 7)

    def answer(x: Tensor) -> Tensor:
        made = module(x)
        return made[0] if isinstance(made, tuple) else made.sort(x)

    counter = CompileCounterWithBackend("eager")
    compiled = torch.compile(answer, backend=counter, fullgraph=True)
    for i in range(8):
        module.tau = 1 - 0.1 * i
        torch.testing.assert_close(compiled(x), answer(x), rtol=1e-5, atol=1e-5)
    assert counter.frame_count <= 2


TWO_FORMS = [m.name for m in METHODS if m.two_forms]


@pytest.mark.parametrize(
    ("name", "whole"),
    some_of([(name, whole) for name in TWO_FORMS for whole in (False, True)], ("lapsum", False)),
)
def test_long_lists_are_the_same_where_graphs_break(name, whole):
    """Some here, others in `test_citizen.py`."""
    function = registry.METHODS[name].function

    def answers(scores: Tensor, x: Tensor) -> list[Tensor]:
        P = function(scores, tau=0.5)
        found = [P.sort(scores), P @ x.unsqueeze(-1)]
        return [*found, P.rank()] if whole else found

    assert_same(answers, torch.randn(2, 600), torch.randn(2, 600))


# -- which side ------------------------------------------------------------------------------------

SCORES, WIDE, TALL = torch.randn(2, 4), torch.randn(2, 3, 4), torch.randn(2, 4, 3)
SQUARE, VECTOR = torch.randn(2, 4, 4), torch.randn(4)
SIDES = {
    "P @ x": (lambda P: P @ TALL, lambda D: D @ TALL),
    "x @ P": (lambda P: WIDE @ P, lambda D: WIDE @ D),
    "P.mT @ x": (lambda P: P.mT @ TALL, lambda D: D.mT @ TALL),
    "x @ P.mT": (lambda P: WIDE @ P.mT, lambda D: WIDE @ D.mT),
    "matmul(P, x)": (lambda P: torch.matmul(P, SQUARE), lambda D: D @ SQUARE),
    "matmul(x, P)": (lambda P: torch.matmul(SQUARE, P), lambda D: SQUARE @ D),
}


@pytest.mark.parametrize("written", SIDES)
def test_products_from_both_sides_compiled(written):
    product, expected = SIDES[written]
    compiled = torch.compile(
        lambda: product(ns.neuralsort(SCORES)), backend="eager", fullgraph=True
    )
    torch.testing.assert_close(compiled(), expected(ns.neuralsort(SCORES).to_dense()))


BOTH_FIT = {
    "P @ x": lambda P: P @ SQUARE,
    "x @ P": lambda P: SQUARE @ P,
    "P @ v": lambda P: P @ VECTOR,
    "v @ P": lambda P: VECTOR @ P,
}


@pytest.mark.parametrize("written", BOTH_FIT)
def test_products_that_fit_on_both_sides_are_refused(written):
    """One graph cannot tell them apart; several can, since eager code does."""

    def product() -> Tensor:
        return BOTH_FIT[written](ns.neuralsort(SCORES))

    with pytest.raises(Unsupported, match="fits on one side"):
        torch.compile(product, backend="eager", fullgraph=True)()


@pytest.mark.parametrize(
    "product",
    [lambda P: torch.matmul(TALL, P), lambda P: torch.matmul(P, WIDE)],
    ids=["x, P", "P, x"],
)
def test_a_product_that_does_not_fit_is_refused_compiled_where_its_sides_are_told(product):
    with pytest.raises(Unsupported, match="P"):
        torch.compile(lambda: product(ns.neuralsort(SCORES)), backend="eager", fullgraph=True)()


def test_a_product_that_fits_on_the_other_side_only_is_taken_there_compiled():
    """What `docs/conventions.md` warns of: if this fails, torch tells the sides, and so may we."""
    compiled = torch.compile(lambda: TALL @ ns.neuralsort(SCORES), backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(), ns.neuralsort(SCORES) @ TALL)
    with pytest.raises(ValueError, match="x @ P"):
        TALL @ ns.neuralsort(SCORES)  # pyright: ignore


def test_other_operations_are_refused_compiled():
    def added() -> Tensor:
        return ns.neuralsort(SCORES) + SQUARE  # pyright: ignore[reportOperatorIssue]

    with pytest.raises(Unsupported):
        torch.compile(added, backend="eager", fullgraph=True)()
