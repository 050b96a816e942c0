r"""Soft sorting and ranking by projection onto the permutahedron: values only, no matrix.

The permutahedron of w is the convex hull of the permutations of w. For z and w in descending order
its point nearest to z is an isotonic regression: neighbours that would come out in the wrong order
are pooled into blocks B, and within a block

$$y = z - \operatorname{mean}_B(z) + \operatorname{mean}_B(w), \qquad\text{or}\qquad
  y = z - \operatorname{lse}_B(z) + \operatorname{lse}_B(w)$$

for quadratic and for entropic regularisation, lse being the logarithm of summed exponentials. Only
the search for the blocks is written by hand. Given the blocks, all is plain operations, and
derivatives of every order are JAX's.
"""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import Array, lax

from .. import _options
from . import _checks
from .arrays import inverse
from .relaxations.ordering import Ordered, order, share_ties, tie_groups

# Temperatures below this one, but not 0, count as it, and as this fraction of the largest value:
# they are as good as 0, and would overflow.
WEAKEST = {"float32": 1e-30, "float64": 1e-290}

REGULARIZATIONS = {"l2": "quadratic", "kl": "entropic"}


def fast_soft_sort(
    x: Array,
    *,
    tau: float | Array | None = None,
    strength: float | None = None,
    regularization: str = "l2",
    dim: int = -1,
    descending: bool = False,
    mask: Array | None = None,
) -> Array:
    r"""Differentiable sort of values, without a relaxed permutation.

    $$\text{fast\_soft\_sort}(x) = \operatorname*{arg\,min}_{y \in \mathcal P(x)}
      \big\| y - \rho / \varepsilon \big\|^2, \qquad \rho = (1, \dots, n)$$

    where $\mathcal P(x)$ is the convex hull of the permutations of x and $\varepsilon$ the
    temperature; `"kl"` measures the Kullback-Leibler divergence of exponentials instead. Its hard
    counterpart is `jnp.sort(x, dim, descending=descending)`, which it tends to as `strength` tends
    to 0, and equals as soon as $1/\varepsilon$ exceeds every gap between neighbours under `"l2"`.

    Args:
        x: Values, any shape.
        tau: Temperature $\varepsilon$, not negative, in units of 1 / x; 1 unless given. Larger is
            softer; 0 is the hard sort. A number, or an array as in `soft_sort`, which may have
            gradients.
        strength: The same, a number, under its name in the literature.
        regularization: `"l2"`, quadratic, or `"kl"`, entropic.
        dim: The dimension that holds the lists.
        descending: Largest first.
        mask: Boolean, the shape of `x`, True where the item exists. Absent items come last, in
            index order.

    Returns:
        The shape of `x`. Lists come out in order, and with `"l2"` keep their sum.

    Raises:
        TypeError: If `x` is not floating point, or `mask` not boolean.
        ValueError: If `tau` is negative or given twice, `regularization` unknown, `dim` out of
            range, or a shape does not fit.

    Example:
        >>> fast_soft_sort(jnp.array([6.0, 1.0, 2.0]), tau=1.0)
        Array([2., 3., 4.], dtype=float32)
        >>> fast_soft_sort(jnp.array([6.0, 1.0, 2.0]), tau=0.1)
        Array([1., 2., 6.], dtype=float32)

    Reference: Blondel et al. (2020), Eq. 5. Time: O(n log n), and O(n) per round of
    pooling, of which most data take a few; memory: O(n).
    """
    x = _checks.scores("fast_soft_sort(x)", x)
    _checks.static(dim=dim, strength=strength)
    dim = _options.dim(dim, x.shape)
    entropic = _options.choice("regularization", regularization, REGULARIZATIONS) == "kl"
    sign = 1 if descending else -1
    lists, there = _lists(sign * x, dim, mask)
    unit = _checks.softness(tau, strength, lists)
    o = _sorted(lists, there)
    s = jnp.take_along_axis(lists.astype(o.values.dtype), o.perm, -1)
    apart = jnp.isinf(s)
    if there is not None:
        apart = apart | ~jnp.take_along_axis(there, o.perm, -1)
    if _softens(unit) and x.size:
        unit = jnp.maximum(jnp.asarray(unit, s.dtype), WEAKEST[s.dtype.name])
        small = 1.0 if entropic else _in_range(o.values)
        soft = _project(entropic, _countdown(s), unit / small, o.values * small, o.room) / small
        s = jnp.where(apart, s, soft)
    return jnp.moveaxis((sign * s * o.poison).astype(x.dtype), -1, dim)


