"""Gradients for discrete things: the straight-through estimator."""

import torch
from torch import Tensor


class _StraightThrough(torch.autograd.Function):
    """Value of the first argument, gradient of the second."""

    generate_vmap_rule = True

    @staticmethod
    def forward(hard: Tensor, soft: Tensor) -> Tensor:
        return hard.clone()

    @staticmethod
    def setup_context(ctx, inputs, output) -> None:
        pass

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple[None, Tensor]:  # pyright: ignore
        return None, grad

    @staticmethod
    def jvp(ctx, hard_tangent, soft_tangent) -> Tensor:  # pyright: ignore
        return soft_tangent.clone()


def straight_through(hard: Tensor, soft: Tensor) -> Tensor:
    r"""Uses `hard` in the forward pass and the gradient of `soft` in the backward pass.

    $$\text{value} = \text{hard}, \qquad
      \partial_\theta\,\text{value} := \partial_\theta\,\text{soft}$$

    Its hard counterpart is `hard` itself, through which no gradient flows.

    Args:
        hard: The discrete values, any shape. They receive no gradient.
        soft: Their relaxation, of the same shape and dtype.

    Returns:
        A tensor equal to `hard`, to the bit, whose gradient goes to `soft`.

    Raises:
        ValueError: If the shapes differ.

    Example:
        >>> soft = torch.tensor([0.7, 0.3], requires_grad=True)
        >>> hard = straight_through(torch.tensor([1.0, 0.0]), soft)
        >>> (hard * torch.tensor([2.0, 5.0])).sum().backward()
        >>> hard.tolist(), soft.grad.tolist()
        ([1.0, 0.0], [2.0, 5.0])

    Reference: Bengio et al. (2013). Time and memory: those of the two arguments.
    """
    if hard.shape != soft.shape:
        raise ValueError(
            f"`straight_through(hard, soft)` expects two tensors of one shape, got "
            f"{tuple(hard.shape)} and {tuple(soft.shape)}. Broadcast them first."
        )
    hard = hard.detach().to(soft.dtype)
    if torch.compiler.is_compiling():  # which takes no function with forward-mode derivatives
        return torch.where(hard.isfinite(), hard + (soft - soft.detach()), hard)
    return _StraightThrough.apply(hard, soft)  # pyright: ignore
