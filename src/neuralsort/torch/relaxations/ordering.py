"""Scores in sorted order: what every relaxation of a sort starts from."""

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from ..arrays import inferring, longest
from ..gradients import is_traced_for_second_derivatives, straight_through
from ..tracing import running_max, running_min, stable_sort

# A gap of this many temperatures carries no weight: exp(-800) is 0 in float64.
WALL = 800.0


class Ordered:
    """Lists in descending order, with the gaps between neighbours; sorted when first asked.

    The gaps carry the values, exact in float64 whatever the offset of the scores; `scaled` and
    `unit` carry the gradient. Items that must not mix (absent ones, infinite ones, lists with a
    temperature of 0) stand behind gaps of `WALL`. A list that holds a NaN has a NaN for a gap.
    Ties keep the order of their indices; absent items come last.

    Args:
        scores: `(..., n)`.
        tau: Temperature, a positive number or a tensor with one per list; lists whose temperature
            in the tensor is 0 have a wall in every gap.
        power: Gaps are measured in units of `tau ** (1 / power)`.
        mask: `(..., n)`, True where the item exists.
    """

    def __init__(
        self, scores: Tensor, tau: float | Tensor, mask: Tensor | None, power: float = 1.0
    ) -> None:
        self.exact = longest(scores.device)
        self.power = power
        self.hard: Tensor | None = None
        if isinstance(tau, Tensor):  # a copy: it may be annealed in place
            tau = tau.to(self.exact, copy=True)
        self.given = scores, tau, mask
        if isinstance(tau, Tensor):
            self.hard = tau.detach() == 0
            tau = torch.where(self.hard, 1.0, tau)
        if mask is not None:
            scores = scores.masked_fill(~mask, -torch.inf)
        self.scores = scores
        self.tau = tau
        self.mask = mask
        self._sorted: dict[bool, tuple[Tensor, Tensor, Tensor]] = {}  # apart by inference mode
        self._made = self._version()

    @property
    def n(self) -> int:
        """Length of the lists."""
        return self.scores.shape[-1]

    @property
    def batch(self) -> torch.Size:
        """Shape of the batch of lists."""
        return self.scores.shape[:-1]

    @property
    def tempered(self) -> bool:
        """Whether the temperature is a tensor, which may require gradients."""
        return isinstance(self.tau, Tensor)

    def _version(self) -> int:
        """How often the scores and the mask were changed in place, where that is counted."""
        if torch.compiler.is_compiling():
            return 0
        scores, _, mask = self.given
        given = (scores,) if mask is None else (scores, mask)
        return sum(0 if x.is_inference() else x._version for x in given)

    def check_unchanged(self) -> None:
        """Refuses scores, or a mask, that were changed in place since P was made."""
        if self._version() != self._made:
            raise RuntimeError(
                "the scores of this relaxed permutation, or its mask, were changed in place after "
                "it was made, so that its order and its values would disagree. Make it again, or "
                "give it a copy: `neuralsort(scores.clone())`."
            )

    @property
    def differentiable(self) -> bool:
        """Whether what is computed now has a gradient, and must not come from a time without."""
        tau = self.tau
        needed = self.scores.requires_grad or (isinstance(tau, Tensor) and tau.requires_grad)
        return needed and torch.is_grad_enabled()

    @property
    def mode(self) -> tuple[bool, bool]:
        """What is computed now may be kept for later, but only for times of the same mode."""
        return self.differentiable, inferring()

    @property
    def values(self) -> Tensor:
        """Sorted scores, `(..., n)`."""
        values, perm, _ = self._sort()
        if self.differentiable and not values.requires_grad:  # sorted when gradients were off
            values = self.scores.gather(-1, perm)
            return torch.where(values.isinf(), values.detach(), values)
        return values

    @property
    def perm(self) -> Tensor:
        """The item at each position, `(..., n)` int64."""
        return self._sort()[1]

    @property
    def open_gaps(self) -> Tensor:
        """The gap after each position, infinite where nothing passes: `(..., n)`."""
        return self._sort()[2]

    @property
    def gaps(self) -> Tensor:
        """The gap after each position in units, at most `WALL`; the last is `WALL`."""
        return self.open_gaps.clamp(max=WALL)

    def scale(self) -> float | Tensor:
        """The unit of the gaps, without gradient: a number, or one per list."""
        tau = self.tau.detach() if isinstance(self.tau, Tensor) else self.tau
        return tau if self.power == 1 else tau ** (1 / self.power)

    def _sort(self) -> tuple[Tensor, Tensor, Tensor]:
        self.check_unchanged()
        inference = inferring()
        if inference not in self._sorted:
            self._sorted[inference] = self._sort_now()
        return self._sorted[inference]

    def _sort_now(self) -> tuple[Tensor, Tensor, Tensor]:
        compiling = torch.compiler.is_compiling()
        scores = self.scores.detach() if compiling else self.scores
        values, perm = stable_sort(scores, descending=True)
        if values.requires_grad:  # infinite scores stay where they are, whatever the gradient
            values = torch.where(values.isinf(), values.detach(), values)
        absent = None
        if self.mask is not None:  # after the items at -inf
            absent, last = stable_sort(~self.mask.gather(-1, perm))
            values, perm = values.gather(-1, last), perm.gather(-1, last)
        if compiling:
            values = _in_order(self.scores, perm)
            values = torch.where(values.isinf(), values.detach(), values)
        fixed = values.detach().to(self.exact)
        above, below = fixed[..., :-1], fixed[..., 1:]
        gaps = torch.where(above == below, 0.0, above - below)  # equal infinities are a tie
        gaps = gaps / self.scale()
        if self.hard is not None:
            gaps = gaps.masked_fill(self.hard & ~gaps.isnan(), torch.inf)
        if absent is not None:
            gaps = gaps.masked_fill(absent[..., 1:], torch.inf)
        if self.n:
            gaps = pad(gaps, (0, 1), value=torch.inf)
        if isinstance(self.tau, Tensor):  # a temperature that is none spoils its whole list
            gaps = torch.where(self.tau.detach().isnan(), torch.nan, gaps)
        return values, perm, gaps

    def expand(self, batch: torch.Size) -> "Ordered":
        """The same lists for a larger batch."""
        if batch == self.batch:
            return self
        larger = Ordered(self.scores.expand(*batch, self.n), self.tau, None, self.power)
        expanded = tuple(x.expand(*batch, self.n) for x in self._sort())
        larger._sorted[inferring()] = expanded  # pyright: ignore
        return larger

    def rank(self) -> Tensor:
        """The position of each item, `(..., n)`."""
        return inverse(self.perm)

    def scaled(self) -> Tensor:
        """Sorted scores in units, `(..., n)`: only for their gradient to the scores."""
        return self.values.to(self.exact) / self.scale()

    def linked(self) -> Tensor:
        """The same, where what a change of the scores is worth changes with the temperature.

        For functions of `(linked, unit)` that stand for a function of the scores over the scale:
        they need it in their second derivatives.
        """
        if not isinstance(self.tau, Tensor) or torch.compiler.is_compiling():
            return self.scaled()
        scale = self.tau ** (1 / self.power)
        return _Linked.apply(self.values.to(self.exact), scale)  # pyright: ignore

    def unit(self) -> Tensor | None:
        """Logarithm of the unit, `(..., 1)`: only for its gradient to a tensor `tau`."""
        if not isinstance(self.tau, Tensor):
            return None
        return (self.tau.log() / self.power).expand(*self.batch, 1)

    def shrink(self, x: Tensor, power: float = 1.0) -> Tensor:
        """Returns `x`, with the gradient to `tau` of what shrinks with the unit to this power."""
        unit = self.unit()
        if unit is None:
            return x
        while unit.dim() < x.dim():
            unit = unit.unsqueeze(-1)
        return x * (power * (unit.detach() - unit)).exp()

    def distance(self) -> Tensor:
        """Distance of each position below the first, in units, without gradient: `(..., n)`."""
        return pad(self.gaps[..., :-1].cumsum(-1), (1, 0))[..., : self.n]

    def room(self) -> Tensor:
        """How many gaps that nothing passes come before each position, `(..., n)`."""
        return pad(self.open_gaps.isinf()[..., :-1].cumsum(-1), (1, 0))[..., : self.n]

    def poison(self) -> Tensor:
        """NaN for lists that hold a NaN, else 0: `(..., 1)`."""
        return torch.where(self.open_gaps.isnan().any(-1, keepdim=True), torch.nan, 0.0)


