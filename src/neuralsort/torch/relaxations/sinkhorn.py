r"""Sinkhorn's algorithm: matrices whose rows and columns both sum to 1.

Rows and columns are normalised in turn, as logarithms. All that an iteration changes is one number
per row and one per column, the potentials f and g of

$$\log P_{ij} = L_{ij} + f_i + g_j,$$

so only those are kept for the backward pass: 2 n numbers per iteration in place of n^2.
"""

from abc import abstractmethod
from typing import Any, final

import torch
from torch import Tensor

from ... import _options
from ..._blur import Blur
from .. import _checks
from ..arrays import inferring, working
from ..gradients import is_traced_for_second_derivatives
from ..hardening import harden
from ..noise import gumbel
from ..permutation import DensePermutation, HardPermutation, RelaxedPermutation
from ..pytrees import pytree
from ..softness import looked_for, row_entropy, spoilt_if_negative, temperature
from .neuralsort import NeuralSortKernel
from .ordering import Ordered
from .scored import Kernel, ScorePermutation, unrelaxed


def sinkhorn(
    logits: Tensor,
    *,
    tau: _checks.Tau = 1.0,
    iterations: int = 20,
    tolerance: float | None = None,
    mask: Tensor | None = None,
) -> RelaxedPermutation:
    r"""Relaxes the best assignment of items to positions to a doubly stochastic matrix.

    $$\widehat P = \operatorname*{arg\,max}_{P}\; \langle P, L \rangle + \tau H(P)
      \quad\text{over doubly stochastic } P$$

    in the limit of many iterations, H being the entropy. Rows are normalised last and sum to one
    after any number of iterations; columns do so in the limit. Its hard counterpart, which it tends
    to with `tau`, is the assignment of largest total, `scipy.optimize.linear_sum_assignment(logits,
    maximize=True)`.

    Args:
        logits: `(..., n, n)`. How much position `i`, a row, likes item `j`, a column; `-inf`
            forbids it.
        tau: Temperature: a number, a `Blur`, or a positive tensor with one temperature per matrix,
            shape `(..., 1)`; it may require gradients. In units of the logits: smaller is harder, 0
            is the hard assignment.
        iterations: How often rows and columns are normalised, at most.
        tolerance: Stop once the logarithms of all column sums in the batch are this small; None
            for a fixed number of iterations.
        mask: `(..., n)` boolean, True where the item exists. With m items present, they compete
            for the first m positions; the last rows place the absent items in index order.

    Returns:
        The relaxed permutation `(..., n, n)`. Its `permutation()` is the row-wise argmax where that
        is a permutation, and the assignment of largest total weight where it is not.

    Raises:
        TypeError: If `logits` is not floating point, or `mask` not boolean.
        ValueError: If `logits` is not square, `tau` or `iterations` is negative, or a shape does
            not fit.

    Example:
        >>> P = sinkhorn(torch.tensor([[0.0, 2.0], [0.0, 1.0]]), iterations=50)
        >>> P.to_dense().round(decimals=3)
        tensor([[0.3780, 0.6220],
                [0.6220, 0.3780]])

    Reference: Mena et al. (2018), Eq. 4; Cuturi (2013). Time: O(n^2) per iteration; memory: O(n^2),
    and O(n) per iteration for the gradient.
    """
    logits = _checks.logits("sinkhorn(logits)", logits)
    return _assign(logits, logits.new_zeros(()), tau, iterations, tolerance, mask)


