"""Distributions over permutations: Plackett-Luce, and relaxed samples of it."""

# The stubs of TensorFlow know neither `x[..., 1:]` nor `~x`.
# pyright: reportArgumentType=false, reportOperatorIssue=false

import tensorflow as tf

from .. import _options
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

    def sample(self, sample_shape: tuple[int, ...] = (), *, seed: Seed = None) -> Tensor:
        """Draws rankings: the order of the logits under Gumbel noise, fresh for every list.

        Args:
            sample_shape: Of the draws.
            seed: Two integers, or None for TensorFlow's global generator.

        Returns:
            `sample_shape + batch_shape + (n,)` int32, without gradient.
        """
        shape = tf.concat([tf.constant(sample_shape, tf.int32), tf.shape(self.logits)], 0)
        noise = sample_gumbel(shape, dtype=tf.float64, seed=seed)
        return permutation(tf.stop_gradient(tf.cast(self.logits, tf.float64)) + noise)

    def log_prob(self, value: Tensor) -> Tensor:
        """Log-probability of a ranking, or of its first k places.

        Args:
            value: `(..., k)` integers with k <= n, leading dimensions broadcasting against the
                batch shape: items from the first place down. For k < n, the log-probability that a
                ranking begins so.

        Returns:
            `(...)`.
        """
        ranking = _checks.ranking(value, self.logits.shape[-1])
        logits = tf.cast(self.logits, tf.float64)
        n, k = tf.shape(logits)[-1], tf.shape(ranking)[-1]
        batch = tf.broadcast_dynamic_shape(tf.shape(logits)[:-1], tf.shape(ranking)[:-1])
        logits = tf.broadcast_to(logits, tf.concat([batch, [n]], 0))
        ranking = tf.broadcast_to(ranking, tf.concat([batch, [k]], 0))
        chosen = tf.gather(logits, ranking, axis=-1, batch_dims=ranking.shape.rank - 1)
        listed = tf.reduce_any(ranking[..., None] == tf.range(n), -2)
        others = tf.where(listed, tf.constant(_ABSENT, tf.float64), logits)
        unlisted = tf.reduce_logsumexp(others, -1, keepdims=True)
        rest = _reversed_logcumsumexp(tf.concat([chosen, unlisted], -1))[..., :-1]
        return tf.cast(tf.reduce_sum(chosen - rest, -1), self.logits.dtype)


def stochastic_neuralsort(
    scores: Tensor, *, tau: float | Tensor = 1.0, samples: int, seed: Seed = None
) -> Tensor:
    r"""NeuralSort of scores under Gumbel noise: relaxed samples of Plackett-Luce.

    $$\widehat P_{\text{sort}(s + g)}, \qquad g_j \sim \text{Gumbel}(0, 1)$$

    Its hard counterpart is a sample of `PlackettLuce(scores)`, which it tends to as `tau` tends
    to 0.

    Args:
        scores: `(..., n)`. Logits of Plackett-Luce: the *logs* of the paper's positive scores.
        tau: Temperature, as in `neuralsort`.
        samples: How many to draw for each list.
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
    return neuralsort(scores + noise, tau=tau)


def _reversed_logcumsumexp(x: Tensor) -> Tensor:
    """`log sum_{j >= i} exp(x_j)` for each i."""
    return tf.math.cumulative_logsumexp(x, axis=-1, reverse=True)
