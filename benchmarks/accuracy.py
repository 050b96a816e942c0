"""Accuracy: the order exactly, the float32 results against float64.

The float64 truth is the paper's equation on the same (float32) inputs, not our own code.
"""

import importlib
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from benchmarks.formulas import paper_formula, paper_row_sum
from benchmarks.record import Measurement

ORDER = "rows out of order"
"""Rows whose `P.permutation()` differs from the stable descending sort."""

PEAK = "rows peaking elsewhere"
"""Rows whose largest weight is not on the item that the sort puts there."""

DENSE = "error of P"
"""Largest |float32 - float64| of the dense matrix."""

PRODUCT = "relative error of P @ X"
"""Largest error of the product, or of a gradient of it, over that tensor's largest entry."""

DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
OFFSETS = (0.0, 1e4)
ORDER_TAUS = (1e-4, 1e-2, 1.0, 100.0)
ORDER_ITEMS = (15, 1000, 100_000)
TAUS = (1e-3, 0.1, 1.0, 16.0)
DENSE_ITEMS = (15, 500, 2000)
PRODUCT_ITEMS = 3000
PRODUCT_TENSORS = ("value", "gradient to scores", "gradient to X", "gradient to tau")

COUNTS = {
    ORDER: len(ORDER_ITEMS) * len(ORDER_TAUS) * len(DTYPES) * len(OFFSETS),
    DENSE: len(DENSE_ITEMS) * len(TAUS),
    PRODUCT: len(PRODUCT_TENSORS) * len(TAUS),
}
"""Results of ours that make a check complete."""

_PAYLOAD = 4


def _normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def _order(relax: Callable, sizes: tuple[int, ...]) -> Iterator[Measurement]:
    """`P.permutation()` against `torch.sort`, over dtypes, offsets and temperatures."""
    for n in sizes:
        for tau in ORDER_TAUS:
            for dtype in DTYPES:
                for offset in OFFSETS:
                    scores = (_normal(1, n).double() + offset).to(dtype)
                    truth = torch.sort(scores, descending=True, stable=True).indices
                    wrong = (relax(scores, tau=tau).permutation() != truth).sum().item()
                    at = f"{dtype}, offset {offset:g}".removeprefix("torch.")
                    yield Measurement(ORDER, "ours", 1, n, tau, at, wrong, rounds=1)


def _peak(P: Tensor, scores: Tensor) -> int:
    """Rows of `P` whose item in sorted order has less than the row's largest weight."""
    order = torch.sort(scores, descending=True, stable=True).indices
    weight = P.gather(-1, order.unsqueeze(-1)).squeeze(-1)
    return int((weight < P.amax(-1)).sum().item())


def _dense(relax: Callable, sizes: tuple[int, ...]) -> Iterator[Measurement]:
    """The float32 matrix against float64; the printed formula in float32 beside it."""
    for n in sizes:
        scores = _normal(1, n)
        for tau in TAUS:
            truth = paper_row_sum(scores.double(), tau)
            found = {
                "ours": relax(scores, tau=tau).to_dense(),
                "paper-formula": paper_formula(scores, tau),
            }
            for who, P in found.items():
                error = (P.double() - truth).abs().max().item()
                yield Measurement(DENSE, who, 1, n, tau, "float32", error, rounds=1)
                rows = _peak(P, scores)
                yield Measurement(PEAK, who, 1, n, tau, "float32", rows, rounds=1)


def _product(
    multiply: Callable[[Tensor, Tensor, Tensor], Tensor], dtype: torch.dtype, tau: float
) -> dict[str, Tensor]:
    """`P @ X` and its gradients under a fixed upstream gradient."""
    scores = _normal(1, PRODUCT_ITEMS).to(dtype).requires_grad_()
    payload = _normal(1, PRODUCT_ITEMS, _PAYLOAD, seed=1).to(dtype).requires_grad_()
    temperature = torch.tensor(tau).to(dtype).requires_grad_()
    output = multiply(scores, payload, temperature)
    upstream = _normal(1, PRODUCT_ITEMS, _PAYLOAD, seed=2).to(dtype)
    inputs = (scores, payload, temperature)
    gradients = torch.autograd.grad(output, inputs, upstream)
    return dict(zip(PRODUCT_TENSORS, (output.detach(), *gradients), strict=True))


def _products(relax: Callable) -> Iterator[Measurement]:
    """Matrix-free float32 products and gradients against dense float64."""
    for tau in TAUS:
        ours = _product(lambda s, x, t: relax(s, tau=t) @ x, torch.float32, tau)
        truth = _product(lambda s, x, t: paper_row_sum(s, t) @ x, torch.float64, tau)
        for what, exact in truth.items():
            error = (ours[what].double() - exact).abs().max() / exact.abs().max()
            yield Measurement(PRODUCT, "ours", 1, PRODUCT_ITEMS, tau, what, error.item(), rounds=1)


def checks(quick: bool) -> Iterator[Measurement]:
    """All accuracy checks, one result at a time.

    Raises:
        ImportError: If the library cannot be imported.
    """
    relax = importlib.import_module("neuralsort.torch").neuralsort
    yield from _order(relax, ORDER_ITEMS[:2] if quick else ORDER_ITEMS)
    yield from _dense(relax, DENSE_ITEMS[:2] if quick else DENSE_ITEMS)
    yield from _products(relax)
