"""Perturbed optimisers: the mean of a discrete function under noise, which has a gradient."""

from collections.abc import Callable

import torch
from torch import Tensor

from .. import _options
from . import _checks
from .arrays import working
from .gradients import score_function_loss
from .losses import reduced


def perturbed(
    function: Callable[[Tensor], Tensor],
    scores: Tensor,
    *,
    sigma: float,
    samples: int,
    generator: torch.Generator | None = None,
) -> Tensor:
    r"""The mean of any function of scores under Gaussian noise, with its gradient.

    $$y_\sigma(s) = E[f(s + \sigma Z)] \approx \frac1S \sum_i f(s + \sigma Z_i), \qquad
      \partial y_\sigma := \frac{1}{\sigma S} \sum_i (f(s + \sigma Z_i) - b_i)\, Z_i^\top$$

    Value and gradient are unbiased for those of $y_\sigma$, whatever the function: an argmax, a
    sort, ranks, a top-k mask, a shortest path. Nothing is asked of its derivatives. The baseline
    $b_i$, the mean of the other samples, takes away variance and no more. As `sigma` tends to 0
    the value tends to `function(scores)`, and the variance of the gradient grows like its inverse
    square.

    Args:
        function: From scores `(samples, ..., n)` to anything `(samples, ...)`, with further
            dimensions after those of the batch: indices, flags or numbers.
        scores: `(..., n)`. Infinite ones stay where they are and get no gradient: so are absent
            items of padded lists marked, for functions that put minus infinity last.
        sigma: Standard deviation of the noise, positive, in the unit of the scores.
        samples: How many to draw for each list. With one there is no baseline.
        generator: Source of randomness; the global one if None.

    Returns:
        `(...)` and the further dimensions of the function: one mean per list.

    Raises:
        TypeError: If `scores` is not floating point, or `sigma` not a number.
        ValueError: If `sigma` or `samples` is not positive, or the function does not keep the
            dimensions of samples and lists.

    Example:
        >>> def top2(s):  # a mask of the two largest
        ...     return torch.zeros_like(s).scatter(-1, s.topk(2).indices, 1.0)
        >>> scores = torch.tensor([0.0, 2.0, 1.0, -3.0], requires_grad=True)
        >>> mask = perturbed(top2, scores, sigma=0.5, samples=1000)
        >>> mask.sum().round(decimals=4), mask.argsort(descending=True)[:2]
        (tensor(2., grad_fn=<RoundBackward1>), tensor([1, 2]))
        >>> mask[0].backward()
        >>> (scores.grad[0] > 0).item()  # the higher, the likelier among the two
        True

    Reference: Berthet et al. (2020). Time and memory: `samples` times those of the function.
    """
    scores = _checks.scores("perturbed(scores)", scores)
    noise, noisy = _noisy(scores, sigma, samples, generator)
    found = _checks.per_sample(function(noisy.detach()), noisy.shape[:-1]).detach()
    found = found if found.is_floating_point() else found.to(scores.dtype)
    fixed = scores.isinf()  # noise does not move these, nor do results depend on it
    pull = (noise * scores.masked_fill(fixed, 0.0)).masked_fill(fixed, 0.0).sum(-1) / sigma
    pull = pull.reshape(*pull.shape, *[1] * (found.dim() - pull.dim()))
    baseline = "leave_one_out" if samples > 1 else None
    return score_function_loss(pull.expand(found.shape), found, baseline=baseline)


def fenchel_young_loss(
    scores: Tensor,
    target: Tensor,
    *,
    function: Callable[[Tensor], Tensor],
    sigma: float,
    samples: int,
    mask: Tensor | None = None,
    generator: torch.Generator | None = None,
    reduction: str = "mean",
) -> Tensor:
    r"""How much better than the target the best answer is under noise.

    $$E\Big[\max_y \langle y, s + \sigma Z\rangle\Big] - \langle t, s\rangle, \qquad
      \partial_s = E[f(s + \sigma Z)] - t$$

    for a function $f(s) = \operatorname*{arg\,max}_y \langle y, s \rangle$ over discrete answers y.
    It is convex in the scores, not negative for a target that is an answer, and smallest where the
    perturbed answers have the target for their mean: a loss for learning from answers alone. Its
    hard counterpart, which it tends to as `sigma` tends to 0, is the structured perceptron.

    Args:
        scores: `(..., n)`.
        target: `(..., n)`. The wanted answer, or a mean of answers; any real dtype.
        function: From scores `(samples, ..., n)` to the answers of that shape: for example a mask
            of the largest, of the k largest, or ranks that rise with the scores.
        sigma: Standard deviation of the noise, positive, in the unit of the scores.
        samples: How many to draw for each list.
        mask: `(..., n)` boolean, True where the item exists. The function sees minus infinity at
            the others, and what it answers there does not count.
        generator: Source of randomness; the global one if None.
        reduction: `"mean"` or `"sum"` over lists, or `"none"`.

    Returns:
        A scalar, or one loss per list for `"none"`. The gradient is unbiased.

    Raises:
        TypeError: If `scores` is not floating point, or `mask` not boolean.
        ValueError: If a shape does not fit, `sigma` or `samples` is not positive, or `reduction` is
            not known.

    Example:
        >>> def largest(s):
        ...     return torch.nn.functional.one_hot(s.argmax(-1), 3)
        >>> scores = torch.tensor([0.0, 5.0, 1.0], requires_grad=True)
        >>> target = torch.tensor([0, 1, 0])
        >>> fenchel_young_loss(scores, target, function=largest, sigma=0.5, samples=100)
        tensor(0., grad_fn=<MeanBackward0>)

    Reference: Berthet et al. (2020), Section 4. Time and memory: `samples` times those of the
    function.
    """
    scores = _checks.scores("fenchel_young_loss(scores)", scores)
    target = _checks.per_item("fenchel_young_loss(target)", target, scores.shape).detach()
    mask = _checks.mask(mask, scores)
    shown = scores if mask is None else scores.masked_fill(~mask, 0.0)
    noisy = _noisy(shown, sigma, samples, generator)[1]
    seen = noisy if mask is None else noisy.masked_fill(~mask, -torch.inf)
    answer = _checks.same_shape("function", function(seen.detach()), noisy.shape).detach()
    better = answer.to(noisy.dtype) - target.to(noisy.dtype)
    if mask is not None:
        better = better.masked_fill(~mask, 0.0)
    gained = torch.where(better == 0, 0.0, better * noisy).sum(-1)
    return reduced(gained.mean(0), reduction)


def _noisy(
    scores: Tensor, sigma: float, samples: int, generator: torch.Generator | None
) -> tuple[Tensor, Tensor]:
    """Noise `(samples, ..., n)`, and scores with so much of it."""
    sigma, samples = _options.positive("sigma", sigma), _options.samples(samples)
    shape, dtype = (samples, *scores.shape), working(scores.dtype)
    noise = torch.randn(shape, generator=generator, dtype=dtype, device=scores.device)
    return noise, scores.to(noise.dtype) + sigma * noise
