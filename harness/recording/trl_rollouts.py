"""What TRL's trainers sample, reward and weigh: read where a trainer hands it on.

Written against TRL 1.16; where a later one has other names, its rollouts are not recorded, which is said once.
"""

import functools
from collections.abc import Callable
from types import ModuleType
from typing import Any

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


def hook_trainers(module: ModuleType, record: Callable[[str, str, Any], None], say: Callable[[str], None]) -> None:
    """Give `record` (phase, name, value) for what the trainers of a module generate and score."""
    for kind, methods in TRAINERS.items():
        if (trainer := vars(module).get(kind)) is None:
            continue
        missing = [name for name in methods if not hasattr(trainer, name)]
        if missing:
            say(f"this TRL has no {kind}.{missing[0]}: its completions and rewards are not recorded")
            continue
        for method, names in methods.items():
            setattr(trainer, method, _followed(getattr(trainer, method), names, record))


def _followed(
    original: Callable[..., Any], names: tuple[str, ...], record: Callable[[str, str, Any], None]
) -> Callable[..., Any]:
    @functools.wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        result = original(*args, **kwargs)
        values = dict(zip(names, result if len(names) > 1 else (result,), strict=False)) if names else result
        for name, phase in PHASES.items():
            if values.get(name) is not None:
                record(phase, name, values[name])
        return result

    return call
