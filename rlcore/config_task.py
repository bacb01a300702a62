"""The sections of a configuration that say what is learned: prompts, rewards, a reward model. No torch."""

from typing import Annotated, Literal

from pydantic import Field

from rlcore.config_base import Numbers, Positive, Section, Texts
from rlcore.errors import InvalidValueError


class RewardModelSection(Section):
    """A classifier of one label whose number for prompt and completion is a reward."""

    path: str = ""
    """A directory with config.json, safetensors and tokenizer; empty: of the policy's sizes, weights drawn here."""
    backend: Literal["torch", "vllm"] = "torch"
    """rlcore's own decoder, or vLLM's model of that family in this process."""
    weight: float = 1.0
    """Of its reward in the total."""
    max_length: Positive = 512
    """Tokens of the longest prompt and completion, by the reward model's tokenizer."""


class TaskSection(Section):
    """What is to be learned."""

    name: Literal["reverse_text", "arithmetic", "sorting", "recommendation", "file"]
    path: str = ""
    """Of the prompts, JSON lines or parquet, for `file`: a column `prompt`, the others go to the reward functions."""
    num_prompts: Positive = 512
    """To train on."""
    num_heldout: Positive = 128
    """To evaluate on; none of them is trained on."""
    min_length: Positive = 3
    max_length: Positive = 4
    """Letters, digits or items: what a task counts stands in it."""
    rewards: Texts = ()
    """module:function, in TRL's signature; with verl: or openrlhf: before it, in theirs.

    Empty: the task's own, unless there is a reward model.
    """
    reward_weights: Numbers = ()
    """One for each of the rewards; empty: all 1."""
    reward_timeout_s: Annotated[float, Field(gt=0)] = 300.0
    """What an async reward function may take for a batch; more is an error, and never a reward."""
    reward_model: RewardModelSection | None = None
    """Its reward is added to those of `rewards`."""
    shuffles_rewards: bool = False
    """Each reward goes to another sample of the batch: a control, which must learn nothing."""


def check_task(section: TaskSection) -> None:
    """Raise InvalidValueError for settings that do not fit together."""
    if (section.name == "file") != bool(section.path):
        raise InvalidValueError(
            f"task.path is {section.path!r}, and task.name {section.name}",
            legal="a path with the name file, and none with another",
        )
    if len(section.reward_weights) not in (0, len(section.rewards)):
        raise InvalidValueError(
            f"task.reward_weights has {len(section.reward_weights)} numbers",
            legal=f"one for each of task.rewards, {len(section.rewards)}, or none",
        )
    if section.min_length > section.max_length:
        raise InvalidValueError(
            f"task.min_length is {section.min_length}, above task.max_length", legal=f"1 to {section.max_length}"
        )
