"""The reporters of a run, each in a guard that switches it off when it fails, and the files that they write."""

from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import TextIO

from harness.bits.errors import UsageError
from harness.bits.files import replacing
from harness.process.clock import Clock
from harness.render.run_page import run_page_text
from harness.render.run_text import PlainReporter, SummaryReporter
from harness.runner.events import Event, RunFinished, to_json_line
from harness.runner.options import RunOptions
from harness.runner.records.recorded_run import PAGE, RECORD
from harness.runner.records.stats import RunState
from harness.runner.records.timeline import Timeline
from harness.runner.reporter import Guarded, Reporter


def make_reporters(
    options: RunOptions, directory: Path, clock: Clock, stream: TextIO, say: Callable[[str], None], *, on_github: bool
) -> list[Guarded]:
    """Return the reporters of a run, in the order in which each must be given every event, and closed.

    The record comes first, the summary after the display: on the last event the display has left `stream` by then.
    `say` is given one line when a reporter has to be switched off. Raises UsageError for a file that cannot be made.
    """
    reporters: list[Guarded] = []
    record = directory / RECORD
    with ExitStack() as stack:  # one that cannot be made leaves none open

        def add(reporter: Reporter, name: str, *, is_asked: bool = False, is_late: bool = False) -> None:
            reporters.append(Guarded(reporter, name, say, is_asked=is_asked, is_late=is_late))
            stack.callback(reporter.close)

        for path in filter(None, (record, options.events_file)):
            add(JsonlReporter(path), f"the record of events in {path}", is_asked=path == options.events_file)
        if options.live:
            from harness.render.run_live import LiveReporter

            add(LiveReporter(stream, clock, colour=options.colour, say=say), "the display")
        else:
            add(PlainReporter(stream), "the display")
        if (junit := options.junit_file) is not None:
            from harness.render.junit import junit_text

            late = LateReporter(junit, "JUnit XML", junit_text)
            add(late, f"the JUnit XML in {junit}", is_asked=True, is_late=True)
        timeline = Timeline()
        add(timeline, "the timeline")
        late = LateReporter(directory / PAGE, "the page of the run", partial(run_page_text, timeline))
        add(late, f"the page in {directory / PAGE}", is_late=True)
        add(SummaryReporter(stream, colour=options.colour), "the summary")
        if on_github:
            from harness.render.run_github import GithubReporter

            add(GithubReporter(options.invocation, stream), "the output for GitHub")
        stack.pop_all()
    return reporters


class LateReporter:
    """Writes `path` once, whole or not at all, when the run has finished, or when it is closed before that.

    `text` makes what is written; `contents` names it ("the page"). A link is followed. Raises UsageError where the file
    cannot be made, OSError where it cannot be written in the end.
    """

    def __init__(self, path: Path, contents: str, text: Callable[[RunState, RunFinished | None], str]) -> None:
        _check_regular(contents, path)
        self._path = path.resolve()
        self._text: Callable[[RunState, RunFinished | None], str] | None = text
        self._state: RunState | None = None
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            with NamedTemporaryFile(dir=self._path.parent):
                pass
        except OSError as error:
            raise _refusal(contents, path, error, "a file in a directory that can be written to") from error

    def on_event(self, event: Event, state: RunState) -> None:
        """Write at the end."""
        self._state = state
        if isinstance(event, RunFinished):
            self._write(event)

    def close(self) -> None:
        """Write what is known of a run that never finished."""
        self._write(None)

    def _write(self, finished: RunFinished | None) -> None:
        make, self._text = self._text, None
        if make is not None and self._state is not None:
            data = make(self._state, finished).encode("utf-8", "backslashreplace")
            with replacing(self._path, is_synced=True) as file:
                file.write(data)


class JsonlReporter:
    """Writes a line per event with one system call each, so that a reader of the growing file sees whole lines.

    Raises UsageError where the file cannot be made, OSError where it cannot be written later.
    """

    def __init__(self, path: Path) -> None:
        _check_regular("events", path)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = path.open("wb", buffering=0)
        except OSError as error:
            raise _refusal("events", path, error, "a file that can be written") from error

    def on_event(self, event: Event, state: RunState) -> None:
        """Append the event; text that is not Unicode is kept as JSON's own escapes."""
        left = memoryview(to_json_line(event).encode("utf-8", "backslashreplace") + b"\n")
        while left:  # a nearly full disk takes a part, and raises at the next
            left = left[self._file.write(left) :]

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def _check_regular(contents: str, path: Path) -> None:
    if path.exists() and not path.is_file():
        raise UsageError(f"{contents} cannot be written to {path}: it is a directory or a device", legal="a file")


def _refusal(contents: str, path: Path, error: OSError, legal: str) -> UsageError:
    said = f"{contents} cannot be written to {path}: {error.strerror}"
    return UsageError(said, legal=legal, remedy="choose another file, or make room or permission there")
