"""One list must not touch another: a list alone equals the list in a batch with hostile neighbours.

Neighbours hold NaN, infinities, scores and payloads of 1e20, a temperature of 0, or nothing but
padding. Values and gradients of the first list are compared, to rounding: sums may be taken in
another order when there are more lists. The loss is over all lists, whatever their values.
"""

import functools
from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch
from torch import Tensor

import neuralsort.torch as ns
from neuralsort.torch import metrics, registry
from neuralsort.torch.knn import squared_distances
from tests import requests
from tests.hostile import HOSTILE, Lists, lists_of
from tests.portions import some_of

ROUNDING = {torch.float64: 1e-11, torch.float32: 2e-5}
"""Over the largest magnitude of what is compared."""

LENGTHS = (5, 40, 512, 513, 600, 3000)
LONG_RUN = pytest.mark.long


def answers(function: Callable[[Lists], Tensor], lists: Lists) -> list[Tensor]:
    """The first list's value, and the gradients to its scores and payload."""
    scores, payload = (x.clone().requires_grad_() for x in (lists.scores, lists.payload))
    value = function(Lists(scores, payload, lists.tau, lists.mask, lists.perm))
    if not value.requires_grad:
        return [value[0]]
    weights = torch.linspace(0.5, 1.5, value[0].numel(), dtype=value.dtype).view(value[0].shape)
    loss = (value * weights).sum()
    grads = torch.autograd.grad(loss, (scores, payload), allow_unused=True)
    return [value[0].detach(), *(grad[0] for grad in grads if grad is not None)]


def assert_untouched(
    function: Callable[[Lists], Tensor],
    n: int,
    neighbourhoods: Iterable[tuple[str, ...]],
    dtype: torch.dtype,
) -> None:
    """The first list alone is as it is in each of these neighbourhoods."""
    lists = lists_of(n, HOSTILE, dtype)
    alone = answers(function, lists.alone())
    assert all(other.isfinite().all() for other in alone), "the list alone"
    for kinds in neighbourhoods:
        found = answers(function, lists.of_rows([0, *(1 + HOSTILE.index(kind) for kind in kinds)]))
        assert len(found) == len(alone)
        for what, one, other in zip(
            ("value", "to scores", "to payload"), found, alone, strict=False
        ):
            scale = max(other.abs().max().item(), 1e-3)
            error = (one - other).abs().max().item()
            assert error <= ROUNDING[dtype] * scale, f"{what}: {error:.3g} off, {kinds}"


ONE_BY_ONE = tuple((kind,) for kind in HOSTILE)


# -- what is asked --------------------------------------------------------------------------------

Relax = Callable[..., Any]


def _with_tau(relax: Relax, lists: Lists, mask: bool = True) -> Any:
    return relax(lists.scores, tau=lists.tau, mask=lists.mask if mask else None)


def _asked_of(request_: Callable[[Any, Tensor], Tensor]) -> Callable[[Relax, Lists], Tensor]:
    """A request of the common table. Without a mask: a weight of 0 has no finite logarithm."""
    return lambda r, x: request_(
        _with_tau(r, x, mask=False), torch.stack([x.payload, x.scores], dim=-1)
    )


WHOLE = {name: _asked_of(request_) for name, request_ in requests.REQUESTS.items()}
PADDED: dict[str, Callable[[Relax, Lists], Tensor]] = {
    "sort of the scores": lambda r, x: _with_tau(r, x, mask=False).sort(x.scores),
    "sort, padded": lambda r, x: _with_tau(r, x).sort(x.payload),
    "transpose, padded": lambda r, x: _with_tau(r, x).mT @ x.payload.unsqueeze(-1),
    "rank, padded": lambda r, x: _with_tau(r, x).rank(),
    "top, padded": lambda r, x: _with_tau(r, x).top(3).sort(x.payload),
    "entropy, padded": lambda r, x: _with_tau(r, x).entropy(),
    "log_prob, padded": lambda r, x: _with_tau(r, x).log_prob(_with_tau(r, x).permutation()),
}

