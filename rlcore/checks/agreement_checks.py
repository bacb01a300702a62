"""Statements that a run makes twice agree: prompts and the task, totals and functions, ends and texts, curves.

A fault in one of the two is wrong in the same way in every run: no replay shows it.
"""

import math
from collections.abc import Mapping, Sequence

import torch

from rlcore.config import PpoSection, RunConfig
from rlcore.data.scoring import Scores
from rlcore.data.trajectory import Trajectory, by_request
from rlcore.errors import LevelError, StepError
from rlcore.observability.events import (
    Evaluated,
    Event,
    PassesDone,
    RequestsBuilt,
    RolloutBatched,
    RunBegins,
    StepBegins,
    StepEnds,
    TrajectoriesSampled,
    Updated,
)
from rlcore.observability.metrics import mean
from rlcore.observability.observers import Observer
from rlcore.trainers.gradients import MicrobatchLoss
from rlcore.types import Prompt, SampleRequest, StopReason

ROUNDING = 1e-5
"""Of an entropy in fp32, relative."""


class AgreementChecks(Observer):
    """Check that the statements of a run agree, from its beginning on."""

    def __init__(self) -> None:
        self._config: RunConfig | None = None
        self._prompts: Mapping[str, Prompt] = {}
        self._dtype = torch.get_default_dtype()
        self._updates: list[tuple[float, float]] = []
        """Loss and entropy of each update of the policy in this step."""

    def observe(self, event: Event) -> None:
        """Check prompts, completions, rewards, updates, curves and evaluations."""
        config = self._config
        match event:
            case RunBegins(config, train):
                self._config, self._prompts = config, {prompt.id: prompt for prompt in train}
                self._dtype = torch.get_default_dtype()
            case StepBegins():
                self._updates = []
                check_default_dtype(self._dtype)
            case RequestsBuilt(requests) if config is not None:
                check_prompts(requests, self._prompts)
            case TrajectoriesSampled(_, trajectories):
                check_stops(trajectories)
                check_items(trajectories)
            case RolloutBatched(_, trajectories, scores) if config is not None:
                if not config.task.shuffles_rewards:
                    check_totals(scores, trajectories, weights_of(config, len(scores.by_function)))
            case PassesDone("policy", losses):
                self._updates.append(loss_and_entropy(losses))
            case Updated(trainer, step) if config is not None:
                check_warmup(config, trainer, step)
            case StepEnds(curve):
                check_curve(curve, self._updates)
            case Evaluated(_, trajectories) if config is not None:
                check_temperature(trajectories, config.sampling.temperature)


def check_default_dtype(before: torch.dtype) -> None:
    """Torch's default type is as it was when the run began; raises LevelError."""
    if (now := torch.get_default_dtype()) != before:
        raise LevelError(
            f"torch's default type is {now}, and was {before} when the run began",
            legal=f"{before} for the whole run",
            remedy="find the library or reward function that calls torch.set_default_dtype",
            phases=("level",),
        )


def check_prompts(requests: Sequence[SampleRequest], prompts: Mapping[str, Prompt]) -> None:
    """The prompt of a request is the task's prompt of that id, token by token and with its columns.

    Raises StepError naming the prompt.
    """
    for request in requests:
        prompt, known = request.prompt, prompts.get(request.prompt.id)
        if known is prompt or known == prompt:
            continue
        if known is None:
            raise StepError(f"prompt {prompt.id} is not one of the task", phases=("rollout",))
        if (prompt.tokens, prompt.text) != (known.tokens, known.text):
            raise StepError(
                f"prompt {prompt.id} is read as {len(prompt.tokens)} tokens, {prompt.tokens!r:.60}",
                legal=f"{known.tokens!r:.60}, {len(known.tokens)} tokens, as the task has it",
                phases=("rollout",),
            )
        raise StepError(f"prompt {prompt.id} has the columns of another prompt", phases=("reward",))


def check_stops(trajectories: Sequence[Trajectory]) -> None:
    """A turn that ended by a stop string has one in its text, and no turn continues after one; raises StepError.

    The last token of a stop id may itself complete a stop string.
    """
    for trajectory in trajectories:
        stops = trajectory.request.params.stop_strings
        for turn in trajectory.assistant_turns if stops and not trajectory.is_branch else ():
            found = [stop for stop in stops if stop in turn.text]
            is_by_text = turn.stop_reason is StopReason.STOP_STRING
            if turn.stop_reason is not StopReason.STOP_ID and bool(found) != is_by_text:
                says = f"says {found[0]!r}" if found else f"says none of {stops!r:.60}"
                raise StepError(
                    f"{trajectory.name} ended by {turn.stop_reason}, and {says}",
                    legal="a turn ends with its first stop string, whatever the tokens are that it is made of",
                    phases=("rollout",),
                )


