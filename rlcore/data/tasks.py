"""Tasks by name: prompts to train on, others to evaluate on, and rewards. Nothing of a task is drawn or read later."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rlcore.config import TaskSection
from rlcore.data.files import Row, read_rows, split_rows
from rlcore.data.generated import EXERCISES, draw
from rlcore.data.recommendation import recommended
from rlcore.data.rewards import GIVEN, STATE, Reward, load_reward
from rlcore.data.scoring import accepted
from rlcore.errors import InvalidValueError
from rlcore.keys import prompt_ids
from rlcore.rewards.text import matching
from rlcore.types import Prompt, Tokenizer


@dataclass(frozen=True, slots=True)
class Task:
    """Prompts and rewards."""

    name: str
    train: tuple[Prompt, ...]
    heldout: tuple[Prompt, ...]
    """To evaluate on; the text of none of them is in `train`."""
    rewards: tuple[Reward, ...]


OWN_REWARDS: Mapping[str, tuple[Reward, ...]] = {"recommendation": (Reward("recommended", recommended),)}
"""Rewards of tasks whose completions are not compared with the right one character by character."""


def alphabet(name: str, path: str = "") -> str:
    """Every character of a task's prompts and answers, for a CharacterTokenizer; of `file`, those in the file."""
    if name in EXERCISES:
        return EXERCISES[name].alphabet
    texts = [text for row in read_rows(Path(path)) for text in (row.prompt, row.columns.get("answer"))]
    return "".join(sorted({character for text in texts if isinstance(text, str) for character in text}))


def make_task(section: TaskSection, tokenizer: Tokenizer, seed: int) -> Task:
    """The task of a configuration; the same for the same arguments, on any machine.

    The reward of a model is added by `rlcore.rewards.build`.

    Raises InvalidValueError where there are too few prompts, or the tokenizer cannot read one; RewardError where a
    reward function wants a column that prompts do not have.
    """
    if section.name == "file":
        train, heldout = split_rows(Path(section.path), section.num_prompts, section.num_heldout, seed)
        if not section.rewards and section.reward_model is None:
            _check_answers([*heldout, *train])
    else:
        num_examples = section.num_heldout + section.num_prompts
        drawn = draw(section.name, (section.min_length, section.max_length), num_examples, seed)
        rows = [Row(each.prompt, {"answer": each.answer, "data_source": section.name}, "") for each in drawn]
        heldout, train = rows[: section.num_heldout], rows[section.num_heldout :]
    prompts = _prompts([*heldout, *train], tokenizer)
    rewards = _rewards(section, prompts[0].columns)
    return Task(section.name, prompts[len(heldout) :], prompts[: len(heldout)], rewards)


def _prompts(rows: Sequence[Row], tokenizer: Tokenizer) -> tuple[Prompt, ...]:
    encoded = [_encoded(row, tokenizer) for row in rows]
    ids = prompt_ids(tokens for _, tokens in encoded)
    return tuple(Prompt(id, *own, row.columns) for id, own, row in zip(ids, encoded, rows, strict=True))


def _encoded(row: Row, tokenizer: Tokenizer) -> tuple[str, tuple[int, ...]]:
    try:
        text, tokens = tokenizer.encode_prompt(row.prompt)
        return text, tuple(tokens)
    except InvalidValueError as error:
        place = f"{row.place}: " if row.place else ""
        raise InvalidValueError(f"{place}{error.what}", legal=error.legal, remedy=error.remedy) from error


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
    if not rewards and section.reward_model is None:
        rewards = OWN_REWARDS.get(section.name, (Reward("matching", matching),))
    for reward in rewards:
        accepted(reward, [*GIVEN, *columns, STATE])
    return rewards
