"""The paper's operator written from its equation, in two ways: yardsticks, not part of the library.

Both compute, for row i of P, softmax[((n + 1 - 2i) s - A_s 1) / tau] with A_s[j, k] = |s_j - s_k|.
"""

import torch
from torch import Tensor


def _row_coefficients(scores: Tensor) -> Tensor:
    """The factors n + 1 - 2i of the rows i = 1 ... n."""
    n = scores.shape[-1]
    return (n + 1 - 2 * torch.arange(1, n + 1, device=scores.device)).to(scores.dtype)


def paper_formula(scores: Tensor, tau: float | Tensor) -> Tensor:
    """The published listing, step for step, for any dtype, device and batch.

    A_s 1 is spelled as the product of two n x n matrices, A_s (1 1^T): cubic time.
    """
    column = scores.unsqueeze(-1)  # (..., n, 1)
    one = torch.ones((scores.shape[-1], 1), dtype=scores.dtype, device=scores.device)
    distances = (column - column.mT).abs()  # A_s
    sums = distances @ (one @ one.mT)  # (..., n, n), all columns equal
    scaled = column @ _row_coefficients(scores).unsqueeze(0)  # (..., item, row)
    return torch.softmax((scaled - sums).mT / tau, dim=-1)


def paper_row_sum(scores: Tensor, tau: float | Tensor) -> Tensor:
    """The same with A_s 1 as a row sum: quadratic time."""
    sums = (scores.unsqueeze(-1) - scores.unsqueeze(-2)).abs().sum(-1)  # (..., n)
    logits = _row_coefficients(scores).unsqueeze(-1) * scores.unsqueeze(-2) - sums.unsqueeze(-2)
    return torch.softmax(logits / tau, dim=-1)
