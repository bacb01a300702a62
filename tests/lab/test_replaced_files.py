"""Programs that put something else in the place of the files of their own trace: limits, signals and the kill hold, and
what can be read is judged."""

import json
import resource
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from harness.bits.exit_codes import ExitCode
from harness.process.supervisor import process_tree
from tests.support.cli_commands import PRETENDER, type_command
from tests.support.suite_runs import PATIENCE_S, started, until

pytestmark = pytest.mark.timeout(120)

FILES = (
    *("curve.jsonl", "rank-0.log", "manifest.json", "recording.json", "processes/1.json"),
    *("output.log", "stacks.txt", "leader.pid", "refusal.json", "report.jsonl"),
)
ALL = tuple(word for name in FILES for word in ("--fifo", name))
FOR_EVER = ("--steps", "99999", "--slow", "0.02")


def problems(fields: dict[str, Any]) -> list[str]:
    """Of the first run."""
    return [problem["what"] for problem in fields["runs"][0]["problems"]]


@pytest.mark.full
@pytest.mark.parametrize("replaced", [("--fifo", "curve.jsonl"), ALL])
def test_a_replay_whose_files_are_fifos_is_ended_at_its_limit(tmp_path: Path, replaced: tuple[str, ...]) -> None:
    command = ("replay", "--out", "r", "--timeout", "3", "--json", "--", *PRETENDER, *FOR_EVER, *replaced)
    done = type_command(tmp_path, *command)
    assert done.code == ExitCode.INCOMPLETE_RECORDING, done.stderr
    limit, reason = problems(json.loads(done.stdout))
    assert limit == "it was ended after its limit of 3 s"
    assert reason.endswith("cannot be read: it is a FIFO, not a regular file")


@pytest.mark.full
def test_a_signal_ends_a_replay_whose_files_are_fifos(tmp_path: Path) -> None:
    command = ("replay", "--out", "r", "--json", "--", *PRETENDER, *FOR_EVER, *ALL)
    with started(tmp_path, *command) as process:
        until((tmp_path / "r" / "run-1" / FILES[-1]).exists, process)
        process.send_signal(signal.SIGTERM)
        stdout, _ = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == ExitCode.INTERRUPTED
    assert problems(json.loads(stdout))[0] == "it was ended by SIGTERM"


@pytest.mark.full
def test_of_a_replay_that_is_killed_nothing_outlives_it(tmp_path: Path) -> None:
    directory = tmp_path / "r" / "run-1"
    with started(tmp_path, "replay", "--out", "r", "--", *PRETENDER, *FOR_EVER, *ALL) as process:
        until((directory / FILES[-1]).exists, process)
        (program,) = [each for each in process_tree.all_processes() if runs_in(each, directory)]
        process.kill()
        process.wait()
        for pid in (program.pid, program.parent_pid):
            while (found := process_tree.read_process(pid)) is not None and not found.is_zombie:
                time.sleep(0.01)  # the test's own limit ends a wait that is too long


def runs_in(process: process_tree.Process, directory: Path) -> bool:
    try:
        return str(directory).encode() in Path(f"/proc/{process.pid}/environ").read_bytes()
    except OSError:  # gone meanwhile, or of the kernel
        return False


HARMLESS = ("recording.json", "processes/1.json", "stacks.txt", "leader.pid", "refusal.json", "output.log")


@pytest.mark.full
@pytest.mark.parametrize("name", [*HARMLESS, "manifest.json"])
def test_what_does_not_decide_what_was_recorded_changes_no_verdict(tmp_path: Path, name: str) -> None:
    done = type_command(tmp_path, "replay", "--out", "r", "--", *PRETENDER, "--fifo", name)
    assert done.code == ExitCode.OK, done.stdout + done.stderr
    assert "EQUAL  3 steps, every recorded bit\n" in done.stdout


@pytest.mark.parametrize("name", ["curve.jsonl", pytest.param("rank-0.log", marks=pytest.mark.full)])
def test_without_what_was_recorded_a_replay_is_incomplete_and_says_why(tmp_path: Path, name: str) -> None:
    done = type_command(tmp_path, "replay", "--out", "r", "--", *PRETENDER, "--fifo", name)
    assert done.code == ExitCode.INCOMPLETE_RECORDING, done.stdout + done.stderr
    assert f"{name} cannot be read: it is a FIFO, not a regular file\n" in done.stdout


@pytest.mark.full
def test_a_curve_of_6_gb_costs_no_memory(tmp_path: Path) -> None:
    with started(
        tmp_path, "replay", "--out", "r", "--", *PRETENDER, "--slow", "0.5", "--grow", "curve.jsonl"
    ) as process:
        resource.prlimit(process.pid, resource.RLIMIT_DATA, (1 << 30, 1 << 30))
        stdout, stderr = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == ExitCode.INCOMPLETE_RECORDING, stderr
    assert "curve.jsonl cannot be read: it has more than 1,073,741,824 bytes\n" in stdout


@pytest.mark.full
def test_a_command_that_is_traced_comes_to_its_end_as_well(tmp_path: Path) -> None:
    done = type_command(tmp_path, "trace", "--out", "t", "--", *PRETENDER, *ALL)
    assert done.code == ExitCode.INCOMPLETE_RECORDING, done.stderr
    assert "cannot be read: it is a FIFO, not a regular file" in done.stderr
