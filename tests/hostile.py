"""A list and neighbours that try to spoil it: none of them may touch it."""

import zlib
from dataclasses import dataclass

import torch
from torch import Tensor

NAN, INF = float("nan"), float("inf")


@dataclass(frozen=True)
class Lists:
    """A batch `(B, n)` of which the first list is the one to protect."""

    scores: Tensor
    payload: Tensor
    tau: Tensor  # (B, 1)
    mask: Tensor
    perm: Tensor

    def of_rows(self, rows: list[int]) -> "Lists":
        return Lists(*(getattr(self, name)[rows] for name in self.__dataclass_fields__))

    def alone(self) -> "Lists":
        return self.of_rows([0])


HOSTILE = ("NaN", "all NaN", "infinities", "huge", "payload", "hard", "padding")


def lists_of(n: int, neighbours: tuple[str, ...], dtype: torch.dtype) -> Lists:
    """A list and its neighbours, the same for every request."""
    generator = torch.Generator().manual_seed(zlib.crc32(f"{n}".encode()))
    rows = 1 + len(neighbours)
    scores, payload = (torch.randn(rows, n, generator=generator, dtype=dtype) for _ in range(2))
    perm = torch.rand(rows, n, generator=generator).argsort(-1)
    tau, mask = torch.full((rows, 1), 0.5, dtype=dtype), torch.ones(rows, n, dtype=torch.bool)
    mask[0, 1] = False  # of the list itself, an item is absent
    for row, kind in enumerate(neighbours, 1):
        if kind == "NaN":
            scores[row, n // 2] = payload[row, 0] = NAN
        elif kind == "all NaN":
            scores[row] = NAN
        elif kind == "infinities":
            scores[row, ::3], scores[row, 1::3] = INF, -INF
        elif kind == "huge":
            scores[row, ::2] *= 1e20
        elif kind == "payload":
            payload[row, ::2] = 1e20
        elif kind == "hard":
            tau[row] = 0.0
        elif kind == "padding":
            mask[row] = False
    # What is asked of places must be there: the present items first.
    present_first = (~mask).long().gather(-1, perm).argsort(dim=-1, stable=True)
    return Lists(scores, payload, tau, mask, perm.gather(-1, present_first))
