"""A run in the Trace Event Format, which ui.perfetto.dev and chrome://tracing read: one JSON object.

A GPU or CPU slot is a process. A file is a complete event ("ph": "X") on the row of each of its GPUs, and its tests are
complete events within it. Counters ("C") have the numbers of running files and of leased GPUs. An instant event ("i")
marks a quarantine. Times are microseconds since the run began.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from harness.bits.text import one_line
from harness.runner.events import RunFinished
from harness.runner.records.run_record import FileSpan, RunRecord, TestSpan, read_run_record
from harness.runner.records.stats import RunState
from harness.runner.records.timeline import rows_of

RUN_PID = 1
"""Process of the counters; those of GPUs and CPU slots follow."""
TID = 1


def trace_events_text(record_file: Path, state: RunState, finished: RunFinished | None) -> str:
    """Return the events of the record as JSON. Raises OSError for a record that cannot be read."""
    return json.dumps(trace_events(read_run_record(record_file, *([finished] if finished else [])))) + "\n"


def trace_events(record: RunRecord) -> dict[str, Any]:
    """The run as an object of the Trace Event Format."""
    events = [*_metadata(RUN_PID, "run"), *_counters(record)]
    for pid, row in enumerate(rows_of(record), RUN_PID + 1):
        events += _metadata(pid, row.title)
        for span in row.files:
            events.append(_complete(span, pid))
            events += [_complete(test, pid) for test in span.tests]
        if row.lost_s is not None:
            events.append({"ph": "i", "name": "quarantine", "cat": "gpu", **_at(row.lost_s, pid), "s": "p"})
    other = {"run_id": record.run_id, "lower_bound_s": record.lower_bound_s, "makespan_s": record.makespan_s}
    return {"traceEvents": events, "displayTimeUnit": "ms", "otherData": other}


def _complete(span: FileSpan | TestSpan, pid: int) -> dict[str, Any]:
    """A complete event. Its end is rounded as that of the next one's start, so that tests stay within their file."""
    start_s = span.start_s or 0.0
    args: dict[str, Any] = {"outcome": span.outcome.value if span.outcome else None, "duration_s": span.duration_s}
    if isinstance(span, FileSpan):
        name, category = span.path, "file"
        args |= {"reason": one_line(span.reason, 1000), "gpus": list(span.gpu_ids), "directory": span.directory}
        args |= {"peak_gpu_bytes": span.gpu_memory.peak_bytes} if span.gpu_memory else {}
    else:
        name, category = span.nodeid, "test"
    start = _at(start_s, pid)
    return {
        "ph": "X",
        "name": one_line(name),
        "cat": category,
        **start,
        "dur": _us(span.end_s) - start["ts"],
        "args": args,
    }


def _metadata(pid: int, name: str) -> list[dict[str, Any]]:
    """The name and the position of a process."""
    return [
        {"ph": "M", "name": "process_name", **_at(0.0, pid), "args": {"name": one_line(name)}},
        {"ph": "M", "name": "process_sort_index", **_at(0.0, pid), "args": {"sort_index": pid}},
    ]


def _counters(record: RunRecord) -> Iterator[dict[str, Any]]:
    """The numbers of running files and leased GPUs, at each start and end."""
    steps: dict[int, tuple[int, int]] = {}
    for span in record.files.values():
        if span.start_s is not None:
            for s, sign in ((span.start_s, 1), (span.end_s, -1)):
                files, gpus = steps.get(_us(s), (0, 0))
                steps[_us(s)] = (files + sign, gpus + sign * len(span.gpu_ids))
    num_files = num_gpus = 0
    for ts in sorted(steps):
        num_files, num_gpus = num_files + steps[ts][0], num_gpus + steps[ts][1]
        common = {"ph": "C", "cat": "run", "pid": RUN_PID, "tid": TID, "ts": ts}
        yield {"name": "running files", **common, "args": {"files": num_files}}
        if record.gpus:
            yield {"name": "leased GPUs", **common, "args": {"gpus": num_gpus}}


def _at(seconds: float, pid: int) -> dict[str, int]:
    return {"pid": pid, "tid": TID, "ts": _us(seconds)}


def _us(seconds: float) -> int:
    return int(seconds * 1e6)
