"""The export in the Trace Event Format: its required fields, nesting, counters."""

import json
from collections.abc import Iterator
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import jsonschema

from harness.render.run_files import JsonlReporter, LateReporter
from harness.render.run_json import trace_events, trace_events_text
from harness.runner.records.run_record import RECORD, read_run_record
from harness.runner.records.stats import RunState
from tests.render.run_pages import write_run

COMMON = {"name": {"type": "string"}, "pid": {"type": "integer"}, "tid": {"type": "integer"}}
TIME = {"type": "number", "minimum": 0}


def kind(ph: str, required: tuple[str, ...] = (), **properties: Any) -> dict[str, Any]:
    """What the format asks of the events of one phase."""
    return {
        "properties": {"ph": {"const": ph}, **COMMON, "ts": TIME, **properties},
        "required": ["ph", "name", "pid", "tid", "ts", *required],
    }


SCHEMA = {
    "type": "object",
    "required": ["traceEvents"],
    "properties": {
        "displayTimeUnit": {"enum": ["ms", "ns"]},
        "traceEvents": {
            "type": "array",
            "items": {
                "type": "object",
                "oneOf": [
                    kind("X", ("dur",), dur=TIME, cat={"type": "string"}, args={"type": "object"}),
                    kind("C", ("args",), args={"additionalProperties": {"type": "number"}, "minProperties": 1}),
                    kind("i", ("s",), s={"enum": ["g", "p", "t"]}),
                    {**kind("M", ("args",), args={"type": "object", "minProperties": 1})},
                ],
            },
        },
    },
}
"""The fields that "Trace Event Format" (Google, 2016) requires of complete, counter, instant and metadata events."""


def of(events: list[dict[str, Any]], ph: str, category: str = "") -> Iterator[dict[str, Any]]:
    return (each for each in events if each["ph"] == ph and (not category or each["cat"] == category))


def test_the_export_is_valid_and_has_every_file_and_test(sample_run: Any, tmp_path: Path) -> None:
    record = tmp_path / RECORD
    sample_run.tell(
        JsonlReporter(record), LateReporter(tmp_path / "trace.json", "", partial(trace_events_text, record))
    )
    trace = json.loads((tmp_path / "trace.json").read_text("utf-8"))
    jsonschema.validate(trace, SCHEMA)
    events = trace["traceEvents"]
    names = {each["pid"]: each["args"]["name"] for each in of(events, "M") if each["name"] == "process_name"}
    assert list(names.values()) == [
        "run",
        "0 NVIDIA H200 143 GB GPU-aaaa",
        "1 NVIDIA H200 143 GB GPU-bbbb",
        "CPU slot 0",
        "CPU slot 1",
    ]
    ran = [(names[each["pid"]][:1], each["name"], each["ts"], each["dur"]) for each in of(events, "X", "file")]
    assert ("0", "tests/test_hang.py", 16_000_000, 32_000_000) in ran
    assert ("1", "tests/test_hang.py", 16_000_000, 32_000_000) in ran
    assert len(ran) == 8, "seven files, of which one had two GPUs"
    assert {each["name"]: each["args"]["outcome"] for each in of(events, "X", "test")} == {
        "tests/test_ok.py::test_a": "passed",
        "tests/test_hang.py::test_waits": "unfinished",
    }
    assert [each["ts"] for each in of(events, "i")] == [54_000_000]


def test_tests_lie_within_their_file_and_follow_each_other(tmp_path: Path) -> None:
    tests = {f"test_{n}": ("passed", 0.1 + n / 7) for n in range(50)}
    directory = write_run(tmp_path, "20260301-123000-abcdef", {"tests/test_a.py": tests})
    trace = trace_events(read_run_record(directory / RECORD))
    jsonschema.validate(trace, SCHEMA)
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
    jsonschema.validate(trace, SCHEMA)
    assert [each["args"]["outcome"] for each in of(trace["traceEvents"], "X")] == [None]