def fast_soft_rank(
    x: Array,
    *,
    tau: float | Array | None = None,
    strength: float | None = None,
    regularization: str = "l2",
    dim: int = -1,
    descending: bool = False,
    mask: Array | None = None,
) -> Array:
    r"""Differentiable ranks, from 1, without a relaxed permutation.

    $$\text{fast\_soft\_rank}(x) = \operatorname*{arg\,min}_{y \in \mathcal P(\rho)}
      \big\| y - x / \varepsilon \big\|^2, \qquad \rho = (1, \dots, n)$$

    where $\mathcal P(\rho)$ is the convex hull of the permutations of $\rho$ and $\varepsilon$ the
    temperature; `"kl"` measures the Kullback-Leibler divergence from $\exp(x / \varepsilon)$
    instead. Its hard counterpart is `scipy.stats.rankdata(x)`, which it tends to as `tau` tends to
    0: the smallest value has rank 1, ties share the mean of their ranks.

    Args:
        x: Values, any shape.
        tau: Temperature $\varepsilon$, not negative, in units of x; 1 unless given. Larger is
            softer; 0 gives the hard ranks, without gradient. A number, or an array as in
            `soft_rank`, which may have gradients.
        strength: The same, a number, under its name in the literature.
        regularization: `"l2"`, quadratic, or `"kl"`, entropic.
        dim: The dimension that holds the lists.
        descending: Count from the largest.
        mask: Boolean, the shape of `x`, True where the item exists. Absent items have the last
            ranks, in index order.

    Returns:
        The shape of `x`, between 1 and n; ranks sum to `n (n + 1) / 2`.

    Raises:
        TypeError: If `x` is not floating point, or `mask` not boolean.
        ValueError: If `tau` is negative or given twice, `regularization` unknown, `dim` out of
            range, or a shape does not fit.

    Example:
        >>> fast_soft_rank(jnp.array([5.0, 1.0, 2.0]), tau=2.0)
        Array([3.  , 1.25, 1.75], dtype=float32)
        >>> fast_soft_rank(jnp.array([5.0, 1.0, 2.0]), tau=0.1)
        Array([3., 1., 2.], dtype=float32)

    Reference: Blondel et al. (2020), Eq. 6. Time: O(n log n), and O(n) per round of
    pooling, of which most data take a few; memory: O(n).
    """
    x = _checks.scores("fast_soft_rank(x)", x)
    _checks.static(dim=dim, strength=strength)
    dim = _options.dim(dim, x.shape)
    entropic = _options.choice("regularization", regularization, REGULARIZATIONS) == "kl"
    lists, there = _lists(-x if descending else x, dim, mask)
    unit = _checks.softness(tau, strength, lists)
    o = _sorted(lists, there)
    w, here = _countdown(o.values), True
    if there is not None:
        place = jnp.arange(1, w.shape[-1] + 1, dtype=w.dtype)
        here = jnp.take_along_axis(there, o.perm, -1)
        w = jnp.where(here, there.sum(-1, keepdims=True) + 1 - place, place)
    if _softens(unit) and x.size:
        largest = jnp.abs(lax.stop_gradient(o.values)).max(-1, keepdims=True)
        weakest = WEAKEST[w.dtype.name] * jnp.maximum(largest, 1.0)
        unit = jnp.maximum(jnp.asarray(unit, w.dtype), weakest)
        y = _project(entropic, o.values, unit, jnp.log(w) if entropic else w, o.room)
        y = jnp.exp(y) if entropic else y
        y = jnp.where(here, y, w)
    else:
        y = share_ties(w, tie_groups(o.values, o.room))
    ranks = jnp.take_along_axis(y, inverse(o.perm), -1) * o.poison
    return jnp.moveaxis(ranks.astype(x.dtype), -1, dim)


def _lists(x: Array, dim: int, mask: Array | None) -> tuple[Array, Array | None]:
    """Lists with their items last, and which of these are there."""
    mask = _checks.mask(mask, x.shape)
    return jnp.moveaxis(x, dim, -1), None if mask is None else jnp.moveaxis(mask, dim, -1)


