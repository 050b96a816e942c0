"""The notebooks of the gallery run in quick form, and their pages are those of their sources."""

import math
import operator
import os
import re
import runpy
from functools import cache
from pathlib import Path
from unittest import mock

import pytest
import torch

plt = pytest.importorskip("matplotlib.pyplot")
pytest.importorskip("sklearn")

ROOT = Path(__file__).parent.parent
SOURCES = {path.stem: path for path in sorted((ROOT / "examples" / "gallery").glob("[!_]*.py"))}
PAGES = ROOT / "docs" / "gallery"

CLAIMS = {
    "colour_grid": operator.lt,
    "conformal_training": None,
    "histogram_matching": None,
    "jigsaw": None,
    "learning_to_rank": None,
    "listwise_preferences": None,
    "nearest_neighbours": operator.gt,
    "partial_rankings": operator.gt,
    "sorting_study": None,
    "sorting_study_jax": None,
    "token_gate": None,
    "trimmed_regression": operator.gt,
}
"""How `ours` compares with `plain`, where a few seconds are enough to tell; else None."""

NEEDS = {"sorting_study_jax": "jax"}
"""What a notebook imports beside PyTorch and scikit-learn."""


@cache
def run(name: str) -> dict:
    """The names of a notebook, once it has run in its quick form, without data of the studies."""
    settings = {"NEURALSORT_GALLERY": "quick", "NEURALSORT_DATA": ""}
    with mock.patch.dict(os.environ, settings), mock.patch.object(plt, "show"):
        names = runpy.run_path(str(SOURCES[name]))
    plt.close("all")
    return names


def test_every_notebook_has_its_claim_and_its_page():
    pages = {path.stem for path in PAGES.glob("*.md")} - {"index"}
    assert set(SOURCES) == set(CLAIMS) == pages


@pytest.mark.parametrize("name", SOURCES)
def test_notebooks_run_and_measure(name, capsys):
    pytest.importorskip(NEEDS.get(name, "torch"))
    plt.switch_backend("agg")
    names = run(name)
    ours, plain = names["ours"], names["plain"]
    assert math.isfinite(ours)
    assert math.isfinite(plain)
    if CLAIMS[name]:
        assert CLAIMS[name](ours, plain)


def plain_text(text: str) -> str:
    """Without the differences that a trip through a notebook makes: empty lines."""
    return re.sub(r"\s*\n\s*", "\n", text).strip()


@pytest.mark.parametrize("name", SOURCES)
def test_pages_are_those_of_their_sources(name):
    page = plain_text((PAGES / f"{name}.md").read_text(encoding="utf-8"))
    for cell in re.split(r"^# %%", SOURCES[name].read_text(encoding="utf-8"), flags=re.M)[1:]:
        kind, _, body = cell.partition("\n")
        text = re.sub(r"^# ?", "", body, flags=re.M) if "markdown" in kind else body
        assert plain_text(text) in page, f"run `make gallery`, or its part {name}"


@pytest.mark.parametrize("name", SOURCES)
def test_pages_are_light_and_listed(name):
    figures = (PAGES / "figures").glob(f"{name}_[0-9]*")
    assert sum(path.stat().st_size for path in figures) < 200_000
    page = (PAGES / f"{name}.md").read_text(encoding="utf-8")
    measured = re.search(r"^\*\*Measured:\*\* (.*) \*\((\d+) s of CPU\)\*$", page, re.M)
    assert measured
    row = f"({name}.md) | {measured[1]} | {measured[2]} |"
    assert row in (PAGES / "index.md").read_text(encoding="utf-8"), "run `make gallery`"


@pytest.mark.parametrize("name", SOURCES)
def test_notebooks_are_short(name):
    cells = re.split(r"^# %%", SOURCES[name].read_text(encoding="utf-8"), flags=re.M)[1:]
    code = [cell.partition("\n")[2] for cell in cells if not cell.startswith(" [markdown]")]
    lines = [line for line in "\n".join(code).splitlines() if line.strip()]
    assert 40 <= len(lines) <= 95


# -- what single notebooks say beyond their claim --------------------------------------------------


def test_strengths_are_those_of_another_solver(capsys):
    """Maximum likelihood from partial rankings: a ranking is a series of choices among the left."""
    choix = pytest.importorskip("choix")
    names = run("partial_rankings")
    strengths = torch.randn(12, dtype=torch.float64)
    field = torch.rand(2000, 12).argsort(-1)[:, :6]
    places = names["ns"].PlackettLuce(strengths[field]).sample()[:, :3]
    choices = []
    for runners, ranking in zip(field.tolist(), places.tolist(), strict=True):
        left = set(runners)
        for place in ranking:
            left.remove(runners[place])
            choices.append((runners[place], list(left)))
    expected = torch.as_tensor(choix.ilsr_top1(12, choices))
    fitted = names["fit"](field, places, runners=12, prior=0.0)
    assert (fitted - (expected - expected.mean())).abs().max() < 1e-3


def test_sets_cover_what_is_promised(capsys):
    names = run("conformal_training")
    for covered, _ in names["mean"].values():
        assert abs(covered - (1 - names["ALPHA"])) < 0.025  # a mean over random halves


def test_tours_visit_every_cell(capsys):
    names = run("colour_grid")
    cells = torch.arange(names["SIDE"] ** 2)
    for reach in (1, 3, 7):
        assert torch.equal(names["shuffled_tour"](reach).sort().values, cells)
