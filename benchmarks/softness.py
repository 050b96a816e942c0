"""`python -m benchmarks.softness`: how soft methods are at one blur, on lists of several kinds.

One number per method, blur and kind of list: how many items share a place, effectively, which is
the exponential of the entropy of a row, as a mean over rows and lists.
"""

import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import neuralsort.torch as ns
from benchmarks.table import markdown
from neuralsort.torch import registry

LINES = Path(__file__).resolve().parent.parent / "results" / "benchmarks" / "softness.jsonl"
N, LISTS = 100, 20
RANKS = (0.5, 1.0, 2.0, 4.0)
KINDS = {
    "equal": "equal gaps",
    "normal": "normal",
    "exponential": "exponential",
}


def lists(kind: str, generator: torch.Generator) -> Tensor:
    """Scores `(LISTS, N)` in any order."""
    if kind == "equal":
        noise = torch.rand(LISTS, N, generator=generator)
        return noise.argsort(-1).double()
    if kind == "normal":
        return torch.randn(LISTS, N, generator=generator).double()
    return -torch.rand(LISTS, N, generator=generator).double().log()


def measured() -> Iterable[dict[str, Any]]:
    """One line for every method of scores."""
    for name, method in registry.METHODS.items():
        if (method.takes, method.gives) != ("scores", "P"):
            continue
        for kind in KINDS:
            scores = lists(kind, torch.Generator().manual_seed(0))
            for ranks in RANKS:
                P = method.function(scores, tau=ns.Blur(ranks))
                items = P.entropy().exp().mean().item()
                yield {"method": name, "kind": kind, "ranks": ranks, "items": round(items, 3)}


def table(lines: Iterable[dict[str, Any]]) -> str:
    """Methods by blur and kind."""
    found = {(one["method"], one["kind"], one["ranks"]): one["items"] for one in lines}
    methods = dict.fromkeys(method for method, _, _ in found)
    shown = [("equal", ranks) for ranks in RANKS] + [(k, 2.0) for k in KINDS if k != "equal"]
    header = ["method", *(f"`Blur({ranks:g})`, {KINDS[kind]}" for kind, ranks in shown)]
    rows = [
        [f"`{method}`", *(f"{found[method, kind, ranks]:.1f}" for kind, ranks in shown)]
        for method in methods
    ]
    return markdown(header, rows)


def read() -> list[dict[str, Any]]:
    """The lines."""
    return [json.loads(text) for text in LINES.read_text().splitlines()]


def main() -> int:
    """Writes the lines."""
    LINES.write_text("".join(json.dumps(line) + "\n" for line in measured()))
    print(table(read()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
