r"""Thresholds: how much of each item the k largest hold, without an order among them.

Every item is let through by a distribution function F of its distance from a threshold t,

$$w_j = F\Big(\frac{s_j - t}{\tau}\Big), \qquad \sum_j w_j = k,$$

so that weights are between 0 and 1 and, where t solves the equation, sum to k. The sum falls as t
rises, and between two neighbouring scores (or kinks of F) t has a closed form. Running sums over
the sorted list say which two; the closed form needs no more than that, and is exact in float32 too,
since distances are taken from these neighbours and never from t.
"""

import math
from collections.abc import Callable
from typing import Any, final

import torch
from torch import Tensor
from torch.nn.functional import pad

from ..._blur import logistic
from .. import _checks
from ..arrays import longest, working
from ..gradients import is_traced_for_second_derivatives
from ..softness import temperature
from ..tracing import count_up_to
from .ordering import Ordered

# Distances beyond this many temperatures are as good as this one: exp(-1e4) is 0 in float64.
FAR = 1e4
# Stands for a sum over no items: small, but with room for its logarithm's gradient in float32.
NONE = 1e-30

Weigh = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
"""Items `(..., n)`, temperatures `(..., 1)`, who counts, and k `(..., 1)` to weights `(..., n)`."""


@final
class Threshold:
    """Lists and a rule for the threshold: what `soft_topk_mask` asks for memberships."""

    def __init__(
        self, weigh: Weigh, scores: Tensor, tau: float | Tensor, mask: Tensor | None
    ) -> None:
        self._weigh, self._scores, self._tau, self._mask = weigh, scores, tau, mask

    def memberships(self, k: int | Tensor) -> Tensor:
        """How much of each item the k largest hold, `(..., n)`, between 0 and 1.

        Args:
            k: How many: a number, or an integer tensor that broadcasts to the batch `(...)`.
        """
        k = _checks.k_per_list(k, self._scores.shape, self._scores.device)
        return memberships(self._weigh, self._scores, self._tau, self._mask, k)


def sparse_threshold(
    scores: Tensor, *, tau: _checks.Tau = 1.0, mask: Tensor | None = None
) -> Threshold:
    r"""Top-k memberships that are exactly 0 or 1 for all but a few items.

    $$w = \operatorname*{arg\,min}_{w \in [0, 1]^n,\ \sum_j w_j = k}
      \tfrac12 \big\| w - s / \tau \big\|^2
      \quad\Longleftrightarrow\quad w_j = \min\big(\max\big((s_j - t)/\tau,\, 0\big),\, 1\big)$$

    For `soft_topk_mask(x, k, relax=sparse_threshold)`. As `tau` tends to 0 the memberships become
    the 0/1 mask of `torch.topk`, and reach it as soon as `tau` is below the gap between the k-th
    and the next score. Items further than `tau` from the threshold have no gradient.

    Args:
        scores: `(..., n)`. Leading dimensions are batch.
        tau: Temperature: a number, a `Blur`, or one per list, `(..., 1)`: over so wide a range
            of scores the memberships rise from 0 to 1.
        mask: `(..., n)` boolean, True where the item exists. Absent items have weight 0.

    Returns:
        What has `memberships(k)`, `(..., n)`: between 0 and 1, of sum k.

    Raises:
        TypeError: If `scores` is not floating point, or `mask` not boolean.
        ValueError: If `tau` is negative or a shape does not fit.

    Example:
        >>> sparse_threshold(torch.tensor([1.0, 3.0, 2.0, 2.5])).memberships(2)
        tensor([0.0000, 1.0000, 0.2500, 0.7500])

    Reference: Sander et al. (2023), with p = 2. Time: O(n log n); memory: O(n).
    """
    return _threshold("sparse_threshold", uniform, scores, tau, mask)


def midpoint_threshold(
    scores: Tensor, *, tau: _checks.Tau = 1.0, mask: Tensor | None = None
) -> Threshold:
    r"""Top-k memberships by a sigmoid around the middle between the k-th and the next score.

    $$w_j = \sigma\Big(\frac{s_j - t}{\tau}\Big), \qquad t = \frac{s_{[k]} + s_{[k+1]}}{2}$$

    For `soft_topk_mask(x, k, relax=midpoint_threshold)`. Nothing is solved for, so that the
    memberships **sum to k only roughly**; the k largest are those above one half. As `tau` tends to
    0 they become the 0/1 mask of `torch.topk`.

    Args:
        scores: `(..., n)`. Leading dimensions are batch.
        tau: Temperature: a number, a `Blur`, or one per list, `(..., 1)`.
        mask: `(..., n)` boolean, True where the item exists. Absent items have weight 0.

    Returns:
        What has `memberships(k)`, `(..., n)`: between 0 and 1.

    Raises:
        TypeError: If `scores` is not floating point, or `mask` not boolean.
        ValueError: If `tau` is negative or a shape does not fit.

    Example:
        >>> midpoint_threshold(torch.tensor([1.0, 4.0, 2.0, 3.0])).memberships(2)
        tensor([0.1824, 0.8176, 0.3775, 0.6225])

    Reference: Zhu et al. (2025). Time: O(n log n), that of a sort; memory: O(n).
    """
    return _threshold("midpoint_threshold", midpoint, scores, tau, mask)


