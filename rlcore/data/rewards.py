"""Reward functions: how each counts, adapters for those written for other libraries, and the name by which a
configuration has one."""

import asyncio
import importlib
import inspect
import re
import sysconfig
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.bits.text import nearest
from rlcore.errors import InvalidValueError, RewardError

RewardFunction = Callable[..., Any]
"""`f(prompts, completions, completion_ids, **columns)`, a list of one number or None a completion; or `async def`."""
TIMEOUT_S = 300.0
GIVEN = ("prompts", "completions", "completion_ids", "stop_reasons")
"""Lists, one element a completion, that every function is given beside the prompts' own columns."""
ENVIRONMENT_REWARD = "environment_reward"
"""List, one number a completion, in runs with an environment: the sum of its rewards."""
STATE = "trainer_state"
RLCORE = str(Path(__file__).parents[1])
LIBRARIES = tuple(sysconfig.get_paths()[name] for name in ("stdlib", "purelib", "platlib"))
"""Directories of code that no user of ours has written."""


@dataclass(frozen=True, slots=True)
class TrainerState:
    """What TRL calls `trainer_state`, as far as a reward may depend on it."""

    global_step: int


@dataclass(frozen=True, slots=True)
class Reward:
    """A function and its share of the total."""

    name: str
    """Of its column in the metrics; no two rewards have the same."""
    function: RewardFunction
    weight: float = 1.0
    timeout_s: float = TIMEOUT_S
    """What an async function may take for a batch; one that is not async cannot be stopped."""

    @property
    def is_async(self) -> bool:
        """Whether its result is awaited; an object may have an async `__call__`."""
        return any(map(inspect.iscoroutinefunction, (self.function, type(self.function).__call__)))


Given = Mapping[str, Any]
"""The columns of one completion."""


def verl(compute_score: Callable[..., Any]) -> RewardFunction:
    """A reward function of verl's `compute_score(data_source, solution_str, ground_truth, extra_info)`.

    It is called once a completion, by keyword, as verl 0.9.1 does, and gives a number or {"score": number}; async ones
    run together. `ground_truth` is that of the column `reward_model`, the column `ground_truth`, or `answer`: the first
    there is. `extra_info` is a copy of the column, or {}; what verl itself adds to it (`num_turns`,
    `rollout_reward_scores`) is not there. The reward function raises RewardError.
    """

    async def awaited(completions: Sequence[str], **columns: Any) -> list[Any]:
        calls = [compute_score(**arguments) for arguments in _verl_arguments(completions, columns)]
        results = await asyncio.gather(*calls, return_exceptions=True)
        for result in results:
            if isinstance(result, BaseException):
                raise result
        return list(map(_score, results))

    def called(completions: Sequence[str], **columns: Any) -> list[Any]:
        return [_score(compute_score(**arguments)) for arguments in _verl_arguments(completions, columns)]

    return awaited if inspect.iscoroutinefunction(compute_score) else called


def openrlhf(reward_func: Callable[..., Any]) -> RewardFunction:
    """A reward function of OpenRLHF's `reward_func(queries, prompts, labels)`.

    It is called once a completion, with lists of one, as OpenRLHF's executor of single turns does, and gives a list or
    a tensor of one, or {"rewards": either}. `queries` are prompt and completion, without special tokens; `labels` hold
    the column `label`, or `answer`, or None where there is neither. The reward function raises RewardError.
    """

    def called(prompts: Sequence[str], completions: Sequence[str], **columns: Any) -> list[Any]:
        return [
            _only(reward_func([prompt + text], [prompt], [given.get("label", given.get("answer"))]))
            for prompt, text, given in zip(prompts, completions, _rows(columns), strict=True)
        ]

    return called


def environment_reward(environment_reward: Sequence[float], **_: Any) -> list[float]:
    """Return the environment's own rewards."""
    return list(environment_reward)


ADAPTERS = {"verl": verl, "openrlhf": openrlhf}
"""By the prefix that asks for them."""


def _rows(columns: Mapping[str, Any]) -> Iterator[Given]:
    """The columns of each completion."""
    names = [name for name in columns if name != STATE]
    return (dict(zip(names, values, strict=True)) for values in zip(*(columns[name] for name in names), strict=True))


