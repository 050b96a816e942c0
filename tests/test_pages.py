"""The tables of the docs say what the lines in `results/` say."""

import pytest

from benchmarks import pages


@pytest.mark.parametrize(("path", "text"), pages.pages().items())
def test_tables_are_those_of_the_lines(path, text):
    assert path.read_text() == text, "run `make pages`"


def test_report_is_that_of_the_lines(tmp_path, monkeypatch):
    """Its words and numbers, and which figures it has; `test_report.py` draws them."""
    report = pytest.importorskip(
        "neuralsort.experiments.reporting.report", reason="needs the extra `experiments`"
    )
    monkeypatch.setattr("matplotlib.figure.Figure.savefig", lambda figure, path, **_: path.touch())
    report.write_report(pages.ROOT / "results", tmp_path)
    kept = pages.ROOT / "docs" / "report"
    for name in ("report.md", "index.html"):
        told = (kept / name).read_text() == (tmp_path / name).read_text()
        assert told, "run `make pages`"
    figures = {one.name for one in (tmp_path / "figures").iterdir()}
    assert figures == {one.name for one in (kept / "figures").iterdir()}


def test_tables_stand_between_their_marks():
    page = "before\n<!-- a: begin -->\nold\n<!-- a: end -->\nafter"
    new = pages.replaced(page, "a", "| new |")
    assert new == "before\n<!-- a: begin -->\n\n| new |\n\n<!-- a: end -->\nafter"
    assert pages.replaced(new, "a", "| new |") == new
