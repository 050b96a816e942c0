"""How far one item lies below another in NeuralSort's logits, in full relative precision.

Like everything in this room it adds gaps and never subtracts sums of them: beside a score of 1e30
the others keep all their digits.
"""

import torch
from torch import Tensor
from torch.nn.functional import pad


def fall_between(gaps: Tensor, place: Tensor) -> Tensor:
    """Gaps between row i and the item at `place[i]`, times 1, 3, 5, ... from the row on.

    Of all multiples of powers of two between the two positions, one is a multiple of the highest
    power. The way from the row to that boundary and the way from there to the item are sums within
    halves of one aligned tile, and running sums within all tiles of that size serve all rows.

    Args:
        gaps: `(..., n)`. The gap after each position, infinite where nothing passes.
        place: `(..., rows)`. Sorted positions, of the same batch.

    Returns:
        `(..., rows)`. Time O(n log n).
    """
    n, rows = gaps.shape[-1], place.shape[-1]
    row = torch.arange(rows, device=place.device)
    apart = row ^ place
    fall = torch.zeros_like(place, dtype=gaps.dtype)
    half = 1
    while half < n:
        near, total, outward = _about_boundaries(gaps, half)
        here = (apart >= half) & (apart < 2 * half)
        middle = row // (2 * half) * (2 * half) + half
        steps = (row - middle).abs()  # gaps between the row and the boundary
        crossed = total.gather(-1, place)
        lifted = torch.where((steps > 0) & (crossed > 0), 2 * steps * crossed, 0.0)
        way = near[..., :rows] + outward.gather(-1, place) + lifted
        fall = torch.where(here, way, fall)
        half *= 2
    return fall


def _about_boundaries(gaps: Tensor, half: int) -> tuple[Tensor, Tensor, Tensor]:
    """For each position, sums over the gaps between it and the middle of its tile of 2 half.

    Returns:
        Three `(..., n)`: gaps times 1, 3, 5, ... from the position on; plain; and times 1, 3, 5,
        ... from the middle on.
    """
    n = gaps.shape[-1]
    tiles = -(-n // (2 * half))
    whole = pad(gaps, (0, tiles * 2 * half - n)).unflatten(-1, (tiles, 2, half))
    odd = torch.arange(1, 2 * half, 2, dtype=gaps.dtype, device=gaps.device)
    # Outward from the middle: the first half backwards; the second up to, but without, its own gap.
    first = torch.stack([whole[..., 0, :].flip(-1), pad(whole[..., 1, :-1], (1, 0))], -2)
    weights = torch.stack([odd, pad(odd[:-1], (1, 0))])
    total, outward = first.cumsum(-1), (first * weights).cumsum(-1)
    near = total + 2 * pad(total, (1, 0))[..., :-1].cumsum(-1)

    def in_order(x: Tensor) -> Tensor:
        return torch.stack([x[..., 0, :].flip(-1), x[..., 1, :]], -2).flatten(-3)[..., :n]

    return in_order(near), in_order(total), in_order(outward)


def all_falls(gaps: Tensor, start: int = 0, stop: int | None = None) -> Tensor:
    """The same for rows `start:stop` and every position, `(..., rows, n)`: 0 for a row's own."""
    n = gaps.shape[-1]
    index = torch.arange(n, device=gaps.device)
    row = index[start : n if stop is None else stop].unsqueeze(-1)
    ranks = 2 * (index - row) + 1  # from each row to the gap after each position
    after = (gaps.unsqueeze(-2) * ranks.clamp(min=1)).masked_fill(ranks < 0, 0.0)
    before = (gaps.unsqueeze(-2) * (-ranks).clamp(min=1)).masked_fill(ranks > 0, 0.0)
    return pad(after.cumsum(-1)[..., :-1], (1, 0)) + before.flip(-1).cumsum(-1).flip(-1)
