"""Hooks in libraries: the curve from what TensorBoard and transformers' trainers are given, and TRL's rollouts.

What TRL's trainers sample, reward and weigh is read where a trainer hands it on. Written against TRL 1.16;
where a later one has other names, its rollouts are not recorded, which is said once.
"""

from collections.abc import Callable
from types import ModuleType
from typing import Any

from harness.recording.hooks import look_at_calls
from harness.recording.metrics import LogValues, floats

See = Callable[[str, str, Any], None]
"""Takes phase, name and value of what was sampled, rewarded or weighed."""
PHASES = {
    "prompt_ids": "rollout",
    "prompt_mask": "rollout",
    "completion_ids": "rollout",
    "completion_mask": "rollout",
    "sampling_per_token_logps": "rollout",
    "ref_per_token_logps": "reference",
    "rewards": "reward",
    "advantages": "advantage",
}
"""Phase of each value that is recorded."""
GENERATED = ("prompt_ids", "prompt_mask", "completion_ids", "completion_mask")
TRAINERS: dict[str, dict[str, tuple[str, ...]]] = {
    "GRPOTrainer": {"_calculate_rewards": ("rewards",), "_generate_and_score_completions": ()},
    "RLOOTrainer": {"_calculate_rewards": ("rewards",), "_generate_and_score_completions": ()},
    "OnlineDPOTrainer": {"_generate": GENERATED, "_calculate_rewards_from_functions": ("rewards",)},
}
"""By class: its methods, and the names of what each returns; none where it returns a dictionary."""


def hook_rollouts(module: ModuleType, _: LogValues, record: See) -> None:
    """See what the trainers of a module generate and score."""
    for kind in TRAINERS.keys() & vars(module).keys():
        for method, names in TRAINERS[kind].items():
            look_at_calls(vars(module)[kind], method, after=_see_result(names, record))


def _see_result(names: tuple[str, ...], record: See) -> Callable[..., None]:
    def see(result: Any, *_: Any, **__: Any) -> None:
        values = dict(zip(names, result if len(names) > 1 else (result,), strict=False)) if names else result
        for name, phase in PHASES.items():
            if values.get(name) is not None:
                record(phase, name, values[name])

    return see


def hook_tensorboard(module: ModuleType, log: LogValues, _: See) -> None:
    """See the scalars that a SummaryWriter is given."""

    def see(_: Any, writer: Any, tag: str, scalar_value: Any, *args: Any, **kwargs: Any) -> None:
        log(floats({tag.removeprefix("train/"): scalar_value}))

    look_at_calls(module.SummaryWriter, "add_scalar", after=see)


def hook_trainer(module: ModuleType, log: LogValues, _: See) -> None:
    """See what a transformers Trainer, or one of TRL's, logs."""

    def see(handler: Any, args: Any, state: Any, control: Any, logs: Any, *more: Any, **kwargs: Any) -> None:
        log(floats(logs))

    look_at_calls(module.CallbackHandler, "on_log", see)
