"""--durations N: the slowest tests of the whole run, longest first."""

import io
import json
from pathlib import Path

import pytest

from harness.bits.exit_codes import ExitCode
from harness.render.slowest import SlowestReporter
from harness.runner.events import RunFinished, TestFinished
from harness.runner.records.stats import RunState
from tests.support.suite_runs import run, write_suite

pytestmark = pytest.mark.usefixtures("own_cache")
END = RunFinished(9.0, 0, 9.0, 9.0, 0.0, 1.0, 1.0, "")


def printed(num_shown: int, *tests: tuple[str, str, float]) -> list[str]:
    """The lines for finished tests, each a file, a node id and its seconds."""
    stream = io.StringIO()
    reporter = SlowestReporter(stream, num_shown)
    for path, nodeid, seconds in tests:
        reporter.on_event(TestFinished(1.0, path, nodeid, "passed", seconds), RunState())
    assert stream.getvalue() == "", "nothing before the end of the run"
    reporter.on_event(END, RunState())
    return stream.getvalue().splitlines()


def test_the_slowest_of_all_files_come_first_and_ties_by_name() -> None:
    tests = [("a.py", "a.py::b", 1.0), ("b.py", "b.py::x", 3.0), ("a.py", "a.py::a", 1.0), ("a.py", "a.py::c", 0.5)]
    assert printed(3, *tests)[2:] == ["       3.00 s  b.py::x", "       1.00 s  a.py::a", "       1.00 s  a.py::b"]
    assert len(printed(9, *tests)) == 2 + 4


def test_of_a_test_that_ran_again_the_longest_time_counts() -> None:
    tests = [("a.py", "a.py::x", 2.0), ("a.py", "a.py::x", 0.1), ("a.py", "a.py::y", 1.0)]
    assert [line.split()[-1] for line in printed(5, *tests)[2:]] == ["a.py::x", "a.py::y"]
    assert printed(1, *tests)[-1].split()[0] == "2.00"


def test_a_run_without_tests_prints_no_list() -> None:
    assert printed(5) == []


def test_control_characters_of_a_name_are_not_printed() -> None:
    (line,) = printed(1, ("a.py", "a.py::x[\x1b[31m\n]", 1.0))[2:]
    assert "\x1b" not in line


@pytest.mark.full
def test_a_run_lists_the_slowest_tests_of_its_files(tmp_path: Path) -> None:
    source = "import time\ndef test_quick(): pass\ndef test_{0}(): time.sleep({1})\n"
    write_suite(tmp_path, {"test_a.py": source.format("a", 0.3), "test_b.py": source.format("b", 0.6)})
    done = run(tmp_path, "run", "--gpus", "none", "--json", "--durations", "2")
    assert done.code == ExitCode.OK
    json.loads(done.stdout)  # the list is not on standard output
    lines = done.stderr.splitlines()
    (at,) = [number for number, line in enumerate(lines) if line.startswith("slowest tests")]
    assert [line.split()[-1] for line in lines[at + 1 : at + 3]] == ["test_b.py::test_b", "test_a.py::test_a"]
    assert "test_quick" not in "".join(lines[at:])
    assert run(tmp_path, "run", "--gpus", "none", "--durations", "-1").code == ExitCode.USAGE_ERROR
    assert "slowest tests" not in run(tmp_path, "run", "--gpus", "none").stdout
