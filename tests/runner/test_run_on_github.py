"""A whole run in a job of GitHub Actions: what a step prints, and the summary of the job."""

from pathlib import Path

import pytest

from harness.bits.exit_codes import ExitCode
from harness.render.github import SUMMARY_VARIABLE
from tests.support.github_commands import obeyed, read_back
from tests.support.suite_runs import run, write_suite

CRASHES = "import os\nclass TestC:\n    def test_dies(self):\n        os.abort()\n"


@pytest.mark.full
def test_failed_tests_are_annotated_at_their_lines(tmp_path: Path) -> None:
    suite = tmp_path / "sub"
    write_suite(
        suite,
        {
            "pyproject.toml": "[tool.rlharness]\n",
            "tests/test_bad.py": "def test_good(): pass\ndef test_sum():\n    x = 1\n    assert x == 2\n",
            "tests/test_crash.py": CRASHES,
        },
    )
    summary = tmp_path / "summary.md"
    job = {"GITHUB_ACTIONS": "true", "GITHUB_WORKSPACE": str(tmp_path), SUMMARY_VARIABLE: str(summary)}
    done = run(suite, "run", "--gpus", "none", "--json", env=job)
    done.assert_sound()
    assert done.code == ExitCode.TESTS_FAILED
    printed = [read_back(line) for line in obeyed(done.stderr.splitlines())]
    assert [(kind, *properties.values()) for kind, properties, _ in printed] == [
        ("error", "tests/test_bad.py::test_sum", "sub/tests/test_bad.py", "4"),
        ("error", "crashed: tests/test_crash.py::TestC::test_dies", "sub/tests/test_crash.py"),
    ]
    assert printed[0][2] == "assert 1 == 2"
    text = summary.read_text("utf-8")
    assert text.startswith("### rlharness run: tests failed\n\n2 units: 1 failed, 1 crashed in ")
    assert "<summary>❌ tests/test_bad.py::test_sum: assert 1 == 2</summary>\n\n```text\n" in text
    assert f"Page of the run: <code>{suite.resolve()}" in text.replace("\\", "")

    inner = run(suite, "run", "tests/test_bad.py", "--gpus", "none", env={**job, "RLHARNESS_ATTEMPT": "outer"})
    assert inner.code == ExitCode.TESTS_FAILED
    assert "::error" not in inner.stderr and summary.read_text("utf-8") == text, "the run around it reports the test"


COMMANDS = [
    "::error::mine",
    "  ::add-mask::e",
    "##[error]mine",
    "::stop-commands::mine",
    "::mine::",
    "::set-output x=1::y",
]
PRINTS = f"def test_prints():\n    print(*{COMMANDS!r}, sep='\\n')\n    assert 0, '##[warning]mine'\n"


def test_github_obeys_no_command_that_a_test_prints(tmp_path: Path) -> None:
    job = {"GITHUB_ACTIONS": "true", "GITHUB_WORKSPACE": str(tmp_path), SUMMARY_VARIABLE: str(tmp_path / "summary.md")}
    suite = write_suite(tmp_path / "suite", {"test_a.py": PRINTS})
    done = run(suite, "run", "--gpus", "none", env=job)
    assert done.code == ExitCode.TESTS_FAILED
    assert set(COMMANDS) <= set(done.stdout.splitlines()), "the output is shown unchanged"
    assert obeyed(done.stderr.splitlines()) == []
    (annotation,) = obeyed(done.stdout.splitlines())
    assert read_back(annotation)[1]["title"] == "test_a.py::test_prints"
    merged = run(suite, "merge", str(done.record), env=job)
    assert set(COMMANDS) <= set(merged.stdout.splitlines())
    assert obeyed(merged.stdout.splitlines()) == []


@pytest.mark.full
def test_github_obeys_no_command_in_the_error_of_a_run(tmp_path: Path) -> None:
    conftest = "import pytest\ndef pytest_configure(): raise pytest.UsageError('wrong\\n::error::mine')\n"
    suite = write_suite(tmp_path, {"test_a.py": "", "conftest.py": conftest})
    done = run(suite, "run", "--gpus", "none", env={"GITHUB_ACTIONS": "true"})
    assert done.code == ExitCode.USAGE_ERROR
    assert "::error::mine" in done.stderr.splitlines()
    printed = obeyed([*done.stdout.splitlines(), *done.stderr.splitlines()])
    assert [read_back(line)[1]["title"] for line in printed] == [f"exit code {done.code}: rlharness"]
