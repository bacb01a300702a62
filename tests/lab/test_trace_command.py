"""`rlharness trace` as it is typed: what is recorded, what is said, exit codes, the terminal."""

import json
import shlex
import sys
from pathlib import Path
from typing import Any

import pytest

from harness.bits.exit_codes import ExitCode
from harness.trace import read_trace
from tests.support.cli_commands import PRETENDER, type_command
from tests.support.suite_runs import PATIENCE_S, until
from tests.support.terminal import on_terminal, plain
from tests.support.verified import verify

INTERRUPTED = """
import signal, sys, time
print(*[file.isatty() for file in (sys.stdin, sys.stdout, sys.stderr)], flush=True)
heard = []
signal.signal(signal.SIGINT, lambda *_: heard.append(time.monotonic()))
open("ready", "w").close()
while not heard or time.monotonic() < heard[0] + 0.5:  # long enough for a second one
    time.sleep(0.01)
print("told", len(heard), flush=True)
raise SystemExit(9)
"""


def result(directory: Path) -> dict[str, Any]:
    told: dict[str, Any] = json.loads((directory / "recording.json").read_text("utf-8"))
    return told


def test_a_program_is_recorded(tmp_path: Path) -> None:
    done = type_command(tmp_path, "trace", "--out", "t", "--", *PRETENDER, "--steps", "5", "--ranks", "2")
    assert done.code == ExitCode.OK, done.stderr
    assert done.stdout.splitlines() == ["begins", *(f"step {step}" for step in range(5))]
    first, then = done.stderr.splitlines()
    assert first.startswith("rlharness: recorded 5 steps of ranks 0-1, ")
    assert first.endswith("kB, in t")
    assert then.endswith("rlharness diff t OTHER")
    trace = read_trace(tmp_path / "t")
    assert (trace.gaps, len(trace.steps)) == ((), 5)
    assert list(verify(trace)) == []
    assert trace.manifest is not None
    assert trace.manifest.fingerprint.identity["--steps"] == "5"
    assert trace.manifest.world_size == 2
    told = result(tmp_path / "t")
    assert (told["is_whole"], told["num_steps"], told["ranks"], told["exit_code"]) == (True, 5, [0, 1], 0)
    assert told["size_bytes"] == sum(
        path.stat().st_size for path in (tmp_path / "t").rglob("*") if path.is_file() and path.name != "recording.json"
    )


@pytest.mark.full
@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["--end", "3"], 3, "the program ended with exit code 3"),
        (["--end", "kill"], 137, "the program ended with signal SIGKILL"),
        (["--tear"], 12, "rank-0.log is torn"),
        (["--tear", "--ranks", "2", "--end", "leave"], 12, "rank-1.log is torn"),
        (["--problem", "disk full"], 12, "disk full"),
        (["--steps", "0"], 12, "no optimizer's step was seen in the one process with torch"),
    ],
)
def test_what_is_not_whole_is_said_and_the_programs_exit_code_comes_first(
    tmp_path: Path, words: list[str], code: int, said: str
) -> None:
    done = type_command(tmp_path, "trace", "--out", "t", "--", *PRETENDER, *words)
    assert done.code == code
    assert said in done.stderr
    assert "rlharness diff" not in done.stderr
    told = result(tmp_path / "t")
    assert (told["is_whole"], told["notes"]) == (False, [])
    if words[0] == "--end":
        assert read_trace(tmp_path / "t").gaps[0] == "its program did not exit normally"


def test_secrets_of_command_lines_are_in_no_file_of_the_launcher(tmp_path: Path) -> None:
    secret = "hf_abcdefghijklmnopqrst"
    done = type_command(tmp_path, "trace", "--out", "t", "--", *PRETENDER, "--hub-token", secret, f"--x={secret}")
    assert done.code == ExitCode.OK
    for name in ("recording.json", "run.json", "manifest.json"):
        text = (tmp_path / "t" / name).read_text("utf-8")
        assert "--hub-token" in text
        assert secret not in text


@pytest.mark.full
def test_logs_of_workers_that_their_cluster_ended_are_closed(tmp_path: Path) -> None:
    done = type_command(tmp_path, "trace", "--out", "t", "--", *PRETENDER, "--ranks", "3", "--end", "leave")
    assert done.code == ExitCode.OK
    assert "note: rank 1 was ended by Ray after 3 steps; its log was closed" in done.stderr
    assert read_trace(tmp_path / "t").gaps == ()


