import io
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from harness.bits.exit_codes import ExitCode
from harness.render.run_text import MAX_TESTS, PlainReporter, SummaryReporter
from harness.render.run_words import MAX_CHARS
from harness.runner.events import CancelRequested, CollectionFinished, Event, RunFinished, UnitFinished
from harness.runner.need import Need
from harness.runner.records.stats import RunState
from harness.runner.report_file import TestCounts, TestOutcome
from harness.runner.units import NeedSource, Outcome, Unit, UnitResult
from tests.render.conftest import attempt, end
from tests.support.golden import GOLDEN
from tests.support.manual import goldens


def told(*events: Event) -> str:
    stream, state = io.StringIO(), RunState()
    reporter = SummaryReporter(stream, colour=False)
    for event in events:
        state.apply(event)
        reporter.on_event(event, state)
    return stream.getvalue()


def finished(code: ExitCode) -> RunFinished:
    return RunFinished(9.0, int(code), 9.0, 18.0, 0.0, 4.0, 8.0, "")


def results(*units: tuple[UnitResult, ...] | UnitResult) -> list[Event]:
    flat = [result for entry in units for result in (entry if isinstance(entry, tuple) else (entry,))]
    collected = CollectionFinished(0.0, tuple(r.unit for r in flat), (0.0,) * len(flat), 0.0, 0.0, 0.0)
    return [collected, *(UnitFinished(1.0, result) for result in flat)]


def unit(name: str, source: NeedSource = NeedSource.IMPORT) -> Unit:
    return Unit(name, Need(1), source)


def test_lines_of_a_whole_run_read_as_the_golden(golden: Callable[[str, str], None], sample_run: Any) -> None:
    stream = io.StringIO()
    sample_run.tell(PlainReporter(stream))
    golden("plain_run.txt", sample_run.without_paths(stream.getvalue()))
    assert goldens("plain_run") == {"plain_run": (GOLDEN / "plain_run.txt").read_text("utf-8")}, "the manual shows it"


def test_no_control_character_reaches_the_stream() -> None:
    stream, state = io.StringIO(), RunState()
    unit = Unit("tests/\x1b[2J\r.py", Need(), NeedSource.IMPORT)
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
    units = tuple(Unit(f"test_{index}.py", Need(), NeedSource.IMPORT) for index in range(100))
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


@pytest.mark.parametrize(("name", "colour"), [("summary.txt", False), ("summary_colour.txt", True)])
def test_a_whole_run_reads_as_the_golden(
    golden: Callable[[str, str], None], sample_run: Any, name: str, colour: bool
) -> None:
    stream = io.StringIO()
    sample_run.tell(SummaryReporter(stream, colour=colour))
    golden(name, sample_run.without_paths(stream.getvalue()))


def test_why_a_conftest_fails_is_shown_for_the_first_file_below_it() -> None:
    broken = [replace(unit(name), collect_error="NameError: x") for name in ("a.py", "b.py", "c.py")]
    other = replace(unit("d.py"), collect_error="NameError: y")
    text = told(*results(*(UnitResult(each, Outcome.COLLECT_ERROR) for each in (*broken, other))))
    assert text == ""
    text = told(
        *results(*(UnitResult(each, Outcome.COLLECT_ERROR) for each in (*broken, other))),
        finished(ExitCode.TESTS_FAILED),
    )
    assert (text.count("NameError: x"), text.count("NameError: y"), text.count("(same error as a.py, above)")) == (
        1,
        1,
        2,
    )


@pytest.mark.parametrize("outcome", [Outcome.CRASHED, Outcome.INTERRUPTED])
def test_a_test_that_failed_before_its_file_was_ended_is_shown(tmp_path: Path, outcome: Outcome) -> None:
    each = unit("a.py")
    directory = attempt(
        tmp_path, each, ["test_one", "test_two"], [end(each, "test_one", "failed", "boom", "E   boom")], None
    )
    text = told(*results(UnitResult(each, outcome, directory=directory)), finished(ExitCode.TESTS_FAILED))
    assert text.count("a.py::test_one") == 1
    assert text.count("E   boom") == 1
    assert f"(kept in {directory})" in text