OPERATORS: dict[str, Callable[[Relax, Lists], Tensor]] = {
    "soft_sort": lambda r, x: ns.soft_sort(x.scores, tau=x.tau, relax=r),
    "soft_sort_by": lambda r, x: ns.soft_sort_by(
        x.payload, x.scores, tau=x.tau, mask=x.mask, relax=r
    ),
    "soft_rank": lambda r, x: ns.soft_rank(x.scores, tau=x.tau, mask=x.mask, relax=r),
    "soft_topk": lambda r, x: ns.soft_topk(x.scores, 3, tau=x.tau, mask=x.mask, relax=r).weights,
    "soft_quantile": lambda r, x: ns.soft_quantile(
        x.scores, 1.0, tau=x.tau, mask=x.mask, relax=r
    ).unsqueeze(-1),
    "soft_median": lambda r, x: ns.soft_median(x.scores, tau=x.tau, relax=r).unsqueeze(-1),
}

_EACH = {"reduction": "none"}

LOSSES: dict[str, Callable[[Relax, Lists], Tensor]] = {
    "permutation_cross_entropy": lambda r, x: ns.permutation_cross_entropy(
        _with_tau(r, x), x.perm, mask=x.mask, **_EACH
    ),
    "knn_loss": lambda r, x: ns.knn_loss(_with_tau(r, x), x.payload > 0, k=2, mask=x.mask, **_EACH),
    "topk_cross_entropy": lambda r, x: ns.topk_cross_entropy(
        x.scores, x.perm[:, 0], k=3, tau=x.tau, mask=x.mask, relax=r, **_EACH
    ),
    "neural_ndcg": lambda r, x: ns.neural_ndcg(
        x.scores, x.perm % 3, tau=x.tau, mask=x.mask, relax=r, iterations=2, **_EACH
    ),
    "spearman_loss": lambda r, x: ns.spearman_loss(
        x.scores, x.payload, tau=x.tau, mask=x.mask, relax=r, **_EACH
    ),
}

ALONE: dict[str, Callable[[Lists], Tensor]] = {
    "plackett_luce_nll": lambda x: ns.plackett_luce_nll(x.scores, x.perm, mask=x.mask, **_EACH),
    "approx_ndcg": lambda x: ns.approx_ndcg(x.scores, x.perm % 3, tau=0.5, mask=x.mask, **_EACH),
    "kendall_loss": lambda x: ns.kendall_loss(x.scores, x.payload, tau=0.5, mask=x.mask, **_EACH),
    "ranknet_loss": lambda x: ns.ranknet_loss(x.scores, x.payload, mask=x.mask, **_EACH),
    "tau_for_blur": lambda x: ns.tau_for_blur(x.scores, mask=x.mask),
    "ndcg": lambda x: metrics.ndcg(x.scores, x.perm % 3, mask=x.mask, **_EACH),
    "spearman": lambda x: metrics.spearman(x.scores, x.payload, mask=x.mask, **_EACH),
    "kendall_tau": lambda x: metrics.kendall_tau(x.scores, x.payload, mask=x.mask, **_EACH),
    "sinkhorn": lambda x: ns.sinkhorn(
        x.scores.unsqueeze(-1) * x.payload.unsqueeze(-2), iterations=3, mask=x.mask
    ).to_dense(),
    "PlackettLuce.log_prob": lambda x: ns.PlackettLuce(x.scores, validate_args=False).log_prob(
        x.perm
    ),
    "squared distances": lambda x: _distances(x),
}
"""Functions without a relaxation of scores."""


def _distances(x: Lists) -> Tensor:
    points = torch.stack([x.scores, x.payload], -1)
    return squared_distances(points[:, :3], points)


