"""Rows with group numbers to padded lists and back."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import neuralsort.torch as ns


@given(st.lists(st.integers(-3, 3), max_size=20))
def test_there_and_back(numbers):
    groups = torch.tensor(numbers, dtype=torch.int64)
    for values in (torch.randn(len(groups)), torch.randn(len(groups), 2, 3), groups.clone()):
        padded, mask = ns.pad_groups(values, groups)
        assert mask.sum() == len(groups)
        assert torch.equal(ns.unpad_groups(padded, mask, groups), values)
        for number, rows, there in zip(sorted(set(numbers)), padded, mask, strict=True):
            assert torch.equal(rows[there], values[groups == number])
            assert (rows[~there] == 0).all()


def test_ranks_within_groups():
    values, groups = torch.randn(30, dtype=torch.float64), torch.randint(0, 4, (30,))
    padded, mask = ns.pad_groups(values, groups)
    ranks = ns.unpad_groups(ns.fast_soft_rank(padded, tau=0.1, mask=mask), mask, groups)
    for number in groups.unique():
        inside = groups == number
        torch.testing.assert_close(ranks[inside], ns.fast_soft_rank(values[inside], tau=0.1))


def test_gradients_flow():
    values = torch.randn(6, dtype=torch.float64, requires_grad=True)
    groups = torch.tensor([5, 1, 5, 5, 2, 1])

    def through(values):
        padded, mask = ns.pad_groups(values, groups)
        return ns.unpad_groups(padded**2, mask, groups)

    assert torch.autograd.gradcheck(through, (values,))


def test_messages():
    values = torch.zeros(3)
    with pytest.raises(TypeError, match="one integer per row, got torch.float32"):
        ns.pad_groups(values, torch.zeros(3))
    with pytest.raises(ValueError, match=r"values \(N, ...\) and groups \(N,\), got \(3,\)"):
        ns.pad_groups(values, torch.tensor([1, 2]))
    padded, mask = ns.pad_groups(values, torch.tensor([1, 1, 2]))
    with pytest.raises(ValueError, match=r"the lists that these groups make, \(G, n\) = \(1, 3\)"):
        ns.unpad_groups(padded, mask, torch.tensor([1, 1, 1]))
    with pytest.raises(ValueError, match="Give it the mask and the groups of `pad_groups`"):
        ns.unpad_groups(padded, ~mask, torch.tensor([1, 1, 2]))
    with pytest.raises(TypeError, match="`mask` expects a boolean tensor"):
        ns.unpad_groups(padded, mask.long(), torch.tensor([1, 1, 2]))
