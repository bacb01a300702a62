"""One unit on its lease, from its directories to its one outcome.

    lease ─▶ directories, environment ─▶ supervisor ─▶ (tree proven gone) ─▶ report, outcome
          ─▶ Ray's logs kept, TMPDIR removed ─▶ GPUs back at their baseline? LeaseReturned or GpuQuarantined
          ─▶ UnitFinished

An order to end it is remembered, since it may come before there is a supervisor to give it to.
"""

import asyncio
import math
import os
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

from harness.core.errors import HarnessError, ReportError
from harness.core.regular_file import NOTHING
from harness.core.report_file import ReportTail, TestReport
from harness.core.test_outcomes import TestOutcome
from harness.machine.gpu_watch import GpuWatch
from harness.process.child_env import child_env
from harness.process.ports import PortBlocks
from harness.process.scratch import remove_tree
from harness.process.supervisor_client import ProcessEnd, ProcessSpec
from harness.runner import events
from harness.runner.collect import NO_WORKERS, Collected
from harness.runner.leases import Lease
from harness.runner.options import RunOptions, runs_parts_of_files
from harness.runner.outcomes import Reported, classify_outcome
from harness.runner.part_file import PART_FILE, PARTS, write_part
from harness.runner.pytest_command import pytest_command
from harness.runner.retries import Retries
from harness.runner.units import Outcome, Unit, UnitResult
from harness.runner.warm_parent import WarmParent

WITHOUT_XDIST = {"numprocesses": 0, "dist": "no", "tx": []}
"""What `-n0` sets."""
MAX_RAY_LOGS_BYTES = 64 * 2**20
TEST_OUTCOMES = frozenset(TestOutcome)

Post = Callable[[events.Event], None]


class Attempts(Protocol):
    """Carries out attempts, and takes orders about them: `attempt.Supervisors` outside tests."""

    async def run(self, spec: ProcessSpec, on_terminating: Callable[[str], None] = ...) -> ProcessEnd:
        """Carry one out to its proven end."""

    def cancel(self, marker: str) -> None:
        """End one in order."""

    def kill(self, marker: str) -> None:
        """End one at once."""


