"""The loop that takes every decision of a run, one event at a time.

    signals ─┐
    ticks ───┤                       ┌─▶ RunState.apply (the fold)
    units ───┼──▶ one queue ──▶ take ┼─▶ reporters (they only read)
    tails ───┘                       └─▶ act: lease, start, cancel, kill

Everything that happens is an event put on the queue; only this loop starts or ends anything, on one thread, so no
two decisions race. It starts nothing while an event waits in the queue. A unit is one asyncio task
(`UnitRunner.run`) that owns its lease until its UnitFinished is put on the queue; the queue's order is the order of
the record.

A bug of ours costs the run, never its results. In a unit's task: that unit has an outcome, its GPUs are quarantined,
the others are killed as by a second Ctrl-C, and the exception is raised when all have their outcomes. In this loop
itself: every tree is killed, what the units had still said is taken, and what has no outcome gets one.
"""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from harness.bits.text import one_line
from harness.machine.inventory import Gpu
from harness.process.clock import Clock
from harness.runner import events
from harness.runner.attempts.unit_run import UnitRunner
from harness.runner.outcomes import why_uncollected
from harness.runner.records.stats import RunState
from harness.runner.reporter import Reporter
from harness.runner.schedule.leases import Lease, LeaseTable
from harness.runner.schedule.packing import Job, Queue
from harness.runner.units import Outcome, Unit, UnitResult

TICK_S = 0.5
LOOK_AGAIN_S = 30.0
"""Between looks at GPUs in quarantine."""
HEARTBEAT_S = 30.0


class Recorder:
    """The queue's far end: folds each event into the state and shows it to every reporter."""

    def __init__(self, state: RunState, reporters: Sequence[Reporter], clock: Clock) -> None:
        self.state = state
        self._reporters = list(reporters)
        self._clock = clock
        self._started_s = clock.monotonic_s()
        self.last_said_t = 0.0
        """When something last happened that a person would see."""

    def add(self, reporter: Reporter) -> None:
        """Show everything from now on to `reporter` too."""
        self._reporters.append(reporter)

    def t(self) -> float:
        """Seconds since the run began."""
        return self._clock.monotonic_s() - self._started_s

    def take(self, event: events.Event) -> None:
        """Record one event."""
        self.state.apply(event)
        for reporter in self._reporters:
            reporter.on_event(event, self.state)
        if not isinstance(event, (events.TestStarted, events.TestFinished)):
            self.last_said_t = event.t

    def close(self) -> None:
        """Close every reporter."""
        for reporter in self._reporters:
            reporter.close()


@dataclass(slots=True)
class _Running:
    """A unit that holds a lease."""

    job: Job
    lease: Lease
    task: asyncio.Task[None]
    started_t: float
    is_slow: bool = False

    @property
    def number(self) -> int:
        return self.job.index


