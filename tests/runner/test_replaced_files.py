"""Tests that put something else in the place of the files that a run keeps of them: limits, signals and the kill hold,
and no outcome is lost."""

import resource
import signal
import time
from pathlib import Path

import pytest

from harness.bits.exit_codes import ExitCode
from harness.process.supervisor import process_tree
from tests.support.suite_runs import QUICK, Done, bearing, ended, run, started, until, write_suite

pytestmark = pytest.mark.timeout(120)

PLACES = """
import os, sys, time
import pytest
from pathlib import Path
@pytest.fixture(autouse=True)
def places():
    global report, log, stacks
    report = Path(next(word.partition("=")[2] for word in sys.argv if word.startswith("--rlharness-report=")))
    log, stacks = report.with_name("output.log"), report.with_name("stacks.txt")
def replace(path, make):
    path.unlink(missing_ok=True)
    make(path)
def hang():
    Path("asleep").touch()
    time.sleep(600)
"""
BECOMES_FIFO = PLACES + "def test_hangs():\n    time.sleep(1.0)\n    replace(report, os.mkfifo)\n    hang()\n"
FIFO_WITH_WRITER = PLACES + (
    "def test_hangs():\n    replace(report, os.mkfifo)\n    kept = os.open(report, os.O_RDWR)\n    hang()\n"
)
ALL_FIFOS = PLACES + (
    "def test_hangs():\n    [replace(path, os.mkfifo) for path in (report, log, stacks)]\n    hang()\n"
)
RUN = ("run", "--gpus", "none", "--cpu-units", "1")
LIMITS = ("--timeout", "6", "--grace", "1")
SPARSE_BYTES = 6 << 30


def counts(done: Done, path: str) -> dict[str, int]:
    return {outcome: number for outcome, number in done.results[path]["tests"]["counts"].items() if number}


@pytest.mark.full
@pytest.mark.parametrize("hanging", [BECOMES_FIFO, FIFO_WITH_WRITER, ALL_FIFOS])
def test_a_file_that_hangs_behind_a_fifo_is_timed_out_and_the_next_one_runs(tmp_path: Path, hanging: str) -> None:
    done = run(write_suite(tmp_path, {"test_a.py": hanging, "test_b.py": QUICK}), *RUN, *LIMITS)
    done.assert_sound()
    assert done.code == ExitCode.TESTS_FAILED
    assert done.outcomes == {"test_a.py": "timed_out", "test_b.py": "passed"}
    assert counts(done, "test_a.py") == {"unfinished": 1}, "what it wrote before is known"
    report = Path(done.results["test_a.py"]["directory"], "report.jsonl")
    assert f"test_a.py replaced its report {report} by a FIFO: " in done.stdout


@pytest.mark.full
def test_a_signal_ends_a_run_whose_report_is_a_fifo(tmp_path: Path) -> None:
    write_suite(tmp_path, {"test_a.py": QUICK, "test_b.py": BECOMES_FIFO})
    with started(tmp_path, *RUN, "--grace", "1") as process:
        until((tmp_path / "asleep").exists, process)
        process.send_signal(signal.SIGTERM)
        done = ended(process, tmp_path)
    done.assert_sound()
    assert done.code == ExitCode.INTERRUPTED
    assert done.outcomes["test_b.py"] == "interrupted"
    assert bearing(done) == []


@pytest.mark.parametrize("hanging", [BECOMES_FIFO])
def test_of_a_runner_that_is_killed_nothing_outlives_it(tmp_path: Path, hanging: str) -> None:
    write_suite(tmp_path, {"test_a.py": hanging})
    with started(tmp_path, *RUN) as process:
        until((tmp_path / "asleep").exists, process)
        begun = Done(tmp_path, 0, "", "")
        (leader,) = process_tree.bearing(f"{begun.record.resolve().name}-0000")
        all_of_it = [leader.pid, leader.parent_pid, *(other.pid for other in bearing(begun))]
        assert len(all_of_it) > 3, "the session from which they are forked too"
        process.kill()
        process.wait()
        for pid in all_of_it:
            gone_in_time(pid)
    assert bearing(begun) == []


def gone_in_time(pid: int) -> None:
    """Wait until a process has ended; the test's own limit ends a wait that is too long."""
    while (process := process_tree.read_process(pid)) is not None and not process.is_zombie:
        time.sleep(0.01)


# ------------------------------------------------------------------------------------------------------ without an end


HUGE = PLACES + (
    "def test_grows():\n"
    f"    with open(report, 'r+b') as file: file.truncate({SPARSE_BYTES})\n"
    "    time.sleep(1.0)\n"
    "    assert not fails\n"
)


@pytest.mark.full
@pytest.mark.parametrize(("fails", "outcome"), [(True, "failed"), (False, "crashed")])
def test_a_report_of_6_gb_costs_no_memory_and_no_outcome(tmp_path: Path, fails: bool, outcome: str) -> None:
    """The exit code decides; a good one proves nothing without pytest's last word, which lies behind the 6 GB."""
    write_suite(tmp_path, {"test_a.py": f"{HUGE}fails = {fails}\n", "test_b.py": QUICK})
    arguments = (*RUN, *LIMITS, "--timeout", "60", "--junit", "report.xml")
    with started(tmp_path, *arguments) as process:
        resource.prlimit(process.pid, resource.RLIMIT_DATA, (1 << 30, 1 << 30))
        done = ended(process, tmp_path)
    done.assert_sound()
    assert done.code == ExitCode.TESTS_FAILED
    assert done.outcomes == {"test_a.py": outcome, "test_b.py": "passed"}
    assert f"of which the first {1 << 28:,} were read" in done.results["test_a.py"]["reason"]