def gumbel_sinkhorn(
    logits: Tensor,
    *,
    tau: _checks.Tau = 1.0,
    iterations: int = 20,
    tolerance: float | None = None,
    samples: int | None = None,
    mask: Tensor | None = None,
    generator: torch.Generator | None = None,
) -> RelaxedPermutation:
    r"""Draws a relaxed permutation: `sinkhorn` of perturbed logits.

    $$\widehat P = \operatorname{sinkhorn}(L + G), \qquad G_{ij} \sim \text{Gumbel}(0, 1)$$

    Every matrix of the batch gets its own noise. Its hard counterpart, which it tends to with
    `tau`, is the assignment of largest total to the perturbed logits.

    Args:
        logits: `(..., n, n)`. How much position `i` likes item `j`.
        tau: Temperature, as in `sinkhorn`; it does not scale the noise.
        iterations: How often rows and columns are normalised, at most.
        tolerance: Stop once the logarithms of all column sums are this small, or None.
        samples: How many to draw for each matrix, in a dimension in front; None for one without.
        mask: `(..., n)` boolean, True where the item exists, as in `sinkhorn`.
        generator: Source of randomness; the global one if None.

    Returns:
        The relaxed permutation `(..., n, n)`, or `(samples, ..., n, n)`.

    Raises:
        TypeError: If `logits` is not floating point, or `mask` not boolean.
        ValueError: If `logits` is not square, `tau` or `iterations` is negative, `samples` is not
            positive, or a shape does not fit.

    Example:
        >>> generator = torch.Generator().manual_seed(0)
        >>> P = gumbel_sinkhorn(torch.zeros(3, 3), tau=0.1, samples=5, generator=generator)
        >>> P.permutation().shape
        torch.Size([5, 3])

    Reference: Mena et al. (2018), section 4. Time and memory: those of `sinkhorn`.
    """
    logits = _checks.logits("gumbel_sinkhorn(logits)", logits)
    if samples is not None:
        logits = logits.expand(_options.samples(samples), *logits.shape)
    noise = gumbel(logits.shape, device=logits.device, generator=generator)
    return _assign(logits, noise, tau, iterations, tolerance, mask)


def sinkhorn_sort(
    scores: Tensor,
    *,
    tau: _checks.Tau = 1.0,
    iterations: int = 20,
    tolerance: float | None = None,
    mask: Tensor | None = None,
) -> RelaxedPermutation:
    r"""Relaxes the permutation that sorts `scores` in descending order, by optimal transport.

    $$\widehat P = \operatorname*{arg\,max}_{P} \sum_{ij} P_{ij} (n + 1 - 2i)\, s_j + \tau H(P)
      \quad\text{over doubly stochastic } P$$

    in the limit of many iterations: the entropic transport of the scores to equally spaced targets,
    largest first. Sinkhorn's iterations start from `neuralsort`, which they equal before the first
    one, so `tau` means what it means there; each brings the columns closer to sums of one. As `tau`
    tends to 0 this becomes the hard permutation matrix of `torch.argsort(scores, descending=True)`,
    after any number of iterations.

    Args:
        scores: `(..., n)`. Values to sort; leading dimensions are batch.
        tau: Temperature: a number, a `Blur`, or a tensor that broadcasts against `scores` with a
            last dimension of 1; it may require gradients. In units of the scores: smaller is
            harder, 0 is the hard permutation.
        iterations: How often rows and columns are normalised, at most.
        tolerance: Stop once the logarithms of all column sums in the batch are this small; None
            for a fixed number of iterations.
        mask: `(..., n)` boolean, True where the item exists. Absent items take no part; the last
            rows place them in index order.

    Returns:
        The relaxed permutation `(..., n, n)`. Its `permutation()` is the stable descending sort.

    Raises:
        TypeError: If `scores` is not floating point, or `mask` not boolean.
        ValueError: If `tau` or `iterations` is negative or a shape does not fit.

    Example:
        >>> P = sinkhorn_sort(torch.tensor([1.0, 3.0, 2.0]), tau=2.0)
        >>> P.to_dense().sum(-2).round(decimals=3)
        tensor([1., 1., 1.])

    Reference: Cuturi et al. (2019), Eq. 4, with squared distances. Time: O(n^2) per iteration;
    memory: O(n^2), and O(n) per iteration for the gradient.
    """
    scores = _checks.scores("sinkhorn_sort(scores)", scores)
    kernel = TransportKernel(_options.iterations(iterations), _options.tolerance(tolerance))
    mask = _checks.mask(mask, scores)
    tau = temperature(tau, scores, mask)
    if (hard := unrelaxed(scores, tau, mask)) is not None:
        return hard
    return TransportPermutation(kernel, Ordered(scores, tau, mask), scores.dtype)