@dataclass(slots=True)
class UnitRunner:
    """Shared state of the attempts of one run; the side effects of one attempt are all here."""

    options: RunOptions
    collected: Collected
    attempts: Attempts
    watch: GpuWatch
    ports: PortBlocks
    run_id: str
    run_directory: Path
    scratch: Path
    """Short and local; each attempt's TMPDIR is a directory in it."""
    t: Callable[[], float]
    """Seconds since the run began."""
    warm: WarmParent | None = None
    """The warm session, which learns what the files import; None without one."""
    pins: Mapping[str, str] | None = None
    """Variables that the network preflight sets in every child's environment; None without a preflight."""
    post: Post = lambda event: None
    """Where events go; the dispatcher puts its queue here."""
    followed: dict[int, tuple[str, ReportTail]] = field(default_factory=dict)
    """Running units: path and report, by number."""
    cancelled: set[int] = field(default_factory=set)
    killed: set[int] = field(default_factory=set)
    """Units whose end was asked for, and those of them that are to end at once."""
    retries: Retries = field(default_factory=lambda: Retries(0))
    notes: list[str] = field(default_factory=list)
    """Problems apart from the tests, such as a temporary directory that could not be removed."""

    def marker(self, number: int) -> str:
        """The text by which the processes of unit `number` can be found."""
        return f"{self.run_id}-{self.retries.name(number)}"

    def directory(self, number: int) -> Path:
        """Where the attempt of unit `number` keeps its files."""
        return self.run_directory / "units" / self.retries.name(number)

    def tmpdir(self, number: int) -> Path:
        """The TMPDIR of unit `number`."""
        return self.scratch / self.retries.name(number)

    async def run(self, number: int, unit: Unit, lease: Lease) -> None:
        """Run `unit`; its last event is its UnitFinished or AttemptFailed, after the fate of its GPUs."""
        directory, gpu_ids = self.directory(number), lease.gpu_ids
        self.post(events.AttemptStarted(self.t(), unit.path, gpu_ids, lease.slot, str(directory)))
        baseline = await self.watch.baseline(gpu_ids)
        unkillable: tuple[str, ...] = ()
        report = TestReport()
        tail = ReportTail(directory / "report.jsonl")
        try:
            end, timeout_s = await self._attempt(number, self.retries.asked(number, unit), lease, tail)
        except (OSError, HarnessError) as error:  # a full disk, no port left: this unit's failure, not the run's
            why = " ".join(f"the attempt could not be started: {error}".split())
            result = UnitResult(unit, Outcome.SUPERVISOR_LOST, why)
        else:
            unkillable = end.unkillable
            report = await asyncio.to_thread(_read, tail)
            result = _result(unit, end, report, timeout_s, gpu_ids=gpu_ids, directory=directory)
            self.notes += _put_back(tail, unit.path)
            if report.unread and not result.outcome.is_failure:  # of a failure it is the reason
                self.notes.append(f"{unit.path}: {report.unread}")
            if unit.selection or unit.part or runs_parts_of_files(self.options.invocation.trailing):
                result = replace(result, collected_need=None)  # of some tests, where the plan holds that of all
        finally:
            tail.close()
        await asyncio.to_thread(self._clean_up, number, result)
        await self._return_gpus(number, unit.path, unkillable, gpu_ids, baseline)
        event = await asyncio.to_thread(self.retries.end, number, result, report)
        self.post(replace(event, t=self.t()))
        if self.warm is not None:
            await self.warm.learn(report.imported)

    async def _attempt(self, number: int, unit: Unit, lease: Lease, tail: ReportTail) -> tuple[ProcessEnd, float]:
        """How the attempt ended, and the limit it had; OSError or HarnessError where it could not be started."""
        self.directory(number).mkdir(parents=True)
        if unit.part:
            write_part(self.directory(number) / PART_FILE, self.collected.parts[unit.path])
        tail.file.make()  # before there are tests: whatever these do to its name, this file is theirs
        self.tmpdir(number).mkdir(mode=0o700, parents=True)  # parents: a test may have deleted them
        spec = self._spec(number, unit, lease)
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
            if event := _test_event(self.t(), path, record):
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

    def _spec(self, number: int, unit: Unit, lease: Lease) -> ProcessSpec:
        directory, tmpdir = self.directory(number), self.tmpdir(number)
        invocation = self.options.invocation
        report, basetemp, is_named = str(directory / "report.jsonl"), str(tmpdir / "pytest"), self._is_named(unit)
        paths = [self._from_cwd(path) for path in unit.selection or (unit.file_path,)]
        options = {"rlharness_report": report, "basetemp": basetemp, "rlharness_as_found": not is_named}
        part = str(directory / PART_FILE) if unit.part else None
        return ProcessSpec(
            argv=(
                *pytest_command(self.options),
                *("-p", "harness.plugin", f"--rlharness-report={report}", f"--basetemp={basetemp}"),
                *(() if is_named else ("--rlharness-as-found",)),
                *(("-p", PARTS, f"--rlharness-part={part}") if part else ()),
                *invocation.trailing,
                *self.collected.pytest_args,
                *paths,
            ),
            session={
                "args": paths,
                "options": options
                | ({"rlharness_part": part} if part else {})
                | (WITHOUT_XDIST if NO_WORKERS in self.collected.pytest_args else {}),
                "plugins": [PARTS] if part else [],
            },
            cwd=str(invocation.cwd),
            env=child_env(
                invocation.environ,
                gpus=lease.gpus,
                tmpdir=str(tmpdir),
                marker=self.marker(number),
                master_port=self.ports.master_port(lease.slot),
                by_number=self.options.by_number,
                pins=self.pins,
            ),
            directory=str(directory),
            marker=self.marker(number),
            timeout_s=unit.timeout_s or self.options.timeout_s,
            startup_timeout_s=self.options.collect_timeout_s,
            grace_s=self.options.grace_s,
        )

    def _is_named(self, unit: Unit) -> bool:
        """Whether the command line names this very file, which pytest then takes whatever it is called."""
        cwd, file = self.options.invocation.cwd, os.path.abspath(self.collected.rootdir / unit.file_path)
        return any(os.path.abspath(cwd / path.partition("::")[0]) == file for path in self.options.paths)

    def _from_cwd(self, path: str) -> str:
        """A path or node id below the root directory, as pytest is to be given it in the working directory."""
        file, colons, rest = path.partition("::")  # what follows is no path, though it may hold slashes
        relative = os.path.relpath(self.collected.rootdir / file, self.options.invocation.cwd)
        return ("./" if relative.startswith("-") else "") + relative + colons + rest

    async def _return_gpus(
        self, number: int, path: str, unkillable: tuple[str, ...], gpu_ids: tuple[str, ...], baseline: dict[str, int]
    ) -> None:
        """Wait until the GPUs' memory is back; a GPU on which it does not come back is quarantined."""
        if unkillable:
            held = dict.fromkeys(gpu_ids, f"SIGKILL did not end a process: {unkillable[0]}")
        else:
            held = await self.watch.not_back(gpu_ids, baseline, hurry=lambda: number in self.killed)
        for gpu_id, reason in held.items():
            self.post(events.GpuQuarantined(self.t(), path, gpu_id, reason))
        if free := tuple(gpu_id for gpu_id in gpu_ids if gpu_id not in held):
            self.post(events.LeaseReturned(self.t(), path, free))

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


