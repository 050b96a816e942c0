"""Every method in one table: what it takes and gives, what it keeps, what it costs, whose it is.

Tests run the laws over it, benchmarks and figures draw from it, command lines look names up in it.
A new method is one row.
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from .permutahedron import fast_soft_rank, fast_soft_sort
from .relaxations import (
    gumbel_sinkhorn,
    lapsum,
    neuralsort,
    sinkhorn,
    sinkhorn_sort,
    softsort,
    sorting_network,
)

__all__ = [
    "LAWS",
    "METHODS",
    "Method",
]

LAWS = {
    "rows": "rows sum to 1",
    "columns": "columns sum to 1, in the limit where there are iterations",
    "equivariance": "permuting the items permutes the columns",
    "shift": "adding a number to all scores changes nothing",
    "scale": "scores times c at tau times c to the power `homogeneity` change nothing",
    "limit": "tends to the hard permutation as tau tends to 0, where no scores are tied",
    "ties": "tied scores have equal weights",
    "unimodality": "the row-wise argmax is the sorting permutation at every tau",
}
"""What a method may keep, and what that means."""


@dataclass(frozen=True)
class Method:
    """One row.

    Attributes:
        name: What command lines and tables call it.
        function: The public function, its options fixed.
        laws: Which of `LAWS` hold.
        time: Per list of n items.
        memory: Likewise.
        reference: Where it was published.
        takes: `"scores"` (..., n), or `"logits"` (..., n, n).
        gives: `"P"`, a relaxed permutation, or `"values"`.
        homogeneity: The power of the scores' unit that tau has.
    """

    name: str
    function: Callable[..., Any]
    laws: frozenset[str]
    time: str
    memory: str
    reference: str
    takes: str = "scores"
    gives: str = "P"
    homogeneity: int = 1


_SORTS = frozenset({"rows", "equivariance", "shift", "scale", "limit", "ties"})
_NETWORK = frozenset({"rows", "columns", "shift", "scale", "limit"})
_BLONDEL = "Blondel et al. (2020)"

METHODS = {
    method.name: method
    for method in (
        Method(
            name="neuralsort",
            function=neuralsort,
            laws=_SORTS | {"unimodality"},
            time="O(n log n)",
            memory="O(n)",
            reference="Grover et al. (2019)",
        ),
        Method(
            name="softsort",
            function=softsort,
            laws=_SORTS | {"unimodality"},
            time="O(n log n)",
            memory="O(n)",
            reference="Prillo and Eisenschlos (2020)",
        ),
        Method(
            name="softsort_squared",
            function=functools.partial(softsort, power=2.0),
            laws=_SORTS | {"unimodality"},
            time="O(n log n)",
            memory="O(n)",
            reference="Prillo and Eisenschlos (2020)",
            homogeneity=2,
        ),
        Method(
            name="lapsum",
            function=lapsum,
            laws=_SORTS | {"columns"},
            time="O(n log n)",
            memory="O(n)",
            reference="Struski et al. (2025)",
        ),
        Method(
            name="sinkhorn_sort",
            function=sinkhorn_sort,
            laws=_SORTS | {"columns"},
            time="O(n^2) per iteration",
            memory="O(n^2)",
            reference="Cuturi et al. (2019)",
        ),
        Method(
            name="odd_even_network",
            function=functools.partial(sorting_network, kind="odd_even"),
            laws=_NETWORK,
            time="O(n^2) per payload column",
            memory="O(n^2) per payload column",
            reference="Petersen et al. (2021, 2022)",
        ),
        Method(
            name="bitonic_network",
            function=functools.partial(sorting_network, kind="bitonic"),
            laws=_NETWORK,
            time="O(n log^2 n) per payload column",
            memory="O(n log^2 n) per payload column",
            reference="Petersen et al. (2021, 2022)",
        ),
        Method(
            name="sinkhorn",
            function=sinkhorn,
            laws=frozenset({"rows", "columns", "equivariance", "shift", "scale"}),
            time="O(n^2) per iteration",
            memory="O(n^2)",
            reference="Mena et al. (2018)",
            takes="logits",
        ),
        Method(
            name="gumbel_sinkhorn",
            function=gumbel_sinkhorn,
            laws=frozenset({"rows", "columns"}),
            time="O(n^2) per iteration",
            memory="O(n^2)",
            reference="Mena et al. (2018)",
            takes="logits",
        ),
        Method(
            name="fast_soft_sort",
            function=fast_soft_sort,
            laws=frozenset({"equivariance", "shift", "limit"}),
            time="O(n log n)",
            memory="O(n)",
            reference=_BLONDEL,
            gives="values",
        ),
        Method(
            name="fast_soft_sort_kl",
            function=functools.partial(fast_soft_sort, regularization="kl"),
            laws=frozenset({"equivariance", "shift", "limit"}),
            time="O(n log n)",
            memory="O(n)",
            reference=_BLONDEL,
            gives="values",
        ),
        Method(
            name="fast_soft_rank",
            function=fast_soft_rank,
            laws=frozenset({"equivariance", "shift", "scale", "limit", "ties"}),
            time="O(n log n)",
            memory="O(n)",
            reference=_BLONDEL,
            gives="values",
        ),
        Method(
            name="fast_soft_rank_kl",
            function=functools.partial(fast_soft_rank, regularization="kl"),
            laws=frozenset({"equivariance", "shift", "scale", "limit", "ties"}),
            time="O(n log n)",
            memory="O(n)",
            reference=_BLONDEL,
            gives="values",
        ),
    )
}
"""Every method by name, in the order of the tables."""
