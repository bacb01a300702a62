"""One unit on its lease, from its directories to its one outcome.

    lease ─▶ directories, environment ─▶ supervisor ─▶ (tree proven gone) ─▶ report, outcome
          ─▶ Ray's logs kept, TMPDIR removed ─▶ GPUs back at their baseline? LeaseReturned or GpuQuarantined
          ─▶ UnitFinished

An order to end it is remembered, since it may come before there is a supervisor to give it to.
"""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from harness.bits.errors import HarnessError, ReportError
from harness.machine.gpu_watch import GpuWatch
from harness.machine.inventory import IDLE_MEMORY_BYTES
from harness.process.exhaustion import reason_of
from harness.process.new_directory import make_new_directory
from harness.process.scratch import remove_tree
from harness.process.supervisor_client import LostError, ProcessEnd
from harness.runner import events
from harness.runner.attempts.attempt_report import put_back, read_attempt_report
from harness.runner.attempts.attempt_spec import AttemptSpecs
from harness.runner.attempts.gpu_notes import broken_by, unread_names, with_others, with_xids
from harness.runner.attempts.gpu_suspicion import GpuSuspicion
from harness.runner.attempts.lease_end import end_lease, refuse_lease
from harness.runner.attempts.memory_sampler import MemorySampler
from harness.runner.attempts.ray_logs import keep_ray_logs
from harness.runner.attempts.report_events import test_event
from harness.runner.attempts.shared_watch import SharedWatch
from harness.runner.attempts.unit_result import unforked_note, unit_result
from harness.runner.gpu_memory import GpuMemoryUse
from harness.runner.isolation_notes import IsolationNote
from harness.runner.options import runs_parts_of_files
from harness.runner.report_file import ReportTail, TestReport
from harness.runner.reruns.retries import read_attempts
from harness.runner.schedule.leases import Lease
from harness.runner.units import Outcome, Unit, UnitResult

Post = Callable[[events.Event], None]
MAX_LOST = 2
"""A unit that has lost so many nodes or workers and loses another has that outcome: it may be what kills them."""

Check = Callable[["UnitRunner", int, Lease, UnitResult, TestReport], Awaitable[tuple[UnitResult, tuple[str, ...]]]]
"""Returns the result of a unit, and processes that SIGKILL did not end."""


