"""One unit on its lease, from its directories to its one outcome.

    lease ─▶ directories, environment ─▶ supervisor ─▶ (tree proven gone) ─▶ report, outcome
          ─▶ each step of `UnitRunner.after` ─▶ LeaseReturned or GpuQuarantined ─▶ UnitFinished or AttemptFailed

An order to end it is remembered, since it may come before there is a supervisor to give it to.
"""

import asyncio
import math
import os
import shutil
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from harness.bits.errors import HarnessError, ReportError
from harness.machine.gpu_watch import GpuWatch
from harness.machine.inventory import IDLE_MEMORY_BYTES
from harness.process.exhaustion import reason_of
from harness.process.growing_file import NOTHING
from harness.process.scratch import make_new_directory, remove_tree
from harness.process.supervisor_client import LostError, ProcessEnd
from harness.runner import events
from harness.runner.attempts.attempt_spec import AttemptSpecs
from harness.runner.attempts.gpu_checks import (
    GpuSuspicion,
    SharedWatch,
    broken_by,
    with_reason,
    with_xids,
)
from harness.runner.attempts.memory_sampler import MemorySampler
from harness.runner.collection.units import all_deselected
from harness.runner.options import runs_parts_of_files
from harness.runner.outcomes import classify_outcome
from harness.runner.report_file import ReportTail, TestOutcome, TestReport
from harness.runner.reruns.retries import lost_in, read_attempts, tests_to_repeat
from harness.runner.schedule.leases import Lease
from harness.runner.units import IsolationCode, IsolationNote, NotForked, Outcome, Unit, UnitResult

Post = Callable[[events.Event], None]
MAX_LOST = 2
"""A unit that has lost so many nodes or workers and loses another has that outcome: it may be what kills them."""
LIGHT_BYTES = 1 << 18
"""A larger report is read in a thread."""
MAX_RAY_LOGS_BYTES = 64 * 2**20
TEST_OUTCOMES = frozenset(TestOutcome)


@dataclass(slots=True)
class Attempt:
    """One attempt at a unit whose process has ended."""

    number: int
    unit: Unit
    lease: Lease
    baseline: dict[str, int]
    """Memory of its GPUs before it."""
    result: UnitResult
    report: TestReport = field(default_factory=TestReport)
    unkillable: tuple[str, ...] = ()
    again: tuple[str, ...] = ()
    """Tests that run if it is repeated; none for all."""
    spent: bool = False
    """Whether its time limit passed."""
    unfit: dict[str, str] = field(default_factory=dict)
    """GPUs that are leased no more, with the reasons."""