@pytest.mark.parametrize(
    ("words", "rank"),
    [
        (("sh", "-c", f"{shlex.join(PRETENDER)} --end kill; exit 0"), 0),
        pytest.param(("sh", "-c", f"{shlex.join(PRETENDER)} --end skip; exit 0"), 0, marks=pytest.mark.full),
        pytest.param((*PRETENDER, "--ranks", "2", "--end", "lost"), 1, marks=pytest.mark.full),
    ],
)
def test_a_process_whose_end_proves_nothing_leaves_an_incomplete_trace(
    tmp_path: Path, words: tuple[str, ...], rank: int
) -> None:
    done = type_command(tmp_path, "trace", "--out", "t", "--", *words)
    assert done.code == ExitCode.INCOMPLETE_RECORDING, done.stderr
    assert "INCOMPLETE: recorded 3 steps" in done.stderr
    assert f"rank {rank}'s process ended without closing its log after 3 steps: killed, os._exit or exec" in done.stderr
    assert "was not closed" not in done.stderr, "told once"
    assert read_trace(tmp_path / "t").gaps == (f"rank-{rank}.log was not closed",)


@pytest.mark.full
def test_what_was_asked_for_and_is_not_there_is_told(tmp_path: Path) -> None:
    words = ("--trace-ops", "99", "--save-tensors", "1,77", "--metric", "x=reward (.)", "--metric", "loss=(.)")
    done = type_command(tmp_path, "trace", "--out", "t", *words, "--", *PRETENDER)
    assert done.code == ExitCode.OK
    has = "this trace has 3 steps, numbered from 0"
    assert [line.partition("note: ")[2] for line in done.stderr.splitlines() if "note: " in line] == [
        f"no tensors of step 77 were kept: {has}",
        f"no operations of step 99 were recorded: {has}",
        "--metric x=reward (.): nothing for x: no line of rank 0 has matched with a number, or the name is that of a"
        " timing, and timings are left out",
    ], "the pretender reports that it found a loss"


@pytest.mark.full
def test_the_log_of_a_worker_that_gave_up_stays_open(tmp_path: Path) -> None:
    words = ("--ranks", "2", "--end", "leave", "--problem", "disk full")
    done = type_command(tmp_path, "trace", "--out", "t", "--", *PRETENDER, *words)
    assert done.code == ExitCode.INCOMPLETE_RECORDING
    assert read_trace(tmp_path / "t").gaps == ("rank-1.log was not closed",)


@pytest.mark.full
def test_recorders_that_outlive_the_program_are_waited_for(tmp_path: Path) -> None:
    leave = f"{shlex.join(PRETENDER)} --steps 4 --slow 0.2 & until test -e t/rank-0.log; do sleep 0.01; done"
    done = type_command(tmp_path, "trace", "--out", "t", "--", "sh", "-c", leave)
    assert done.code == ExitCode.OK, done.stderr
    assert result(tmp_path / "t")["num_steps"] == 4


def test_nothing_recorded_is_told_with_its_reason_and_a_remedy(tmp_path: Path) -> None:
    done = type_command(tmp_path, "trace", "--out", "t", "--", sys.executable, "-sI", "-c", "import torch")
    assert done.code == ExitCode.INCOMPLETE_RECORDING
    said = "rlharness: NOTHING RECORDED in t\nrlharness:   no Python process with torch was seen\n"
    assert done.stderr.startswith(said)
    assert "leave out python -E, -I and -S, which ignore PYTHONPATH" in done.stderr


def test_a_trace_that_cannot_be_read_is_told_with_the_reason(tmp_path: Path) -> None:
    spoil = f"{shlex.join(PRETENDER)} && printf 'rlhtrace\\377\\0\\0\\0' > t/rank-0.log"
    done = type_command(tmp_path, "trace", "--out", "t", "--", "sh", "-c", spoil)
    assert done.code == ExitCode.INCOMPLETE_RECORDING
    assert "a trace of format 255" in done.stderr
    assert "no Python process" not in done.stderr


def test_a_cluster_that_runs_already_is_told(tmp_path: Path) -> None:
    done = type_command(tmp_path, "trace", "--out", "t", "--", *PRETENDER, RAY_ADDRESS="10.0.0.1:6379")
    assert done.code == ExitCode.OK
    assert "note: RAY_ADDRESS=10.0.0.1:6379: actors of a cluster" in done.stderr


def test_ctrl_c_reaches_the_program_once_and_the_recording_is_finished(tmp_path: Path) -> None:
    command = ("trace", "--out", "t", "--", sys.executable, "-c", INTERRUPTED)
    with on_terminal(tmp_path, *command) as (process, terminal):
        until((tmp_path / "ready").exists, process)
        terminal.type("\x03")
        code = process.wait(PATIENCE_S)
        shown = plain(terminal.all_shown())
    assert code == 9
    lines = [line.removeprefix("^C") for line in shown.splitlines()]
    assert lines[:2] == ["True True True", "told 1"]
    assert "the program ended with exit code 9" in shown
    assert "Traceback" not in shown
    assert result(tmp_path / "t")["exit_code"] == 9
