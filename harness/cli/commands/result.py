"""The end of a command: its result as text or as JSON, and its exit code."""

import json
from collections.abc import Callable
from typing import Any, Protocol, TypeVar

from harness.bits.exit_codes import ExitCode
from harness.process.invocation import Invocation, wants_colour
from harness.render.console import show


class Result(Protocol):
    """Result of a command."""

    @property
    def exit_code(self) -> ExitCode:
        """Exit code of the command."""


R = TypeVar("R", bound=Result)


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
