"""Output of a run on GitHub Actions: annotations within the limits of GitHub, and the summary of the job."""

import re
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.bits.exit_codes import ExitCode
from harness.process.invocation import Invocation
from harness.render.github import MAX_BYTES, SUMMARY_VARIABLE
from harness.render.run_github import MAX_ANNOTATIONS, GithubReporter, annotations, summarize_merge
from harness.render.run_words import Failure
from harness.runner.need import Need
from harness.runner.units import Attempt, NeedSource, Outcome, Unit, UnitResult
from tests.render.run_pages import finished_of, state_of, write_run
from tests.support.github_commands import obeyed, read_back

HERE = Path(__file__).parent


def invocation(root: Path, **environ: str) -> Invocation:
    return Invocation(root, {"GITHUB_WORKSPACE": str(root), SUMMARY_VARIABLE: str(root / "summary.md"), **environ})


def unit_result(path: str, outcome: Outcome, **fields: Any) -> UnitResult:
    return UnitResult(Unit(path, Need(), NeedSource.IMPORT), outcome, **fields)


def test_a_whole_run(
    sample_run: Any, tmp_path: Path, golden: Callable[[str, str], None], capsys: pytest.CaptureFixture[str]
) -> None:
    """The summary of the run that has met everything, with a file that GitHub knows."""
    root = tmp_path / "repository"
    (root / "tests").mkdir(parents=True)
    (root / "tests" / "test_hang.py").write_text("import time\n\ndef test_waits():\n    time.sleep(60)\n", "utf-8")
    sample_run.tell(GithubReporter(invocation(root), sys.stderr))
    golden("run_job_summary.txt", sample_run.without_paths((root / "summary.md").read_text("utf-8")))
    printed = [read_back(line) for line in obeyed(capsys.readouterr().err.splitlines())]
    assert [(kind, properties) for kind, properties, _ in printed] == [
        ("error", {"title": "tests/test_bad.py::test_sum"}),
        ("error", {"title": "crashed: tests/test_crash.py"}),
        ("error", {"title": "timed out: tests/test_hang.py::test_waits", "file": "tests/test_hang.py", "line": "7"}),
        ("error", {"title": "collect error: tests/test_import.py"}),
        ("error", {"title": "error: tests/test_bad.py::test_setup"}),
        ("warning", {"title": "not run: tests/test_wide.py"}),
    ]


@settings(derandomize=True)
@given(st.integers(0, 40), st.integers(0, 40))
def test_more_than_github_shows_are_counted_in_the_last(num_failures: int, num_flaky: int) -> None:
    failures = [Failure(f"gone.py::test_{number}", "failed", f"reason {number}") for number in range(num_failures)]
    flaky = [unit_result(f"flaky_{n:02d}.py", Outcome.FLAKY, reason="passed") for n in range(num_flaky)]
    state = state_of(*flaky)
    printed = [read_back(line) for line in annotations(failures, state, finished_of(state), Invocation(HERE, {}))]
    for kind, number in (("error", num_failures), ("warning", num_flaky)):
        titles = [properties["title"] for each, properties, _ in printed if each == kind]
        assert len(titles) == min(number, MAX_ANNOTATIONS)
        if number > MAX_ANNOTATIONS:
            (match,) = re.findall(r"\Aand (\d+) more", titles[-1])
            assert int(match) + len(titles) - 1 == number
    if num_failures > MAX_ANNOTATIONS:
        last = next(message for kind, properties, message in printed if properties["title"].startswith("and "))
        assert last.splitlines()[0] == "gone.py::test_9"


def test_a_flaky_file_is_a_warning() -> None:
    attempt = Attempt(Outcome.TIMED_OUT, "longer than 3 s", 3.0, "/gone")
    result = unit_result("test_run_github.py", Outcome.FLAKY, reason="passed at attempt 2", attempts=(attempt,))
    state = state_of(result)
    (line,) = annotations([], state, finished_of(state, ExitCode.OK), Invocation(HERE, {}))
    assert read_back(line) == (
        "warning",
        {"title": "flaky: test_run_github.py", "file": "test_run_github.py"},
        "timed_out: longer than 3 s\npassed at attempt 2",
    )


def test_a_name_with_control_characters_is_shown_and_links_to_no_file(tmp_path: Path) -> None:
    name = "test_\x1b]0;title\x07.py"
    (tmp_path / name).write_text("def test_a(): ...\n")
    state = state_of(unit_result(name, Outcome.FAILED, reason="failed"))
    found = annotations([Failure(name, "failed", "failed")], state, finished_of(state), Invocation(tmp_path, {}))
    assert [read_back(line)[1] for line in found] == [{"title": "test_\\x1b]0;title\\x07.py"}]


@pytest.mark.parametrize(("code", "kind"), [(ExitCode.UNITS_NOT_RUN, "error"), (ExitCode.OK, "warning")])
def test_a_lack_of_gpus_is_an_error_if_it_fails_the_run(code: ExitCode, kind: str) -> None:
    state = state_of(unit_result("wide.py", Outcome.NOT_RUN, reason="needs 16 GPUs", for_want_of_gpus=True))
    (line,) = annotations([], state, finished_of(state, code), Invocation(HERE, {}))
    assert read_back(line) == (kind, {"title": "not run: wide.py"}, "needs 16 GPUs")


def test_a_run_that_passed_has_a_summary(tmp_path: Path) -> None:
    state = state_of(unit_result("a.py", Outcome.PASSED))
    GithubReporter(invocation(tmp_path), sys.stderr).on_event(finished_of(state, ExitCode.OK), state)
    text = (tmp_path / "summary.md").read_text("utf-8")
    assert text == "### rlharness run: passed\n\n1 unit: 1 passed in 1.0 s.\n\n"


def test_the_summary_of_merged_runs_annotates_nothing(
    sample_run: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    summarize_merge(sample_run.tell(), sample_run.events[-1], invocation(tmp_path).environ)
    assert (tmp_path / "summary.md").read_text("utf-8").startswith("### rlharness merge: tests failed\n")
    assert capsys.readouterr().err == ""


@pytest.mark.full
def test_many_long_failures_fit_into_the_limit(tmp_path: Path) -> None:
    files = {f"test_{number:03d}.py": {f"test_{'é' * 90}": ("failed", 0.1)} for number in range(300)}
    directory = write_run(tmp_path, "20260101-000000-aaaaaa", files, text="é<" * 20_000)
    results = [
        replace(unit_result(path, Outcome.FAILED), directory=str(directory / "units" / f"{number:04d}"))
        for number, path in enumerate(files)
    ]
    state = state_of(*results)
    GithubReporter(invocation(tmp_path), sys.stderr).on_event(finished_of(state), state)
    text = (tmp_path / "summary.md").read_text("utf-8")
    assert len(text.encode()) < MAX_BYTES
    assert "300 failed" in text and text.count("❌") == 100 and "and 250 more" in text
