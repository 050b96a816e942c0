"""From a matrix to a hard permutation: the appendix's argmax, and the best assignment."""

import torch
from torch import Tensor


def row_argmax(matrix: Tensor) -> Tensor:
    """Row-wise argmax; ties go to the smallest item that no earlier row has, else the smallest."""
    if not matrix.numel():
        return torch.zeros(matrix.shape[:-1], dtype=torch.int64, device=matrix.device)
    tied = matrix == matrix.amax(-1, keepdim=True)
    used = torch.zeros_like(tied[..., 0, :])
    picks = []
    for i in range(matrix.shape[-2]):
        row = tied[..., i, :]
        free = row & ~used
        best = torch.where(free.any(-1, keepdim=True), free, row).int().argmax(-1, keepdim=True)
        used = used.scatter(-1, best, True)
        picks.append(best)
    return torch.cat(picks, -1)


def is_permutation(perm: Tensor) -> Tensor:
    """Whether no item is picked twice: a permutation, or the first places of one."""
    picks = perm.sort(-1).values
    return (picks[..., 1:] != picks[..., :-1]).all(-1)


def harden(matrix: Tensor) -> Tensor:
    """The appendix's argmax where it is a permutation, the best assignment where it is not."""
    perm = row_argmax(matrix)
    valid = is_permutation(perm)
    if valid.device.type == "meta" or bool(valid.all()):  # the former has a shape alone
        return perm
    try:
        from scipy.optimize import linear_sum_assignment
    except ImportError:
        raise ImportError(
            "`permutation()` of a matrix that is not unimodal is the best assignment, which needs "
            "SciPy. Install it with `pip install scipy`."
        ) from None
    flat, out = matrix.reshape(-1, *matrix.shape[-2:]), perm.reshape(-1, perm.shape[-1]).clone()
    for index in (~valid).reshape(-1).nonzero().squeeze(-1).tolist():
        weights = flat[index].cpu().double().nan_to_num(nan=0.0)
        _, columns = linear_sum_assignment(weights.numpy(), maximize=True)
        out[index] = torch.from_numpy(columns).to(out)
    return out.view(perm.shape)