# -- matrices --------------------------------------------------------------------------------------


def _assign(
    logits: Tensor,
    noise: Tensor,
    tau: _checks.Tau,
    iterations: int,
    tolerance: float | None,
    mask: Tensor | None,
) -> RelaxedPermutation:
    """Checks the options that `sinkhorn` and `gumbel_sinkhorn` share, and does what they share."""
    n, like = logits.shape[-1], logits.sum(-2)  # (..., n): one item, one score
    tau = _checks.tau(tau, like)
    iterations, tolerance = _options.iterations(iterations), _options.tolerance(tolerance)
    mask = _checks.mask(mask, like)
    scaled = logits.to(working(logits.dtype))
    scaled = scaled + noise.to(scaled)
    if mask is not None:
        scaled = _beside_absent(scaled, mask)
    if not isinstance(tau, Tensor) and tau == 0:
        lowest = torch.finfo(scaled.dtype).min / (n + 1)  # so that a sum of them is a number
        hard = DensePermutation(scaled.detach().clamp(min=lowest)).permutation()
        return HardPermutation(hard, n, logits.dtype)
    if isinstance(tau, Blur):
        tau = _at_blur(tau.ranks, scaled.detach(), mask)
    log = _balanced(_over(scaled, spoilt_if_negative(tau)), iterations, tolerance)
    return LogPermutation(log, logits.dtype)


def _over(logits: Tensor, tau: float | Tensor) -> Tensor:
    """Logits over the temperature; what is forbidden is so at every temperature."""
    forbidden = logits == -torch.inf
    tau = tau.to(logits.dtype).unsqueeze(-1) if isinstance(tau, Tensor) else tau
    return (logits.masked_fill(forbidden, 0.0) / tau).masked_fill(forbidden, -torch.inf)


def _at_blur(ranks: float, logits: Tensor, mask: Tensor | None) -> Tensor:
    """The temperature at which rows, before columns are balanced, share places as at that blur."""
    if not logits.numel():
        return logits.new_ones((*logits.shape[:-2], 1))
    highest = logits.amax(-1, keepdim=True)
    spread = (highest - logits.masked_fill(logits == -torch.inf, torch.nan)).nanmean(-1)
    guess = spread.nanmean(-1, keepdim=True)  # (..., 1)
    guess = torch.where(guess == 0, 1.0, guess)  # where all are alike, whatever it is

    def entropy(tau: Tensor) -> Tensor:
        return row_entropy(torch.log_softmax(_over(logits, tau), -1))

    return looked_for(ranks, guess, entropy, mask)


def _beside_absent(logits: Tensor, mask: Tensor) -> Tensor:
    """Present items compete for the first positions, absent ones have one each, in index order."""
    n = logits.shape[-1]
    row = torch.arange(n, device=logits.device).unsqueeze(-1)  # (n, 1)
    present = mask.sum(-1, keepdim=True)  # (..., 1)
    place = present + (~mask).cumsum(-1) - 1
    own = ~mask.unsqueeze(-2) & (row == place.unsqueeze(-2))
    open_ = mask.unsqueeze(-2) & (row < present.unsqueeze(-1))
    return torch.where(open_, logits, torch.where(own, 0.0, -torch.inf).to(logits))


class _FromLogarithms(RelaxedPermutation):
    """What a matrix answers when its logarithms are known."""

    @abstractmethod
    def _log_matrix(self) -> Tensor:
        """Logarithms of the entries, `(..., rows, n)`."""

    def _matrix(self) -> Tensor:
        return self._log_matrix().exp()

    def _log_prob(self, perm: Tensor) -> Tensor:
        log = self._log_matrix()
        batch = torch.broadcast_shapes(perm.shape[:-1], log.shape[:-2])
        perm = perm.expand(*batch, perm.shape[-1]).unsqueeze(-1)
        return log.expand(*batch, *log.shape[-2:]).gather(-1, perm).squeeze(-1)

    def _entropy(self) -> Tensor:
        return row_entropy(self._log_matrix())


