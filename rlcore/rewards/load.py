"""Reward functions by name, as a configuration has them."""

import difflib
import importlib
import inspect
from collections.abc import Callable
from typing import Any

from rlcore.errors import InvalidValueError, RewardError
from rlcore.rewards.adapters import ADAPTERS
from rlcore.rewards.reward import TIMEOUT_S, Reward

LEGAL = ", ".join(("module:function", *(f"{prefix}:module:function" for prefix in ADAPTERS)))


def load_reward(name: str, *, weight: float = 1.0, timeout_s: float = TIMEOUT_S) -> Reward:
    """The reward of "module:function", in TRL's signature; with "verl:" or "openrlhf:" before it, in theirs.

    Raises InvalidValueError where there is no such function, RewardError where its module fails when it is imported.
    """
    *prefixes, module_name, function_name = name.split(":") if name.count(":") else ("", "")
    is_formed = module_name and function_name and len(prefixes) <= 1 and module_name not in ADAPTERS
    if not is_formed or not {*prefixes} <= {*ADAPTERS}:
        raise InvalidValueError(f"reward {name!r}", legal=LEGAL)
    function = _function(module_name, function_name)
    for prefix in prefixes:
        function = ADAPTERS[prefix](function)
    return Reward(name, function, weight, timeout_s)


def _function(module_name: str, function_name: str) -> Callable[..., Any]:
    module = _module(module_name)
    found = getattr(module, function_name, None)
    if found is None:
        public = sorted(each for each, value in vars(module).items() if inspect.isfunction(value) and each[0] != "_")
        near = difflib.get_close_matches(function_name, public, n=1)
        raise InvalidValueError(
            f"module {module_name} has no {function_name!r}",
            legal=", ".join(public),
            remedy=f"is it {near[0]!r}?" if near else "",
        )
    if not callable(found) or isinstance(found, type):
        raise InvalidValueError(
            f"{module_name}:{function_name} is {found!r:.60}", legal="a function, or an object that is called"
        )
    return found  # type: ignore[no-any-return]


def _module(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and f"{name}.".startswith(f"{error.name}."):
            raise InvalidValueError(
                f"no module {error.name!r}, for reward functions of {name!r}",
                remedy="put the directory that holds it on PYTHONPATH, or install it",
            ) from error
        raise RewardError(f"module {name} of reward functions needs {error.name}", remedy="install it") from error
    except Exception as error:  # whatever a user's module raises while it is imported
        raise RewardError(f"module {name} of reward functions raised {type(error).__name__}: {error}") from error
