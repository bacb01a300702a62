"""What a step tells of itself: numbers, in whose sums no order is left."""

import math
from collections.abc import Sequence

import torch
from tensordict import TensorDict

from rlcore.checks.update_checks import check_rate
from rlcore.observability.metrics import mean, merge, of_completions
from rlcore.recipes.policy_pass import Updated
from rlcore.rewards.score import Scores
from rlcore.types import Completion, StopReason


class StepMetrics:
    """Collects a step's numbers; those of several updates of one learner are averaged.

    Lengths and rewards are the batch's, from which the step learns.
    """

    def __init__(self, completions: Sequence[Completion], scores: Scores, batch: TensorDict, **others: float) -> None:
        self.has_learned = False
        """Whether the policy has had a gradient that is not 0."""
        self._of_rollout = others | of_completions(
            batch["loss_mask"].sum(-1).tolist(),
            [completion.stop_reason is StopReason.LENGTH for completion in completions],
            [
                reward if is_judged else None
                for reward, is_judged in zip(batch["rewards"].tolist(), batch["included"].tolist(), strict=True)
            ],
            scores.by_function if len(scores.by_function) > 1 else {},
        )
        self._updates: dict[str, list[dict[str, float]]] = {}

    def add(self, updated: Updated) -> None:
        """Take in an optimizer step; raises StepError where its rate is not that of the others of its learner."""
        updates = self._updates.setdefault(updated.learner, [])
        check_rate(updated.learning_rate, updates[-1]["learning_rate"] if updates else None)
        self.has_learned |= updated.learner == "policy" and updated.norm > 0.0
        masks = torch.cat([part.loss_mask.reshape(-1) for part in updated.parts])
        told = {
            "loss": math.fsum(float(part.loss) for part in updated.parts),
            "grad_norm": updated.norm,
            "learning_rate": updated.learning_rate,
        }
        for name in updated.parts[0].seen:
            if name != "logprobs":
                column = torch.cat([part.seen[name].reshape(-1) for part in updated.parts])
                told[name] = mean(column[masks].tolist())
        updates.append(told)

    def told(self) -> dict[str, float]:
        """By name; the critic's begin with critic_."""
        told = dict(self._of_rollout)
        for learner, updates in self._updates.items():
            prefix = "" if learner == "policy" else f"{learner}_"
            merged = merge(updates, dict.fromkeys(updates[0], "mean"))
            told |= {prefix + name: value for name, value in merged.items()}
        return told
