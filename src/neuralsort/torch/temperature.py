"""A temperature with a state: learned by gradient, or annealed by a schedule."""

import math

import torch
from torch import Tensor

from .. import _options
from .gradients import straight_through


class Temperature(torch.nn.Module):
    r"""A positive temperature that is learned, annealed, or stays as it is.

    Called without arguments, it gives what `tau=` takes. A learned temperature is

    $$\tau = \tau_0\, e^{\operatorname{arsinh} \theta}, \qquad \theta = 0 \text{ at the start:}$$

    near the start a step of size d multiplies it by about $1 + d$, as a logarithm would. Far away
    it grows like $2\theta$ and falls like $1 / 2|\theta|$, so a step of any size leaves it finite
    and positive, and able to come back. An annealed one goes from its start to its `end` by equal
    factors, one for every `step()`, and stays there:

    $$\tau_t = \tau_0\, (\tau_{\text{end}} / \tau_0)^{\min(t / \text{steps},\, 1)}$$

    Its place in the schedule, the schedule itself and what was learned are part of `state_dict()`.

    Args:
        start: The temperature at the start, positive.
        learnable: Whether it is a parameter, for the optimiser of the model.
        end: Where annealing ends, positive; with `steps`.
        steps: How many calls of `step()` annealing takes.

    Raises:
        TypeError: If a number is none.
        ValueError: If a temperature is not positive, `end` comes without `steps` or the other way
            round, or the temperature is to be learned and annealed at once.

    Example:
        >>> annealed = Temperature(8.0, end=0.5, steps=4)
        >>> for _ in range(3):
        ...     print(annealed())
        ...     annealed.step()
        tensor(8.)
        tensor(4.)
        tensor(2.)
        >>> Temperature(0.5, learnable=True)()
        tensor(0.5000, grad_fn=<MulBackward0>)
    """

    theta: Tensor
    done: Tensor

    def __init__(
        self,
        start: float = 1.0,
        *,
        learnable: bool = False,
        end: float | None = None,
        steps: int | None = None,
    ) -> None:
        super().__init__()
        _options.annealing(learnable, end, steps)
        self.start = _options.positive_temperature("start", start)
        self.end = self.start if end is None else _options.positive_temperature("end", end)
        self.steps = 0 if steps is None else _options.annealing_steps(steps)
        self.learnable = learnable
        if learnable:
            self.theta = torch.nn.Parameter(torch.zeros(()))
        else:
            self.register_buffer("done", torch.zeros((), dtype=torch.int64))

    def forward(self) -> Tensor:
        """The temperature now: a 0-d tensor, in float32 or, for a module in float64, in float64."""
        if self.learnable:
            theta = self.theta if self.theta.dtype is torch.float64 else self.theta.float()
            # Only the value is bounded, for the last number before infinity: gradients lead back.
            bounded = straight_through(theta.detach().clamp(-1e15, 1e15), theta)
            return self.start * torch.asinh(bounded).exp()
        share = (self.done / max(self.steps, 1)).clamp(max=1.0)
        return self.start * (math.log(self.end / self.start) * share).exp()

    def step(self) -> None:
        """One step of the schedule is done; does nothing where there is none."""
        if not self.learnable:
            self.done += 1

    def get_extra_state(self) -> Tensor:
        """The schedule, for `state_dict()`: a tensor, which every kind of file can hold."""
        return torch.tensor([self.start, self.end, self.steps], dtype=torch.float64)

    def set_extra_state(self, state: Tensor) -> None:
        """The schedule that was saved goes on, whatever this module was made with."""
        self.start, self.end, steps = state.tolist()
        self.steps = int(steps)

    def extra_repr(self) -> str:
        """The options."""
        if self.learnable:
            return f"{self.start}, learnable=True"
        return (
            f"{self.start}, end={self.end}, steps={self.steps}" if self.steps else f"{self.start}"
        )