@pytree
@final
class LogPermutation(_FromLogarithms):
    """A relaxed permutation that is known by the logarithms of its weights."""

    def __init__(self, log: Tensor, dtype: torch.dtype, perm: Tensor | None = None) -> None:
        self._log, self._perm = log, perm
        self._dtype = dtype

    @property
    def shape(self) -> torch.Size:
        return self._log.shape

    @property
    def dtype(self) -> torch.dtype:
        return self._dtype

    @property
    def device(self) -> torch.device:
        return self._log.device

    def permutation(self) -> Tensor:
        if self._perm is not None:
            return self._perm
        perm = harden(self.to_dense().detach())
        if not inferring():
            self._perm = perm
        return perm

    def _taken_apart(self) -> tuple[list[Tensor], torch.dtype]:
        return [self._log] if self._perm is None else [self._log, self._perm], self._dtype

    @classmethod
    def _put_together(cls, parts: list[Tensor], rest: torch.dtype) -> "LogPermutation":
        return cls(parts[0], rest, *parts[1:])

    def _cast(self, dtype: torch.dtype) -> "LogPermutation":
        return LogPermutation(self._log.to(working(dtype)), dtype)

    def _kind(self) -> str:
        return "sinkhorn"

    def _log_matrix(self) -> Tensor:
        return self._log

    def _top(self, k: int) -> RelaxedPermutation:
        return LogPermutation(self._log[..., :k, :], self.dtype, self.permutation()[..., :k])


# -- scores ----------------------------------------------------------------------------------------


class TransportKernel(Kernel):
    """NeuralSort's log-weights, balanced."""

    name = "sinkhorn_sort"

    def __init__(self, iterations: int, tolerance: float | None) -> None:
        self.iterations, self.tolerance = iterations, tolerance
        self._logs: dict[tuple[bool, bool], Tensor] = {}  # apart by mode

    def options(self) -> tuple[int, float | None]:
        return self.iterations, self.tolerance

    def log_matrix(self, ordered: Ordered, dtype: torch.dtype, rows: int) -> Tensor:
        mode = ordered.mode
        if mode not in self._logs:
            logits = -NeuralSortKernel().falls(ordered).to(dtype)
            log = _balanced(logits, self.iterations, self.tolerance)
            by_item = log.gather(-1, ordered.rank().unsqueeze(-2).expand(log.shape))
            self._logs[mode] = by_item + ordered.poison().unsqueeze(-1).to(dtype)
        return self._logs[mode][..., :rows, :]

    def matrix(self, ordered: Ordered, dtype: torch.dtype, rows: int) -> Tensor:
        return self.log_matrix(ordered, dtype, rows).exp()


@pytree
@final
class TransportPermutation(_FromLogarithms, ScorePermutation):
    """The relaxed permutation of `sinkhorn_sort`."""

    _kernel: TransportKernel  # pyright: ignore

    def _log_matrix(self) -> Tensor:
        self._ordered.check_unchanged()
        return self._kernel.log_matrix(self._ordered, working(self._dtype), self._rows)


# -- the algorithm ---------------------------------------------------------------------------------


def _balanced(log: Tensor, iterations: int, tolerance: float | None) -> Tensor:
    """Normalises rows and columns of exp(log) in turn, and at last the rows."""
    # Rows may be shifted by anything: from their largest entry, the exponents are small.
    log = log - log.detach().amax(-1, keepdim=True) if log.numel() else log
    if iterations and log.numel():
        log = log + _potentials(log, iterations, tolerance).unsqueeze(-2)
    return torch.log_softmax(log, -1)


