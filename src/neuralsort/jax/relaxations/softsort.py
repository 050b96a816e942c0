"""SoftSort: rows weigh items by their distance from the score that belongs there."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import jax.numpy as jnp
from jax import Array, lax

from ... import _options
from ..._blur import gaussian, laplace
from .. import _checks
from ..gradients import straight_through
from ..permutation import RelaxedPermutation
from .engine.blocks import cut
from .ordering import Ordered, share_ties, tie_groups
from .scored import relaxed_by

# Scores farther apart than this many units are as good as this far; its square is a number.
FAR = 1e15


def softsort(
    scores: Array,
    *,
    tau: _checks.Tau = 1.0,
    power: float = 1.0,
    mask: Array | None = None,
    bandwidth: int | None = None,
) -> RelaxedPermutation:
    r"""Relaxes the permutation that sorts `scores` in descending order, by distances of scores.

    $$\widehat P_{i,:} = \operatorname{softmax}\big[-|s_{[i]} - s|^p/\tau\big]$$

    where $s_{[i]}$ is the i-th largest score. Rows sum to one, and the row-wise argmax is the
    stable descending sort. As `tau` tends to 0 this becomes the hard permutation matrix of
    `jnp.argsort(scores, descending=True)`.

    Args:
        scores: `(..., n)`. Values to sort; leading dimensions are batch.
        tau: Temperature: a number, a `Blur`, or an array that broadcasts against `scores` with a
            last dimension of 1; it may have gradients. It has the unit of `scores` to the power
            `power`; 0 is the hard permutation.
        power: 1 for absolute distances, 2 for squared ones.
        mask: `(..., n)` boolean, True where the item exists. Absent items take no part; the last
            rows place them in index order.
        bandwidth: Ranks to either side beyond which rows of long lists are expected to hold no
            weight; tested and reported as in `neuralsort`.

    Returns:
        The relaxed permutation `(..., n, n)`. Row `i` weighs the items for position `i`, largest
        first.

    Raises:
        TypeError: If `scores` is not floating point, or `mask` not boolean.
        ValueError: If `tau` is negative, `power` is neither 1 nor 2, or a shape does not fit.

    Example:
        >>> scores = jnp.array([1.0, 3.0, 2.0])
        >>> softsort(scores, tau=0.1).sort(scores).round(2)
        Array([3., 2., 1.], dtype=float32)

    Reference: Prillo and Eisenschlos (2020), Eq. 3. Time: O(n^2) per list, or O(n bandwidth).
    Memory: O(n^2) up to 1024 items, then O(n) for any data.
    """
    _checks.static(power=power)
    power = _options.power(power)
    of_blur = laplace if power == 1 else gaussian
    kernel = SoftSortKernel(power)
    return relaxed_by(
        "softsort", kernel, scores, tau, mask, bandwidth, of_blur=of_blur, power=power
    )


class Columns(NamedTuple):
    """Items in sorted order, `(..., n)`, or a window of them.

    Attributes:
        values: Scores as columns.
        own: Scores as rows, which share the gradient among ties.
        room: Which items mix.
        tau: `(..., 1)`.
    """

    values: Array
    own: Array
    room: Array
    tau: Array


@dataclass(frozen=True)
class SoftSortKernel:
    """Log-weights that fall by the distance of scores, or by its square."""

    banded: ClassVar[bool] = False
    dense_share: ClassVar[float] = 1.0
    packed: ClassVar[Callable[..., Any]] = Columns
    power: float

    def columns(self, o: Ordered) -> Columns:
        """Tied rows are one score that occurs several times: its gradient is shared among them."""
        shared = share_ties(o.values, tie_groups(o.values, o.room))
        return Columns(o.values, straight_through(o.values, shared), o.room, o.tau)

    def edges(self, columns: Columns, at: Array, size: int) -> tuple[Array, Array]:
        """Least fall of the rows `at, ..., at + size - 1` to the window's first and last column."""

        def least(row: Array, column: int) -> Array:
            own, room = (cut(x, row, 1)[..., 0] for x in (columns.own, columns.room))
            value, other = columns.values[..., column], columns.room[..., column]
            return self._fall(own, value, room, other, columns.tau[..., 0])

        return least(at, 0), least(at + size - 1, -1)

    def fall(self, columns: Columns, at: Array, size: int) -> Array:
        """How far logits lie below their row's peak, `(..., size, w)`."""
        row, room = cut(columns.own, at, size)[..., None], cut(columns.room, at, size)[..., None]
        values, rooms = columns.values[..., None, :], columns.room[..., None, :]
        return self._fall(row, values, room, rooms, columns.tau[..., None])

    def _fall(self, row: Array, column: Array, room: Array, other: Array, tau: Array) -> Array:
        scale = tau if self.power == 1 else jnp.sqrt(tau)
        distance = jnp.clip((row - column) / scale, -FAR, FAR)
        # |d| by its sign, which is 0 at ties: the derivative of `jnp.abs` there is 1.
        side = jnp.sign(lax.stop_gradient(distance))
        fall = side * distance if self.power == 1 else distance**2
        return jnp.where(room == other, fall, jnp.inf)
