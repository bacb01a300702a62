"""The end of a command: its result as text or as JSON, and its exit code."""

import asyncio
import itertools
import json
from collections.abc import Callable, Coroutine
from typing import Any, Protocol, TypeVar

from harness.core.exit_codes import ExitCode
from harness.core.invocation import Invocation, wants_colour
from harness.render.console import say, show


class Result(Protocol):
    """Result of a command."""

    @property
    def exit_code(self) -> ExitCode:
        """Exit code of the command."""


R = TypeVar("R", bound=Result)
P = TypeVar("P")


def show_result(
    found: R,
    invocation: Invocation,
    as_text: Callable[..., str],
    as_json: Callable[[R], Any],
    *,
    color: str,
    is_json: bool,
) -> ExitCode:
    """Print a result on standard output, as JSON where that was asked for, and return its exit code."""
    show(json.dumps(as_json(found)) if is_json else as_text(found, colour=wants_colour(color, invocation)))
    return found.exit_code


def run_search(
    search: Callable[[Callable[[P], None]], Coroutine[Any, Any, R | str]], line: Callable[[int, P], str]
) -> R | None:
    """Run a search, saying a line for each of its probes; return None, and say so, if a signal came first."""
    numbers = itertools.count(1)
    found = asyncio.run(search(lambda probe: say(line(next(numbers), probe))))
    if isinstance(found, str):
        say(f"interrupted by {found} before there was an answer")
        return None
    return found
