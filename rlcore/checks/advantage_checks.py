"""Invariants of rewards and advantages, group-relative ones and those of GAE."""

import math
from collections import defaultdict
from collections.abc import Sequence

import torch
from torch import Tensor

from rlcore.algorithms.advantages import TokenAdvantages
from rlcore.data.batch import Batch
from rlcore.data.trajectory import Trajectory
from rlcore.errors import StepError
from rlcore.observability.events import GreedyScored

ROUNDING = 1e-9
"""Of a sum of float64 advantages, relative to the largest of them."""
MEAN_ROUNDING = 1e-15
"""Of a float64 mean, relative to the largest of what it is of; some units in the last place."""
ROUNDING_FP32 = 1e-3
"""Of the mean of whitened fp32 advantages, whose deviation is 1."""
SMALL_SPREAD = 1e-3
"""Deviation of a group's rewards, relative to the largest of them, from which their scale is looked at."""
SCALE_ROUNDING = 1e-2
"""Of a deviation: estimators add a small number to what they divide by."""


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


def check_scaled(advantages: Tensor, rewards: Tensor, groups: Tensor, included: Tensor, estimator: str) -> None:
    """Check that advantages have the scale of their estimator in each group; raises StepError naming the group.

    All [samples]. grpo: a deviation of 1; dr_grpo: the distances of the rewards; rloo: these times n / (n - 1).
    """
    members: dict[int, list[tuple[float, float]]] = defaultdict(list)
    columns = (each.tolist() for each in (rewards, advantages, groups, included))
    for reward, advantage, group, counts in zip(*columns, strict=True):
        if counts:
            members[group].append((reward, advantage))
    for group, pairs in members.items():
        given, found = ([pair[column] for pair in pairs] for column in (0, 1))
        count, spread = len(pairs), _deviation(given)
        if spread <= SMALL_SPREAD * max(1.0, *map(abs, given)):
            continue  # mostly rounding
        expected = {"grpo": 1.0, "dr_grpo": spread, "rloo": spread * count / (count - 1)}[estimator]
        if not math.isclose(_deviation(found), expected, rel_tol=SCALE_ROUNDING):
            raise StepError(
                f"advantages of group {group} have a deviation of {_deviation(found):.6g}",
                legal=f"{expected:.6g}, by the estimator {estimator}, for rewards of deviation {spread:.6g}",
                remedy="scale by the group's own rewards, not by those of the batch",
                phases=("advantage",),
            )


def _deviation(numbers: Sequence[float]) -> float:
    """Return the unbiased deviation; 0 of a single number."""
    if len(numbers) == 1:
        return 0.0
    mean = math.fsum(numbers) / len(numbers)
    return math.sqrt(math.fsum((number - mean) ** 2 for number in numbers) / (len(numbers) - 1))


def check_greedy(batch: Batch, trajectories: Sequence[Trajectory], greedy: GreedyScored) -> None:
    """Check that each sample's baseline is the reward of the greedy completion of its own prompt; raises StepError."""
    pairs = zip(greedy.trajectories, greedy.scores.rewards, strict=True)
    own = {each.request.prompt.id: reward for each, reward in pairs}
    for trajectory, found in zip(trajectories, batch["greedy_rewards"].tolist(), strict=True):
        expected = own[trajectory.request.prompt.id]
        if expected is None or found != float(torch.tensor(expected, dtype=torch.float32)):
            raise StepError(
                f"the baseline of {trajectory.name} is {found!r}",
                legal=f"{expected!r}, the reward of its own prompt's greedy completion",
                phases=("reward",),
            )


def check_kl_in_rewards(token_rewards: Tensor, batch: Batch, kl_coef: float) -> None:
    """Check that rewards of tokens are those of completions less the KL at each token; raises StepError.

    `token_rewards` [samples, positions] with the penalty, the batch's `outcome_rewards` without it.
    """
    mask, outcome = batch["loss_mask"], batch["outcome_rewards"].double()
    distance = batch["rollout_logprobs"].double() - batch["ref_logprobs"].double() if kl_coef else 0.0
    expected = torch.where(mask, outcome - kl_coef * distance, 0.0)
    wrong = ~torch.isclose(token_rewards.double(), expected, rtol=ROUNDING_FP32, atol=1e-5)
    if bool(wrong.any()):
        sample, position = wrong.nonzero()[0].tolist()
        raise StepError(
            f"the reward of sample {sample} at position {position} is {float(token_rewards[sample, position]):.6g}",
            legal=f"{float(expected[sample, position]):.6g}: the completion's on its last token, less {kl_coef:g} times"
            " the KL at every token",
            phases=("reward",),
        )


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
