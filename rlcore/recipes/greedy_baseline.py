"""ReMax's baseline: what the most probable completion of each prompt is worth, by the same reward functions."""

from collections.abc import Sequence
from dataclasses import replace

import torch

from rlcore.data.batch import Batch
from rlcore.data.scoring import score
from rlcore.data.trajectory import Trajectory
from rlcore.errors import RewardError
from rlcore.keys import key
from rlcore.observability.events import BatchExtended, GreedyScored, TrajectoriesSampled
from rlcore.recipes.rollout import collect, sampling_params
from rlcore.train_state import TrainState
from rlcore.types import SampleRequest


def add_greedy_rewards(state: TrainState, batch: Batch, trajectories: Sequence[Trajectory], step: int) -> Batch:
    """Add fp32 [samples]: the reward of the greedy completion of each sample's prompt; one is drawn per prompt.

    Raises RewardError if one has no reward.
    """
    prompts = {each.request.prompt.id: each.request.prompt for each in trajectories}
    params = replace(sampling_params(state), temperature=0.0)
    wanted = [
        # Nothing is drawn by chance; the key is for those who tell completions apart by it.
        SampleRequest(prompt, 0, key("greedy", state.config.seed, step, prompt.id), params)
        for prompt in prompts.values()
    ]
    with state.observers.stage("rollout"):
        drawn = collect(state.sampler, wanted, state.config.runtime)
        state.observers.emit(TrajectoriesSampled(wanted, drawn, state.receipt, state.tokenizer))
    with state.observers.stage("reward"):
        scores = score(state.task.rewards, drawn, step=step)
        state.observers.emit(GreedyScored(drawn, scores))
    rewards = dict(zip((request.prompt.id for request in wanted), scores.rewards, strict=True))
    if unjudged := [name for name, reward in rewards.items() if reward is None]:
        raise RewardError(
            f"the greedy completion of prompt {unjudged[0]} has no reward, and it is ReMax's baseline",
            legal="a number for every greedy completion",
            remedy="algorithm.advantage: rloo, which needs none",
        )
    baselines = [rewards[each.request.prompt.id] for each in trajectories]
    found = torch.tensor(baselines, dtype=torch.float32, device=state.config.model.device)
    batch = batch.extended(greedy_rewards=found)
    state.observers.emit(BatchExtended(batch, "reward", ("greedy_rewards",)))
    return batch
