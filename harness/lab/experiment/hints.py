"""What to type after a run that has died, or was ended where a condition held: the command that looks closer at it.

its step is kept               reproduce RUN --step K --trace-ops
killed, a checkpoint is there  train SCENARIO --set output.resume=RUN --out OTHER
killed, there is none          reproduce RUN --step K --interactive, K the one after its last
of a command, in step K        replay --step K --trace-ops -- COMMAND
"""

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from math import inf, isfinite
from pathlib import Path

from harness.bits.levels import OFF
from harness.bits.redaction import redact_argv
from harness.bits.text import path_text
from harness.lab.experiment.recorded_run import checkpoint_steps_in, unfinished_step
from harness.lab.experiment.recording_result import Recording
from harness.recording.metrics import Stop
from harness.recording.run_spec import INTERRUPTED, RunSpec
from harness.trace.reader import read_trace


@dataclass(frozen=True, slots=True)
class NextCommand:
    """A line to be typed."""

    why: str
    """What it does, in a word or two: "look closer"."""
    command: str

    def __str__(self) -> str:
        return f"{self.why}: {self.command}"


def next_command(run_spec: RunSpec, recording: Recording, stop: Stop | None = None) -> NextCommand | None:
    """That of a run which has ended so; None where it came to its own end, or there is nothing to look at."""
    is_interrupted = stop is None and recording.exit_code == INTERRUPTED
    if stop is None and not (recording.exit_code and recording.ranks):
        return None
    if run_spec.call is None:
        reported = (each.unfinished_step for each in recording.reports if each.unfinished_step is not None)
        step = min(reported, default=None) if stop is None else stop.step
        if step is None or is_interrupted:
            return None
        return NextCommand("look closer", program_command(run_spec, step))
    kept = unfinished_step(recording.directory) if stop is None else stop.step
    if kept is not None and not is_interrupted:
        return NextCommand("look closer", step_command(recording.directory, kept))
    run, resume = path_text(recording.directory), run_spec.call.resume
    if resume and checkpoint_steps_in(recording.directory):
        words = (*run_spec.shown_argv, "--set", f"{resume['run']}={run}", "--out", "OTHER")
        return NextCommand("resume from its last checkpoint", shlex.join(words))
    if is_interrupted:
        return None
    behind = max(read_trace(recording.directory).steps, default=-1) + 1
    words = ("rlharness", "reproduce", run, "--step", str(behind), "--interactive")
    return NextCommand("debug the step that it died in", shlex.join(words))


def step_command(directory: Path, step: int) -> str:
    """Into the operations of a step of a recorded run."""
    return shlex.join(["rlharness", "reproduce", path_text(directory), "--step", str(step), "--trace-ops"])


def program_command(run_spec: RunSpec, step: int, timeout_s: float = inf) -> str:
    """Return the command that records the operations of a step, run again under the same conditions.

    A secret of the command is `<redacted>`: the user fills it in.
    """
    words = ["rlharness", "replay", *run_spec.typed, "--step", str(step), "--trace-ops"]
    if run_spec.level != OFF and run_spec.call is None:
        words += ["--level", run_spec.level]
    return command_line(words, run_spec, timeout_s)


def command_line(begin: Sequence[str], run_spec: RunSpec, timeout_s: float) -> str:
    """Return a command that runs a program as its run spec says, after the words with which it begins."""
    words = [*begin, *(word for metric in run_spec.metrics for word in ("--metric", metric))]
    if isfinite(timeout_s):
        words += ["--timeout", f"{timeout_s:g}"]
    if run_spec.call is None:
        words += ["--", *run_spec.argv]
    return shlex.join(redact_argv(words))
