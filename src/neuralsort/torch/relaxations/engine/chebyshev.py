"""Interpolation at Chebyshev nodes."""

import math

import torch
from torch import Tensor


def chebyshev(t: Tensor, nodes: int) -> tuple[Tensor, Tensor]:
    """Chebyshev nodes in (-1, 1), and the barycentric matrix from nodes to the points t."""
    angle = (torch.arange(nodes, dtype=t.dtype, device=t.device) + 0.5) * (math.pi / nodes)
    node, weight = angle.cos(), angle.sin()
    weight[1::2] *= -1
    difference = t.unsqueeze(-1) - node
    tiny = 1e-15  # a point on a node takes that node's value
    difference = torch.where(difference.abs() < tiny, tiny, difference)
    share = weight / difference
    return node, share / share.sum(-1, keepdim=True)
