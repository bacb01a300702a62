"""`rlharness replay` as it is typed: verdicts, exit codes, failing runs, interruption, what is refused."""

import json
import os
import re
import shlex
import signal
from pathlib import Path
from typing import Any

import pytest

from harness.bits.exit_codes import ExitCode
from harness.process.run_directory import make_kept_directory
from tests.support.cli_commands import PRETENDER, Done, type_command
from tests.support.suite_runs import PATIENCE_S, started, until
from tests.support.terminal import on_terminal, plain


def replay(directory: Path, *words: str, **env: str) -> Done:
    """Two runs of the pretender, unless told otherwise; what stands before -- goes to the replay."""
    options = words[: words.index("--")] if "--" in words else ()
    program = words[words.index("--") + 1 :] if "--" in words else words
    return type_command(directory, "replay", "--out", "r", *options, "--", *PRETENDER, *program, **env)


def told(done: Done) -> dict[str, Any]:
    fields: dict[str, Any] = json.loads(done.stdout)
    assert fields["exit_code"] == done.code
    return fields


@pytest.mark.full
def test_runs_that_agree(tmp_path: Path) -> None:
    done = replay(tmp_path, "--steps", "4")
    assert done.code == ExitCode.OK, done.stderr
    chance = "  a fault in 1 of 50 steps is seen by 2 runs of 4 steps with a chance of 15 %\n"
    assert done.stdout == f"A: run 1  B: run 2\nEQUAL  4 steps, every recorded bit\n{chance}  traces: r\n"
    shown = [line.partition(" in ")[0] for line in done.stderr.splitlines()]
    assert shown == [
        "rlharness: run 1 of 2 begins",
        "rlharness: run 1 of 2: 4 steps",
        "rlharness: run 2 of 2 begins",
        "rlharness: run 2 of 2: 4 steps",
    ]
    assert (tmp_path / "r" / "run-1" / "output.log").read_text("utf-8") == "begins\nstep 0\nstep 1\nstep 2\nstep 3\n"
    assert type_command(tmp_path, "diff", "r/run-1", "r/run-2").code == ExitCode.OK


@pytest.mark.full
def test_runs_that_do_not_agree(tmp_path: Path) -> None:
    done = replay(tmp_path, "--runs", "3", "--metric", "x=step (.)", "--", "--other", "1")
    assert done.code == ExitCode.DIVERGED
    assert done.stdout.count("DIVERGED  step 1: the gradient of layer.weight differs") == 2
    assert "A: run 1  B: run 3\n" in done.stdout
    (closer,) = [line for line in done.stdout.splitlines() if line.startswith("  look closer: ")]
    command = shlex.join(("--metric", "x=step (.)", "--", *PRETENDER, "--other", "1"))
    assert closer == f"  look closer: rlharness replay --step 1 --trace-ops {command}"


@pytest.mark.parametrize("word", ["skip", pytest.param("lost", marks=pytest.mark.full)])
def test_a_program_that_left_with_0_at_once_was_recorded_whole_and_its_lost_workers_were_not(
    tmp_path: Path, word: str
) -> None:
    done = replay(tmp_path, "--ranks", "1" if word == "skip" else "2", "--end", word)
    assert done.code == (ExitCode.OK if word == "skip" else ExitCode.INCOMPLETE_RECORDING), done.stdout
    expected = "rank 0 left by os._exit with 0" if word == "skip" else "rank 1's process ended without closing its log"
    assert expected in done.stdout


@pytest.mark.full
def test_json_has_runs_and_comparisons(tmp_path: Path) -> None:
    done = replay(tmp_path, "--json", "--", "--steps", "0", "--api-key=verysecret")
    assert done.code == ExitCode.INCOMPLETE_RECORDING
    fields = told(done)
    assert [run["num_steps"] for run in fields["runs"]] == [0], "a run that recorded nothing is not repeated"
    assert "--api-key" in done.stdout
    assert "verysecret" not in done.stdout
    fields = told(type_command(tmp_path, "replay", "--json", "--", *PRETENDER, "--other", "1"))
    assert (fields["level"], fields["interrupted_by"]) == ("off", "")
    (comparison,) = fields["comparisons"]
    assert (comparison["a"], comparison["b"], comparison["verdict"]) == ("run 1", "run 2", "diverged")
    assert comparison["first"]["step"] == 1
    assert [(run["name"], run["num_steps"], run["is_whole"]) for run in fields["runs"]] == [
        ("run 1", 3, True),
        ("run 2", 3, True),
    ]


@pytest.mark.full
def test_against_a_trace(tmp_path: Path) -> None:
    assert type_command(tmp_path, "trace", "--out", "golden", "--", *PRETENDER, "--steps", "2").code == ExitCode.OK
    done = replay(tmp_path, "--against", "golden", "--", "--steps", "2")
    assert done.code == ExitCode.OK
    assert done.stdout.startswith(f"A: {tmp_path}/golden  B: run 1\nEQUAL  2 steps")
    assert done.stdout.count("EQUAL") == 1
    done = type_command(tmp_path, "replay", "--against", "golden", "--json", "--", *PRETENDER, "--steps", "3")
    assert done.code == ExitCode.NOT_COMPARABLE
    assert told(done)["comparisons"][0]["reasons"] == ["the configuration or the command differs (identity): --steps"]


