"""Commands on machines that have run out of disk, inodes, descriptors, processes or memory: a clear error, and outcomes
kept. The whole matrix is tests/benchmarks/exhausted_machines.py."""

import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from harness import __main__
from harness.bits.errors import ExhaustedError, HarnessError
from harness.process import supervisor_client
from tests.support.exhausted_commands import COMMANDS, exhaustions, faults, prepare
from tests.support.exhausted_machine import Trial, run_exhausted, why_unable
from tests.support.suite_runs import QUICK, ROOT, environment, read_events, run, write_suite

pytestmark = pytest.mark.timeout(300)
LIMIT_S = 100.0
COMMAND = {command.name: command for command in COMMANDS}
MACHINE = {machine.name: machine for machine in exhaustions()}


@pytest.fixture(scope="module")
def base() -> Iterator[Path]:
    """A suite that has been run, and two traces."""
    if why := why_unable():
        pytest.skip(why)
    directory = Path(tempfile.mkdtemp(prefix="x", dir="/tmp"))  # short: sockets lie below it
    try:
        prepare(directory, with_torch=False)
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)


CASES = (
    ("run", "no inodes: tmp", 1, "inodes left; the attempts use /tmp instead"),
    ("run", "descriptors: 10", 4, "there is no file descriptor left, the limit is 10 (open files): "),
    ("run", "processes: 3", 4, "there is no process or thread left, the limit is "),
    ("run", "disk: 16 KiB", 1, "No space left on device"),
    ("merge", "disk full: work", 4, "JUnit XML cannot be written to m.xml: No space left on device"),
    ("trace", "disk full: work", 4, "run.json cannot be written: No space left on device"),
)


@pytest.mark.full
@pytest.mark.parametrize(("command", "machine", "code", "said"), CASES)
def test_a_command_ends_with_a_reason_and_the_next_one_runs(
    base: Path, command: str, machine: str, code: int, said: str
) -> None:
    number = CASES.index((command, machine, code, said))
    again = COMMAND[command].line("again") if machine == "disk: 16 KiB" else []
    try:
        trial = run_exhausted(
            base, MACHINE[machine], COMMAND[command].line("new"), number=number, limit_s=LIMIT_S, again=again
        )
    except LookupError as error:
        pytest.skip(str(error))
    assert faults(COMMAND[command], MACHINE[machine], trial) == []
    assert trial.code == code, trial.stderr
    assert said in trial.stdout + trial.stderr