def check_items(trajectories: Sequence[Trajectory]) -> None:
    """Items of a reasoning are in the order of falling log-probability, summed over their tokens; raises StepError."""
    for reasoning, *items in by_request(trajectories):
        sums = [math.fsum(each.logprobs[each.turns[-1].begin :]) for each in items]
        if sums != sorted(sums, reverse=True):
            raise StepError(
                f"items of {reasoning.name} have log-probabilities {sums!r:.80}",
                legal="falling ones: the sum over an item's tokens, not divided by a length",
                phases=("rollout",),
            )


def weights_of(config: RunConfig, num_functions: int) -> tuple[float, ...]:
    """Return the configured weight of each reward function, in their order."""
    model = config.task.reward_model
    num_own = num_functions - (model is not None)
    own = config.task.reward_weights or (1.0,) * num_own
    return (*own, *([] if model is None else [model.weight]))


def check_totals(scores: Scores, trajectories: Sequence[Trajectory], weights: Sequence[float]) -> None:
    """A total is the weighted sum of what functions gave, a reasoning's the mean of its items'.

    Rewards that are of no function, such as an environment's, have nothing to be compared with. Raises StepError naming
    the sample.
    """
    columns = list(scores.by_function.values())
    if not columns:
        return
    at = 0
    for found in by_request(trajectories):
        rows = range(at, at + len(found))
        at += len(found)
        totals = [_total([column[row] for column in columns], weights) for row in rows]
        if len(totals) > 1:
            given = [total for total in totals[1:] if total is not None]
            totals[0] = mean(given) if given else None
        for row, total in zip(rows, totals, strict=True):
            if scores.rewards[row] != total:
                raise StepError(
                    f"sample {row} has reward {scores.rewards[row]!r}, and functions gave"
                    f" {[column[row] for column in columns]!r:.80} with weights {tuple(weights)!r:.40}",
                    legal=f"{total!r}, their weighted sum; of a reasoning with items, the mean of theirs",
                    phases=("reward",),
                )


def _total(values: Sequence[float | None], weights: Sequence[float]) -> float | None:
    given = [weight * value for weight, value in zip(weights, values, strict=True) if value is not None]
    return math.fsum(given) if given else None


def check_warmup(config: RunConfig, trainer: str, step: int) -> None:
    """The critic alone learns in the steps of its warm-up; raises StepError."""
    section = config.algorithm
    if isinstance(section, PpoSection) and trainer == "policy" and step < section.num_critic_warmup_steps:
        raise StepError(
            f"the policy learns in step {step}",
            legal=f"step {section.num_critic_warmup_steps} and later, by algorithm.num_critic_warmup_steps",
            phases=("forward", "optimizer"),
        )


def loss_and_entropy(losses: Sequence[MicrobatchLoss]) -> tuple[float, float]:
    """Return the loss of an update, and the mean entropy of its tokens."""
    entropies = [each.observed["entropy"][each.loss_mask].double() for each in losses if "entropy" in each.observed]
    entropy = float(torch.cat(entropies).mean()) if entropies else math.nan
    return math.fsum(float(each.loss) for each in losses), entropy


def check_curve(curve: Mapping[str, float], updates: Sequence[tuple[float, float]]) -> None:
    """The loss and the entropy of a curve are those of the passes, over all updates of the step; raises StepError."""
    if not updates:
        return
    for name, values in zip(("loss", "entropy"), zip(*updates, strict=True), strict=True):
        expected = math.fsum(values) / len(values)
        if (
            name in curve
            and not math.isnan(expected)
            and not math.isclose(curve[name], expected, rel_tol=ROUNDING, abs_tol=1e-12)
        ):
            raise StepError(
                f"the {name} of the curve is {curve[name]!r}",
                legal=f"{expected!r}, over all tokens of the passes",
                phases=("forward", "loss"),
            )


def check_temperature(trajectories: Sequence[Trajectory], temperature: float) -> None:
    """An evaluation draws as training does; raises StepError."""
    for trajectory in trajectories:
        if trajectory.request.params.temperature != temperature:
            raise StepError(
                f"{trajectory.name} of an evaluation was drawn at temperature"
                f" {trajectory.request.params.temperature:g}",
                legal=f"{temperature:g}, sampling.temperature",
                phases=("rollout",),
            )
