"""What every method can do in PyTorch: one row per method, one column per capability.

A cell is True, a condition, or the reason why not. Each column has a test that runs all of its
cells, also those that say no: a reason that is no longer true fails as well. `docs/devices.md`
prints the table.
"""

from collections.abc import Mapping

from neuralsort.torch import registry


class If(str):
    """A condition, in words."""


Cell = bool | str

SHORT = tuple(registry.METHODS)
"""Rows: every method of the registry, for lists that are written down."""

LONG = tuple(
    f"{name}, long lists" for name in ("neuralsort", "softsort", "softsort_squared", "lapsum")
)
"""Rows: the methods that multiply without their matrix, for lists of more than 512 items."""

ROWS = (*SHORT, *LONG)


def column(reasons: Mapping[str, str] | None = None) -> dict[str, Cell]:
    """True for every row but those with a reason."""
    reasons = reasons or {}
    assert set(reasons) <= set(ROWS), f"not a row: {set(reasons) - set(ROWS)}"
    return {row: reasons.get(row, True) for row in ROWS}


LAID_OUT = If(
    'a largest length is stated, as by `Dim("n", min=3, max=64)`: a network is laid out for it'
)
NETWORKS = ("odd_even_network", "bitonic_network")
STEPS = "its steps depend on the values: sort lists of more than 512 items outside the program"

BACKWARD = "no forward-mode rule; use reverse mode: `torch.func.vjp`, `jacrev`"
NO_JVP = (
    "sinkhorn_sort",
    "sinkhorn",
    "gumbel_sinkhorn",
    "neuralsort, long lists",
    "softsort_squared, long lists",
)

EXPORTED = dict.fromkeys(NETWORKS, LAID_OUT) | dict.fromkeys(LONG, STEPS)

CAPABILITIES: dict[str, dict[str, Cell]] = {
    "eager": column(),
    # tests/test_compiled.py
    "compile": column(),
    # tests/test_exported.py
    "export": column(EXPORTED),
    "onnx": column(EXPORTED),
    # tests/test_capabilities.py
    "vmap": column(),
    "jvp": column(dict.fromkeys(NO_JVP, BACKWARD)),
    "double backward": column(),
    # tests/test_devices.py
    "CUDA": column(),
    "MPS": column(),
}
"""By column and row."""

COLUMNS = tuple(CAPABILITIES)

STAND_INS = ("CUDA", "MPS")
"""Columns that are tried on a device made in Python, since there is no other."""

WAITS: dict[str, tuple[str, ...]] = {
    "neuralsort, long lists": ("from the host", "item", "nonzero", "repeat_interleave", "tolist"),
    "softsort, long lists": (),
    "softsort_squared, long lists": (
        "from the host",
        "item",
        "nonzero",
        "repeat_interleave",
        "tolist",
    ),
    "lapsum, long lists": (),
}
"""What makes a CUDA device's host wait, by row. Short lists, of all methods, never do."""

WAITS_OF_FUNCTIONS: dict[str, tuple[str, ...]] = {
    "`recall_at_k_loss`, and the metrics of retrieval, for their k": ("from the host",),
    "`pad_groups` and `unpad_groups`": ("item", "unique"),
    "`PlackettLuce.entropy`, `marginals` and `kl_divergence` of at most 8 items": (
        "from the host",
    ),
    "`estimators.exact_expectation`": ("from the host",),
    "`permutation()` of a matrix: `from_dense`, `sinkhorn`": ("item",),
    "the same where that is a best assignment, which SciPy finds": (
        "from the host",
        "item",
        "nonzero",
        "to the host",
        "tolist",
    ),
    "`sinkhorn(tolerance=...)`": ("item",),
}
"""The same of functions. All others never make it wait."""

ON_HOST = (*LONG, "lapsum", *NETWORKS) + tuple(
    name for name in SHORT if name.startswith("fast_soft")
)
"""Rows that a device without float64 has computed on the host."""