def _in_order(scores: Tensor, perm: Tensor) -> Tensor:
    """`scores.gather(-1, perm)` for compiled graphs."""
    if not is_traced_for_second_derivatives():
        return _InOrder.apply(scores, perm, inverse(perm))  # pyright: ignore
    finite = torch.where(scores.isfinite(), scores, 0.0).unsqueeze(-1)
    moved = torch.nn.functional.one_hot(perm, scores.shape[-1]).to(finite.dtype) @ finite
    return straight_through(scores.detach().gather(-1, perm), moved.squeeze(-1))


class _InOrder(torch.autograd.Function):
    """Scores in an order, `apply(scores, perm, rank)`.

    The gradient of a sort is a scatter into zeros. When it is added to another gradient of the same
    scores, as in `P.sort(scores)`, the CPU code that torch's inductor makes (2.13) may read the
    zeros before anything is scattered into them. A gather by rank is the same gradient.
    """

    generate_vmap_rule = True

    @staticmethod
    def forward(scores: Tensor, perm: Tensor, rank: Tensor) -> Tensor:
        return scores.gather(-1, perm)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple, output: Tensor) -> None:
        ctx.save_for_backward(inputs[2])

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:  # pyright: ignore
        (rank,) = ctx.saved_tensors
        return grad.gather(-1, rank), None, None


