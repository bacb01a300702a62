"""Slowest tests of a run, for `--durations N`."""

from typing import TextIO

from harness.bits.text import one_line, put
from harness.runner.events import Event, RunFinished, TestFinished
from harness.runner.records.stats import RunState


class SlowestReporter:
    """Prints the slowest tests once the run has finished; of a test that ran again, its longest time."""

    def __init__(self, stream: TextIO, num_shown: int) -> None:
        self._stream = stream
        self._num_shown = num_shown
        self._seconds: dict[str, float] = {}

    def on_event(self, event: Event, state: RunState) -> None:
        """Keep the time of a finished test; print the list at the end."""
        match event:
            case TestFinished():
                self._seconds[event.nodeid] = max(event.duration_s, self._seconds.get(event.nodeid, 0.0))
            case RunFinished():
                put(self._stream, "".join(f"{line}\n" for line in self.lines()))

    def lines(self) -> list[str]:
        """Return a title and a line for each of the slowest tests, longest first; none without a test."""
        slowest = sorted(self._seconds.items(), key=lambda each: (-each[1], each[0]))[: self._num_shown]
        if not slowest:
            return []
        return ["", f"slowest tests ({len(slowest):,})", *(f"  {s:9.2f} s  {one_line(test)}" for test, s in slowest)]

    def close(self) -> None:
        """Nothing is held."""
