"""How much better a completion, or a token of it, was than expected.

Two steps, apart: rewards become advantages of samples or tokens, and `per_token` or `whiten` makes of them what a
policy loss takes. A sample without a reward is not `included`: its advantage is 0, and its reward,
NaN too, counts in no mean.

Sums over samples are correctly rounded (math.fsum), so that no advantage depends, by a bit, on the order of the
samples.
"""

import math
from collections import defaultdict
from collections.abc import Callable
from operator import mul
from typing import NamedTuple

import torch
from torch import Tensor

from rlcore.algorithms.arguments import check_finite, check_samples, check_tokens, included_tokens, only
from rlcore.errors import EmptyMaskError, ShapeError


class TokenAdvantages(NamedTuple):
    """What an estimator that works on tokens makes."""

    advantages: Tensor
    """[samples, positions], 0 outside the mask."""
    returns: Tensor
    """[samples, positions], what a value function should learn; 0 outside the mask."""


# ------------------------------------------------------------------------------------------------ relative to a group


def grpo(
    rewards: Tensor,
    groups: Tensor,
    included: Tensor | None = None,
    *,
    eps: float = 1e-6,
    ddof: int = 1,
    keep_lone: bool = True,
) -> Tensor:
    """(reward - mean) / (std + eps) within each group, [samples].

    `rewards` is floats [samples]; `groups` integers [samples], any numbers in any order, groups of any sizes; `ddof` 1
    or 0, the divisor of the variance being n - ddof. A group of equal rewards gives exactly 0. A group of one has no
    mean to be compared with: its advantage is reward / (1 + eps), or 0 without `keep_lone`.

    Raises ShapeError, EmptyMaskError, NonFiniteError. DeepSeekMath (arXiv:2402.03300), section 4.1.
    """

    def normalised(group: list[float]) -> list[float]:
        if len(group) == 1:
            return [group[0] / (1.0 + eps) if keep_lone else 0.0]
        centred = _centred(group)
        std = math.sqrt(math.fsum(c * c for c in centred) / (len(group) - ddof))
        return [c / (std + eps) for c in centred]

    return _within_groups(normalised, rewards, groups, included)


def dr_grpo(rewards: Tensor, groups: Tensor, included: Tensor | None = None, *, keep_lone: bool = True) -> Tensor:
    """Reward - mean within each group, [samples]; arguments and errors as of `grpo`.

    Dr. GRPO (arXiv:2503.20783): GRPO without the division, which favours groups of little spread.
    """

    def centred(group: list[float]) -> list[float]:
        return _centred(group) if len(group) > 1 else [group[0] if keep_lone else 0.0]

    return _within_groups(centred, rewards, groups, included)


def length_weighted(rewards: Tensor, lengths: Tensor, groups: Tensor, included: Tensor | None = None) -> Tensor:
    """Reward - mean over its group's tokens, [samples]: a long completion weighs more in it; else as `dr_grpo`."""
    counted = torch.ones_like(groups, dtype=torch.bool) if included is None else included
    found = torch.zeros_like(rewards)
    for group in set(groups.tolist()):
        own = counted & (groups == group)
        given, weights = rewards[own].tolist(), lengths[own].tolist()
        if len(set(given)) > 1:
            mean = math.fsum(map(mul, given, weights)) / math.fsum(weights)
            found[own] = torch.tensor([each - mean for each in given], dtype=rewards.dtype)
    return found


def rloo(rewards: Tensor, groups: Tensor, included: Tensor | None = None, *, keep_lone: bool = True) -> Tensor:
    """Reward - mean of the others of its group, [samples]; arguments and errors as of `grpo`.

    RLOO (arXiv:2402.14740): the mean of the others is (n mean - reward) / (n - 1).
    """

    def against_others(group: list[float]) -> list[float]:
        n = len(group)
        return [c * n / (n - 1) for c in _centred(group)] if n > 1 else [group[0] if keep_lone else 0.0]

    return _within_groups(against_others, rewards, groups, included)


def reinforce_pp_baseline(
    rewards: Tensor, groups: Tensor, loss_mask: Tensor, included: Tensor | None = None, *, keep_lone: bool = True
) -> Tensor:
    """Reward - mean of its group, whitened over the loss tokens of the batch, [samples, positions].

    Arguments and errors as of `dr_grpo` and `whiten`. REINFORCE++ (arXiv:2501.03262), with baseline.
    """
    advantages = dr_grpo(rewards, groups, included, keep_lone=keep_lone)
    return whiten(per_token(advantages, loss_mask), loss_mask, included)


def _within_groups(
    advantages_of: Callable[[list[float]], list[float]], rewards: Tensor, groups: Tensor, included: Tensor | None
) -> Tensor:
    """Apply a function of one group's rewards to each group: groups may be ragged, so nothing is reshaped."""
    counted = check_samples("rewards", rewards, included, groups=groups).tolist()
    if groups.is_floating_point() or groups.dtype == torch.bool:
        raise ShapeError(f"groups is {groups.dtype}", legal="integers [samples]")
    numbers = rewards.tolist()
    members: dict[int, list[int]] = defaultdict(list)
    for sample, group in enumerate(groups.tolist()):
        if counted[sample]:
            members[group].append(sample)
    advantages = [0.0] * len(numbers)
    for samples in members.values():
        for sample, advantage in zip(samples, advantages_of([numbers[s] for s in samples]), strict=True):
            advantages[sample] = advantage
    return torch.tensor(advantages, dtype=rewards.dtype, device=rewards.device)