class _Linked(torch.autograd.Function):
    """Values over a scale that gets no gradient, but changes the one to the values."""

    generate_vmap_rule = True

    @staticmethod
    def forward(values: Tensor, scale: Tensor) -> Tensor:
        return values / scale

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple, output: Tensor) -> None:
        ctx.save_for_backward(inputs[1])
        ctx.save_for_forward(inputs[1])

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:  # pyright: ignore
        (scale,) = ctx.saved_tensors
        return grad / scale, None

    @staticmethod
    def jvp(ctx: Any, to_values: Tensor, _: Any) -> Tensor:  # pyright: ignore
        (scale,) = ctx.saved_tensors
        return to_values / scale


def inverse(perm: Tensor) -> Tensor:
    """The position of each item, `(..., n)`."""
    index = torch.arange(perm.shape[-1], device=perm.device).expand_as(perm)
    return torch.empty_like(perm).scatter(-1, perm, index)


def tie_groups(gaps: Tensor) -> tuple[Tensor, Tensor]:
    """First and last position of the run of equal scores around each position, (..., n)."""
    n = gaps.shape[-1]
    index = torch.arange(n, device=gaps.device).expand(gaps.shape)
    apart = gaps > 0
    starts = pad(apart[..., :-1], (1, 0), value=True)
    first = running_max(torch.where(starts, index, 0))
    last = running_min(torch.where(apart, index, n - 1).flip(-1)).flip(-1)
    return first, last


def share_ties(x: Tensor, ties: tuple[Tensor, Tensor]) -> Tensor:
    """The mean of x over the run of equal scores around each position, (..., n)."""
    first, last = ties
    until = pad(x.cumsum(-1), (1, 0))
    mean = (until.gather(-1, last + 1) - until.gather(-1, first)) / (last - first + 1)
    return torch.where(first == last, x, mean)
