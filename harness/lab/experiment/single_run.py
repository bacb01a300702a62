"""One run in this terminal, which may end where a condition holds, for `train` and `trace`.

--break-on, --until ─▶ conditions ─▶ run spec with Breakpoints ─▶ run ─▶ stop.json ─▶ where it has ended

A condition that is met ends the run in the middle of its step. What was recorded of the step is kept.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from harness.bits.errors import UsageError
from harness.bits.exit_codes import ExitCode
from harness.lab.experiment.hints import NextCommand, next_command
from harness.lab.experiment.preparation import notes_on, prepare
from harness.lab.experiment.recording_result import Recording, await_recorders, finish
from harness.process.clock import SystemClock
from harness.process.supervisor.foreground import run_in_foreground
from harness.recording.metrics import Condition, Stop, parse_condition, read_stop, refuse_unknown
from harness.recording.run_spec import INTERRUPTED, RunSpec, read_rejection
from harness.recording.sentinel_report import Finding, read_findings
from harness.trace.explanation import repeats
from harness.trace.reader import read_trace

BREAKPOINTS = "harness.recording.breakpoints:Breakpoints"
STOP = "stop.json"
"""In the directory of a run: where it has ended."""


@dataclass(frozen=True, slots=True)
class TerminalRun:
    """A run that has ended."""

    run_spec: RunSpec
    conditions: tuple[Condition, ...]
    """On which it was to end."""
    recording: Recording
    stop: Stop | None
    """Where the first of them held; None where none did."""
    findings: tuple[tuple[Path, Finding], ...] = ()
    """Bundle and finding of each difference between replicas."""

    @property
    def next_command(self) -> NextCommand | None:
        """What to type next; None where it has come to its own end."""
        return next_command(self.run_spec, self.recording, self.stop)

    @property
    def exit_code(self) -> int:
        """DIVERGED where replicas differed at the end; else that of the condition which held, else the program's own.

        INCOMPLETE_RECORDING where only the rest failed.
        """
        if self.findings:
            return ExitCode.DIVERGED
        if self.stop is not None:
            return ExitCode.OK
        if self.run_spec.call is not None and self.recording.exit_code == INTERRUPTED:
            return ExitCode.INTERRUPTED
        return self.recording.exit_code or (
            ExitCode.OK if self.recording.is_complete else ExitCode.INCOMPLETE_RECORDING
        )


def run_here(
    run_spec: RunSpec,
    directory: Path,
    environ: Mapping[str, str],
    *,
    break_on: Sequence[str],
    until: Sequence[str],
    stdout: int | None = None,
    at_start: Callable[[], None] = lambda: None,
) -> TerminalRun:
    """Carry out one run, recorded in `directory`; `stdout` is a descriptor that replaces this process's own.

    `at_start` is called once the program has started, and does not delay it.

    `break_on` and `until` are conditions as typed, of which the first that holds ends the run. UsageError for one that
    is none, and where it cannot be started, its entry refuses it before its first step, or a condition names what its
    curve has not: nothing is left then. TraceError if it is unknown which condition held: the recording is finished.
    """
    conditions = (
        *(parse_condition(text, "--break-on") for text in break_on),
        *(parse_condition(text, "--until", ()) for text in until),
    )
    if conditions:
        fields = {"conditions": [*map(str, conditions)], "report": str(directory / STOP)}
        run_spec = replace(run_spec, callbacks={BREAKPOINTS: fields})
    out, env = prepare(run_spec, directory, environ)
    started: list[int] = []

    def on_start(pid: int) -> None:
        started.append(pid)
        at_start()

    try:
        status = run_in_foreground(run_spec.argv, env, on_start, stdout=stdout)
    except UsageError:
        out.give_back()
        raise
    if refusal := read_rejection(out.path):
        out.give_back()
        raise refusal.error()
    with suppress(KeyboardInterrupt):  # somebody does not want to wait
        await_recorders(out.path, SystemClock())
    code = status if status >= 0 else 128 - status
    notes = notes_on(environ)
    recording = finish(out.path, run_spec, code, leader_pid=started[0], notes=notes)
    if recording.ranks:
        found = [str(each) for each in repeats(read_trace(out.path))]
        recording = replace(recording, notes=(*recording.notes, *found))
    stop = read_stop(out.path / STOP)
    if stop is not None and stop.unknown:
        out.give_back()
        refuse_unknown([stop.unknown], stop.known)
    return TerminalRun(run_spec, conditions, recording, stop, read_findings(out.path))
