"""The tables of the docs say what the lines in `results/` say."""

import pytest

from benchmarks import pages


@pytest.mark.parametrize(("path", "text"), pages.pages().items())
def test_tables_are_those_of_the_lines(path, text):
    assert path.read_text() == text, "run `python -m benchmarks.pages`"


def test_tables_stand_between_their_marks():
    page = "before\n<!-- a: begin -->\nold\n<!-- a: end -->\nafter"
    new = pages.replaced(page, "a", "| new |")
    assert new == "before\n<!-- a: begin -->\n\n| new |\n\n<!-- a: end -->\nafter"
    assert pages.replaced(new, "a", "| new |") == new
