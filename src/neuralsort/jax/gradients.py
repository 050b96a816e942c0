"""Gradients for discrete things: straight-through and score-function estimators."""

import jax
import jax.numpy as jnp
from jax import Array, lax

from .. import _options
from . import _checks


def straight_through(hard: Array, soft: Array) -> Array:
    r"""Uses `hard` in the forward pass and the gradient of `soft` in the backward pass.

    $$\text{value} = \text{hard}, \qquad
      \partial_\theta\,\text{value} := \partial_\theta\,\text{soft}$$

    Its hard counterpart is `hard` itself, through which no gradient flows.

    Args:
        hard: The discrete values, any shape. They receive no gradient.
        soft: Their relaxation, of the same shape and dtype.

    Returns:
        An array equal to `hard`, to the bit, whose gradient goes to `soft`.

    Raises:
        ValueError: If the shapes differ.

    Example:
        >>> def loss(soft):
        ...     hard = straight_through(jnp.array([1.0, 0.0]), soft)
        ...     return (hard * jnp.array([2.0, 5.0])).sum()
        >>> jax.value_and_grad(loss)(jnp.array([0.7, 0.3]))
        (Array(2., dtype=float32), Array([2., 5.], dtype=float32))

    Reference: Bengio et al. (2013). Time and memory: those of the two arguments.
    """
    if hard.shape != soft.shape:
        raise ValueError(
            f"`straight_through(hard, soft)` expects two arrays of one shape, got "
            f"{hard.shape} and {soft.shape}. Broadcast them first."
        )
    return _straight_through(lax.stop_gradient(hard).astype(soft.dtype), soft)


@jax.custom_jvp
def _straight_through(hard: Array, soft: Array) -> Array:
    return hard


@_straight_through.defjvp
def _(primals: tuple[Array, Array], tangents: tuple[Array, Array]) -> tuple[Array, Array]:
    return _straight_through(*primals), tangents[1]


def score_function_loss(
    log_prob: Array, cost: Array, *, baseline: str | None = "leave_one_out"
) -> Array:
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
        >>> jax.grad(score_function_loss)(jnp.array([-1.0, -2.0]), jnp.array([3.0, 5.0]))
        Array([-1.,  1.], dtype=float32)

    Reference: Williams (1992); Kool et al. (2019) for the baseline. Time and memory: O(S) per list.
    """
    _checks.sampled_costs(cost, log_prob)
    weight = lax.stop_gradient(cost)
    if _options.baseline(baseline) is not None:
        samples = _options.samples(len(cost), least=2)
        weight = (weight - weight.mean(0)) * (samples / (samples - 1))
    score = weight * log_prob
    return (cost + straight_through(jnp.zeros_like(score), score)).mean(0)