@dataclass(slots=True, kw_only=True)
class UnitRunner(AttemptSpecs):
    """Shared state of the attempts of one run; the side effects of one attempt are all here."""

    watch: GpuWatch
    t: Callable[[], float]
    """Seconds since the run began."""
    shared_watch: SharedWatch | None = None
    sampler: MemorySampler | None = None
    """Measures the GPU memory of attempts; made for the first of them."""
    stop: Callable[[str], None] = lambda reason: None
    """Ends the run since pytest wants to; the dispatcher puts its own here."""
    post: Post = lambda event: None
    """Where events go; the dispatcher puts its queue here."""
    followed: dict[int, tuple[str, ReportTail]] = field(default_factory=dict)
    """Running units: path and report, by number."""
    present: dict[int, str] = field(default_factory=dict)
    """Node id of the test that each running unit runs now, as its report says; empty between tests."""
    away: dict[str, int | None] = field(default_factory=dict)
    """Quarantined GPUs that may come back, with their memory before the lease; None where it is not known."""
    cancelled: set[int] = field(default_factory=set)
    killed: set[int] = field(default_factory=set)
    """Units whose end was asked for, and those of them that are to end at once."""
    num_lost: Counter[int] = field(default_factory=Counter)
    """Attempts that were lost with their nodes, by unit."""
    suspicion: GpuSuspicion = field(default_factory=GpuSuspicion)
    check_leaning: "Check | None" = None
    """Settles whether a failing file passes after those before it; None where that is not asked for."""
    notes: list[str] = field(default_factory=list)
    """Problems apart from the tests, such as a temporary directory that could not be removed."""
    isolation: list[IsolationNote] = field(default_factory=list)
    """Files whose tests were not forked."""

    async def run(self, number: int, unit: Unit, lease: Lease) -> None:
        """Run `unit`; its last event is its UnitFinished, AttemptFailed or LeaseRefused, after the fate of its GPUs."""
        directory, gpu_ids = self.directory(number), lease.gpu_ids
        self.post(events.AttemptStarted(self.t(), unit.path, gpu_ids, lease.slot, str(directory)))
        baseline, unfit = await self._watch_of(lease).check(gpu_ids)
        if unfit:
            self.away.update(dict.fromkeys(unfit))
            refuse_lease(self.post, self.t(), unit.path, gpu_ids, unfit)
            return
        unkillable: tuple[str, ...] = ()
        spent = False
        report = TestReport()
        tail = ReportTail(directory / "report.jsonl")
        try:
            end, timeout_s, memory = await self._measured(number, self.retries.asked(number, unit), lease, tail)
        except LostError as error:
            if self.num_lost[number] < MAX_LOST:
                await self._begin_again(number, unit, gpu_ids, error)
                return
            result = UnitResult(unit, Outcome.SUPERVISOR_LOST, f"lost {MAX_LOST + 1} times: {error}")
        except (OSError, HarnessError) as error:  # a full disk, no port left: this unit's failure, not the run's
            result = UnitResult(unit, Outcome.SUPERVISOR_LOST, f"the attempt could not be started: {reason_of(error)}")
        else:
            unkillable, spent = end.unkillable, end.reason == "timeout"
            report = await asyncio.to_thread(read_attempt_report, tail)
            result = unit_result(unit, end, report, timeout_s, gpu_ids=gpu_ids, directory=directory)
            result = replace(result, gpu_memory=memory)
            self.notes += put_back(tail, unit.path)
            if report.unforked:
                self.isolation.append(unforked_note(unit.path, report.unforked, report.unforked_detail))
            if report.unread and not result.outcome.is_failure:  # of a failure it is the reason
                self.notes.append(f"{unit.path}: {report.unread}")
            if not self._is_comparable(number, result):
                result = replace(result, collected_need=None)
        finally:
            tail.close()
        if self.check_leaning is not None and self.retries.is_last(number):
            result, left = await self.check_leaning(self, number, lease, result, report)
            unkillable += left
        xids = await self.watch.new_xids(gpu_ids)
        result = with_xids(result, xids)
        if note := await asyncio.to_thread(unread_names, result, report, lease.gpus):
            self.notes.append(note)
        await asyncio.to_thread(self._clean_up, number, result)
        known = tuple(gpu.gpu_id for gpu in lease.gpus if not gpu.node)  # a node's tests have any of its GPUs
        unfit = self.suspicion.observe(unit.file_path, result.outcome, known) | broken_by(xids)
        held = await self._still_held(number, unkillable, lease, baseline)
        self.away.update({gpu_id: baseline.get(gpu_id) for gpu_id in held.keys() - unfit.keys()})
        result, unfit = result if unkillable else with_others(result, held), unfit | held
        end_lease(self.post, self.t(), unit.path, gpu_ids, unfit)
        event = await asyncio.to_thread(partial(self.retries.end, number, result, report, spent=spent))
        if isinstance(event, events.UnitFinished):
            await self._replay(event.result)
        self.post(replace(event, t=self.t()))

    async def _begin_again(self, number: int, unit: Unit, gpu_ids: tuple[str, ...], error: LostError) -> None:
        """Queue a unit again whose node was lost, as if this attempt had not been."""
        self.num_lost[number] += 1
        for directory in (self.directory(number), self.tmpdir(number)):
            await asyncio.to_thread(remove_tree, str(directory))
        _, unfit = await self.watch.check(gpu_ids)
        self.away.update(dict.fromkeys(unfit))
        refuse_lease(self.post, self.t(), unit.path, gpu_ids, unfit, lost=str(error))

    async def _replay(self, result: UnitResult) -> None:
        """Have the session hear what became of a unit, and end the run where it wants to stop."""
        directories = [attempt.directory for attempt in result.attempts] + [result.directory]
        reports = [Path(each, "report.jsonl") for each in directories if each]
        lost: dict[str, str] = {}
        with suppress(ReportError, OSError):
            lost = {each.nodeid: each.reason for each in read_attempts(result).lost}
        if stop := await self.suite.replay(reports, lost):
            self.stop(stop)

    def _is_comparable(self, number: int, result: UnitResult) -> bool:
        """Whether the need of the tests that were collected shows whether the plan was right.

        The plan has the need of all tests. Those of a part may need less, never more.
        """
        unit, found = result.unit, result.collected_need
        is_whole = not (
            unit.selection or self.retries.rest(number) or runs_parts_of_files(self.options.invocation.trailing)
        )
        return is_whole and found is not None and (unit.part is None or found.exceeds(unit.need))

    def _watch_of(self, lease: Lease) -> GpuWatch | SharedWatch:
        if self.shared_watch is None:
            self.shared_watch = SharedWatch(self.watch)
        return self.shared_watch if lease.budget_bytes else self.watch

    async def run_attempt(self, number: int, unit: Unit, lease: Lease, tail: ReportTail) -> tuple[ProcessEnd, float]:
        """How the attempt ended, and the limit it had; OSError or HarnessError where it could not be started."""
        self.notes += make_new_directory(self.directory(number))
        tail.file.make()  # before there are tests: whatever these do to its name, this file is theirs
        self.notes += make_new_directory(self.tmpdir(number), mode=0o700)
        spec = self.spec(number, unit, lease)
        if number in self.cancelled:  # while the driver was asked
            return ProcessEnd(None, None, "cancelled", (), (), 0.0), spec.timeout_s
        self.followed[number] = (unit.path, tail)
        try:
            end = await self.attempts.run(
                spec, lambda reason: self.post(events.AttemptTerminating(self.t(), unit.path, reason))
            )
            while self.follow(number):
                await asyncio.sleep(0)  # signals are heard, however much there is
        finally:
            self.followed.pop(number, None)
        return end, spec.timeout_s

    async def _measured(
        self, number: int, unit: Unit, lease: Lease, tail: ReportTail
    ) -> tuple[ProcessEnd, float, GpuMemoryUse | None]:
        """The answer of `run_attempt`, and the GPU memory that the attempt used."""
        marker = self.marker(number)
        if self.sampler is None:
            self.sampler = MemorySampler(self.watch.meter)
        self.sampler.begin(
            number, lease.gpu_ids, lambda: self.attempts.pid_of(marker), lambda: self._present_test(number)
        )
        try:
            end, timeout_s = await self.run_attempt(number, unit, lease, tail)
        finally:
            memory = await self.sampler.end(number)
            self.present.pop(number, None)
        return end, timeout_s, memory

    def _present_test(self, number: int) -> str:
        """Node id of the test that unit `number` runs now; empty for none, and where its report is not read yet."""
        return "" if self.follow(number) else self.present.get(number, "")

    def follow(self, number: int) -> bool:
        """Post what the tests of unit `number` have done since the last time; whether there is more at once."""
        if (followed := self.followed.get(number)) is None:
            return False
        path, tail = followed
        try:
            records = tail.poll()
        except OSError:  # the disk failed; the judgement says how
            del self.followed[number]
            return False
        for record in records:
            if event := test_event(self.t(), path, record):
                self.present[number] = event.nodeid if isinstance(event, events.TestStarted) else ""
                self.post(event)
        return tail.is_behind

    def cancel(self, number: int) -> None:
        """End the attempt of unit `number` in order."""
        self.cancelled.add(number)
        self.attempts.cancel(self.marker(number))

    def kill(self, number: int) -> None:
        """End the attempt of unit `number` at once."""
        self.cancelled.add(number)
        self.killed.add(number)
        self.attempts.kill(self.marker(number))

    async def _still_held(
        self, number: int, unkillable: tuple[str, ...], lease: Lease, baseline: dict[str, int]
    ) -> dict[str, str]:
        """Wait until the GPUs' memory is back; those on which it does not come back, with who holds it."""
        if unkillable:
            return dict.fromkeys(lease.gpu_ids, f"SIGKILL did not end a process: {unkillable[0]}")
        return await self._watch_of(lease).not_back(lease.gpu_ids, baseline, hurry=lambda: number in self.killed)

    async def take_back(self) -> list[str]:
        """Return the GPUs that are as they were before their quarantine, for a process or memory that is gone."""
        as_is = {gpu.gpu_id for gpu in self.watch.gpus if gpu.is_as_is}  # what is on them may be a leak or not
        back = []
        for gpu_id, before in list(self.away.items()):
            now, unfit = await self.watch.check((gpu_id,))
            is_full = before is not None and now.get(gpu_id, 0) > before + IDLE_MEMORY_BYTES
            if not unfit and not is_full and gpu_id not in as_is:
                del self.away[gpu_id]
                back.append(gpu_id)
        return back

    def _clean_up(self, number: int, result: UnitResult) -> None:
        """Remove the attempt's TMPDIR, after Ray's logs where something went wrong. In a thread: it may be large."""
        tmpdir = self.tmpdir(number)
        if result.outcome.is_failure or result.outcome is Outcome.INTERRUPTED:
            try:
                keep_ray_logs(tmpdir / "ray", self.directory(number) / "ray_logs")
            except OSError as error:
                self.notes.append(f"some of Ray's logs of {result.unit.path} could not be kept: {error}")
            if self.options.keep_tmp and tmpdir.exists():
                self.notes.append(f"kept the temporary directory of {result.unit.path}: {tmpdir}")
                return
        if complaint := remove_tree(str(tmpdir)):
            self.notes.append(complaint)