def uniform_blur(ranks: float) -> float:
    """The width of the uniform curve whose standard deviation is that of the logistic one."""
    return 2 * math.pi * logistic(ranks)


def _threshold(
    name: str, weigh: Weigh, scores: Tensor, tau: _checks.Tau, mask: Tensor | None
) -> Threshold:
    scores = _checks.scores(f"{name}(scores)", scores)
    mask = _checks.mask(mask, scores)
    of_blur = uniform_blur if weigh is uniform else logistic
    tau = temperature(tau, scores, mask, of_blur=of_blur)
    return Threshold(weigh, scores, tau, mask)


# -- what may stand in a list ----------------------------------------------------------------------


def chosen(scores: Tensor, mask: Tensor | None, k: Tensor) -> Tensor:
    """The 0/1 mask of the k largest `(..., n)`, ties going to the smallest index."""
    ordered = Ordered(scores, 1.0, mask)
    hard = (ordered.rank() < k.unsqueeze(-1)).to(working(scores.dtype))
    if mask is not None:
        hard = hard.masked_fill(~mask, 0.0)
    return hard + ordered.poison().to(hard.dtype)


def memberships(
    weigh: Weigh, scores: Tensor, tau: float | Tensor, mask: Tensor | None, k: Tensor
) -> Tensor:
    """Weights of finite items by `weigh`; the others share what is certain or left over."""
    frozen = tau.detach() == 0 if isinstance(tau, Tensor) else tau == 0
    if frozen is True or not scores.shape[-1]:
        return chosen(scores.detach(), mask, k).to(scores.dtype)
    x = scores.to(working(scores.dtype))
    tau = tau.to(x.dtype) if isinstance(tau, Tensor) else x.new_full((), tau)
    tau = torch.where(frozen, 1.0, tau) if isinstance(frozen, Tensor) else tau
    tau, k = tau.expand(*x.shape[:-1], 1), k.unsqueeze(-1)
    there = torch.ones_like(x, dtype=torch.bool) if mask is None else mask
    fixed = x.detach()
    if _checks.readable(fixed) and bool(fixed.isfinite().all()):  # as good as always
        weights = _of_finite(weigh, x, tau, there, k)
    else:
        weights = _beside_infinite(weigh, x, tau, there, k)
    if isinstance(frozen, Tensor):
        weights = torch.where(frozen, chosen(fixed, mask, k.squeeze(-1)), weights)
        # Whatever k is, and whether or not the rule looks at it.
        weights = weights.masked_fill(tau.detach().isnan(), torch.nan)
    return weights.to(scores.dtype)


def _of_finite(weigh: Weigh, x: Tensor, tau: Tensor, there: Tensor, k: Tensor) -> Tensor:
    """Weights of the items that are there, all of them finite; 0 for the others."""
    count = there.sum(-1, keepdim=True)
    open_ = (k > 0) & (k < count)  # what else is none or all of them
    weights = weigh(x, tau, there, torch.where(open_, k, 1).to(x.dtype))
    return torch.where(open_ & there, weights, ((k > 0) & there).to(x.dtype))


def _beside_infinite(weigh: Weigh, x: Tensor, tau: Tensor, there: Tensor, k: Tensor) -> Tensor:
    """Infinite items are certain, or share what is left; a NaN spoils its list."""
    fixed = x.detach()
    highest, lowest = there & (fixed == torch.inf), there & (fixed == -torch.inf)
    finite = there & fixed.isfinite()
    high, low, some = (which.sum(-1, keepdim=True) for which in (highest, lowest, finite))
    left = torch.minimum((k - high).clamp(min=0), some)
    weights = _of_finite(weigh, torch.where(finite, x, 0.0), tau, finite, left)
    share = torch.minimum(k, high) / high.clamp(min=1)
    rest = torch.minimum((k - high - some).clamp(min=0), low) / low.clamp(min=1)
    weights = torch.where(highest, share.to(x.dtype), weights)
    weights = torch.where(lowest, rest.to(x.dtype), weights)
    return weights.masked_fill((there & fixed.isnan()).any(-1, keepdim=True), torch.nan)


# -- rules for finite items ------------------------------------------------------------------------