ENDLESS = PLACES + (
    "def test_endless():\n"
    "    [replace(path, lambda path: path.symlink_to('/dev/zero')) for path in (report, log, stacks)]\n"
    "    assert not fails\n"
)


@pytest.mark.full
@pytest.mark.parametrize(
    ("fails", "outcome"), [pytest.param(True, "failed", marks=pytest.mark.full), (False, "passed")]
)
def test_of_a_link_to_an_endless_device_nothing_is_read(tmp_path: Path, fails: bool, outcome: str) -> None:
    write_suite(tmp_path, {"test_a.py": f"{ENDLESS}fails = {fails}\n", "test_b.py": QUICK})
    done = run(tmp_path, *RUN, "--junit", "report.xml")
    done.assert_sound()
    assert done.outcomes == {"test_a.py": outcome, "test_b.py": "passed"}
    assert counts(done, "test_a.py") == {outcome: 1}
    assert (
        "by a symbolic link: the outcomes come from what pytest wrote to the original; rlharness restored the report"
        in done.stdout
    )
    assert 'name="test_endless"' in (tmp_path / "report.xml").read_text(), "JUnit has it too"


@pytest.mark.full
def test_a_line_that_never_ends_is_no_record_and_delays_no_limit(tmp_path: Path) -> None:
    endless = PLACES + (
        "def test_writes():\n"
        "    with open(report, 'ab') as file:\n"
        "        for _ in range(100): file.write(bytes(1 << 20))\n"
        "    hang()\n"
    )
    done = run(write_suite(tmp_path, {"test_a.py": endless, "test_b.py": QUICK}), *RUN, *LIMITS)
    done.assert_sound()
    assert done.outcomes == {"test_a.py": "timed_out", "test_b.py": "passed"}
    assert counts(done, "test_a.py") == {"unfinished": 1}


# ------------------------------------------------------------------------------------------------- what is shown of it


LINKED = PLACES + (
    "def link(path): path.symlink_to(Path('elsewhere.txt').resolve())\n"
    "def test_links():\n    replace(log, link)\n    replace(stacks, link)\n    hang()\n"
)


@pytest.mark.full
def test_links_in_the_place_of_its_files_are_neither_shown_nor_written_to(tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere.txt"
    elsewhere.write_text("the secret of somebody else")
    done = run(write_suite(tmp_path, {"test_a.py": LINKED}), *RUN, *LIMITS)
    done.assert_sound()
    assert done.outcomes == {"test_a.py": "timed_out"}
    assert "the secret" not in done.stdout + done.stderr
    for name in ("output.log", "stacks.txt"):
        assert f"{name} is not shown: it is a symbolic link, not a regular file)" in done.stdout
    assert elsewhere.read_text() == "the secret of somebody else"


@pytest.mark.full
@pytest.mark.parametrize(("first", "outcome"), [("assert 0", "failed"), ("pass", "passed")])
def test_a_report_that_a_test_has_emptied_is_said_to_lack_its_beginning(
    tmp_path: Path, first: str, outcome: str
) -> None:
    empties = PLACES + f"def test_first(): {first}\ndef test_empties(): os.truncate(report, 0)\n"
    done = run(write_suite(tmp_path, {"test_a.py": empties, "test_b.py": QUICK}), *RUN)
    done.assert_sound()
    assert done.outcomes == {"test_a.py": outcome, "test_b.py": "passed"}
    assert "report.jsonl has lost its beginning: a test emptied or truncated it" in done.stdout


OF_THE_RUN = PLACES + (
    "def test_replaces():\n"
    "    for name in ('out.xml', os.environ['GITHUB_STEP_SUMMARY']): replace(Path(name), os.mkfifo)\n"
)


@pytest.mark.full
def test_a_test_that_replaces_the_files_of_the_run_by_fifos_delays_nothing(tmp_path: Path) -> None:
    """They are written when the tests have ended, and no limit of a test holds there."""
    write_suite(tmp_path, {"test_a.py": OF_THE_RUN, "test_b.py": QUICK})
    github = {"GITHUB_ACTIONS": "true", "GITHUB_STEP_SUMMARY": str(tmp_path / "summary.md")}
    done = run(tmp_path, *RUN, "--junit", "out.xml", env=github)
    assert done.code == ExitCode.OK, done.stdout
    assert 'name="test_replaces"' in (tmp_path / "out.xml").read_text()
    assert "summary.md: it is a FIFO, not a regular file" in done.stderr


OF_THE_NEXT = PLACES + (
    "def test_replaces():\n"
    "    make(report.parent.with_name('0001'))\n"
    "    make(Path(os.environ['TMPDIR']).with_name('0001'))\n"
)


@pytest.mark.parametrize(
    ("made", "said"),
    [
        pytest.param("Path.mkdir", "a directory", marks=pytest.mark.full),
        ("os.mkfifo", "a FIFO"),
        pytest.param("lambda path: path.symlink_to(Path().resolve())", "a symbolic link", marks=pytest.mark.full),
    ],
)
def test_a_test_that_takes_the_directories_of_the_next_file_costs_it_nothing(
    tmp_path: Path, made: str, said: str
) -> None:
    files = {"test_a.py": f"{OF_THE_NEXT}make = {made}\n", "test_b.py": QUICK}
    done = run(write_suite(tmp_path, files), *RUN)
    done.assert_sound()
    assert done.outcomes == {"test_a.py": "passed", "test_b.py": "passed"}
    taken = [note for note in done.events[-1]["notes"] if "that an earlier test must have made" in note]
    assert len(taken) == 2
    assert all(f"0001 was {said} that" in note for note in taken)
