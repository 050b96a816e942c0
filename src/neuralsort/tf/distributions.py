"""Distributions over permutations: Plackett-Luce, and relaxed samples of it."""

# The stubs of TensorFlow know neither `x[..., 1:]` nor `~x`.
# pyright: reportArgumentType=false, reportOperatorIssue=false

from collections.abc import Callable

import tensorflow as tf

from .. import _options
from .._blur import Blur
from . import _checks
from .noise import sample_gumbel
from .relaxations import neuralsort, permutation

Tensor = tf.Tensor
Seed = tuple[int, int] | tf.Tensor | None

# Below every logit by so much that its exponential is 0, but finite: gradients stay numbers.
_ABSENT = -1e300


class PlackettLuce:
    r"""Plackett-Luce over rankings: items are chosen one after the other, without replacement.

    $$\log q(z) = \sum_{i=1}^{n} \Big[\, l_{z_i} - \log \sum_{j \ge i} e^{l_{z_j}} \Big]$$

    A sample is a ranking `(..., n)`: the item at each place, from the first place down. The limit
    of far-apart logits is the hard `permutation(logits)`, which is the mode. Sums run in float64
    inside; results have the dtype of the logits.

    Args:
        logits: `(..., n)`. Logs of the paper's scores, any real numbers; adding a constant to a
            list changes nothing. Leading dimensions are batch.

    Raises:
        TypeError: If `logits` are not a floating-point tensor.
        ValueError: If they have no dimension.

    Example:
        >>> model = PlackettLuce(tf.constant([0.0, 2.0, 1.0]))
        >>> model.mode.numpy()
        array([1, 2, 0], dtype=int32)
        >>> f"{tf.exp(model.log_prob(tf.constant([1, 2, 0]))):.4f}"
        '0.4863'
        >>> model.sample((4,), seed=(0, 1)).shape
        TensorShape([4, 3])

    Reference: Plackett (1975); Grover et al. (2019), Sections 2.1 and 4.1.
    """

    def __init__(self, logits: Tensor) -> None:
        self.logits = _checks.scores("PlackettLuce(logits)", logits)

    @property
    def mode(self) -> Tensor:
        """The most probable ranking: the stable descending sort of the logits."""
        return permutation(self.logits)

    def sample(
        self,
        sample_shape: tuple[int, ...] = (),
        *,
        mask: Tensor | None = None,
        seed: Seed = None,
    ) -> Tensor:
        """Draws rankings: the order of the logits under Gumbel noise, fresh for every list.

        Args:
            sample_shape: Of the draws.
            mask: `(..., n)` boolean, True where the item exists. Absent items come last, in
                index order.
            seed: Two integers, or None for TensorFlow's global generator.

        Returns:
            `sample_shape + batch_shape + (n,)` int32, without gradient.
        """
        sample_shape = _options.sample_shape(sample_shape)
        shape = tf.concat([tf.constant(sample_shape, tf.int32), tf.shape(self.logits)], 0)
        noise = sample_gumbel(shape, dtype=tf.float64, seed=seed)
        return permutation(tf.cast(self.logits, tf.float64) + noise, mask=mask)

    def log_prob(self, value: Tensor, *, mask: Tensor | None = None) -> Tensor:
        """Log-probability of a ranking, or of its first k places.

        Args:
            value: `(..., k)` integers with k <= n, leading dimensions broadcasting against the
                batch shape: items from the first place down. For k < n, the log-probability that a
                ranking begins so.
            mask: `(..., n)` boolean, True where the item exists. With m items present, the first
                m places hold present items, and later places are ignored, whatever they hold. The
                result is that of the list without its absent items, whose gradient is 0.

        Returns:
            `(...)`. A list without items has log-probability 0.

        Raises:
            ValueError: If a ranking repeats an item or lists one that does not exist. Graphs
                cannot raise: there the result is NaN.
        """
        ranking = _checks.ranking(value, self.logits.shape[-1])
        batch = _checks.batch_of_rankings(ranking, self.logits)
        n, k = tf.shape(self.logits)[-1], tf.shape(ranking)[-1]
        logits = tf.broadcast_to(tf.cast(self.logits, tf.float64), tf.concat([batch, [n]], 0))
        ranking = tf.broadcast_to(ranking, tf.concat([batch, [k]], 0))
        mask = _checks.mask(mask, logits)
        present = tf.ones_like(logits, tf.bool) if mask is None else mask
        absent = tf.constant(_ABSENT, tf.float64)

        places = tf.reduce_sum(tf.cast(present, tf.int32), -1, keepdims=True)
        counts = tf.range(k) < places
        listed = tf.reduce_any((ranking[..., None] == tf.range(n)) & counts[..., None], -2)
        found = tf.reduce_sum(tf.cast(listed & present, tf.int32), -1, keepdims=True)
        valid = tf.squeeze((found == tf.minimum(k, places)) & (k <= n), -1)
        poison = _checks.distinct_items(valid, ranking, n)

        others = tf.where(listed | ~present, absent, logits)
        unlisted = tf.reduce_logsumexp(others, -1, keepdims=True)
        item = tf.where(counts, tf.clip_by_value(ranking, 0, n - 1), 0)
        chosen = tf.gather(logits, item, axis=-1, batch_dims=item.shape.rank - 1)
        chosen = tf.where(counts, chosen, absent)
        rest = _reversed_logcumsumexp(tf.concat([chosen, unlisted], -1))[..., :-1]
        terms = tf.where(counts, chosen - rest, tf.zeros_like(rest))
        return tf.cast(tf.reduce_sum(terms, -1) * poison, self.logits.dtype)