def _centred(group: list[float]) -> list[float]:
    if min(group) == max(group):  # n * r / n need not be r, and a division by a tiny std would make much of it
        return [0.0] * len(group)
    mean = math.fsum(group) / len(group)
    return [reward - mean for reward in group]


# ------------------------------------------------------------------------------------------------------ along tokens


def gae(
    token_rewards: Tensor,
    values: Tensor,
    loss_mask: Tensor,
    included: Tensor | None = None,
    *,
    gamma: float = 1.0,
    lam: float = 1.0,
) -> TokenAdvantages:
    """Generalised advantage estimation, not whitened; tokens outside the mask are stepped over.

    `token_rewards`, `values`: floats [samples, positions]. A[t] = delta[t] + gamma lam A[t'], delta[t] = r[t] +
    gamma V[t'] - V[t], t' the sample's next loss token (0 after the last); returns are A + V. Raises ShapeError.
    GAE (arXiv:1506.02438), equation 16.
    """
    check_tokens(loss_mask, token_rewards=token_rewards, values=values)
    counted = included_tokens(loss_mask, included)
    rewards, values = only(counted, token_rewards.detach()), only(counted, values.detach())
    next_value = next_advantage = torch.zeros_like(values[:, 0])
    advantages = torch.zeros_like(values)
    for t in reversed(range(values.shape[1])):
        delta = rewards[:, t] + gamma * next_value - values[:, t]
        advantages[:, t] = delta + gamma * lam * next_advantage
        next_advantage = torch.where(counted[:, t], advantages[:, t], next_advantage)
        next_value = torch.where(counted[:, t], values[:, t], next_value)
    advantages = only(counted, advantages)
    return TokenAdvantages(advantages, advantages + values)


def remax(
    token_rewards: Tensor, baselines: Tensor, loss_mask: Tensor, included: Tensor | None = None
) -> TokenAdvantages:
    """Returns minus the reward of the greedy completion of the same prompt.

    `token_rewards`: floats [samples, positions]; `baselines`: floats [samples]. Raises ShapeError, EmptyMaskError,
    NonFiniteError. ReMax (arXiv:2310.10505), algorithm 1.
    """
    check_samples("baselines", baselines, included)
    returns = discounted_returns(token_rewards, loss_mask, included, gamma=1.0)
    counted = included_tokens(loss_mask, included)
    return TokenAdvantages(only(counted, returns - baselines.detach().unsqueeze(-1)), returns)


def discounted_returns(
    token_rewards: Tensor, loss_mask: Tensor, included: Tensor | None = None, *, gamma: float = 1.0
) -> Tensor:
    """r[t] + gamma r[t'] + ... over a sample's loss tokens, [samples, positions]: GAE of values that are all 0.

    `token_rewards`: floats [samples, positions]. Raises as `gae`.
    """
    zeros = torch.zeros_like(token_rewards)
    return gae(token_rewards, zeros, loss_mask, included, gamma=gamma, lam=1.0).returns


# ---------------------------------------------------------------------------------------------- from one to the other


def per_token(advantages: Tensor, loss_mask: Tensor) -> Tensor:
    """One number a sample, [samples], on each of its loss tokens, [samples, positions]; 0 elsewhere.

    Raises ShapeError, EmptyMaskError, NonFiniteError.
    """
    check_tokens(loss_mask)
    check_samples("advantages", advantages, None)
    return only(loss_mask, advantages.detach().unsqueeze(-1))


def at_last_token(rewards: Tensor, loss_mask: Tensor, included: Tensor | None = None) -> Tensor:
    """One reward a sample, [samples], on its last loss token, [samples, positions]; 0 elsewhere.

    Raises ShapeError, EmptyMaskError, NonFiniteError.
    """
    check_tokens(loss_mask)
    counted = check_samples("rewards", rewards, included)
    num_left = loss_mask.flip(-1).cumsum(-1).flip(-1)  # loss tokens from here to the end
    return only(loss_mask & (num_left == 1) & counted.unsqueeze(-1), rewards.detach().unsqueeze(-1))


def whiten(values: Tensor, loss_mask: Tensor, included: Tensor | None = None, *, eps: float = 1e-8) -> Tensor:
    """(value - mean) / sqrt(variance + eps) over all loss tokens that count, [samples, positions]; 0 elsewhere.

    `values`: floats [samples, positions]. The variance is the unbiased one; equal values give exactly 0. Computed in
    float64. Raises ShapeError, NonFiniteError, and EmptyMaskError where fewer than two tokens count.
    """
    check_tokens(loss_mask, values=values)
    counted = included_tokens(loss_mask, included)
    num_tokens = int(counted.sum())
    if num_tokens < 2:
        raise EmptyMaskError(f"{num_tokens} loss tokens to whiten", legal="at least 2: one has no variance")
    check_finite("values to whiten", values, counted)
    if values[counted].min() == values[counted].max():
        return torch.zeros_like(values)
    wide = only(counted, values.detach().double())
    mean = math.fsum(wide.sum(dim=-1).tolist()) / num_tokens
    centred = only(counted, wide - mean)
    variance = math.fsum(centred.square().sum(dim=-1).tolist()) / (num_tokens - 1)
    return (centred / math.sqrt(variance + eps)).to(values.dtype)
