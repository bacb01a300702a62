"""Runs of one small configuration in processes of different numbers and kinds, as a user types them."""

import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from harness.bits.exit_codes import ExitCode
from tests.support.cli_commands import PATIENCE_S, Done, type_command
from tests.support.suite_runs import HARNESS, environment

SMALL = {
    "warm_start.num_steps": "2",
    "training.num_steps": "3",
    "output.checkpoint_every": "1",
    "output.keep_checkpoints": "4",
}
"""A run of three steps."""
TWO_RANKS = {"deployment.backend": "ray", "deployment.num_ranks": "2"}
SHARDED = {"deployment.backend": "ray", "deployment.num_ranks": "4", "deployment.sharding": "full"}
HYBRID = {**SHARDED, "deployment.sharding": "hybrid", "deployment.num_copies": "2"}
LEFT_S = 60.0
"""How long processes may outlive their run: those of Ray end after their driver."""
HERE = {"deployment.backend": "in_process", "deployment.num_ranks": "1"}


def options(settings: Mapping[str, str]) -> list[str]:
    """Return settings as the options of a command."""
    return [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]


def words(scenario: str, out: str, settings: Mapping[str, str]) -> list[str]:
    """Return the words of a command that trains."""
    return ["train", scenario, "--size", "tiny", "--out", out, *options({**SMALL, **settings})]


def train(
    directory: Path,
    out: str,
    settings: Mapping[str, str],
    scenario: str = "grpo_reverse_text",
    more: tuple[str, ...] = (),
) -> Done:
    """Train to the end."""
    done = type_command(directory, *words(scenario, out, settings), *more)
    assert done.code == ExitCode.OK, done.stdout + done.stderr
    return done


def verdict(directory: Path, one: str, other: str) -> str:
    """Return the first line of what `diff` says of two runs."""
    return type_command(directory, "diff", one, other).stdout.partition("\n")[0]


def processes_of(out: Path) -> dict[int, str]:
    """Return the processes of a run by id, with their command lines: those whose orders are in its directory."""
    found = {}
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdecimal() and f"RLHARNESS_TRACE={out}".encode() in (entry / "environ").read_bytes():
                found[int(entry.name)] = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
        except OSError:  # it has ended
            continue
    return found


def workers_of(out: Path) -> list[int]:
    """Return the worker processes of a run: actors of Ray."""
    return [pid for pid, line in sorted(processes_of(out).items()) if line.startswith(("ray::Actor", "ray::models"))]


def await_true(condition: Callable[[], bool], what: str, within_s: float = PATIENCE_S) -> None:
    """Wait until something holds; AssertionError when it takes too long."""
    deadline_s = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline_s, what
        time.sleep(0.02)


def num_steps_of(out: Path) -> int:
    """Return the number of steps in the metrics of a run."""
    try:
        return sum('"loss"' in line for line in (out / "metrics.jsonl").read_text("utf-8").splitlines())
    except OSError:
        return 0


def train_and_kill(directory: Path, out: str, settings: Mapping[str, str], kill: Callable[[Path], None]) -> Done:
    """Start a run, let `kill` act on its directory, and return how it ended; AssertionError if it leaves a process."""
    command = [*HARNESS, *words("grpo_reverse_text", out, settings)]
    with subprocess.Popen(
        command, cwd=directory, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as run:
        try:
            kill(directory / out)
            stdout, stderr = run.communicate(timeout=PATIENCE_S)
            await_true(lambda: not processes_of(directory / out), "left running", within_s=LEFT_S)
        finally:
            run.kill()
            for pid in processes_of(directory / out):
                os.kill(pid, signal.SIGKILL)
    return Done(run.returncode, stdout, stderr)
