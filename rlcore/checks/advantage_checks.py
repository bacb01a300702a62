"""Invariants of rewards and advantages, group-relative ones and those of GAE."""

import math
from collections import defaultdict
from collections.abc import Sequence

import torch
from torch import Tensor

from rlcore.algorithms.advantages import TokenAdvantages
from rlcore.batching.batch import Batch
from rlcore.errors import StepError

ROUNDING = 1e-9
"""Of a sum of float64 advantages, relative to the largest of them."""
MEAN_ROUNDING = 1e-15
"""Of a float64 mean, relative to the largest of what it is of; some units in the last place."""
ROUNDING_FP32 = 1e-3
"""Of the mean of whitened fp32 advantages, whose deviation is 1."""


def check_relative(advantages: Tensor, rewards: Tensor, groups: Tensor, included: Tensor) -> None:
    """Advantages relative to a group add up to 0 in it, rise with its rewards, and are 0 where these are equal.

    All [samples]; a group of one sample has no other to compare with. Raises StepError naming the group.
    """
    members: dict[int, list[tuple[float, float]]] = defaultdict(list)
    columns = (each.tolist() for each in (advantages, rewards, groups, included))
    for advantage, reward, group, counts in zip(*columns, strict=True):
        if counts:
            members[group].append((reward, advantage))
        elif advantage:
            raise StepError("a sample without a reward has an advantage", phases=("advantage",))
    for group, pairs in members.items():
        if len(pairs) > 1 and (wrong := _wrong_with(sorted(pairs))):
            raise StepError(f"advantages of group {group} {wrong}", phases=("advantage",))


def _wrong_with(pairs: Sequence[tuple[float, float]]) -> str:
    """What is wrong with the (reward, advantage) of one group, by reward; empty where nothing is."""
    (least, _), (most, _) = pairs[0], pairs[-1]
    advantages = [advantage for _, advantage in pairs]
    if not all(map(math.isfinite, advantages)):
        return f"are not finite: {advantages}"
    largest = max(map(abs, advantages))
    if least == most:
        return f"are up to {largest!r}, with rewards that are all {least!r}" if largest else ""
    # What the mean is rounded by counts for more where rewards lie close together.
    rounding = ROUNDING + MEAN_ROUNDING * max(abs(least), abs(most)) / (most - least)
    if abs(math.fsum(advantages)) > rounding * len(pairs) * largest:
        return f"add up to {math.fsum(advantages)!r}, not to 0"
    if advantages != sorted(advantages):
        return "do not rise with its rewards"
    return ""


def check_token_rewards(token_rewards: Tensor, batch: Batch) -> None:
    """The reward of a completion stands on its last loss token, and nowhere else: [samples, positions].

    Raises StepError naming the sample.
    """
    expected = torch.zeros_like(token_rewards)
    given = torch.where(batch["included"], batch["rewards"].to(token_rewards.dtype), 0.0)
    expected.scatter_(1, _last_loss_position(batch["loss_mask"]), given.unsqueeze(1))
    if not torch.equal(expected, token_rewards):
        sample = int((expected != token_rewards).any(-1).nonzero()[0])
        raise StepError(f"the reward of sample {sample} is not on its last token, alone", phases=("reward",))


def check_estimates(found: TokenAdvantages, token_rewards: Tensor, batch: Batch, *, gamma: float, lam: float) -> None:
    """Check that each advantage follows from the next one; that of the last token is its reward less its value.

    What a critic learns towards is its values and the advantages, as they were estimated. Raises StepError naming the
    sample.
    """
    mask, values = batch["loss_mask"] & batch["included"].unsqueeze(1), batch["values"]
    is_last = torch.zeros_like(mask).scatter_(1, _last_loss_position(batch["loss_mask"]), True)
    # To the bit: additions of the same numbers in the same order, all tokens at once where `gae` has one after another.
    follows = mask & ~is_last & mask.roll(-1, dims=-1)
    temporal = token_rewards + gamma * values.roll(-1, dims=-1) - values
    recursive = temporal + gamma * lam * found.advantages.roll(-1, dims=-1)
    advantages, returns = found
    _check_estimate("the last advantage", mask & is_last, advantages, token_rewards - values, "reward less value")
    _check_estimate(
        "an advantage", follows, advantages, recursive, f"which follows from the next with gamma {gamma}, lambda {lam}"
    )
    _check_estimate("a return", mask, returns, advantages + values, "advantage and value")


def _last_loss_position(loss_mask: Tensor) -> Tensor:
    """Return int64 [samples, 1]: the position of each sample's last loss token."""
    return loss_mask.shape[1] - 1 - loss_mask.flip(-1).int().argmax(-1, keepdim=True)


def _check_estimate(name: str, where: Tensor, found: Tensor, expected: Tensor, legal: str) -> None:
    differs = where & (found != expected)
    if bool(differs.any()):
        sample, position = differs.nonzero()[0].tolist()
        raise StepError(
            f"{name} of sample {sample} is {float(found[sample, position])!r}, at position {position}",
            legal=f"{float(expected[sample, position])!r}, {legal}",
            phases=("advantage",),
        )


def check_whitened(advantages: Tensor, loss_mask: Tensor, included: Tensor) -> None:
    """Whitened advantages have a mean of 0 over the tokens that count; raises StepError."""
    counted = advantages[loss_mask & included.unsqueeze(1)].double()
    if not abs(float(counted.mean())) <= ROUNDING_FP32:
        raise StepError(f"whitened advantages have mean {float(counted.mean()):.3g}", phases=("advantage",))