class _Solved(torch.autograd.Function):
    """Weights from a solver without gradient, and the gradient that solving the equation implies.

    `apply(x, tau, there, k, solve, density)`, with the density of F as a function of F's value.
    Weights and density are functions of (x - t) / tau, and the sum stays k: the gradient to x is
    centred by the densities. A change of tau is one of the distances, since only their quotient
    counts.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(
        x: Tensor, tau: Tensor, there: Tensor, k: Tensor, solve: Any, density: Any
    ) -> Tensor:
        return solve(x, tau, there, k)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple, output: Tensor) -> None:
        x, tau, there, _, _, ctx.density = inputs
        ctx.save_for_backward(x, tau, there, output)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple:  # pyright: ignore
        x, tau, there, weights = ctx.saved_tensors
        density = ctx.density(weights)
        total = density.sum(-1, keepdim=True).clamp(min=NONE)
        centred = grad - (density * grad).sum(-1, keepdim=True) / total
        to_x = density * centred / tau
        to_tau = None
        if ctx.needs_input_grad[1]:
            # From the weighted mean, and for no item that has no density: sums stay small.
            near = torch.where(density > 0, x, 0.0)
            near = near - ((density * near).sum(-1, keepdim=True) / total).detach()
            to_tau = -(to_x * near / tau).sum(-1, keepdim=True)
        return to_x, to_tau, None, None, None, None


def laplace(x: Tensor, tau: Tensor, there: Tensor, k: Tensor) -> Tensor:
    """F of the Laplace distribution, and the threshold for which weights sum to k."""
    if is_traced_for_second_derivatives():
        return _moved_laplace(x, tau, _solve_laplace(x.detach(), tau.detach(), there, k))
    return _Solved.apply(x, tau, there, k, _solve_laplace, _laplace_density)  # pyright: ignore


def _laplace_density(weights: Tensor) -> Tensor:
    return torch.minimum(weights, 1 - weights)


def _moved_laplace(x: Tensor, tau: Tensor, weights: Tensor) -> Tensor:
    """Solved weights as a function of x and tau, of which every derivative is right.

    The tail of an item, `min(w, 1 - w)`, is an exponential of its distance from the threshold. If
    distances above it grow by d, tails change by `exp(-d)`, below it by `exp(d)`; and if the
    threshold moves by `log E`, those above by E and those below by 1 / E. That the sum stays as it
    is, `A E - B / E = constant` with the tails A above and B below, has one positive solution.
    """
    tail = _laplace_density(weights)
    total = tail.sum(-1, keepdim=True)
    far = total <= NONE  # no item is near enough to change
    near = torch.where(tail > 0, x, 0.0)
    near = near - ((tail * near).sum(-1, keepdim=True) / total.clamp(min=NONE)).detach()
    further = near / tau
    further = further - further.detach()
    above = weights > 0.5
    tail = tail * torch.where(above, -further, further).exp()
    share = tail / total.clamp(min=NONE)
    ahead = (share * above).sum(-1, keepdim=True)
    behind = (share * ~above).sum(-1, keepdim=True)
    constant = (ahead - behind).detach()
    root = torch.where(far, 1.0, constant.square() + 4 * ahead * behind).sqrt()
    # Of two forms of the solution, the one that divides by the larger side.
    heavy = constant > 0
    upper = torch.where(heavy, constant + root, 2 * behind)
    lower = torch.where(heavy, 2 * ahead, root - constant)
    moved = torch.where(far, 1.0, upper) / torch.where(far, 1.0, lower)
    return torch.where(above, 1 - tail * moved, tail / moved)


def _solve_laplace(x: Tensor, tau: Tensor, there: Tensor, k: Tensor) -> Tensor:
    """Between neighbours the sum is a quadratic function of exp(t / tau)."""
    points = x.masked_fill(~there, -torch.inf)
    ordered = points.sort(-1, descending=True).values
    kth = ordered.gather(-1, k.long() - 1)
    # In temperatures from the k-th score, which the threshold is near unless nothing mixes.
    y, ordered = (points - kth) / tau, (ordered - kth) / tau
    upper, lower, count = _around(ordered, _laplace_mass(ordered, k) < k)
    above = y >= upper
    outside = torch.where(above, y - upper, lower - y)
    weight = torch.exp(-outside.clamp(max=FAR)).masked_fill(~there, 0.0)
    ahead = (weight * above).sum(-1, keepdim=True).clamp(min=NONE).log()
    behind = (weight * ~above).sum(-1, keepdim=True).clamp(min=NONE).log()
    gap = (upper - lower).clamp(max=FAR)
    both = (ahead + behind - gap) / 2
    excess = count - k
    # A whole number, and a mean of sums over at most n items: no square overflows.
    root = (excess.abs() + (excess.square() + (2 * both).exp()).sqrt()).log()
    root = torch.where(excess == 0, both, root)
    after = torch.where(excess < 0, gap - behind + root, ahead - root)  # from upper down to t
    before = torch.where(excess < 0, behind - root, gap - ahead + root)  # from t down to lower
    tail = weight * (torch.exp(-torch.where(above, after, before)) / 2)
    return torch.where(above, 1 - tail, tail)


def _laplace_mass(y: Tensor, k: Tensor) -> Tensor:
    """The sum of all weights were the threshold at each item, `(..., n)` in descending order.

    Sums over items above and below one are running sums of exponentials. No threshold is further
    than log n from the k-th item or the next: what lies so far out that it adds nothing there is
    drawn in, and so is a wide gap between the two, so that exponentials stay numbers.
    """
    n = y.shape[-1]
    y = y.to(longest(y.device))
    reach = y.new_full((), n).log() + 16  # a tensor, so that one graph serves every n
    next_ = y.gather(-1, k.long().clamp(max=n - 1))
    y = torch.where(y < 0, y - (next_ + 32).clamp(max=0), y)
    y = torch.maximum(y, next_.clamp(min=-32) - reach).clamp(max=reach)
    weight, inverse = y.exp(), (-y).exp()
    behind = weight.flip(-1).cumsum(-1).flip(-1) - weight
    place = torch.arange(1, n + 1, device=y.device)
    return place + (behind * inverse - inverse.cumsum(-1) * weight) / 2


def uniform(x: Tensor, tau: Tensor, there: Tensor, k: Tensor) -> Tensor:
    """F of the uniform distribution, and the threshold for which weights sum to k."""
    return _Solved.apply(x, tau, there, k, _solve_uniform, _uniform_density)  # pyright: ignore


def _uniform_density(weights: Tensor) -> Tensor:
    return ((weights > 0) & (weights < 1)).to(weights.dtype)


def _solve_uniform(x: Tensor, tau: Tensor, there: Tensor, k: Tensor) -> Tensor:
    """Between neighbouring kinks the sum is a linear function of t."""
    points = x.masked_fill(~there, -torch.inf)
    kth = points.sort(-1, descending=True).values.gather(-1, k.long() - 1)
    # In temperatures from the k-th score, the threshold lies between -1 and 0.
    y = ((points - kth) / tau).clamp(-2.0, 2.0)

    kinks = torch.cat([y, y - 1], -1).sort(-1, descending=True).values
    upper, _, _ = _around(kinks, _uniform_mass(y, kinks) < k)
    full = y - 1 >= upper
    rising = (y >= upper) & ~full
    total = (y * rising).sum(-1, keepdim=True)
    count = rising.sum(-1, keepdim=True).clamp(min=1)
    t = (total + (full.sum(-1, keepdim=True) - k)) / count
    return torch.where(full, 1.0, torch.where(rising, (y - t).clamp(0.0, 1.0), 0.0))


def _uniform_mass(y: Tensor, at: Tensor) -> Tensor:
    """The sum of all weights for thresholds `(..., m)`: what exceeds each, less what exceeds 1."""
    y, at = (v.to(longest(v.device)) for v in (y, at))
    y = y.sort(-1).values
    total = pad(y.flip(-1).cumsum(-1).flip(-1), (0, 1))

    def beyond(t: Tensor) -> Tensor:
        place = count_up_to(y, t)
        return total.gather(-1, place) - (y.shape[-1] - place) * t

    return beyond(at) - beyond(at + 1)


def midpoint(x: Tensor, tau: Tensor, there: Tensor, k: Tensor) -> Tensor:
    """F of the logistic distribution, and a threshold in the middle: nothing is solved."""
    fixed = x.detach()
    points = fixed.masked_fill(~there, -torch.inf).sort(-1, descending=True).values
    last = points.shape[-1] - 1

    def score(place: Tensor) -> Tensor:
        """The score at a place, tied items having the same part in it."""
        value = points.gather(-1, place.clamp(max=last))
        tied = (there & (fixed == value)).to(x.dtype)
        shared = (x * tied).sum(-1, keepdim=True) / tied.sum(-1, keepdim=True).clamp(min=1)
        return value.where(value.isfinite(), 0.0) + (shared - shared.detach())

    place = k.long()
    apart = (x - score(place - 1)) / 2 + (x - score(place)) / 2
    far = FAR * tau.detach()  # clamped first: 1 / tau must meet no infinity
    return torch.sigmoid(apart.clamp(-far, far) / tau)


def _around(points: Tensor, before: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The points `(..., 1)` on both sides of a threshold, and how many stand before it.

    Where there is none on a side, it is infinite.
    """
    count = before.sum(-1, keepdim=True)
    edges = pad(pad(points, (1, 0), value=torch.inf), (0, 1), value=-torch.inf)
    return edges.gather(-1, count), edges.gather(-1, count + 1), count.to(points.dtype)
