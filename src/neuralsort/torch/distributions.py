"""Distributions over permutations: Plackett-Luce, exact and relaxed."""

import itertools
from typing import Any

import torch
from torch import Tensor
from torch.distributions import Distribution, constraints, register_kl

from .. import _options
from . import _checks
from .arrays import longest
from .gradients import score_function_loss, straight_through
from .noise import exponential, gumbel
from .operators import Relaxation, relaxed
from .permutation import RelaxedPermutation
from .rankings import (
    ABSENT,
    Permutation,
    absent_last,
    log_density,
    reversed_logcumsumexp,
    strictly_descending,
)
from .relaxations import neuralsort

LONGEST_ENUMERATED = 8
"""Up to this many items, sums over all n! rankings are exact: 8! = 40,320."""

SAMPLES = 1000
"""Monte Carlo samples for longer lists, unless told otherwise."""


class _FiniteVector(constraints.Constraint):
    """Real numbers in the last dimension; unlike `constraints.real_vector`, no infinities."""

    event_dim = 1

    def check(self, value: Tensor) -> Tensor:
        return value.isfinite().all(-1)


class PlackettLuce(Distribution):
    r"""Plackett-Luce over rankings: items are chosen one after the other, without replacement.

    $$\log q(z) = \sum_{i=1}^{n} \Big[\, l_{z_i} - \log \sum_{j \ge i} e^{l_{z_j}} \Big]$$

    A sample is a ranking `(..., n)`: the item at each place, from the first place down. The limit
    of far-apart logits is the hard `torch.argsort(logits, descending=True)`, which is the mode.
    Sums run in float64 inside; results have the dtype of the logits.

    Args:
        logits: `(..., n)`. Logs of the paper's scores, any real numbers; adding a constant to a
            list changes nothing. Leading dimensions are batch.
        validate_args: Whether to check the values of arguments, as in `torch.distributions`.

    Raises:
        TypeError: If `logits` are not a floating-point tensor.
        ValueError: If they have no dimension, or are not finite (when validated).

    Example:
        >>> model = PlackettLuce(torch.tensor([0.0, 2.0, 1.0]))
        >>> model.mode
        tensor([1, 2, 0])
        >>> model.log_prob(torch.tensor([1, 2, 0])).exp()
        tensor(0.4863)
        >>> model.sample((4,)).shape
        torch.Size([4, 3])

    Reference: Plackett (1975); Grover et al. (2019), Sections 2.1 and 4.1.
    """

    arg_constraints = {"logits": _FiniteVector()}  # pyright: ignore
    has_enumerate_support = True

    def __init__(self, logits: Tensor, validate_args: bool | None = None) -> None:
        self.logits = _checks.scores("PlackettLuce(logits)", logits)
        super().__init__(logits.shape[:-1], logits.shape[-1:], validate_args=validate_args)

    @property
    def n(self) -> int:
        """Items per list."""
        return self.event_shape[0]

    @constraints.dependent_property(is_discrete=True, event_dim=1)
    def support(self) -> constraints.Constraint:
        """Permutations of the n items."""
        return Permutation(self.n)

    def expand(self, batch_shape: Any, _instance: Any = None) -> "PlackettLuce":
        """The same distribution with a larger batch shape."""
        new: Any = self._get_checked_instance(PlackettLuce, _instance)
        batch_shape = torch.Size(batch_shape)
        new.logits = self.logits.expand(*batch_shape, self.n)
        Distribution.__init__(new, batch_shape, self.event_shape, validate_args=False)
        new._validate_args = self._validate_args
        return new

    # -- samples ----------------------------------------------------------------------------------

    def sample(
        self,
        sample_shape: Any = torch.Size(),  # noqa: B008 - torch's own signature
        *,
        mask: Tensor | None = None,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        """Draws rankings: the order of the logits under Gumbel noise, fresh for every list.

        Args:
            sample_shape: Of the draws.
            mask: `(..., n)` boolean, True where the item exists. Absent items come last, in
                index order.
            generator: Source of randomness; the global one if None.

        Returns:
            `sample_shape + batch_shape + (n,)` int64, without gradient.
        """
        with torch.no_grad():
            perturbed = self._perturbed(sample_shape, generator)
            mask = _checks.mask(mask, perturbed)
            if mask is not None:
                perturbed = perturbed.masked_fill(~mask, -torch.inf)
            return perturbed.argsort(dim=-1, descending=True, stable=True)

    def _perturbed(self, sample_shape: Any, generator: torch.Generator | None) -> Tensor:
        """Logits plus noise, in float64, with gradient."""
        shape = self._extended_shape(torch.Size(_options.sample_shape(sample_shape)))
        return self.logits + gumbel(shape, device=self.logits.device, generator=generator)

    def rsample_given(
        self,
        ranking: Tensor,
        *,
        mask: Tensor | None = None,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        r"""Perturbed logits from their posterior given the ranking they were sorted into.

        With $E_i \sim \text{Exponential}(1)$ and the perturbed logits $g$ in ranked order,
        $e^{-g_i} = e^{-g_{i-1}} + E_i \big/ \sum_{j \ge i} e^{l_{z_j}}$: the largest is a Gumbel,
        each next one a Gumbel truncated at the one before.

        Args:
            ranking: `(..., n)` integers, leading dimensions broadcasting against the batch shape.
            mask: `(..., n)` boolean, True where the item exists. With m items present, the first m
                places hold them; absent items get 0.
            generator: Source of randomness; the global one if None.

        Returns:
            `(..., n)` in the order of the items, reparameterised: differentiable in the logits.
            Sorting it in descending order gives back the ranking exactly; values that would round
            to ties are moved apart by one unit in the last place.
        """
        ranking, logits, mask = self._together(_checks.full_ranking(ranking, self.n), mask)
        if self._validate_args:
            self._check_ranking(ranking, mask)
        noise = exponential(ranking.shape, device=logits.device, generator=generator)
        mask = torch.ones_like(logits, dtype=torch.bool) if mask is None else mask
        ranking = absent_last(ranking, mask)
        absent = ~mask.gather(-1, ranking)  # in the last places: none before depends on them
        rest = reversed_logcumsumexp(
            logits.gather(-1, ranking).masked_fill(absent, ABSENT[logits.dtype])
        )
        exact = -torch.logcumsumexp(noise.log() - rest, -1)
        exact = exact.masked_fill(absent, 0.0).to(self.logits.dtype)
        ordered = straight_through(strictly_descending(exact.detach()), exact)
        ordered = ordered.masked_fill(absent, 0.0)
        return torch.zeros_like(ordered).scatter(-1, ranking, ordered)

    @property
    def mode(self) -> Tensor:
        """The most probable ranking: the stable descending sort of the logits."""
        return self.logits.argsort(dim=-1, descending=True, stable=True)

    # -- probabilities ----------------------------------------------------------------------------

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
        """
        ranking, logits, mask = self._together(value, mask)
        if self._validate_args:
            self._check_ranking(value, mask)
        return log_density(logits, ranking, mask).to(self.logits.dtype)

    def _check_ranking(self, ranking: Tensor, mask: Tensor | None = None) -> None:
        """Sees to it that the places that count list distinct items, which are there. Reads values.

        Raises:
            ValueError: If they do not.
        """
        ranking, _, mask = self._together(ranking, mask)
        _checks.distinct_items(Permutation(self.n).check(ranking, mask), ranking, self.n)

    def _together(
        self, ranking: Tensor, mask: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """Ranking, logits in float64 and mask, of one batch shape."""
        ranking = _checks.ranking(ranking, self.n)
        batch = _checks.batch_of_rankings(ranking, self.batch_shape)
        ranking = ranking.expand(*batch, ranking.shape[-1])
        logits = self.logits.to(longest(self.logits.device)).expand(*batch, self.n)
        return ranking, logits, _checks.mask(mask, logits)

    def prob_before(self) -> Tensor:
        """Probability `(..., n, n)` that item i comes before item j, exact; 1/2 on the diagonal."""
        return (self.logits.unsqueeze(-1) - self.logits.unsqueeze(-2)).sigmoid()

    def enumerate_support(self, expand: bool = True) -> Tensor:
        """All n! rankings in lexicographic order, `(n!,) + batch_shape + (n,)`, for n <= 8."""
        _options.enumerable(self.n, LONGEST_ENUMERATED)
        everything = list(itertools.permutations(range(self.n)))
        rankings = torch.tensor(everything, dtype=torch.int64, device=self.logits.device)
        rankings = rankings.view(len(everything), *[1] * len(self.batch_shape), self.n)
        return rankings.expand(-1, *self.batch_shape, -1) if expand else rankings

    # -- expectations: exact sums for short lists, Monte Carlo beyond ------------------------------

    def _support(
        self, samples: int, generator: torch.Generator | None
    ) -> tuple[Tensor, Tensor, bool]:
        """Rankings, their log-probabilities in float64, and whether these are all rankings."""
        exact = self.n <= LONGEST_ENUMERATED
        if exact:
            rankings = self.enumerate_support()
        else:
            rankings = self.sample((_options.samples(samples, least=2),), generator=generator)
        logits = self.logits.to(longest(self.logits.device)).expand(rankings.shape)
        return rankings, log_density(logits, rankings, None), exact

    def entropy(
        self, *, samples: int = SAMPLES, generator: torch.Generator | None = None
    ) -> Tensor:
        """Entropy in nats `(...)`: exact for n <= 8, an unbiased Monte Carlo estimate beyond.

        Args:
            samples: How many to draw where n > 8, at least 2.
            generator: Source of randomness for them.

        Returns:
            The entropy. Its gradient is exact where the value is, and otherwise the unbiased
            score-function estimate with leave-one-out baseline.
        """
        _, log_prob, exact = self._support(samples, generator)
        surprise = -log_prob if exact else -log_prob.detach()
        return _expectation(log_prob, surprise, exact).to(self.logits.dtype)

    def marginals(
        self, *, samples: int = SAMPLES, generator: torch.Generator | None = None
    ) -> Tensor:
        """Probability `(..., n, n)` of each item (column) at each place (row).

        Args:
            samples: How many to draw where n > 8, at least 2.
            generator: Source of randomness for them.

        Returns:
            Exact and differentiable for n <= 8. Beyond, shares among samples: unbiased, with rows
            and columns that sum to 1, and without gradient.
        """
        rankings, log_prob, exact = self._support(samples, generator)
        weight = log_prob.exp() if exact else torch.full_like(log_prob, 1 / samples).detach()
        place = torch.arange(self.n, device=rankings.device)
        cell = (rankings + self.n * place).movedim(0, -2).flatten(-2)
        share = weight.movedim(0, -1).unsqueeze(-1).expand(*self.batch_shape, -1, self.n)
        total = share.new_zeros(*self.batch_shape, self.n * self.n)
        total = total.scatter_add(-1, cell, share.flatten(-2))
        return total.unflatten(-1, (self.n, self.n)).to(self.logits.dtype)

    def kl_divergence(
        self,
        other: "PlackettLuce",
        *,
        samples: int = SAMPLES,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        """Divergence KL(self || other) in nats `(...)`: exact for n <= 8, Monte Carlo beyond.

        `torch.distributions.kl_divergence(p, q)` is this with the defaults.

        Args:
            other: A distribution over rankings of as many items.
            samples: How many to draw where n > 8, at least 2.
            generator: Source of randomness for them.

        Returns:
            The divergence, an unbiased estimate of it beyond n = 8. Gradients to both
            distributions are exact where the value is, and otherwise unbiased estimates.
        """
        _options.same_items(self.n, other.n)
        batch = torch.broadcast_shapes(self.batch_shape, other.batch_shape)
        rankings, log_p, exact = self.expand(batch)._support(samples, generator)
        others = other.logits.to(log_p.dtype).expand(rankings.shape)
        log_q = log_density(others, rankings, None)
        ratio = (log_p if exact else log_p.detach()) - log_q
        return _expectation(log_p, ratio, exact).to(self.logits.dtype)


@register_kl(PlackettLuce, PlackettLuce)
def _kl(p: PlackettLuce, q: PlackettLuce) -> Tensor:
    return p.kl_divergence(q)


class RelaxedPlackettLuce(Distribution):
    r"""Plackett-Luce with relaxed samples: the paper's Stochastic NeuralSort.

    $$\widehat P_{\text{sort}(l + g)}, \qquad g_j \sim \text{Gumbel}(0, 1)$$

    As `tau` tends to 0, samples tend to the permutation matrices of `PlackettLuce(logits)`. They
    are reparameterised: differentiable in the logits and in `tau`. Matrices between permutations
    have no density in closed form, so there is no `log_prob`.

    Args:
        tau: Temperature of the relaxation: a number, a `Blur`, or a tensor that broadcasts against
            `logits` with a last dimension of 1.
        logits: `(..., n)`. Logs of the paper's scores, any real numbers.
        validate_args: Whether to check the values of arguments, as in `torch.distributions`.
        relax: The relaxation: `neuralsort`, `softsort`, or a `functools.partial` of one.

    Raises:
        TypeError: If `logits` are not a floating-point tensor.
        ValueError: If `tau` is negative or its shape does not fit.

    Example:
        >>> model = RelaxedPlackettLuce(0.5, torch.tensor([0.0, 2.0, 1.0]))
        >>> P = model.rsample((4,))
        >>> P.shape
        torch.Size([4, 3, 3])
        >>> P.straight_through().to_dense().sum(-2)
        tensor([[1., 1., 1.],
                [1., 1., 1.],
                [1., 1., 1.],
                [1., 1., 1.]])

    Reference: Grover et al. (2019), Section 4.1.
    """

    arg_constraints = {"logits": _FiniteVector()}  # pyright: ignore
    support = constraints.independent(constraints.simplex, 1)  # pyright: ignore
    has_rsample = True

    def __init__(
        self,
        tau: _checks.Tau,
        logits: Tensor,
        validate_args: bool | None = None,
        *,
        relax: Relaxation = neuralsort,
    ) -> None:
        self.logits = _checks.scores("RelaxedPlackettLuce(logits)", logits)
        self.tau = _checks.tau(tau, logits)
        self.relax = relax
        _options.relax(relax)
        n = logits.shape[-1]
        super().__init__(logits.shape[:-1], torch.Size((n, n)), validate_args=validate_args)

    def expand(self, batch_shape: Any, _instance: Any = None) -> "RelaxedPlackettLuce":
        """The same distribution with a larger batch shape."""
        new: Any = self._get_checked_instance(RelaxedPlackettLuce, _instance)
        batch_shape = torch.Size(batch_shape)
        new.logits = self.logits.expand(*batch_shape, self.logits.shape[-1])
        new.tau, new.relax = self.tau, self.relax
        Distribution.__init__(new, batch_shape, self.event_shape, validate_args=False)
        new._validate_args = self._validate_args
        return new

    def rsample(
        self,
        sample_shape: Any = torch.Size(),  # noqa: B008 - torch's own signature
        *,
        mask: Tensor | None = None,
        generator: torch.Generator | None = None,
    ) -> RelaxedPermutation:
        """Draws relaxed permutations, with fresh noise for every list.

        Args:
            sample_shape: Of the draws.
            mask: `(..., n)` boolean, True where the item exists. Absent items take no part,
                whatever their logits are; the last rows place them in index order.
            generator: Source of randomness; the global one if None.

        Returns:
            The operator of shape `sample_shape + batch_shape + (n, n)`, matrix-free for long lists.
            Perturbed logits round to the dtype of the logits: in half precision some of them tie.
        """
        shape = torch.Size((*_options.sample_shape(sample_shape), *self.logits.shape))
        noise = gumbel(shape, device=self.logits.device, generator=generator)
        logits = _from_largest(self.logits, _checks.mask(mask, self.logits))
        perturbed = logits + noise.to(logits.dtype)
        return relaxed(perturbed, self.tau, _checks.mask(mask, perturbed), self.relax)

    def sample(
        self,
        sample_shape: Any = torch.Size(),  # noqa: B008 - torch's own signature
        *,
        mask: Tensor | None = None,
        generator: torch.Generator | None = None,
    ) -> RelaxedPermutation:
        """`rsample` without gradients."""
        with torch.no_grad():
            return self.rsample(sample_shape, mask=mask, generator=generator)

    def __repr__(self) -> str:
        """Temperature, shape of the logits, relaxation."""
        tau = tuple(self.tau.shape) if isinstance(self.tau, Tensor) else self.tau
        relax = getattr(self.relax, "__name__", repr(self.relax))
        return f"RelaxedPlackettLuce(tau: {tau}, logits: {self.logits.shape}, relax: {relax})"


def _from_largest(logits: Tensor, mask: Tensor | None) -> Tensor:
    """Logits minus the largest of their list, so that a common offset does not swallow noise.

    Those of absent items are 0.
    """
    if not logits.shape[-1]:
        return logits
    if mask is not None:
        lowest = torch.finfo(logits.dtype).min
        offset = _from_largest(logits.masked_fill(~mask, lowest), None)
        return offset.masked_fill(~mask, 0.0)
    largest = logits.detach().amax(-1, keepdim=True)
    return logits - torch.where(largest.isfinite(), largest, 0.0)


def stochastic_neuralsort(
    scores: Tensor,
    *,
    tau: _checks.Tau = 1.0,
    samples: int,
    mask: Tensor | None = None,
    relax: Relaxation = neuralsort,
    generator: torch.Generator | None = None,
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
        generator: Source of randomness; the global one if None.

    Returns:
        The relaxed permutations `(samples, ..., n, n)`, each with noise of its own, differentiable
        in the scores and in `tau`.

    Raises:
        TypeError: If `scores` are not floating point, or `samples` is not an int.
        ValueError: If `tau` is negative, or `samples` is not positive.

    Example:
        >>> scores = torch.tensor([0.0, 2.0, 1.0], requires_grad=True)
        >>> P = stochastic_neuralsort(scores, tau=0.5, samples=5)
        >>> (P @ scores).mean(0).shape
        torch.Size([3])

    Reference: Grover et al. (2019), Section 4.1. Time and memory: `samples` times those of
    `neuralsort`.
    """
    samples = _options.samples(samples)
    scores = _checks.scores("stochastic_neuralsort(scores)", scores)
    model = RelaxedPlackettLuce(tau, scores, validate_args=False, relax=relax)
    return model.rsample((samples,), mask=mask, generator=generator)


def _expectation(log_prob: Tensor, value: Tensor, exact: bool) -> Tensor:
    """Mean of a value over all rankings, or over samples of them; rankings come first."""
    return (log_prob.exp() * value).sum(0) if exact else score_function_loss(log_prob, value)
