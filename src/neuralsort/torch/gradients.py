"""Gradients for discrete things: straight-through and score-function estimators."""

import torch
from torch import Tensor

from .. import _options
from . import _checks


@torch.compiler.assume_constant_result
def _differentiations() -> int:
    """How many derivatives `torch.func` is taking here, one inside the other."""
    functorch = torch._C._functorch  # pyright: ignore[reportAttributeAccessIssue]
    kinds = functorch.TransformType.Grad, functorch.TransformType.Jvp
    return sum(one.key() in kinds for one in functorch.get_interpreter_stack() or [])


def is_traced_for_second_derivatives() -> bool:
    """Whether this is compiled inside of a derivative of a derivative.

    There torch takes whatever an autograd `Function` saves for a constant, and the derivative of
    its gradient would be wrong. Plain operations have to do.
    """
    return torch.compiler.is_compiling() and _differentiations() > 1


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
        return torch.where(hard.isfinite() & soft.isfinite(), hard + (soft - soft.detach()), hard)
    return _StraightThrough.apply(hard, soft)  # pyright: ignore


def score_function_loss(
    log_prob: Tensor, cost: Tensor, *, baseline: str | None = "leave_one_out"
) -> Tensor:
    r"""The mean cost of samples, with the gradient of REINFORCE.

    $$\text{value} = \frac1S \sum_s c_s, \qquad \partial_\theta\,\text{value} :=
      \frac1S \sum_s \big[(c_s - b_s)\,\partial_\theta \log q_s + \partial_\theta c_s\big]$$

    The gradient is unbiased for that of the expected cost. The leave-one-out baseline $b_s$ is the
    mean cost of the other samples of the same list; it keeps the estimate unbiased and removes the
    variance that a common offset of the costs brings.

    Args:
        log_prob: `(S, ...)`. Log-probability of each sample, with gradient.
        cost: `(S, ...)`. Cost of each sample, of the same shape. Its own gradient, where it has
            one, is kept.
        baseline: `"leave_one_out"`, which needs S >= 2, or None.

    Returns:
        `(...)`. One mean cost per list.

    Raises:
        ValueError: If the shapes differ, samples are too few, or the baseline is not known.

    Example:
        >>> log_prob = torch.tensor([-1.0, -2.0], requires_grad=True)
        >>> score_function_loss(log_prob, torch.tensor([3.0, 5.0])).backward()
        >>> log_prob.grad
        tensor([-1.,  1.])

    Reference: Williams (1992); Kool et al. (2019) for the baseline. Time and memory: O(S) per list.
    """
    _checks.sampled_costs(cost, log_prob)
    weight = cost.detach()
    if _options.baseline(baseline) is not None:
        samples = _options.samples(len(cost), least=2)
        weight = (weight - weight.mean(0)) * (samples / (samples - 1))
    score = weight * log_prob
    return (cost + straight_through(torch.zeros_like(score), score)).mean(0)
