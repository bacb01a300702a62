"""Completion of arguments in a shell. Nothing heavy is imported: a shell waits for every answer."""

from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem


def complete_scenario(context: click.Context, parameter: click.Parameter, incomplete: str) -> list["CompletionItem"]:
    """Return the scenarios whose names begin so; files where none does."""
    from click.shell_completion import CompletionItem

    from harness.lab.experiments.scenario_names import scenario_names

    try:
        names = [name for name in scenario_names(Path.cwd()) if name.startswith(incomplete)]
    except OSError:  # a directory that is gone or cannot be read has no names
        names = []
    return [CompletionItem(name) for name in names] or [CompletionItem(incomplete, type="file")]
