"""A run as JSON: the summary, the record of events, and the timeline in the Trace Event Format."""

import json
from collections.abc import Callable, Iterator
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

from harness.render.run_json import summary_json, trace_events, trace_events_text
from harness.render.run_reporters import JsonlReporter, LateReporter
from harness.runner.events import CancelRequested, event_name
from harness.runner.records.run_record import RECORD, read_run_record
from harness.runner.records.stats import RunState
from tests.render.run_pages import write_run


def test_the_summary_of_a_whole_run_reads_as_the_golden(sample_run: Any, golden: Callable[[str, str], None]) -> None:
    state = sample_run.tell()
    text = json.dumps(summary_json(state, state.finished), indent=1)
    golden("run_summary.json", sample_run.without_paths(text) + "\n")


# ---- the record


def test_a_line_per_event_as_it_happens(sample_run: Any, tmp_path: Path) -> None:
    path = tmp_path / "out" / "events.jsonl"
    reporter, state = JsonlReporter(path), RunState()
    for number, event in enumerate(sample_run.events, start=1):
        state.apply(event)
        reporter.on_event(event, state)
        assert path.read_bytes().count(b"\n") == number
    reporter.close()
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [line["event"] for line in lines] == [event_name(event) for event in sample_run.events]
    assert lines[-1]["exit_code"] == 1
    assert next(line for line in lines if line["event"] == "unit_finished")["result"]["outcome"] == "collect_error"


def test_text_that_is_not_unicode_comes_back_from_json(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    reporter = JsonlReporter(path)
    reporter.on_event(CancelRequested(0.0, "ü \udcff", kill=False), RunState())
    reporter.close()
    assert json.loads(path.read_bytes())["reason"] == "ü \udcff"


# ---- trace events


def of(events: list[dict[str, Any]], ph: str, category: str = "") -> Iterator[dict[str, Any]]:
    return (each for each in events if each["ph"] == ph and (not category or each["cat"] == category))


def test_the_timeline_of_a_whole_run_reads_as_the_golden(
    sample_run: Any, tmp_path: Path, golden: Callable[[str, str], None]
) -> None:
    record = tmp_path / RECORD
    late = LateReporter(tmp_path / "trace.json", "", partial(trace_events_text, record))
    sample_run.tell(JsonlReporter(record), late)
    text = sample_run.without_paths((tmp_path / "trace.json").read_text("utf-8"))
    golden("trace_events.json", text.replace('{"ph"', '\n{"ph"'))


def test_tests_lie_within_their_file_and_follow_each_other(tmp_path: Path) -> None:
    tests = {f"test_{n}": ("passed", 0.1 + n / 7) for n in range(50)}
    directory = write_run(tmp_path, "20260301-123000-abcdef", {"tests/test_a.py": tests})
    trace = trace_events(read_run_record(directory / RECORD))
    (file,) = of(trace["traceEvents"], "X", "file")
    found = list(of(trace["traceEvents"], "X", "test"))
    assert len(found) == 50
    assert file["ts"] <= found[0]["ts"]
    assert found[-1]["ts"] + found[-1]["dur"] <= file["ts"] + file["dur"]
    assert all(a["ts"] + a["dur"] <= b["ts"] for a, b in pairwise(found))


def test_counters_end_at_zero(tmp_path: Path) -> None:
    files = {f"tests/test_{n}.py": {"test_x": ("passed", 1.0 + n)} for n in range(6)}
    directory = write_run(tmp_path, "20260301-123000-abcdef", files)
    events = trace_events(read_run_record(directory / RECORD))["traceEvents"]
    leased = [each["args"]["gpus"] for each in of(events, "C") if each["name"] == "leased GPUs"]
    running = [each["args"]["files"] for each in of(events, "C") if each["name"] == "running files"]
    assert (max(leased), leased[-1], max(running), running[-1]) == (2, 0, 3, 0)


def test_a_run_that_never_finished_is_exported(tmp_path: Path) -> None:
    directory = write_run(tmp_path, "20260301-123000-abcdef", {"tests/test_a.py": {"test_x": ("passed", 1.0)}})
    lines = (directory / RECORD).read_text().splitlines(keepends=True)
    (directory / RECORD).write_text("".join(lines[:3]))
    trace = json.loads(trace_events_text(directory / RECORD, RunState(), None))
    assert [each["args"]["outcome"] for each in of(trace["traceEvents"], "X")] == [None]
