"""Layers of sorting networks: which wires are compared."""

from typing import NamedTuple

import numpy as np


class Layers(NamedTuple):
    """Which wires are compared; one row per layer.

    Attributes:
        partner: `(layers, width)`. The wire each is compared with; itself for none.
        side: `(layers, width)`. 1 for the wire that should hold the smaller value, else -1.
        longer: `(layers,)`. Lists of so few items are in order before this layer.
        run: `(layers,)`. Runs of so many wires are sorted upwards and downwards in turn.
    """

    partner: np.ndarray
    side: np.ndarray
    longer: np.ndarray
    run: np.ndarray


def odd_even(n: int) -> Layers:
    """Neighbours, from the first and from the second wire in turn."""
    wire, start = np.arange(n), np.arange(n)[:, None] % 2
    partner = ((wire - start) ^ 1) + start
    partner = np.where((partner < 0) | (partner >= n), wire, partner)
    return Layers(partner, np.where(wire < partner, 1, -1), np.arange(n), np.full(n, max(n, 1)))


def bitonic(n: int) -> Layers:
    """Runs of 1, 2, 4, ... wires merged in pairs, one upwards and the next downwards.

    Pairs are those of the next power of two; with fewer items some wires are empty.
    """
    sizes = [1 << i for i in range((n - 1).bit_length())]
    pairs = [(run, distance) for run in sizes for distance in reversed(sizes) if distance <= run]
    run, distance = np.array(pairs, int).reshape(-1, 2, 1).swapaxes(0, 1)
    wire = np.arange(next_power(n))
    upwards = wire // (2 * run) % 2 == 0
    side = np.where((wire & distance == 0) == upwards, 1, -1)
    return Layers(wire ^ distance, side, run[:, 0], 2 * run[:, 0])


def next_power(n: int) -> int:
    """The next power of two."""
    return 1 << (n - 1).bit_length()
