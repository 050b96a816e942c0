"""Exported programs give the numbers of eager code, at sizes that the export did not see."""

import pytest
import torch

from tests.exports import CASES, REASONS, WAYS, Case

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")

SEEN, UNSEEN = (3, 6), ((5, 9), (2, 4))
"""Sizes (batch, n)."""


def tensors(results) -> list[torch.Tensor]:
    return [results] if isinstance(results, torch.Tensor) else list(results)


def assert_equal_everywhere(case: Case, program) -> None:
    for batch, n in (SEEN, *UNSEEN):
        n = n if case.reason("length") is None else SEEN[1]
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


def exported(case: Case, strict: bool):
    shapes = (tuple(case.dynamic()),)
    inputs = case.make(*SEEN)
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


def test_reasons_are_for_cases_and_ways_that_exist():
    assert set(REASONS) <= {case.name for case in CASES}
    assert all(set(reasons) <= set(WAYS) for reasons in REASONS.values())
