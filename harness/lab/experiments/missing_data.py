"""Requested data that a recording does not have: no fault of the recording, but worth a note."""

from collections.abc import Iterator, Sequence

from harness.bits.text import count, ranges
from harness.lab.experiments.step_traces import recorded_steps_of
from harness.recording.metrics import parse_pattern
from harness.recording.run_spec import Report, RunSpec
from harness.trace.ops import recorded_steps
from harness.trace.reader import Trace


def unanswered(run_spec: RunSpec, trace: Trace, reports: Sequence[Report]) -> Iterator[str]:
    """A note on each: steps to keep, the step of operations, metrics."""
    has = f"this trace has {count(len(trace.steps), 'step')}, numbered from 0"
    if absent := [str(step) for step in run_spec.keep if step not in recorded_steps_of(trace)]:
        yield f"no tensors of step {ranges(absent)} were kept: {has}"
    step = run_spec.op_step
    if step is not None and all(recorded != step for _, recorded in recorded_steps(trace.directory)):
        yield f"no operations of step {step} were recorded: {has}"
    found = {name for report in reports if report.rank == 0 for name in report.metrics}
    for metric in run_spec.metrics:
        if absent := [name for name in parse_pattern(metric).curve_names if name not in found]:
            yield (
                f"--metric {metric}: nothing for {', '.join(absent)}: no line of rank 0 has matched with a number,"
                " or the name is that of a timing, and timings are left out"
            )