@pytest.mark.parametrize("error", [MemoryError(), OSError(24, "Too many open files"), SystemError("NULL")])
def test_a_command_line_that_cannot_be_loaded_says_so(
    error: Exception, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(argv: object = None) -> int:
        raise error

    monkeypatch.setattr("harness.cli.main.main", fail)
    assert __main__.load_and_run() == 4
    said = capsys.readouterr().err
    assert said.startswith(f"error: rlharness cannot continue: {type(error).__name__}: {error}\n  legal:  ")
    assert "  remedy: " in said


FAILING = """
import errno, os, sys
from harness.cli.main import main
from harness.runner import run

async def fail(*arguments):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

run.collect_and_plan = fail
sys.exit(main(["run", "--gpus", "none"]))
"""


@pytest.mark.full
def test_a_run_that_runs_out_ends_its_record_with_its_exit_code(tmp_path: Path) -> None:
    write_suite(tmp_path, {"test_a.py": QUICK})
    line = [sys.executable, "-c", FAILING]
    done = subprocess.run(line, cwd=tmp_path, env=environment(), capture_output=True, text=True, check=False)
    assert done.returncode == 4, done.stderr
    assert "No space left on device" in done.stderr
    last = read_events(tmp_path / ".rlharness" / "runs" / "latest" / "events.jsonl")[-1]
    assert (last["event"], last["exit_code"]) == ("run_finished", 4)
    assert "No space left on device" in last["error"]


ONE_FORK_FAILS = """
import os
real, calls = os.fork, []

def fork():
    calls.append(1)
    if len(calls) == 2:
        raise BlockingIOError(11, "Resource temporarily unavailable")
    return real()

os.fork = fork
"""


@pytest.mark.full
def test_a_test_that_gets_no_process_fails_and_the_others_run(tmp_path: Path) -> None:
    tests = "".join(f"def test_{number}(): pass\n" for number in range(3))
    write_suite(tmp_path, {"conftest.py": ONE_FORK_FAILS, "test_a.py": tests})
    done = run(tmp_path, "run", "--gpus", "none", "--isolate", "test", "--json")
    counts = json.loads(done.stdout)["units"][0]["tests"]
    assert {name: count for name, count in counts.items() if count} == {"passed": 2, "error": 1}, done.stderr
    assert "the test could not be given a process: there is no process or thread left" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("said", "kind"),
    [("BlockingIOError: [Errno 11] Resource temporarily unavailable", ExhaustedError), ("ValueError: x", HarnessError)],
)
def test_a_probe_that_cannot_fork_is_no_machine_without_containment(
    said: str, kind: type[HarnessError], monkeypatch: pytest.MonkeyPatch
) -> None:
    fails = [sys.executable, "-c", f"raise SystemExit({said!r})"]
    monkeypatch.setattr(supervisor_client, "_python", lambda *arguments: fails)
    with pytest.raises(HarnessError, match="emporarily unavailable" if kind is ExhaustedError else said) as caught:
        supervisor_client.probe_backends()
    assert type(caught.value) is kind


@pytest.mark.full
def test_no_bytecode_is_written_where_it_may_be_cut_short(base: Path) -> None:
    """By any process of a run: a file that is cut short would keep every later command from starting."""
    copy = base / "copied"
    ignored = shutil.ignore_patterns("__pycache__")
    for package in ("harness", "tests"):
        shutil.copytree(ROOT / package, copy / package, ignore=ignored)
    line = ["env", f"PYTHONPATH={copy}", "PYTHONDONTWRITEBYTECODE=", *COMMAND["run"].line("new")]
    trial = run_exhausted(base, MACHINE["file size: 10000"], line, number=100, limit_s=LIMIT_S)
    assert faults(COMMAND["run"], MACHINE["file size: 10000"], trial) == []
    written = {path.relative_to(copy) for path in copy.rglob("*.pyc")}
    assert {path.name.partition(".")[0] for path in written} <= {"__init__", "__main__"}


def test_the_rules_find_what_they_are_for() -> None:
    whole, merge = MACHINE["disk full: work"], COMMAND["run"]
    good = Trial(1, "", "No space left", 1.0, {}, (), (), (1, ""))
    assert faults(merge, whole, good) == []
    for bad in (
        Trial(3, "", "OSError: No space left\nthis is a bug in rlharness", 1.0, {}, (), (), None),
        Trial(1, "", "Traceback (most recent call last):\nMemoryError", 1.0, {}, (), (), None),
        Trial(-99, "", "No space left", 1.0, {}, (), (), None),
        Trial(134, "", "No space left", 1.0, {}, (), (), None),
        Trial(0, "", "", 1.0, {}, (), (), None),
        Trial(4, "", "error: No space left", 1.0, {}, (), (), None),
        Trial(1, "  collected  \ntest_a.py test_b.py", "", 1.0, {}, (), (), None),
        Trial(1, "", "", 1.0, {}, ("work/golden.json",), (), None),
        Trial(1, "", "", 1.0, {"work/r.html": 100}, (), (), None),
        Trial(1, "", "", 1.0, {"work/.rlharness-0123.new": 100}, (), (), None),
        Trial(1, "", "", 1.0, {"tmp/rlh-x": 100}, (), (), None),
        Trial(1, "", "", 1.0, {}, (), ("sleep",), None),
        Trial(1, "", "", 1.0, {}, (), (), (4, "claimed")),
    ):
        assert len(faults(merge, whole, bad)) == 1, bad
