"""Rewards of completions: every function's numbers, checked, and their weighted sum.

None means that a function has no reward for a sample. It adds nothing to the sample's total; without a
reward from any function, the total is `None` too, and every mean excludes the sample. Any other value that is not a
finite number is an error: the policy would learn from it.
"""

import asyncio
import atexit
import contextvars
import copy
import inspect
import math
import sys
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from itertools import islice, starmap
from typing import Any

from harness.bits.text import nearest
from rlcore.data.rewards import ENVIRONMENT_REWARD, GIVEN, STATE, Reward, TrainerState, place_of
from rlcore.data.trajectory import Trajectory, by_request, completions_of
from rlcore.errors import InvalidValueError, RewardError, RlcoreError
from rlcore.seeds import permutation

NUMBERS = frozenset({int, float, bool})
_ONE_AT_A_TIME = threading.Lock()
Columns = Mapping[str, Sequence[Any]]
"""What reward functions may ask for by name, each [completions]."""


class _TookTooLongError(Exception):
    """By our clock, not the function's own."""


def _bound(reward: Reward, columns: Columns, state: TrainerState) -> Callable[[], Any]:
    """Bind a function to what it takes, copied for it and for each completion at every depth.

    No change that it makes in them reaches another function, another completion of the prompt, or the task.
    """
    names = asked_for(reward, [*columns, STATE])
    given = {name: state if name == STATE else list(map(_copied, columns[name])) for name in names}
    return partial(reward.function, **given)


def _copied(value: Any) -> Any:
    """Return a copy of one completion's value; of a list of numbers, such as token ids, four times as fast."""
    if type(value) is list and NUMBERS.issuperset(map(type, value)):
        return value.copy()
    return copy.deepcopy(value)


def asked_for(reward: Reward, available: Iterable[str]) -> list[str]:
    """The names a function takes: all where it has `**columns`, else those of its parameters.

    Raises RewardError where it wants one there is not.
    """
    names = list(available)
    parameters = inspect.signature(reward.function).parameters.values()
    wanted = [each.name for each in parameters if each.kind in (each.POSITIONAL_OR_KEYWORD, each.KEYWORD_ONLY)]
    needed = [each.name for each in parameters if each.name in wanted and each.default is each.empty]
    if missing := [name for name in needed if name not in names]:
        raise RewardError(
            f"reward function {reward.name} wants {missing[0]!r}, which no prompt has",
            legal=", ".join(names),
            remedy=nearest(missing[0], names) or "give the prompts a column of this name, or the parameter a default",
        )
    takes_all = any(each.kind is each.VAR_KEYWORD for each in parameters)
    return names if takes_all else [name for name in names if name in wanted]


def call_all(rewards: Sequence[Reward], columns: Columns, state: TrainerState) -> list[Any]:
    """Return what each function returned, in the order of `rewards`; unchecked.

    Functions that are not async are called one after another, outside of the event loop: they may run one. Then all
    async ones run together in it, each within its timeout, and all are waited for, also after one has failed: the
    reported error is the same whichever was faster. Raises RewardError for the first of them that wants what there is
    not, raised, or took longer than its timeout.
    """
    outcomes = _outcomes(rewards, columns, state)
    for reward, outcome in zip(rewards, outcomes, strict=True):
        if isinstance(outcome, BaseException):
            raise _failure(reward, columns, state, outcome) from outcome
    return outcomes


def _outcomes(rewards: Sequence[Reward], columns: Columns, state: TrainerState) -> list[Any]:
    """Return what each function returned, or raised."""
    calls = [_bound(reward, columns, state) for reward in rewards]
    outcomes = [None if reward.is_async else called(call) for reward, call in zip(rewards, calls, strict=True)]
    waiting = [number for number, reward in enumerate(rewards) if reward.is_async]
    for number, outcome in zip(waiting, _run([(rewards[n], calls[n]) for n in waiting]), strict=True):
        outcomes[number] = outcome
    return outcomes


def called(call: Callable[[], Any]) -> Any:
    """Return what a function that is not async returned, or raised."""
    try:
        return call()
    except (Exception, SystemExit) as error:  # a user's function may raise anything; it is reported with its name
        return error


