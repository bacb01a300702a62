"""--retries: which attempts are followed by another, its tests and GPUs, the one outcome, and whole runs."""

import json
import os
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest

from harness.bits.exit_codes import ExitCode
from harness.runner import events
from harness.runner.need import Need
from harness.runner.records.history import History
from harness.runner.units import Outcome
from tests.runner.scripted_run import GPU_0, GPU_1, ScriptedRun, begun
from tests.support.fake_meter import FakeMeter
from tests.support.scripted_attempts import PASSING, Script
from tests.support.suite_runs import run, write_suite

pytestmark = pytest.mark.usefixtures("own_cache")
ID = "test_0.py::test_{}"


def report(*tests: str, exit_code: int | None = None) -> tuple[dict[str, Any], ...]:
    """A report of tests a, b, c with these outcomes, in order; "started" for one that did not end."""
    ids = [ID.format(name) for name in "abc"]
    lines: list[dict[str, Any]] = [
        {"k": "hello", "version": 1, "pid": 1},
        {"k": "collected", "need": Need().to_json(), "nodeids": ids},
    ]
    for nodeid, outcome in zip(ids, tests, strict=False):
        start = {"k": "start", "id": nodeid, "timeout_s": None}
        lines.append(
            start if outcome == "started" else {"k": "end", "id": nodeid, "outcome": outcome, "duration_s": 0.5}
        )
    return (*lines, {"k": "finish", "exit": exit_code} if exit_code is not None else {"k": "nothing"})


FAILED = Script(report=report("passed", "failed", "passed", exit_code=1), exit_code=1)
CRASHED = Script(report=report("passed", "started"), exit_code=9)
PASSED = Script(report=PASSING)
IN_TEARDOWN = {
    "k": "end",
    "id": ID.format("c"),
    "outcome": "error",
    "duration_s": 0.5,
    "counted": ["passed", "error"],
}
TEARDOWN_OF_SESSION = """
import os, time, pytest
@pytest.fixture(scope="session")
def server():
    yield
    time.sleep(60)
def test_uses(server): pass
def test_flaky():
    if not os.path.exists("mark"):
        open("mark", "w").close()
        assert 0
@pytest.mark.timeout(0.2)
def test_last(): pass
"""
CRASHES_AT_EXIT = """
import atexit, os
def test_flaky():
    if not os.path.exists("mark"):
        open("mark", "w").close()
        assert 0
def test_exit(): atexit.register(os.kill, os.getpid(), 11)
"""


def scripted(
    tmp_path: Path, *scripts: Script, retries: int = 2, needs: tuple[int, ...] = (1,), **more: Any
) -> ScriptedRun:
    """A run whose first unit has these attempts, one after the other."""
    chain: Script | None = None
    for script in reversed(scripts):
        chain = Script(**{**{name: getattr(script, name) for name in script.__dataclass_fields__}, "then": chain})
    assert chain is not None
    more.setdefault("options", {})["retries"] = retries
    done = ScriptedRun(tmp_path, needs, {0: chain}, **more).run()
    done.state.check_sum()
    assert (done.table.leases, done.state.leases, done.state.running) == ((), {}, {})
    assert list(done.scratch.iterdir()) == []
    return done


def test_only_the_failed_test_runs_again_and_the_unit_is_flaky(tmp_path: Path) -> None:
    end = {"k": "end", "id": ID.format("b"), "outcome": "passed", "duration_s": 1.0}
    again = Script(report=(PASSING[0], end, PASSING[-1]))
    done = scripted(tmp_path, FAILED, again)
    result = done.results[0]
    assert (result.outcome, result.reason) == (Outcome.FLAKY, "passed at attempt 2 of 3")
    assert {str(outcome): number for outcome, number in result.tests.counts.items()} == {"passed": 3}
    (earlier,) = result.attempts
    assert (earlier.outcome, earlier.selection) == (Outcome.FAILED, ())
    assert (Path(earlier.directory).name, Path(result.directory).name) == ("0000", "0000-1")
    assert result.duration_s == 2.0
    (retry,) = done.of(events.AttemptFailed)
    assert (retry.number, retry.limit, retry.tests) == (1, 2, (ID.format("b"),))
    assert done.attempts.specs[0].argv[-1] == ID.format("b")
    assert done.attempts.specs[0].marker == "run-0000-1"
    assert len(done.of(events.AttemptStarted)) == len(done.of(events.LeaseReturned)) == 2


