"""Metrics of a step: numbers that do not depend on the order of what they are summed over."""

import math
from collections.abc import Sequence

import torch

from rlcore.data.batch import Batch
from rlcore.data.scoring import Scores
from rlcore.data.trajectory import Trajectory, by_request
from rlcore.observability.metrics import mean, merge, of_completions
from rlcore.trainers.trainer import Update


class StepMetrics:
    """Collects a step's numbers; those of several updates of one model are averaged.

    Lengths and rewards are the batch's, from which the step learns.
    """

    def __init__(self, trajectories: Sequence[Trajectory], scores: Scores, batch: Batch, **others: float) -> None:
        self.has_learned = False
        """Whether the policy has had a gradient that is not 0."""
        self._of_rollout = (
            others
            | of_branches(trajectories)
            | of_completions(
                batch["loss_mask"].sum(-1).tolist(),
                [each.is_truncated for each in trajectories],
                [
                    reward if is_classified else None
                    for reward, is_classified in zip(batch["rewards"].tolist(), batch["included"].tolist(), strict=True)
                ],
                scores.by_function if len(scores.by_function) > 1 else {},
            )
        )
        self._updates: dict[str, list[dict[str, float]]] = {}

    def add(self, update: Update) -> None:
        """Add an optimizer step."""
        self.has_learned |= update.trainer == "policy" and update.norm > 0.0
        masks = torch.cat([each.loss_mask.reshape(-1) for each in update.losses])
        values = {
            "loss": math.fsum(float(each.loss) for each in update.losses),
            "grad_norm": update.norm,
            "learning_rate": update.learning_rate,
        }
        for name in update.losses[0].observed:
            if name != "logprobs":
                column = torch.cat([each.observed[name].reshape(-1) for each in update.losses])
                values[name] = mean(column[masks].tolist())
        self._updates.setdefault(update.trainer, []).append(values)

    def merged(self) -> dict[str, float]:
        """Return the metrics by name; the critic's begin with critic_."""
        metrics = dict(self._of_rollout)
        for trainer, updates in self._updates.items():
            prefix = "" if trainer == "policy" else f"{trainer}_"
            merged = merge(updates, dict.fromkeys(updates[0], "mean"))
            metrics |= {prefix + name: value for name, value in merged.items()}
        return metrics


def of_branches(trajectories: Sequence[Trajectory]) -> dict[str, float]:
    """Return the metrics of reasonings and their items; none for completions that never have items."""
    rollouts = [found for found in by_request(trajectories) if found[0].request.beams]
    if not rollouts:
        return {}
    num_items = [len(items) for _, *items in rollouts]
    return {"items_per_reasoning": mean(num_items), "reasonings_without_items": mean([not each for each in num_items])}
