"""Plain numbers of any make are numbers everywhere; flags and text are numbers nowhere."""

import fractions

import numpy as np
import pytest
import torch

import neuralsort.torch as ns
from neuralsort import _options

REAL = {
    "tau": _options.temperature,
    "power": _options.power,
    "ranks": _options.blur,
    "tolerance": _options.tolerance,
    "strength": _options.strength,
}
WHOLE = {
    "bandwidth": _options.bandwidth,
    "k": lambda value: _options.k(value, 3),
    "k of neighbours": lambda value: _options.neighbours(value, 3),
    "k of a cutoff": lambda value: _options.cutoff(value, 3),
    "dim": lambda value: _options.dim(value, (1, 1, 1)),
    "iterations": _options.iterations,
    "samples": _options.samples,
}


@pytest.mark.parametrize("name", REAL)
def test_real_options_take_every_real_number(name):
    for value in (2, 2.0, np.float32(2), np.float64(2), np.int64(2), fractions.Fraction(2)):
        taken = REAL[name](value)
        assert (type(taken), taken) == (float, 2.0)


@pytest.mark.parametrize("name", WHOLE)
def test_whole_options_take_every_index(name):
    for value in (2, np.int64(2), np.uint8(2), torch.tensor(2)):
        taken = WHOLE[name](value)
        assert (type(taken), taken) == (int, 2)


@pytest.mark.parametrize("name", [*REAL, *WHOLE])
def test_flags_and_text_are_no_numbers(name):
    option = name.split()[0]
    for value in (True, np.True_, "2", [2]) + ((2.0, np.float64(2)) if name in WHOLE else ()):
        with pytest.raises(TypeError, match=rf"`{option}` expects .*got {type(value).__name__}\. "):
            (REAL | WHOLE)[name](value)


def test_shares_may_be_named_by_any_index():
    shares = _options.top_shares({np.int64(1): 0.5, 2: 0.5}, 3)
    assert {type(size) for size in shares} == {int}


def test_a_distribution_is_no_relaxed_permutation():
    model = ns.PlackettLuce(torch.zeros(3))
    with pytest.raises(TypeError, match="expects a RelaxedPermutation, got PlackettLuce"):
        ns.permutation_cross_entropy(model, torch.arange(3))