@pytest.mark.parametrize(
    ("first", "tests"),
    [
        (CRASHED, ("b", "c")),
        (Script(report=report("passed", "passed", "passed"), exit_code=9), ()),
        (Script(report=report(), exit_code=1), ()),
        (Script(report=FAILED.report, exit_code=9), ()),
        (Script(report=(*FAILED.report[:-1], {"k": "nothing"}), exit_code=11), ()),
        (Script(report=(*FAILED.report, IN_TEARDOWN), exit_code=1), ()),
        (Script(report=(*CRASHED.report, {"k": "teardown", "id": ID.format("b")}), exit_code=9), ()),
        (Script(report=(*FAILED.report, {"k": "lost", "id": ID.format("a"), "how": "crashed", "why": "x"})), ()),
    ],
)
def test_what_did_not_run_runs_again_and_else_the_whole_file(
    tmp_path: Path, first: Script, tests: tuple[str, ...]
) -> None:
    done = scripted(tmp_path, first, PASSED)
    assert done.outcomes == [Outcome.FLAKY]
    assert done.of(events.AttemptFailed)[0].tests == tuple(ID.format(test) for test in tests)


@pytest.mark.parametrize("isolate", ["file", pytest.param("test", marks=pytest.mark.full)])
def test_a_fault_that_belongs_to_no_failed_test_is_not_flaky(tmp_path: Path, isolate: str) -> None:
    """Neither for --retries nor for --last-failed: the process of a file crashes after its tests."""
    words = ("run", "--gpus", "none", "--isolate", isolate)
    write_suite(tmp_path, {"test_exit.py": CRASHES_AT_EXIT, "test_other.py": "def test_fails(): assert 0\n"})
    done = run(tmp_path, *words, "--retries", "1")
    assert (done.code, done.outcomes["test_exit.py"]) == (ExitCode.TESTS_FAILED, "crashed")
    assert {each["path"]: each["tests"] for each in done.of("attempt_failed")}["test_exit.py"] == []
    again = run(tmp_path, *words, "--last-failed")
    assert (again.outcomes["test_exit.py"], again.results["test_exit.py"]["num_deselected"]) == ("crashed", 0)


@pytest.mark.full
@pytest.mark.parametrize("isolate", ["file", "interpreter"])
def test_the_teardown_of_a_session_fixture_that_always_hangs_is_not_flaky(tmp_path: Path, isolate: str) -> None:
    write_suite(tmp_path, {"test_a.py": TEARDOWN_OF_SESSION})
    done = run(tmp_path, "run", "--gpus", "none", "--grace", "1", "--isolate", isolate, "--retries", "1")
    assert (done.code, done.outcomes) == (ExitCode.TESTS_FAILED, {"test_a.py": "timed_out"})
    assert "test_a.py::test_last ran longer than its own limit of 0.2 s" in done.results["test_a.py"]["reason"]


def test_the_last_attempt_decides(tmp_path: Path) -> None:
    done = scripted(tmp_path, FAILED, CRASHED, CRASHED, PASSED)
    result = done.results[0]
    assert result.outcome is Outcome.CRASHED
    assert [(each.outcome, each.is_rest) for each in result.attempts] == [
        (Outcome.FAILED, False),
        (Outcome.CRASHED, False),
        (Outcome.PASSED, True),
    ]
    assert len(done.of(events.AttemptStarted)) == 4


def test_without_retries_and_for_a_pass_nothing_runs_again(tmp_path: Path) -> None:
    assert scripted(tmp_path / "a", FAILED, PASSED, retries=0).outcomes == [Outcome.FAILED]
    assert not scripted(tmp_path / "b", PASSED, FAILED).of(events.AttemptFailed)


def test_an_unkillable_process_or_refused_arguments_are_final(tmp_path: Path) -> None:
    stuck = Script(report=report("started"), unkillable=("7 python",))
    assert scripted(tmp_path / "a", stuck, PASSED).outcomes == [Outcome.UNKILLABLE]
    refused = Script(report=report(exit_code=4), exit_code=4)
    assert scripted(tmp_path / "b", refused, PASSED).outcomes == [Outcome.USAGE_ERROR]


def test_tests_that_pytest_does_not_find_again_have_the_whole_file_run(tmp_path: Path) -> None:
    refused = Script(report=report(exit_code=4), exit_code=4)
    done = scripted(tmp_path, FAILED, refused, PASSED)
    assert done.outcomes == [Outcome.FLAKY]
    assert [event.tests for event in done.of(events.AttemptFailed)] == [(ID.format("b"),), ()]
    last = scripted(tmp_path / "last", FAILED, refused, retries=1).results[0]
    assert (last.outcome, "did not find" in last.reason) == (Outcome.FAILED, True)


def test_a_cancelled_run_starts_no_further_attempt(tmp_path: Path) -> None:
    slow = Script(num_steps=50, grace_steps=50, report=FAILED.report, exit_code=1)
    stop = (begun(0), lambda dispatcher: dispatcher.post(events.CancelRequested(0.0, "x", kill=False, interrupt=False)))
    result = scripted(tmp_path, slow, PASSED, acts=[stop]).results[0]
    assert (result.outcome, result.attempts) == (Outcome.FAILED, ())
    assert "not run again: " in result.reason


def test_flaky_units_do_not_count_for_maxfail(tmp_path: Path) -> None:
    done = scripted(tmp_path, FAILED, PASSED, needs=(1, 1), num_gpus=1, options={"maxfail": 1})
    assert done.outcomes == [Outcome.FLAKY, Outcome.PASSED]
    done = scripted(tmp_path / "b", FAILED, FAILED, needs=(1, 1), num_gpus=1, retries=1, options={"maxfail": 1})
    assert done.outcomes == [Outcome.FAILED, Outcome.NOT_RUN]


