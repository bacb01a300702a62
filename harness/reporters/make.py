"""Which reporters a run has, each behind its guard."""

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from harness.clock import Clock
from harness.reporters.base import Guarded, Reporter
from harness.reporters.jsonl import JsonlReporter
from harness.reporters.plain import PlainReporter
from harness.reporters.summary import SummaryReporter


@dataclass(frozen=True, slots=True)
class ReportOptions:
    """What was asked for, and what the output is."""

    is_terminal: bool
    """Whether the output is a terminal that understands cursor movements."""
    colour: bool
    events_files: tuple[Path, ...] = ()
    junit_file: Path | None = None


def make_reporters(
    options: ReportOptions, *, stream: TextIO, clock: Clock, say: Callable[[str], None]
) -> list[Reporter]:
    """The reporters of a run, in the order in which each must be given every event, and closed.

    The record comes first, the summary last: on the last event the display has left `stream` before it is written.
    `say` is given one line when a reporter has to be switched off. Raises UsageError for a file that cannot be made.
    """
    reporters: list[Reporter] = []
    with ExitStack() as stack:  # one that cannot be made leaves none open

        def add(reporter: Reporter, name: str) -> None:
            reporters.append(Guarded(reporter, name, say))
            stack.callback(reporter.close)

        for path in options.events_files:
            add(JsonlReporter(path), f"the record of events in {path}")
        add(_display(options, stream, clock, say), "the display")
        if options.junit_file is not None:
            from harness.reporters.junit import JUnitReporter

            add(JUnitReporter(options.junit_file, clock), f"the JUnit XML in {options.junit_file}")
        add(SummaryReporter(stream, colour=options.colour), "the summary")
        stack.pop_all()
    return reporters


def _display(options: ReportOptions, stream: TextIO, clock: Clock, say: Callable[[str], None]) -> Reporter:
    if not options.is_terminal:
        return PlainReporter(stream)
    from harness.reporters.live.reporter import LiveReporter

    return LiveReporter(stream, clock, colour=options.colour, say=say)
