r"""Sorting networks whose comparators swap by degrees.

A sorting network is a fixed sequence of layers, each comparing disjoint pairs of wires and swapping
those in the wrong order. Relaxed, a pair (a, b) swaps by a share $\beta$ that depends on b - a,

$$a' = a + \beta\,(b - a), \qquad b' = b - \beta\,(b - a),$$

so a layer is a symmetric doubly stochastic matrix and the network their product. That product is
not formed: P multiplies layer by layer, and its transpose by the layers in reverse.

Of a share and its complement only the smaller, m, is computed: what comes out on a wire is one of
the two values, moved towards the other by m of the way. That is never much more than a temperature,
so what an addition rounds away is carried along, and float32 compares values to the temperature
whatever their offset and spread.
"""

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from ... import _options
from ..._blur import Blur
from .. import _checks
from ..arrays import inverse, put, take_rows, working
from ..gradients import straight_through
from ..permutation import HardPermutation, RelaxedPermutation
from ..pytrees import pytree
from ..softness import looked_for
from .layers import Layers, bitonic, next_power, odd_even
from .ordering import descending, order
from .scored import ScorePermutation, relaxed

KINDS = {"odd_even": "n layers of neighbours", "bitonic": "O(log^2 n) layers, far pairs first"}

SMALLER_SHARES: dict[str, Callable[[Array], Array]] = {
    "logistic": lambda u: jax.nn.sigmoid(-u),
    "cauchy": lambda u: jnp.arctan2(jnp.ones_like(u), u) / math.pi,
    "reciprocal": lambda u: 1 / (2 + u),
    # A straight line through the middle, then a hyperbola: no monotone swap errs less.
    "optimal": lambda u: jnp.where(u <= 0.25, 0.5 - u, 0.0625 / jnp.maximum(u, 0.25)),
}
"""By how much a pair swaps that is in order by u temperatures, without cancellation for large u."""

TAILS = {
    "logistic": "exponential",
    "cauchy": "heavy",
    "reciprocal": "as heavy and quick to compute",
    "optimal": "as heavy with the least error",
    "error_free": "hard in values and optimal in gradients",
}


def sorting_network(
    scores: Array,
    *,
    tau: _checks.Tau = 0.1,
    kind: str = "odd_even",
    swap: str = "cauchy",
    mask: Array | None = None,
) -> RelaxedPermutation:
    r"""Relaxes the permutation that sorts `scores` in descending order, by a sorting network.

    $$\widehat P = L_k \cdots L_1, \qquad \beta = \sigma\big((a - b) / \tau\big)$$

    for layers $L$ that swap by shares $\beta$ every pair whose wires hold a and b and should end in
    ascending order; $\sigma$ is the distribution function of the logistic or Cauchy distribution,
    the reciprocal $v \mapsto (v / (2 + |v|) + 1) / 2$, or the optimal $v \mapsto v + 1/2$ for
    $|v| \le 1/4$ and $1 - 1 / (16 v)$ beyond, mirrored for negative v. Rows and columns sum to
    one. As `tau` tends to 0 this becomes the hard permutation matrix of
    `jnp.argsort(scores, descending=True)` for distinct scores. The network sees the order of the
    items: permuting them permutes the columns only in that limit.

    With the error-free swap every comparator swaps wholly or not at all, and has the derivatives of
    the optimal one: P is the hard permutation at every temperature, and layers compare values that
    nothing has mixed. It is for costs of what is sorted, or of the matrix; a cross-entropy wants
    the weights of `"optimal"`.

    Args:
        scores: `(..., n)`. Values to sort; leading dimensions are batch, n is any number.
        tau: Temperature: a number, a `Blur`, or an array that broadcasts against `scores` with a
            last dimension of 1; it may have gradients. In units of the scores; its inverse is known
            as steepness; 0 is the hard permutation.
        kind: `"odd_even"`, n layers of neighbours, or `"bitonic"`, O(log^2 n) layers.
        swap: `"logistic"`, `"cauchy"`, `"reciprocal"`, `"optimal"` or `"error_free"`. With the
            middle three, no sorted value falls when a score rises; with the first it may.
        mask: `(..., n)` boolean, True where the item exists. Absent items take no part; the last
            rows place them in index order.

    Returns:
        The relaxed permutation `(..., n, n)`. Its `permutation()` is the stable descending sort.

    Raises:
        TypeError: If `scores` is not floating point, or `mask` not boolean.
        ValueError: If `tau` is negative, `kind` or `swap` unknown, or a shape does not fit.

    Example:
        >>> scores = jnp.array([1.0, 3.0, 2.0])
        >>> sorting_network(scores, tau=1e-3, kind="bitonic").sort(scores).round(2)
        Array([3., 2., 1.], dtype=float32)

    Reference: Petersen et al. (2021), Eqs. 2-4; Petersen et al. (2022) for the Cauchy, the
    reciprocal and the optimal swap; Kim et al. (2024) for the error-free one. Time per payload
    column: O(n^2) for odd-even, O(n log^2 n) for bitonic; the matrix itself is n such columns.
    Memory: O(n) per layer and column.
    """
    _options.choice("kind", kind, KINDS)
    _options.choice("swap", swap, TAILS)

    ranks = tau.ranks if isinstance(tau, Blur) else None

    def make(scores: Array, tau: Array, mask: Array | None) -> RelaxedPermutation:
        n = scores.shape[-1]
        if not n:
            return HardPermutation(descending(scores, mask), n, scores.dtype)
        exact = swap == "error_free"
        network = Network(kind == "bitonic", "optimal" if exact else swap, exact)

        def at(scores: Array, tau: Array) -> RelaxedPermutation:
            return NetworkPermutation(network, scores, tau, mask, n)

        if ranks is not None:
            fixed = lax.stop_gradient(scores)
            tau = looked_for(ranks, tau, lambda tau: at(fixed, tau).entropy(), mask)
        return at(scores, tau).straight_through() if exact else at(scores, tau)

    return relaxed("sorting_network", make, scores, tau, mask, of_blur=lambda ranks: ranks / 8)


