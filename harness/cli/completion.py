"""Completion of arguments in a shell. Nothing heavy is imported: a shell waits for every answer.

A shell puts what it is answered into the line as it is, unquoted. So only names without characters that a shell or a
terminal obeys are answered.
"""

import re
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem


_PLAIN = re.compile(r"\w[\w.+=@-]*")


def complete_scenario(context: click.Context, parameter: click.Parameter, incomplete: str) -> list["CompletionItem"]:
    """Return the scenarios whose names begin so, and are plain words; files where none does."""
    from click.shell_completion import CompletionItem

    from harness.lab.experiments.scenario_names import scenario_names

    try:
        names = [each for each in scenario_names(Path.cwd()) if each.startswith(incomplete) and _PLAIN.fullmatch(each)]
    except OSError:  # a directory that is gone or cannot be read has no names
        names = []
    return [CompletionItem(name) for name in names] or [CompletionItem(incomplete, type="file")]
