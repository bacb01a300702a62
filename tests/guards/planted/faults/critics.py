"""Faults of PPO's second half: what the critic is, what it learns towards, and the coefficient that adapts."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from rlcore.algorithms.advantages import TokenAdvantages, whiten
from rlcore.algorithms.kl import adaptive_kl_coef, approx_kl
from rlcore.observability.metrics import mean
from rlcore.trainers.scoring import in_bulk, values
from tests.guards.planted.patches import Probe, fault, honest, replaced

PPO = "rlcore.recipes.ppo"
GAE = f"{PPO}:gae"
MADE = "rlcore.trainers.models:build_critic"
ADVANTAGE = ("advantage",)


@fault("invented", "gamma and lambda change places", phases=ADVANTAGE, setting="ppo")
def gamma_and_lambda_swapped(probe: Probe) -> Iterator[None]:
    gae = honest(GAE)

    def swapped(*given: Any, gamma: float, lam: float) -> TokenAdvantages:
        right: TokenAdvantages = gae(*given, gamma=gamma, lam=lam)
        wrong: TokenAdvantages = gae(*given, gamma=lam, lam=gamma)
        probe.reached(has_effect=not torch.equal(right.advantages, wrong.advantages))
        return wrong

    with replaced(GAE, swapped):
        yield


@fault("invented", "the critic learns towards whitened advantages", phases=ADVANTAGE, setting="ppo")
def targets_of_the_whitened(probe: Probe) -> Iterator[None]:
    gae = honest(GAE)

    def whitened(
        rewards: Tensor, expected: Tensor, mask: Tensor, included: Tensor, **factors: float
    ) -> TokenAdvantages:
        found: TokenAdvantages = gae(rewards, expected, mask, included, **factors)
        returns = torch.where(mask, whiten(found.advantages, mask, included) + expected, 0.0)
        probe.reached(has_effect=not torch.equal(returns, found.returns))
        return found._replace(returns=returns)

    with replaced(GAE, whitened):
        yield


@fault(
    "michaelnny/deep_rl_zoo #5",
    "what the critic learns towards moves with it, from minibatch to minibatch",
    phases=("advantage", "loss"),
    setting="critic_epochs",
)
def targets_of_each_minibatch(probe: Probe) -> Iterator[None]:
    minibatches, add_values = honest(f"{PPO}:minibatches"), honest(f"{PPO}:add_values")
    states: list[Any] = []

    def remembered(state: Any, batch: Any) -> Any:
        states[:] = [state]
        return add_values(state, batch)

    def anew(batch: Any, *given: Any) -> Iterator[Any]:
        advantages = batch["returns"] - batch["values"]
        for number, minibatch in enumerate(minibatches(batch, *given)):
            if number and states:
                now = in_bulk(batch, states[0].critic, values, token_budget=4096)
                found = torch.where(batch["loss_mask"], advantages + now, 0.0)
                probe.reached(has_effect=not torch.equal(found, batch["returns"]))
                batch["returns"].copy_(found)
            yield minibatch

    with replaced(f"{PPO}:minibatches", anew), replaced(f"{PPO}:add_values", remembered):
        yield


@fault("invented", "the value head is drawn by a generator that nobody seeds", phases=("reference",), setting="ppo")
def value_head_drawn(probe: Probe) -> Iterator[None]:
    made = honest(MADE)

    def drawn(decoder: Any) -> Any:
        critic = made(decoder)
        torch.seed()
        torch.nn.init.normal_(critic.value_head.weight, std=0.02)
        probe.reached()
        return critic

    with torch.random.fork_rng(), replaced(MADE, drawn):
        yield


@fault(
    "invented", "the critic reads with the policy's own weights, and moves them", phases=("optimizer",), setting="ppo"
)
def critic_in_the_policys_memory(probe: Probe) -> Iterator[None]:
    made = honest(MADE)

    def shared(decoder: Any) -> Any:
        critic = made(decoder)
        critic.decoder = decoder
        probe.reached()
        return critic

    with replaced(MADE, shared):
        yield


@fault("CarperAI/trlx #361", "the coefficient has moved before it is used", phases=("reward",), setting="ppo")
def coefficient_moved_too_soon(probe: Probe) -> Iterator[None]:
    in_rewards = honest(f"{PPO}:in_rewards")

    def of_the_next(rewards: Tensor, sampled: Tensor, reference: Tensor, mask: Tensor, *, kl_coef: float) -> Tensor:
        distance = mean(approx_kl(sampled, reference, mask, "k1")[mask].tolist())
        later = adaptive_kl_coef(kl_coef, distance, target_kl=0.1, num_samples=len(mask), horizon=64)
        right: Tensor = in_rewards(rewards, sampled, reference, mask, kl_coef=kl_coef)
        wrong: Tensor = in_rewards(rewards, sampled, reference, mask, kl_coef=later)
        probe.reached(has_effect=not torch.equal(right, wrong))
        return wrong

    with replaced(f"{PPO}:in_rewards", of_the_next):
        yield


FAULTS = (
    gamma_and_lambda_swapped,
    targets_of_the_whitened,
    targets_of_each_minibatch,
    value_head_drawn,
    critic_in_the_policys_memory,
    coefficient_moved_too_soon,
)
