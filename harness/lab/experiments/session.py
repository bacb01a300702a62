"""Recorded runs of one command, from its first to its last: every command of this room that starts runs does it here.

    with open_session(invocation, ...) as session:
        run = await session.record(envelope, directory, 1)

A first signal ends the run that goes on in order, a second at once; what was recorded is kept, and no run begins after
it unless it is asked for.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, closing, contextmanager
from dataclasses import replace
from math import inf
from pathlib import Path
from typing import Protocol

from harness.core.clock import SystemClock
from harness.lab.experiments.entry_call import read_refusal
from harness.lab.experiments.out_directory import OutDirectory
from harness.lab.experiments.run_spec import Envelope
from harness.lab.experiments.supervised_runs import Display, Place, Run, SupervisedRuns
from harness.process.child_env import ATTEMPT_MARKER
from harness.process.interruption import Interruption
from harness.process.scratch import remove_tree
from harness.process.supervisors import AttemptEnd, AttemptSpec, Supervisors, find_py_spy, probe_tiers


class Executor(Protocol):
    """Starts recorded runs, one at a time, as a session does."""

    @property
    def interrupted_by(self) -> str:
        """The name of the signal that has asked for the end; empty for none."""

    async def record(
        self, envelope: Envelope, parent: Path, number: int = 1, *, environ: Mapping[str, str], cwd: Path
    ) -> Run:
        """Carry out one run, in a directory of its own below `parent`, from this place."""


class Session:
    """Starts recorded runs, one at a time."""

    def __init__(self, supervisors: Supervisors, place: Place, display: Display, interruption: Interruption) -> None:
        self._supervisors = supervisors
        self._place = place
        self._display = display
        self._interruption = interruption
        self._hearer: Callable[[str], None] | None = None

    @property
    def interrupted_by(self) -> str:
        """The name of the signal that has asked for the end; empty for none."""
        return self._interruption.by

    def hear(self, hearer: Callable[[str], None]) -> None:
        """From now on `hearer` is told of signals, by their names, and no run is ended by them."""
        self._hearer = self._interruption.on_cancel = hearer

    async def record(
        self,
        envelope: Envelope,
        parent: Path,
        number: int = 1,
        *,
        environ: Mapping[str, str] | None = None,
        cwd: Path | None = None,
    ) -> Run:
        """Carry out one run, in a directory of its own below `parent`; elsewhere, or with other variables, if told."""
        place = replace(self._place, environ=environ or self._place.environ, cwd=cwd or self._place.cwd)
        runs = SupervisedRuns(self._supervisors, place, self._display, SystemClock(), self._interruption)
        if self._hearer is not None:
            self._interruption.on_cancel = self._hearer
        return await runs.record(envelope, parent, number)

    async def carry_out(self, argv: tuple[str, ...], directory: Path) -> AttemptEnd:
        """Run a program that records nothing to its end, or to that which a signal asks for.

        What it prints goes to output.log in a directory of its own.
        """
        spec = self._spec(argv, directory)
        self._interruption.on_cancel = lambda signal_name: self._supervisors.kill(spec.marker)
        return await self._supervisors.run(spec)

    @asynccontextmanager
    async def beside(self, argv: tuple[str, ...], directory: Path) -> AsyncIterator[None]:
        """A program that goes on while this is entered, and is then killed with everything that it has started.

        What it prints goes to output.log in a directory of its own.
        """
        spec = self._spec(argv, directory)
        going_on = asyncio.create_task(self._supervisors.run(spec))
        try:
            yield
        finally:
            self._supervisors.kill(spec.marker)
            await going_on

    def _spec(self, argv: tuple[str, ...], directory: Path) -> AttemptSpec:
        """Of a program whose output goes to a directory that this makes."""
        directory.mkdir(parents=True)
        marker = f"{self._place.run_id}-{directory.name}"
        return AttemptSpec(
            argv=argv,
            cwd=str(self._place.cwd),
            env={**self._place.environ, ATTEMPT_MARKER: marker},
            directory=str(directory.absolute()),
            marker=marker,
            timeout_s=inf,
            startup_timeout_s=inf,
            grace_s=0.0,
        )


@contextmanager
def open_session(place: Place, display: Display) -> Iterator[Session]:
    """Hear signals and hold what ends processes, until no more runs are wanted; inside a running event loop."""
    with (
        Interruption() as interruption,
        closing(Supervisors(probe_tiers().chosen, place.run_id, find_py_spy())) as supervisors,
    ):
        yield Session(supervisors, place, display, interruption)


def refuse(run: Run, out: OutDirectory) -> None:
    """UsageError where its entry has refused a run before its first step; of the run nothing is left.

    Nor in `out`, which holds the runs of a command, unless there was one before it.
    """
    refusal = read_refusal(run.recording.directory)
    if refusal is None:
        return
    remove_tree(str(run.recording.directory))
    if not any(out.path.glob("run-*")):
        out.give_back()
    raise refusal.error()
