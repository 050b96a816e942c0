"""The reference names everything that is public, once, and nothing else."""

import ast
import re
from importlib import metadata
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
REFERENCE = ROOT / "docs" / "reference"
SOURCE = ROOT / "src" / "neuralsort"

PUBLIC = {
    "neuralsort.torch": "torch/__init__.py",
    "neuralsort.torch.estimators": "torch/estimators.py",
    "neuralsort.torch.metrics": "torch/metrics.py",
    "neuralsort.torch.nn": "torch/nn.py",
    "neuralsort.torch.registry": "torch/registry.py",
    "neuralsort.jax": "jax/__init__.py",
    "neuralsort.jax.estimators": "jax/estimators.py",
    "neuralsort.jax.metrics": "jax/metrics.py",
    "neuralsort.tf": "tf/__init__.py",
    "neuralsort.neighbors": "neighbors/__init__.py",
}
"""Modules that users import, and their files: read, not imported, so no framework is needed."""


def public_names(path: Path) -> list[str]:
    """The literal `__all__` of a file."""
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return ast.literal_eval(node.value)
    raise AssertionError(f"{path} has no __all__")


def entries() -> list[str]:
    """What the pages ask mkdocstrings for."""
    pages = sorted(REFERENCE.rglob("*.md"))
    return [name for page in pages for name in re.findall(r"^::: (\S+)", page.read_text(), re.M)]


@pytest.mark.parametrize(("module", "file"), PUBLIC.items(), ids=PUBLIC)
def test_every_public_name_has_one_entry(module, file):
    listed = [name.rpartition(".") for name in entries()]
    found = sorted(name for room, _, name in listed if room == module)
    assert found == sorted(public_names(SOURCE / file))


def test_every_entry_is_of_a_public_module():
    assert {name.rpartition(".")[0] for name in entries()} == set(PUBLIC)


@pytest.mark.parametrize("file", [f for f in PUBLIC.values() if "init" not in f])
def test_what_is_shown_is_public(file):
    """What has an example, or is imported `as` itself, is found out if it is not in `__all__`."""
    shown = set()
    for node in ast.parse((SOURCE / file).read_text()).body:
        if isinstance(node, ast.ImportFrom):
            shown |= {alias.name for alias in node.names if alias.asname == alias.name}
        elif isinstance(node, (ast.ClassDef, ast.FunctionDef)) and "Example:" in (
            ast.get_docstring(node) or ""
        ):
            shown.add(node.name)
    assert shown <= set(public_names(SOURCE / file))


def test_the_navigation_lists_every_page():
    listed = set(re.findall(r"[\w/-]+\.md", (ROOT / "mkdocs.yml").read_text()))
    pages = {str(page.relative_to(ROOT / "docs")) for page in (ROOT / "docs").rglob("*.md")}
    assert pages | {"contributing.md", "changelog.md"} == listed


def test_the_command_line_is_that_of_its_help():
    pytest.importorskip("lightning_fabric", reason="needs the extra `experiments`")
    from tests import command_line

    pinned = re.search(r"^tyro==(.*)$", (ROOT / "constraints.txt").read_text(), re.M)
    if pinned and metadata.version("tyro") != pinned[1]:
        pytest.skip("the page shows the help of another version of tyro")
    told = command_line.PAGE.read_text(encoding="utf-8") == command_line.page()
    assert told, "run `python -m tests.command_line`"


SHAPE = re.compile(r"`\([^`]*\)`|\bshape\b")
"""A shape such as `(..., n)`, or the word."""


@pytest.mark.parametrize("file", ["torch/nn.py", "torch/metrics.py", "torch/estimators.py"])
def test_what_is_looked_up_says_its_shapes(file):
    """Somebody who finds a name by a search should not have to look for another one."""
    public = set(public_names(SOURCE / file))
    for node in ast.parse((SOURCE / file).read_text()).body:
        if isinstance(node, (ast.ClassDef, ast.FunctionDef)) and node.name in public:
            before, found, _ = (ast.get_docstring(node) or "").partition("Example:")
            assert found, f"{node.name} has no example"
            assert SHAPE.search(before), f"{node.name} does not say what shapes it takes"
