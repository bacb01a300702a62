"""Names in the configuration that stand for nothing, most likely since they are misspelt: each is noted."""

from collections.abc import Iterator
from dataclasses import replace

from harness.runner.collection.collect import Collected
from harness.runner.need import NeedRule, NeedsTable
from harness.runner.options import RunOptions


def note_idle(collected: Collected, options: RunOptions) -> Collected:
    """Return the collection with a note on each pattern of the configuration that matches no file."""
    return replace(collected, notes=(*collected.notes, *_idle_patterns(collected, options)))


def _idle_patterns(collected: Collected, options: RunOptions) -> Iterator[str]:
    """Yield a note on each pattern that matches no file.

    If paths were given, all files below the root directory count: a pattern may match one that was not asked for.
    """
    paths = [unit.path for unit in collected.units]
    for what, patterns in _patterns(options):
        table = NeedsTable(NeedRule(pattern, None) for pattern in patterns)
        idle = table.idle_below(collected.rootdir, paths) if options.paths else table.idle(paths)
        yield from (f"the pattern {pattern!r} of {what} matches no file" for pattern in idle)


def _patterns(options: RunOptions) -> Iterator[tuple[str, tuple[str, ...]]]:
    yield "the needs table", tuple(rule.glob for rule in options.needs)
    for group in options.together:
        yield "together", group
