"""Lists of several lengths: from rows with a group number to padded lists with a mask, and back."""

import jax.numpy as jnp
import numpy as np
from jax import Array

from . import _checks


def pad_groups(values: Array, groups: Array) -> tuple[Array, Array]:
    """Collects the rows of each group in a list, and pads lists to one length.

    Args:
        values: `(N, ...)`. One row per item, of any dtype; rows of a group need not be neighbours.
        groups: `(N,)` integers. The group of each row, any numbers. How many there are decides
            shapes: they must be known when the function is traced.

    Returns:
        `padded`, `(G, n, ...)`: one list per group, in ascending order of the groups' numbers, rows
        in the order in which they came, 0 behind them; n is the size of the largest group. And
        `mask`, `(G, n)` boolean, True where there is a row: what every function takes.

    Raises:
        TypeError: If `groups` is not integer.
        ValueError: If there is not one group per row.

    Example:
        >>> padded, mask = pad_groups(jnp.array([1.0, 2.0, 3.0]), jnp.array([7, 4, 7]))
        >>> padded
        Array([[2., 0.],
               [1., 3.]], dtype=float32)
        >>> mask
        Array([[ True, False],
               [ True,  True]], dtype=bool)

    Gradients flow to the values. Time: O(N log N); memory: that of the padded lists.
    """
    group, place, count = _places("pad_groups", values, groups)
    longest = int(count.max()) if len(count) else 0
    empty = jnp.zeros((len(count), longest, *values.shape[1:]), values.dtype)
    return empty.at[group, place].set(values), jnp.arange(longest) < count[:, None]


def unpad_groups(padded: Array, mask: Array, groups: Array) -> Array:
    """The inverse of `pad_groups`: padded lists to one row per item, in the items' own order.

    Args:
        padded: `(G, n, ...)`. What was made of the padded lists, such as ranks.
        mask: `(G, n)` boolean, the mask of `pad_groups`.
        groups: `(N,)` integers, the groups that `pad_groups` was given.

    Returns:
        `(N, ...)`.

    Raises:
        TypeError: If `groups` is not integer, or `mask` not boolean.
        ValueError: If the groups do not fit the lists.

    Example:
        >>> groups = jnp.array([7, 4, 7])
        >>> padded, mask = pad_groups(jnp.array([1.0, 2.0, 3.0]), groups)
        >>> unpad_groups(padded, mask, groups)
        Array([1., 2., 3.], dtype=float32)

    Gradients flow to the lists. Time: O(N log N); memory: O(N).
    """
    group, place, count = _places("unpad_groups", groups, groups)
    _checks.grouped_lists(padded, mask, count)
    return padded[group, place]


def _places(name: str, values: Array, groups: Array) -> tuple[np.ndarray, ...]:
    """The list of each row, its place in there, and the size of each list; known to the tracer."""
    known = _checks.groups(name, values, groups)
    _, group, count = np.unique(known, return_inverse=True, return_counts=True)
    order = np.argsort(group, kind="stable")
    place = np.empty_like(group)
    place[order] = np.arange(len(group)) - (np.cumsum(count) - count)[group[order]]
    return group, place, count
