"""Failures of a run as a list: which there are, and which come first."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from harness.bits.exit_codes import ExitCode
from harness.render.run_words import MAX_CHARS, MAX_MESSAGE_LINES, Failure, list_failures
from harness.runner.need import Need
from harness.runner.units import Attempt, NeedSource, Outcome, Unit, UnitResult
from tests.render.run_pages import finished_of, state_of


def unit(path: str, **fields: Any) -> Unit:
    return Unit(path, Need(), NeedSource.IMPORT, **fields)


def write_report(directory: Path, *records: dict[str, Any]) -> str:
    directory.mkdir()
    lines = [{"k": "hello", "version": 1, "pid": 1}, *records]
    (directory / "report.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines), "utf-8")
    return str(directory)


def end(nodeid: str, outcome: str, reason: str = "", text: str = "") -> dict[str, Any]:
    return {"k": "end", "id": nodeid, "outcome": outcome, "duration_s": 0.1, "reason": reason, "text": text}


def failures_of(*results: UnitResult, code: ExitCode = ExitCode.TESTS_FAILED, error: str = "") -> list[Failure]:
    state = state_of(*results)
    return list_failures(state, replace(finished_of(state, code), error=error))


def titles(failures: list[Failure]) -> list[tuple[str, str]]:
    return [(failure.title, failure.reason) for failure in failures]


def test_a_crash_after_a_failed_test_is_a_failure_of_its_own(tmp_path: Path) -> None:
    directory = write_report(tmp_path / "a", end("a.py::test_a", "failed", "assert 0"))
    (tmp_path / "a" / "output.log").write_text("last words\n", "utf-8")
    found = failures_of(UnitResult(unit("a.py"), Outcome.CRASHED, "SIGABRT", directory=directory))
    assert titles(found) == [("a.py::test_a", "assert 0"), ("crashed: a.py", "SIGABRT")]
    assert found[1].text == "last words"


def test_each_lost_test_has_the_reason_of_its_own_process(tmp_path: Path) -> None:
    """The first process died in one test, the next one in another, and a test of its own process was lost too."""
    first = write_report(tmp_path / "0", {"k": "start", "id": "a.py::test_a"})
    start = [{"k": "start", "id": f"a.py::test_{name}"} for name in "bc"]
    lost = {"k": "lost", "id": "a.py::test_c", "how": "timed_out", "why": "longer than 3 s"}
    second = write_report(tmp_path / "1", *start, lost)
    rest = Attempt(Outcome.CRASHED, "SIGSEGV", 1.0, second, is_rest=True)
    result = UnitResult(unit("a.py"), Outcome.EXITED_EARLY, "exit 0", directory=first, attempts=(rest,))
    assert sorted(titles(failures_of(result))) == [
        ("crashed: a.py::test_b", "SIGSEGV"),
        ("exited early: a.py::test_a", "exit 0"),
        ("timed out: a.py::test_c", "longer than 3 s"),
    ]


def test_a_leaning_file_says_so_at_its_tests(tmp_path: Path) -> None:
    directory = write_report(tmp_path / "a", end("a.py::test_a", "failed", "assert 0"))
    found = failures_of(UnitResult(unit("a.py"), Outcome.LEANING, "passes after b.py", directory=directory))
    assert titles(found) == [("leaning: a.py::test_a", "passes after b.py; assert 0")]


def test_one_error_of_many_units_is_one_failure() -> None:
    """A conftest that cannot be imported."""
    broken = [UnitResult(unit(f"{n}.py", collect_error="E   no"), Outcome.COLLECT_ERROR, "no") for n in range(4)]
    other = UnitResult(unit("other.py", collect_error="E   another"), Outcome.COLLECT_ERROR, "another")
    found = failures_of(*broken, other)
    assert [(failure.name, failure.num_same) for failure in found] == [("0.py", 3), ("other.py", 0)]
    assert found[0].message() == ["no", "the same error in 3 more units"]


def test_an_interrupted_unit_has_the_failures_that_it_had(tmp_path: Path) -> None:
    started = {"k": "start", "id": "a.py::test_b"}
    directory = write_report(tmp_path / "a", end("a.py::test_a", "failed", "assert 0"), started)
    result = UnitResult(unit("a.py"), Outcome.INTERRUPTED, "SIGINT", directory=directory)
    found = failures_of(result, UnitResult(unit("b.py"), Outcome.NOT_RUN, "SIGINT"), code=ExitCode.INTERRUPTED)
    assert titles(found) == [("exit code 2: rlharness", "the run was interrupted"), ("a.py::test_a", "assert 0")]


def test_the_message_is_what_pytest_marks_as_the_error() -> None:
    text = (
        "    def test():\n>       assert f(1) == 2\nE       AssertionError: no\nE       assert 1 == 2\nE         +1\n"
    )
    assert Failure("a", "failed", "AssertionError: no", text).message() == ["AssertionError: no", "assert 1 == 2", "+1"]
    assert Failure("a", "failed", "", "no line of it").message() == ["failed"]
    assert Failure("a", "failed", "first\nsecond", "E   x\n" * 99).message()[:3] == ["first", "second", "x"]
    assert len(Failure("a", "failed", "first", "E   x\n" * 99).message()) == MAX_MESSAGE_LINES


def test_long_texts_lose_their_middle(tmp_path: Path) -> None:
    directory = write_report(tmp_path / "a", end("a.py::test_a", "failed", "", f"a{'x' * 2 * MAX_CHARS}z"))
    (failure,) = failures_of(UnitResult(unit("a.py"), Outcome.FAILED, directory=directory))
    assert len(failure.text) < MAX_CHARS + 100
    assert (failure.text[0], failure.text[-1]) == ("a", "z")


def test_the_first_failure_of_each_file_comes_before_the_second_of_any(tmp_path: Path) -> None:
    ends = [end("a.py::test_a", "failed"), end("a.py::test_b", "failed")]
    results = [UnitResult(unit("a.py"), Outcome.FAILED, directory=write_report(tmp_path / "a", *ends))]
    ends = [end("b.py::test_a", "failed")]
    results.append(UnitResult(unit("b.py"), Outcome.FAILED, directory=write_report(tmp_path / "b", *ends)))
    found = failures_of(*results, code=ExitCode.INTERNAL_ERROR)
    assert [each.name for each in found] == ["", "a.py::test_a", "b.py::test_a", "a.py::test_b"]
