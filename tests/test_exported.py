"""Exported programs give the numbers of eager code, at sizes that the export did not see."""

import functools

import pytest
import torch

import neuralsort.torch as ns
from neuralsort.torch import tracing
from tests.exports import CASES, REASONS, RELEVANCE_LOSSES, WAYS, Case

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")

SEEN, UNSEEN = (3, 6), ((5, 9), (2, 4))
"""Sizes (batch, n)."""
LAID_OUT = 3
"""The length of networks, of which every layer is exported: no power of two."""


def tensors(results) -> list[torch.Tensor]:
    return [results] if isinstance(results, torch.Tensor) else list(results)


def inputs_of(case: Case, batch: int, n: int) -> tuple[torch.Tensor, ...]:
    return case.make(batch, n if case.reason("length") is None else LAID_OUT)


def assert_equal_everywhere(case: Case, program) -> None:
    for batch, n in (SEEN, *UNSEEN):
        inputs = inputs_of(case, batch, n)
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
    inputs = inputs_of(case, *SEEN)
    return torch.export.export(case.module(), inputs, dynamic_shapes=shapes, strict=strict)


def cases(way: str) -> pytest.MarkDecorator:
    able = [case for case in CASES if case.reason(way) is None]
    return pytest.mark.parametrize("case", able, ids=lambda case: case.name)


@cases("export")
def test_exported_programs_are_the_same(case):
    assert_equal_everywhere(case, exported(case, strict=False).module())


@cases("strict")
def test_strictly_exported_programs_are_the_same(case):
    assert_equal_everywhere(case, exported(case, strict=True).module())


@cases("onnx")
def test_onnx_programs_are_the_same(case):
    pytest.importorskip("onnxscript")
    runtime = pytest.importorskip("onnxruntime")
    program = torch.onnx.export(exported(case, strict=False), dynamo=True, verbose=False)
    assert program is not None
    session = runtime.InferenceSession(program.model_proto.SerializeToString())
    names = [x.name for x in session.get_inputs()]

    def run(*inputs: torch.Tensor) -> list[torch.Tensor]:
        feed = {name: x.numpy() for name, x in zip(names, inputs, strict=True)}
        return [torch.from_numpy(y) for y in session.run(None, feed)]

    assert_equal_everywhere(case, run)


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
    forms = (
        lambda: tracing.running_max(x),
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


def test_reasons_are_for_cases_and_ways_that_exist():
    assert set(REASONS) <= {case.name for case in CASES}
    assert all(set(reasons) <= set(WAYS) for reasons in REASONS.values())
