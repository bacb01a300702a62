"""The rest of a unit whose process was cut short runs in another one: its tests, its outcome, its reports."""

import json
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.runner import events
from harness.runner.need import Need
from harness.runner.units import Outcome
from tests.runner.scripted_run import ScriptedRun
from tests.support.scripted_attempts import Script
from tests.support.suite_runs import run, write_suite

pytestmark = pytest.mark.usefixtures("own_cache")
NUM_TESTS = 6
IDS = [f"test_0.py::test_{number}" for number in range(NUM_TESTS)]
CRASHES = """
import os, signal, time, pytest
def test_before(): pass
def test_crashes(): os.kill(os.getpid(), signal.SIGSEGV)
def test_between(): pass
@pytest.mark.timeout(1)
def test_hangs(): time.sleep(60)
def test_fails(): assert 0
def test_after(): pass
"""


def cut_short(ids: list[str], crashing: set[str]) -> Script:
    """A process that runs these tests up to the first that crashes, and is followed by one that runs the rest."""
    lines: list[dict[str, Any]] = [
        {"k": "hello", "version": 1, "pid": 1},
        {"k": "collected", "need": Need().to_json(), "nodeids": ids},
    ]
    for place, nodeid in enumerate(ids):
        lines.append({"k": "start", "id": nodeid, "timeout_s": None})
        if nodeid in crashing:
            rest = ids[place + 1 :]
            then = cut_short(rest, crashing) if rest else None
            return Script(report=(*lines, {"k": "nothing"}), exit_code=9, then=then)
        lines.append({"k": "end", "id": nodeid, "outcome": "passed", "duration_s": 0.5})
    return Script(report=(*lines, {"k": "finish", "exit": 0}))


@given(crashing=st.sets(st.sampled_from(IDS)))
def test_each_test_runs_once_whatever_crashes(tmp_path_factory: pytest.TempPathFactory, crashing: set[str]) -> None:
    done = ScriptedRun(tmp_path_factory.mktemp("run"), (1,), {0: cut_short(IDS, crashing)}).run()
    done.state.check_sum()
    (result,) = done.results.values()
    assert result.outcome is (Outcome.CRASHED if crashing else Outcome.PASSED)
    counts = {str(outcome): number for outcome, number in result.tests.counts.items()}
    assert counts.get("unfinished", 0) == len(crashing)
    assert counts.get("passed", 0) == NUM_TESTS - len(crashing)
    num_rests = len(crashing) - (IDS[-1] in crashing)
    assert [each.is_rest for each in result.attempts] == [True] * num_rests
    assert len(done.of(events.AttemptStarted)) == len(done.of(events.LeaseReturned)) == num_rests + 1
    assert not done.table.leases


def test_a_process_that_crashes_before_its_first_test_is_not_repeated(tmp_path: Path) -> None:
    silent = cut_short(IDS, {IDS[0]})
    before = Script(report=(*silent.report[:2], {"k": "nothing"}), exit_code=9, then=silent)
    done = ScriptedRun(tmp_path, (1,), {0: before}).run()
    assert done.outcomes == [Outcome.CRASHED]
    assert len(done.of(events.AttemptStarted)) == 1


@pytest.mark.parametrize(
    "isolate", ["file", *(pytest.param(each, marks=pytest.mark.full) for each in ("test", "interpreter"))]
)
def test_what_ends_the_rest_is_the_reason_of_its_tests(tmp_path: Path, isolate: str) -> None:
    text = "import os, time\ndef test_a(): pass\ndef test_kill(): os.kill(os.getpid(), 9)\n"
    suite = write_suite(tmp_path / "s", {"test_a.py": f"{text}def test_sleep(): time.sleep(60)\ndef test_z(): pass\n"})
    limits = ("--timeout", "1.5" if isolate == "file" else "4", "--grace", "0.5")
    done = run(suite, "run", "--gpus", "none", "--isolate", isolate, *limits, "--junit", "j.xml")
    why = f"the file ran longer than {limits[1]} s while test_a.py::test_sleep ran"
    assert done.results["test_a.py"]["reason"].endswith(why)
    cases = list(ET.parse(suite / "j.xml").iter("testcase"))
    assert [case.get("name") for case in cases] == ["test_a", "test_kill", "test_sleep", "test_z"]
    assert (cases[2][0].get("message"), cases[3][0].get("message")) == (
        f"it was running when the process ended: {why}",
        f"the process ended before it began: {why}",
    )


@pytest.mark.full
@pytest.mark.parametrize("isolate", ["file", pytest.param("interpreter", marks=pytest.mark.full)])
def test_tests_after_a_crash_and_after_a_timeout_run(tmp_path: Path, isolate: str) -> None:
    suite = write_suite(tmp_path / "suite", {"test_a.py": CRASHES})
    junit = tmp_path / "junit.xml"
    options = ("--gpus", "none", "--isolate", isolate, "--grace", "1", "--junit", str(junit), "--json")
    done = run(suite, "run", *options)
    assert (done.code, done.outcomes) == (1, {"test_a.py": "crashed"})
    (unit,) = json.loads(done.stdout)["units"]
    assert unit["tests"] == {"passed": 3, "failed": 1, "unfinished": 2}
    assert [(each["outcome"], each["is_rest"]) for each in unit["attempts"]] == [("timed_out", True), ("failed", True)]
    cases = {case.get("name"): case for case in ET.parse(junit).iter("testcase")}
    kinds = {name: [child.tag for child in case if child.tag != "system-out"] for name, case in cases.items()}
    assert kinds == {
        "test_before": [],
        "test_crashes": ["error"],
        "test_between": [],
        "test_hangs": ["error"],
        "test_fails": ["failure"],
        "test_after": [],
    }
    messages = {name: case[0].get("message") or "" for name, case in cases.items() if len(case)}
    assert "SIGSEGV" in messages["test_crashes"]
    assert "ran longer than its own limit of 1 s" in messages["test_hangs"]
    again = run(suite, "run", "--gpus", "none", "--last-failed", "--json")
    (unit,) = json.loads(again.stdout)["units"]
    assert unit["tests"] == {"failed": 1, "unfinished": 2}


@pytest.mark.full
def test_x_ends_a_file_at_its_first_crash(tmp_path: Path) -> None:
    suite = write_suite(tmp_path / "suite", {"test_a.py": CRASHES})
    done = run(suite, "run", "--gpus", "none", "--json", "--", "-x")
    (unit,) = json.loads(done.stdout)["units"]
    assert unit["tests"] == {"passed": 1, "unfinished": 1, "unstarted": 4}
