"""Faults of advantages: who is compared with whom, and by what that is divided."""

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from rlcore.algorithms.advantages import TokenAdvantages
from tests.guards.planted.fault import Probe, fault, honest, replaced

GRPO = "rlcore.algorithms.advantages:grpo"
GAE = "rlcore.recipes.ppo:gae"
ADVANTAGE = ("advantage",)
EPS = 1e-6
Estimate = Callable[[Tensor, Tensor, Tensor], Tensor]


def _instead(probe: Probe, estimate: Estimate) -> Iterator[None]:
    """Another estimate of (rewards, groups, included) in the place of GRPO's."""
    grpo = honest(GRPO)

    def other(rewards: Tensor, groups: Tensor, included: Tensor, **others: Any) -> Tensor:
        right, wrong = grpo(rewards, groups, included, **others), estimate(rewards, groups, included)
        probe.reached(has_effect=not torch.equal(right, wrong))
        return wrong

    with replaced(GRPO, other):
        yield


def _normalised(rewards: Tensor, ddof: int = 1) -> Tensor:
    return (rewards - rewards.mean()) / (rewards.std(correction=ddof) + EPS)


@fault("slime #1414", "groups are cut out of those that were judged, by a reshape", phases=ADVANTAGE, setting="ragged")
def groups_by_reshape(probe: Probe) -> Iterator[None]:
    def reshaped(rewards: Tensor, groups: Tensor, included: Tensor) -> Tensor:
        size = len(groups) // len(set(groups.tolist()))
        judged, found = included.nonzero().flatten(), torch.zeros_like(rewards)
        for first in range(0, len(judged), size):
            members = judged[first : first + size]
            found[members] = _normalised(rewards[members]) if len(members) > 1 else 0.0
        return found

    yield from _instead(probe, reshaped)


@fault("d1 #19", "advantages are relative to the batch, not to the group", phases=ADVANTAGE)
def normalised_over_the_batch(probe: Probe) -> Iterator[None]:
    yield from _instead(probe, lambda rewards, groups, included: _normalised(rewards))


@fault("NeMo-RL #4013", "each completion is a group of its own", phases=ADVANTAGE)
def groups_of_one(probe: Probe) -> Iterator[None]:
    made = honest("rlcore.data.batch:groups_of")

    def apart(completions: Any) -> Tensor:
        found = torch.arange(len(completions))
        probe.reached(has_effect=not torch.equal(found, made(completions)))
        return found

    with replaced("rlcore.data.batch:groups_of", apart):
        yield


@fault("NeMo-RL #3882", "prompts that begin alike are one group", phases=ADVANTAGE)
def groups_merged(probe: Probe) -> Iterator[None]:
    made = honest("rlcore.data.batch:groups_of")

    def merged(completions: Any) -> Tensor:
        found: Tensor = made(completions) // 2
        probe.reached(has_effect=not torch.equal(found, made(completions)))
        return found

    with replaced("rlcore.data.batch:groups_of", merged):
        yield


@fault("GRPO-Zero: ddof 0", "the standard deviation is the population's", phases=ADVANTAGE)
def population_deviation(probe: Probe) -> Iterator[None]:
    def by_group(rewards: Tensor, groups: Tensor, included: Tensor) -> Tensor:
        found = torch.zeros_like(rewards)
        for group in set(groups.tolist()):
            of_group = groups == group
            found[of_group] = _normalised(rewards[of_group], ddof=0)
        return found

    yield from _instead(probe, by_group)


@fault("verl #4598", "groups of equal rewards get advantages from rounding", phases=ADVANTAGE, setting="flat")
def rounding_made_an_advantage(probe: Probe) -> Iterator[None]:
    def in_fp32(rewards: Tensor, groups: Tensor, included: Tensor) -> Tensor:
        found = torch.zeros_like(rewards)
        for group in set(groups.tolist()):
            of_group = groups == group
            found[of_group] = _normalised(rewards[of_group].float()).double()
        return found

    yield from _instead(probe, in_fp32)


@fault("verl #4598", "groups of equal rewards are divided by 0", phases=ADVANTAGE, setting="flat")
def division_by_no_variance(probe: Probe) -> Iterator[None]:
    def unguarded(rewards: Tensor, groups: Tensor, included: Tensor) -> Tensor:
        found = torch.zeros_like(rewards)
        for group in set(groups.tolist()):
            of_group = groups == group
            centred = rewards[of_group] - rewards[of_group].mean()
            found[of_group] = centred / centred.std()
        return found

    yield from _instead(probe, unguarded)


@fault("a sign, as in TinyZero #72", "what was better than expected is made less probable", phases=ADVANTAGE)
def advantages_upside_down(probe: Probe) -> Iterator[None]:
    grpo = honest(GRPO)
    yield from _instead(probe, lambda rewards, groups, included: -grpo(rewards, groups, included))


@fault("ElegantRL #183", "the next value is that of the same token", phases=ADVANTAGE, setting="ppo")
def gae_off_by_one(probe: Probe) -> Iterator[None]:
    gae = honest(GAE)

    def late(token_rewards: Tensor, values: Tensor, *masks: Tensor, **factors: float) -> TokenAdvantages:
        right = gae(token_rewards, values, *masks, **factors)
        wrong: TokenAdvantages = gae(token_rewards, values.roll(1, dims=-1), *masks, **factors)
        probe.reached(has_effect=not torch.equal(right.advantages, wrong.advantages))
        return wrong

    with replaced(GAE, late):
        yield


@fault("safe-rlhf #88", "the last value is that of the longest, where lengths differ", phases=ADVANTAGE, setting="ppo")
def gae_of_the_longest(probe: Probe) -> Iterator[None]:
    gae = honest(GAE)

    def unmasked(
        token_rewards: Tensor, values: Tensor, mask: Tensor, included: Tensor | None = None, **factors: float
    ) -> TokenAdvantages:
        right = gae(token_rewards, values, mask, included, **factors)
        padded = torch.where(mask, values, 0.1)
        all_of_it = gae(token_rewards, padded, torch.ones_like(mask), included, **factors)
        wrong = TokenAdvantages(*(torch.where(mask, each, 0.0) for each in all_of_it))
        probe.reached(has_effect=not torch.equal(right.advantages, wrong.advantages))
        return wrong

    with replaced(GAE, unmasked):
        yield


@fault("AReaL #1346", "the mean of whitening counts padding", phases=ADVANTAGE, setting="ppo")
def whitened_with_padding(probe: Probe) -> Iterator[None]:
    whiten = honest("rlcore.recipes.ppo:whiten")

    def with_padding(values: Tensor, loss_mask: Tensor, included: Tensor | None = None) -> Tensor:
        right = whiten(values, loss_mask, included)
        everywhere = whiten(values, torch.ones_like(loss_mask))
        wrong = torch.where(loss_mask, everywhere, 0.0)
        probe.reached(has_effect=not torch.equal(right, wrong))
        return wrong

    with replaced("rlcore.recipes.ppo:whiten", with_padding):
        yield


FAULTS = (
    groups_by_reshape,
    normalised_over_the_batch,
    groups_of_one,
    groups_merged,
    population_deviation,
    rounding_made_an_advantage,
    division_by_no_variance,
    advantages_upside_down,
    gae_off_by_one,
    gae_of_the_longest,
    whitened_with_padding,
)
