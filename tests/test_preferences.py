"""Listwise DPO: its pairwise case, partial rankings, ties as groups."""

import itertools

import pytest
import torch
from torch.nn.functional import logsigmoid

import neuralsort.torch as ns


def both(*shape: int) -> tuple[torch.Tensor, torch.Tensor]:
    policy, reference = (-100 + 20 * torch.randn(*shape, dtype=torch.float64) for _ in range(2))
    return policy.requires_grad_(), reference


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("beta", [0.01, 0.1, 2.0])
def test_pairs_have_the_loss_of_dpo(dtype, beta):
    policy, reference = (x.detach().to(dtype).requires_grad_() for x in both(50, 2))
    ours = ns.listwise_dpo_loss(policy, reference, torch.tensor([0, 1]), beta=beta)
    ratio = policy - reference.detach()
    expected = -logsigmoid(beta * (ratio[:, 0] - ratio[:, 1])).mean()
    torch.testing.assert_close(ours, expected, rtol=1e-6, atol=1e-6)
    (gradient,) = torch.autograd.grad(ours, policy)
    torch.testing.assert_close(gradient, torch.autograd.grad(expected, policy)[0])


def test_the_reference_gets_no_gradient():
    policy, reference = both(4, 3)
    reference.requires_grad_()
    ns.listwise_dpo_loss(policy, reference, torch.tensor([2, 0, 1])).backward()
    assert reference.grad is None


def test_full_and_partial_rankings_are_plackett_luce():
    policy, reference = both(5, 6)
    order = torch.stack([torch.randperm(6) for _ in range(5)])
    for k in (1, 3, 6):
        ours = ns.listwise_dpo_loss(policy, reference, order[:, :k], beta=0.3)
        expected = ns.plackett_luce_nll(0.3 * (policy - reference), order[:, :k])
        torch.testing.assert_close(ours, expected)


def by_hand(rewards: list[float], groups: list[list[int]]) -> float:
    """Groups from the best down, each of whose members is chosen among all that are left."""
    left, total = set(range(len(rewards))), 0.0
    for group in groups:
        norm = torch.tensor([rewards[j] for j in left]).double().logsumexp(0).item()
        total += sum(norm - rewards[j] for j in group)
        left -= set(group)
    return total


def test_ties_are_groups_whose_order_does_not_count():
    rewards = [0.4, -1.0, 2.0, 0.1, 0.9]
    policy, reference = torch.tensor(rewards).double(), torch.zeros(5).double()
    ties = torch.tensor([False, True, False, True])  # {2, 0}, {4, 1}, and 3 behind them
    expected = by_hand(rewards, [[2, 0], [4, 1]])
    for first, second in itertools.product([(2, 0), (0, 2)], [(4, 1), (1, 4)]):
        ranking = torch.tensor([*first, *second])
        ours = ns.listwise_dpo_loss(policy, reference, ranking, beta=1.0, ties=ties)
        assert abs(ours.item() - expected) < 1e-6


def test_all_tied_is_least_where_rewards_are_equal():
    ties = torch.tensor([False, True, True])
    policy = torch.zeros(3, requires_grad=True)
    loss = ns.listwise_dpo_loss(policy, torch.zeros(3), torch.tensor([0, 1, 2]), ties=ties)
    (gradient,) = torch.autograd.grad(loss, policy)
    torch.testing.assert_close(gradient, torch.zeros(3))


def test_masks_are_padding_invariant():
    policy, reference = both(3, 4)
    mask = torch.arange(4) < torch.tensor([[4], [2], [0]])
    ranking = torch.tensor([[3, 1, 0, 2], [1, 0, 9, 9], [9, 9, 9, 9]])
    spoilt = policy.masked_fill(~mask, torch.nan)
    options = {"mask": mask, "reduction": "none"}
    ours = ns.listwise_dpo_loss(spoilt, reference, ranking, **options)
    short = ns.listwise_dpo_loss(policy[1, :2], reference[1, :2], ranking[1, :2])
    torch.testing.assert_close(ours[1], short)
    assert ours[2] == 0
    (gradient,) = torch.autograd.grad(ours.sum(), policy)
    assert (gradient[~mask] == 0).all()


def test_gradients():
    policy, reference = both(2, 4)
    ties = torch.tensor([[False, False, True], [False, True, False]])

    def loss(policy):
        ranking = torch.tensor([[3, 1, 0], [2, 3, 1]])
        return ns.listwise_dpo_loss(policy, reference, ranking, ties=ties, reduction="none")

    assert torch.autograd.gradcheck(loss, (policy,))


def test_messages():
    policy, reference = both(2, 3)
    pair = torch.tensor([0, 1])
    with pytest.raises(ValueError, match=r"the shape of `policy_logps`, \(2, 3\), got \(2, 2\)"):
        ns.listwise_dpo_loss(policy, reference[:, :2], pair)
    with pytest.raises(ValueError, match="`beta` must be positive and finite, got 0.0"):
        ns.listwise_dpo_loss(policy, reference, pair, beta=0)
    with pytest.raises(TypeError, match="`ties` expects booleans, .* got torch.int64"):
        ns.listwise_dpo_loss(policy, reference, pair, ties=pair)
    with pytest.raises(ValueError, match=r"`ties` must have the shape of the ranking, \(2, 2\)"):
        ns.listwise_dpo_loss(policy, reference, pair, ties=torch.zeros(3, dtype=torch.bool))
    with pytest.raises(ValueError, match="must list distinct items"):
        ns.listwise_dpo_loss(policy, reference, torch.tensor([1, 1]))
