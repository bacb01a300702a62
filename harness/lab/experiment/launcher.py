"""The launcher: recorded runs of one command, from its first to its last. Every experiment starts its runs here.

    with open_launcher(context, display) as launcher:
        run = await launcher.record(run_spec, directory, 1)

    prepare ─▶ supervisor ─▶ (steps are counted in the curve as it grows) ─▶ proven end ─▶ finish

A first signal ends the current run in order, a second at once; what was recorded is kept, and no run begins after
it unless it is asked for. What a run prints goes to output.log in the directory of its trace.
"""

import asyncio
import shutil
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, replace
from math import inf
from pathlib import Path
from typing import Protocol, TypeVar

from harness.bits.errors import UsageError
from harness.bits.files import UNLIMITED, read_regular
from harness.lab.experiment.preparation import OutDirectory, notes_on, prepare
from harness.lab.experiment.recording_result import Problem, Recording, finish
from harness.process.child_env import ATTEMPT_MARKER
from harness.process.clock import Clock, SystemClock
from harness.process.growing_file import GrowingFile
from harness.process.interruption import Interruption
from harness.process.scratch import remove_tree
from harness.process.supervisor_client import ProcessEnd, ProcessSpec, Supervisors, find_py_spy, probe_backends
from harness.recording.run_spec import RunSpec, read_rejection
from harness.trace.format import CURVE

OUTPUT = "output.log"


@dataclass(frozen=True, slots=True)
class Run:
    """One recorded run that has ended."""

    number: int
    """From 1 on."""
    has_operations: bool
    """Whether it was run once more than the others, for the operations of a step."""
    recording: Recording
    duration_s: float

    @property
    def name(self) -> str:
        """As a person reads it: run 1, run 1 with operations."""
        return f"run {self.number}{' with operations' * self.has_operations}"

    @property
    def output(self) -> Path:
        """What it printed."""
        return self.recording.directory / OUTPUT


class Display(Protocol):
    """Shows active runs."""

    title: str
    """Title of the run that begins next."""

    def begin(self) -> None:
        """A run starts."""

    def progress(self, num_steps: int, elapsed_s: float) -> None:
        """Show the progress of the run."""

    def ended(self, run: Run) -> None:
        """Show how the run has ended."""

    def end(self, line: str) -> None:
        """It has ended; `line` says how."""


GRACE_S = 10.0
LOOK_S = 0.25
"""How often the curve is looked at."""
MAX_PID_BYTES = 64
LEADER = "leader.pid"
"""Holds the pid of the program, as its processes see it."""


@dataclass(frozen=True, slots=True)
class LaunchContext:
    """What every run of an experiment is started with."""

    cwd: Path
    environ: Mapping[str, str]
    run_id: str
    timeout_s: float = inf
    """Limit on each run."""


def find_program(word: str, cwd: Path, environ: Mapping[str, str]) -> str | None:
    """The path of a program as a shell in `cwd` finds it; None where there is none."""
    return shutil.which(str(cwd / word) if "/" in word else word, path=environ.get("PATH"))


def check_program(run_spec: RunSpec, cwd: Path, environ: Mapping[str, str]) -> None:
    """UsageError where there is no program to run, or the level excludes what the user has set."""
    run_spec.variables(environ)
    if find_program(run_spec.argv[0], cwd, environ) is None:
        what = f"{run_spec.argv[0]} cannot be started: program not found"
        raise UsageError(what, legal="a program on PATH, or the path of a program", remedy="check the spelling")


