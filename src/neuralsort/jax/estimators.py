r"""Gradients of an expected cost over rankings, $L(l) = E_{z \sim PL(l)}[f(P_z)]$.

One shape of function: `(cost, logits, *, ...)` to an estimate of L per list, whose gradient with
respect to the logits is an estimate of L's. `cost` takes permutations P `(samples, ..., n, n)` and
returns one cost per sample and list, `(samples, ...)`.

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

import jax
import jax.numpy as jnp
from jax import Array

from .. import _options
from . import _checks
from .distributions import PlackettLuce, RelaxedPlackettLuce
from .gradients import score_function_loss
from .operators import Relaxation, relaxed
from .permutation import HardPermutation, RelaxedPermutation
from .perturbations import perturbed as perturbed
from .rankings import absent_last, largest, lists_distinct_items
from .relaxations import neuralsort

__all__ = [
    "exact_expectation",
    "perturbed",
    "rebar_expectation",
    "relaxed_expectation",
    "score_function_expectation",
    "straight_through_expectation",
]

Cost = Callable[[RelaxedPermutation], Array]


def exact_expectation(cost: Cost, logits: Array, *, mask: Array | None = None) -> Array:
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
        >>> place = jnp.array([1.0, 2.0, 3.0])
        >>> logits = jnp.array([0.0, 2.0, 1.0])
        >>> winner = exact_expectation(lambda P: P.sort(place)[..., 0], logits)  # from 1
        >>> winner.round(4)
        Array(2.1547, dtype=float32)

    Time and memory: O(n n!) per list, and those of the cost.
    """
    model = PlackettLuce(logits)
    rankings = model.enumerate_support()
    counts = jnp.ones(rankings.shape[:-1], bool)
    if mask is not None:  # every ranking of those present comes several times: one of them counts
        present = jnp.asarray(_checks.mask(mask, rankings.shape))
        counts = (rankings == absent_last(rankings, present)).all(-1)
        counts = counts & lists_distinct_items(rankings, present)
        some = jnp.argsort(~present, axis=-1, stable=True)
        rankings = jnp.where(counts[..., None], rankings, some)
    probability = jnp.where(counts, jnp.exp(model.log_prob(rankings, mask=mask)), 0.0)
    return (probability * _hard_costs(cost, rankings, logits)).sum(0)


def relaxed_expectation(
    cost: Cost,
    logits: Array,
    *,
    tau: _checks.Tau,
    samples: int,
    key: Array,
    mask: Array | None = None,
    relax: Relaxation = neuralsort,
) -> Array:
    r"""The mean cost of relaxed samples, with its pathwise gradient.

    $$\frac1S \sum_s f\big(\widehat P_{\text{sort}(l + g_s)}\big)$$

    Unbiased for the relaxed objective, which tends to L as `tau` tends to 0, while the variance of
    the gradient grows.

    Args:
        cost: From relaxed permutations `(samples, ..., n, n)` to costs `(samples, ...)`.
        logits: `(..., n)`. Logits of Plackett-Luce.
        tau: Temperature of the relaxation.
        samples: How many to draw for each list.
        key: Source of randomness.
        mask: `(..., n)` boolean, True where the item exists. Absent items are in the last places,
            and the cost must make nothing of them.
        relax: The relaxation: `neuralsort`, `softsort`, or a `functools.partial` of one.

    Returns:
        `(...)`. One mean per list.

    Raises:
        ValueError: If `samples` is not positive, or costs have the wrong shape.

    Example:
        >>> logits, key = jnp.array([0.0, 2.0, 1.0]), jax.random.key(0)
        >>> first = lambda P: P.sort(jnp.array([1.0, 2.0, 3.0]))[..., 0]
        >>> loss = lambda l: relaxed_expectation(first, l, tau=0.5, samples=100, key=key)
        >>> jax.grad(loss)(logits).shape
        (3,)

    Reference: Grover et al. (2019), Section 4.1.
    """
    _checks.static(samples=samples)
    model = RelaxedPlackettLuce(tau, logits, relax=relax)
    P = model.rsample(key, (_options.samples(samples),), mask=mask)
    return _costs(cost, P).mean(0)


