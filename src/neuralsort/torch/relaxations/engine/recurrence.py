"""First-order linear recurrences, parallel and differentiable: sums that decay along a list."""

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

# Steps that run one after the other; longer recurrences are cut into pieces that run together.
PIECE = 128


def _recur(decay: Tensor, add: Tensor) -> Tensor:
    """`y[0] = 0`, `y[i + 1] = decay[i] y[i] + add[i]`: `(m, lists, d)` to one step more."""
    steps, lists, width = add.shape
    if steps <= PIECE:
        y = [add.new_zeros(lists, width)]
        for a, b in zip(decay.unsqueeze(-1), add, strict=True):
            y.append(torch.addcmul(b, a, y[-1]))
        return torch.stack(y)
    pieces = -(-steps // PIECE)
    short = pieces * PIECE - steps
    # Every piece is a list of its own, and what pieces hand on to each other recurs again.
    a = pad(decay, (0, 0, 0, short)).view(pieces, PIECE, lists).transpose(0, 1)
    b = pad(add, (0, 0, 0, 0, 0, short)).view(pieces, PIECE, lists, width).transpose(0, 1)
    a, b = a.contiguous(), b.contiguous()  # (PIECE, pieces, lists[, d])
    y, passed = [torch.zeros_like(b[0])], [torch.ones_like(a[0])]
    for a_k, b_k in zip(a, b, strict=True):
        y.append(torch.addcmul(b_k, a_k.unsqueeze(-1), y[-1]))
        passed.append(a_k * passed[-1])
    carry = _recur(passed[-1], y[-1])[:-1]  # what each piece starts with
    local = torch.addcmul(torch.stack(y[:-1]), torch.stack(passed[:-1]).unsqueeze(-1), carry)
    whole = local.transpose(0, 1).reshape(pieces * PIECE, lists, width)
    last = torch.addcmul(add[-1], decay[-1].unsqueeze(-1), whole[steps - 1])
    return torch.cat([whole[:steps], last.unsqueeze(0)])


class _Recurrence(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(decay: Tensor, add: Tensor) -> Tensor:
        return _recur(decay, add)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple, output: Tensor) -> None:
        ctx.save_for_backward(inputs[0], output)
        ctx.save_for_forward(inputs[0], output)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor]:  # pyright: ignore
        decay, y = ctx.saved_tensors
        # The adjoint runs the other way: v[i] = grad[i] + decay[i] v[i + 1].
        back = _Recurrence.apply(decay.flip(0), decay.flip(0).unsqueeze(-1) * grad[1:].flip(0))
        v = grad[1:] + back[:-1].flip(0)
        return (v * y[:-1]).sum(-1), v

    @staticmethod
    def jvp(ctx: Any, to_decay: Tensor, to_add: Tensor) -> Tensor:  # pyright: ignore
        decay, y = ctx.saved_tensors
        return _Recurrence.apply(decay, to_decay.unsqueeze(-1) * y[:-1] + to_add)  # pyright: ignore


def recurrence(decay: Tensor, add: Tensor) -> Tensor:
    """Solves `y[i + 1] = decay[i] y[i] + add[i]` from `y[0] = 0`, every list for itself.

    Args:
        decay: `(m, lists)`. Factors between 0 and 1.
        add: `(m, lists, d)`. What comes in at each step.

    Returns:
        `(m + 1, lists, d)`. Time O(m d) per list, in O(log m) rounds of vector operations.
    """
    return _untraced(decay, add)  # pyright: ignore


@torch.compiler.disable  # thousands of small steps: compiled graphs break here
def _untraced(*args: Tensor) -> Any:
    return _Recurrence.apply(*args)