@dataclass(slots=True, kw_only=True)
class UnitRunner(AttemptSpecs):
    """Shared state of the attempts of one run; the side effects of one attempt are all here."""

    watch: GpuWatch
    t: Callable[[], float]
    """Seconds since the run began."""
    check_leaning: Callable[["UnitRunner", Attempt], Awaitable[None]] | None = None
    """Settles whether a failing file passes after those before it; None where that is not asked for."""
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
    unexplained: set[int] = field(default_factory=set)
    """Units of which a process ended in a way that none of its tests explains."""
    suspicion: GpuSuspicion = field(default_factory=GpuSuspicion)
    notes: list[str] = field(default_factory=list)
    """Problems apart from the tests, such as a temporary directory that could not be removed."""
    isolation: list[IsolationNote] = field(default_factory=list)
    """Files whose tests were not forked."""
    shared_watch: SharedWatch = field(init=False)
    sampler: MemorySampler = field(init=False)

    def __post_init__(self) -> None:
        self.shared_watch, self.sampler = SharedWatch(self.watch), MemorySampler(self.watch.meter)

    async def run(self, number: int, unit: Unit, lease: Lease) -> None:
        """Run `unit`; its last event is its UnitFinished, AttemptFailed or LeaseRefused, after the fate of its GPUs."""
        directory = str(self.directory(number))
        self.post(events.AttemptStarted(self.t(), unit.path, lease.gpu_ids, lease.slot, directory))
        baseline, unfit = await self._watch_of(lease).check(lease.gpu_ids)
        if unfit:
            self._refuse(unit, lease, unfit)
            return
        try:
            attempt = await self._attempt(number, unit, lease, baseline)
        except LostError as error:
            if self.num_lost[number] < MAX_LOST:  # as if this attempt had not been
                self.num_lost[number] += 1
                for path in (directory, str(self.tmpdir(number))):
                    await asyncio.to_thread(remove_tree, path)
                self._refuse(unit, lease, (await self.watch.check(lease.gpu_ids))[1], lost=str(error))
                return
            result = UnitResult(unit, Outcome.SUPERVISOR_LOST, f"lost {MAX_LOST + 1} times: {error}")
            attempt = Attempt(number, unit, lease, baseline, result)
        except (OSError, HarnessError) as error:  # a full disk, no port left: this unit's failure, not the run's
            result = UnitResult(unit, Outcome.SUPERVISOR_LOST, f"the attempt could not be started: {reason_of(error)}")
            attempt = Attempt(number, unit, lease, baseline, result)
        for step in self.after:
            await step(self, attempt)

    async def _attempt(self, number: int, unit: Unit, lease: Lease, baseline: dict[str, int]) -> Attempt:
        """Return the attempt at a unit; LostError, OSError or HarnessError where it could not be carried out."""
        directory, marker, asked = self.directory(number), self.marker(number), self.retries.asked(number, unit)
        tail = ReportTail(directory / "report.jsonl")
        try:
            pid_of, test_of = (lambda: self.attempts.pid_of(marker)), (lambda: self._present_test(number))
            self.sampler.begin(number, lease.gpu_ids, pid_of, test_of)
            try:
                end = await self.run_attempt(number, asked, lease, tail)
            finally:
                memory = await self.sampler.end(number)
                self.present.pop(number, None)
            report = await self._read(tail)
            self.notes += _put_back(tail, unit.path)
        finally:
            tail.close()
        outcome, reason = classify_outcome(end, report, unit.timeout_s or self.options.timeout_s)
        again = tests_to_repeat(outcome, reason, report)
        if outcome is Outcome.NO_TESTS and report.num_deselected:
            reason = all_deselected(report.num_deselected)
        if report.unforked:
            self.isolation.append(_unforked_note(unit.path, report))
        if report.unread and not outcome.is_failure:  # of a failure it is the reason
            self.notes.append(f"{unit.path}: {report.unread}")
        num_deselected = report.num_deselected
        if unit.part:  # its tests may have been named, and those of no part are counted once
            num_deselected = self.collected.files[unit.file_path].num_deselected if unit.part.number == 1 else 0
        need, trailing = report.collected_need if report.nodeids else None, self.options.invocation.trailing
        is_part = unit.selection or self.retries.rest(number) or runs_parts_of_files(trailing)
        if is_part or (unit.part and need and not need.exceeds(unit.need)):  # the plan has the need of all tests
            need = None
        result = UnitResult(
            unit=unit,
            outcome=outcome,
            reason=reason,
            duration_s=end.duration_s,
            gpu_ids=lease.gpu_ids,
            tests=report.counts(),
            num_deselected=num_deselected,
            skip_reasons=report.skip_reasons(),
            left_behind=(*report.left_behind, *end.left_behind),
            collected_need=need,
            directory=str(directory),
            gpu_memory=memory,
        )
        return Attempt(number, unit, lease, baseline, result, report, end.unkillable, again, end.reason == "timeout")

    async def run_attempt(self, number: int, unit: Unit, lease: Lease, tail: ReportTail) -> ProcessEnd:
        """How the attempt ended; OSError or HarnessError where it could not be started."""
        self.notes += make_new_directory(self.directory(number))
        tail.file.make()  # before there are tests: whatever these do to its name, this file is theirs
        self.notes += make_new_directory(self.tmpdir(number), mode=0o700)
        spec = self.spec(number, unit, lease)
        if number in self.cancelled:  # while the driver was asked
            return ProcessEnd(None, None, "cancelled", (), (), 0.0)
        self.followed[number] = (unit.path, tail)
        try:
            end = await self.attempts.run(
                spec, lambda reason: self.post(events.AttemptTerminating(self.t(), unit.path, reason))
            )
            while self.follow(number):
                await asyncio.sleep(0)  # signals are heard, however much there is
        finally:
            self.followed.pop(number, None)
        return end

    async def _read(self, tail: ReportTail) -> TestReport:
        """What the report of an attempt says; nothing, and the reason, where it cannot be read."""
        try:
            is_light = tail.file.size_bytes < LIGHT_BYTES
            return tail.report() if is_light else await asyncio.to_thread(tail.report)
        except (ReportError, OSError) as error:
            return TestReport(unread=" ".join(str(error).split()))

    # ---- after its end, in this order

    async def _check_leaning(self, attempt: Attempt) -> None:
        if self.check_leaning is not None and self.retries.is_last(attempt.number):
            await self.check_leaning(self, attempt)

    async def _name_causes(self, attempt: Attempt) -> None:
        """Put what the GPUs say into the reason; suspect those on which unrelated files fail."""
        lease, xids = attempt.lease, await self.watch.new_xids(attempt.lease.gpu_ids)
        attempt.result = result = with_xids(attempt.result, xids)
        known = tuple(gpu.gpu_id for gpu in lease.gpus if not gpu.node)  # a node's tests have any of its GPUs
        attempt.unfit = self.suspicion.observe(attempt.unit.file_path, result.outcome, known) | broken_by(xids)

    async def _clean_up(self, attempt: Attempt) -> None:
        """Remove the attempt's TMPDIR, after Ray's logs where something went wrong."""
        tmpdir, result = self.tmpdir(attempt.number), attempt.result
        if result.outcome.is_failure or result.outcome is Outcome.INTERRUPTED:
            try:
                await asyncio.to_thread(keep_ray_logs, tmpdir / "ray", self.directory(attempt.number) / "ray_logs")
            except OSError as error:
                self.notes.append(f"some of Ray's logs of {result.unit.path} could not be kept: {error}")
            if self.options.keep_tmp and tmpdir.exists():
                self.notes.append(f"kept the temporary directory of {result.unit.path}: {tmpdir}")
                return
        try:
            os.rmdir(tmpdir)  # most tests leave it empty
        except OSError:
            if complaint := await asyncio.to_thread(remove_tree, str(tmpdir)):
                self.notes.append(complaint)

    async def _return_gpus(self, attempt: Attempt) -> None:
        """Wait until the GPUs' memory is back; those on which it is not are quarantined."""
        lease, baseline = attempt.lease, attempt.baseline
        if attempt.unkillable:
            held = dict.fromkeys(lease.gpu_ids, f"SIGKILL did not end a process: {attempt.unkillable[0]}")
        else:
            watch, killed = self._watch_of(lease), self.killed
            held = await watch.not_back(lease.gpu_ids, baseline, hurry=lambda: attempt.number in killed)
            others = "something else may have used its GPUs meanwhile ({})"
            attempt.result = with_reason(attempt.result, others, held)
        self.away.update({gpu_id: baseline.get(gpu_id) for gpu_id in held.keys() - attempt.unfit.keys()})
        self._end_lease(attempt.unit, lease, attempt.unfit | held)

    async def _end(self, attempt: Attempt) -> None:
        """End the attempt: the session hears of a unit that has its outcome, and may want to stop."""
        number, unit = attempt.number, attempt.unit
        work = partial(
            self.retries.end, number, attempt.result, attempt.report, again=attempt.again, spent=attempt.spent
        )
        event = await asyncio.to_thread(work) if self.retries.has_earlier(number) else work()  # their reports are read
        if attempt.result.outcome.is_failure and not attempt.again:
            self.unexplained.add(number)
        if isinstance(event, events.AttemptFailed) and not event.is_rest:
            self.unexplained.discard(number)
        if isinstance(event, events.UnitFinished):
            result, report = event.result, attempt.report
            lost = lost_in(report, result.outcome, result.reason)
            with suppress(ReportError, OSError):
                if result.attempts or result.unit.part:
                    lost = read_attempts(result).lost
            reports = [Path(each.directory, "report.jsonl") for each in result.in_time if each.directory]
            file = self.collected.files.get(unit.file_path) if number in self.unexplained else None
            failed = [test.nodeid for test in (file.tests if file else None) or ()]
            if stop := await self.suite.replay(reports, {each.nodeid: each.reason for each in lost}, failed):
                self.stop(stop)
        self.post(replace(event, t=self.t()))

    after = (_check_leaning, _name_causes, _clean_up, _return_gpus, _end)

    # ---- leases

    def _watch_of(self, lease: Lease) -> GpuWatch | SharedWatch:
        return self.shared_watch if lease.budget_bytes else self.watch

    def _end_lease(self, unit: Unit, lease: Lease, unfit: Mapping[str, str]) -> None:
        """Post a quarantine for each GPU in `unfit`, which has the reasons, and one return of all others."""
        for gpu_id, reason in unfit.items():
            self.post(events.GpuQuarantined(self.t(), unit.path, gpu_id, reason))
        if free := tuple(gpu_id for gpu_id in lease.gpu_ids if gpu_id not in unfit):
            self.post(events.LeaseReturned(self.t(), unit.path, free))

    def _refuse(self, unit: Unit, lease: Lease, unfit: dict[str, str], *, lost: str = "") -> None:
        """End a lease of which some GPUs are `unfit`, or whose attempt was `lost`, and have its unit queued again."""
        self.away.update(dict.fromkeys(unfit))
        self._end_lease(unit, lease, unfit)
        self.post(events.LeaseRefused(self.t(), unit.path, unfit, lost))

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

    # ---- while it runs

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
        except OSError:  # the disk failed; the outcome says how
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


