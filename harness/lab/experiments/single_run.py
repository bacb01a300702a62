"""One run that may end where a condition holds: under a supervisor, or in this terminal, for `train` and `trace`.

--break-on, --until ─▶ conditions ─▶ run spec with Breakpoints ─▶ run ─▶ stop.json ─▶ where it has ended ─▶ bundle

A condition that is met ends the run in the middle of its step. What was recorded of the step is kept, and is what the
bundle holds, with the checkpoint before it.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from harness.bits.errors import BundleError, UsageError
from harness.bits.exit_codes import ExitCode
from harness.bits.text import one_line
from harness.lab.experiments.bundle import write_bundle_of
from harness.lab.experiments.hints import NextCommand, next_command
from harness.lab.experiments.launcher import LaunchContext, Run, TitledDisplay, open_launcher, refuse
from harness.lab.experiments.preparation import OutDirectory, abandon, notes_on, prepare
from harness.lab.experiments.recorded_run import read_recorded_run
from harness.lab.experiments.recording_result import Recording, await_recorders, finish
from harness.process.clock import SystemClock
from harness.process.supervisor.foreground import run_in_foreground
from harness.recording.conditions import (
    DIVERGENCE,
    INF,
    NAN,
    WORDS,
    Condition,
    Stop,
    parse_condition,
    read_stop,
    refuse_unknown,
)
from harness.recording.entry_call import INTERRUPTED, read_rejection
from harness.recording.run_spec import RunSpec
from harness.recording.sentinel.sentinel_report import Finding, read_findings
from harness.trace.reader import read_trace
from harness.trace.repeats import repeats

BREAKPOINTS = "harness.recording.breakpoints:Breakpoints"
STOP = "stop.json"
"""In the directory of a command: where its run has ended."""


ELSEWHERE = f"rlharness replay SCENARIO --against RUN --break-on {DIVERGENCE}"
"""What looks for a divergence, where a command cannot."""


def conditions_of(break_on: Sequence[str], until: Sequence[str], words: Sequence[str] = WORDS) -> tuple[Condition, ...]:
    """What --break-on and --until say; UsageError for what is no condition, or no comparison.

    `words` are the conditions that make sense to a command, beside comparisons.
    """
    found = [parse_condition(text, "--break-on", words) for text in break_on]
    for text in until:
        condition = parse_condition(text, "--until", ())
        if condition.word:
            remedy = f"--break-on {condition.word}" if condition.word in words else ELSEWHERE
            raise UsageError(f"--until {condition.word}", legal="a comparison: 'reward<0.2'", remedy=remedy)
        found.append(condition)
    return tuple(found)


def conditions_of_one_run(break_on: Sequence[str], until: Sequence[str]) -> tuple[Condition, ...]:
    """The same of a command that knows of no other run; UsageError for the condition of a divergence too."""
    conditions = conditions_of(break_on, until, (NAN, INF))
    refuse_divergence(conditions, legal=f"{NAN}, {INF}, or a comparison: 'reward<0.2'", remedy=ELSEWHERE)
    return conditions


def refuse_divergence(conditions: Iterable[Condition], *, legal: str, remedy: str) -> None:
    """UsageError for the condition of a divergence, where there is no trace that could be diverged from."""
    if any(condition.word == DIVERGENCE for condition in conditions):
        raise UsageError(
            f"--break-on {DIVERGENCE}: this run has no recorded run to differ from", legal=legal, remedy=remedy
        )


def with_conditions(
    run_spec: RunSpec, conditions: Sequence[Condition], report: Path, against: Path | None = None
) -> RunSpec:
    """The same run spec, whose run ends where the first of these holds, and says in `report`, a file, where that was.

    `against` is the directory of the trace that the condition of a divergence means.
    """
    told = {"conditions": [*map(str, conditions)], "report": str(report), "against": str(against or "")}
    return replace(run_spec, callbacks={**run_spec.callbacks, BREAKPOINTS: told}) if conditions else run_spec


def read_report(report: Path) -> Stop | None:
    """Where a run has ended; None where no condition held. UsageError where one names what no curve calls so."""
    stop = read_stop(report)
    if stop is not None and stop.unknown:
        refuse_unknown([stop.unknown], stop.known)
    return stop


def exit_code_of(stop: Stop) -> ExitCode:
    """DIVERGED where the run has; any other condition that held is an answer."""
    return ExitCode.DIVERGED if stop.condition == DIVERGENCE else ExitCode.OK


@dataclass(frozen=True, slots=True)
class StopPlan:
    """A run that ends where a condition holds."""

    run_spec: RunSpec
    conditions: tuple[Condition, ...]
    against: Path | None = None
    """The trace that the condition of a divergence means."""


@dataclass(frozen=True, slots=True)
class Stopped:
    """A run that has ended, at a condition or at its own end."""

    plan: StopPlan
    run: Run
    stop: Stop | None
    """None where no condition held."""
    directory: Path
    bundle: Path | None = None
    notes: tuple[str, ...] = ()
    interrupted_by: str = ""

    @property
    def is_compared(self) -> bool:
        """Whether a condition compared the run with a trace; the only one that does is that of a divergence."""
        return any(condition.word == DIVERGENCE for condition in self.plan.conditions)

    @property
    def next_command(self) -> NextCommand | None:
        """The next command; None if the run has come to its own end, or was interrupted."""
        return None if self.interrupted_by else next_command(self.plan.run_spec, self.run.recording, self.stop)

    @property
    def exit_code(self) -> ExitCode:
        """DIVERGED where it has; OK where another condition held, or none until the run had ended in order."""
        if self.interrupted_by:
            return ExitCode.INTERRUPTED
        if self.stop is not None:
            return exit_code_of(self.stop)
        return ExitCode.OK if self.run.recording.is_complete else ExitCode.INCOMPLETE_RECORDING


async def record_until(plan: StopPlan, out: OutDirectory, place: LaunchContext, display: TitledDisplay) -> Stopped:
    """Carry out the run of a plan, in a directory below `out`.

    Raises UsageError where its entry refuses it, or where a condition names a value that its curve does not have.
    """
    report = out.path / STOP
    display.title = f"a run until {' or '.join(map(str, plan.conditions))}"
    with open_launcher(place, display) as session:
        run = await session.record(with_conditions(plan.run_spec, plan.conditions, report, plan.against), out.path)
        refuse(run, out)
        try:
            stop = read_report(report)
        except UsageError:
            out.give_back()
            raise
        display.ended(run)
        return Stopped(plan, run, stop, out.path, interrupted_by=session.interrupted_by)


def with_bundle(stopped: Stopped, path: Path | None = None, *, refers_to_checkpoint: bool = False) -> Stopped:
    """Write the bundle of the step in which a run has ended, and return the run with it; as it is where none held.

    Without a `path` it goes beside the run, and a note says why it could not be written. BundleError with one.
    """
    if stopped.stop is None or stopped.interrupted_by:
        return stopped
    if stopped.plan.run_spec.call is None:
        note = "a bundle holds a step of a scenario: a command has no checkpoints to begin from"
        return replace(stopped, notes=(note,))
    step = stopped.stop.step
    target = path or stopped.directory / f"step-{step}.rlb"
    run = read_recorded_run(stopped.run.recording.directory)
    try:
        write_bundle_of(run, step, target, refers_to_checkpoint=refers_to_checkpoint)
    except BundleError as error:
        if path is not None:
            raise
        return replace(stopped, notes=(f"there is no bundle: {one_line(error.what)}",))
    return replace(stopped, bundle=target)


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
        if any(not finding.is_repaired for _, finding in self.findings):
            return ExitCode.DIVERGED
        if self.stop is not None:
            return exit_code_of(self.stop)
        if self.run_spec.call is not None and self.recording.exit_code == INTERRUPTED:
            return ExitCode.INTERRUPTED
        return self.recording.exit_code or (
            ExitCode.OK if self.recording.is_complete else ExitCode.INCOMPLETE_RECORDING
        )


def run_here(
    run_spec: RunSpec,
    directory: Path,
    environ: Mapping[str, str],
    conditions: Sequence[Condition] = (),
    *,
    stdout: int | None = None,
    at_start: Callable[[], None] = lambda: None,
) -> TerminalRun:
    """Carry out one run, recorded in `directory`; `stdout` is a descriptor that replaces this process's own.

    `at_start` is called once the program has started, and does not delay it.

    UsageError where it cannot be started, its entry refuses it before its first step, or a condition names what its
    curve has not: nothing is left then. TraceError if it is unknown which condition held: the recording is finished.
    """
    run_spec = with_conditions(run_spec, conditions, directory / STOP)
    prepared = prepare(run_spec, directory, environ)
    started: list[int] = []

    def on_start(pid: int) -> None:
        started.append(pid)
        at_start()

    try:
        status = run_in_foreground(run_spec.argv, prepared.env, on_start, stdout=stdout)
    except UsageError:
        abandon(prepared)
        raise
    if refusal := read_rejection(prepared.directory):
        abandon(prepared)
        raise refusal.error()
    with suppress(KeyboardInterrupt):  # somebody does not want to wait
        await_recorders(prepared.directory, SystemClock())
    code = status if status >= 0 else 128 - status
    notes = notes_on(environ)
    recording = finish(prepared.directory, run_spec, code, leader_pid=started[0], notes=notes)
    if recording.ranks:
        found = [str(each) for each in repeats(read_trace(prepared.directory))]
        recording = replace(recording, notes=(*recording.notes, *found))
    try:
        stop = read_report(prepared.directory / STOP)
    except UsageError:
        prepared.out.give_back()
        raise
    return TerminalRun(run_spec, tuple(conditions), recording, stop, read_findings(prepared.directory))
