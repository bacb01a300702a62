"""Recorded runs one after the other, each under a supervisor that ends its process tree for certain.

    prepare ─▶ supervisor ─▶ (steps are counted in the curve as it grows) ─▶ proven end ─▶ finish
    first signal: the run is ended in order;  second: at once

What a run prints goes to output.log in the directory of its trace.
"""

import asyncio
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import Protocol

from harness.core.clock import Clock
from harness.core.regular_file import UNLIMITED, GrowingFile, read_regular
from harness.lab.experiments.recording_result import Problem, Recording, finish
from harness.lab.experiments.run_spec import Envelope, notes_on, prepare
from harness.process.interruption import Interruption
from harness.process.supervisors import AttemptEnd, AttemptSpec, Supervisors
from harness.trace.layout import CURVE

GRACE_S = 10.0
LOOK_S = 0.25
"""How often the curve is looked at."""
OUTPUT = "output.log"
MAX_PID_BYTES = 64
LEADER = "leader.pid"
"""Holds the pid of the program, as its processes see it."""


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
        """As a person reads it."""
        return run_name(self.number, has_operations=self.has_operations)

    @property
    def output(self) -> Path:
        """What it printed."""
        return self.recording.directory / OUTPUT


def run_name(number: int, *, has_operations: bool) -> str:
    """run 1, run 1 with operations."""
    return f"run {number} with operations" if has_operations else f"run {number}"


def run_of_all(number: int, num_runs: int, *, has_operations: bool) -> str:
    """run 1 of 2; run 1 of 2, with operations."""
    return f"run {number} of {num_runs}" + (", with operations" if has_operations else "")


class Display(Protocol):
    """Shows runs while they are going on."""

    def begin(self, number: int, *, has_operations: bool) -> None:
        """A run starts."""

    def progress(self, num_steps: int, elapsed_s: float) -> None:
        """It goes on."""

    def end(self, line: str) -> None:
        """It has ended; `line` says how."""

    def close(self) -> None:
        """No more runs."""


class TitledDisplay(Display, Protocol):
    """Shows runs of which each has a title of its own."""

    title: str
    """Title of the run that begins next."""

    def ended(self, run: Run) -> None:
        """Show how the run has ended."""


@dataclass(frozen=True, slots=True)
class Place:
    """From where runs are started."""

    program: str
    """The path of the program that is started."""
    cwd: Path
    environ: Mapping[str, str]
    run_id: str
    timeout_s: float = inf
    """Limit on each run."""
    stdin: Path = Path(os.devnull)
    """What each reads as its standard input."""


class SupervisedRuns:
    """Starts runs, one at a time. `interruption` asks for their end."""

    def __init__(
        self, supervisors: Supervisors, place: Place, display: Display, clock: Clock, interruption: Interruption
    ) -> None:
        self._supervisors = supervisors
        self._place = place
        self._display = display
        self._clock = clock
        self._interruption = interruption
        self._num_signals = 0
        self._marker = ""
        interruption.on_cancel = self._end_early

    async def record(self, envelope: Envelope, parent: Path, number: int) -> Run:
        """Carry out one run; its recording lies in a directory of its own in `parent`."""
        place = self._place
        has_operations = envelope.op_step is not None
        directory = parent / f"run-{number}{'-op' if has_operations else ''}"
        self._marker = f"{place.run_id}-{directory.name}"
        prepared = prepare(envelope, directory, place.environ, self._marker)
        spec = AttemptSpec(
            argv=(place.program, *envelope.argv[1:]),
            cwd=str(place.cwd),
            env=dict(prepared.env),
            directory=str(prepared.directory),
            marker=self._marker,
            timeout_s=place.timeout_s,
            startup_timeout_s=inf,
            grace_s=GRACE_S,
            stdin=str(place.stdin),
            pid_file=str(prepared.directory / LEADER),
        )
        self._display.begin(number, has_operations=has_operations)
        end = await self._watch(asyncio.create_task(self._supervisors.run(spec)), prepared.directory / CURVE)
        recording = finish(
            prepared.directory,
            envelope,
            exit_code(end),
            leader_pid=read_pid(prepared.directory / LEADER),
            problems=problems_of_end(end, place.timeout_s, self._interruption.by),
            notes=[
                *notes_on(place.environ),
                *(f"killed, since it was left behind: {process}" for process in end.left_behind),
            ],
        )
        return Run(number, has_operations, recording, end.duration_s)

    async def _watch(self, task: "asyncio.Task[AttemptEnd]", curve: Path) -> AttemptEnd:
        """Wait for the end of an attempt, and show its progress."""
        began_s = self._clock.monotonic_s()
        steps = CountedLines(curve)
        try:
            while not task.done():
                await asyncio.wait({task}, timeout=LOOK_S)
                self._display.progress(steps.count(), self._clock.monotonic_s() - began_s)
        finally:
            steps.close()
            if not task.done():  # our own bug, or a display that failed: the tree is ended first
                task.cancel()
                await asyncio.wait({task})
        return task.result()

    def _end_early(self, signal_name: str) -> None:
        self._num_signals += 1
        if self._num_signals == 1:
            self._supervisors.cancel(self._marker)
        else:
            self._supervisors.kill(self._marker)


class CountedLines:
    """How many lines a file has that others append to; only what is new is read."""

    def __init__(self, path: Path) -> None:
        self._file = GrowingFile(path, max_bytes=UNLIMITED)
        self._num_lines = 0

    def count(self) -> int:
        """Whole lines so far, as far as they can be read; 0 where there is no file yet."""
        with suppress(OSError):  # the program can do anything to it: what it recorded is looked at after its end
            self._num_lines += self._file.read().count(b"\n")
        return self._num_lines

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def read_pid(path: Path) -> int | None:
    """The pid that a file holds; None where there is none."""
    try:
        return int(read_regular(path, max_bytes=MAX_PID_BYTES))
    except (OSError, ValueError):  # the disk was full, or nothing was started
        return None


def exit_code(end: AttemptEnd) -> int:
    """As a shell has it; 1 where nobody knows."""
    if end.signal is not None:
        return 128 + end.signal
    return 1 if end.exit_code is None else end.exit_code


def problems_of_end(end: AttemptEnd, timeout_s: float, interrupted_by: str) -> list[Problem]:
    """What somebody else than the program has done to its end."""
    found = []
    if end.reason == "timeout":
        found.append(Problem(f"it was ended after its limit of {timeout_s:g} s", "--timeout S allows it more"))
    elif end.reason in ("cancelled", "killed"):
        found.append(Problem(f"it was ended by {interrupted_by or 'somebody'}"))
    elif end.reason:
        found.append(Problem("the process that watched over it died: it was ended"))
    if end.unkillable:
        found.append(Problem(f"SIGKILL does not end {', '.join(end.unkillable)}", "see what dmesg says"))
    return found
