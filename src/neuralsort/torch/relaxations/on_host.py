"""Relaxed permutations of a device without float64, computed beside it, where there is float64.

Apple's GPUs have no float64. Short lists do without it; long lists, sorting networks and LapSum do
not. They are computed on the host: scores and payloads go there, and what comes out comes back.
"""

from collections.abc import Callable
from typing import Any, final

import torch
from torch import Tensor

from .. import _checks
from ..arrays import longest
from ..permutation import RelaxedPermutation
from ..pytrees import pytree

HOST = torch.device("cpu")


def lacks_float64(device: torch.device) -> bool:
    """Whether the longest dtype of a device is float32."""
    return longest(device) is torch.float32


def on_host(
    make: Callable[..., RelaxedPermutation], device: torch.device, *parts: Any
) -> RelaxedPermutation:
    """What is made of these parts on the host, for use on a device."""
    return OnHost(make(*(x.to(HOST) if isinstance(x, Tensor) else x for x in parts)), device)


@pytree
@final
class OnHost(RelaxedPermutation):
    """A relaxed permutation on the host that takes from a device, and gives to it."""

    _written = False

    def __init__(self, of: RelaxedPermutation, device: torch.device) -> None:
        self._of, self._device = of, device

    @property
    def shape(self) -> torch.Size:
        return self._of.shape

    @property
    def dtype(self) -> torch.dtype:
        return self._of.dtype

    @property
    def device(self) -> torch.device:
        return self._device

    def _taken_apart(self) -> tuple[list[RelaxedPermutation], torch.device]:
        return [self._of], self._device

    @classmethod
    def _put_together(cls, parts: list[RelaxedPermutation], rest: torch.device) -> "OnHost":
        return cls(parts[0], rest)

    def _moved(self, device: torch.device, non_blocking: bool) -> RelaxedPermutation:
        return self._of.to(device=device, non_blocking=non_blocking)

    def _cast(self, dtype: torch.dtype) -> "OnHost":
        return OnHost(self._of.to(dtype), self._device)

    def _kind(self) -> str:
        return f"{self._of._kind()}, on the host"

    def _back(self, x: Tensor) -> Tensor:
        return x.to(self._device)

    def _matrix(self) -> Tensor:
        return self._back(self._of._matrix())

    def _product(self, x: Tensor) -> Tensor:
        return self._back(self._of._product(x.to(HOST)))

    def _transposed(self, y: Tensor) -> Tensor:
        return self._back(self._of._transposed(y.to(HOST)))

    def sort(self, x: Tensor) -> Tensor:
        x = _checks.list_values(x, self.shape, "P.sort(x)")
        return self._back(self._of.sort(x.to(HOST)))

    def _rank(self) -> Tensor:
        return self._back(self._of._rank())

    def _log_prob(self, perm: Tensor) -> Tensor:
        return self._back(self._of._log_prob(perm.to(HOST)))

    def _entropy(self) -> Tensor:
        return self._back(self._of._entropy())

    def _top(self, k: int) -> RelaxedPermutation:
        return OnHost(self._of.top(k), self._device)

    def permutation(self) -> Tensor:
        return self._back(self._of.permutation())

    def is_unimodal(self) -> Tensor:
        return self._back(self._of.is_unimodal())