RELAXATIONS = {
    name: method.function
    for name, method in registry.METHODS.items()
    if method.takes == "scores" and method.gives == "P"
}
RELAXATIONS["sinkhorn_sort"] = functools.partial(ns.sinkhorn_sort, iterations=3)
VALUES = {name: m.function for name, m in registry.METHODS.items() if m.gives == "values"}
EVERYTHING = WHOLE | PADDED | OPERATORS | LOSSES
LONG = (*requests.PLAIN, *PADDED, "soft_sort_by", "soft_quantile")
FEW = ("sort of the scores", "matmul", "rank", "log_prob, padded")
WRITTEN = {"sinkhorn_sort": 512, "odd_even_network": 40, "bitonic_network": 600}
"""Up to this many items where longer lists take the matrix, or a layer for every item."""


def asked(name: str, n: int) -> Iterable[str]:
    """Everything of short lists and at the seam of the two forms, less of long ones."""
    if n > WRITTEN.get(name, max(LENGTHS)):
        return ()
    if n in (512, 3000) or (name in WRITTEN and n > 40):
        return FEW
    return EVERYTHING if n < 600 else LONG


def in_every_run(name: str, request_: str, n: int, dtype: torch.dtype) -> bool:
    """All of the shortest lists, most at the seam, and elsewhere a few, each of another kind."""
    if dtype == torch.float32:
        of_short = n == 5 and (name == "neuralsort" or request_ in LONG)
        return of_short or (n == 513 and request_ in FEW and name not in WRITTEN)
    if n == 3000:
        return request_ in FEW[::2]
    if name in WRITTEN and n > 40:
        return False
    return n == 5 or request_ in (LONG if n == 513 else FEW)


def neighbourhoods(name: str, request_: str, n: int, dtype: torch.dtype) -> dict[str, tuple]:
    """All neighbours at once; and one by one, in every run for one request of each kind."""
    one_by_one = dtype == torch.float64 and (n <= 40 or (n == 600 and name not in WRITTEN))
    both = (*ONE_BY_ONE, HOSTILE)
    if not one_by_one:
        return {"": (HOSTILE,)}
    if name == "neuralsort" or request_ in LONG or n == 600:
        return {"": both}
    return {"": (HOSTILE,), "-one by one": ONE_BY_ONE}


CASES = [
    pytest.param(
        name,
        request_,
        n,
        dtype,
        among,
        id=f"{name}-{request_}-{n}-{dtype}{how}".replace("torch.", ""),
        marks=() if in_every_run(name, request_, n, dtype) and not how else LONG_RUN,
    )
    for n in LENGTHS
    for name in RELAXATIONS
    for request_ in asked(name, n)
    for dtype in (torch.float64, torch.float32)
    for how, among in neighbourhoods(name, request_, n, dtype).items()
]


@pytest.mark.parametrize(("name", "request_", "n", "dtype", "among"), CASES)
def test_a_list_does_not_know_its_neighbours(name, request_, n, dtype, among):
    ask = functools.partial(EVERYTHING[request_], RELAXATIONS[name])
    assert_untouched(ask, n, among, dtype)


@pytest.mark.parametrize(
    ("name", "n"),
    some_of(
        [(name, n) for name in ALONE for n in (5, 40, 513)],
        *((name, n) for name in ALONE for n in (5, 40)),
        ("plackett_luce_nll", 513),
        ("tau_for_blur", 513),
    ),
)
def test_functions_without_a_relaxation_keep_lists_apart(name, n):
    assert_untouched(ALONE[name], n, [*ONE_BY_ONE, HOSTILE], torch.float64)


@pytest.mark.parametrize("n", LENGTHS)
@pytest.mark.parametrize("name", VALUES)
def test_projections_keep_lists_apart(name, n):
    neighbourhoods = [("NaN",), ("all NaN",), ("infinities",), ("huge",), HOSTILE]
    assert_untouched(lambda x: VALUES[name](x.scores), n, neighbourhoods, torch.float64)
