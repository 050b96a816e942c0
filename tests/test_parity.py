"""PyTorch, JAX and TensorFlow: the same names, the same arguments, each room on its own."""

import inspect
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from torch.distributions import Distribution

from tests.frameworks import nj, nt, ntf

MISSING: dict[str, str] = {}
"""Names of neuralsort.torch that neuralsort.jax does without, and why."""

ENGINE = "JAX asks its engine through operations of its own: accelerated, answers, sweeps"
FILES_OF_TORCH = {
    "knn.py": "the layer for neighbours is a module of PyTorch",
    "nn.py": "modules are PyTorch's",
    "temperature.py": "modules are PyTorch's",
    "registry.py": "one table of methods serves all frameworks",
    "relaxations/on_host.py": "JAX's arithmetic does without float64 everywhere",
    "tracing.py": "JAX programs are exported with XLA's own sort",
    "pooling.py": "programs of XLA cannot ask NumPy in passing",
    "relaxations/neuralsort_matrix.py": "XLA fuses the operations of a dense matrix by itself",
    "relaxations/neuralsort_short.py": "XLA fuses the operations of a dense matrix by itself",
    "relaxations/engine/between.py": "JAX sums falls outward in its dense form, and in its loop",
    "relaxations/engine/chebyshev.py": ENGINE,
    "relaxations/engine/differentiate.py": ENGINE,
    "relaxations/engine/queries.py": ENGINE,
    "relaxations/engine/recurrence.py": "softsort of long lists goes in blocks of rows in JAX",
}
STATIC = "shapes are static: units of all blocks wait in one line, and a loop takes them"
FILES_OF_JAX: dict[str, str] = {
    "relaxations/banded.py": STATIC,
    "relaxations/long_lists.py": "blocks of rows are a form beside the engine",
    "relaxations/engine/accelerated.py": "JAX has no autograd functions to derive twice",
    "relaxations/engine/answers.py": STATIC,
    "relaxations/engine/sweeps.py": STATIC,
}
"""Files that the other package does without, and why."""

NAMES_OF_TORCH = {"detach", "device", "to"}  # arrays of JAX have no graph, and are moved as trees

RANDOMNESS = {"generator", "key", "seed"}
"""What a source of randomness is called."""

ONLY_TORCH = {"validate_args", "_instance"}  # values of traced arrays cannot be read; torch's own
ONLY_JAX = {"bandwidth", "skipped_mass"}  # shapes are static: windows must be known in advance
ROOMS = ("estimators", "metrics")
CLASSES = ("KSubset", "PlackettLuce", "RelaxedPermutation", "RelaxedPlackettLuce")


def arguments(function: Callable[..., Any]) -> dict[str, Any]:
    """Names and defaults; of functions only the name, and of randomness only that it is there."""
    found = {}
    for name, parameter in inspect.signature(function).parameters.items():
        default = parameter.default
        if name in RANDOMNESS:
            found["randomness"] = None
        elif name not in ONLY_TORCH | ONLY_JAX:
            shape = name == "sample_shape"
            found[name] = tuple(default) if shape else getattr(default, "__name__", default)
    return found


def public(thing: Any) -> set[str]:
    return {name for name in dir(thing) if name[0] != "_"}


def functions(package: Any, room: str) -> dict[str, Callable[..., Any]]:
    """The public functions that a module defines."""
    module = getattr(package, room)
    found = inspect.getmembers(module, inspect.isfunction)
    return {n: f for n, f in found if f.__module__ == module.__name__ and n[0] != "_"}


def methods(package: Any, name: str) -> dict[str, Callable[..., Any]]:
    cls = getattr(package, name)
    return {n: getattr(cls, n) for n in public(cls) if callable(getattr(cls, n))}


def test_jax_has_the_names_of_torch():
    assert set(nt.__all__) - set(nj.__all__) == set(MISSING)
    assert set(nj.__all__) <= set(nt.__all__)
    for name in nj.__all__:
        assert callable(getattr(nj, name))
    for room in ROOMS:
        assert set(functions(nj, room)) == set(functions(nt, room))