def _softens(unit: float | Array) -> bool:
    """Whether anything is softened; the value of an array is not read."""
    return isinstance(unit, Array) or unit > 0


def _sorted(lists: Array, there: Array | None) -> Ordered:
    return order(lists, jnp.ones((*lists.shape[:-1], 1), lists.dtype), there)


def _countdown(s: Array) -> Array:
    """n, ..., 1 for every list."""
    return jnp.broadcast_to(jnp.arange(s.shape[-1], 0, -1, dtype=s.dtype), s.shape)


def _in_range(w: Array) -> Array:
    """A factor for lists `(..., 1)`, with which a quadratic projection scales: no sum overflows."""
    many = 8 * w.shape[-1]
    largest = jnp.abs(lax.stop_gradient(w)).max(-1, keepdims=True)
    return jnp.where(largest > float(jnp.finfo(w.dtype).max) / many, 1 / many, 1.0).astype(w.dtype)


@functools.partial(jax.jit, static_argnums=0)
def _project(entropic: bool, z: Array, unit: Array, w: Array, room: Array) -> Array:
    """The point of the permutahedron of w nearest to z / unit, both descending, `(..., n)`."""
    fixed = lax.stop_gradient(z), lax.stop_gradient(w)
    blocks = Blocks.of(_starts(entropic, fixed[0], unit, fixed[1], room))
    # From the largest of each block, so that a large z costs no digits; and divided once, so that
    # gradients that cancel do so before a small unit makes them large.
    z, high = (z - blocks.top(fixed[0])) / unit, blocks.top(fixed[1])
    return z - blocks.average(entropic, z) + (high + blocks.average(entropic, w - high))


# -- isotonic regression ---------------------------------------------------------------------------


class Blocks(NamedTuple):
    """Lists cut into blocks: the first place of the block around each place, `(..., n)`."""

    first: Array

    @classmethod
    def of(cls, starts: Array) -> "Blocks":
        """Blocks that begin at these places."""
        place = jnp.arange(starts.shape[-1])
        return cls(lax.cummax(jnp.where(starts, place, 0), axis=starts.ndim - 1))

    def top(self, x: Array) -> Array:
        """What the block around each place begins with."""
        return jnp.take_along_axis(x, self.first, -1)

    def total(self, x: Array) -> Array:
        """The sum of x over the block around each place."""
        flat, n = x.reshape(-1, x.shape[-1]), x.shape[-1]
        at = self.first.reshape(flat.shape) + n * jnp.arange(flat.shape[0])[:, None]
        return jnp.zeros(x.size, x.dtype).at[at].add(flat)[at].reshape(x.shape)

    def average(self, entropic: bool, x: Array) -> Array:
        """The mean of x over the block around each place, or the log of summed exponentials."""
        if entropic:
            return jnp.log(self.total(jnp.exp(x)))
        return self.total(x) / self.total(jnp.ones_like(x))


def _starts(entropic: bool, z: Array, unit: Array, w: Array, room: Array) -> Array:
    """Where blocks begin, `(..., n)`: in every round, all neighbours in the wrong order are pooled.

    Rounds end when none is left, which takes a few for most data and n at worst.
    """
    edge = [*[(0, 0)] * (z.ndim - 1), (1, 0)]
    same = room[..., 1:] == room[..., :-1]

    def pooled(starts: Array) -> Array:
        b = Blocks.of(starts)
        average = functools.partial(b.average, entropic)
        ours = average((z - b.top(z)) / unit) - average(w - b.top(w))
        # From one block to the next: differences first, so that an offset costs no digits.
        rise = (b.top(z)[..., 1:] - b.top(z)[..., :-1]) / unit
        rise = rise - (b.top(w)[..., 1:] - b.top(w)[..., :-1]) + (ours[..., 1:] - ours[..., :-1])
        return starts & jnp.pad(~same | (rise <= 0), edge, constant_values=True)

    # Ties stay together also where z is so large that w drowns in it.
    ties = same & (z[..., 1:] == z[..., :-1])
    start = pooled(jnp.pad(~ties, edge, constant_values=True))
    ones = jnp.ones(z.shape, bool)

    def unlike(state: tuple[Array, Array]) -> Array:
        return (state[0] != state[1]).any()

    def again(state: tuple[Array, Array]) -> tuple[Array, Array]:
        return state[1], pooled(state[1])

    return lax.while_loop(unlike, again, (ones, start))[1]
