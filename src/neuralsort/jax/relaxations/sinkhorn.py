r"""Sinkhorn's algorithm: matrices whose rows and columns both sum to 1.

Rows and columns are normalised in turn, as logarithms. All that an iteration changes is one number
per row and one per column, the potentials f and g of

$$\log P_{ij} = L_{ij} + f_i + g_j,$$

so only g is kept for the backward pass: n numbers per iteration in place of n^2.
"""

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.scipy.special import logsumexp

from ... import _options
from ..._blur import Blur
from .. import _checks
from ..arrays import entries, inverse, spoilt_unless, take_rows, working
from ..gradients import straight_through
from ..noise import gumbel
from ..permutation import HardPermutation, RelaxedPermutation
from ..pytrees import pytree
from ..softness import looked_for, row_entropy, spoilt_if_negative
from .engine.blocks import weighted_mean
from .neuralsort import NeuralSortKernel
from .ordering import order
from .scored import falls, relaxed


def sinkhorn(
    logits: Array,
    *,
    tau: _checks.Tau = 1.0,
    iterations: int = 20,
    tolerance: float | None = None,
    mask: Array | None = None,
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
        tau: Temperature: a number, a `Blur`, or a positive array with one temperature per matrix,
            shape `(..., 1)`; it may have gradients. 0 is the hard assignment.
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
        >>> P = sinkhorn(jnp.array([[0.0, 2.0], [0.0, 1.0]]), iterations=50)
        >>> P.to_dense().round(2)
        Array([[0.38, 0.62],
               [0.62, 0.38]], dtype=float32)

    Reference: Mena et al. (2018), Eq. 4; Cuturi (2013). Time: O(n^2) per iteration; memory: O(n^2),
    and O(n) per iteration for the gradient.
    """
    logits = _checks.logits("sinkhorn(logits)", logits)
    return _assign(logits, jnp.zeros((), working(logits.dtype)), tau, iterations, tolerance, mask)


def gumbel_sinkhorn(
    logits: Array,
    *,
    key: Array,
    tau: _checks.Tau = 1.0,
    iterations: int = 20,
    tolerance: float | None = None,
    samples: int | None = None,
    mask: Array | None = None,
) -> RelaxedPermutation:
    r"""Draws a relaxed permutation: `sinkhorn` of perturbed logits.

    $$\widehat P = \operatorname{sinkhorn}(L + G), \qquad G_{ij} \sim \text{Gumbel}(0, 1)$$

    Every matrix of the batch gets its own noise. Its hard counterpart, which it tends to with
    `tau`, is the assignment of largest total to the perturbed logits.

    Args:
        logits: `(..., n, n)`. How much position `i` likes item `j`.
        key: Source of randomness.
        tau: Temperature, as in `sinkhorn`; it does not scale the noise.
        iterations: How often rows and columns are normalised, at most.
        tolerance: Stop once the logarithms of all column sums are this small, or None.
        samples: How many to draw for each matrix, in a dimension in front; None for one without.
        mask: `(..., n)` boolean, True where the item exists, as in `sinkhorn`.

    Returns:
        The relaxed permutation `(..., n, n)`, or `(samples, ..., n, n)`.

    Raises:
        TypeError: If `logits` is not floating point, or `mask` not boolean.
        ValueError: If `logits` is not square, `tau` or `iterations` is negative, or a shape does
            not fit.

    Example:
        >>> P = gumbel_sinkhorn(jnp.zeros((3, 3)), tau=0.1, samples=5, key=jax.random.key(0))
        >>> P.permutation().shape
        (5, 3)

    Reference: Mena et al. (2018), section 4. Time and memory: those of `sinkhorn`.
    """
    logits = _checks.logits("gumbel_sinkhorn(logits)", logits)
    if samples is not None:
        _checks.static(samples=samples)
        logits = jnp.broadcast_to(logits, (_options.samples(samples), *logits.shape))
    noise = gumbel(key, logits.shape, working(logits.dtype))
    return _assign(logits, noise, tau, iterations, tolerance, mask)


def sinkhorn_sort(
    scores: Array,
    *,
    tau: _checks.Tau = 1.0,
    iterations: int = 20,
    tolerance: float | None = None,
    mask: Array | None = None,
) -> RelaxedPermutation:
    r"""Relaxes the permutation that sorts `scores` in descending order, by optimal transport.

    $$\widehat P = \operatorname*{arg\,max}_{P} \sum_{ij} P_{ij} (n + 1 - 2i)\, s_j + \tau H(P)
      \quad\text{over doubly stochastic } P$$

    in the limit of many iterations: the entropic transport of the scores to equally spaced targets,
    largest first. Sinkhorn's iterations start from `neuralsort`, which they equal before the first
    one, so `tau` means what it means there; each brings the columns closer to sums of one. As `tau`
    tends to 0 this becomes the hard permutation matrix of `jnp.argsort(scores, descending=True)`,
    after any number of iterations.

    Args:
        scores: `(..., n)`. Values to sort; leading dimensions are batch.
        tau: Temperature: a number, a `Blur`, or an array that broadcasts against `scores` with a
            last dimension of 1; it may have gradients. Smaller is harder; 0 is the hard
            permutation.
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
        >>> P = sinkhorn_sort(jnp.array([1.0, 3.0, 2.0]), tau=2.0)
        >>> P.to_dense().sum(-2).round(3)
        Array([1., 1., 1.], dtype=float32)

    Reference: Cuturi et al. (2019), Eq. 4, with squared distances. Time: O(n^2) per iteration;
    memory: O(n^2), and O(n) per iteration for the gradient.
    """
    iterations, tolerance = _repetitions(iterations, tolerance)

    def make(scores: Array, tau: Array, mask: Array | None) -> RelaxedPermutation:
        o = order(scores, tau, mask)
        log = _balanced(-falls(NeuralSortKernel(), o, scores.shape[-1]), iterations, tolerance)
        log = log * o.poison[..., None]
        by_item = jnp.take_along_axis(log, inverse(o.perm)[..., None, :], -1)
        return LogPermutation(by_item, scores.dtype, o.perm)

    return relaxed("sinkhorn_sort", make, scores, tau, mask)


def _repetitions(iterations: int, tolerance: float | None) -> tuple[int, float | None]:
    """How often to normalise, and when to stop before."""
    _checks.static(iterations=iterations, tolerance=tolerance)
    return _options.iterations(iterations), _options.tolerance(tolerance)


# -- matrices --------------------------------------------------------------------------------------


def _assign(
    logits: Array,
    noise: Array,
    tau: _checks.Tau,
    iterations: int,
    tolerance: float | None,
    mask: Array | None,
) -> RelaxedPermutation:
    """Checks the options that `sinkhorn` and `gumbel_sinkhorn` share, and does what they share."""
    n = logits.shape[-1]
    tau = _checks.tau(tau, logits[..., 0] if n else logits.sum(-1))
    iterations, tolerance = _repetitions(iterations, tolerance)
    mask = _checks.mask(mask, logits.shape[:-1])
    scaled = logits.astype(working(logits.dtype)) + noise
    if mask is not None:
        scaled = _beside_absent(scaled, mask)
    if not isinstance(tau, Array) and tau == 0:
        lowest = jnp.finfo(scaled.dtype).min / (n + 1)  # so that a sum of them is a number
        hard = RelaxedPermutation(jnp.maximum(lax.stop_gradient(scaled), lowest)).permutation()
        return HardPermutation(hard, n, logits.dtype)
    if isinstance(tau, Blur):
        tau = _at_blur(tau.ranks, lax.stop_gradient(scaled), mask)
    tau = spoilt_if_negative(tau)
    log = _balanced(_over(scaled, tau), iterations, tolerance)
    if isinstance(tau, Array):  # compiled logarithms may lose a NaN
        log = log * spoilt_unless(tau >= 0)[..., None].astype(log.dtype)
    return LogPermutation(log, logits.dtype)


def _over(logits: Array, tau: float | Array) -> Array:
    """Logits over the temperature; what is forbidden is so at every temperature."""
    forbidden = logits == -jnp.inf
    tau = tau.astype(logits.dtype)[..., None] if isinstance(tau, Array) and tau.ndim else tau
    return jnp.where(forbidden, -jnp.inf, jnp.where(forbidden, 0.0, logits) / tau)


def _at_blur(ranks: float, logits: Array, mask: Array | None) -> Array:
    """The temperature at which rows, before columns are balanced, share places as at that blur."""
    if not logits.size:
        return jnp.ones((*logits.shape[:-2], 1), logits.dtype)
    spread = logits.max(-1, keepdims=True) - jnp.where(jnp.isinf(logits), jnp.nan, logits)
    guess = jnp.nanmean(jnp.nanmean(spread, -1), -1, keepdims=True)  # (..., 1)
    guess = jnp.where(guess == 0, 1.0, guess)  # where all are alike, whatever it is

    def entropy(tau: Array) -> Array:
        return row_entropy(jax.nn.log_softmax(_over(logits, tau), -1))

    return looked_for(ranks, guess, entropy, mask)


def _beside_absent(logits: Array, mask: Array) -> Array:
    """Present items compete for the first positions, absent ones have one each, in index order."""
    row = jnp.arange(logits.shape[-1])[:, None]
    present = mask.sum(-1, keepdims=True)  # (..., 1)
    place = present + jnp.cumsum(~mask, -1) - 1
    own = ~mask[..., None, :] & (row == place[..., None, :])
    open_ = mask[..., None, :] & (row < present[..., None])
    return jnp.where(open_, logits, jnp.where(own, 0.0, -jnp.inf))


@pytree("_log", "_perm", static=("_dtype",))
class LogPermutation(RelaxedPermutation):
    """A relaxed permutation that is known by the logarithms of its weights."""

    def __init__(self, log: Array, dtype: jnp.dtype, perm: Array | None = None) -> None:
        self._log, self._perm = log, perm
        self._dtype = dtype

    @property
    def shape(self) -> tuple[int, ...]:
        return self._log.shape

    @property
    def dtype(self) -> jnp.dtype:
        return self._dtype

    @property
    def _dense(self) -> Array:
        return self.to_dense()

    def _kind(self) -> str:
        return "sinkhorn"

    def _matrix(self) -> Array:
        # A compiled exponential may lose a NaN.
        return jnp.where(jnp.isnan(self._log), self._log, jnp.exp(self._log))

    def _sort(self, x: Array) -> Array:
        own = jnp.zeros((self.shape[-2],), x.dtype)
        if self._perm is not None:
            own = take_rows(x[..., None], self._perm)[..., 0]
        return weighted_mean(self._matrix(), x, own)

    def _log_prob(self, perm: Array) -> Array:
        return entries(self._log, perm)

    def _entropy(self) -> Array:
        return row_entropy(self._log)

    def _top(self, k: int) -> RelaxedPermutation:
        return LogPermutation(self._log[..., :k, :], self.dtype, self.permutation()[..., :k])


# -- the algorithm ---------------------------------------------------------------------------------


def _balanced(log: Array, iterations: int, tolerance: float | None) -> Array:
    """Normalises rows and columns of exp(log) in turn, and at last the rows."""
    if not log.size:
        return log
    spoilt = jnp.isnan(lax.stop_gradient(log)).any((-1, -2), keepdims=True)
    log = straight_through(jnp.where(spoilt, 0.0, log), log)

    def better(g: Array) -> Array:
        f = -logsumexp(log + g[..., None, :], -1)
        return -logsumexp(log + f[..., None], -2)

    @jax.checkpoint  # around all of it: a branch would keep what it computes
    def step(g: Array, done: Array) -> Array:
        return better(g) if tolerance is None else lax.cond(done, lambda g: g, better, g)

    def iterate(state: tuple[Array, Array], _: None) -> tuple[tuple[Array, Array], None]:
        g, done = state
        after = step(g, done)
        if tolerance is not None:
            done = done | (jnp.abs(after - g) <= tolerance).all()
        return (after, done), None

    start = jnp.zeros_like(log[..., 0, :]), jnp.zeros((), bool)
    (g, _), _ = lax.scan(iterate, start, None, length=iterations)
    return jax.nn.log_softmax(log + g[..., None, :], -1) * jnp.where(spoilt, jnp.nan, 1.0)
