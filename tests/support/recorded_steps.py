"""Steps for tests that a recorder writes into a real trace, in this process."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from harness.recording.recorder import Kept, Recorder, RecorderCallback
from harness.recording.run_spec import RunEnded
from harness.trace.format import RecordedValue
from harness.trace.reader import Trace, read_trace
from harness.trace.values import Float
from harness.trace.writer import TraceWriter
from tests.support.traces import manifest_of


class TraceSink:
    """A sink that writes a trace."""

    def __init__(self, directory: Path) -> None:
        self.writer = TraceWriter(directory, manifest_of(), say=print)

    def append(self, step: int, recorded_values: Sequence[RecordedValue], tensors: Sequence[Kept]) -> None:
        self.writer.append(step, recorded_values, tensors=tensors)

    def log_values(self, values: Mapping[str, Float]) -> None:
        if values:
            self.writer.log_values(values)


def record(
    directory: Path, program: Callable[[Recorder], None], *callbacks: RecorderCallback, keep: Sequence[int] = range(100)
) -> Trace:
    """The trace of a program that is given a recorder; one that a watcher ends has its whole steps."""
    sink = TraceSink(directory)
    with suppress(RunEnded):
        program(Recorder(sink, keeps=frozenset(keep).__contains__, callbacks=callbacks))
    sink.writer.close()
    return read_trace(directory)
