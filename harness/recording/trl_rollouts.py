"""What TRL's GRPOTrainer samples, rewards and weighs: read where the trainer hands it on.

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
"""What a scored batch of completions holds, and the phase in which each part comes about."""


def hook_grpo(module: ModuleType, record: Callable[[str, str, Any], None], say: Callable[[str], None]) -> None:
    """Give `record` (phase, name, value) for each batch that a GRPOTrainer generates and scores."""
    trainer = module.GRPOTrainer
    missing = [name for name in ("_calculate_rewards", "_generate_and_score_completions") if not hasattr(trainer, name)]
    if missing:
        say(f"this TRL has no GRPOTrainer.{missing[0]}: its completions and rewards are not recorded")
        return

    def rewards(found: Any) -> None:
        record("reward", "rewards", found)

    def scored(found: Any) -> None:
        for name, phase in PHASES.items():
            if found.get(name) is not None:
                record(phase, name, found[name])

    trainer._calculate_rewards = _followed(trainer._calculate_rewards, rewards)
    trainer._generate_and_score_completions = _followed(trainer._generate_and_score_completions, scored)


def _followed(original: Callable[..., Any], look: Callable[[Any], None]) -> Callable[..., Any]:
    @functools.wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        found = original(*args, **kwargs)
        look(found)
        return found

    return call
