"""The public surface and the shape of the source: names, layers, docstrings and their examples."""

import ast
import doctest
import inspect
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import neuralsort
import neuralsort.torch as ns

ROOT = Path(inspect.getfile(neuralsort)).parent

PUBLIC = {
    "neuralsort",
    "softsort",
    "lapsum",
    "sinkhorn",
    "gumbel_sinkhorn",
    "sinkhorn_sort",
    "sorting_network",
    "fast_soft_sort",
    "fast_soft_rank",
    "RelaxedPermutation",
    "soft_sort",
    "soft_sort_by",
    "soft_rank",
    "soft_topk",
    "soft_topk_mask",
    "sparse_threshold",
    "midpoint_threshold",
    "conformal_quantile",
    "listwise_dpo_loss",
    "pad_groups",
    "unpad_groups",
    "soft_quantile",
    "soft_median",
    "tau_for_blur",
    "Blur",
    "straight_through",
    "PlackettLuce",
    "RelaxedPlackettLuce",
    "stochastic_neuralsort",
    "score_function_loss",
    "plackett_luce_nll",
    "permutation_cross_entropy",
    "knn_loss",
    "topk_cross_entropy",
    "neural_ndcg",
    "approx_ndcg",
    "spearman_loss",
    "kendall_loss",
    "ranknet_loss",
    "KSubset",
    "fenchel_young_loss",
    "listnet_loss",
    "lambda_loss",
    "smooth_ap_loss",
    "recall_at_k_loss",
    "ranking_from",
}

LAYERS = {
    "torch": [
        {"_checks", "arrays", "pytrees", "tracing"},
        {"indexing"},
        {"matrixlike"},
        {"gradients", "groups", "hardening", "noise", "permutation", "rankings", "softness"}
        | {"pooling", "subset_sums", "temperature"},
        {"permutahedron", "relaxations"},
        {"conformal", "gating", "operators", "registry"},
        {"distributions", "losses", "metrics", "ranking_losses", "subsets"}
        | {"perturbations", "preferences", "relevance_losses", "retrieval"},
        {"estimators", "knn"},
        {"nn"},
    ],
    "jax": [
        {"_checks", "arrays", "pytrees"},
        {"indexing"},
        {"matrixlike"},
        {"gradients", "groups", "hardening", "noise", "permutation", "rankings", "softness"}
        | {"subset_sums"},
        {"permutahedron", "relaxations"},
        {"conformal", "gating", "operators"},
        {"distributions", "losses", "metrics", "ranking_losses", "subsets"}
        | {"perturbations", "preferences", "relevance_losses", "retrieval"},
        {"estimators"},
    ],
    "tf": [{"_checks"}, {"gradients", "noise"}, {"relaxations"}, {"distributions", "layers"}],
    "runtime": [{"files", "machine", "process", "progress"}],
    "experiments": [
        {"data"},
        {"networks"},
        {"record", "training"},
        {"studies"},
        {"reporting", "reproduction"},
        {"quickstart"},
        {"cli"},
        {"__main__"},
    ],
}
"""Each room of a package imports from the layers before it, or from its own."""

SHARED = {"runtime": set(), "experiments": {"neighbors", "play", "runtime", "torch"}}
"""What packages may import of others; the rest share plain options and the rules for them."""

FUNCTIONS = sorted(name for name in ns.__all__ if inspect.isfunction(getattr(ns, name)))


def test_public_names_are_listed_and_resolve():
    assert PUBLIC.issubset(ns.__all__)
    assert len(ns.__all__) == len(set(ns.__all__))
    for name in ns.__all__:
        assert not name.startswith("_")
        assert callable(getattr(ns, name))


def test_star_import_gives_exactly_the_public_names():
    room: dict[str, object] = {}
    exec("from neuralsort.torch import *", room)
    assert set(room) - {"__builtins__"} == set(ns.__all__)


def test_there_is_a_version():
    assert re.fullmatch(r"\d+\.\d+\.\d+(\.?(a|b|rc|dev)\d+)?", neuralsort.__version__)


