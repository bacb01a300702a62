"""Commands as units: which run, the outcome from the exit code, and whole runs with leases and reports."""

import json
import shutil
import signal
import xml.etree.ElementTree as ET
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.core.command import Command, CommandRule
from harness.core.errors import UsageError
from harness.core.need import Need
from harness.core.report_file import read_report
from harness.core.test_outcomes import TestCounts, TestOutcome
from harness.process.supervisor import process_tree
from harness.process.supervisor_client import ProcessEnd
from harness.runner.collection.command_units import (
    classify_command,
    command_units,
    is_skip,
    select_commands,
    write_end,
    write_start,
)
from harness.runner.records.run_record import read_run_record
from harness.runner.units import Outcome
from tests.support.suite_runs import QUICK, run, write_suite

pytestmark = pytest.mark.usefixtures("own_cache")
RULES = [CommandRule(name, Command("true", "/"), Need()) for name in ("smoke", "torch a", "torch b")]
SIGNALS = {int(each) for each in signal.Signals}
COMMANDS = """
[tool.rlharness.commands]
leased = { command = 'test "$CUDA_VISIBLE_DEVICES" = SIM-0,SIM-1 && test "$WORD" = a', gpus = 2, env = { WORD = "a" } }
placed = { command = 'test "$(basename $PWD)" = sub', cwd = "sub" }
fails = { command = "echo out; exit 3" }
skips = { command = "exit 77", skip-code = 77 }
crashes = { command = "kill -SEGV $$" }
"""


@given(code=st.integers(0, 255), skip_code=st.none() | st.integers(1, 125))
def test_an_exit_code_has_exactly_one_meaning(code: int, skip_code: int | None) -> None:
    (one,) = command_units([CommandRule("x", Command("true", "/", (), skip_code), Need())])
    end = ProcessEnd(code, None, "", (), (), 1.0)
    outcome, reason = classify_command(one, end, 5.0)
    assert (outcome is Outcome.PASSED) is (code in (0, skip_code))
    assert is_skip(one, end) is (code == skip_code)
    assert (outcome is Outcome.CRASHED) is (code - 128 in SIGNALS)
    assert outcome in (Outcome.PASSED, Outcome.FAILED, Outcome.CRASHED)
    assert bool(reason) is (outcome is not Outcome.PASSED)


@pytest.mark.parametrize(
    ("end", "outcome"),
    [
        (ProcessEnd(None, 11, "", (), (), 1.0), Outcome.CRASHED),
        (ProcessEnd(0, None, "timeout", (), (), 1.0), Outcome.TIMED_OUT),
        (ProcessEnd(0, None, "cancelled", (), (), 1.0), Outcome.INTERRUPTED),
        (ProcessEnd(0, None, "", (), ("7 D sleep",), 1.0), Outcome.UNKILLABLE),
    ],
)
def test_a_command_that_did_not_end_by_itself_never_passes(end: ProcessEnd, outcome: Outcome) -> None:
    (one,) = command_units([CommandRule("x", Command("true", "/", (), 77), Need())])
    assert classify_command(one, end, 5.0)[0] is outcome
    skipping = replace(end, exit_code=77)
    assert classify_command(one, skipping, 5.0)[0] is outcome
    assert not is_skip(one, skipping)


@pytest.mark.parametrize(
    ("patterns", "has_paths", "names"),
    [
        ([], False, ["smoke", "torch a", "torch b"]),
        ([], True, []),
        (["smoke"], True, ["smoke"]),
        (["torch*"], False, ["torch a", "torch b"]),
        (["torch b", "t*"], False, ["torch a", "torch b"]),
    ],
)
def test_commands_run_without_paths_or_by_name(patterns: list[str], has_paths: bool, names: list[str]) -> None:
    assert [rule.name for rule in select_commands(RULES, patterns, has_paths=has_paths)] == names


def test_a_pattern_that_matches_no_command_is_refused_with_the_known_names() -> None:
    with pytest.raises(UsageError) as caught:
        select_commands(RULES, ["smoke", "nope"], has_paths=False)
    assert "torch a" in str(caught.value)


def write(directory: Path, configuration: str) -> None:
    write_suite(directory, {"test_quick.py": QUICK})
    (directory / "sub").mkdir()
    (directory / "pyproject.toml").write_text(f"[tool.rlharness]\n{configuration}", "utf-8")