def straight_through_expectation(
    cost: Cost,
    logits: Array,
    *,
    tau: _checks.Tau,
    samples: int,
    key: Array,
    mask: Array | None = None,
    relax: Relaxation = neuralsort,
) -> Array:
    r"""The mean cost of exact samples, with the gradient of the relaxed permutation.

    $$\frac1S \sum_s f(P_s), \qquad \partial P_s := \partial \widehat P_{\text{sort}(l + g_s)}$$

    The value is unbiased for L; the gradient is not. The cost only ever sees permutations.

    Args:
        cost: From permutations `(samples, ..., n, n)` to costs `(samples, ...)`.
        logits: `(..., n)`. Logits of Plackett-Luce.
        tau: Temperature of the relaxation behind the gradient.
        samples: How many to draw for each list.
        key: Source of randomness.
        mask: `(..., n)` boolean, True where the item exists. Absent items are in the last places,
            and the cost must make nothing of them.
        relax: The relaxation: `neuralsort`, `softsort`, or a `functools.partial` of one.

    Returns:
        `(...)`. One mean per list.

    Raises:
        ValueError: If `samples` is not positive, or costs have the wrong shape.

    Example:
        >>> logits, key = jnp.array([0.0, 2.0, 1.0]), jax.random.key(0)
        >>> first = lambda P: P.sort(jnp.array([1.0, 2.0, 3.0]))[..., 0]
        >>> loss = lambda l: straight_through_expectation(first, l, tau=0.5, samples=100, key=key)
        >>> jax.grad(loss)(logits).shape
        (3,)

    Reference: Bengio et al. (2013).
    """

    def hardened(P: RelaxedPermutation) -> Array:
        return cost(P.straight_through())

    return relaxed_expectation(
        hardened, logits, tau=tau, samples=samples, key=key, mask=mask, relax=relax
    )


def score_function_expectation(
    cost: Cost,
    logits: Array,
    *,
    samples: int,
    key: Array,
    baseline: str | None = "leave_one_out",
    mask: Array | None = None,
) -> Array:
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
        key: Source of randomness.

    Returns:
        `(...)`. One mean per list.

    Raises:
        ValueError: If samples are too few, the baseline is not known, or costs have the wrong
            shape.

    Example:
        >>> logits, key = jnp.array([0.0, 2.0, 1.0]), jax.random.key(0)
        >>> first = lambda P: P.sort(jnp.array([1.0, 2.0, 3.0]))[..., 0]
        >>> loss = lambda l: score_function_expectation(first, l, samples=100, key=key)
        >>> jax.grad(loss)(logits).shape
        (3,)

    Reference: Williams (1992); Kool et al. (2019).
    """
    _checks.static(samples=samples)
    model = PlackettLuce(logits)
    rankings = model.sample(key, (_options.samples(samples),), mask=mask)
    costs = _hard_costs(cost, rankings, logits)
    return score_function_loss(model.log_prob(rankings, mask=mask), costs, baseline=baseline)


def rebar_expectation(
    cost: Cost,
    logits: Array,
    *,
    tau: _checks.Tau,
    samples: int,
    strength: float = 1.0,
    key: Array,
    baseline: str | None = "leave_one_out",
    mask: Array | None = None,
    relax: Relaxation = neuralsort,
) -> Array:
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
        key: Source of randomness.
        mask: `(..., n)` boolean, True where the item exists. Absent items are in the last places,
            and the cost must make nothing of them.
        relax: The relaxation: `neuralsort`, `softsort`, or a `functools.partial` of one.

    Returns:
        `(...)`. One mean per list: of the costs of exact samples, corrected by the difference of
        the two relaxed ones, whose mean is 0.

    Raises:
        ValueError: If `samples` is not positive, or costs have the wrong shape.

    Example:
        >>> logits, key = jnp.array([0.0, 2.0, 1.0]), jax.random.key(0)
        >>> first = lambda P: P.sort(jnp.array([1.0, 2.0, 3.0]))[..., 0]
        >>> loss = lambda l: rebar_expectation(first, l, tau=0.5, samples=100, key=key)
        >>> jax.grad(loss)(logits).shape
        (3,)

    Reference: Tucker et al. (2017).
    """
    _checks.static(samples=samples)
    logits = _checks.scores("rebar_expectation(logits)", logits)
    present = _checks.mask(mask, logits.shape)
    model = PlackettLuce(logits - largest(logits, present))  # noise must not drown in an offset
    model_of_relaxed = RelaxedPlackettLuce(tau, logits, relax=relax)
    first, second = jax.random.split(_checks.key(key))
    free = model_of_relaxed.rsample(first, (_options.samples(samples),), mask=mask)
    rankings = free.permutation()
    posterior = model.rsample_given(second, rankings, mask=mask).astype(model.logits.dtype)
    tied = relaxed(posterior, tau, _checks.mask(mask, posterior.shape), relax)
    if not isinstance(strength, Array):
        strength = _options.control(strength)
    control, conditional = strength * _costs(cost, free), strength * _costs(cost, tied)
    hard = _hard_costs(cost, rankings, logits)
    log_prob = model.log_prob(rankings, mask=mask)
    steadied = score_function_loss(log_prob, hard - conditional, baseline=baseline)
    return steadied + control.mean(0)


def _costs(cost: Cost, P: RelaxedPermutation) -> Array:
    return _checks.costs(cost(P), P.shape[:-2])


def _hard_costs(cost: Cost, rankings: Array, logits: Array) -> Array:
    return _costs(cost, HardPermutation(rankings, logits.shape[-1], logits.dtype))
