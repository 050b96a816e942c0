"""Preferences: a policy that learns rankings of its own responses, beside a reference."""

from torch import Tensor

from .. import _options
from . import _checks
from .arrays import longest, working
from .losses import reduced
from .rankings import Permutation, log_density


def listwise_dpo_loss(
    policy_logps: Tensor,
    reference_logps: Tensor,
    ranking: Tensor,
    *,
    beta: float = 0.1,
    ties: Tensor | None = None,
    mask: Tensor | None = None,
    reduction: str = "mean",
) -> Tensor:
    r"""Direct preference optimisation on rankings of several responses.

    $$-\log q(z) = \sum_{i=1}^{k} \Big[\log \sum_{j \notin \{z_1, \dots, z_{b(i)}\}} e^{r_j} -
      r_{z_i}\Big], \qquad r_j = \beta \log \frac{\pi(y_j \mid x)}{\pi_{\text{ref}}(y_j \mid x)}$$

    the Plackett-Luce likelihood of the ranking with the implicit rewards $r$ for logits: each place
    is a choice among the responses that are not placed before it, $b(i) = i - 1$. Responses that
    are tied form a group: each of them is chosen among all that are not placed before the group, so
    that their order does not count. Of two responses, the better first, this is the loss of DPO,
    $-\log \sigma(r_{z_1} - r_{z_2})$.

    Args:
        policy_logps: `(..., n)`. Log-probability of each response under the policy, summed over its
            tokens.
        reference_logps: `(..., n)`. The same under the reference. It gets no gradient.
        ranking: `(..., k)` integers with k <= n. The responses from the best down; with k < n the
            others are only known to be no better than these. Leading dimensions broadcast against
            those of the log-probabilities.
        beta: How strongly the policy is held to its reference, positive.
        ties: `(..., k)` boolean, True where a place is tied with the one before. None for no ties.
        mask: `(..., n)` boolean, True where the response exists. With m present, the first m places
            hold present responses, and later places are ignored.
        reduction: `"mean"` or `"sum"` over lists, or `"none"`.

    Returns:
        A scalar, or one loss per list for `"none"`. A list without responses has loss 0.

    Raises:
        TypeError: If log-probabilities are not floating point, `ranking` not integer, or `ties` or
            `mask` not boolean.
        ValueError: If a shape does not fit, `beta` is not positive, `reduction` is not known, or
            the ranking lists a response twice, an absent one or one out of range; on accelerators
            and where the function is compiled, values are not read.

    Example:
        >>> import torch
        >>> policy = torch.tensor([-12.0, -9.0, -11.0], requires_grad=True)
        >>> reference = torch.tensor([-11.0, -10.0, -11.0])
        >>> listwise_dpo_loss(policy, reference, torch.tensor([1, 2, 0]))
        tensor(1.6463, grad_fn=<MeanBackward0>)
        >>> listwise_dpo_loss(policy, reference, torch.tensor([1]))  # the best one alone is known
        tensor(1.0019, grad_fn=<MeanBackward0>)

    Reference: Rafailov et al. (2023), appendix A.3; Breslow (1974) for ties. Time and memory: O(n).
    """
    policy_logps = _checks.scores("listwise_dpo_loss(policy_logps)", policy_logps)
    _checks.paired_logps(policy_logps, reference_logps)
    beta = _options.beta(beta)
    n = policy_logps.shape[-1]
    ranking = _checks.ranking(ranking, n)
    batch = _checks.batch_of_rankings(ranking, policy_logps.shape[:-1])
    ranking = ranking.expand(*batch, ranking.shape[-1])
    ties = _checks.ties(ties, ranking)
    exact = working(policy_logps.dtype)
    rewards = beta * (policy_logps.to(exact) - reference_logps.detach().to(exact))
    rewards = rewards.expand(*batch, n)
    mask = _checks.mask(mask, rewards)
    if _checks.readable(ranking):
        _checks.distinct_items(Permutation(n).check(ranking, mask), ranking, n)
    if mask is not None:
        rewards = rewards.masked_fill(~mask, 0.0)
    long = rewards.to(longest(rewards.device))
    return reduced(-log_density(long, ranking, mask, ties).to(exact), reduction)