def test_the_root_imports_no_framework():
    script = (
        "import sys, neuralsort; print({'torch', 'jax', 'tensorflow', 'numpy'} & set(sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "set()"


def test_importing_torch_room_needs_torch_only():
    """SciPy, NumPy-based extras and the compiler stack stay out until they are asked for."""
    script = (
        "import sys, torch; before = set(sys.modules); import neuralsort.torch; "
        "print({m.split('.')[0] for m in set(sys.modules) - before} - {'neuralsort', 'torch'})"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    loaded = ast.literal_eval(done.stdout.replace("set()", "{}"))
    assert not {"scipy", "sklearn", "matplotlib", "jax", "tensorflow"} & set(loaded)


# -- the shape of the source -----------------------------------------------------------------------


def room_of(path: Path) -> str:
    """The file or folder directly under neuralsort/torch, or under another package."""
    return path.relative_to(ROOT).parts[1].removesuffix(".py")


def imported_modules(path: Path) -> list[list[str]]:
    """Modules that a file imports, at its top or inside its functions, as lists of names."""
    package = ("neuralsort", *path.relative_to(ROOT).parts[:-1])
    found = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found += [alias.name.split(".") for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = list(package[: len(package) - node.level + 1]) if node.level else []
            base += node.module.split(".") if node.module else []
            # `from .. import x` may name a module, so each name counts as one.
            found += [[*base, alias.name] for alias in node.names]
    return found


def imported_rooms(path: Path) -> set[str]:
    """Rooms of its own package that a file imports."""
    package = ["neuralsort", path.relative_to(ROOT).parts[0]]
    return {m[2] for m in imported_modules(path) if m[:2] == package and len(m) > 2}


@pytest.mark.parametrize("package", LAYERS)
def test_layers_are_all_there(package):
    rooms = {room_of(path) for path in (ROOT / package).rglob("*.py")} - {"__init__"}
    assert rooms == set().union(*LAYERS[package])


FILES = [
    path
    for package in LAYERS
    for path in sorted((ROOT / package).rglob("*.py"))
    if path != ROOT / package / "__init__.py"
]


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_point_downwards(path):
    package = path.relative_to(ROOT).parts[0]
    layers = LAYERS[package]
    mine = next(i for i, rooms in enumerate(layers) if room_of(path) in rooms)
    assert imported_rooms(path) <= set().union(*layers[: mine + 1])
    ours = {m[1] for m in imported_modules(path) if m[0] == "neuralsort" and len(m) > 1}
    assert ours <= {package, *SHARED.get(package, {"_blur", "_interpolation", "_options"})}


@pytest.mark.parametrize("package", ["torch", "jax"])
def test_layers_are_seen_at_all(package):
    """The check above would pass on anything if it found no imports."""
    assert "permutation" in imported_rooms(ROOT / package / "operators.py")
    assert "permutation" in imported_rooms(ROOT / package / "relaxations" / "scored.py")


def test_every_file_has_found_its_home():
    names = {path.stem.strip("_") for path in ROOT.rglob("*.py")}
    assert not names & {"utils", "util", "common", "helpers", "helper", "misc"}


# -- docstrings ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", FUNCTIONS)
def test_docstring_explains_arguments_and_result(name):
    function = getattr(ns, name)
    text = inspect.getdoc(function)
    assert text
    for section in ("Args:", "Returns:", "Example:"):
        assert section in text, f"{name} has no {section}"
    for parameter in inspect.signature(function).parameters:
        assert f"{parameter}:" in text, f"{name} does not explain {parameter}"


@pytest.mark.parametrize("name", sorted(PUBLIC))
def test_examples_run(name):
    thing = getattr(ns, name)
    module = sys.modules[thing.__module__]
    flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    runner = doctest.DocTestRunner(optionflags=flags, verbose=False)
    finder = doctest.DocTestFinder(recurse=inspect.isclass(thing))
    for test in finder.find(thing, name, module=module, globs={**vars(module), "torch": torch}):
        runner.run(test)
    assert runner.tries >= 1, f"{name} has no example that runs"
    assert runner.failures == 0


def test_methods_of_the_operator_are_documented():
    methods = ["sort", "rank", "top", "log_prob", "permutation", "straight_through", "entropy"]
    for name in (*methods, "to_dense", "is_unimodal", "from_dense", "mT", "shape", "__matmul__"):
        assert inspect.getdoc(getattr(ns.RelaxedPermutation, name)), name
