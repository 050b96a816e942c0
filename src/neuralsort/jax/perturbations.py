"""Perturbed optimisers: the mean of a discrete function under noise, which has a gradient."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import Array, lax

from .. import _options
from . import _checks
from .arrays import working
from .gradients import score_function_loss
from .losses import beside, reduced


def perturbed(
    function: Callable[[Array], Array],
    scores: Array,
    *,
    sigma: float,
    samples: int,
    key: Array,
) -> Array:
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
        key: Source of randomness.

    Returns:
        `(...)` and the further dimensions of the function: one mean per list.

    Raises:
        TypeError: If `scores` is not floating point, or `sigma` not a number.
        ValueError: If `sigma` or `samples` is not positive, or the function does not keep the
            dimensions of samples and lists.

    Example:
        >>> def top2(s):  # a mask of the two largest
        ...     return s >= jax.lax.top_k(s, 2)[0][..., 1:]
        >>> def first(scores):
        ...     key = jax.random.key(0)
        ...     return perturbed(top2, scores, sigma=0.5, samples=1000, key=key)[0]
        >>> scores = jnp.array([0.0, 2.0, 1.0, -3.0])
        >>> bool(jax.grad(first)(scores)[0] > 0)  # the higher, the likelier among the two
        True

    Reference: Berthet et al. (2020). Time and memory: `samples` times those of the function.
    """
    scores = _checks.scores("perturbed(scores)", scores)
    noise, noisy = _noisy(scores, sigma, samples, key)
    found = function(lax.stop_gradient(noisy))
    found = lax.stop_gradient(_checks.per_sample(found, noisy.shape[:-1]))
    if not jnp.issubdtype(found.dtype, jnp.floating):
        found = found.astype(scores.dtype)
    fixed = jnp.isinf(scores)  # noise does not move these, nor do results depend on it
    pull = jnp.where(fixed, 0.0, noise * jnp.where(fixed, 0.0, scores)).sum(-1) / sigma
    pull = pull.reshape(*pull.shape, *[1] * (found.ndim - pull.ndim))
    baseline = "leave_one_out" if samples > 1 else None
    return score_function_loss(jnp.broadcast_to(pull, found.shape), found, baseline=baseline)


def fenchel_young_loss(
    scores: Array,
    target: Array,
    *,
    function: Callable[[Array], Array],
    sigma: float,
    samples: int,
    key: Array,
    mask: Array | None = None,
    reduction: str = "mean",
) -> Array:
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
        key: Source of randomness.
        mask: `(..., n)` boolean, True where the item exists. The function sees minus infinity at
            the others, and what it answers there does not count.
        reduction: `"mean"` or `"sum"` over lists, or `"none"`.

    Returns:
        A scalar, or one loss per list for `"none"`. The gradient is unbiased.

    Raises:
        TypeError: If `scores` is not floating point, or `mask` not boolean.
        ValueError: If a shape does not fit, `sigma` or `samples` is not positive, or `reduction` is
            not known.

    Example:
        >>> def largest(s):
        ...     return jax.nn.one_hot(s.argmax(-1), 3)
        >>> scores, target = jnp.array([0.0, 5.0, 1.0]), jnp.array([0, 1, 0])
        >>> options = {"sigma": 0.5, "samples": 100, "key": jax.random.key(0)}
        >>> fenchel_young_loss(scores, target, function=largest, **options)
        Array(0., dtype=float32)

    Reference: Berthet et al. (2020), Section 4. Time and memory: `samples` times those of the
    function.
    """
    scores, target, mask = beside("fenchel_young_loss", "scores", "target", scores, target, mask)
    shown = scores if mask is None else jnp.where(mask, scores, 0.0)
    noisy = _noisy(shown, sigma, samples, key)[1]
    seen = noisy if mask is None else jnp.where(mask, noisy, -jnp.inf)
    answer = _checks.same_shape("function", function(lax.stop_gradient(seen)), noisy.shape)
    better = lax.stop_gradient(answer).astype(noisy.dtype) - target.astype(noisy.dtype)
    if mask is not None:
        better = jnp.where(mask, better, 0.0)
    gained = jnp.where(better == 0, 0.0, better * jnp.where(better == 0, 0.0, noisy)).sum(-1)
    return reduced(gained.mean(0), reduction)


def _noisy(scores: Array, sigma: float, samples: int, key: Array) -> tuple[Array, Array]:
    """Noise `(samples, ..., n)`, and scores with so much of it."""
    _checks.static(sigma=sigma, samples=samples)
    sigma, samples = _options.positive("sigma", sigma), _options.samples(samples)
    dtype = working(scores.dtype)
    noise = jax.random.normal(_checks.key(key), (samples, *scores.shape), dtype)
    return noise, scores.astype(dtype) + sigma * noise
