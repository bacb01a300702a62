"""ReMax's baseline: what the most probable completion of each prompt is worth, by the same reward functions."""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from rlcore.checks.step_checks import check_completions
from rlcore.errors import RewardError
from rlcore.keys import key
from rlcore.recipes.rollout import collect, sampling_params
from rlcore.rewards.score import score
from rlcore.train_state import Engine
from rlcore.types import Completion, SampleRequest


def greedy_rewards(engine: Engine, completions: Sequence[Completion], step: int) -> Tensor:
    """fp32 [samples]: the reward of the greedy completion of each one's prompt; one is drawn for each prompt.

    Raises RewardError where one cannot be judged.
    """
    prompts = {each.request.prompt.id: each.request.prompt for each in completions}
    params = replace(sampling_params(engine), temperature=0.0)
    wanted = [
        # Nothing is drawn by chance; the key is for those who tell completions apart by it.
        SampleRequest(prompt, 0, key("greedy", engine.config.seed, step, prompt.id), params)
        for prompt in prompts.values()
    ]
    with engine.phases("rollout"):
        drawn = collect(engine.sampler, wanted, engine.config.perturbation)
        check_completions(wanted, drawn, engine.receipt, engine.tokenizer)
    with engine.phases("reward"):
        rewards = dict(zip(prompts, score(engine.task.rewards, drawn, step=step).rewards, strict=True))
    if unjudged := [name for name, reward in rewards.items() if reward is None]:
        raise RewardError(
            f"the greedy completion of prompt {unjudged[0]} could not be judged, and it is ReMax's baseline",
            legal="a number for every greedy completion",
            remedy="algorithm.advantage: rloo, which needs none",
        )
    baselines = [rewards[each.request.prompt.id] for each in completions]
    return torch.tensor(baselines, dtype=torch.float32, device=engine.config.model.device)
