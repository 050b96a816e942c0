"""Distributions over subsets: k of n items, as likely as the product of their weights."""

import functools
import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax
from jax.nn import log_sigmoid

from .. import _options
from . import _checks
from .arrays import working
from .gradients import straight_through
from .noise import gumbel
from .pytrees import described, pytree
from .rankings import largest
from .relaxations.ordering import descending
from .subset_sums import branches, log_inclusion, log_odds, log_sums, mean_cost, nothing

LARGEST_ENUMERATED = 100_000
"""How many subsets `enumerate_support` writes down at most."""


@pytree("logits", static=("k",))
class KSubset:
    r"""Subsets of k items, each as probable as the product of its items' weights.

    $$q(S) = \prod_{j \in S} e^{l_j} \Big/ \sum_{|T| = k}\, \prod_{j \in T} e^{l_j},
      \qquad |S| = k$$

    This is what is left of n independent coins with log-odds $l_j$ if k of them show heads: the
    conditional Bernoulli distribution. An event is a boolean mask `(..., n)` with k items True. The
    limit of far-apart logits is the hard top-k, which is the mode. Everything is exact, by a
    recursion over the items in logarithms, which in float32 lose digits where logits lie thousands
    apart. The object is a pytree.

    Args:
        logits: `(..., n)`. Log-weights of the items; adding a constant to a list changes nothing.
            An item at minus infinity is never chosen: so are absent items of padded lists marked,
            `jnp.where(mask, logits, -jnp.inf)`. One at plus infinity always is.
        k: How many items a subset has, from 0 to n.

    Raises:
        TypeError: If `logits` are not a floating-point array, or `k` not an int.
        ValueError: If `k` is not between 0 and n. Lists with fewer than k items that can be chosen,
            or more than k that must be, give NaN.

    Example:
        >>> model = KSubset(jnp.array([0.0, 2.0, 1.0]), 2)
        >>> [f"{share:.4f}" for share in model.marginals()]
        ['0.3348', '0.9100', '0.7553']
        >>> model.mode
        Array([False,  True,  True], dtype=bool)
        >>> jnp.exp(model.log_prob(model.mode)).round(4)
        Array(0.6652, dtype=float32)
        >>> model.sample(jax.random.key(0), (4,)).sum(-1)
        Array([2, 2, 2, 2], dtype=int32)

    Reference: Chen and Liu (1997) for the distribution and its recursion; Ahmed et al. (2023) for
    `simple_sample`, Niepert et al. (2021) for `imle_sample`. Time and memory: O(n k) per list.
    """

    def __init__(self, logits: Array, k: int) -> None:
        self.logits = _checks.scores("KSubset(logits)", logits)
        _checks.static(k=k)
        self.k = _options.k(k, self.logits.shape[-1])

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
        """Shape of a subset."""
        return self.logits.shape[-1:]

    def expand(self, batch_shape: tuple[int, ...]) -> "KSubset":
        """The same distribution with a larger batch shape."""
        return KSubset(jnp.broadcast_to(self.logits, (*batch_shape, self.n)), self.k)

    def __repr__(self) -> str:
        """How many of how many items."""
        return described(self, lambda: f"KSubset(logits: {self.logits.shape}, k: {self.k})")

    def _working_logits(self) -> Array:
        return self.logits.astype(working(self.logits.dtype))

    # -- samples ----------------------------------------------------------------------------------

    def sample(self, key: Array, sample_shape: tuple[int, ...] = ()) -> Array:
        """Draws subsets exactly: from the last item to the first, each is taken or left.

        Args:
            key: Source of randomness.
            sample_shape: Of the draws.

        Returns:
            `sample_shape + batch_shape + (n,)` boolean, without gradient.
        """
        logits = lax.stop_gradient(self._working_logits())
        shape = (*_options.sample_shape(sample_shape), *self.batch_shape)
        weights = branches(logits)
        odds = log_odds(log_sums(weights, self.k), weights)
        chance = jax.random.uniform(_checks.key(key), (self.n, *shape, 1), logits.dtype)

        def choose(missing: Array, item: tuple[Array, Array]) -> tuple[Array, Array]:
            odds, chance = item
            odds = jnp.broadcast_to(odds, (*shape, self.k + 1))
            taken = chance < jax.nn.sigmoid(jnp.take_along_axis(odds, missing, -1))
            return missing - taken, taken[..., 0]

        missing = jnp.full((*shape, 1), self.k)
        chosen = lax.scan(choose, missing, (odds, chance), reverse=True)[1]
        return jnp.moveaxis(chosen, 0, -1)

    def relaxed_sample(
        self, key: Array, sample_shape: tuple[int, ...] = (), *, tau: float | Array
    ) -> Array:
        r"""Soft memberships: a Gumbel top-k whose threshold is blurred.

        $$E_{S \sim q_{(l + g) / \tau}}[\,1_S\,], \qquad g_j \sim \text{Gumbel}(0, 1)$$

        The marginals of this family at perturbed logits and a temperature. As `tau` tends to 0 they
        tend to the mask of the k largest perturbed logits: the first k places of a Plackett-Luce
        ranking. As subsets these are distributed like `sample()` only for k = 1; for other k they
        are near, and what the literature calls relaxed subset sampling.

        Args:
            key: Source of randomness.
            sample_shape: Of the draws.
            tau: Temperature, positive: a number, or an array that broadcasts against the logits
                with a last dimension of 1.

        Returns:
            `sample_shape + batch_shape + (n,)`: weights in [0, 1] that sum to k, differentiable in
            the logits and in `tau`.
        """
        tau = _checks.positive_tau(tau, self.logits)
        perturbed = self._perturbed(key, sample_shape) / tau
        return _marginals(perturbed, self.k).astype(self.logits.dtype)

    def simple_sample(self, key: Array, sample_shape: tuple[int, ...] = ()) -> Array:
        r"""SIMPLE: exact samples, with the gradient of the exact marginals.

        $$\text{value} = 1_S, \quad S \sim q, \qquad \partial\,\text{value} := \partial\,E[1_S]$$

        For costs that are linear in the mask the gradient is exact, without any variance; for
        others it is biased.

        Args:
            key: Source of randomness.
            sample_shape: Of the draws.

        Returns:
            `sample_shape + batch_shape + (n,)`: k ones among zeros, in the dtype of the logits.
        """
        hard = self.sample(key, sample_shape)
        return straight_through(hard, jnp.broadcast_to(self.marginals(), hard.shape))

    def imle_sample(
        self, key: Array, sample_shape: tuple[int, ...] = (), *, strength: float = 1.0
    ) -> Array:
        r"""Implicit maximum likelihood: a perturbed top-k, pulled to where its cost falls.

        $$\text{value} = \text{top}_k(l + g), \qquad \text{gradient} :=
          \tfrac1\lambda \big[\text{top}_k(l + g) - \text{top}_k(l + g - \lambda\, u)\big]$$

        for the upstream gradient u, Gumbel noise g and strength $\lambda$. For a linear cost its
        mean is a difference quotient over the length $\lambda$: it tends to the gradient of the
        expected cost of a Gumbel top-k as $\lambda$ tends to 0, while its variance grows.

        Args:
            key: Source of randomness.
            sample_shape: Of the draws.
            strength: How far the logits are pulled, positive.

        Returns:
            `sample_shape + batch_shape + (n,)`: k ones among zeros, in the dtype of the logits.
        """
        _checks.static(strength=strength)
        perturbed = self._perturbed(key, sample_shape)
        strength = _options.positive("strength", strength)
        return jnp.asarray(_implicit_mle(self.k, strength, perturbed), self.logits.dtype)

    def _perturbed(self, key: Array, sample_shape: tuple[int, ...]) -> Array:
        """Logits plus noise, with gradient."""
        logits = self._working_logits()
        shape = (*_options.sample_shape(sample_shape), *logits.shape)
        return logits - largest(logits) + gumbel(_checks.key(key), shape, logits.dtype)

    @property
    def mode(self) -> Array:
        """The most probable subset: the k largest logits, of tied ones those that come first."""
        return _largest(self.logits, self.k)

    # -- probabilities ----------------------------------------------------------------------------

    def log_prob(self, value: Array) -> Array:
        """Log-probability of a subset.

        Args:
            value: `(..., n)` boolean with k items True, leading dimensions broadcasting against the
                batch shape.

        Returns:
            `(...)`. Minus infinity for a subset of another size, one that lacks an item at plus
            infinity, or has one at minus infinity.
        """
        value = _checks.subset(value, self.logits.shape)
        logits = self._working_logits()
        weights, low = branches(logits), nothing(logits.dtype)
        total = _possible(log_sums(weights, self.k)[-1][..., self.k])
        chosen = jnp.where(value, weights.taken, weights.left).sum(-1) - total
        possible = (chosen > low / 2) & (value.sum(-1) == self.k) | jnp.isnan(chosen)
        return jnp.where(possible, chosen, -jnp.inf).astype(self.logits.dtype)

    def marginals(self) -> Array:
        """Probability `(..., n)` that each item is in the subset; they sum to k. Differentiable."""
        return _marginals(self._working_logits(), self.k).astype(self.logits.dtype)

    @property
    def mean(self) -> Array:
        """The marginals."""
        return self.marginals()

    @property
    def variance(self) -> Array:
        """Of each item's membership."""
        share = self.marginals()
        return share * (1 - share)

    def entropy(self) -> Array:
        """Entropy in nats `(...)`, exact and differentiable."""
        odds, certain = self._choices()
        mean = mean_cost(odds, -log_sigmoid(odds), -log_sigmoid(-odds), certain)
        return mean[..., self.k].astype(self.logits.dtype)

    def kl_divergence(self, other: "KSubset") -> Array:
        """Divergence KL(self || other) in nats `(...)`, exact and differentiable.

        Args:
            other: A distribution over subsets of as many of as many items.

        Returns:
            The divergence; infinite where `other` rules out what this one does not.
        """
        _options.same_subsets(self.n, self.k, other.n, other.k)
        batch = jnp.broadcast_shapes(self.batch_shape, other.batch_shape)
        (d, certain), (e, other_certain) = (one.expand(batch)._choices() for one in (self, other))
        taken, left = (log_sigmoid(s * d) - log_sigmoid(s * e) for s in (1, -1))
        found = mean_cost(d, taken, left, certain + other_certain)[..., self.k]
        impossible = found > -nothing(found.dtype) / 1e8
        return jnp.where(impossible, jnp.inf, found).astype(self.logits.dtype)

    def _choices(self) -> tuple[Array, Array]:
        """Log-odds of each item, and zeros `(..., k + 1)`; NaN for lists without a subset."""
        weights = branches(self._working_logits())
        sums = log_sums(weights, self.k)
        total = _possible(sums[-1][..., self.k, None])
        return log_odds(sums, weights), jnp.zeros_like(sums[0]) + 0 * total

    def enumerate_support(self, expand: bool = True) -> Array:
        """All subsets as masks `(number,) + batch_shape + (n,)`, in lexicographic order of items.

        For at most 100,000 of them.
        """
        _options.few_subsets(self.n, self.k, LARGEST_ENUMERATED)
        count = math.comb(self.n, self.k)
        items = np.array(list(itertools.combinations(range(self.n), self.k)), int)
        masks = np.zeros((count, self.n), bool)
        masks[np.arange(count)[:, None], items.reshape(count, self.k)] = True
        everything = jnp.asarray(masks.reshape(count, *[1] * len(self.batch_shape), self.n))
        return jnp.broadcast_to(everything, (count, *self.logits.shape)) if expand else everything


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _implicit_mle(k: int, strength: float, scores: Array) -> Array:
    """The k largest, with the gradient of implicit maximum likelihood."""
    return _largest(scores, k).astype(scores.dtype)


def _forward(k: int, strength: float, scores: Array) -> tuple[Array, tuple[Array, Array]]:
    chosen = _largest(scores, k).astype(scores.dtype)
    return chosen, (scores, chosen)


def _backward(k: int, strength: float, saved: tuple[Array, Array], grad: Array) -> tuple[Array]:
    scores, chosen = saved
    pulled = _largest(scores - strength * grad, k).astype(scores.dtype)
    return ((chosen - pulled) / strength,)


_implicit_mle.defvjp(_forward, _backward)


def _largest(scores: Array, k: int) -> Array:
    """The mask of the k largest; of tied ones those that come first."""
    return jnp.argsort(descending(scores), axis=-1) < k


def _marginals(logits: Array, k: int) -> Array:
    with_item, total = log_inclusion(branches(logits), k)
    share = jnp.exp(with_item - _possible(total)[..., None])
    return share - lax.stop_gradient(jnp.maximum(share - 1, 0.0))  # rounded up past 1


def _possible(total: Array) -> Array:
    """The log-sum over all subsets; NaN where there are none."""
    return jnp.where(total > nothing(total.dtype) / 2, total, jnp.nan)
