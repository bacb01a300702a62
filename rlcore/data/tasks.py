"""Tasks by name: prompts to train on, others to evaluate on, and rewards. Nothing of a task is drawn or read later."""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlcore.config import TaskSection
from rlcore.data.environments import Answers, Environments, stop_strings_of
from rlcore.data.files import Row, read_rows, split_rows
from rlcore.data.generated import EXERCISES, Example, draw
from rlcore.data.recommendation import recommended
from rlcore.data.rewards import ENVIRONMENT_REWARD, GIVEN, STATE, Reward, environment_reward, load_reward
from rlcore.data.scoring import asked_for
from rlcore.errors import InvalidValueError
from rlcore.rewards.text import matching
from rlcore.seeds import prompt_ids
from rlcore.types import Prompt, Tokenizer


@dataclass(frozen=True, slots=True)
class Task:
    """Prompts and rewards."""

    name: str
    train: tuple[Prompt, ...]
    heldout: tuple[Prompt, ...]
    """To evaluate on; the text of none of them is in `train`."""
    rewards: tuple[Reward, ...]
    environments: Environments | None = None
    """What answers completions; None if a trajectory has one turn."""
    num_unused: int = 0
    """Rows of its file that are on neither side."""

    @property
    def longest_prompt(self) -> int:
        """Tokens of its longest prompt."""
        return max(len(prompt.tokens) for prompt in (*self.train, *self.heldout))


NUM_PROMPTS = 512
"""Prompts to train on of a task that is drawn, unless the configuration says how many."""
DEMONSTRATION = "demonstration"
"""Column of the turns that a warm start learns in an environment; without it, the column `answer` is the only turn."""
OWN_REWARDS: Mapping[str, tuple[Reward, ...]] = {"recommendation": (Reward("recommended", recommended),)}
"""Rewards of tasks whose completions are not compared with the right one character by character."""


def alphabet(name: str, path: str = "") -> str:
    """Every character of a task's prompts and answers, for a CharacterTokenizer; of `file`, those in the file."""
    if name in EXERCISES:
        return EXERCISES[name].alphabet
    texts = [text for row in read_rows(Path(path)) for text in (row.prompt, row.columns.get("answer"))]
    return "".join(sorted({character for text in texts if isinstance(text, str) for character in text}))


def make_task(
    section: TaskSection, tokenizer: Tokenizer, seed: int, *, context: int | None = None, num_new_tokens: int = 0
) -> Task:
    """The task of a configuration; the same for the same arguments, on any machine.

    `context` is the most tokens that the model reads, `num_new_tokens` the most after a prompt. The reward of a model
    is added by `rlcore.rewards.reward_model`. Raises InvalidValueError where there are too few prompts, or the
    tokenizer cannot read one, or the model has no room for it; RewardError where a reward function wants a column that
    prompts do not have.
    """
    num_unused = 0
    if section.name == "file":
        train, heldout, num_unused = split_rows(Path(section.path), section.num_prompts, section.num_heldout, seed)
        if not section.rewards and section.reward_model is None and section.environment is None:
            _check_answers([*heldout, *train])
    else:
        num_prompts = NUM_PROMPTS if section.num_prompts is None else section.num_prompts
        drawn = draw(section.name, (section.min_length, section.max_length), section.num_heldout + num_prompts, seed)
        rows = [Row(each.prompt, _columns(section, each), "") for each in drawn]
        heldout, train = rows[: section.num_heldout], rows[section.num_heldout :]
    rows, texts, tokens = [*heldout, *train], list[str](), list[tuple[int, ...]]()
    for row in rows:
        place = f"{row.place}: " if row.place else ""
        try:
            text, encoded = tokenizer.encode_prompt(row.prompt)
        except InvalidValueError as error:
            raise InvalidValueError(f"{place}{error.what}", legal=error.legal, remedy=error.remedy) from error
        texts.append(text)
        tokens.append(tuple(encoded))
        if context is not None and len(tokens[-1]) + num_new_tokens > context:
            raise InvalidValueError(
                f"{place}a prompt of {len(tokens[-1])} tokens, and up to {num_new_tokens} after it",
                legal=f"{context} together: the model reads no more",
                remedy="leave the prompt out, or a smaller sampling.max_tokens",
            )
    named = zip(prompt_ids(tokens), texts, tokens, rows, strict=True)
    prompts = tuple(Prompt(id, text, of_row, row.columns) for id, text, of_row, row in named)
    rewards = _rewards(section, prompts[0].columns)
    environments = None
    if section.environment is not None:
        answers = Answers(section.environment.answers)
        stops = stop_strings_of(section.environment)
        environments = Environments(section.environment, tokenizer, context or sys.maxsize, answers, stops)
    return Task(section.name, prompts[len(heldout) :], prompts[: len(heldout)], rewards, environments, num_unused)


def _columns(section: TaskSection, example: Example) -> dict[str, Any]:
    shown = {DEMONSTRATION: list(example.turns)} if section.environment and example.turns else {}
    return {"answer": example.answer, "data_source": section.name, **shown}


def _check_answers(rows: Sequence[Row]) -> None:
    """Of a file whose completions are compared with them."""
    for row in rows:
        if not isinstance(answer := row.columns.get("answer"), str):
            raise InvalidValueError(
                f"{row.place}: column 'answer' is {answer!r:.60}",
                legal="text, the right completion",
                remedy="name a reward function of your own in task.rewards",
            )


def _rewards(section: TaskSection, columns: Mapping[str, Any]) -> tuple[Reward, ...]:
    """Those that are named, or the task's own if no model gives any.

    Each is seen to get what it wants before anything is trained.
    """
    weights = section.reward_weights or (1.0,) * len(section.rewards)
    named = [
        load_reward(name, weight=weight, timeout_s=section.reward_timeout_s)
        for name, weight in zip(section.rewards, weights, strict=True)
    ]
    rewards = tuple(named)
    of_environment = [ENVIRONMENT_REWARD] if section.environment else []
    if not rewards and section.reward_model is None:
        own = OWN_REWARDS.get(section.name, (Reward("matching", matching),))
        rewards = (Reward(ENVIRONMENT_REWARD, environment_reward),) if section.environment else own
    for reward in rewards:
        asked_for(reward, [*GIVEN, *of_environment, *columns, STATE])
    return rewards
