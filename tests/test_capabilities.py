"""The table of what methods can do: every cell is tried, and those that say no must still be right.

Columns of compiling and exporting are tried in test_compiled.py and test_exported.py, those of
devices in test_devices.py.
"""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck

from benchmarks.pages import replaced
from neuralsort.torch import registry
from tests.capabilities import (
    CAPABILITIES,
    COLUMNS,
    LONG,
    ON_HOST,
    ROWS,
    SHORT,
    STAND_INS,
    WAITS,
    WAITS_OF_FUNCTIONS,
    If,
)
from tests.methods import in_form

each_row = pytest.mark.parametrize("row", ROWS)

SCORES = torch.tensor([0.3, -1.2, 2.0, 0.9, -0.4, 1.4], dtype=torch.float64)
PAYLOAD = torch.tensor([1.0, -0.5, 0.25, 2.0, -1.0, 0.5], dtype=torch.float64)


def function(row: str) -> Callable[[Tensor], Tensor]:
    """Scores `(n,)` to values `(n,)`, by the method of a row."""
    method = registry.METHODS[row.removesuffix(", long lists")]

    def values(scores: Tensor) -> Tensor:
        if method.gives == "values":
            return method.function(scores, strength=2.0)
        if method.takes == "scores":
            return method.function(scores, tau=0.7).sort(PAYLOAD)
        logits = scores.unsqueeze(-1) * PAYLOAD
        if row == "gumbel_sinkhorn" and not torch._C._functorch.is_batchedtensor(scores):
            torch.manual_seed(0)
        return method.function(logits, tau=0.7).sort(PAYLOAD)

    return values


def form(row: str):
    return in_form("banded" if row in LONG else "dense")


def inputs() -> Tensor:
    return SCORES.clone().requires_grad_()


def eager(row: str) -> None:
    assert gradcheck(function(row), (inputs(),))


def vmap(row: str) -> None:
    scores = torch.stack([SCORES, SCORES.flip(0), 2 * SCORES])
    torch.manual_seed(0)
    found = torch.vmap(function(row), randomness="same")(scores)
    torch.testing.assert_close(found, torch.stack([function(row)(s) for s in scores]))


def jvp(row: str) -> None:
    direction = torch.linspace(-1, 1, len(SCORES), dtype=torch.float64)
    value, tangent = torch.func.jvp(function(row), (SCORES,), (direction,))
    upstream = torch.arange(1.0, 7.0, dtype=torch.float64)
    (gradient,) = torch.func.vjp(function(row), SCORES)[1](upstream)
    torch.testing.assert_close(upstream @ tangent, gradient @ direction)
    torch.testing.assert_close(value, function(row)(SCORES))


def double_backward(row: str) -> None:
    assert gradgradcheck(function(row), (inputs(),), atol=1e-4)


TRIALS = {"eager": eager, "vmap": vmap, "jvp": jvp, "double backward": double_backward}


@each_row
@pytest.mark.parametrize("column", TRIALS)
def test_what_the_table_says_is_so(row, column):
    cell = CAPABILITIES[column][row]
    with form(row):
        if cell is True:
            TRIALS[column](row)
        else:
            with pytest.raises((RuntimeError, NotImplementedError)):
                TRIALS[column](row)


def test_every_cell_is_filled():
    assert set(SHORT) == set(registry.METHODS)
    for column in COLUMNS:
        assert set(CAPABILITIES[column]) == set(ROWS)
        for cell in CAPABILITIES[column].values():
            assert cell is True or (isinstance(cell, str) and cell)


# -- the page --------------------------------------------------------------------------------------

PAGE = Path(__file__).parents[1] / "docs" / "devices.md"


def table() -> str:
    """The table as docs/devices.md prints it, with its reasons below."""
    reasons: list[str] = []

    def shown(column: str, row: str) -> str:
        cell = CAPABILITIES[column][row]
        if isinstance(cell, bool):
            beside = ", on the host" if column == "MPS" and row in ON_HOST else ""
            return f"stand-in{beside}" if column in STAND_INS else "yes"
        if cell not in reasons:
            reasons.append(cell)
        return f"{'yes' if isinstance(cell, If) else 'no'} ({reasons.index(cell) + 1})"

    def said(reason: str) -> str:
        return f"if {reason}" if isinstance(reason, If) else reason

    lines = ["| " + " | ".join(("method", *COLUMNS)) + " |", "|---" * (len(COLUMNS) + 1) + "|"]
    for row in ROWS:
        cells = (shown(column, row) for column in COLUMNS)
        lines.append("| " + " | ".join((row, *cells)) + " |")
    return "\n".join([*lines, "", *(f"{i}. {said(reason)}" for i, reason in enumerate(reasons, 1))])


def waits() -> str:
    """The table of what makes the host wait."""
    lines = ["| what | why the host waits |", "|---|---|"]
    lines += [f"| {row} | {', '.join(kinds) or 'never'} |" for row, kinds in WAITS.items()]
    lines += [f"| {what} | {', '.join(kinds)} |" for what, kinds in WAITS_OF_FUNCTIONS.items()]
    return "\n".join(lines)


def page() -> str:
    text = PAGE.read_text()
    for mark, new in (("capabilities", table()), ("waits", waits())):
        text = replaced(text, mark, new)
    return text


def test_the_page_shows_the_tables():
    assert page() == PAGE.read_text(), "run `python -m tests.test_capabilities`"


if __name__ == "__main__":
    PAGE.write_text(page())
