"""Distributions over subsets: k of n items, as likely as the product of their weights."""

import itertools
import math
from typing import Any

import torch
from torch import Tensor
from torch.distributions import Distribution, constraints, register_kl
from torch.nn.functional import logsigmoid

from .. import _options
from . import _checks
from .gradients import straight_through
from .noise import gumbel
from .subset_sums import (
    NOTHING,
    branches,
    log_inclusion,
    log_odds,
    log_sums,
    mean_cost,
)

LARGEST_ENUMERATED = 100_000
"""How many subsets `enumerate_support` writes down at most."""


class _NotNaN(constraints.Constraint):
    """Real numbers and infinities in the last dimension."""

    event_dim = 1

    def check(self, value: Tensor) -> Tensor:
        return ~value.isnan().any(-1)


class SubsetOfSize(constraints.Constraint):
    """Boolean masks of n items, k of them True."""

    is_discrete = True
    event_dim = 1

    def __init__(self, n: int, k: int) -> None:
        self.n, self.k = n, k
        super().__init__()

    def __repr__(self) -> str:
        return f"SubsetOfSize({self.n}, {self.k})"

    def check(self, value: Tensor) -> Tensor:
        """Whether so many items are chosen."""
        return value.bool().sum(-1) == self.k


class KSubset(Distribution):
    r"""Subsets of k items, each as probable as the product of its items' weights.

    $$q(S) = \prod_{j \in S} e^{l_j} \Big/ \sum_{|T| = k}\, \prod_{j \in T} e^{l_j},
      \qquad |S| = k$$

    This is what is left of n independent coins with log-odds $l_j$ if k of them show heads: the
    conditional Bernoulli distribution. An event is a boolean mask `(..., n)` with k items True. The
    limit of far-apart logits is the hard top-k, which is the mode. Everything is exact, by a
    recursion over the items in logarithms, in float64 inside; results have the dtype of the logits.

    Args:
        logits: `(..., n)`. Log-weights of the items; adding a constant to a list changes nothing.
            An item at minus infinity is never chosen: so are absent items of padded lists marked,
            `logits.masked_fill(~mask, -torch.inf)`. One at plus infinity always is.
        k: How many items a subset has, from 0 to n.
        validate_args: Whether to check the values of arguments, as in `torch.distributions`.

    Raises:
        TypeError: If `logits` are not a floating-point tensor, or `k` not an int.
        ValueError: If `k` is not between 0 and n; when validated, if a logit is NaN or a list has
            fewer than k items that can be chosen, or more than k that must be. Where that is not
            validated, results are NaN.

    Example:
        >>> model = KSubset(torch.tensor([0.0, 2.0, 1.0]), 2)
        >>> model.marginals()
        tensor([0.3348, 0.9100, 0.7553])
        >>> model.mode
        tensor([False,  True,  True])
        >>> model.log_prob(model.mode).exp()
        tensor(0.6652)
        >>> model.sample((4,)).sum(-1)
        tensor([2, 2, 2, 2])

    Reference: Chen and Liu (1997) for the distribution and its recursion; Ahmed et al. (2023) for
    `simple_sample`, Niepert et al. (2021) for `imle_sample`. Time and memory: O(n k) per list.
    """

    arg_constraints = {"logits": _NotNaN()}  # pyright: ignore
    has_enumerate_support = True

    def __init__(self, logits: Tensor, k: int, validate_args: bool | None = None) -> None:
        self.logits = _checks.scores("KSubset(logits)", logits)
        self.k = _options.k(k, logits.shape[-1])
        super().__init__(logits.shape[:-1], logits.shape[-1:], validate_args=validate_args)
        if self._validate_args:
            _checks.enough_to_choose(self.logits, self.k)

    @property
    def n(self) -> int:
        """Items per list."""
        return self.event_shape[0]

    @constraints.dependent_property(is_discrete=True, event_dim=1)
    def support(self) -> constraints.Constraint:
        """Masks of k items."""
        return SubsetOfSize(self.n, self.k)

    def expand(self, batch_shape: Any, _instance: Any = None) -> "KSubset":
        """The same distribution with a larger batch shape."""
        new: Any = self._get_checked_instance(KSubset, _instance)
        batch_shape = torch.Size(batch_shape)
        new.logits, new.k = self.logits.expand(*batch_shape, self.n), self.k
        Distribution.__init__(new, batch_shape, self.event_shape, validate_args=False)
        new._validate_args = self._validate_args
        return new

    def __repr__(self) -> str:
        """How many of how many items."""
        return f"KSubset(logits: {self.logits.shape}, k: {self.k})"

    # -- samples ----------------------------------------------------------------------------------

    def sample(
        self,
        sample_shape: Any = torch.Size(),  # noqa: B008 - torch's own signature
        *,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        """Draws subsets exactly: from the last item to the first, each is taken or left.

        Args:
            sample_shape: Of the draws.
            generator: Source of randomness; the global one if None.

        Returns:
            `sample_shape + batch_shape + (n,)` boolean, without gradient.
        """
        shape = self._extended_shape(torch.Size(_options.sample_shape(sample_shape)))
        with torch.no_grad():
            weights = branches(self.logits)
            odds = log_odds(log_sums(weights, self.k), weights)
            device = self.logits.device
            chance = torch.rand(shape, generator=generator, dtype=torch.float64, device=device)
            missing = torch.full((*shape[:-1], 1), self.k, device=device)
            chosen = torch.zeros(shape, dtype=torch.bool, device=device)
            for j in reversed(range(self.n)):
                share = odds[j].expand(*shape[:-1], -1).gather(-1, missing).sigmoid()
                taken = chance[..., j, None] < share
                chosen[..., j] = taken.squeeze(-1)
                missing = missing - taken.long()
            return chosen

    def relaxed_sample(
        self,
        sample_shape: Any = torch.Size(),  # noqa: B008 - torch's own signature
        *,
        tau: float | Tensor,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        r"""Soft memberships: a Gumbel top-k whose threshold is blurred.

        $$E_{S \sim q_{(l + g) / \tau}}[\,1_S\,], \qquad g_j \sim \text{Gumbel}(0, 1)$$

        The marginals of this family at perturbed logits and a temperature. As `tau` tends to 0 they
        tend to the mask of the k largest perturbed logits: the first k places of a Plackett-Luce
        ranking. As subsets these are distributed like `sample()` only for k = 1; for other k they
        are near, and what the literature calls relaxed subset sampling.

        Args:
            sample_shape: Of the draws.
            tau: Temperature, positive: a number, or a tensor that broadcasts against the logits
                with a last dimension of 1.
            generator: Source of randomness; the global one if None.

        Returns:
            `sample_shape + batch_shape + (n,)`: weights in [0, 1] that sum to k, differentiable in
            the logits and in `tau`.
        """
        tau = _checks.positive_tau(tau, self.logits)
        return _marginals(self._perturbed(sample_shape, generator) / tau, self.k, self.logits.dtype)

    def simple_sample(
        self,
        sample_shape: Any = torch.Size(),  # noqa: B008 - torch's own signature
        *,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        r"""SIMPLE: exact samples, with the gradient of the exact marginals.

        $$\text{value} = 1_S, \quad S \sim q, \qquad \partial\,\text{value} := \partial\,E[1_S]$$

        For costs that are linear in the mask the gradient is exact, without any variance; for
        others it is biased.

        Args:
            sample_shape: Of the draws.
            generator: Source of randomness; the global one if None.

        Returns:
            `sample_shape + batch_shape + (n,)`: k ones among zeros, in the dtype of the logits.
        """
        hard = self.sample(sample_shape, generator=generator)
        return straight_through(hard, self.marginals().expand(hard.shape))

    def imle_sample(
        self,
        sample_shape: Any = torch.Size(),  # noqa: B008 - torch's own signature
        *,
        strength: float = 1.0,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        r"""Implicit maximum likelihood: a perturbed top-k, pulled to where its cost falls.

        $$\text{value} = \text{top}_k(l + g), \qquad \text{gradient} :=
          \tfrac1\lambda \big[\text{top}_k(l + g) - \text{top}_k(l + g - \lambda\, u)\big]$$

        for the upstream gradient u, Gumbel noise g and strength $\lambda$. For a linear cost its
        mean is a difference quotient over the length $\lambda$: it tends to the gradient of the
        expected cost of a Gumbel top-k as $\lambda$ tends to 0, while its variance grows.

        Args:
            sample_shape: Of the draws.
            strength: How far the logits are pulled, positive.
            generator: Source of randomness; the global one if None.

        Returns:
            `sample_shape + batch_shape + (n,)`: k ones among zeros, in the dtype of the logits.
        """
        strength = _options.positive("strength", strength)
        perturbed = self._perturbed(sample_shape, generator)
        return _ImplicitMLE.apply(perturbed, self.k, strength).to(self.logits.dtype)  # pyright: ignore

    def _perturbed(self, sample_shape: Any, generator: torch.Generator | None) -> Tensor:
        """Logits plus noise, in float64, with gradient."""
        shape = self._extended_shape(torch.Size(_options.sample_shape(sample_shape)))
        return self.logits + gumbel(shape, device=self.logits.device, generator=generator)

    @property
    def mode(self) -> Tensor:
        """The most probable subset: the k largest logits, of tied ones those that come first."""
        return _largest(self.logits, self.k)

    # -- probabilities ----------------------------------------------------------------------------

    def log_prob(self, value: Tensor) -> Tensor:
        """Log-probability of a subset.

        Args:
            value: `(..., n)` boolean with k items True, leading dimensions broadcasting against the
                batch shape.

        Returns:
            `(...)`. Minus infinity for a subset that lacks an item at plus infinity, or has one at
            minus infinity; also, where that is not validated, for one of another size.
        """
        value = _checks.subset(value, self.logits.shape)
        if self._validate_args:
            _checks.size_of_subset(value, self.k)
        weights = branches(self.logits)
        total = _possible(log_sums(weights, self.k)[-1][..., self.k])
        chosen = torch.where(value, weights.taken, weights.left).sum(-1) - total
        possible = (chosen > NOTHING / 2) & (value.sum(-1) == self.k) | chosen.isnan()
        return torch.where(possible, chosen, -torch.inf).to(self.logits.dtype)

    def marginals(self) -> Tensor:
        """Probability `(..., n)` that each item is in the subset; they sum to k. Differentiable."""
        return _marginals(self.logits, self.k, self.logits.dtype)

    @property
    def mean(self) -> Tensor:
        """The marginals."""
        return self.marginals()

    @property
    def variance(self) -> Tensor:
        """Of each item's membership."""
        share = self.marginals()
        return share * (1 - share)

    def entropy(self) -> Tensor:
        """Entropy in nats `(...)`, exact and differentiable."""
        odds, certain = self._choices()
        costs = [(-logsigmoid(d), -logsigmoid(-d)) for d in odds]
        return mean_cost(odds, costs, certain)[..., self.k].to(self.logits.dtype)

    def kl_divergence(self, other: "KSubset") -> Tensor:
        """Divergence KL(self || other) in nats `(...)`, exact and differentiable.

        `torch.distributions.kl_divergence(p, q)` is this.

        Args:
            other: A distribution over subsets of as many of as many items.

        Returns:
            The divergence; infinite where `other` rules out what this one does not.
        """
        _options.same_subsets(self.n, self.k, other.n, other.k)
        (odds, certain), (theirs, other_certain) = self._choices(), other._choices()
        costs = [
            (logsigmoid(d) - logsigmoid(e), logsigmoid(-d) - logsigmoid(-e))
            for d, e in zip(odds, theirs, strict=True)
        ]
        found = mean_cost(odds, costs, certain + other_certain)[..., self.k]
        return torch.where(found > -NOTHING / 1e20, torch.inf, found).to(self.logits.dtype)

    def _choices(self) -> tuple[list[Tensor], Tensor]:
        """Log-odds of each item, and zeros `(..., k + 1)`; NaN for lists without a subset."""
        weights = branches(self.logits)
        sums = log_sums(weights, self.k)
        total = _possible(sums[-1][..., self.k, None])
        return log_odds(sums, weights), torch.zeros_like(sums[0]) + 0 * total

    def enumerate_support(self, expand: bool = True) -> Tensor:
        """All subsets as masks `(number,) + batch_shape + (n,)`, in lexicographic order of items.

        For at most 100,000 of them.
        """
        _options.few_subsets(self.n, self.k, LARGEST_ENUMERATED)
        count = math.comb(self.n, self.k)
        items = list(itertools.combinations(range(self.n), self.k))
        index = torch.tensor(items, dtype=torch.int64).reshape(count, self.k)
        masks = torch.zeros(count, self.n, dtype=torch.bool).scatter(-1, index, True)
        masks = masks.to(self.logits.device).view(count, *[1] * len(self.batch_shape), self.n)
        return masks.expand(-1, *self.batch_shape, -1) if expand else masks


@register_kl(KSubset, KSubset)
def _kl(p: KSubset, q: KSubset) -> Tensor:
    return p.kl_divergence(q)


class _ImplicitMLE(torch.autograd.Function):
    """The k largest, with the gradient of implicit maximum likelihood."""

    generate_vmap_rule = True

    @staticmethod
    def forward(scores: Tensor, k: int, strength: float) -> Tensor:
        return _largest(scores, k).to(scores.dtype)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple, output: Tensor) -> None:
        scores, ctx.k, ctx.strength = inputs
        ctx.save_for_backward(scores, output)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple:  # pyright: ignore
        scores, chosen = ctx.saved_tensors
        pulled = _largest(scores - ctx.strength * grad, ctx.k).to(scores.dtype)
        return (chosen - pulled) / ctx.strength, None, None


def _largest(scores: Tensor, k: int) -> Tensor:
    """The mask of the k largest; of tied ones those that come first."""
    first = scores.argsort(dim=-1, descending=True, stable=True)[..., :k]
    return torch.zeros_like(scores, dtype=torch.bool).scatter(-1, first, True)


def _marginals(logits: Tensor, k: int, dtype: torch.dtype) -> Tensor:
    with_item, total = log_inclusion(branches(logits), k)
    share = (with_item - _possible(total).unsqueeze(-1)).exp()
    return (share - (share - 1).clamp(min=0).detach()).to(dtype)  # rounded up past 1


def _possible(total: Tensor) -> Tensor:
    """The log-sum over all subsets; NaN where there are none."""
    return torch.where(total > NOTHING / 2, total, torch.nan)