def _run(calls: Sequence[tuple[Reward, Callable[[], Any]]]) -> list[Any]:
    """Return what async functions returned, or raised, all running together."""
    if not calls:
        return []
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        with _ONE_AT_A_TIME:
            return _loop().run(_together(calls), context=contextvars.copy_context())
    raise RewardError(
        f"reward function {calls[0][0].name} is async, and an event loop is running already",
        remedy="score in a thread: await asyncio.to_thread(...)",
    )


@cache
def _loop() -> asyncio.Runner:
    """Return the loop of this process: clients that functions keep from step to step are bound to it."""
    runner = asyncio.Runner()
    atexit.register(runner.close)
    return runner


async def _together(calls: Sequence[tuple[Reward, Callable[[], Any]]]) -> list[Any]:
    return await asyncio.gather(*starmap(awaited, calls), return_exceptions=True)


async def awaited(reward: Reward, call: Callable[[], Any]) -> Any:
    """Return what an async function returned, within its timeout; raise what it raised."""
    try:
        async with asyncio.timeout(reward.timeout_s) as limit:
            return await call()
    except TimeoutError:
        if limit.expired():
            raise _TookTooLongError from None
        raise


def _failure(reward: Reward, columns: Columns, state: TrainerState, error: BaseException) -> RewardError:
    """Return the error to raise; the completion at fault is found by giving the function one at a time."""
    num_completions = len(columns[GIVEN[0]])
    if isinstance(error, _TookTooLongError):
        return RewardError(
            f"reward function {reward.name} took longer than {reward.timeout_s:g} s for {num_completions} completions",
            remedy="check that the service it waits for responds, or raise task.reward_timeout_s",
        )
    said = f"reward function {reward.name} raised {type(error).__name__}: {error}{place_of(error)}"
    legal, remedy = "", "correct it there; for a completion without a reward it may return None"
    if isinstance(error, RlcoreError):  # of an adapter
        said, legal, remedy = f"reward function {reward.name}: {error.what}", error.legal, error.remedy
    for index in range(num_completions):
        one = {name: values[index : index + 1] for name, values in columns.items()}
        if isinstance(_outcomes([reward], one, state)[0], BaseException):
            given = ", ".join(f"{name} {value!r:.60}" for name, (value,) in one.items() if name != "completion_ids")
            return RewardError(f"{said} (for sample {index}: {given})", legal=legal, remedy=remedy)
    return RewardError(f"{said} (for the whole batch, and for no sample alone)", legal=legal, remedy=remedy)


@dataclass(frozen=True, slots=True)
class Scores:
    """Rewards of a batch, in the order of its completions."""

    rewards: list[float | None]
    """[completions], the totals."""
    by_function: dict[str, list[float | None]]
    """[completions] for each reward's name, without its weight."""

    @property
    def included(self) -> list[bool]:
        """[completions]: whether any function returned a reward."""
        return [reward is not None for reward in self.rewards]


def score(rewards: Sequence[Reward], trajectories: Sequence[Trajectory], *, step: int) -> Scores:
    """Ask every function for every completion.

    Functions are called once, with lists in the order of `trajectories`: the text of each completion, and the columns
    of its prompt. The total is the sum of weight times value over the functions that gave one, without rounding between
    (math.fsum); TRL 1.16 adds alike, in fp32.

    Raises RewardError, which names the function and the sample, for an exception, a timeout, a wrong number of values,
    and a value that is not a finite number; InvalidValueError for two rewards of one name.
    """
    names = [reward.name for reward in rewards]
    if len(set(names)) < len(names) or not names:
        raise InvalidValueError(f"rewards {names}", legal="at least one, each with a name of its own")
    returned = call_all(rewards, _arguments(trajectories), TrainerState(step))
    values = [_checked(reward, each, trajectories) for reward, each in zip(rewards, returned, strict=True)]
    totals = [_total(rewards, column, index) for index, column in enumerate(zip(*values, strict=True))]
    return Scores(totals, dict(zip(names, values, strict=True)))


