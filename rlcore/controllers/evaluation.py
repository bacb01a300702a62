"""Prompts, held-out ones as a rule, one completion each, drawn with the same noise at every evaluation."""

from collections.abc import Sequence
from dataclasses import dataclass

from rlcore.data.scoring import Scores, score
from rlcore.data.trajectory import Trajectory, best_completions
from rlcore.errors import RewardError
from rlcore.keys import key
from rlcore.observability.metrics import mean
from rlcore.recipes.rollout import beam_params, collect_all, sampling_params
from rlcore.train_state import TrainState
from rlcore.types import Prompt, SampleRequest


@dataclass(frozen=True, slots=True)
class Evaluation:
    """What the policy makes of some prompts."""

    trajectories: tuple[Trajectory, ...]
    scores: Scores
    reward_mean: float
    """Mean over the completions that have a reward."""
    completion_length: float
    truncated: float
    """Share of completions that were cut at max_tokens."""


def evaluate(state: TrainState, prompts: Sequence[Prompt], *, step: int) -> Evaluation:
    """Sample these prompts as in training: with the weights that the sampler has now, at the same temperature.

    Of several items of a prompt, the best by the sampler's score is evaluated.
    """
    config, params = state.config, sampling_params(state)
    beams = beam_params(config, state.tokenizer)
    wanted = [SampleRequest(prompt, 0, key("evaluation", config.seed, prompt.id), params, beams) for prompt in prompts]
    with state.observers.stage("evaluation"):
        trajectories = best_completions(collect_all(state, wanted))
        scores = score(state.task.rewards, trajectories, step=step)
    judged = [reward for reward in scores.rewards if reward is not None]
    if not judged:
        raise RewardError(
            f"{', '.join(reward.name for reward in state.task.rewards)}"
            f" returned no reward for {len(trajectories)} completions",
            legal="a number for at least one",
        )
    return Evaluation(
        trajectories=tuple(trajectories),
        scores=scores,
        reward_mean=mean(judged),
        completion_length=mean([float(len(each.loss_tokens)) for each in trajectories]),
        truncated=mean([float(each.is_truncated) for each in trajectories]),
    )