def stochastic_neuralsort(
    scores: Tensor,
    *,
    tau: float | Tensor | Blur = 1.0,
    samples: int,
    mask: Tensor | None = None,
    relax: Callable[..., Tensor] = neuralsort,
    seed: Seed = None,
) -> Tensor:
    r"""NeuralSort of scores under Gumbel noise: relaxed samples of Plackett-Luce.

    $$\widehat P_{\text{sort}(s + g)}, \qquad g_j \sim \text{Gumbel}(0, 1)$$

    Its hard counterpart is a sample of `PlackettLuce(scores)`, which it tends to as `tau` tends
    to 0.

    Args:
        scores: `(..., n)`. Logits of Plackett-Luce: the *logs* of the paper's positive scores.
        tau: Temperature, as in `neuralsort`.
        samples: How many to draw for each list.
        mask: `(..., n)` boolean, True where the item exists. Absent items take no part, whatever
            their scores are; the last rows place them in index order.
        relax: Another relaxation of the perturbed scores; here `neuralsort` is the only one.
        seed: Two integers, or None for TensorFlow's global generator.

    Returns:
        The matrices `(samples, ..., n, n)`, each with noise of its own, differentiable in the
        scores and in `tau`.

    Raises:
        TypeError: If `scores` are not floating point, or `samples` is not an int.
        ValueError: If `tau` is negative, or `samples` is not positive.

    Example:
        >>> stochastic_neuralsort(tf.constant([0.0, 2.0, 1.0]), samples=5, seed=(0, 1)).shape
        TensorShape([5, 3, 3])

    Reference: Grover et al. (2019), Section 4.1. Time and memory: `samples` times those of
    `neuralsort`.
    """
    samples = _options.samples(samples)
    scores = _checks.scores("stochastic_neuralsort(scores)", scores)
    shape = tf.concat([[samples], tf.shape(scores)], 0)
    noise = tf.ensure_shape(
        sample_gumbel(shape, dtype=scores.dtype, seed=seed), [samples, *scores.shape]
    )
    _options.relax(relax)
    mask = _checks.mask(mask, scores)
    if mask is None:
        return relax(_from_largest(scores) + noise, tau=tau)
    lowest = tf.fill(tf.shape(scores), scores.dtype.min)
    perturbed = _from_largest(tf.where(mask, scores, lowest)) + noise
    return relax(tf.where(mask, perturbed, tf.zeros_like(perturbed)), tau=tau, mask=mask)


def _from_largest(logits: Tensor) -> Tensor:
    """Logits minus the largest of their list, so that a common offset does not swallow noise."""
    largest = tf.reduce_max(tf.stop_gradient(logits), -1, keepdims=True)
    return logits - tf.where(tf.math.is_finite(largest), largest, tf.zeros_like(largest))


def _reversed_logcumsumexp(x: Tensor) -> Tensor:
    """`log sum_{j >= i} exp(x_j)` for each i."""
    return tf.math.cumulative_logsumexp(x, axis=-1, reverse=True)
