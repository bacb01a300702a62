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
    "advantages": "advantage",
}
"""What a scored batch of completions holds, in this order, and the phase in which each part comes about."""
SCORED = ("_calculate_rewards", "_generate_and_score_completions")
METHODS = {
    "GRPOTrainer": SCORED,
    "RLOOTrainer": SCORED,
    "OnlineDPOTrainer": ("_calculate_rewards_from_functions", "_generate"),
}
"""By trainer: the method that returns rewards, and that which returns completions."""


def hook_trainer(module: ModuleType, record: Callable[[str, str, Any], None], say: Callable[[str], None]) -> None:
    """Give `record` (phase, name, value) for each batch of completions of the trainer that is in a module."""
    name = next(each for each in METHODS if hasattr(module, each))
    trainer, (rewards, completions) = getattr(module, name), METHODS[name]
    missing = [each for each in (rewards, completions) if not hasattr(trainer, each)]
    if missing:
        say(f"this TRL has no {name}.{missing[0]}: its completions and rewards are not recorded")
        return

    def made(found: Any) -> None:
        parts = found if isinstance(found, dict) else dict(zip(PHASES, found[:4], strict=False))
        for part, phase in PHASES.items():
            if parts.get(part) is not None:
                record(phase, part, parts[part])

    setattr(trainer, rewards, _followed(getattr(trainer, rewards), lambda found: record("reward", "rewards", found)))
    setattr(trainer, completions, _followed(getattr(trainer, completions), made))


def _followed(original: Callable[..., Any], look: Callable[[Any], None]) -> Callable[..., Any]:
    @functools.wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        found = original(*args, **kwargs)
        look(found)
        return found

    return call