class Dispatcher:
    """Runs the queue of units to the end: every unit gets exactly one UnitFinished.

    `units` in the order of their numbers, which are the jobs' indexes in `queue`; those that could not be collected
    are not in it.
    """

    def __init__(
        self, units: Sequence[Unit], queue: Queue, table: LeaseTable, runner: UnitRunner, recorder: Recorder
    ) -> None:
        self._units = units
        self._queue = queue
        self._table = table
        self._runner = runner
        self._recorder = recorder
        self.new_gpus: Callable[[], Sequence[Gpu]] = tuple
        """Returns the GPUs that have come since the last time."""
        self._inbox: asyncio.Queue[events.Event] = asyncio.Queue()
        self._running: dict[str, _Running] = {}
        self._num_left = len(units)
        self._num_failed = 0
        self._num_requests = 0
        self._cancelled = ""
        self._bug: Exception | None = None
        runner.post, runner.stop = self.post, self._stop

    def post(self, event: events.Event) -> None:
        """Put an event on the queue; every source goes through here."""
        self._inbox.put_nowait(event)

    def request_cancel(self, reason: str) -> None:
        """Ask for the run's end as a signal does: the first time in order, the second time at once."""
        self.post(events.CancelRequested(self._recorder.t(), reason, kill=self._num_requests > 0))
        self._num_requests += 1

    def request_dump(self) -> None:
        """Have every reporter say what runs now."""
        self.post(events.DumpRequested(self._recorder.t()))

    async def run(self) -> None:
        """Start what fits and take events until every unit has its outcome; raises what is our own bug after that."""
        ticker = asyncio.create_task(self._guarded(self._tick))
        looker = asyncio.create_task(self._guarded(self._look_again))
        try:
            self._finish_uncollected()
            self._finish_impossible()
            while self._num_left:
                if self._inbox.empty():
                    self._start_what_fits()
                self._take(await self._inbox.get())
        finally:
            tasks = [ticker, looker, *(running.task for running in self._running.values())]
            for task in tasks:  # units only where the loop above broke: no process may outlive it
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            self._settle()
        if self._bug is not None:
            raise self._bug

    def _take(self, event: events.Event) -> None:
        self._recorder.take(event)
        if isinstance(event, events.UnitFinished):
            self._on_finished(event.result)
        elif isinstance(event, (events.AttemptFailed, events.LeaseRefused)):
            self._queue_again(event.path)
        elif isinstance(event, events.GpuQuarantined):
            self._table.quarantine(event.gpu_id)
        elif isinstance(event, events.GpuReadmitted):
            self._table.readmit(event.gpu_id)
        elif isinstance(event, events.CancelRequested):
            self._on_cancel(event)

    def _on_finished(self, result: UnitResult) -> None:
        self._num_left -= 1
        if running := self._running.pop(result.unit.path, None):
            self._free(running)
            self._finish_impossible()  # a GPU of this lease may have been the last that fitted somebody
        self._num_failed += result.is_failure
        limit = self._runner.options.maxfail
        if limit and self._num_failed >= limit:
            self._stop(f"--maxfail {limit} was reached")

    def _stop(self, why: str) -> None:
        """Start nothing more; what runs may end."""
        if not self._cancelled:
            self._cancelled = why
            self.post(events.CancelRequested(self._recorder.t(), why, kill=False, interrupt=False))

    def _queue_again(self, path: str) -> None:
        """Queue the unit once more, first of all; without another attempt, the one that failed is its outcome."""
        running = self._running.pop(path)
        self._free(running)
        if self._cancelled:
            self._post_not_run(running.number, self._cancelled)
            return
        self._queue.put_first(running.job)
        self._finish_impossible()

    def _free(self, running: _Running) -> None:
        """Free what a unit has leased; GPUs of whose return its broken task said nothing are quarantined."""
        path = self._units[running.number].path
        self._table.give_back(running.lease)
        for gpu_id in running.lease.gpu_ids:
            if path in self._recorder.state.leases.get(gpu_id, ()):
                self._table.quarantine(gpu_id)
                reason = "rlharness failed before it checked this GPU"
                self._recorder.take(events.GpuQuarantined(self._recorder.t(), path, gpu_id, reason))

    def _on_cancel(self, event: events.CancelRequested) -> None:
        self._cancelled = self._cancelled or f"the run was cancelled by {event.reason}"
        for job in self._queue.drain():
            self._post_not_run(job.index, self._cancelled)
        for running in self._running.values():
            if event.kill:
                self._runner.kill(running.number)
            elif event.interrupt:  # and not --maxfail, where what runs may end
                self._runner.cancel(running.number)

    def _start_what_fits(self) -> None:
        while chosen := self._queue.next(self._table):
            job, lease = chosen
            unit = self._units[job.index]
            task = asyncio.create_task(self._run_unit(job.index, unit, lease))
            self._running[unit.path] = _Running(job, lease, task, self._recorder.t())

    def _finish_uncollected(self) -> None:
        """Give their outcome to units that will not start: kept, not collected, or without the tests asked for."""
        collected = self._runner.collected
        for unit in self._units:
            result = collected.kept.get(unit.path)
            if result is None and not unit.can_run:
                outcome = Outcome.COLLECT_TIMEOUT if unit.collect_timed_out else Outcome.COLLECT_ERROR
                result = UnitResult(unit, outcome, why_uncollected(unit))
            elif result is None and unit.path in collected.not_found:
                result = UnitResult(unit, Outcome.USAGE_ERROR, one_line(collected.not_found[unit.path]))
            if result is not None:
                self.post(events.UnitFinished(self._recorder.t(), result))

    def _finish_impossible(self) -> None:
        """What no set of this run's GPUs can ever hold is not run."""
        for job, reason in self._queue.drop(self._table.why_never):
            unit = self._units[job.index]
            who = self._table.who_keeps_it(self._runner.collected.asks_of(unit))
            self._post_not_run(job.index, reason + who, for_want_of_gpus=True)

    def _post_not_run(self, number: int, reason: str, for_want_of_gpus: bool = False) -> None:
        """Post the outcome of a unit that will not start: NOT_RUN, or that of its last attempt."""
        result = self._runner.retries.last(number, reason)
        if result is None:
            result = UnitResult(self._units[number], Outcome.NOT_RUN, reason, for_want_of_gpus=for_want_of_gpus)
        self.post(events.UnitFinished(self._recorder.t(), result))

    async def _run_unit(self, number: int, unit: Unit, lease: Lease) -> None:
        if error := await self._guarded(partial(self._runner.run, number, unit, lease)):
            reason = f"rlharness itself failed: {_named(error)}"
            result = UnitResult(unit, Outcome.SUPERVISOR_LOST, reason, gpu_ids=lease.gpu_ids)
            self.post(events.UnitFinished(self._recorder.t(), result))

    async def _guarded(self, work: Callable[[], Coroutine[Any, Any, None]]) -> Exception | None:
        """Have the run end if `work` fails; its exception then."""
        try:
            await work()
        except Exception as error:  # our own bug: raised by `run`, once everything has its outcome
            self._bug = self._bug or error
            reason = f"an internal error ({_named(error)})"
            self.post(events.CancelRequested(self._recorder.t(), reason, kill=True, interrupt=False))
            return error
        return None

    def _settle(self) -> None:
        """Where the loop broke: what the units had still said, and an outcome for those that have none."""
        if not self._num_left:
            return
        while not self._inbox.empty():
            self._recorder.take(self._inbox.get_nowait())
        state = self._recorder.state
        for unit in self._units:
            if unit.path not in state.results:
                outcome = Outcome.INTERRUPTED if unit.path in state.running else Outcome.NOT_RUN
                result = UnitResult(unit, outcome, "rlharness itself failed")
                self._recorder.take(events.UnitFinished(self._recorder.t(), result))

    async def _tick(self) -> None:
        """Follow the reports, notice slow units, break long silences."""
        while True:
            await asyncio.sleep(TICK_S)
            for path, running in self._running.items():
                self._runner.follow(running.number)
                t = self._recorder.t()
                if not running.is_slow and t - running.started_t >= self._runner.options.slow_s:
                    running.is_slow = True
                    self.post(events.AttemptSlow(t, path, t - running.started_t))
            t = self._recorder.t()
            if t - self._recorder.last_said_t >= HEARTBEAT_S:
                self.post(events.Heartbeat(t, len(self._running), self._recorder.state.num_queued))

    async def _look_again(self) -> None:
        """Lease GPUs again that have come back in quarantine, and those that have come into a cluster."""
        while True:
            await asyncio.sleep(LOOK_AGAIN_S)
            if new := self.new_gpus():
                self._table.add(new)
                self.post(events.Heartbeat(self._recorder.t(), len(self._running), self._recorder.state.num_queued))
            for gpu_id in await self._runner.take_back():
                self.post(events.GpuReadmitted(self._recorder.t(), gpu_id))


def _named(error: Exception) -> str:
    """Kind and text of an exception, on one line."""
    return " ".join(f"{type(error).__name__}: {error}".split())
