"""Calling reward functions: with what they ask for, async ones together in one event loop.

    sync functions, one after another ──▶ ┌ the loop ───────────────────────────┐ ──▶ what each returned,
    (outside the loop: they may run one)  │ every async function, each within   │     in the order of the rewards
                                          │ its timeout; all are waited for     │
                                          └─────────────────────────────────────┘

Waiting for all, also after one has failed, makes the reported error the same whichever was faster. The loop is the
same for the life of the process, and runs only while it is waited for: clients that functions keep from step to step
are bound to the loop they were first used in.
"""

import asyncio
import atexit
import contextvars
import copy
import difflib
import inspect
import math
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from rlcore.errors import RewardError, RlcoreError
from rlcore.rewards.reward import Reward, TrainerState

GIVEN = ("prompts", "completions", "completion_ids", "stop_reasons")
"""Lists, one element a completion, that every function is given beside the prompts' own columns."""
STATE = "trainer_state"
NUMBERS = frozenset({int, float, bool})
_ONE_AT_A_TIME = threading.Lock()


@dataclass(frozen=True, slots=True)
class Arguments:
    """What reward functions may ask for by name."""

    columns: Mapping[str, Sequence[Any]]
    """Each [completions]."""
    state: TrainerState
    num_completions: int

    def only(self, index: int) -> "Arguments":
        """Those of one completion."""
        columns = {name: values[index : index + 1] for name, values in self.columns.items()}
        return Arguments(columns, self.state, 1)

    def bound(self, reward: Reward) -> dict[str, Any]:
        """Return those this function takes, copied for it and for each completion at every depth.

        No change that it makes in them reaches another function, another completion of the prompt, or the task.
        """
        names = accepted(reward, [*self.columns, STATE])
        return {name: self.state if name == STATE else list(map(_copied, self.columns[name])) for name in names}


def _copied(value: Any) -> Any:
    """Return a copy of one completion's value; of a list of numbers, such as token ids, four times as fast."""
    if type(value) is list and NUMBERS.issuperset(map(type, value)):
        return value.copy()
    return copy.deepcopy(value)


def accepted(reward: Reward, available: Iterable[str]) -> list[str]:
    """The names a function takes: all where it has `**columns`, else those of its parameters.

    Raises RewardError where it wants one there is not.
    """
    names = list(available)
    parameters = inspect.signature(reward.function).parameters.values()
    wanted = [each.name for each in parameters if each.kind in (each.POSITIONAL_OR_KEYWORD, each.KEYWORD_ONLY)]
    needed = [each.name for each in parameters if each.name in wanted and each.default is each.empty]
    if missing := [name for name in needed if name not in names]:
        near = difflib.get_close_matches(missing[0], names, n=1)
        raise RewardError(
            f"reward function {reward.name} wants {missing[0]!r}, which no prompt has",
            legal=", ".join(names),
            remedy=f"is it {near[0]!r}?"
            if near
            else "give the prompts a column of this name, or the parameter a default",
        )
    takes_all = any(each.kind is each.VAR_KEYWORD for each in parameters)
    return names if takes_all else [name for name in names if name in wanted]


def call_all(rewards: Sequence[Reward], arguments: Arguments) -> list[Any]:
    """What each function returned, in the order of `rewards`; unchecked.

    Raises RewardError for the first of them that wants what there is not, raised, or took longer than its timeout.
    """
    calls = [_Call(reward, arguments.bound(reward)) for reward in rewards]
    outcomes = {number: called(call) for number, call in enumerate(calls) if not call.reward.is_async}
    awaited = [number for number in range(len(calls)) if number not in outcomes]
    outcomes.update(zip(awaited, _run([calls[number] for number in awaited]), strict=True))
    for number, reward in enumerate(rewards):
        if isinstance(error := outcomes[number], BaseException):
            raise _failure(reward, arguments, error) from error
    return [outcomes[number] for number in range(len(calls))]


@dataclass(frozen=True, slots=True)
class _Call:
    reward: Reward
    arguments: dict[str, Any]


class _TookTooLongError(Exception):
    """By our clock, not the function's own."""


def called(call: _Call) -> Any:
    """What a function that is not async returned, or raised."""
    try:
        return call.reward.function(**call.arguments)
    except (Exception, SystemExit) as error:  # a user's function may raise anything; it is told with its name
        return error


def _run(calls: Sequence[_Call]) -> list[Any]:
    """What async functions returned, or raised, all running together."""
    if not calls:
        return []
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        with _ONE_AT_A_TIME:
            return _loop().run(_together(calls), context=contextvars.copy_context())
    raise RewardError(
        f"reward function {calls[0].reward.name} is async, and an event loop is running already",
        remedy="score in a thread: await asyncio.to_thread(...)",
    )


@cache
def _loop() -> asyncio.Runner:
    """The loop, made when an async function is first called."""
    runner = asyncio.Runner()
    atexit.register(runner.close)
    return runner


async def _together(calls: Sequence[_Call]) -> list[Any]:
    return await asyncio.gather(*map(awaited, calls), return_exceptions=True)


async def awaited(call: _Call) -> Any:
    """The same of one that is async, within its timeout; raises what it raised."""
    timeout_s = call.reward.timeout_s
    try:
        async with asyncio.timeout(None if math.isinf(timeout_s) else timeout_s) as limit:
            return await call.reward.function(**call.arguments)
    except TimeoutError:
        if limit.expired():
            raise _TookTooLongError from None
        raise


def _failure(reward: Reward, arguments: Arguments, error: BaseException) -> RewardError:
    """The error to raise; the completion at fault is looked for by giving the function one at a time."""
    if isinstance(error, _TookTooLongError):
        return RewardError(
            f"reward function {reward.name} took longer than {reward.timeout_s:g} s for "
            f"{arguments.num_completions} completions",
            remedy="check that the service it waits for responds, or raise task.reward_timeout_s",
        )
    told = f"reward function {reward.name} raised {type(error).__name__}: {error}"
    legal, remedy = "", "let it return None for a completion without a reward"
    if isinstance(error, RlcoreError):  # of an adapter
        told, legal, remedy = f"reward function {reward.name}: {error.what}", error.legal, error.remedy
    if (index := _first_failing(reward, arguments)) is None:
        return RewardError(f"{told} (for the whole batch, and for no sample alone)", legal=legal, remedy=remedy)
    columns = {name: values[index] for name, values in arguments.columns.items() if name != "completion_ids"}
    given = ", ".join(f"{name} {value!r:.60}" for name, value in columns.items())
    return RewardError(f"{told} (for sample {index}: {given})", legal=legal, remedy=remedy)


def _first_failing(reward: Reward, arguments: Arguments) -> int | None:
    for index in range(arguments.num_completions):
        call = _Call(reward, arguments.only(index).bound(reward))
        outcome = _run([call])[0] if reward.is_async else called(call)
        if isinstance(outcome, BaseException):
            return index
    return None
