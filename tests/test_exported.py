"""Exported programs give the numbers of eager code, at sizes that the export did not see."""

import functools
import importlib
from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch
from scipy.stats import ks_2samp
from torch.export import Dim

import neuralsort.torch as ns
from neuralsort.torch import tracing
from tests.exports import CASES, RELEVANCE_LOSSES, Case
from tests.portions import some_of

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")


def tensors(results) -> list[torch.Tensor]:
    return [results] if isinstance(results, torch.Tensor) else list(results)


def assert_equal_everywhere(case: Case, program) -> None:
    for batch, n in case.sizes():
        inputs = case.make(batch, n)
        torch.manual_seed(1)
        expected = tensors(case.function(*inputs))
        torch.manual_seed(1)
        actual = tensors(program(*inputs))
        assert len(actual) == len(expected)
        for i, (one, other) in enumerate(zip(actual, expected, strict=True)):
            message = f"result {i} at {batch} x {n}"
            torch.testing.assert_close(
                one, other, rtol=1e-6, atol=1e-6, msg=lambda m, message=message: f"{message}: {m}"
            )


@functools.cache  # one program, looked at by itself and as ONNX
def exported(case: Case, strict: bool):
    shapes = (case.dynamic(),)
    inputs = case.make(*case.sizes()[0])
    return torch.export.export(case.module(), inputs, dynamic_shapes=shapes, strict=strict)


ALIKE = ("softsort_squared", "odd_even_network", "fast_soft_sort", "fast_soft_rank")
"""Cases much like another one, which every run has: left to `make test-all`."""


def whole_or_in_part() -> list:
    """Every kind of case in every run, and all of them whole in `make test-all`.

    ONNX takes the parts too: programs that are there already.
    """
    found = []
    for case in CASES:
        whole, alike = case.part is None, case.name in ALIKE
        marks = () if whole and not alike else pytest.mark.long
        found.append(pytest.param(case, id=case.name, marks=marks))
        if not whole and not alike:
            found.append(pytest.param(case.in_part(), id=f"{case.name}, part"))
    return found


@pytest.mark.parametrize("case", whole_or_in_part())
def test_exported_programs_are_the_same(case):
    assert_equal_everywhere(case, exported(case, strict=False).module())


def some_in_every_run(cases: Iterable[Case], *names: str) -> pytest.MarkDecorator:
    """Runs a test of `case` for these, of which every run has some."""
    return pytest.mark.parametrize(
        "case",
        [
            pytest.param(c, id=c.name, marks=() if c.name in names else pytest.mark.long)
            for c in cases
        ],
    )


@some_in_every_run(CASES, "nn.Temperature")
@pytest.mark.parametrize(
    "whole", [False, pytest.param(True, marks=pytest.mark.long)], ids=["part", "whole"]
)
def test_strictly_exported_programs_are_the_same(case, whole):
    """By Dynamo, which takes twice as long; `test_compiled.py` shows all methods to it."""
    case = case if whole else case.in_part()
    assert_equal_everywhere(case, exported(case, strict=True).module())


@functools.cache
def translations(make: Callable[..., Any], **options: Any) -> Any:
    """The table by which ONNX is written, made once: the exporter makes it for every program."""
    return make(**options)


def in_onnxruntime(program, optimize: bool) -> Callable[..., list[torch.Tensor]]:
    pytest.importorskip("onnxscript")
    runtime = pytest.importorskip("onnxruntime")
    tables = importlib.import_module("torch.onnx._internal.exporter._registration").ONNXRegistry
    with pytest.MonkeyPatch.context() as patch:
        once = staticmethod(functools.partial(translations, tables.from_torchlib))
        patch.setattr(tables, "from_torchlib", once)
        program = torch.onnx.export(program, dynamo=True, verbose=False, optimize=optimize)
    assert program is not None
    session = runtime.InferenceSession(program.model_proto.SerializeToString())
    names = [x.name for x in session.get_inputs()]

    def run(*inputs: torch.Tensor) -> list[torch.Tensor]:
        feed = {name: x.numpy() for name, x in zip(names, inputs, strict=True)}
        return [torch.from_numpy(y) for y in session.run(None, feed)]

    return run


LIKE_ANOTHER = (
    "fast_soft_rank",
    "fast_soft_rank_kl",
    "fast_soft_sort",
    "nn.DifferentiableKNN, nn.KNNLoss",
    "nn.NeuralSort, nn.PermutationCrossEntropy",
    "nn.SoftTopK",
    "nn.Temperature",
    "nn.TopKCrossEntropy",
    "neuralsort",
    "odd_even_network",
    "operators",
    "sinkhorn_sort",
    "softsort_squared",
)
"""Made of the operations of other cases, or optimised below."""
NOT_RANDOM = [c for c in CASES if not c.random]


