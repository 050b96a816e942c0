r"""Gradients of an expected cost over rankings, $L(l) = E_{z \sim PL(l)}[f(P_z)]$.

One shape of function: `(cost, logits, *, ...)` to an estimate of L per list, whose gradient with
respect to the logits is an estimate of L's. `cost` takes permutations P `(samples, ..., n, n)` and
returns one cost per sample and list, `(samples, ...)`. Lists may be padded: under a `mask` absent
items take no part, and the last rows of P place them in index order.

| function | gradient | asks of the cost |
|---|---|---|
| `exact_expectation` | exact, n <= 8 | any |
| `relaxed_expectation` | biased, low variance | differentiable, defined between permutations |
| `straight_through_expectation` | biased | differentiable, seen at permutations only |
| `score_function_expectation` | unbiased, high variance | any |
| `rebar_expectation` | unbiased, lower variance | differentiable, between permutations too |

`perturbed` is another: the mean of any function of scores under Gaussian noise.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from .. import _options
from . import _checks
from .arrays import longest
from .distributions import PlackettLuce, RelaxedPlackettLuce
from .gradients import score_function_loss
from .operators import Relaxation, relaxed
from .permutation import HardPermutation, RelaxedPermutation
from .perturbations import perturbed as perturbed
from .rankings import Permutation, absent_last
from .relaxations import neuralsort

__all__ = [
    "exact_expectation",
    "perturbed",
    "rebar_expectation",
    "relaxed_expectation",
    "score_function_expectation",
    "straight_through_expectation",
]

Cost = Callable[[RelaxedPermutation], Tensor]


def exact_expectation(cost: Cost, logits: Tensor, *, mask: Tensor | None = None) -> Tensor:
    r"""The expected cost by enumeration of all n! rankings, with its exact gradient.

    $$L(l) = \sum_z q(z \mid l)\, f(P_z)$$

    Args:
        cost: From permutations `(n!, ..., n, n)` to costs `(n!, ...)`.
        logits: `(..., n)` with n <= 8. Logits of Plackett-Luce.
        mask: `(..., n)` boolean, True where the item exists. Absent items are in the last places.

    Returns:
        `(...)`. L for each list.

    Raises:
        ValueError: If lists have more than 8 items, or costs the wrong shape.

    Example:
        >>> place = torch.tensor([1.0, 2.0, 3.0])
        >>> logits = torch.tensor([0.0, 2.0, 1.0])
        >>> exact_expectation(lambda P: P.sort(place)[..., 0], logits)  # expected winner, from 1
        tensor(2.1547)

    Time and memory: O(n n!) per list, and those of the cost.
    """
    precise = logits.to(longest(logits.device))  # many small probabilities
    model = PlackettLuce(precise, validate_args=False)
    mask = _checks.mask(mask, logits)
    rankings = model.enumerate_support()
    counts = torch.ones(rankings.shape[:-1], dtype=torch.bool, device=logits.device)
    if mask is not None:  # every ranking of those present comes several times: one of them counts
        present = mask.expand(rankings.shape)
        counts = (rankings == absent_last(rankings, present)).all(-1)
        counts = counts & Permutation(model.n).check(rankings, present)
        some = torch.sort(~present, dim=-1, stable=True).indices
        rankings = torch.where(counts.unsqueeze(-1), rankings, some)
    probability = torch.where(counts, model.log_prob(rankings, mask=mask).exp(), 0.0)
    costs = _hard_costs(cost, rankings, logits)
    return (probability * costs).sum(0).to(costs.dtype)


def relaxed_expectation(
    cost: Cost,
    logits: Tensor,
    *,
    tau: _checks.Tau,
    samples: int,
    mask: Tensor | None = None,
    relax: Relaxation = neuralsort,
    generator: torch.Generator | None = None,
) -> Tensor:
    r"""The mean cost of relaxed samples, with its pathwise gradient.

    $$\frac1S \sum_s f\big(\widehat P_{\text{sort}(l + g_s)}\big)$$

    Unbiased for the relaxed objective, which tends to L as `tau` tends to 0, while the variance of
    the gradient grows.

    Args:
        cost: From relaxed permutations `(samples, ..., n, n)` to costs `(samples, ...)`.
        logits: `(..., n)`. Logits of Plackett-Luce.
        tau: Temperature of the relaxation.
        samples: How many to draw for each list.
        mask: `(..., n)` boolean, True where the item exists. Absent items are in the last places,
            and the cost must make nothing of them.
        relax: The relaxation: `neuralsort`, `softsort`, or a `functools.partial` of one.
        generator: Source of randomness; the global one if None.

    Returns:
        `(...)`. One mean per list.

    Raises:
        ValueError: If `samples` is not positive, or costs have the wrong shape.

    Example:
        >>> logits = torch.tensor([0.0, 2.0, 1.0], requires_grad=True)
        >>> first = lambda P: P.sort(torch.tensor([1.0, 2.0, 3.0]))[..., 0]
        >>> relaxed_expectation(first, logits, tau=0.5, samples=100).backward()
        >>> logits.grad.shape
        torch.Size([3])

    Reference: Grover et al. (2019), Section 4.1.
    """
    model = RelaxedPlackettLuce(tau, logits, validate_args=False, relax=relax)
    P = model.rsample((_options.samples(samples),), mask=mask, generator=generator)
    return _costs(cost, P).mean(0)


def straight_through_expectation(
    cost: Cost,
    logits: Tensor,
    *,
    tau: _checks.Tau,
    samples: int,
    mask: Tensor | None = None,
    relax: Relaxation = neuralsort,
    generator: torch.Generator | None = None,
) -> Tensor:
    r"""The mean cost of exact samples, with the gradient of the relaxed permutation.

    $$\frac1S \sum_s f(P_s), \qquad \partial P_s := \partial \widehat P_{\text{sort}(l + g_s)}$$

    The value is unbiased for L; the gradient is not. The cost only ever sees permutations.

    Args:
        cost: From permutations `(samples, ..., n, n)` to costs `(samples, ...)`.
        logits: `(..., n)`. Logits of Plackett-Luce.
        tau: Temperature of the relaxation behind the gradient.
        samples: How many to draw for each list.
        mask: `(..., n)` boolean, True where the item exists. Absent items are in the last places,
            and the cost must make nothing of them.
        relax: The relaxation: `neuralsort`, `softsort`, or a `functools.partial` of one.
        generator: Source of randomness; the global one if None.

    Returns:
        `(...)`. One mean per list.

    Raises:
        ValueError: If `samples` is not positive, or costs have the wrong shape.

    Example:
        >>> logits = torch.tensor([0.0, 2.0, 1.0], requires_grad=True)
        >>> first = lambda P: P.sort(torch.tensor([1.0, 2.0, 3.0]))[..., 0]
        >>> straight_through_expectation(first, logits, tau=0.5, samples=100).backward()
        >>> logits.grad.shape
        torch.Size([3])

    Reference: Bengio et al. (2013).
    """

    def hardened(P: RelaxedPermutation) -> Tensor:
        return cost(P.straight_through())

    return relaxed_expectation(
        hardened, logits, tau=tau, samples=samples, mask=mask, relax=relax, generator=generator
    )


def score_function_expectation(
    cost: Cost,
    logits: Tensor,
    *,
    samples: int,
    baseline: str | None = "leave_one_out",
    mask: Tensor | None = None,
    generator: torch.Generator | None = None,
) -> Tensor:
    r"""The mean cost of exact samples, with the gradient of REINFORCE.

    $$\frac1S \sum_s (f(P_s) - b_s)\, \partial \log q(z_s \mid l)$$

    Value and gradient are unbiased, for any cost: nothing is asked of its derivatives.

    Args:
        cost: From permutations `(samples, ..., n, n)` to costs `(samples, ...)`.
        logits: `(..., n)`. Logits of Plackett-Luce.
        samples: How many to draw for each list; at least 2 with a baseline.
        baseline: `"leave_one_out"`, the mean cost of the other samples, or None.
        mask: `(..., n)` boolean, True where the item exists. Absent items are in the last places,
            and the cost must make nothing of them.
        generator: Source of randomness; the global one if None.

    Returns:
        `(...)`. One mean per list.

    Raises:
        ValueError: If samples are too few, the baseline is not known, or costs have the wrong
            shape.

    Example:
        >>> logits = torch.tensor([0.0, 2.0, 1.0], requires_grad=True)
        >>> first = lambda P: P.sort(torch.tensor([1.0, 2.0, 3.0]))[..., 0]
        >>> score_function_expectation(first, logits, samples=100).backward()
        >>> logits.grad.shape
        torch.Size([3])

    Reference: Williams (1992); Kool et al. (2019).
    """
    model = PlackettLuce(logits, validate_args=False)
    rankings = model.sample((_options.samples(samples),), mask=mask, generator=generator)
    costs = _hard_costs(cost, rankings, logits)
    return score_function_loss(model.log_prob(rankings, mask=mask), costs, baseline=baseline)


def rebar_expectation(
    cost: Cost,
    logits: Tensor,
    *,
    tau: _checks.Tau,
    samples: int,
    strength: float = 1.0,
    baseline: str | None = "leave_one_out",
    mask: Tensor | None = None,
    relax: Relaxation = neuralsort,
    generator: torch.Generator | None = None,
) -> Tensor:
    r"""The mean cost of exact samples, with a score-function gradient steadied by a relaxation.

    $$\frac1S \sum_s \big(f(P_s) - \eta f(\tilde P_s) - b_s\big)\, \partial \log q(z_s \mid l)
      + \eta\, \partial f(\widehat P_s) - \eta\, \partial f(\tilde P_s)$$

    $\widehat P_s$ relaxes the perturbed logits that were sorted into $z_s$, and $\tilde P_s$ other
    ones, drawn from their posterior given $z_s$ (`PlackettLuce.rsample_given`). Unbiased at every
    temperature and every strength $\eta$; both only change the variance.

    Args:
        cost: From permutations `(samples, ..., n, n)`, exact or relaxed, to costs `(samples, ...)`.
        logits: `(..., n)`. Logits of Plackett-Luce.
        tau: Temperature of the control variate.
        samples: How many to draw for each list; at least 2 with a baseline.
        strength: How much of the control variate to use; 0 is the score function alone.
        baseline: `"leave_one_out"`, the mean residual of the other samples, or None.
        mask: `(..., n)` boolean, True where the item exists. Absent items are in the last places,
            and the cost must make nothing of them.
        relax: The relaxation: `neuralsort`, `softsort`, or a `functools.partial` of one.
        generator: Source of randomness; the global one if None.

    Returns:
        `(...)`. One mean per list: of the costs of exact samples, corrected by the difference of
        the two relaxed ones, whose mean is 0.

    Raises:
        ValueError: If `samples` is not positive, or costs have the wrong shape.

    Example:
        >>> logits = torch.tensor([0.0, 2.0, 1.0], requires_grad=True)
        >>> first = lambda P: P.sort(torch.tensor([1.0, 2.0, 3.0]))[..., 0]
        >>> rebar_expectation(first, logits, tau=0.5, samples=100).backward()
        >>> logits.grad.shape
        torch.Size([3])

    Reference: Tucker et al. (2017).
    """
    model = PlackettLuce(logits, validate_args=False)
    model_of_relaxed = RelaxedPlackettLuce(tau, logits, validate_args=False, relax=relax)
    free = model_of_relaxed.rsample((_options.samples(samples),), mask=mask, generator=generator)
    rankings = free.permutation()
    posterior = model.rsample_given(rankings, mask=mask, generator=generator)
    tied = relaxed(posterior, tau, _checks.mask(mask, posterior), relax)
    if not isinstance(strength, Tensor):
        strength = _options.control(strength)
    control, conditional = strength * _costs(cost, free), strength * _costs(cost, tied)
    hard = _hard_costs(cost, rankings, logits)
    log_prob = model.log_prob(rankings, mask=mask)
    steadied = score_function_loss(log_prob, hard - conditional, baseline=baseline)
    return steadied + control.mean(0)


def _costs(cost: Cost, P: RelaxedPermutation) -> Tensor:
    return _checks.costs(cost(P), P.shape[:-2])


def _hard_costs(cost: Cost, rankings: Tensor, logits: Tensor) -> Tensor:
    return _costs(cost, HardPermutation(rankings, logits.shape[-1], logits.dtype))
