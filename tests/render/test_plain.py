import io
from collections.abc import Callable
from typing import Any

from harness.render.plain import PlainReporter
from harness.runner.events import CancelRequested, CollectionFinished, UnitFinished
from harness.runner.need import Need
from harness.runner.records.stats import RunState
from harness.runner.units import NeedSource, Outcome, Unit, UnitResult
from tests.support.golden import GOLDEN
from tests.support.manual import goldens


def test_a_whole_run_reads_as_the_golden(golden: Callable[[str, str], None], sample_run: Any) -> None:
    stream = io.StringIO()
    sample_run.tell(PlainReporter(stream))
    golden("plain_run.txt", sample_run.without_paths(stream.getvalue()))


def test_the_manual_shows_the_golden() -> None:
    assert goldens("plain_run") == {"plain_run": (GOLDEN / "plain_run.txt").read_text("utf-8")}


def test_no_control_character_reaches_the_stream() -> None:
    stream, state = io.StringIO(), RunState()
    unit = Unit("tests/\x1b[2J\r.py", Need(), NeedSource.AST)
    reporter = PlainReporter(stream)
    for event in (
        CollectionFinished(0.0, (unit,), (0.0,), 0.0, 0.0, 0.0),
        UnitFinished(1.0, UnitResult(unit, Outcome.FAILED, "bad\x07\nthing", directory="/d")),
    ):
        state.apply(event)
        reporter.on_event(event, state)
    text = stream.getvalue()
    assert "\\x1b[2J" in text
    assert "bad\\x07 thing" in text
    assert not [c for c in text if ord(c) < 0x20 and c != "\n"]


def test_units_that_a_cancelled_run_does_not_start_get_no_line_each() -> None:
    stream, state = io.StringIO(), RunState()
    units = tuple(Unit(f"test_{index}.py", Need(), NeedSource.AST) for index in range(100))
    reporter = PlainReporter(stream)
    for event in (
        CollectionFinished(0.0, units, (0.0,) * 100, 0.0, 0.0, 0.0),
        CancelRequested(1.0, "SIGINT", kill=False),
        *(UnitFinished(1.0, UnitResult(unit, Outcome.NOT_RUN, "cancelled")) for unit in units),
    ):
        state.apply(event)
        reporter.on_event(event, state)
    assert "SIGINT: no more units start" in stream.getvalue()
    assert stream.getvalue().count("\n") == 2


def test_every_event_is_flushed(sample_run: Any) -> None:
    stream = io.TextIOWrapper(raw := io.BytesIO(), encoding="ascii", write_through=False)
    state, reporter = RunState(), PlainReporter(stream)
    state.apply(sample_run.events[0])
    reporter.on_event(sample_run.events[0], state)
    assert raw.getvalue().startswith(b"rlharness run")