@pytest.mark.full
def test_commands_run_beside_files_with_their_gpus_and_one_outcome_each(tmp_path: Path) -> None:
    write(tmp_path, COMMANDS)
    done = run(tmp_path, "run", "--gpus", "sim:2", "--junit", "junit.xml")
    done.assert_sound()
    assert done.outcomes == {
        "test_quick.py": "passed",
        "command:leased": "passed",
        "command:placed": "passed",
        "command:fails": "failed",
        "command:skips": "passed",
        "command:crashes": "crashed",
    }
    assert done.code == 1
    assert done.results["command:leased"]["gpu_ids"] == ["SIM-0", "SIM-1"]
    assert done.results["command:skips"]["tests"]["counts"] == {"skipped": 1}
    assert Path(done.results["command:fails"]["directory"], "output.log").read_text() == "out\n"
    suites = {suite.get("name"): suite for suite in ET.parse(tmp_path / "junit.xml").getroot()}
    assert {suite.get("tests") for suite in suites.values()} == {"1"}
    assert suites["command:fails"].find("testcase/failure") is not None
    assert suites["command:skips"].find("testcase/skipped") is not None
    assert suites["command:crashes"].find("testcase/error") is not None


@pytest.mark.full
def test_a_named_command_runs_without_pytest_and_again_until_it_passes(tmp_path: Path) -> None:
    write(tmp_path, '[tool.rlharness.commands]\nonce = { command = "test -e seen || { touch seen; exit 1; }" }\n')
    (tmp_path / "conftest.py").write_text("raise SystemExit('pytest was started')", "utf-8")
    done = run(tmp_path, "run", "--gpus", "none", "--command", "once", "--retries", "1")
    done.assert_sound()
    assert (done.code, done.outcomes) == (0, {"command:once": "flaky"})


MIXED = """
[tool.rlharness.commands]
fine = { command = "echo ran fine >> log" }
"with blank" = { command = "echo ran blank >> log; exit 77", skip-code = 77, gpus = 1 }
fails = { command = "echo ran fails >> log; test -e mended" }
"""
UNITS = {"test_a.py", "test_b.py", "command:fine", "command:with blank", "command:fails"}


@pytest.fixture
def mixed(tmp_path: Path) -> Path:
    """A suite of two files and three commands, of which one fails."""
    write_suite(tmp_path, {"test_a.py": QUICK, "test_b.py": QUICK})
    (tmp_path / "pyproject.toml").write_text(MIXED, "utf-8")
    return tmp_path


@pytest.mark.full
def test_shards_and_their_merge_have_every_command_once(mixed: Path) -> None:
    merged = mixed / "merged"
    ran = []
    for number in (1, 2):
        done = run(mixed, "run", "--gpus", "sim:1", "--shard", f"{number}/2")
        done.assert_sound()
        ran.append(set(done.outcomes))
        shutil.copytree(done.record.resolve(), merged / str(number))
    assert ran[0] | ran[1] == UNITS and not ran[0] & ran[1]
    assert all(1 < len(each) < 4 for each in ran), "the shards are balanced"
    done = run(mixed, "merge", "merged/1", "merged/2", "--json", "--junit", "merged.xml")
    summary = json.loads(done.stdout)
    assert (done.code, summary["missing_shards"]) == (1, [])
    assert {unit["path"]: unit["outcome"] for unit in summary["units"]} == {
        **dict.fromkeys(UNITS, "passed"),
        "command:fails": "failed",
    }
    suites = {suite.get("name"): suite for suite in ET.parse(mixed / "merged.xml").getroot()}
    assert set(suites) == UNITS
    assert suites["command:with blank"].find("testcase/skipped") is not None
    assert suites["command:fails"].find("testcase/failure") is not None
    assert sorted((mixed / "log").read_text().splitlines()) == ["ran blank", "ran fails", "ran fine"]
    twice = run(mixed, "merge", "merged/1", "merged/1")
    assert twice.code == 4, "a command that ran twice is refused as a file is"


@pytest.mark.full
def test_the_history_and_the_page_show_commands_as_files(mixed: Path) -> None:
    for _ in range(2):
        done = run(mixed, "run", "--gpus", "sim:1", "--html", "page.html")
    known = {each["name"]: each for each in json.loads(run(mixed, "history", "--json").stdout)["trends"]}
    assert set(known) == UNITS
    outcomes = {name: [each["outcome"] for each in trend["results"]] for name, trend in known.items()}
    assert outcomes["command:fails"] == ["failed", "failed"]
    assert outcomes["command:with blank"] == ["passed", "passed"]
    named = run(mixed, "history", "command:fails")
    assert (named.code, "command:fails" in named.stdout) == (0, True)
    page = (mixed / "page.html").read_text("utf-8")
    assert all(name in page for name in UNITS)
    planned = json.loads(run(mixed, "plan", "--gpus", "sim:1", "--json").stdout)
    assert planned["estimated"] == [], "the durations of all units are known"
    record = read_run_record(done.record / "events.jsonl")
    assert {path: [test.nodeid for test in span.tests] for path, span in record.files.items() if ":" in path} == {
        name: [name] for name in UNITS if ":" in name
    }


