"""Runs a subject under perturbations and says what came out; every run of `chaos` is started here.

perturbation ─▶ run spec, environment, load ─▶ run (with a crash: two) ─▶ comparison with the baseline
"""

import sys
from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from pathlib import Path
from typing import NoReturn, Protocol

from harness.bits.errors import UsageError
from harness.lab.chaos.comparison import Outcome, Sign, compare, compare_crashed, has_died, why_alive
from harness.lab.chaos.conditions import busy_argv, crashing, environ_of, going_on, launched, marking
from harness.lab.chaos.plan import ChaosPlan
from harness.lab.experiments.perturbation_factors import CRASH, LATENCY, Perturbation, format_perturbation
from harness.lab.experiments.recorded_run import checkpoint_steps_in
from harness.lab.experiments.run import Run
from harness.process.clock import Clock
from harness.process.scratch import remove_tree
from harness.recording.entry_call import Rejection, read_rejection
from harness.recording.run_spec import RunSpec
from harness.trace.reader import Trace, read_trace

PROGRAM = sys.executable
"""What starts every run: launch.py, which becomes the program."""
BASELINE = "run-1"
"""Its directory; every other run has a number of its own."""
DELAYED = "delayed"
"""A file in a run's directory, once a call of it has been delayed."""


class OutOfTimeError(Exception):
    """No further run is started: a signal has asked for the end, or time is up."""


class Runs(Protocol):
    """Starts runs, as a session does."""

    @property
    def interrupted_by(self) -> str:
        """The name of the signal that has asked for the end; empty for none."""

    async def record(self, run_spec: RunSpec, parent: Path, number: int, *, environ: Mapping[str, str]) -> Run:
        """Carry out one run in this environment, in a directory of its own below `parent`."""

    def beside(self, argv: tuple[str, ...], directory: Path) -> AbstractAsyncContextManager[None]:
        """Run a program while the context is entered."""


class Listener(Protocol):
    """Hears of each probe."""

    def begins(self, perturbation: Perturbation) -> None:
        """A run under this perturbation starts."""

    def ended(self, outcome: Outcome, duration_s: float) -> None:
        """It has ended."""


class ChaosExecutor:
    """Makes runs, one at a time, and keeps the traces of those that are not the baseline's."""

    def __init__(
        self, plan: ChaosPlan, session: Runs, environ: Mapping[str, str], clock: Clock, listener: Listener
    ) -> None:
        self._plan = plan
        self._session = session
        self._environ = environ
        self._clock = clock
        self._listener = listener
        self._began_s = clock.monotonic_s()
        self._baseline: Trace | None = None
        self.num_runs = 0

    @property
    def baseline(self) -> Trace:
        """The trace of the run with nothing changed."""
        assert self._baseline is not None
        return self._baseline

    async def record_baseline(self) -> Run:
        """The run with which all others are compared; its trace is there where it is whole.

        OutOfTimeError where a signal has ended it.
        """
        self._listener.begins({})
        (run,) = await self._record({}, None if self._plan.num_steps is None else self._plan.num_steps - 1)
        if self._session.interrupted_by and not run.recording.is_complete:
            raise OutOfTimeError
        if run.recording.is_complete and run.recording.num_steps:
            self._baseline = read_trace(run.recording.directory)
        return run

    async def probe(self, perturbation: Perturbation, num_steps: int | None = None) -> Outcome:
        """Run under a perturbation, and compare; only the first `num_steps` steps, if given.

        UsageError where the entry refuses what it is given, OutOfTimeError where nothing more is to begin.
        """
        self._listener.begins(perturbation)
        limit = min(num_steps or len(self.baseline.steps), len(self.baseline.steps))
        began_s = self._clock.monotonic_s()
        is_cut = num_steps is not None or self._plan.num_steps is not None
        runs = await self._record(perturbation, self.baseline.steps[limit - 1] if is_cut else None)
        if CRASH in perturbation:
            outcome = compare_crashed(self.baseline, runs[0], runs[1] if len(runs) > 1 else None, limit)
        else:
            outcome = compare(self.baseline, runs[0], limit)
        if outcome.sign is Sign.SAME and (missed := self._missed(perturbation, runs, limit)):
            outcome = Outcome(Sign.NOT_APPLIED, problem=missed)
        if self._session.interrupted_by and outcome.sign is Sign.BROKE:
            raise OutOfTimeError
        if not outcome.has_failed:
            for run in runs:
                remove_tree(str(run.recording.directory))
        self._listener.ended(outcome, self._clock.monotonic_s() - began_s)
        return outcome

    async def _record(self, perturbation: Perturbation, last_step: int | None) -> list[Run]:
        """The run, or the one that crashes and the one that goes on."""
        run_spec = self._plan.subject.run_spec(perturbation, last_step)
        environ = environ_of(perturbation, self._environ)
        async with AsyncExitStack() as stack:
            if argv := busy_argv(perturbation):
                directory = self._plan.directory / f"load-{self.num_runs + 1}"
                stack.callback(remove_tree, str(directory))
                await stack.enter_async_context(self._session.beside(argv, directory))
            if CRASH not in perturbation:
                return [await self._start(run_spec, perturbation, environ)]
            crashed = await self._start(crashing(run_spec, perturbation), perturbation, environ)
            if not has_died(self.baseline, crashed, perturbation[CRASH]):
                return [crashed]
            if checkpoint_steps_in(crashed.recording.directory):
                run_spec = going_on(run_spec, crashed.recording.directory)
            return [crashed, await self._start(run_spec, perturbation, environ, is_first=False)]

    def _missed(self, perturbation: Perturbation, runs: Sequence[Run], num_steps: int) -> str:
        """What of a perturbation never happened in its runs; empty where all of it did."""
        if CRASH in perturbation and len(runs) == 1:
            return why_alive(self.baseline, perturbation[CRASH], num_steps)
        if LATENCY in perturbation and not any((run.recording.directory / DELAYED).exists() for run in runs):
            functions = ", ".join(self._plan.subject.latency)
            return f"no call of {functions} was delayed"
        return ""

    async def _start(
        self, run_spec: RunSpec, perturbation: Perturbation, environ: Mapping[str, str], *, is_first: bool = True
    ) -> Run:
        if self._session.interrupted_by or self._clock.monotonic_s() - self._began_s > self._plan.max_s:
            raise OutOfTimeError
        self.num_runs += 1
        run_spec = marking(run_spec, self._plan.directory / f"run-{self.num_runs}" / DELAYED)
        run = await self._session.record(
            launched(run_spec, perturbation, self._plan.subject.factors),
            self._plan.directory,
            self.num_runs,
            environ=environ,
        )
        if is_first and (refusal := read_rejection(run.recording.directory)):
            _refuse(run, perturbation, refusal)
        return run


def _refuse(run: Run, perturbation: Perturbation, refusal: Rejection) -> NoReturn:
    """UsageError, as the entry has said it before it began; of its run nothing is left."""
    remove_tree(str(run.recording.directory))
    cause = f" with {format_perturbation(perturbation)}" if perturbation else ""
    raise UsageError(f"the entry refuses to begin{cause}: {refusal.what}", legal=refusal.legal, remedy=refusal.remedy)