def test_a_retry_for_which_no_gpu_is_left_leaves_the_outcome_of_the_attempt(tmp_path: Path) -> None:
    meter = FakeMeter({GPU_0: 0})
    leaks = Script(report=FAILED.report, exit_code=1, on_begin=lambda spec: meter.used_bytes.update({GPU_0: 5 * 10**9}))
    result = scripted(tmp_path, leaks, PASSED, meter=meter, num_gpus=1).results[0]
    assert (result.outcome, result.attempts, result.for_want_of_gpus) == (Outcome.FAILED, (), False)
    assert "not run again: " in result.reason
    assert "quarantine" in result.reason


def test_an_attempt_may_have_other_gpus_than_the_one_before(tmp_path: Path) -> None:
    meter = FakeMeter({GPU_0: 0, GPU_1: 0})
    held = {0: GPU_0}
    leaks = Script(
        report=FAILED.report,
        exit_code=1,
        on_begin=lambda spec: meter.used_bytes.update({held.pop(0, GPU_0): 5 * 10**9}),
    )
    done = scripted(tmp_path, leaks, PASSED, meter=meter, num_gpus=2)
    assert done.outcomes == [Outcome.FLAKY]
    assert [event.gpu_ids for event in done.of(events.AttemptStarted)] == [(GPU_0,), (GPU_1,)]


FLAKY = """
import os
def test_fine():
    open("ran", "a").write("f")
def test_flaky():
    open("ran", "a").write("x")
    assert os.path.getsize("ran") > 2, "the first time"
"""
HANGS_ONCE = """
import os, time
def test_hang():
    if not os.path.exists("hung"):
        open("hung", "w")
        time.sleep(60)
"""


@pytest.mark.full
def test_a_whole_run_with_retries(tmp_path: Path) -> None:
    broken = "def test_good(): pass\ndef test_bad(): assert 1 == 2, 'always'\n"
    files = {"test_flaky.py": FLAKY, "test_bad.py": broken, "test_hang.py": HANGS_ONCE}
    write_suite(tmp_path, files)
    words = ("--retries", "1", "--timeout", "3", "--grace", "1", "--junit", "all.xml", "--json")
    done = run(tmp_path, "run", "--gpus", "none", *words, env={"GITHUB_ACTIONS": "true"})
    done.assert_sound()
    assert done.outcomes == {"test_flaky.py": "flaky", "test_bad.py": "failed", "test_hang.py": "flaky"}
    assert done.code == ExitCode.TESTS_FAILED
    assert (tmp_path / "ran").read_text() == "fxx", "the test that passed did not run again"
    assert "flaky, passed when run again (2)\n  test_flaky.py: test_flaky.py::test_flaky; FAILED in " in done.stderr
    assert "::warning title=flaky%3A test_flaky.py,file=test_flaky.py::test_flaky.py::test_flaky%0A" in done.stderr
    units = {unit["path"]: unit for unit in json.loads(done.stdout)["units"]}
    assert units["test_flaky.py"]["flaky_tests"] == ["test_flaky.py::test_flaky"]
    assert units["test_flaky.py"]["tests"] == {"passed": 2}
    assert units["test_bad.py"]["tests"] == {"passed": 1, "failed": 1}
    assert units["test_hang.py"]["attempts"][0]["outcome"] == "timed_out"
    for unit in units.values():
        assert all(Path(each["directory"], "output.log").exists() for each in unit["attempts"])
    root = ET.parse(tmp_path / "all.xml").getroot()
    cases = {case.get("name"): [child.tag for child in case] for case in root.iter("testcase")}
    assert cases["test_bad"] == ["failure", "system-out"]
    assert cases["test_flaky"] == cases["test_hang"] == cases["test_fine"] == cases["test_good"] == []
    assert root.get("failures") == "1"
    with History.of_root(tmp_path, os.environ, is_run=False) as history:
        expected = history.expectations({"test_bad.py": 10, "test_other.py": 10})
    assert (expected["test_bad.py"].is_estimate, expected["test_other.py"].is_estimate) == (False, True)


@pytest.mark.full
def test_flaky_units_alone_exit_with_0(tmp_path: Path) -> None:
    write_suite(tmp_path, {"test_flaky.py": FLAKY})
    done = run(tmp_path, "run", "--gpus", "none", "--plain", "--retries", "3")
    assert done.code == ExitCode.OK
    assert "retrying         FAILED test_flaky.py, " in done.stdout
    assert "FLAKY            [1/1] test_flaky.py, " in done.stdout
    merged = run(tmp_path, "merge", ".rlharness/runs/latest", "--json")
    assert merged.code == ExitCode.OK
    assert json.loads(merged.stdout)["outcomes"] == {"flaky": 1}