def _potentials(log: Tensor, iterations: int, tolerance: float | None) -> Tensor:
    """Those of the columns, `(..., n)`, after the iterations."""
    if is_traced_for_second_derivatives():
        return _iterate(log, iterations, tolerance, _ROWS_LAST)[-1]
    few = torch.compiler.is_compiling() or log.dim() < 3 or log.shape[:-2].numel() < log.shape[-1]
    if few or not log.is_cpu:
        return _Balance.apply(log, iterations, tolerance, _ROWS_LAST)[0]  # pyright: ignore
    # Many small matrices lie side by side, entry by entry: an operation then goes over all of them
    # at once, in place of over the few entries of a row: 1.6 to 4 times as fast up to 15 x 15.
    beside = log.flatten(0, -3).movedim(0, -1).contiguous()  # (n, n, batch)
    g = _Balance.apply(beside, iterations, tolerance, _BATCH_LAST)[0]  # pyright: ignore
    return g.movedim(-1, 0).unflatten(0, log.shape[:-2])


_ROWS_LAST, _BATCH_LAST = (-2, -1), (-3, -2)
"""Which dimensions of a tensor are the rows of its matrices and the columns."""


class _Balance(torch.autograd.Function):
    """Potentials of the columns after some iterations, and those of every iteration.

    `apply(log, iterations, tolerance, dims)` gives `(..., n)` and, without gradient, f and g in
    turn, `(2 k, ..., n)`; of matrices that lie side by side `(n, batch)` and `(2 k, n, batch)`.
    """

    @staticmethod
    def forward(
        log: Tensor, iterations: int, tolerance: float | None, dims: tuple[int, int]
    ) -> tuple[Tensor, Tensor]:
        potentials = _iterate(log, iterations, tolerance, dims)
        return potentials[-1].clone(), torch.stack(potentials)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple, output: tuple[Tensor, Tensor]) -> None:
        ctx.mark_non_differentiable(output[1])
        ctx.save_for_backward(inputs[0], output[1])
        ctx.dims = inputs[3]

    @staticmethod
    def backward(ctx: Any, to_g: Tensor, _: Tensor) -> tuple:  # pyright: ignore
        log, history = ctx.saved_tensors
        row, column = dims = ctx.dims
        # For derivatives of this one the potentials must be functions of the logits again.
        potentials = (
            _iterate(log, len(history) // 2, None, dims)
            if torch.is_grad_enabled()
            else list(history)
        )
        potentials.insert(0, torch.zeros_like(to_g))
        to_log = torch.zeros_like(log)
        while len(potentials) > 1:
            before, f, g = potentials[-3:]
            columns = (log + f.unsqueeze(column) + g.unsqueeze(row)).exp()
            share = columns * to_g.unsqueeze(row)
            to_f, to_log = -share.sum(column), to_log - share
            rows = (log + f.unsqueeze(column) + before.unsqueeze(row)).exp()
            share = rows * to_f.unsqueeze(column)
            to_g, to_log = -share.sum(row), to_log - share
            del potentials[-2:]
        return to_log, None, None, None

    @staticmethod
    def vmap(info: Any, in_dims: tuple, log: Tensor, *options: Any) -> tuple[tuple, tuple]:
        return _Balance.apply(log.movedim(in_dims[0], 0), *options), (0, 1)  # pyright: ignore


def _iterate(
    log: Tensor, iterations: int, tolerance: float | None, dims: tuple[int, int]
) -> list[Tensor]:
    """Potentials of rows and columns in turn, two for every iteration."""
    row, column = dims
    potentials = []
    g = torch.zeros_like(log.select(row, 0))
    for _ in range(iterations):
        before = g
        f = -torch.logsumexp(log + g.unsqueeze(row), column)
        g = -torch.logsumexp(log + f.unsqueeze(column), row)
        potentials += [f, g]
        if tolerance is not None and bool(((g - before).abs() <= tolerance).all()):
            break
    return potentials
