"""The reporter that writes the page of a run when it has finished, from the record of its events."""

from pathlib import Path

from harness.render.late_file import LateFile
from harness.render.run_page.page import run_page
from harness.runner.events import Event, RunFinished
from harness.runner.records.run_comparison import compare_runs, read_earlier_runs
from harness.runner.records.run_record import read_run_record
from harness.runner.records.stats import RunState


class PageText:
    """The page of one run, made once for every file that it is written to."""

    def __init__(self, record_file: Path) -> None:
        self._record_file = record_file
        self._text = ""

    def text(self, state: RunState, finished: RunFinished | None) -> str:
        """The page. Raises OSError where the record cannot be read."""
        if not self._text:
            record = read_run_record(self._record_file, *([finished] if finished else []))
            earlier = read_earlier_runs(self._record_file.parent)
            self._text = run_page(record, state, compare_runs(record, earlier))
        return self._text


class RunPageReporter:
    """Writes the page to `path` when the run has finished, or when it is closed before that.

    Raises UsageError where the file cannot be made, OSError where it cannot be written in the end.
    """

    def __init__(self, path: Path, page: PageText) -> None:
        self._file = LateFile(path, "the page of the run")
        self._page = page
        self._state: RunState | None = None
        self._is_written = False

    def on_event(self, event: Event, state: RunState) -> None:
        """Write at the end."""
        self._state = state
        if isinstance(event, RunFinished):
            self._write(state, event)

    def close(self) -> None:
        """Write what is known of a run that never finished."""
        if self._state is not None:
            self._write(self._state, None)

    def _write(self, state: RunState, finished: RunFinished | None) -> None:
        if not self._is_written:
            self._is_written = True
            self._file.write(self._page.text(state, finished))
