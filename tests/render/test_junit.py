import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import xmlschema
from hypothesis import given
from hypothesis import strategies as st
from junitparser import JUnitXml, TestCase, TestSuite

from harness.render.junit import junit_text
from harness.render.run_reporters import LateReporter
from harness.runner.events import CollectionFinished, RunFinished, UnitFinished
from harness.runner.need import Need
from harness.runner.records.stats import RunState
from harness.runner.units import NeedSource, Outcome, Unit, UnitResult

SCHEMA = Path(__file__).parents[1] / "data" / "junit.xsd"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "ci" / "junit.xml"


def reporter_to(file: Path) -> LateReporter:
    return LateReporter(file, "JUnit XML", junit_text)


def suites(file: Path) -> dict[str, TestSuite]:
    """The suites by name, of a file that is valid and whose totals are right on every level."""
    xmlschema.XMLSchema(str(SCHEMA)).validate(str(file))
    xml = JUnitXml.fromfile(str(file))
    found = {suite.name: suite for suite in xml}
    for suite in found.values():
        cases = list(suite)
        assert suite.tests == len(cases)
        assert suite.failures == sum(case.is_failure for case in cases)
        assert suite.errors == sum(case.is_error for case in cases)
        assert suite.skipped == sum(case.is_skipped for case in cases)
    for total in ("tests", "failures", "errors"):
        assert getattr(xml, total) == sum(getattr(suite, total) for suite in found.values())
    return found


def told(case: TestCase) -> tuple[Any, ...]:
    return tuple((result.type, result.message) for result in case.result) or (None,)


def test_a_whole_run_reads_as_the_golden(sample_run: Any, file: Path, golden: Callable[[str, str], None]) -> None:
    sample_run.tell(reporter_to(file))
    assert len(suites(file)) == 9
    golden("junit.xml", sample_run.without_paths(file.read_text("utf-8")) + "\n")


def test_a_run_that_never_finished_is_written_when_it_is_closed(sample_run: Any, file: Path) -> None:
    hang = [type(event).__name__ for event in sample_run.events].index("AttemptSlow")
    del sample_run.events[hang:]
    sample_run.tell(reporter_to(file))
    found = suites(file)
    assert len(found) == 9
    assert told(next(iter(found["tests/test_leaky.py"]))) == (("interrupted", "no outcome of this unit is recorded"),)


def test_an_older_report_stays_when_the_new_one_cannot_be_written(sample_run: Any, file: Path) -> None:
    reporter = reporter_to(file)
    file.mkdir()  # os.replace cannot put a file over it
    (file / "inside").write_text("")
    with pytest.raises(OSError, match=r"junit\.xml"):
        sample_run.tell(reporter)
    assert [path.name for path in file.parent.iterdir()] == ["junit.xml"]


def test_a_link_is_followed(sample_run: Any, file: Path) -> None:
    file.parent.mkdir()
    link = file.with_name("link.xml")
    link.symlink_to(file)
    sample_run.tell(reporter_to(link))
    assert link.is_symlink()
    assert "testsuites" in file.read_text()


def test_pytest_that_stopped_by_itself_skips_what_it_did_not_begin(sample_run: Any, file: Path) -> None:
    for unit in ("bad", "hang"):
        report = sample_run.directory / "units" / unit / "report.jsonl"
        lines = [json.loads(line) for line in report.read_text().splitlines()]
        for line in lines:
            if line["k"] == "collected":
                line["nodeids"] = [*line["nodeids"], f"tests/test_{unit}.py::test_last"]
        lines.append({"k": "finish", "exit": 1})
        report.write_text("".join(json.dumps(line) + "\n" for line in lines))
    sample_run.tell(reporter_to(file))
    assert told(list(suites(file)["tests/test_bad.py"])[-1]) == (("unstarted", "pytest stopped before it began"),)
    ((kind, why),) = told(list(suites(file)["tests/test_hang.py"])[-1])
    assert (kind, why.partition(":")[0]) == ("unstarted", "the process ended before it began"), "rlharness ended it"


def test_a_report_of_another_version_is_said_and_the_others_are_written(sample_run: Any, file: Path) -> None:
    (sample_run.directory / "units" / "ok" / "report.jsonl").write_text('{"k": "hello", "version": 9, "pid": 1}\n')
    sample_run.tell(reporter_to(file))
    (case,) = suites(file)["tests/test_ok.py"]
    assert case.is_skipped
    assert "version 9" in case.result[0].message


def test_a_failure_of_200_mb_is_shortened_and_says_so(sample_run: Any, file: Path) -> None:
    report = sample_run.directory / "units" / "ok" / "report.jsonl"
    line = '{"k": "end", "id": "tests/test_ok.py::test_a", "outcome": "failed", "duration_s": 1, "text": "%s"}\n'
    report.write_text(line % ("x" * 2_000_000))
    sample_run.tell(reporter_to(file))
    (case,) = suites(file)["tests/test_ok.py"]
    text = case.result[0].text
    assert len(text) < 201_000
    assert "1,800,000 characters left out" in text


@given(text=st.text(max_size=60), outcome=st.sampled_from(Outcome))
def test_any_text_gives_valid_xml(tmp_path_factory: pytest.TempPathFactory, text: str, outcome: Outcome) -> None:
    file = tmp_path_factory.getbasetemp() / "any.xml"
    state, reporter = RunState(), reporter_to(file)
    unit = Unit(f"tests/{text}.py", Need(), NeedSource.IMPORT, collect_error=text)
    for event in (
        CollectionFinished(0.0, (unit,), (0.0,), 0.0, 0.0, 0.0),
        UnitFinished(1.0, UnitResult(unit, outcome, text)),
        RunFinished(1e6 + 1e-7, 0, 1.0, 0.0, 0.0, 0.0, 0.0, ""),
    ):
        state.apply(event)
        reporter.on_event(event, state)
    assert len(suites(file)) == 1


def test_what_ended_the_run_early_is_an_error_of_its_own(tmp_path: Path) -> None:
    state, reporter = RunState(), reporter_to(tmp_path / "j.xml")
    event = RunFinished(1.0, 1, 1.0, 0.0, 0.0, 0.0, 0.0, error="the test files cannot be listed\nas pytest died")
    state.apply(event)
    reporter.on_event(event, state)
    (case,) = suites(tmp_path / "j.xml")["rlharness"]
    assert (case.name, case.classname) == ("[run]", "rlharness")
    assert case.result[0].message == "the test files cannot be listed as pytest died"
    assert case.result[0].text == "the test files cannot be listed\nas pytest died"
