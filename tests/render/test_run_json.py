"""A run as JSON: the summary, and the record of events."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from harness.render.run_json import summary_json
from harness.render.run_reporters import JsonlReporter
from harness.runner.events import CancelRequested, event_name
from harness.runner.records.stats import RunState


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