@dataclass
class Launcher:
    """Starts recorded runs, one at a time: each under a supervisor that ends its process tree for certain."""

    supervisors: Supervisors
    context: LaunchContext
    display: Display
    clock: Clock
    interruption: Interruption
    hearer: Callable[[str], None] | None = None
    """Hears the names of signals, which then end no run."""

    @property
    def interrupted_by(self) -> str:
        """The name of the signal that has asked for the end; empty for none."""
        return self.interruption.by

    def hear(self, hearer: Callable[[str], None]) -> None:
        """From now on, call `hearer` with the names of signals, which then end no run."""
        self.hearer = self.interruption.on_cancel = hearer

    async def record(
        self,
        run_spec: RunSpec,
        parent: Path,
        number: int = 1,
        *,
        environ: Mapping[str, str] | None = None,
        cwd: Path | None = None,
    ) -> Run:
        """Carry out one run, in a directory of its own below `parent`; `environ` and `cwd` replace the context's."""
        context = replace(self.context, environ=environ or self.context.environ, cwd=cwd or self.context.cwd)
        has_operations = run_spec.op_step is not None
        directory = parent / f"run-{number}{'-op' if has_operations else ''}"
        marker = f"{context.run_id}-{directory.name}"
        ends = iter([self.supervisors.cancel])  # a first signal ends the run in order, a second at once
        self.interruption.on_cancel = self.hearer or (lambda signal: next(ends, self.supervisors.kill)(marker))
        out, env = prepare(run_spec, directory, context.environ, marker)
        word, cwds = run_spec.argv[0], (context.cwd, self.context.cwd)  # a program of the worktree comes first
        program = next(filter(None, (find_program(word, cwd, context.environ) for cwd in cwds)), word)
        spec = ProcessSpec(
            argv=(program, *run_spec.argv[1:]),
            cwd=str(context.cwd),
            env=env,
            directory=str(out.path),
            marker=marker,
            timeout_s=context.timeout_s,
            startup_timeout_s=inf,
            grace_s=GRACE_S,
            pid_file=str(out.path / LEADER),
        )
        self.display.begin()
        end = await self._watch(asyncio.create_task(self.supervisors.run(spec)), out.path / CURVE)
        recording = finish(
            out.path,
            run_spec,
            exit_code(end),
            leader_pid=read_pid(out.path / LEADER),
            problems=problems_of_end(end, context.timeout_s, self.interruption.by),
            notes=[
                *notes_on(context.environ),
                *(f"rlharness killed a remaining process: {process}" for process in end.left_behind),
            ],
        )
        return Run(number, has_operations, recording, end.duration_s)

    async def carry_out(
        self,
        argv: tuple[str, ...],
        directory: Path,
        *,
        environ: Mapping[str, str] | None = None,
        cwd: Path | None = None,
    ) -> ProcessEnd:
        """Run a program that records nothing to its end, or to that which a signal asks for.

        What it prints goes to output.log in a directory of its own. `environ` and `cwd` replace the context's.
        """
        directory.mkdir(parents=True)
        marker = f"{self.context.run_id}-{directory.name}"
        spec = ProcessSpec(
            argv=argv,
            cwd=str(cwd or self.context.cwd),
            env={**(environ or self.context.environ), ATTEMPT_MARKER: marker},
            directory=str(directory.absolute()),
            marker=marker,
            timeout_s=inf,
            startup_timeout_s=inf,
            grace_s=0.0,
        )
        self.interruption.on_cancel = lambda signal_name: self.supervisors.kill(marker)
        return await self.supervisors.run(spec)

    async def _watch(self, task: "asyncio.Task[ProcessEnd]", curve: Path) -> ProcessEnd:
        """Wait for the end of an attempt, and show its progress."""
        began_s, num_steps = self.clock.monotonic_s(), 0
        steps = GrowingFile(curve, max_bytes=UNLIMITED)
        try:
            while not task.done():
                await asyncio.wait({task}, timeout=LOOK_S)
                with suppress(OSError):  # the program can do anything to it: what it recorded is read after its end
                    num_steps += steps.read().count(b"\n")
                self.display.progress(num_steps, self.clock.monotonic_s() - began_s)
        finally:
            steps.close()
            if not task.done():  # our own bug, or a display that failed: the tree is ended first
                task.cancel()
                await asyncio.wait({task})
        return task.result()


@contextmanager
def open_launcher(context: LaunchContext, display: Display) -> Iterator[Launcher]:
    """Hear signals and hold what ends processes, until no more runs are wanted; inside a running event loop."""
    with (
        Interruption() as interruption,
        closing(Supervisors(probe_backends().chosen, context.run_id, find_py_spy())) as supervisors,
    ):
        yield Launcher(supervisors, context, display, SystemClock(), interruption)


def refuse(run: Run, out: OutDirectory) -> None:
    """UsageError where its entry has refused a run before its first step; of the run nothing is left.

    Nor in `out`, which holds the runs of a command, unless there was one before it.
    """
    refusal = read_rejection(run.recording.directory)
    if refusal is None:
        return
    remove_tree(str(run.recording.directory))
    if not any(out.path.glob("run-*")):
        out.give_back()
    raise refusal.error()


def read_pid(path: Path) -> int | None:
    """The pid that a file holds; None where there is none."""
    try:
        return int(read_regular(path, max_bytes=MAX_PID_BYTES))
    except (OSError, ValueError):  # the disk was full, or nothing was started
        return None


def exit_code(end: ProcessEnd) -> int:
    """Return the exit code as a shell does; 1 if it is unknown."""
    if end.signal is not None:
        return 128 + end.signal
    return 1 if end.exit_code is None else end.exit_code


def problems_of_end(end: ProcessEnd, timeout_s: float, interrupted_by: str) -> list[Problem]:
    """Return the causes of a program's end outside of the program."""
    found = []
    if end.reason == "timeout":
        found.append(Problem(f"it was ended after its limit of {timeout_s:g} s", "--timeout S allows it more"))
    elif end.reason in ("cancelled", "killed"):
        found.append(Problem(f"it was ended by {interrupted_by or 'another process'}"))
    elif end.reason:
        found.append(Problem("its supervisor died, so rlharness ended it"))
    if end.unkillable:
        found.append(Problem(f"SIGKILL does not end {', '.join(end.unkillable)}", "check the output of dmesg"))
    return found


T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Variant:
    """One run that an experiment wants."""

    run_spec: RunSpec
    number: int
    """Number of the run, which names its directory."""
    title: str
    """What the run is, for a person."""


def run_experiment(
    context: LaunchContext, display: Display, experiment: Callable[[Launcher], Awaitable[T]]
) -> tuple[T, str]:
    """Return what an experiment finds with a launcher of its own, and the signal that ended it early, else empty."""

    async def carried_out() -> tuple[T, str]:
        with open_launcher(context, display) as launcher:
            return await experiment(launcher), launcher.interrupted_by

    return asyncio.run(carried_out())


async def record_variants(
    launcher: Launcher,
    variants: Iterable[Variant],
    out: OutDirectory,
    is_useless: Callable[[Run], bool] = lambda run: not run.recording.ranks,
) -> list[Run]:
    """Record one variant after another below `out`, until one is useless or a signal asks for the end.

    Raises UsageError where the entry of one refuses to begin; of that run nothing is left.
    """
    runs: list[Run] = []
    for variant in variants:
        launcher.display.title = variant.title
        run = await launcher.record(variant.run_spec, out.path, variant.number)
        refuse(run, out)
        launcher.display.ended(run)
        runs.append(run)
        if launcher.interrupted_by or is_useless(run):
            break
    return runs
