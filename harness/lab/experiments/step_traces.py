"""Where a step of a run is recorded: in its trace, or, where the run has ended in its middle, in one below that.

trace          0 1 2 3          its program ended in the middle of step 4
unfinished             4        what was recorded of it until then
"""

from pathlib import Path

from harness.bits.errors import TraceError, UsageError
from harness.bits.text import path_text
from harness.trace.excerpt import excerpt
from harness.trace.layout import MANIFEST, UNFINISHED
from harness.trace.reader import Trace, read_trace


def unfinished_trace(directory: Path) -> Trace | None:
    """What was recorded of the step in whose middle a run has ended; None where it ended between two steps."""
    path = directory / UNFINISHED
    return read_trace(path) if (path / MANIFEST).exists() else None


def unfinished_step(directory: Path) -> int | None:
    """The step in whose middle a run has ended; None where it ended between two, or what was kept cannot be read."""
    try:
        trace = unfinished_trace(directory)
    except TraceError:
        return None
    return None if trace is None else max(trace.steps, default=None)


def recorded_steps_of(trace: Trace) -> list[int]:
    """The steps that are recorded of a run, with the one in whose middle it has ended."""
    unfinished = unfinished_trace(trace.directory)
    return sorted({*trace.steps, *(unfinished.steps if unfinished else ())})


def trace_of_step(trace: Trace, step: int) -> Trace | None:
    """A trace of this step alone; None where it was not recorded."""
    if step in trace.steps:
        return excerpt(trace, step, step)
    unfinished = unfinished_trace(trace.directory)
    return excerpt(unfinished, step, step) if unfinished is not None and step in unfinished.steps else None


def is_unfinished(trace: Trace, step: int) -> bool:
    """Whether the run has ended in the middle of this step."""
    return step not in trace.steps and trace_of_step(trace, step) is not None


def check_step(trace: Trace, step: int) -> None:
    """UsageError for a step of which nothing was recorded."""
    known = recorded_steps_of(trace)
    if step not in known:
        span = f"{known[0]} to {known[-1]}" if known else "none"
        raise UsageError(
            f"--step {step}: {path_text(trace.directory)} has none",
            legal=f"a step that it has recorded: {span}",
            remedy="record a run with more steps",
        )


def root_of(trace: Trace | None, rank: int) -> bytes | None:
    """The root of the one step of a trace, in the log of a rank; None where that is not there."""
    log = trace.ranks.get(rank) if trace is not None else None
    return next(iter(log.heads.values())).root if log is not None and log.heads else None
