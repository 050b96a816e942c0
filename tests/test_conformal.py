"""Conformal quantiles: which score, how many it covers, and what gradients do."""

import math

import numpy as np
import pytest
import torch

import neuralsort.torch as ns


@pytest.mark.parametrize("n", [1, 5, 9, 19, 50, 99, 100])
@pytest.mark.parametrize("alpha", [0.01, 0.05, 0.1, 0.3, 0.5, 0.9])
def test_the_hard_value_is_the_textbook_score(n, alpha):
    scores = torch.randn(n, dtype=torch.float64)
    place = min(math.ceil(round((n + 1) * (1 - alpha), 9)), n)
    expected = scores.sort().values[place - 1]
    assert ns.conformal_quantile(scores, alpha, tau=0) == expected
    level = min(place / n, 1.0)
    by_numpy = np.quantile(scores.numpy(), level, method="inverted_cdf")
    assert math.isclose(expected.item(), by_numpy) or n * level != round(n * level)


def test_a_hundred_scores_at_ten_percent():
    """The 91st, not the 10th; and no error where 50 scores are too few for 1 %."""
    soft = ns.conformal_quantile(torch.arange(1.0, 101.0), 0.1, tau=0.1)
    assert abs(soft - 91) < 0.5
    assert ns.conformal_quantile(torch.arange(1.0, 51.0), 0.01, tau=0) == 50


def test_coverage_is_what_is_promised():
    """Between 1 - alpha and 1 - alpha + 1 / (n + 1) over 40,000 draws, within 4 standard errors."""
    generator = torch.Generator().manual_seed(0)
    n, alpha = 30, 0.2
    draws = torch.randn(40_000, n + 1, generator=generator)
    quantile = ns.conformal_quantile(draws[:, :n], alpha, tau=0)
    covered = (draws[:, n] <= quantile).float().mean().item()
    error = 4 * math.sqrt(alpha * (1 - alpha) / 40_000)
    assert 1 - alpha - error <= covered <= 1 - alpha + 1 / (n + 1) + error


def test_masks_are_padding_invariant():
    scores = torch.randn(5, 12, dtype=torch.float64)
    mask = torch.arange(12) < torch.tensor([[12], [7], [3], [1], [0]])
    ours = ns.conformal_quantile(scores.masked_fill(~mask, math.nan), 0.2, tau=0.3, mask=mask)
    for row, there, value in zip(scores[:4], mask, ours, strict=False):
        torch.testing.assert_close(value, ns.conformal_quantile(row[there], 0.2, tau=0.3))
    assert ours[4].isnan()


def test_gradients_and_dims():
    scores = torch.randn(6, 2, dtype=torch.float64, requires_grad=True)

    def quantile(x):
        return ns.conformal_quantile(x, 0.3, tau=0.5, dim=0, relax=ns.softsort)

    assert quantile(scores).shape == (2,)
    assert torch.autograd.gradcheck(quantile, (scores,))


def test_messages():
    x = torch.zeros(3)
    with pytest.raises(ValueError, match="`alpha` must lie between 0 and 1, got 90"):
        ns.conformal_quantile(x, 90)
    with pytest.raises(TypeError, match="`alpha` expects a number, got str"):
        ns.conformal_quantile(x, "0.1")
    with pytest.raises(ValueError, match="needs at least one item along dim 0"):
        ns.conformal_quantile(torch.zeros(0), 0.1)
