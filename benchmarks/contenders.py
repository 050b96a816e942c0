"""Who takes part: one entry per contender, imported only when it is its turn."""

import importlib
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from benchmarks.formulas import paper_formula, paper_row_sum

Sorter = Callable[[Tensor], Tensor]

MATRIX_LIMIT = 2**28
"""Bytes of one float32 (batch, n, n) matrix above which quadratic contenders sit out."""

NETWORK_LIMIT = 2**22
"""The same for networks that work on such matrices in every one of many layers."""

SHORT_LIMIT = 2**24
"""The same for what compiles into one graph: short lists."""

LAYERS_LIMIT = 2**25
"""The same for methods that need a few dozen of them."""


def failure(error: Exception) -> str:
    """One line about a contender that failed."""
    return f"failed, {type(error).__name__}: {str(error).partition(chr(10))[0][:80]}"


@dataclass(frozen=True)
class Contender:
    """A way to sort softly.

    Attributes:
        name: What the tables and `--contenders` call it.
        gives: `"P"` for a soft permutation matrix, `"values"` for sorted values.
        prepare: `(n, tau) -> sorter`. Imports the peer and builds whatever is not part of a call.
        matrix_limit: Most bytes of a (batch, n, n) matrix it is asked for; None for linear memory.
    """

    name: str
    gives: str
    prepare: Callable[[int, float], Sorter]
    matrix_limit: int | None = None

    def sits_out(self, batch: int, n: int) -> str | None:
        """The reason not to run at this size, or None."""
        if self.matrix_limit is None or 4 * batch * n * n <= self.matrix_limit:
            return None
        return f"skipped (a batch x n x n matrix takes more than {self.matrix_limit // 2**20} MiB)"

    def build(self, n: int, tau: float) -> tuple[Sorter | None, str]:
        """The sorter and an empty note, or no sorter and the reason."""
        try:
            return self.prepare(n, tau), ""
        except ModuleNotFoundError as error:
            return None, f"missing ({error})"
        except Exception as error:  # installed but broken: a result like any other
            return None, failure(error)


def _torch_sort(n: int, tau: float) -> Sorter:
    del n, tau
    return lambda scores: torch.sort(scores, descending=True).values


def _ours_dense(n: int, tau: float) -> Sorter:
    del n
    ns = importlib.import_module("neuralsort.torch")
    return lambda scores: ns.neuralsort(scores, tau=tau).to_dense()


def _ours_compiled(n: int, tau: float) -> Sorter:
    return torch.compile(_ours_dense(n, tau), fullgraph=True)


def _ours_sort(n: int, tau: float) -> Sorter:
    del n
    ns = importlib.import_module("neuralsort.torch")
    return lambda scores: ns.neuralsort(scores, tau=tau).sort(scores)


def _paper_formula(n: int, tau: float) -> Sorter:
    del n
    return lambda scores: paper_formula(scores, tau)


def _paper_row_sum(n: int, tau: float) -> Sorter:
    del n
    return lambda scores: paper_row_sum(scores, tau)


def _row_sum_sort(n: int, tau: float) -> Sorter:
    del n
    return lambda scores: (paper_row_sum(scores, tau) @ scores.unsqueeze(-1)).squeeze(-1)


def _softtorch(method: str) -> Callable[[int, float], Sorter]:
    def prepare(n: int, tau: float) -> Sorter:
        del n
        argsort = importlib.import_module("softtorch").argsort
        # Without `standardize`, an extra the paper's operator lacks: the least work it can do.
        return lambda scores: argsort(
            scores, descending=True, softness=tau, method=method, standardize=False
        )

    return prepare


def _registered(name: str, ask: str | None) -> Callable[[int, float], Sorter]:
    """A method of the registry, asked for its matrix or its sorted values."""

    def prepare(n: int, tau: float) -> Sorter:
        del n
        function = importlib.import_module("neuralsort.torch.registry").METHODS[name].function
        if ask is None:
            return lambda scores: function(scores, strength=tau)
        if ask == "sort":
            return lambda scores: function(scores, tau=tau).sort(scores)
        return lambda scores: function(scores, tau=tau).to_dense()

    return prepare


def _torchsort(name: str) -> Callable[[int, float], Sorter]:
    def prepare(n: int, tau: float) -> Sorter:
        del n
        function = getattr(importlib.import_module("torchsort"), name)
        return lambda scores: function(scores, regularization_strength=tau)

    return prepare


def _diffsort(n: int, tau: float) -> Sorter:
    network = importlib.import_module("diffsort").DiffSortNet("bitonic", n, steepness=1 / tau)
    return lambda scores: network(scores)[1]


CONTENDERS = {
    contender.name: contender
    for contender in (
        Contender("torch.sort", "values", _torch_sort),
        Contender("ours-sort", "values", _ours_sort),
        Contender("ours-dense", "P", _ours_dense, MATRIX_LIMIT),
        Contender("ours-compiled", "P", _ours_compiled, SHORT_LIMIT),
        Contender("paper-formula", "P", _paper_formula, MATRIX_LIMIT),
        Contender("paper-row-sum", "P", _paper_row_sum, MATRIX_LIMIT),
        Contender("row-sum-sort", "values", _row_sum_sort, MATRIX_LIMIT),
        Contender("softtorch", "P", _softtorch("neuralsort"), MATRIX_LIMIT),
        Contender("softtorch-softsort", "P", _softtorch("softsort"), MATRIX_LIMIT),
        Contender("softsort", "P", _registered("softsort", "matrix"), MATRIX_LIMIT),
        Contender("softsort-sort", "values", _registered("softsort", "sort")),
        Contender("lapsum", "P", _registered("lapsum", "matrix"), MATRIX_LIMIT),
        Contender("lapsum-sort", "values", _registered("lapsum", "sort")),
        Contender("sinkhorn_sort", "P", _registered("sinkhorn_sort", "matrix"), LAYERS_LIMIT),
        Contender(
            "odd_even_network", "P", _registered("odd_even_network", "matrix"), NETWORK_LIMIT
        ),
        Contender("bitonic_network", "P", _registered("bitonic_network", "matrix"), LAYERS_LIMIT),
        Contender("bitonic-sort", "values", _registered("bitonic_network", "sort")),
        Contender("diffsort", "P", _diffsort, NETWORK_LIMIT),
        Contender("fast_soft_sort", "values", _registered("fast_soft_sort", None)),
        Contender("fast_soft_rank", "values", _registered("fast_soft_rank", None)),
        Contender("torchsort", "values", _torchsort("soft_sort")),
        Contender("torchsort-rank", "values", _torchsort("soft_rank")),
    )
}
"""Every contender by name, in the order of the tables."""

PACKAGES = ("neuralsort", "torch", "softtorch", "diffsort", "torchsort")
"""Distributions whose versions belong to a measurement."""