def shuffled(scores: Scores, *parts: str | int) -> Scores:
    """The totals in the order of their keys: a control, which nothing can be learned from.

    Some may stay where they are. A shuffle in which none does would, on average, punish a sample for its own reward.
    """
    order = permutation(len(scores.rewards), "shuffled rewards", *parts)
    return replace(scores, rewards=[scores.rewards[index] for index in order])


def _arguments(trajectories: Sequence[Trajectory]) -> Columns:
    prompts = [each.request.prompt for each in trajectories]
    outcomes = [each.outcome for each in trajectories if each.outcome is not None]
    return {
        "prompts": [prompt.text for prompt in prompts],
        "completions": [each.completion_text for each in trajectories],
        "completion_ids": [list(each.completion_tokens) for each in trajectories],
        "stop_reasons": [each.stop_reason.value for each in trajectories],
        **({ENVIRONMENT_REWARD: [each.reward for each in outcomes]} if outcomes else {}),
        **{name: [prompt.columns[name] for prompt in prompts] for name in prompts[0].columns},
    }


def _checked(reward: Reward, returned: Any, trajectories: Sequence[Trajectory]) -> list[float | None]:
    """One number or None a completion; a tensor or an array is taken for the list it holds."""
    listed = returned.tolist() if hasattr(returned, "tolist") else returned
    if not isinstance(listed, list | tuple):
        raise RewardError(
            f"reward function {reward.name} returned {returned!r:.60}",
            legal="a list of one number or None a completion",
        )
    if len(listed) != len(trajectories):
        raise RewardError(
            f"reward function {reward.name} returned {len(listed)} values for {len(trajectories)} completions",
            legal="one for each, in their order",
            remedy="return None for a completion without a reward",
        )
    return [_number(reward, value, index, trajectories[index]) for index, value in enumerate(listed)]


def _number(reward: Reward, value: Any, index: int, trajectory: Trajectory) -> float | None:
    number = value.item() if hasattr(value, "item") and getattr(value, "ndim", None) == 0 else value
    if number is None:
        return None
    if not isinstance(number, int | float) or not abs(number) <= sys.float_info.max:
        request = trajectory.request
        raise RewardError(
            f"reward function {reward.name} gave {value!r:.60} for sample {index} "
            f"(completion {request.sample_index} of prompt {request.prompt.id}: {trajectory.completion_text!r:.60})",
            legal="a finite number, or None for a completion without a reward",
        )
    return float(number)


def _total(rewards: Sequence[Reward], values: Sequence[float | None], index: int) -> float | None:
    """Of one sample."""
    given = [(reward.weight, value) for reward, value in zip(rewards, values, strict=True) if value is not None]
    if not given:
        return None
    try:
        total = math.fsum(weight * value for weight, value in given)
    except (OverflowError, ValueError):  # on the way, and of opposite infinities
        total = math.inf
    if not math.isfinite(total):
        raise RewardError(f"the rewards {values} of sample {index} have no finite sum", remedy="make them smaller")
    return total


def score_branches(
    rewards: Sequence[Reward],
    trajectories: Sequence[Trajectory],
    *,
    step: int,
    control: tuple[str | int, ...] | None = None,
) -> Scores:
    """Score trajectories in canonical order; without branches, as `score` does.

    `control` are the key parts of a shuffle of all that functions score. Raises as `score` does.
    """
    found = score(rewards, completions_of(trajectories), step=step)
    if control is not None:
        found = shuffled(found, *control)
    return Scores(
        _with_reasonings(found.rewards, trajectories),
        {name: _with_reasonings(column, trajectories) for name, column in found.by_function.items()},
    )


def _with_reasonings(scored: Sequence[float | None], trajectories: Sequence[Trajectory]) -> list[float | None]:
    """Put the mean of its items before them, for each reasoning that has any."""
    left, values = iter(scored), list[float | None]()
    for _, *items in by_request(trajectories):
        own = list(islice(left, len(items) or 1))
        given = [reward for reward in own if reward is not None]
        if items:
            values.append(math.fsum(given) / len(given) if given else None)
        values += own
    return values