@pytest.mark.full
def test_a_resumed_run_and_the_last_failed_run_the_failed_command_alone(mixed: Path) -> None:
    assert run(mixed, "run", "--gpus", "sim:1").code == 1
    (mixed / "log").write_text("")
    failed = run(mixed, "run", "--gpus", "sim:1", "--last-failed")
    assert failed.outcomes == {"command:fails": "failed"}
    (mixed / "mended").touch()
    (first,) = [each for each in (mixed / ".rlharness" / "runs").glob("2*") if "test_a.py" in recorded_units(each)]
    done = run(mixed, "run", "--gpus", "sim:1", "--resume", first.name)
    done.assert_sound()
    assert (done.code, done.outcomes) == (0, dict.fromkeys(UNITS, "passed"))
    assert [path for path, result in done.results.items() if not result["resumed_from"]] == ["command:fails"]
    assert (mixed / "log").read_text() == "ran fails\n" * 2


def recorded_units(run_directory: Path) -> str:
    return (run_directory / "events.jsonl").read_text("utf-8")


@pytest.mark.full
def test_commands_share_a_gpu_by_their_budgets(tmp_path: Path) -> None:
    """Each waits for the other, so that they pass only side by side."""
    waits = "touch seen-{0}; for n in $(seq 600); do test -e seen-{1} && exit 0; sleep 0.05; done; exit 1"
    entry = '{0} = {{ command = "{1}", gpus = 1, memory-gb = 40, shared = true }}\n'
    (tmp_path / "pyproject.toml").write_text(
        "[tool.rlharness.commands]\n"
        + entry.format("a", waits.format("a", "b"))
        + entry.format("b", waits.format("b", "a")),
        "utf-8",
    )
    done = run(tmp_path, "run", "--gpus", "sim:1:80", "--command", "*")
    assert done.outcomes == {"command:a": "passed", "command:b": "passed"}
    assert {tuple(result["gpu_ids"]) for result in done.results.values()} == {("SIM-0",)}


@pytest.mark.full
def test_a_command_has_its_own_limit_and_its_tree_is_ended(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text(
        "[tool.rlharness.commands]\n"
        'hangs = { command = "sleep 3916 & echo $! > pid; wait", timeout = 0.5 }\n'
        'leaves = { command = "sleep 3915 & echo $! > left" }\n',
        "utf-8",
    )
    done = run(tmp_path, "run", "--gpus", "none", "--command", "*", "--grace", "1")
    done.assert_sound()
    assert done.outcomes == {"command:hangs": "timed_out", "command:leaves": "passed"}
    assert "0.5 s" in done.results["command:hangs"]["reason"]
    assert done.results["command:hangs"]["tests"]["counts"] == {"unfinished": 1}
    assert ["3915" in each for each in done.results["command:leaves"]["left_behind"]] == [True]
    for name in ("pid", "left"):
        assert process_tree.read_process(int((tmp_path / name).read_text())) is None


def test_the_report_of_a_command_has_one_test_with_its_outcome(tmp_path: Path) -> None:
    (one,) = command_units([CommandRule("x", Command("true", "/", (), 77), Need(gpus=1))])
    ends = {0: TestOutcome.PASSED, 77: TestOutcome.SKIPPED, 3: TestOutcome.FAILED, 139: TestOutcome.UNFINISHED}
    for code, outcome in ends.items():
        report = tmp_path / f"{code}.jsonl"
        write_start(report, one)
        assert read_report(report).counts() == TestCounts({TestOutcome.UNFINISHED: 1})
        write_end(report, one, ProcessEnd(code, None, "", (), (), 1.5), 5.0)
        found = read_report(report)
        assert found.counts() == TestCounts({outcome: 1})
        assert found.nodeids == ("command:x",)
        assert found.collected_need == Need(gpus=1)
        exits = {TestOutcome.UNFINISHED: None, TestOutcome.FAILED: 1}
        assert found.finished_exit == exits.get(outcome, 0)
    timed_out = tmp_path / "timed_out.jsonl"
    write_start(timed_out, one)
    write_end(timed_out, one, ProcessEnd(0, None, "timeout", (), (), 9.0), 5.0)
    assert read_report(timed_out).counts() == TestCounts({TestOutcome.UNFINISHED: 1})
