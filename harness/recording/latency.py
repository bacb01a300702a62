"""Lets functions that wait for something outside take longer: a keyed delay before each of their calls.

    ask(a) ask(b) ask(c)   ── the second call waits 15 ms, the third none ──▶   c a b

The latency of a tool, a reward model or a network varies, and determines in which order several of them
respond. A delay is that of the seed, the function and the number of its call in this process: the same in each run.
"""

import asyncio
import inspect
from collections.abc import Callable, Sequence
from functools import wraps
from hashlib import blake2b
from importlib import import_module
from itertools import count
from pathlib import Path
from typing import Any

from harness.bits.errors import UsageError
from harness.process.clock import sleep
from harness.recording.recorder import RecorderCallback

UNIT_S = 0.005
"""Who comes first is another one only where the process was held up for as long between two calls."""
NUM_UNITS = 4


class Latency(RecorderCallback):
    """Puts delays before the calls of `functions`, each "module:function", for the life of this process.

    A function is replaced in its module: callers find it there, or bind the name after this. The file `mark` is made
    before the first delay: that there was one. UsageError where there is no such function.
    """

    def __init__(self, seed: int, functions: Sequence[str], mark: str) -> None:
        for name in functions:
            module, function = found(name)
            setattr(module, name.partition(":")[2], delayed(function, f"{seed} {name}", Path(mark)))


def delayed(function: Callable[..., Any], key: str, mark: Path) -> Callable[..., Any]:
    """A function that does the same after a delay; calls of one that is async wait beside each other."""
    numbers = count()

    def next_s() -> float:
        if seconds := delay_s(key, next(numbers)):
            mark.touch()
        return seconds

    @wraps(function)
    def later(*given: Any, **named: Any) -> Any:
        sleep(next_s())
        return function(*given, **named)

    @wraps(function)
    async def awaited_later(*given: Any, **named: Any) -> Any:
        await asyncio.sleep(next_s())
        return await function(*given, **named)

    return awaited_later if inspect.iscoroutinefunction(function) else later


def delay_s(key: str, number: int) -> float:
    """Before a call: 0, 5, 10 or 15 ms."""
    digest = blake2b(f"{key} {number}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") % NUM_UNITS * UNIT_S


def found(name: str) -> tuple[Any, Callable[..., Any]]:
    """The module and the function of "module:function"; UsageError where there is none."""
    module_name, _, function_name = name.partition(":")
    try:
        module = import_module(module_name)
    except ModuleNotFoundError as error:
        raise UsageError(
            f"chaos.latency {name}: there is no module {error.name}",
            legal="module:function, of a module that can be imported",
            remedy="correct the scenario's file",
        ) from None
    function = getattr(module, function_name, None)
    if not inspect.isroutine(function):
        raise UsageError(
            f"chaos.latency {name}: {module_name} has no function {function_name}",
            legal=", ".join(name for name, each in vars(module).items() if inspect.isfunction(each)),
            remedy="correct the scenario's file",
        )
    return module, function
