"""The display where there is no terminal: a line for each thing worth one, and no control characters."""

from typing import TextIO

from harness.bits.text import count, put
from harness.render.sentences import alive, head_lines, running_line, sentences
from harness.runner.events import (
    CollectionProgress,
    DumpRequested,
    Event,
    Heartbeat,
    RunStarted,
    UnitFinished,
)
from harness.runner.records.stats import RunState

COLLECTION_EVERY_S = 10.0
"""Seconds between two lines about a collection."""


class PlainReporter:
    """Writes to `stream`, line by line, as things happen.

    Raises OSError or ValueError where the stream is gone.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._last_progress_t = 0.0

    def on_event(self, event: Event, state: RunState) -> None:
        """Write the lines of an event."""
        match event:
            case RunStarted():
                self._put("\n".join(head_lines(event)))
            case CollectionProgress():
                if event.t - self._last_progress_t >= COLLECTION_EVERY_S:
                    self._last_progress_t = event.t
                    self._line(event.t, "collecting", f"{event.num_done} of {count(event.num_total, 'file')} imported")
            case Heartbeat():
                self._line(event.t, "running", alive(state))
                self._running(event.t, state)
            case DumpRequested():
                self._line(event.t, "dump", alive(state))
                self._running(event.t, state)
            case _:
                progress = self._progress(state) if isinstance(event, UnitFinished) else ""
                for said in sentences(event, state):
                    self._line(event.t, said.label, progress + said.text)
        self._stream.flush()

    def close(self) -> None:
        """Hold nothing."""

    def _running(self, t: float, state: RunState) -> None:
        for attempt in state.running.values():
            self._line(t, "", running_line(attempt, t, state))

    def _progress(self, state: RunState) -> str:
        total = str(len(state.units))
        return f"[{len(state.results):>{len(total)}}/{total}] "

    def _line(self, t: float, label: str, text: str) -> None:
        self._put(f"{t:8.1f} s  {label:<15}  {text}")

    def _put(self, text: str) -> None:
        put(self._stream, text + "\n")
