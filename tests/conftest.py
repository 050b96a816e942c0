"""Settings of the whole suite: seeds, hypothesis, tolerances, and the form each list takes."""

import gc
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

# The newest instruction sets round differently in oneDNN; must be set before torch is imported.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_FP16")

# Inductor compiles in processes of its own otherwise, each of which imports torch again.
os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")

import pytest
import torch
from hypothesis import HealthCheck, settings
from torch import Tensor

from tests import xla  # noqa: F401  (before JAX makes its first array)
from tests.methods import LONGEST_DENSE, in_form

gc.disable()  # until all is imported and collected: see `pytest_collection_finish`

DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)

WEIGHT_ATOL = {
    torch.float64: 1e-11,
    torch.float32: 1e-6,
    torch.bfloat16: 2**-9 + 1e-6,
    torch.float16: 2**-12 + 1e-6,
}
"""Error of one weight in [0, 1]: float32 arithmetic, then for the short types half a last place."""

VALUE_RTOL = {
    torch.float64: 1e-11,
    torch.float32: 2e-6,
    torch.bfloat16: 2**-8,
    torch.float16: 2**-11,
}
"""Error of a product with P, over the largest magnitude in the payload."""

GRADIENT_RTOL = {
    torch.float64: 1e-9,
    torch.float32: 1e-5,
    torch.bfloat16: 2**-7,
    torch.float16: 2**-10,
}
"""Error of a gradient, over the largest magnitude in that gradient."""

SKIPPED_MASS = {torch.float64: 1e-14, torch.float32: 1e-7}
"""The certified tolerance: what the banded form may leave out of a row."""

settings.register_profile(
    "local",
    deadline=None,
    max_examples=10,
    # The fixtures used together with @given (a form, a seed) hold for all examples alike.
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
settings.register_profile("ci", settings.get_profile("local"), derandomize=True)
settings.register_profile("quick", settings.get_profile("ci"), max_examples=5)
settings.register_profile("long", settings.get_profile("local"), max_examples=100)
settings.load_profile("ci" if os.environ.get("CI") else "local")

if "PYTEST_XDIST_WORKER" in os.environ:
    torch.set_num_threads(1)


QUICK = {
    "test_api.py",
    "test_distributions.py",
    "test_errors.py",
    "test_gradients.py",
    "test_losses.py",
    "test_metrics.py",
    "test_nn.py",
    "test_operators.py",
    "test_options.py",
    "test_permutahedron.py",
    "test_reference.py",
    "test_relaxations.py",
}
"""The laws in PyTorch, and what users meet first: the files of `make test-quick`."""


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Does not even read the other files in a quick run: some import all three frameworks."""
    other = collection_path.suffix == ".py" and collection_path.name not in QUICK
    return True if other and config.option.markexpr == "quick" else None


FIRST = ("test_ray.py", "test_reproduction.py")
"""Tests that take long in one piece: at the end, one worker would wait for them alone."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks the files above, but for what is slow or long in them; and sorts by the above."""
    items.sort(key=lambda item: item.path.name not in FIRST)
    for item in items:
        left_out = any(item.get_closest_marker(name) for name in ("slow", "long"))
        if item.path.name in QUICK and not left_out:
            item.add_marker(pytest.mark.quick)


def pytest_collection_finish() -> None:
    """Spares the garbage collector what lives to the end: three frameworks, thousands of tests.

    It also looks less often at what tests leave behind, for which it took a twentieth of the time.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)
    gc.enable()


@pytest.fixture(autouse=True)
def _seed():
    # `torch.manual_seed` also writes down where it was called, for devices that are not there.
    torch.default_generator.manual_seed(0)


@pytest.fixture(params=sorted(LONGEST_DENSE))
def form(request):
    """Runs the test once with every list dense and once with none."""
    with in_form(request.param):
        yield request.param


@pytest.fixture(
    params=[
        pytest.param(True, id="projected"),
        pytest.param(False, id="entry by entry", marks=pytest.mark.long),
    ]
)
def fast_mode(request):
    """An option of `gradgradcheck`: both Jacobians times random vectors, in place of all entries.

    PyTorch's own tests do so. Second derivatives are the dear ones, since every entry of a gradient
    is differentiated. First derivatives are compared entry by entry in every run.
    """
    return request.param


@contextmanager
def _jax_precision(double: bool) -> Iterator[None]:
    """Runs JAX in float64 or float32, and leaves it as it was."""
    config = pytest.importorskip("jax").config
    before = config.jax_enable_x64
    config.update("jax_enable_x64", double)
    try:
        yield
    finally:
        config.update("jax_enable_x64", before)


@pytest.fixture
def x64():
    """JAX computes in float64."""
    with _jax_precision(True):
        yield


@pytest.fixture(params=["float32", "float64"])
def dtype(request):
    """The name of a dtype, which JAX can hold while the test runs."""
    with _jax_precision(request.param == "float64"):
        yield request.param


def assert_near(
    actual: Tensor, expected: Tensor, rtol: float, floor: float = 0.0, what: str = "value"
) -> None:
    """The largest error is at most rtol times the largest magnitude expected, or the floor."""
    assert actual.shape == expected.shape
    if expected.numel():
        actual, expected = actual.detach().double(), expected.detach().double()
        error = (actual - expected).abs().max().item()
        bound = rtol * max(expected.abs().max().item(), floor)
        assert error <= bound, f"{what}: error {error:.3g} is above {bound:.3g}"  # also for NaN
