"""Workflow commands, the lines of its output that a job of GitHub Actions obeys: where it would, and how it does not.

A line obeys if it begins with `::`, after blanks, or holds `##[`.
"""

import re
import secrets
from collections.abc import Mapping

_COMMAND = re.compile(r"^[^\S\n]*::|##\[", re.MULTILINE)


def is_on_github(environ: Mapping[str, str]) -> bool:
    """Whether this is a job of GitHub Actions."""
    return environ.get("GITHUB_ACTIONS") == "true"


def is_outermost_on_github(environ: Mapping[str, str]) -> bool:
    """Whether this is a job of GitHub Actions, and not a test of a run that reports to the job itself."""
    return is_on_github(environ) and "RLHARNESS_ATTEMPT" not in environ


def stop_lines() -> tuple[str, str]:
    """Return the lines after and before which GitHub obeys no workflow command, whatever a test prints between them."""
    token = secrets.token_hex(16)  # tests cannot guess it
    return f"::stop-commands::{token}", f"::{token}::"


def is_command_in(text: str) -> bool:
    """Return whether GitHub would obey a line of a text."""
    return _COMMAND.search(text) is not None


def inert(text: str) -> str:
    """Return text between lines that have GitHub obey no workflow command in it; as it is if it can hold none."""
    if "::" not in text and "##[" not in text:
        return text
    stop, resume = stop_lines()
    return f"{stop}\n{text}\n{resume}"
