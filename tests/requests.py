"""Everything a relaxed permutation can be asked: one table, which all tests of it draw from."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor


def half(x: Tensor) -> int:
    """About half as many rows as the payload `(..., n, d)` has."""
    return (x.shape[-2] + 1) // 2


def far(order: Tensor) -> Tensor:
    """The last item first: most of these weights are too small for the matrix."""
    return order.flip(-1)


def near(order: Tensor) -> Tensor:
    """The item of the next row: weights that are not small."""
    return order.roll(-1, -1)


REQUESTS: dict[str, Callable[[Any, Tensor], Tensor]] = {
    "matmul": lambda P, x: P @ x,
    "transpose": lambda P, x: P.mT @ x,
    "sort": lambda P, x: P.sort(x[..., 0]),
    "rank": lambda P, x: P.rank(),
    "log_prob": lambda P, x: P.log_prob(torch.arange(P.shape[-1]).expand(P.shape[:-1])),
    "log_prob far": lambda P, x: P.log_prob(far(P.permutation())),
    "log_prob near": lambda P, x: P.log_prob(near(P.permutation())),
    "entropy": lambda P, x: P.entropy(),
    "to_dense": lambda P, x: P.to_dense(),
    "straight_through": lambda P, x: P.straight_through() @ x,
    "straight_through transpose": lambda P, x: P.straight_through().mT @ x,
    "top": lambda P, x: P.top(half(x)) @ x,
    "top transpose": lambda P, x: P.top(half(x)).mT @ x[..., : half(x), :],
    "top to_dense": lambda P, x: P.top(half(x)).to_dense(),
    "top log_prob": lambda P, x: P.top(half(x)).log_prob(near(P.permutation())[..., : half(x)]),
    "top entropy": lambda P, x: P.top(half(x)).entropy(),
}
"""By name: what is asked of P, with a payload `(..., n, d)`."""

PLAIN = ("matmul", "transpose", "sort", "rank", "log_prob", "entropy")
"""One of each kind, whose results have as many rows as P."""


def each_request(*names: str) -> pytest.MarkDecorator:
    """Runs a test of `request_` for these, or for all."""
    assert set(names) <= set(REQUESTS)
    return pytest.mark.parametrize("request_", names or REQUESTS)