def _verl_arguments(completions: Sequence[str], columns: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    if "data_source" not in columns:
        raise RewardError("prompts without a column 'data_source', which verl's functions are given", remedy="add it")
    for completion, given in zip(completions, _rows(columns), strict=True):
        yield {
            "data_source": given["data_source"],
            "solution_str": completion,
            "ground_truth": _ground_truth(given),
            "extra_info": dict(given.get("extra_info") or {}),
        }


def _ground_truth(given: Given) -> Any:
    model = given.get("reward_model")
    if isinstance(model, Mapping) and "ground_truth" in model:
        return model["ground_truth"]
    for name in ("ground_truth", "answer"):
        if name in given:
            return given[name]
    raise RewardError(
        "prompts without a ground truth, which verl's functions are given",
        legal="a column reward_model that holds ground_truth, or one that is called ground_truth, or answer",
    )


def _score(result: Any) -> Any:
    if not isinstance(result, Mapping):
        return result
    if "score" not in result:
        raise RewardError(f"returned {result!r:.60}", legal='a number, or {"score": number}')
    return result["score"]


def _only(result: Any) -> Any:
    """The one reward of a call with one query."""
    rewards: Any = result.get("rewards") if isinstance(result, Mapping) else result
    listed = rewards.tolist() if hasattr(rewards, "tolist") else rewards
    if isinstance(listed, list | tuple) and len(listed) == 1:
        return listed[0]
    raise RewardError(
        f"returned {result!r:.60} for one query", legal='a list or tensor of one reward, or {"rewards": either}'
    )


LEGAL = ", ".join(("module:function", *(f"{prefix}:module:function" for prefix in ADAPTERS)))


def load_reward(name: str, *, weight: float = 1.0, timeout_s: float = TIMEOUT_S) -> Reward:
    """The reward of "module:function", in TRL's signature; with "verl:" or "openrlhf:" before it, in theirs.

    Raises InvalidValueError where there is no such function, RewardError where its module fails when it is imported.
    """
    prefix, _, rest = name.partition(":")
    path = rest if prefix in ADAPTERS else name
    if not re.fullmatch("[^:]+:[^:]+", path):
        raise InvalidValueError(f"reward {name!r}", legal=LEGAL)
    function = load_function(path, "reward functions")
    return Reward(name, ADAPTERS[prefix](function) if prefix in ADAPTERS else function, weight, timeout_s)


def load_function(name: str, kind: str) -> Callable[..., Any]:
    """The function of "module:function"; `kind` says in errors what it is for.

    Raises InvalidValueError where there is no such function, RewardError where its module fails when it is imported.
    """
    found = load_object(name, kind)
    if isinstance(found, type):
        raise InvalidValueError(f"{name} is {found!r:.60}", legal="a function, or an object that is called")
    return found


def load_object(name: str, kind: str) -> Callable[..., Any]:
    """The function or class of "module:name"; raises as `load_function` does."""
    module_name, _, function_name = name.partition(":")
    module = _module(module_name, name, kind)
    found = getattr(module, function_name, None)
    if found is None:
        public = sorted(
            each
            for each, value in vars(module).items()
            if each[0] != "_" and (inspect.isfunction(value) or getattr(value, "__module__", "") == module_name)
        )
        raise InvalidValueError(
            f"module {module_name} has no {function_name!r}",
            legal=", ".join(public),
            remedy=nearest(function_name, public),
        )
    if not callable(found):
        raise InvalidValueError(f"{name} is {found!r:.60}", legal="a function, or an object that is called")
    return found  # type: ignore[no-any-return]


def _module(name: str, wanted: str, kind: str) -> Any:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and f"{name}.".startswith(f"{error.name}."):
            raise InvalidValueError(
                f"no module {error.name!r}, for {wanted} of {kind}",
                remedy="start in the directory that holds it, put that on PYTHONPATH, or install it",
            ) from error
        raise RewardError(f"module {name} of {kind} needs {error.name}", remedy="install it") from error
    except Exception as error:  # whatever a user's module raises while it is imported
        raise RewardError(f"module {name} of {kind} raised {type(error).__name__}: {error}{place_of(error)}") from error


def place_of(error: BaseException) -> str:
    """Return file and line of the user's code that raised, or called what raised; empty if there is none."""
    frames = [each for each in traceback.extract_tb(error.__traceback__) if not each.filename.startswith(RLCORE)]
    own = [each for each in frames if not each.filename.startswith(LIBRARIES)] or frames
    return f", at {own[-1].filename}:{own[-1].lineno} in {own[-1].name}" if own else ""
