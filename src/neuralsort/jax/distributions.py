"""Distributions over permutations: Plackett-Luce, exact and relaxed."""

import functools
import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from .. import _options
from .._blur import Blur
from . import _checks
from .arrays import spoilt_unless, working
from .gradients import score_function_loss, straight_through
from .noise import exponential, gumbel
from .operators import Relaxation, relaxed
from .permutation import RelaxedPermutation
from .pytrees import described, pytree
from .rankings import (
    absent_last,
    largest,
    lists_distinct_items,
    log_density,
    reversed_logcumsumexp,
    strictly_descending,
)
from .relaxations import neuralsort
from .relaxations.ordering import descending

LONGEST_ENUMERATED = 8
"""Up to this many items, sums over all n! rankings are exact: 8! = 40,320."""

SAMPLES = 1000
"""Monte Carlo samples for longer lists, unless told otherwise."""


@pytree("logits")
class PlackettLuce:
    r"""Plackett-Luce over rankings: items are chosen one after the other, without replacement.

    $$\log q(z) = \sum_{i=1}^{n} \Big[\, l_{z_i} - \log \sum_{j \ge i} e^{l_{z_j}} \Big]$$

    A sample is a ranking `(..., n)`: the item at each place, from the first place down. The limit
    of far-apart logits is the hard `jnp.argsort(logits, descending=True)`, which is the mode. The
    object is a pytree.

    Args:
        logits: `(..., n)`. Logs of the paper's scores, any real numbers; adding a constant to a
            list changes nothing. Leading dimensions are batch.

    Raises:
        TypeError: If `logits` are not a floating-point array.
        ValueError: If they have no dimension.

    Example:
        >>> model = PlackettLuce(jnp.array([0.0, 2.0, 1.0]))
        >>> model.mode
        Array([1, 2, 0], dtype=int32)
        >>> jnp.exp(model.log_prob(jnp.array([1, 2, 0]))).round(4)
        Array(0.4863, dtype=float32)
        >>> model.sample(jax.random.key(0), (4,)).shape
        (4, 3)

    Reference: Plackett (1975); Grover et al. (2019), Sections 2.1 and 4.1.
    """

    def __init__(self, logits: Array) -> None:
        self.logits = _checks.scores("PlackettLuce(logits)", logits)

    @property
    def n(self) -> int:
        """Items per list."""
        return self.logits.shape[-1]

    @property
    def batch_shape(self) -> tuple[int, ...]:
        """Shape of the batch of lists."""
        return self.logits.shape[:-1]

    @property
    def event_shape(self) -> tuple[int, ...]:
        """Shape of a ranking."""
        return self.logits.shape[-1:]

    def expand(self, batch_shape: tuple[int, ...]) -> "PlackettLuce":
        """The same distribution with a larger batch shape."""
        return PlackettLuce(jnp.broadcast_to(self.logits, (*batch_shape, self.n)))

    def __repr__(self) -> str:
        """Shape and dtype of the logits."""
        return described(
            self, lambda: f"PlackettLuce(logits: {self.logits.shape}, dtype={self.logits.dtype})"
        )

    def _working_logits(self) -> Array:
        return self.logits.astype(working(self.logits.dtype))

    # -- samples ----------------------------------------------------------------------------------

    def sample(
        self, key: Array, sample_shape: tuple[int, ...] = (), *, mask: Array | None = None
    ) -> Array:
        """Draws rankings: the order of the logits under Gumbel noise, fresh for every list.

        Args:
            key: Source of randomness.
            sample_shape: Of the draws.
            mask: `(..., n)` boolean, True where the item exists. Absent items come last, in
                index order.

        Returns:
            `sample_shape + batch_shape + (n,)` integers, without gradient.
        """
        logits = self._working_logits()
        sample_shape = _options.sample_shape(sample_shape)
        noise = gumbel(key, (*sample_shape, *logits.shape), logits.dtype)
        mask = _checks.mask(mask, noise.shape)
        logits = jnp.broadcast_to(logits, noise.shape)
        return descending(logits - largest(logits, mask) + noise, mask)

    def rsample_given(self, key: Array, ranking: Array, *, mask: Array | None = None) -> Array:
        r"""Perturbed logits from their posterior given the ranking they were sorted into.

        With $E_i \sim \text{Exponential}(1)$ and the perturbed logits $g$ in ranked order,
        $e^{-g_i} = e^{-g_{i-1}} + E_i \big/ \sum_{j \ge i} e^{l_{z_j}}$: the largest is a Gumbel,
        each next one a Gumbel truncated at the one before.

        Args:
            key: Source of randomness.
            ranking: `(..., n)` integers, leading dimensions broadcasting against the batch shape.
                Items that repeat or are out of range are an error, or NaN where values are traced.
            mask: `(..., n)` boolean, True where the item exists. With m items present, the first m
                places hold them; absent items get 0.

        Returns:
            `(..., n)` in the order of the items, in the dtype of the computation (float32 or
            float64), reparameterised: differentiable in the logits. Sorting it in descending order
            gives back the ranking exactly; values that would round to ties are moved apart by one
            unit in the last place.
        """
        ranking, logits, valid = self._together(_checks.full_ranking(ranking, self.n), mask)
        noise = exponential(key, ranking.shape, logits.dtype)
        absent = jnp.zeros(ranking.shape, bool)
        if mask is not None:
            present = jnp.broadcast_to(mask, logits.shape)
            ranking = absent_last(ranking, present)
            absent = ~jnp.take_along_axis(present, ranking, -1)  # none before depends on them
        lowest = float(jnp.finfo(logits.dtype).min) / 4
        chosen = jnp.where(absent, lowest, jnp.take_along_axis(logits, ranking, -1))
        rest = jnp.where(absent, 0.0, reversed_logcumsumexp(chosen))
        exact = -lax.cumlogsumexp(jnp.log(noise) - rest, axis=rest.ndim - 1)
        exact = jnp.where(absent, 0.0, exact)
        ordered = straight_through(strictly_descending(lax.stop_gradient(exact)), exact)
        ordered = jnp.where(absent, 0.0, ordered)
        perturbed = jnp.take_along_axis(ordered, jnp.argsort(ranking, axis=-1), -1)
        return perturbed * spoilt_unless(valid)[..., None]

    @property
    def mode(self) -> Array:
        """The most probable ranking: the stable descending sort of the logits."""
        return descending(self.logits)

    # -- probabilities ----------------------------------------------------------------------------

    def log_prob(self, value: Array, *, mask: Array | None = None) -> Array:
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
            TypeError: If the ranking is not integer, or `mask` not boolean.
            ValueError: If a shape does not fit, or the places list an item twice, one that is
                absent or one out of range. Traced values cannot be read: there the result is NaN.
        """
        ranking, logits, valid = self._together(_checks.ranking(value, self.n), mask)
        mask = _checks.mask(mask, logits.shape)
        density = log_density(logits, ranking, mask) * spoilt_unless(valid)
        return density.astype(self.logits.dtype)

    def _together(self, ranking: Array, mask: Array | None) -> tuple[Array, Array, Array]:
        """Ranking and logits of one batch shape, and which rankings are ones."""
        batch = _checks.batch_of_rankings(ranking, self.batch_shape)
        ranking = jnp.broadcast_to(ranking, (*batch, ranking.shape[-1]))
        logits = jnp.broadcast_to(self._working_logits(), (*batch, self.n))
        mask = _checks.mask(mask, logits.shape)
        present = jnp.ones(logits.shape, bool) if mask is None else mask
        valid = lists_distinct_items(ranking, present)
        _checks.distinct_items(valid, ranking, self.n)
        return ranking, logits, valid

    def prob_before(self) -> Array:
        """Probability `(..., n, n)` that item i comes before item j, exact; 1/2 on the diagonal."""
        return jax.nn.sigmoid(self.logits[..., :, None] - self.logits[..., None, :])

    def enumerate_support(self, expand: bool = True) -> Array:
        """All n! rankings in lexicographic order, `(n!,) + batch_shape + (n,)`, for n <= 8."""
        _options.enumerable(self.n, LONGEST_ENUMERATED)
        everything = np.array(list(itertools.permutations(range(self.n))), int)
        count = math.factorial(self.n)
        rankings = jnp.asarray(everything.reshape(count, *[1] * len(self.batch_shape), self.n))
        return jnp.broadcast_to(rankings, (count, *self.logits.shape)) if expand else rankings

    # -- expectations: exact sums for short lists, Monte Carlo beyond ------------------------------

    def _support(self, key: Array | None, samples: int) -> tuple[Array, Array, bool]:
        """Rankings, their log-probabilities, and whether these are all rankings."""
        _checks.static(samples=samples)
        exact = self.n <= LONGEST_ENUMERATED
        if exact:
            rankings = self.enumerate_support()
        else:
            rankings = self.sample(_checks.key(key), (_options.samples(samples, least=2),))
        logits = jnp.broadcast_to(self._working_logits(), rankings.shape)
        return rankings, log_density(logits, rankings, None), exact

    def entropy(self, *, samples: int = SAMPLES, key: Array | None = None) -> Array:
        """Entropy in nats `(...)`: exact for n <= 8, an unbiased Monte Carlo estimate beyond.

        Args:
            samples: How many to draw where n > 8, at least 2.
            key: Source of randomness for them.

        Returns:
            The entropy. Its gradient is exact where the value is, and otherwise the unbiased
            score-function estimate with leave-one-out baseline.
        """
        _, log_prob, exact = self._support(key, samples)
        surprise = -log_prob if exact else -lax.stop_gradient(log_prob)
        return _expectation(log_prob, surprise, exact).astype(self.logits.dtype)

    def marginals(self, *, samples: int = SAMPLES, key: Array | None = None) -> Array:
        """Probability `(..., n, n)` of each item (column) at each place (row).

        Args:
            samples: How many to draw where n > 8, at least 2.
            key: Source of randomness for them.

        Returns:
            Exact and differentiable for n <= 8. Beyond, shares among samples: unbiased, with rows
            and columns that sum to 1, and without gradient.
        """
        rankings, log_prob, exact = self._support(key, samples)
        weight = jnp.exp(log_prob) if exact else jnp.ones_like(log_prob)  # counts, which are exact
        total = jnp.zeros((*self.batch_shape, self.n, self.n), weight.dtype)

        def add(total: Array, one: tuple[Array, Array]) -> tuple[Array, None]:
            ranking, weight = one
            hit = jax.nn.one_hot(ranking, self.n, dtype=total.dtype)
            return total + weight[..., None, None] * hit, None

        total = lax.scan(add, total, (rankings, weight))[0]
        return (total if exact else total / samples).astype(self.logits.dtype)

    def kl_divergence(
        self, other: "PlackettLuce", *, samples: int = SAMPLES, key: Array | None = None
    ) -> Array:
        """Divergence KL(self || other) in nats `(...)`: exact for n <= 8, Monte Carlo beyond.

        Args:
            other: A distribution over rankings of as many items.
            samples: How many to draw where n > 8, at least 2.
            key: Source of randomness for them.

        Returns:
            The divergence, an unbiased estimate of it beyond n = 8. Gradients to both
            distributions are exact where the value is, and otherwise unbiased estimates.
        """
        _options.same_items(self.n, other.n)
        batch = jnp.broadcast_shapes(self.batch_shape, other.batch_shape)
        rankings, log_p, exact = self.expand(batch)._support(key, samples)
        logits = jnp.broadcast_to(other._working_logits(), rankings.shape)
        log_q = log_density(logits, rankings, None)
        ratio = (log_p if exact else lax.stop_gradient(log_p)) - log_q
        return _expectation(log_p, ratio, exact).astype(self.logits.dtype)


class Fixed(functools.partial):
    """A `functools.partial` that equals others of the same function and options, as treedefs ask.

    Options that are arrays, whose values may not exist yet, must be the same object.
    """

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Fixed) or self.func != other.func:
            return False
        mine, theirs = ({**dict(enumerate(f.args)), **f.keywords} for f in (self, other))
        return mine.keys() == theirs.keys() and all(
            a is b or (not isinstance(a, Array | np.ndarray) and a == b)
            for a, b in ((mine[name], theirs[name]) for name in mine)
        )

    def __hash__(self) -> int:
        return hash((self.func, len(self.args), *sorted(self.keywords)))


@pytree("tau", "logits", static=("relax",))
class RelaxedPlackettLuce:
    r"""Plackett-Luce with relaxed samples: the paper's Stochastic NeuralSort.

    $$\widehat P_{\text{sort}(l + g)}, \qquad g_j \sim \text{Gumbel}(0, 1)$$

    As `tau` tends to 0, samples tend to the permutation matrices of `PlackettLuce(logits)`. They
    are reparameterised: differentiable in the logits and in `tau`. Matrices between permutations
    have no density in closed form, so there is no `log_prob`.

    Args:
        tau: Temperature of the relaxation: a number, a `Blur`, or an array that broadcasts against
            `logits` with a last dimension of 1.
        logits: `(..., n)`. Logs of the paper's scores, any real numbers.
        relax: The relaxation: `neuralsort`, `softsort`, or a `functools.partial` of one.

    Raises:
        TypeError: If `logits` are not a floating-point array.
        ValueError: If `tau` is negative or its shape does not fit.

    Example:
        >>> model = RelaxedPlackettLuce(0.5, jnp.array([0.0, 2.0, 1.0]))
        >>> P = model.rsample(jax.random.key(0), (4,))
        >>> P.shape
        (4, 3, 3)
        >>> P.straight_through().to_dense().sum(-2)[0]
        Array([1., 1., 1.], dtype=float32)

    Reference: Grover et al. (2019), Section 4.1.
    """

    def __init__(self, tau: _checks.Tau, logits: Array, *, relax: Relaxation = neuralsort) -> None:
        self.logits = _checks.scores("RelaxedPlackettLuce(logits)", logits)
        lists = (*self.logits.shape[:-1], 1)  # every leaf has the batch in front, as vmap expects
        tau = _checks.tau(tau, self.logits)
        if not isinstance(tau, Blur):
            tau = jnp.broadcast_to(jnp.asarray(tau, working(self.logits.dtype)), lists)
        self.tau = tau
        _options.relax(relax)
        if isinstance(relax, functools.partial):
            relax = Fixed(relax.func, *relax.args, **relax.keywords)
        self.relax = relax

    def __repr__(self) -> str:
        """Shape and dtype of the logits, and the relaxation."""
        name = getattr(self.relax, "__name__", repr(self.relax))
        return described(
            self,
            lambda: (
                f"RelaxedPlackettLuce(logits: {self.logits.shape}, dtype={self.logits.dtype}, "
                f"relax: {name})"
            ),
        )

    @property
    def batch_shape(self) -> tuple[int, ...]:
        """Shape of the batch of lists."""
        return self.logits.shape[:-1]

    @property
    def event_shape(self) -> tuple[int, ...]:
        """Shape of a relaxed permutation."""
        return (self.logits.shape[-1],) * 2

    def expand(self, batch_shape: tuple[int, ...]) -> "RelaxedPlackettLuce":
        """The same distribution with a larger batch shape."""
        logits = jnp.broadcast_to(self.logits, (*batch_shape, self.logits.shape[-1]))
        return RelaxedPlackettLuce(self.tau, logits, relax=self.relax)

    def rsample(
        self, key: Array, sample_shape: tuple[int, ...] = (), *, mask: Array | None = None
    ) -> RelaxedPermutation:
        """Draws relaxed permutations, with fresh noise for every list.

        Args:
            key: Source of randomness.
            sample_shape: Of the draws.
            mask: `(..., n)` boolean, True where the item exists. Absent items take no part,
                whatever their logits are; the last rows place them in index order.

        Returns:
            The operator of shape `sample_shape + batch_shape + (n, n)`, matrix-free for long lists.
            Perturbed logits round to the dtype of the logits: in half precision some of them tie.
        """
        dtype = self.logits.dtype
        sample_shape = _options.sample_shape(sample_shape)
        noise = gumbel(key, (*sample_shape, *self.logits.shape), working(dtype))
        mask = _checks.mask(mask, noise.shape)
        logits = jnp.broadcast_to(self.logits.astype(noise.dtype), noise.shape)
        logits = logits if mask is None else jnp.where(mask, logits, 0.0)
        perturbed = logits - largest(logits, mask) + noise
        return relaxed(perturbed.astype(dtype), self.tau, mask, self.relax)

    def sample(
        self, key: Array, sample_shape: tuple[int, ...] = (), *, mask: Array | None = None
    ) -> RelaxedPermutation:
        """`rsample` without gradients."""
        return jax.tree.map(lax.stop_gradient, self.rsample(key, sample_shape, mask=mask))


def stochastic_neuralsort(
    scores: Array,
    *,
    tau: _checks.Tau = 1.0,
    samples: int,
    mask: Array | None = None,
    relax: Relaxation = neuralsort,
    key: Array,
) -> RelaxedPermutation:
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
        relax: Another relaxation of the perturbed scores, such as `softsort`.
        key: Source of randomness.

    Returns:
        The relaxed permutations `(samples, ..., n, n)`, each with noise of its own, differentiable
        in the scores and in `tau`.

    Raises:
        TypeError: If `scores` are not floating point, or `samples` is not an int.
        ValueError: If `tau` is negative, or `samples` is not positive.

    Example:
        >>> scores = jnp.array([0.0, 2.0, 1.0])
        >>> P = stochastic_neuralsort(scores, tau=0.5, samples=5, key=jax.random.key(0))
        >>> (P @ scores).mean(0).shape
        (3,)

    Reference: Grover et al. (2019), Section 4.1. Time and memory: `samples` times those of
    `neuralsort`.
    """
    _checks.static(samples=samples)
    samples = _options.samples(samples)
    scores = _checks.scores("stochastic_neuralsort(scores)", scores)
    return RelaxedPlackettLuce(tau, scores, relax=relax).rsample(key, (samples,), mask=mask)


def _expectation(log_prob: Array, value: Array, exact: bool) -> Array:
    """Mean of a value over all rankings, or over samples of them; rankings come first."""
    if exact:
        return (jnp.exp(log_prob) * value).sum(0)
    return score_function_loss(log_prob, value)