@some_in_every_run(NOT_RANDOM, *(c.name for c in NOT_RANDOM if c.name not in LIKE_ANOTHER))
def test_onnx_programs_are_the_same(case):
    """In part and as they are translated; the whole is optimised too, which takes longest."""
    case = case.in_part()
    assert_equal_everywhere(case, in_onnxruntime(exported(case, strict=False), optimize=False))


@some_in_every_run(NOT_RANDOM, "nn.Temperature")
def test_optimized_onnx_programs_are_the_same(case):
    """As `torch.onnx.export` makes them unless it is told otherwise."""
    assert_equal_everywhere(case, in_onnxruntime(exported(case, strict=False), optimize=True))


def test_onnx_programs_draw_by_the_same_law():
    """By the test of Kolmogorov and Smirnov, which fails by chance once in a million times."""
    (case,) = (c.in_part() for c in CASES if c.random)
    program = in_onnxruntime(exported(case, strict=False), optimize=True)
    run, logits = program, torch.zeros(4000, 2, 2)
    one, other = (run(logits)[0][:, 0, 0] for _ in range(2))
    assert not torch.equal(one, other)
    torch.manual_seed(0)
    assert ks_2samp(one, case.function(logits)[0][:, 0, 0]).pvalue > 1e-6  # pyright: ignore


@pytest.mark.parametrize(("seen", "largest"), some_of([(3, 4), (6, 8)], (3, 4)))
def test_networks_without_a_largest_length_serve_lengths_to_the_next_power_of_two(seen, largest):
    class Sort(torch.nn.Module):
        def forward(self, scores: torch.Tensor) -> torch.Tensor:
            return ns.sorting_network(scores, tau=0.5).to_dense()

    shapes = ({0: Dim.AUTO, 1: Dim.AUTO},)
    program = torch.export.export(Sort(), (torch.randn(3, seen),), dynamic_shapes=shapes).module()
    for n in (largest // 2 + 1, largest):
        torch.testing.assert_close(program(torch.randn(2, n)).sum(-1), torch.ones(2, n))
    with pytest.raises(AssertionError, match=f"<= {largest}"):
        program(torch.randn(2, largest + 1))


# -- the forms, beside the operations they stand for -----------------------------------------------

NAN, INF = torch.nan, torch.inf
LISTS = [
    torch.tensor([[1.0, NAN, 2.0, INF, -INF, NAN, 2.0], [0.0, -0.0, 1.0, 1.0, 3.0, -1.0, 0.0]]),
    torch.randn(3, 5, dtype=torch.float64),
    torch.tensor([True, False, True, False]),
    torch.empty(2, 0),
]


@pytest.mark.parametrize("descending", [True, False])
@pytest.mark.parametrize("x", LISTS, ids=lambda x: f"{x.dtype} {tuple(x.shape)}")
def test_counting_sorts_as_a_stable_sort_does(monkeypatch, x, descending):
    expected = torch.sort(x, dim=-1, descending=descending, stable=True)
    monkeypatch.setattr(tracing, "exporting", lambda: True)
    values, perm = tracing.stable_sort(x, descending=descending)
    assert torch.equal(perm, expected.indices)
    torch.testing.assert_close(values, expected.values, rtol=0, atol=0, equal_nan=True)


def test_running_extremes_and_searches_by_comparison(monkeypatch):
    x, limits = torch.randint(-9, 9, (3, 7)), torch.randint(-9, 9, (3, 4))
    ordered = x.sort(-1).values
    y = torch.where(x < -6, -torch.inf, x / 3)
    forms = (
        lambda: tracing.running_max(x),
        lambda: tracing.running_max(y),
        lambda: tracing.running_min(y),
        lambda: tracing.running_min(x),
        lambda: tracing.count_up_to(ordered, limits),
    )
    expected = [form() for form in forms]
    monkeypatch.setattr(tracing, "exporting", lambda: True)
    assert all(torch.equal(form(), one) for form, one in zip(forms, expected, strict=True))


def test_the_arctangent_by_newton(monkeypatch):
    monkeypatch.setattr(tracing, "exporting", lambda: True)
    x = torch.randn(1000, dtype=torch.float64) * 10.0 ** torch.linspace(-9, 300, 1000).double()
    torch.testing.assert_close(tracing.arctangent(x), torch.atan(x), rtol=1e-14, atol=1e-300)


def test_every_module_has_a_case():
    named = " ".join(case.name for case in CASES)
    losses = {type(loss).__name__ for loss in RELEVANCE_LOSSES}
    assert {name for name in ns.nn.__all__ if f"nn.{name}" not in named} == losses
