import json
import os
from pathlib import Path
from typing import Any

import pytest

from harness.render.run_files import JsonlReporter
from harness.runner.events import CancelRequested, event_name
from harness.runner.records.stats import RunState


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


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full here")
def test_a_full_disk_raises_for_the_guard_to_say(sample_run: Any) -> None:
    with pytest.raises(OSError, match="No space left"):
        sample_run.tell(JsonlReporter(Path("/dev/full")))