@pytest.mark.parametrize("name", CLASSES)
def test_jax_has_the_methods_of_torch(name):
    ours, theirs = public(getattr(nj, name)), public(getattr(nt, name))
    assert ours <= theirs | ONLY_JAX
    assert theirs - ours <= public(Distribution) | NAMES_OF_TORCH


# RelaxedPermutation is abstract in PyTorch: nobody calls it, and `from_dense` is compared below.
@pytest.mark.parametrize("name", sorted(set(nj.__all__) - {"RelaxedPermutation"}))
def test_arguments_have_the_same_names_and_defaults(name):
    assert arguments(getattr(nj, name)) == arguments(getattr(nt, name))


@pytest.mark.parametrize("name", ROOMS)
def test_arguments_of_functions_in_rooms_have_the_same_names_and_defaults(name):
    theirs = functions(nt, name)
    for function, ours in functions(nj, name).items():
        if "reduction" in arguments(ours) or name == "estimators":  # the others are for us alone
            assert arguments(ours) == arguments(theirs[function]), function


def test_functions_that_rooms_lend_have_the_same_arguments():
    """They are written in files of their own."""
    lent = {"metrics": ["average_precision", "precision_at_k", "recall_at_k", "reciprocal_rank"]}
    for room, names in (lent | {"estimators": ["perturbed"]}).items():
        for name in names:
            ours, theirs = (getattr(getattr(package, room), name) for package in (nj, nt))
            assert arguments(ours) == arguments(theirs), name


@pytest.mark.parametrize("name", CLASSES)
def test_arguments_of_methods_have_the_same_names_and_defaults(name):
    theirs = methods(nt, name)
    for method, ours in methods(nj, name).items():
        if method not in ONLY_JAX:
            assert arguments(ours) == arguments(theirs[method]), method


def test_tensorflow_has_the_plug_in_subset():
    assert set(ntf.__all__) == {
        "Blur",
        "NeuralSort",
        "PlackettLuce",
        "neuralsort",
        "permutation",
        "sample_gumbel",
        "stochastic_neuralsort",
        "straight_through",
    }


@pytest.mark.parametrize("name", sorted(set(ntf.__all__) & set(nt.__all__)))
def test_arguments_in_tensorflow_have_the_same_names_and_defaults(name):
    assert arguments(getattr(ntf, name)) == arguments(getattr(nt, name))


def test_arguments_of_methods_in_tensorflow_have_the_same_names_and_defaults():
    theirs = methods(nt, "PlackettLuce")
    for method, ours in methods(ntf, "PlackettLuce").items():
        assert arguments(ours) == arguments(theirs[method]), method


# -- isolation -------------------------------------------------------------------------------------

FRAMEWORKS = {"torch": "torch", "jax": "jax", "tf": "tensorflow"}


def run(script: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    return done.stdout.strip()


@pytest.mark.parametrize("room", ["jax", "tf"])
def test_a_room_imports_its_own_framework_only(room):
    """That of PyTorch: in `test_api.py`."""
    # TensorFlow itself imports JAX where it finds it: what counts is what we add.
    others = set(FRAMEWORKS.values()) - {FRAMEWORKS[room]}
    before = "import tensorflow, keras; " if room == "tf" else ""
    script = (
        f"import sys; {before}before = set(sys.modules); import neuralsort.{room}; "
        f"print({others!r} & (set(sys.modules) - before))"
    )
    assert run(script) == "set()"


@pytest.mark.parametrize("room", FRAMEWORKS)
def test_a_missing_framework_gives_one_sentence_with_the_install_command(room):
    block = f"import sys; sys.modules['{FRAMEWORKS[room]}'] = None\n"
    out = run(f"{block}try:\n    import neuralsort.{room}\nexcept ImportError as e:\n    print(e)")
    assert out.count("\n") == 0
    assert out.startswith(f"neuralsort.{room} needs")
    assert f'pip install ".[{room}]"' in out


def test_the_packages_have_the_same_files_but_for_those_with_a_reason():
    torch_files, jax_files = (
        {p.relative_to(root).as_posix() for root in [Path(package.__file__).parent]
         for p in root.rglob("*.py")}
        for package in (nt, nj)
    )  # fmt: skip
    assert torch_files - jax_files == set(FILES_OF_TORCH)
    assert jax_files - torch_files == set(FILES_OF_JAX)
