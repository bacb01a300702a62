"""Hooks in libraries: the curve from what TensorBoard and transformers' trainers are given, and TRL's rollouts.

What TRL's GRPOTrainer samples, rewards and weighs is read where the trainer hands it on. Written against TRL 1.16;
where a later one has other names, its rollouts are not recorded, which is said once.
"""

from collections.abc import Callable
from types import ModuleType
from typing import Any

from harness.recording.hooks import look_at_calls
from harness.recording.metrics import LogValues, floats

PHASES = {
    "prompt_ids": "rollout",
    "prompt_mask": "rollout",
    "completion_ids": "rollout",
    "completion_mask": "rollout",
    "sampling_per_token_logps": "rollout",
    "ref_per_token_logps": "reference",
    "advantages": "advantage",
}
"""What a scored batch of completions holds, and the phase in which each part comes about."""


def hook_grpo(module: ModuleType, record: Callable[[str, str, Any], None], say: Callable[[str], None]) -> None:
    """Give `record` (phase, name, value) for each batch that a GRPOTrainer generates and scores."""
    trainer = module.GRPOTrainer
    missing = [name for name in ("_calculate_rewards", "_generate_and_score_completions") if not hasattr(trainer, name)]
    if missing:
        say(f"this TRL has no GRPOTrainer.{missing[0]}: its completions and rewards are not recorded")
        return

    def scored(found: Any, *_: Any, **__: Any) -> None:
        for name, phase in PHASES.items():
            if found.get(name) is not None:
                record(phase, name, found[name])

    look_at_calls(trainer, "_calculate_rewards", after=lambda found, *_, **__: record("reward", "rewards", found))
    look_at_calls(trainer, "_generate_and_score_completions", after=scored)


def hook_tensorboard(module: ModuleType, log: LogValues) -> None:
    """See the scalars that a SummaryWriter is given."""

    def see(_: Any, writer: Any, tag: str, scalar_value: Any, *args: Any, **kwargs: Any) -> None:
        log(floats({tag.removeprefix("train/"): scalar_value}))

    look_at_calls(module.SummaryWriter, "add_scalar", after=see)


def hook_trainer(module: ModuleType, log: LogValues) -> None:
    """See what a transformers Trainer, or one of TRL's, logs."""

    def see(handler: Any, args: Any, state: Any, control: Any, logs: Any, *more: Any, **kwargs: Any) -> None:
        log(floats(logs))

    look_at_calls(module.CallbackHandler, "on_log", see)