# -- wires ----------------------------------------------------------------------------------------


class Places(NamedTuple):
    """Where items stand, one row per list or one for all.

    Items stand on the last wires, in their order; pairs with a wire that has none, or one that is
    absent, are not compared. Values rise along the wires: positions count from the last one.

    Attributes:
        item_of_wire: `(..., width)`. For empty wires anything, since nothing leaves them.
        row_of_wire: `(..., width)`. Likewise.
        wire_of_item: `(..., n)`.
        wire_of_row: `(..., n)`.
        live: `(..., width)`. Whether an item that is present stands there.
        count: `(..., 1)`. How many do.
        spare: `(..., 1)`. How many empty wires stand before the first of them.
    """

    item_of_wire: Array
    row_of_wire: Array
    wire_of_item: Array
    wire_of_row: Array
    live: Array
    count: Array
    spare: Array


# -- shares ----------------------------------------------------------------------------------------


class Shares(NamedTuple):
    """What the layers do to a payload, `(layers, ..., width)`.

    Attributes:
        swapped: Whether a wire takes its partner's value.
        smaller: By what part of the way what it takes then moves towards the other value. Its
            derivatives are `STEEP` times what they should be, for `_blend`.
    """

    swapped: Array
    smaller: Array


@dataclass(frozen=True)
class Network:
    """The layers for lists of any length, and by how much their pairs swap.

    Comparators of an exact network are hard in values and soft in derivatives. Its products are for
    their gradient alone: `StraightThrough` puts the hard permutation in their place.
    """

    bitonic: bool
    swap: str
    exact: bool = False

    def layers(self, n: int) -> Layers:
        return bitonic(n) if self.bitonic else odd_even(n)

    def places(self, n: int, mask: Array | None) -> Places:
        slot = item = jnp.arange(n)
        width, count = next_power(n) if self.bitonic else n, jnp.array([n])
        if mask is not None:  # present items take the first slots
            item = jnp.argsort(~mask, axis=-1, stable=True)
            count = mask.sum(-1, keepdims=True)  # (..., 1)
        end = count
        if self.bitonic:  # those present sort as a shorter list would
            powers = 1 << np.arange(width.bit_length())
            end = jnp.asarray(powers)[jnp.searchsorted(powers, count)]
        spare, absent = end - count, slot - count  # the latter negative for those present
        wire = jnp.where(absent < 0, slot + spare, jnp.where(absent < spare, absent, slot))
        wire_of_item = jnp.take_along_axis(wire, inverse(jnp.broadcast_to(item, wire.shape)), -1)
        wire_of_row = jnp.where(absent < 0, end - 1 - slot, wire)
        wires = jnp.arange(width)
        return Places(
            item_of_wire=_inverse(wire_of_item, width),
            row_of_wire=_inverse(wire_of_row, width),
            wire_of_item=wire_of_item,
            wire_of_row=wire_of_row,
            live=(wires >= spare) & (wires < end),
            count=count,
            spare=spare,
        )

    def shares(self, scores: Array, tau: Array, mask: Array | None) -> tuple[Places, Shares, Array]:
        """Where items stand, what layers do to them, and a factor that spoils lists with a NaN."""
        n = scores.shape[-1]
        o = order(scores, tau, mask)
        places, layers = self.places(n, mask), self.layers(n)
        items = jnp.broadcast_to(
            places.item_of_wire, (*scores.shape[:-1], places.item_of_wire.shape[-1])
        )
        at = jnp.take_along_axis(inverse(o.perm), items, -1)
        info = jnp.finfo(o.values.dtype)
        # Lists of which differences would overflow are compared in a larger unit.
        extent = jnp.abs(lax.stop_gradient(o.values)).max(-1, keepdims=True)
        unit = jnp.where(extent > float(info.max) / 8, 8.0, 1.0).astype(o.values.dtype)
        tau = jnp.maximum(o.tau / unit, float(info.tiny))
        values = jnp.take_along_axis(o.values / unit, at, -1)
        rooms = jnp.take_along_axis(o.room, at, -1)
        reach = float(info.max) ** 0.3 * lax.stop_gradient(tau)  # whose cube is a number

        def compare(state: Any, layer: Any) -> tuple[Any, Shares]:
            x, low, room, place = state
            partner, side, longer, run = layer
            # Empty wires stand for the smallest values, and are in front. They stay there only if
            # the run in which they end is sorted upwards: runs take turns from that one on.
            side = side * (1 - 2 * (places.spare // run % 2)).astype(side.dtype)
            other, other_low, other_room, other_place = (jnp.take(a, partner, -1) for a in state)
            live = places.live & jnp.take(places.live, partner, -1) & (places.count > longer)
            mixes = live & (room == other_room)
            ahead = jnp.where(mixes, (x - other) + (low - other_low), 0.0)
            # Items of different rooms swap wholly or not at all; lower rooms hold larger values.
            wrong = side * jnp.where(mixes, ahead, other_room - room)
            if self.exact:  # positions, which have no ties: these swap as a stable sort has them
                wrong = side * (other_place - place)
            swapped = (wrong > 0) & live
            place = jnp.where(swapped, other_place, place)
            apart = jnp.where(swapped, side, -side) * ahead
            apart = jnp.clip(apart, max=reach) / tau
            share = SMALLER_SHARES[self.swap]
            smaller = jnp.where(mixes, share(apart), 0.0)
            steeper = jnp.where(mixes, _steep(share, apart), 0.0)
            kept = jnp.where(swapped, other, x)
            step = smaller * jnp.where(swapped, ahead, -ahead)
            total = straight_through(kept, kept + step) if self.exact else kept + step
            back = total - kept  # what was added: the rest of the step is lost, but for `low`
            lost = (kept - (total - back)) + (step - back)
            low = jnp.where(swapped, other_low, low) + lax.stop_gradient(lost)
            if self.exact:
                low = jnp.zeros_like(low)
            state = total, low, jnp.where(swapped, other_room, room), place
            return state, Shares(swapped, steeper)

        start = values, jnp.zeros_like(values), rooms, at
        side = layers.side.astype(values.dtype)
        _, shares = lax.scan(compare, start, (layers.partner, side, layers.longer, layers.run))
        return places, shares, o.poison

    def mix(self, x: Array, shares: Shares, n: int, reverse: bool) -> Array:
        """What stands on the wires `(..., width, d)` after all layers, or before them."""

        def layer(x: Array, each: Any) -> tuple[Array, None]:
            partner, swapped, smaller = each
            other = jnp.take(x, partner, -2)
            swapped, smaller = swapped[..., None], smaller[..., None]
            kept, left = jnp.where(swapped, other, x), jnp.where(swapped, x, other)
            if not self.exact:
                return _blend(smaller, kept, left), None
            if not reverse:
                return straight_through(kept, _blend(smaller, kept, left)), None
            # The transpose of that: values go the way of its gradients, and the other way round.
            soft = _blend(smaller, lax.stop_gradient(kept), lax.stop_gradient(left))
            return soft + straight_through(jnp.zeros_like(kept), kept), None

        smaller = shares.smaller.astype(x.dtype)
        each = self.layers(n).partner, shares.swapped, smaller
        return lax.scan(layer, x, each, reverse=reverse)[0]


# Differences of large payloads overflow, and infinity times a derivative of 0 is NaN. So a blend
# differentiates in eighths of the payload, and its shares in eighths of a temperature.
STEEP = 8.0


@functools.partial(jax.custom_jvp, nondiff_argnums=(0,))
def _steep(share: Callable[[Array], Array], u: Array) -> Array:
    """`share(u)`, with derivatives `STEEP` times as large."""
    return share(u)


@_steep.defjvp
def _(
    share: Callable[[Array], Array], primals: tuple[Array], tangents: tuple[Array]
) -> tuple[Array, Array]:
    return jax.jvp(share, primals, (STEEP * tangents[0],))


@jax.custom_jvp
def _blend(share: Array, kept: Array, left: Array) -> Array:
    """`(1 - share) kept + share left`, for shares whose derivatives are `STEEP` times too large."""
    return (1 - share) * kept + share * left


@_blend.defjvp
def _(primals: tuple[Array, ...], tangents: tuple[Array, ...]) -> tuple[Array, Array]:
    (share, kept, left), (to_share, to_kept, to_left) = primals, tangents
    # `_blend` of the tangents, so that second derivatives see the same shares.
    along = _blend(share, to_kept, to_left)
    return _blend(*primals), along + to_share * (left / STEEP - kept / STEEP)


def _inverse(wires: Array, width: int) -> Array:
    """What stands on each wire `(..., width)`, for wires `(..., n)`."""
    return put(wires, jnp.broadcast_to(jnp.arange(wires.shape[-1]), wires.shape), width)


# -- the operator ----------------------------------------------------------------------------------


@pytree("_scores", "_tau", "_mask", static=("_network", "_rows"))
class NetworkPermutation(ScorePermutation):
    """The relaxed permutation of a sorting network: products pass through its layers."""

    def __init__(
        self, network: Network, scores: Array, tau: Array, mask: Array | None, rows: int
    ) -> None:
        super().__init__(scores, tau, mask, rows)
        self._network = network

    def _kind(self) -> str:
        return "sorting_network"

    def _written(self) -> bool:
        return False

    def _top(self, k: int) -> RelaxedPermutation:
        return NetworkPermutation(self._network, *self._lists(), k)

    def _matrix(self) -> Array:
        return self._product(jnp.eye(self.shape[-1], dtype=working(self.dtype)))

    def _product(self, x: Array) -> Array:
        return _product(self._network, self._rows, *self._lists(), x)

    def _sort(self, x: Array) -> Array:
        # Layers multiply by 0 too: what is not finite and mixes with nothing is kept out of them.
        apart = jnp.isinf(self._scores)
        if self._mask is not None:
            apart = apart | ~self._mask
        alone = apart & ~jnp.isfinite(x)
        common = _common_offset(lax.stop_gradient(x), apart)
        soft = super()._sort(jnp.where(alone, 0.0, x - common)) + common
        perm = jnp.broadcast_to(self.permutation(), soft.shape)
        own = jnp.take_along_axis(jnp.broadcast_to(x, alone.shape), perm, -1)
        return jnp.where(jnp.take_along_axis(alone, perm, -1), own, soft)

    def _transposed(self, y: Array) -> Array:
        rows = jnp.pad(y, [*[(0, 0)] * (y.ndim - 2), (0, self.shape[-1] - self._rows), (0, 0)])
        return _transposed(self._network, *self._lists(), rows)

    def _rank(self) -> Array:
        place = jnp.arange(1, self.shape[-1] + 1, dtype=working(self.dtype))
        return self._transposed(place[:, None])[..., 0]  # columns sum to 1


@functools.partial(jax.jit, static_argnums=(0, 1))
def _product(network: Network, rows: int, *args: Any) -> Array:
    *lists, x = args
    places, shares, poison = network.shares(*lists)
    wires = _for_all(take_rows(x, places.item_of_wire), lists[0])
    wires = network.mix(wires, shares, x.shape[-2], reverse=False)
    return take_rows(wires, places.wire_of_row[..., :rows]) * poison[..., None]


@functools.partial(jax.jit, static_argnums=0)
def _transposed(network: Network, *args: Any) -> Array:
    *lists, y = args
    places, shares, poison = network.shares(*lists)
    wires = _for_all(take_rows(y, places.row_of_wire), lists[0])
    wires = network.mix(wires, shares, y.shape[-2], reverse=True)
    return take_rows(wires, places.wire_of_item) * poison[..., None]


def _for_all(wires: Array, scores: Array) -> Array:
    """A payload `(..., width, d)` for every list."""
    batch = jnp.broadcast_shapes(wires.shape[:-2], scores.shape[:-1])
    return jnp.broadcast_to(wires, (*batch, *wires.shape[-2:]))


def _common_offset(x: Array, apart: Array) -> Array:
    """What all values that mix have in common, `(..., 1)`; 0 if they lie on both sides of 0.

    Columns of layers sum to 1, so an offset may be taken out and put back. In the gradient to the
    scores it would cancel, and cost digits. It is the value nearest to 0: no result loses any.
    """
    low = jnp.where(apart, jnp.inf, x).min(-1, keepdims=True)
    high = jnp.where(apart, -jnp.inf, x).max(-1, keepdims=True)
    common = jnp.maximum(low, 0.0) + jnp.minimum(high, 0.0)
    return jnp.where(jnp.isfinite(common), common, 0.0)
