"""A task, whole: nothing of it is drawn or read later."""

from dataclasses import dataclass

from rlcore.rewards.reward import Reward
from rlcore.types import Prompt


@dataclass(frozen=True, slots=True)
class Task:
    """Prompts and rewards."""

    name: str
    train: tuple[Prompt, ...]
    heldout: tuple[Prompt, ...]
    """To evaluate on; the text of none of them is in `train`."""
    rewards: tuple[Reward, ...]
