"""What every method can do in PyTorch: one row per method, one column per capability.

A cell is True, or the reason why not. Each column has a test that runs all of its cells, also those
that say no: a reason that is no longer true fails as well. `docs/devices.md` prints the table.
"""

from collections.abc import Mapping

from neuralsort.torch import registry

Cell = bool | str

SHORT = tuple(registry.METHODS)
"""Rows: every method of the registry, for lists that are written down."""

LONG = tuple(
    f"{name}, long lists" for name in ("neuralsort", "softsort", "softsort_squared", "lapsum")
)
"""Rows: the methods that multiply without their matrix, for lists of more than 512 items."""

ROWS = (*SHORT, *LONG)


def column(
    reasons: Mapping[str, str] | None = None, *, every_row: str | None = None
) -> dict[str, Cell]:
    """True for every row but those with a reason."""
    reasons = reasons or {}
    assert set(reasons) <= set(ROWS), f"not a row: {set(reasons) - set(ROWS)}"
    return {row: reasons.get(row, every_row or True) for row in ROWS}


TO_DO = "not tried yet"

CAPABILITIES: dict[str, dict[str, Cell]] = {
    "eager": column(),
    # tests/test_compiled.py
    "compile": column(every_row=TO_DO),
    # tests/test_export.py
    "export": column(every_row=TO_DO),
    "onnx": column(every_row=TO_DO),
    # tests/test_capabilities.py
    "vmap": column(),
    "jvp": column(),
    "double backward": column(),
    # tests/test_devices.py
    "CUDA": column(),
    "MPS": column(),
}
"""By column and row."""

COLUMNS = tuple(CAPABILITIES)