def test_a_failure_that_pytest_has_shown_is_not_repeated(tmp_path: Path) -> None:
    each = unit("a.py")
    directory = attempt(tmp_path, each, ["test_one"], [end(each, "test_one", "failed", "boom", "E   boom")], 1)
    assert "boom" not in told(
        *results(UnitResult(each, Outcome.FAILED, directory=directory)), finished(ExitCode.TESTS_FAILED)
    )


def test_an_output_beyond_the_cap_says_where_the_rest_is(sample_run: Any) -> None:
    log = sample_run.directory / "units" / "bad" / "output.log"
    log.write_bytes(b"line\n" * 100_000)
    stream = io.StringIO()
    sample_run.tell(SummaryReporter(stream, colour=False, cap_bytes=1000))
    assert f"the whole output is in {log}" in stream.getvalue()
    assert stream.getvalue().count("line\n") < 250


def test_a_long_list_is_counted_beyond_its_first() -> None:
    many = tuple(UnitResult(unit(f"test_{index:04}.py"), Outcome.NOT_RUN, "cancelled") for index in range(2000))
    text = told(*results(many), finished(ExitCode.INTERRUPTED))
    assert "not run because the run was cancelled (2,000)\n  test_0000.py: cancelled\n" in text
    assert "  and 1,980 more\n" in text
    assert "exit code 2: the run was interrupted" in text


def test_a_need_that_was_planned_otherwise_is_listed() -> None:
    need = replace(unit("a.py"), need=Need(2))
    text = told(*results(UnitResult(need, Outcome.PASSED, collected_need=Need(1))), finished(ExitCode.OK))
    assert "needs that differ from the plan (1)\n  a.py: planned with 2 GPUs, but its markers ask for 1 GPU\n" in text


def test_what_ended_the_run_early_stands_with_what_it_has_and_notes_are_listed() -> None:
    one = UnitResult(unit("a.py"), Outcome.PASSED, duration_s=18.0)
    broken = replace(finished(ExitCode.INTERNAL_ERROR), error="KeyError: 'x'", notes=("kept /tmp/a", "and /tmp/b"))
    text = told(*results(one), broken)
    assert "notes (2)\n  kept /tmp/a\n  and /tmp/b\n" in text
    assert "exit code 3: rlharness itself failed" in text
    assert told(replace(broken, notes=())) == "", "nothing was counted"


def test_failures_of_a_file_that_was_ended_are_bounded(tmp_path: Path) -> None:
    text = "E   a\x1b[2Jb\n" + "x" * 3 * MAX_CHARS
    ends = [
        {"k": "end", "id": f"a.py::test_{n}", "outcome": "failed", "duration_s": 0.1, "reason": "r", "text": text}
        for n in range(MAX_TESTS + 5)
    ]
    records = [{"k": "hello", "version": 1}, *ends]
    (tmp_path / "report.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    (tmp_path / "output.log").write_text("F")
    tests = TestCounts({TestOutcome.FAILED: len(ends)})
    crashed = UnitResult(unit("a.py"), Outcome.CRASHED, duration_s=1.0, tests=tests, directory=str(tmp_path))
    shown = told(*results(crashed), finished(ExitCode.TESTS_FAILED))
    assert shown.count("FAILED a.py::test_") == MAX_TESTS
    assert "and 5 more" in shown
    assert "E   ab\n" in shown
    assert len(shown) < MAX_TESTS * (MAX_CHARS + 200) + 2000


def test_the_page_of_the_run_is_named_before_the_closing_line(sample_run: Any) -> None:
    def last_lines() -> list[str]:
        stream = io.StringIO()
        sample_run.tell(SummaryReporter(stream, colour=False))
        return stream.getvalue().splitlines()[-2:]

    assert "page: " not in last_lines()[0]
    (sample_run.directory / "run.html").touch()
    page, closing = last_lines()
    assert page == f"page: {sample_run.directory / 'run.html'}"
    assert closing.startswith("9 units: ")
