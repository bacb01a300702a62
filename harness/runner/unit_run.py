"""One unit on its lease, from its directories to its one outcome.

    lease ─▶ directories, environment ─▶ supervisor ─▶ (tree proven gone) ─▶ report, outcome
          ─▶ Ray's logs kept, TMPDIR removed ─▶ cards back at their baseline? LeaseReturned or GpuQuarantined
          ─▶ UnitFinished
"""

import asyncio
import os
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from harness.clock import Clock
from harness.errors import HarnessError, ReportError
from harness.machine.child_env import child_env
from harness.machine.meter import MemoryMeter, return_to_baseline
from harness.machine.ports import PortBlocks
from harness.machine.scratch import remove_tree
from harness.runner import events
from harness.runner.attempt import AttemptEnd, AttemptSpec, Supervisors
from harness.runner.collect import Collected
from harness.runner.leases import Lease
from harness.runner.options import RunOptions
from harness.runner.outcomes import Reported, judge
from harness.runner.report_file import ReportTail, TestReport, read_report
from harness.runner.units import Outcome, TestOutcome, Unit, UnitResult

MEMORY_POLL_S = 0.25
MEMORY_WAIT_S = 20.0
MAX_RAY_LOGS_BYTES = 64 * 2**20

Post = Callable[[events.Event], None]


@dataclass(slots=True)
class UnitRunner:
    """What the attempts of one run share; the side effects of one attempt are all here."""

    options: RunOptions
    collected: Collected
    supervisors: Supervisors
    meter: MemoryMeter
    ports: PortBlocks
    clock: Clock
    run_id: str
    run_directory: Path
    scratch: Path
    """Short and local; each attempt's TMPDIR is a directory in it."""
    t: Callable[[], float]
    """Seconds since the run began."""
    post: Post = lambda event: None  # noqa: E731
    """Where events go; the dispatcher puts its queue here."""
    followed: dict[int, tuple[str, ReportTail]] = field(default_factory=dict)
    """Running units: path and report, by number."""
    notes: list[str] = field(default_factory=list)
    """What went wrong beside the tests: a temporary directory that could not be removed."""

    def marker(self, number: int) -> str:
        """The text by which the processes of unit `number` can be found."""
        return f"{self.run_id}-{number:04d}"

    def directory(self, number: int) -> Path:
        """Where the attempt of unit `number` keeps its files."""
        return self.run_directory / "units" / f"{number:04d}"

    async def run(self, number: int, unit: Unit, lease: Lease) -> None:
        """Run `unit`; its last event is its UnitFinished, after the fate of its cards."""
        directory = self.directory(number)
        gpu_ids = tuple(gpu.gpu_id for gpu in lease.gpus)
        self.post(events.AttemptStarted(self.t(), unit.path, gpu_ids, lease.slot, str(directory)))
        try:
            result = await self._attempt(number, unit, lease, gpu_ids)
        except (OSError, HarnessError) as error:  # a full disk, no port left: this unit's failure, not the run's
            if gpu_ids:
                self.post(events.LeaseReturned(self.t(), unit.path, gpu_ids))
            result = UnitResult(unit, Outcome.SUPERVISOR_LOST, f"the attempt could not be started: {error}")
        self.post(events.UnitFinished(self.t(), result))

    async def _attempt(self, number: int, unit: Unit, lease: Lease, gpu_ids: tuple[str, ...]) -> UnitResult:
        directory, tmpdir = self.directory(number), self.scratch / f"{number:04d}"
        directory.mkdir(parents=True)
        tmpdir.mkdir(mode=0o700)
        baseline = self.meter.used_memory_bytes(gpu_ids)
        spec = self._spec(number, unit, lease)
        self.followed[number] = (unit.path, ReportTail(directory / "report.jsonl"))
        end = await self.supervisors.run(
            spec, lambda reason: self.post(events.AttemptTerminating(self.t(), unit.path, reason))
        )
        self.follow(number)
        del self.followed[number]
        result = _result(unit, end, directory, gpu_ids, spec.timeout_s)
        await asyncio.to_thread(self._clean_up, tmpdir, directory, result.outcome)
        await self._return_cards(unit.path, end, gpu_ids, baseline)
        return result

    def follow(self, number: int) -> None:
        """Post what the tests of unit `number` have done since the last time."""
        if followed := self.followed.get(number):
            path, tail = followed
            for record in tail.poll():
                if event := _test_event(self.t(), path, record):
                    self.post(event)

    def cancel(self, number: int) -> None:
        """End the attempt of unit `number` in order."""
        self.supervisors.cancel(self.marker(number))

    def kill(self, number: int) -> None:
        """End the attempt of unit `number` at once."""
        self.supervisors.kill(self.marker(number))

    def _spec(self, number: int, unit: Unit, lease: Lease) -> AttemptSpec:
        directory, tmpdir = self.directory(number), self.scratch / f"{number:04d}"
        invocation = self.options.invocation
        return AttemptSpec(
            argv=(
                *pytest_command(self.options),
                *("-p", "harness.plugin", f"--rlharness-report={directory / 'report.jsonl'}"),
                f"--basetemp={tmpdir / 'pytest'}",
                *self.collected.pytest_args,
                *invocation.pytest_args,
                *(self._from_cwd(path) for path in unit.selection or (unit.path,)),
            ),
            cwd=str(invocation.cwd),
            env=child_env(
                invocation.environ,
                gpus=lease.gpus,
                tmpdir=str(tmpdir),
                marker=self.marker(number),
                master_port=self.ports.master_port(lease.slot),
                by_number=self.options.by_number,
            ),
            directory=str(directory),
            marker=self.marker(number),
            timeout_s=unit.timeout_s or self.options.timeout_s,
            startup_timeout_s=self.options.collect_timeout_s,
            grace_s=self.options.grace_s,
        )

    def _from_cwd(self, path: str) -> str:
        """A path or node id below the root directory, as pytest is to be given it in the working directory."""
        return os.path.relpath(self.collected.rootdir / path, self.options.invocation.cwd)

    async def _return_cards(
        self, path: str, end: AttemptEnd, gpu_ids: tuple[str, ...], baseline: dict[str, int]
    ) -> None:
        """Wait until the cards' memory is back; a card on which it does not come back is quarantined."""
        if end.unkillable:
            for gpu_id in gpu_ids:
                self._quarantine(path, gpu_id, f"a process that SIGKILL does not end: {end.unkillable[0]}")
            return
        held = self._held(gpu_ids, baseline)
        until_s = self.clock.monotonic_s() + MEMORY_WAIT_S
        while held and self.clock.monotonic_s() < until_s:
            await asyncio.sleep(MEMORY_POLL_S)
            held = self._held(gpu_ids, baseline)
        for gpu_id, reason in held.items():
            self._quarantine(path, gpu_id, reason)
        if free := tuple(gpu_id for gpu_id in gpu_ids if gpu_id not in held):
            self.post(events.LeaseReturned(self.t(), path, free))

    def _held(self, gpu_ids: tuple[str, ...], baseline: dict[str, int]) -> dict[str, str]:
        """Cards that are not back, and who holds each."""
        now = self.meter.used_memory_bytes(gpu_ids)
        held: dict[str, str] = {}
        for gpu_id in gpu_ids:
            processes = self.meter.processes_on(gpu_id)
            still = return_to_baseline(baseline.get(gpu_id), now.get(gpu_id), processes, our_pids=())
            if still is not None:
                held[gpu_id] = still.reason
        return held

    def _quarantine(self, path: str, gpu_id: str, reason: str) -> None:
        self.post(events.GpuQuarantined(self.t(), path, gpu_id, reason))

    def _clean_up(self, tmpdir: Path, directory: Path, outcome: Outcome) -> None:
        if outcome.is_failure or outcome is Outcome.INTERRUPTED:
            keep_ray_logs(tmpdir / "ray", directory / "ray_logs")
            if self.options.keep_tmp:
                self.notes.append(f"kept {tmpdir}")
                return
        if complaint := remove_tree(str(tmpdir)):
            self.notes.append(complaint)


