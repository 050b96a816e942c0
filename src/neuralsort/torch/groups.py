"""Lists of several lengths: from rows with a group number to padded lists with a mask, and back."""

import torch
from torch import Tensor

from . import _checks


def pad_groups(values: Tensor, groups: Tensor) -> tuple[Tensor, Tensor]:
    """Collects the rows of each group in a list, and pads lists to one length.

    Args:
        values: `(N, ...)`. One row per item, of any dtype; rows of a group need not be neighbours.
        groups: `(N,)` integers. The group of each row, any numbers.

    Returns:
        `padded`, `(G, n, ...)`: one list per group, in ascending order of the groups' numbers, rows
        in the order in which they came, 0 behind them; n is the size of the largest group. And
        `mask`, `(G, n)` boolean, True where there is a row: what every function takes.

    Raises:
        TypeError: If `groups` is not integer.
        ValueError: If there is not one group per row.

    Example:
        >>> padded, mask = pad_groups(torch.tensor([1.0, 2.0, 3.0]), torch.tensor([7, 4, 7]))
        >>> padded
        tensor([[2., 0.],
                [1., 3.]])
        >>> mask
        tensor([[ True, False],
                [ True,  True]])

    Gradients flow to the values. Time: O(N log N); memory: that of the padded lists.
    """
    group, place, count = _places("pad_groups", values, groups)
    longest = int(count.max()) if len(count) else 0
    shape = (len(count), longest)
    padded = values.new_zeros(*shape, *values.shape[1:]).index_put((group, place), values)
    return padded, torch.arange(longest, device=values.device) < count.unsqueeze(-1)


def unpad_groups(padded: Tensor, mask: Tensor, groups: Tensor) -> Tensor:
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
        >>> groups = torch.tensor([7, 4, 7])
        >>> padded, mask = pad_groups(torch.tensor([1.0, 2.0, 3.0]), groups)
        >>> unpad_groups(padded, mask, groups)
        tensor([1., 2., 3.])

    Gradients flow to the lists. Time: O(N log N); memory: O(N).
    """
    group, place, count = _places("unpad_groups", groups, groups)
    _checks.grouped_lists(padded, mask, count)
    return padded[group, place]


def _places(name: str, values: Tensor, groups: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The list of each row, its place in there, and the size of each list."""
    groups = _checks.groups(name, values, groups)
    _, group, count = groups.unique(return_inverse=True, return_counts=True)
    order = group.argsort(stable=True)
    start = count.cumsum(0) - count
    index = torch.arange(len(group), device=group.device)
    place = torch.empty_like(group).scatter(0, order, index - start[group[order]])
    return group, place, count
