"""The reporters of a run, each in a guard that switches it off when it fails."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TextIO

from harness.process.clock import Clock
from harness.process.invocation import Invocation
from harness.render.run_files import JsonlReporter, LateReporter
from harness.render.run_json import trace_events_text
from harness.render.run_page import run_page_text
from harness.render.run_text import PlainReporter, SummaryReporter
from harness.runner.reporter import Guarded, Reporter


@dataclass(frozen=True, slots=True)
class ReportOptions:
    """Requested reports and the kind of the output."""

    is_terminal: bool
    """Whether the output is a terminal that understands cursor movements."""
    colour: bool
    record_file: Path | None = None
    """File of events in the run's own directory."""
    events_file: Path | None = None
    """File of events that the user requested."""
    junit_file: Path | None = None
    page_file: Path | None = None
    """File of the page in the run's own directory; it needs the record."""
    html_file: Path | None = None
    """File of the page that the user requested."""
    trace_events_file: Path | None = None
    num_slowest: int = 0
    """Number of slowest tests to print; 0 for none."""
    github_job: Invocation | None = None
    """Job of GitHub Actions that this run is a part of; None elsewhere."""


def make_reporters(
    options: ReportOptions, *, stream: TextIO, clock: Clock, say: Callable[[str], None]
) -> list[Guarded]:
    """The reporters of a run, in the order in which each must be given every event, and closed.

    The record comes first, the summary after the display: on the last event the display has left `stream` by then.
    `say` is given one line when a reporter has to be switched off. Raises UsageError for a file that cannot be made.
    """
    reporters: list[Guarded] = []
    with ExitStack() as stack:  # one that cannot be made leaves none open

        def add(reporter: Reporter, name: str, *, is_asked: bool = False, is_late: bool = False) -> None:
            reporters.append(Guarded(reporter, name, say, is_asked=is_asked, is_late=is_late))
            stack.callback(reporter.close)

        for path in filter(None, (options.record_file, options.events_file)):
            add(JsonlReporter(path), f"the record of events in {path}", is_asked=path == options.events_file)
        if options.is_terminal:
            from harness.render.run_live import LiveReporter

            add(LiveReporter(stream, clock, colour=options.colour, say=say), "the display")
        else:
            add(PlainReporter(stream), "the display")
        for late, name, is_asked in _late(options):
            add(late, name, is_asked=is_asked, is_late=True)
        add(SummaryReporter(stream, colour=options.colour, num_slowest=options.num_slowest), "the summary")
        if options.github_job is not None:
            from harness.render.run_github import GithubReporter

            add(GithubReporter(options.github_job, options.record_file, stream), "the output for GitHub")
        stack.pop_all()
    return reporters


def _late(options: ReportOptions) -> Iterator[tuple[Reporter, str, bool]]:
    """The reporters that write a file at the end, each with its name and whether the user requested its file."""
    if options.junit_file is not None:
        from harness.render.junit import junit_text

        junit = LateReporter(options.junit_file, "JUnit XML", junit_text)
        yield junit, f"the JUnit XML in {options.junit_file}", True
    if (record := options.record_file) is None:
        return
    if (path := options.trace_events_file) is not None:
        contents = f"the trace events in {path}"
        yield LateReporter(path, "the trace events", partial(trace_events_text, record)), contents, True
    for path in filter(None, (options.page_file, options.html_file)):
        page = LateReporter(path, "the page of the run", partial(run_page_text, record))
        yield page, f"the page in {path}", path == options.html_file
