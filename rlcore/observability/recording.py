"""The observer that hands values to a recorder, in canonical order."""

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from rlcore.config import PpoSection
from rlcore.log import Record
from rlcore.observability.events import (
    AdvantagesEstimated,
    BatchExtended,
    Evaluated,
    Event,
    PassesDone,
    RolloutBatched,
    StepBegins,
    StepEnds,
    Updated,
    WeightsSynced,
)
from rlcore.observability.observers import Observer


class StepRecorder(Observer):
    """Records what a step reads of its batch, its losses, gradients, weights and optimizer state."""

    def __init__(self, record: Record) -> None:
        self._record = record
        self._evaluated: Evaluated | None = None

    def observe(self, event: Event) -> None:
        """Record the values of an event, if it has any; those of a warm start come with the first step."""
        match event:
            case StepBegins(step, warm_start):
                self._record.begin_step(step)
                if warm_start is not None:
                    warm_start.record(self._record)
                self._first_evaluation()
            case Evaluated(step=0):
                self._evaluated = event
            case RolloutBatched():
                self._rollout(event)
            case BatchExtended(batch, phase, names):
                self._record.all(phase, [(name, batch[name]) for name in names])
            case AdvantagesEstimated(batch, section):
                self._advantages(batch, isinstance(section, PpoSection))
            case PassesDone():
                self._passes(event)
            case Updated(trainer, _, learning_rate, norm):
                self._record("backward", f"{trainer}.gradient_norm", norm)
                self._record("optimizer", f"{trainer}.learning_rate", learning_rate)
            case WeightsSynced(receipt):
                self._record("sync", "weights_digest", receipt.weights_digest)
            case StepEnds(curve):
                self._record.end_step(**curve)

    def _rollout(self, event: RolloutBatched) -> None:
        batch, trajectories = event.batch, event.trajectories
        digests = {digest for each in trajectories for digest in each.weights_digests.values()}
        values = {
            "prompt_ids": [each.request.prompt.id for each in trajectories],
            "weights_digest": sorted(digests),
            "loss_mask": batch["loss_mask"],
            "tokens": batch["tokens"],
            "logprobs": batch["rollout_logprobs"],
        }
        values |= {name: batch[name] for name in ("prompt_lengths", "lengths", "groups")}
        self._record.all("rollout", values.items())
        self._record.all("reward", [(name, batch[name]) for name in ("included", "rewards")])

    def _advantages(self, batch: Mapping[str, Tensor], is_ppo: bool) -> None:
        if is_ppo:
            self._record("reward", "token_rewards", batch["token_rewards"])
        self._record.all(
            "advantage", [(name, batch[name]) for name in ("advantages", *(["returns"] if is_ppo else []))]
        )

    def _passes(self, event: PassesDone) -> None:
        for each in event.losses:
            observed = [
                (f"{event.trainer}.{name}", torch.where(each.loss_mask, value, 0.0))
                for name, value in each.observed.items()
            ]
            self._record.all("forward", observed)
            self._record("loss", event.trainer, each.loss)

    def _first_evaluation(self) -> None:
        """Record the evaluation before step 0 in that step; later ones are as often as a setting that is free says."""
        if self._evaluated is None:
            return
        trajectories = self._evaluated.trajectories
        prompts = [each.request.prompt.id for each in trajectories]
        tokens = [token for each in trajectories for token in each.tokens]
        self._record.all("rollout", [("evaluation.prompt_ids", prompts), ("evaluation.tokens", tokens)])
        rewards = [math.nan if reward is None else reward for reward in self._evaluated.scores.rewards]
        self._record("reward", "evaluation.rewards", torch.tensor(rewards, dtype=torch.float64))
        self._evaluated = None
