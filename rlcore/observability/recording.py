"""The observer that hands values to a recorder, in canonical order."""

import math
from collections.abc import Callable, Iterable, Iterator

import torch
from torch import Tensor

from rlcore.config import PpoSection
from rlcore.observability.events import (
    AdvantagesEstimated,
    BatchExtended,
    Evaluated,
    Event,
    GradientsReduced,
    PassesDone,
    RolloutBatched,
    StepBegins,
    StepEnds,
    Updated,
    WarmStartBegins,
    WarmStartEnds,
    WeightsMoved,
    WeightsSynced,
)
from rlcore.observability.observers import Observer
from rlcore.trace import Recorder

Named = Iterable[tuple[str, Tensor]]
Selection = Callable[[Named], Named]
"""Yields some of named tensors, whole; every rank goes through all that it yields."""


class StepRecorder(Observer):
    """Records what a step reads of its batch, its losses, gradients, weights and optimizer state."""

    def __init__(self, recorder: Recorder, *, own: Selection = iter) -> None:
        """Record into `recorder`; of tensors that several ranks have, `own` yields those that this one records."""
        self._recorder = recorder
        self._own = own
        self._is_resting = False
        self._evaluated: Evaluated | None = None

    def observe(self, event: Event) -> None:
        """Record the values of an event, if it has any; those of a warm start come with the first step."""
        if isinstance(event, WarmStartBegins | WarmStartEnds):
            self._is_resting = isinstance(event, WarmStartBegins)
        elif not self._is_resting:
            self._record(event)

    def _record(self, event: Event) -> None:
        record = self._recorder.record
        match event:
            case StepBegins(step, warm_start):
                self._recorder.begin_step(step)
                if warm_start is not None:
                    warm_start.record(self._recorder)
                self._first_evaluation()
            case Evaluated(step=0):
                self._evaluated = event
            case RolloutBatched():
                self._rollout(event)
            case BatchExtended(batch, phase, names):
                for name in names:
                    record(phase, name, batch[name])
            case AdvantagesEstimated(batch, section):
                if isinstance(section, PpoSection):
                    record("reward", "token_rewards", batch["token_rewards"])
                record("advantage", "advantages", batch["advantages"])
                if isinstance(section, PpoSection):
                    record("advantage", "returns", batch["returns"])
            case PassesDone(trainer, losses):
                for each in losses:
                    for name, value in each.observed.items():
                        record("forward", f"{trainer}.{name}", torch.where(each.loss_mask, value, 0.0))
                    record("loss", trainer, each.loss)
            case GradientsReduced(trainer, gradients):
                for name, gradient in self._own(gradients.items()):
                    record("backward", f"{trainer}.{name}", gradient)
            case WeightsMoved():
                self._weights(event)
            case Updated(trainer, _, learning_rate, norm):
                record("backward", f"{trainer}.gradient_norm", norm)
                record("optimizer", f"{trainer}.learning_rate", learning_rate)
            case WeightsSynced(receipt):
                record("sync", "weights_digest", receipt.weights_digest)
            case StepEnds(curve):
                self._recorder.end_step(**curve)

    def _rollout(self, event: RolloutBatched) -> None:
        record, batch, trajectories = self._recorder.record, event.batch, event.trajectories
        record("rollout", "prompt_ids", [each.request.prompt.id for each in trajectories])
        digests = {digest for each in trajectories for digest in each.weights_digests.values()}
        record("rollout", "weights_digest", sorted(digests))
        record("rollout", "loss_mask", batch["loss_mask"])
        record("rollout", "tokens", batch["tokens"])
        record("rollout", "logprobs", batch["rollout_logprobs"])
        for name in ("prompt_lengths", "lengths", "groups"):
            record("rollout", name, batch[name])
        record("reward", "included", batch["included"])
        record("reward", "rewards", batch["rewards"])

    def _first_evaluation(self) -> None:
        """Record the evaluation before step 0 in that step; later ones are as often as a setting that is free says."""
        if self._evaluated is None:
            return
        record, trajectories = self._recorder.record, self._evaluated.trajectories
        record("rollout", "evaluation.prompt_ids", [each.request.prompt.id for each in trajectories])
        record("rollout", "evaluation.tokens", [token for each in trajectories for token in each.tokens])
        rewards = [math.nan if reward is None else reward for reward in self._evaluated.scores.rewards]
        record("reward", "evaluation.rewards", torch.tensor(rewards, dtype=torch.float64))
        self._evaluated = None

    def _weights(self, event: WeightsMoved) -> None:
        record = self._recorder.record
        for name, value in self._own(_moved(event)):
            record("optimizer", f"{event.trainer}.{name}", value)


def _moved(event: WeightsMoved) -> Iterator[tuple[str, Tensor]]:
    """Yield the weights and what the optimizer keeps of each."""
    for name, parameter in event.model.named_parameters():
        yield name, parameter.detach()
        for kind, value in sorted(event.optimizer.state[parameter].items()):
            yield f"{name}.{kind}", value