def _test_event(t: float, path: str, record: dict[str, Any]) -> events.Event | None:
    """What a line of a report says about a test; None for any other line, and for what a test itself wrote there."""
    match record:
        case {"k": "start", "id": str(nodeid), "timeout_s": None | int() | float() as timeout_s}:
            if timeout_s is None or _is_number(timeout_s):
                return events.TestStarted(t, path, nodeid, timeout_s)
        case {"k": "end", "id": str(nodeid), "outcome": str(outcome), "duration_s": int() | float() as duration_s}:
            if outcome in TEST_OUTCOMES and _is_number(duration_s):
                return events.TestFinished(t, path, nodeid, outcome, duration_s)
    return None


def _is_number(value: float) -> bool:
    """Whether a number of a report can be told as seconds."""
    try:
        return math.isfinite(value)
    except OverflowError:  # JSON has integers of any length
        return False


def _read(tail: ReportTail) -> TestReport:
    """What the report of an attempt says; nothing, and the reason, where it cannot be read."""
    try:
        return tail.report()
    except (ReportError, OSError) as error:
        return TestReport(unread=" ".join(str(error).split()))


def _put_back(tail: ReportTail, path: str) -> list[str]:
    """A note where the report's name leads to something else, and a copy of the report in its place if possible."""
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


def _result(
    unit: Unit, end: ProcessEnd, report: TestReport, timeout_s: float, *, gpu_ids: tuple[str, ...], directory: Path
) -> UnitResult:
    outcome, reason = classify_outcome(end, _reported(report), timeout_s)
    return UnitResult(
        unit=unit,
        outcome=outcome,
        reason=reason,
        duration_s=end.duration_s,
        gpu_ids=gpu_ids,
        tests=report.counts(),
        skip_reasons=report.skip_reasons(),
        left_behind=end.left_behind,
        collected_need=report.collected_need if report.nodeids else None,
        directory=str(directory),
    )


def why_uncollected(unit: Unit) -> str:
    """Return one line on why a unit cannot be run; the text of one that hung ends with its stacks."""
    if unit.collect_timed_out:
        return "the import of the file exceeded its time limit"
    return last_line(unit.collect_error)


def last_line(text: str) -> str:
    """The last line of a traceback, which names the error; "" for no text."""
    return text.strip().rpartition("\n")[2].removeprefix("E ").strip()


def _reported(report: TestReport) -> Reported:
    errors = [last_line(text) or nodeid for nodeid, text in report.collect_errors]
    return Reported(
        pytest_exit=report.finished_exit,
        running=report.running[0] if report.running else "",
        num_ended=len(report.ends),
        running_limit_s=report.running_limit_s,
        collect_error=errors[0] if errors else "",
        num_failed=sum(e.outcome in (TestOutcome.FAILED, TestOutcome.ERROR) for e in report.ends.values()),
        refused="; ".join(report.refused.splitlines()),
        unread=report.unread,
    )