@pytest.mark.full
@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--end", "3"], "the program ended with exit code 3"),
        (["--end", "kill"], "the program ended with signal SIGKILL"),
        (["--tear"], "rank-0.log is torn: its last 4 bytes were skipped"),
    ],
)
def test_a_run_that_fails_is_told_with_the_end_of_its_output(tmp_path: Path, words: list[str], said: str) -> None:
    done = replay(tmp_path, *words)
    assert done.code == ExitCode.INCOMPLETE_RECORDING
    assert done.stdout.startswith("A: run 1  B: run 2\nINCOMPLETE  no difference in 3 steps\n"), done.stdout
    assert f"run 1 is incomplete\n  {said}\n" in done.stdout
    assert "  last lines of its output (r/run-1/output.log):\n  | begins\n" in done.stdout
    assert "run 2 is incomplete\n" in done.stdout


@pytest.mark.full
def test_a_run_that_takes_too_long_is_ended(tmp_path: Path) -> None:
    done = replay(tmp_path, "--timeout", "1.5", "--", "--steps", "1000", "--slow", "0.05")
    assert done.code == ExitCode.INCOMPLETE_RECORDING
    assert "it was ended after its limit of 1.5 s\n    remedy: --timeout S allows it more" in done.stdout
    assert "INCOMPLETE  no difference in " in done.stdout


@pytest.mark.full
def test_what_a_run_leaves_behind_is_ended_and_named(tmp_path: Path) -> None:
    leave = f"sleep 1234 & echo $! > pid; exec {shlex.join(PRETENDER)}"
    done = type_command(tmp_path, "replay", "--out", "r", "--json", "--", "sh", "-c", leave)
    assert done.code == ExitCode.OK, done.stdout
    assert "rlharness killed a remaining process" in told(done)["runs"][0]["notes"][0]
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid").read_text("utf-8")), 0)


@pytest.mark.full
def test_a_level_is_given_to_every_process_and_checked(tmp_path: Path) -> None:
    done = replay(tmp_path, "--level", "deterministic", "--json", "--")
    assert done.code == ExitCode.OK
    fields = told(done)
    reports = [report for run in fields["runs"] for report in run["reports"]]
    assert len({report["string_hash"] for report in reports}) == 1
    assert reports[0]["level_env"]["PYTHONHASHSEED"] == "0"
    assert fields["notes"] == []
    refused = type_command(
        tmp_path, "replay", "--level", "deterministic", "--out", "n", "--", *PRETENDER, PYTHONHASHSEED="random"
    )
    assert refused.code == ExitCode.USAGE_ERROR
    assert "PYTHONHASHSEED=random" in refused.stderr
    assert not (tmp_path / "n").exists()


@pytest.mark.full
def test_a_process_without_the_level_is_told(tmp_path: Path) -> None:
    program = ("env", "PYTHONHASHSEED=7", "PYTHONPATH=" + str(Path(__file__).parents[2]), *PRETENDER)
    done = type_command(tmp_path, "replay", "--level", "deterministic", "--out", "r", "--", *program)
    assert done.stdout.count("did not get what the level sets: PYTHONHASHSEED") == 2


@pytest.mark.full
def test_the_default_directory_is_hidden_from_git_and_bounded(tmp_path: Path) -> None:
    ids = [f"20000101-0000{number:02}-aaaaaa" for number in range(25)]
    for own_id in ids:
        make_kept_directory(tmp_path, "replays", own_id)
    assert type_command(tmp_path, "replay", "--", *PRETENDER).code == ExitCode.OK
    assert (tmp_path / ".rlharness" / ".gitignore").read_text("utf-8") == "*\n"
    kept = sorted(path.name for path in (tmp_path / ".rlharness" / "replays").iterdir())
    assert len(kept) == 20
    assert kept[:-1] == ids[6:]


# ------------------------------------------------------------------------------------------------------ interruption


@pytest.mark.full
@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_run_in_order_and_keeps_what_is_recorded(tmp_path: Path, signum: signal.Signals) -> None:
    command = ("replay", "--out", "r", "--json", "--", *PRETENDER, "--steps", "9999", "--slow", "0.02")
    curve = tmp_path / "r" / "run-1" / "curve.jsonl"
    with started(tmp_path, *command) as process:
        until(lambda: curve.exists() and curve.read_text("utf-8").count("\n") > 2, process)
        process.send_signal(signum)
        stdout, _ = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == ExitCode.INTERRUPTED
    fields = json.loads(stdout)
    assert (fields["interrupted_by"], fields["comparisons"]) == (signum.name, [])
    (run,) = fields["runs"]
    assert run["num_steps"] > 2
    assert run["problems"][0]["what"] == f"it was ended by {signum.name}"


@pytest.mark.full
def test_the_terminal_shows_the_run_that_goes_on(tmp_path: Path) -> None:
    command = ("replay", "--out", "r", "--", *PRETENDER, "--steps", "9999", "--slow", "0.02")
    with on_terminal(tmp_path, *command) as (process, terminal):
        until(lambda: re.search(r"run 1 of 2 begins", terminal.shown_so_far()), process)
        terminal.type("\x03")
        code = process.wait(PATIENCE_S)
        shown = plain(terminal.all_shown())
    assert code == ExitCode.INTERRUPTED
    assert "interrupted by SIGINT; all recorded steps are kept" in shown
    assert "run 1 is incomplete\n  it was ended by SIGINT" in shown
    assert not re.search(r"^Traceback", shown, re.MULTILINE), "but for the program's own, among its output"