def pytest_command(options: RunOptions) -> tuple[str, ...]:
    """How every pytest process of a run begins."""
    command = [sys.executable, *(["-P"] if options.safe_path else []), "-m", "pytest"]
    return (*command, "--color=yes") if options.colour else tuple(command)


def keep_ray_logs(ray: Path, destination: Path, limit_bytes: int = MAX_RAY_LOGS_BYTES) -> None:
    """Copy the logs of the Ray clusters under `ray` to `destination`, smallest files first, up to a limit."""
    found = [p for p in ray.glob("session_*/logs/**/*") if p.is_file() and not p.is_symlink()]
    sized = sorted((path.stat().st_size, path) for path in found)
    total = 0
    for size, path in sized:
        total += size
        if total > limit_bytes:
            break
        target = destination / path.relative_to(ray)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, target)


def _test_event(t: float, path: str, record: dict[str, Any]) -> events.Event | None:
    nodeid = str(record.get("id", ""))
    if record.get("k") == "start":
        return events.TestStarted(t, path, nodeid, record.get("timeout_s"))
    if record.get("k") == "end":
        return events.TestFinished(t, path, nodeid, str(record.get("outcome")), float(record.get("duration_s", 0)))
    return None


def _result(unit: Unit, end: AttemptEnd, directory: Path, gpu_ids: tuple[str, ...], timeout_s: float) -> UnitResult:
    try:
        report = read_report(directory / "report.jsonl")
        outcome, reason = judge(end, _reported(report), timeout_s)
    except (ReportError, OSError) as error:
        report = TestReport()
        outcome, reason = Outcome.CRASHED, f"its report cannot be read: {error}"
    return UnitResult(
        unit=unit,
        outcome=outcome,
        reason=reason,
        duration_s=end.duration_s,
        gpu_ids=gpu_ids,
        tests=report.counts(),
        skip_reasons=report.skip_reasons(),
        left_behind=end.left_behind,
        collected_need=report.collected_need,
        directory=str(directory),
    )


def last_line(text: str) -> str:
    """The last line of a traceback, which names the error; "" for no text."""
    return text.strip().rpartition("\n")[2].strip()


def _reported(report: TestReport) -> Reported:
    errors = [last_line(text) or nodeid for nodeid, text in report.collect_errors]
    return Reported(
        pytest_exit=report.finished_exit,
        running=report.running[0] if report.running else "",
        num_ended=len(report.ends),
        collect_error=errors[0] if errors else "",
        num_failed=sum(e.outcome in (TestOutcome.FAILED, TestOutcome.ERROR) for e in report.ends.values()),
    )