def test_event(t: float, path: str, record: dict[str, Any]) -> events.TestStarted | events.TestFinished | None:
    """Return the event of a line about a test; None for any other line, and for one that a test itself wrote."""
    match record:
        case {"k": "start", "id": str(nodeid), "timeout_s": None | int() | float() as timeout_s}:
            if timeout_s is None or _is_number(timeout_s):
                return events.TestStarted(t, path, nodeid, timeout_s)
        case {"k": "end", "id": str(nodeid), "outcome": str(outcome), "duration_s": int() | float() as duration_s}:
            if outcome in TEST_OUTCOMES and _is_number(duration_s):
                return events.TestFinished(t, path, nodeid, outcome, duration_s)
    return None


def _is_number(value: float) -> bool:
    """Whether a number of a report can be shown as seconds."""
    try:
        return math.isfinite(value)
    except OverflowError:  # JSON has integers of any length
        return False


def _put_back(tail: ReportTail, path: str) -> list[str]:
    """A note where the report's name leads to something else, and write the report back if possible."""
    found = tail.file.replaced_by
    if not found:
        return []
    did = "removed" if found == NOTHING else "replaced"
    what = "" if found == NOTHING else f" by {found}"
    note = f"{path} {did} its report {tail.file.path}{what}: the outcomes come from what pytest wrote to the original"
    try:
        tail.file.put_back()
    except OSError as error:
        return [f"{note}; rlharness could not restore the report: {error.strerror}"]
    return [f"{note}; rlharness restored the report"]


def _unforked_note(path: str, report: TestReport) -> IsolationNote:
    """Return the note on a file whose tests were not forked; a test can write to the report, which says why."""
    if report.unforked not in {each.value for each in NotForked}:
        return IsolationNote(IsolationCode.TESTS_NOT_FORKED, path, detail=report.unforked)
    why = NotForked(report.unforked)
    return IsolationNote(IsolationCode.TESTS_NOT_FORKED, path, why, detail=report.unforked_detail)


def keep_ray_logs(ray: Path, destination: Path, limit_bytes: int = MAX_RAY_LOGS_BYTES) -> None:
    """Copy the logs of the Ray clusters under `ray` to `destination`, smallest files first, up to a limit.

    Links are not followed: `session_latest` is one, and a test may have made others. Raises OSError for a full disk.
    """
    sessions = [path for path in ray.glob("session_*/logs") if not path.parent.is_symlink() and not path.is_symlink()]
    found = [path for logs in sessions for path in logs.rglob("*") if path.is_file() and not path.is_symlink()]
    total_bytes = 0
    for size_bytes, path in sorted((path.stat().st_size, path) for path in found):
        total_bytes += size_bytes
        if total_bytes > limit_bytes:
            break
        target = destination / path.relative_to(ray)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, target)
