"""A finished run as JSON: what `run --json` and `merge --json` print, and its timeline in the Trace Event Format.

The Trace Event Format is what ui.perfetto.dev and chrome://tracing read: one JSON object. A GPU or CPU slot is a
process. A file is a complete event ("ph": "X") on the row of each of its GPUs, and its tests are complete events within
it. Counters ("C") have the numbers of running files and of leased GPUs. An instant event ("i") marks a quarantine.
Times are microseconds since the run began.
"""

import json
from collections import Counter
from collections.abc import Iterator
from itertools import accumulate
from pathlib import Path
from typing import Any

from harness.bits.text import one_line
from harness.render.run_words import isolation_text, report_of
from harness.runner.events import RunFinished, plain
from harness.runner.records.merging import MergedRun
from harness.runner.records.run_record import FileSpan, RunRecord, TestSpan, read_run_record
from harness.runner.records.stats import RunState
from harness.runner.records.timeline import rows_of
from harness.runner.reruns.retries import flaky_tests
from harness.runner.test_outcomes import TestOutcome
from harness.runner.units import Outcome, UnitResult

VERSION = 1
FAILURES = (TestOutcome.FAILED, TestOutcome.ERROR, TestOutcome.UNFINISHED)
RUN_PID = 1
"""Process of the counters; those of GPUs and CPU slots follow."""
TID = 1


def summary_json(state: RunState, finished: RunFinished) -> dict[str, Any]:
    """Every unit's outcome and failed tests, the GPUs, and the closing figures; plain values only."""
    started = state.started
    return {
        "version": VERSION,
        "run_id": started.run_id if started else "",
        "directory": started.directory if started else "",
        **{name: value for name, value in plain(finished).items() if name != "t"},
        "notes": [*finished.notes, *map(isolation_text, finished.isolation)],
        "shard": plain(state.shard),
        "num_units": len(state.units),
        "outcomes": {outcome.value: state.outcomes[outcome] for outcome in Outcome if state.outcomes[outcome]},
        "tests": plain(dict(state.tests)),
        "num_deselected": state.num_deselected,
        "gpus": list(state.gpus),
        "left_out": list(started.left_out) if started else [],
        "quarantined": plain(list(state.quarantined.values())),
        "units": [_unit(result) for result in state.with_outcome(*Outcome)],
    }


def merge_json(merged: MergedRun) -> dict[str, Any]:
    """The summary of a run, with the runs that it was merged from; plain values only."""
    runs = []
    for run in merged.runs:
        end = {"exit_code": run.finished.exit_code if run.finished is not None else None}
        num_units = len(run.collected.units) if run.collected is not None else 0
        own = {"run_id": run.started.run_id, "shard": run.started.shard, "num_units": num_units}
        runs.append({"name": run.name, **own, **end})
    summary = summary_json(merged.state, merged.finished)
    return {**summary, "runs": runs, "missing_shards": list(merged.missing_shards)}


def _unit(result: UnitResult) -> dict[str, Any]:
    values = plain(result)
    del values["unit"]
    return {
        "path": result.unit.path,
        **values,
        "need": plain(result.unit.need),
        "tests": plain(result.tests.counts),
        "failures": list(_failures(result)),
        "all_skipped": result.tests.all_skipped,
        "need_disagrees": result.need_disagrees,
        "is_over_budget": result.is_over_budget,
        "flaky_tests": list(flaky_tests(result)) if result.outcome is Outcome.FLAKY else [],
    }


def _failures(result: UnitResult) -> Iterator[dict[str, str]]:
    """Yield the tests that failed or never ended, from the unit's report; none where that cannot be read."""
    if not any(result.tests.counts.get(outcome) for outcome in FAILURES):
        return
    report = report_of(result)
    for nodeid in report.all_ids():
        if (outcome := report.outcome_of(nodeid)) in FAILURES:
            reason = report.ends[nodeid].reason if nodeid in report.ends else ""
            yield {"id": nodeid, "outcome": outcome.value, "reason": reason}


# ---- trace events


def trace_events_text(record_file: Path, state: RunState, finished: RunFinished | None) -> str:
    """Return the events of the record as JSON. Raises OSError for a record that cannot be read."""
    return json.dumps(trace_events(read_run_record(record_file, *([finished] if finished else [])))) + "\n"


def trace_events(record: RunRecord) -> dict[str, Any]:
    """The run as an object of the Trace Event Format."""
    rows = rows_of(record)
    events = list(_counters(record))
    for pid, title in enumerate(("run", *(row.title for row in rows)), RUN_PID):
        events.append(_event("M", "process_name", 0.0, pid, args={"name": one_line(title)}))
        events.append(_event("M", "process_sort_index", 0.0, pid, args={"sort_index": pid}))
    for pid, row in enumerate(rows, RUN_PID + 1):
        for span in row.files:
            args = {"reason": one_line(span.reason, 1000), "gpus": list(span.gpu_ids), "directory": span.directory}
            memory = {"peak_gpu_bytes": span.gpu_memory.peak_bytes} if span.gpu_memory else {}
            events.append(_complete(span.path, "file", span, pid, **args, **memory))
            events += [_complete(test.nodeid, "test", test, pid) for test in span.tests]
        if row.lost_s is not None:
            events.append(_event("i", "quarantine", row.lost_s, pid, cat="gpu", s="p"))
    other = {"run_id": record.run_id, "lower_bound_s": record.lower_bound_s, "makespan_s": record.makespan_s}
    return {"traceEvents": events, "displayTimeUnit": "ms", "otherData": other}


def _complete(name: str, category: str, span: FileSpan | TestSpan, pid: int, **args: Any) -> dict[str, Any]:
    """Return a complete event; its end is rounded as the next one's start, so that tests stay within their file."""
    event = _event("X", name, span.start_s or 0.0, pid, cat=category)
    args = {"outcome": span.outcome.value if span.outcome else None, "duration_s": span.duration_s, **args}
    return {**event, "dur": _us(span.end_s) - event["ts"], "args": args}


def _counters(record: RunRecord) -> Iterator[dict[str, Any]]:
    """Yield the numbers of running files and leased GPUs, at each start and end."""
    num_files, num_gpus = Counter[float](), Counter[float]()
    for span in record.files.values():
        for s, sign in ((span.start_s, 1), (span.end_s, -1)) if span.start_s is not None else ():
            num_files[s or 0.0] += sign
            num_gpus[s or 0.0] += sign * len(span.gpu_ids)
    for name, key, changes in (("running files", "files", num_files), ("leased GPUs", "gpus", num_gpus)):
        times = sorted(changes) if key == "files" or record.gpus else ()
        for s, number in zip(times, accumulate(changes[s] for s in times), strict=True):
            yield _event("C", name, s, RUN_PID, cat="run", args={key: number})


def _event(ph: str, name: str, seconds: float, pid: int, **more: Any) -> dict[str, Any]:
    return {"ph": ph, "name": one_line(name), "pid": pid, "tid": TID, "ts": _us(seconds), **more}


def _us(seconds: float) -> int:
    return int(seconds * 1e6)
