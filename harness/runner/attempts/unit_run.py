"""One unit on its lease, from its directories to its one outcome.

    lease ─▶ directories, environment ─▶ supervisor ─▶ (tree proven gone) ─▶ report, outcome
          ─▶ Ray's logs kept, TMPDIR removed ─▶ GPUs back at their baseline? LeaseReturned or GpuQuarantined
          ─▶ UnitFinished

An order to end it is remembered, since it may come before there is a supervisor to give it to.
"""

import asyncio
import os
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from math import inf
from pathlib import Path

from harness.core.errors import HarnessError
from harness.core.report_file import ReportTail, TestReport
from harness.machine.gpu_watch import GpuWatch
from harness.process.child_env import child_env, xdist_variables
from harness.process.ports import PortBlocks
from harness.process.scratch import remove_tree
from harness.process.supervisor_client import ProcessEnd, ProcessSpec
from harness.runner import events
from harness.runner.attempts.attempt_report import put_back, read_attempt_report
from harness.runner.attempts.gpu_suspicion import GpuSuspicion
from harness.runner.attempts.host import NODE_LOST, Host, HostOf
from harness.runner.attempts.lease_end import end_lease, refuse_lease
from harness.runner.attempts.memory_sampler import MemorySampler
from harness.runner.attempts.ray_logs import keep_ray_logs
from harness.runner.attempts.report_events import test_event
from harness.runner.attempts.shared_watch import SharedWatch
from harness.runner.attempts.unit_result import unforked_note, unit_result
from harness.runner.collection.collect import NO_WORKERS, Collected
from harness.runner.collection.command_units import SHELL, write_end, write_start
from harness.runner.gpu_memory import GpuMemoryUse
from harness.runner.isolation_notes import IsolationNote
from harness.runner.options import RunOptions, runs_parts_of_files
from harness.runner.reruns.retries import Retries
from harness.runner.schedule.leases import Lease
from harness.runner.selections import split_node_id, split_selections
from harness.runner.sessions.part_file import PART_FILE, PartTests, write_part
from harness.runner.sessions.plugin_names import FOR_TESTS, FORKED_TESTS, OWN_COVERAGE, PARTS, odd_name_plugins
from harness.runner.sessions.pytest_command import pytest_command
from harness.runner.sessions.warm_parent import WarmParent
from harness.runner.sessions.workers import Attempts, Workers
from harness.runner.units import Outcome, Unit, UnitResult

WITHOUT_XDIST = {"numprocesses": 0, "dist": "no", "tx": []}
"""What `-n0` sets."""
COVERAGE_FILE = "COVERAGE_FILE"
UNITS = "units"
"""Name of the directory of all attempts in the directory of a run."""
MAX_LOST = 3
"""Nodes that may be lost while a unit runs on them; after the last, the unit itself is suspected and not run again."""

Post = Callable[[events.Event], None]


Check = Callable[["UnitRunner", int, Lease, UnitResult, TestReport], Awaitable[tuple[UnitResult, tuple[str, ...]]]]
"""Returns the result of a unit, and processes that SIGKILL did not end."""


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
    shared_watch: SharedWatch | None = None
    sampler: MemorySampler | None = None
    """Measures the GPU memory of attempts; made for the first of them."""
    num_slots: int = 1
    """Number of GPUs and CPU slots of the run."""
    warm: WarmParent | None = None
    """The warm session, which learns what the files import; None without one."""
    workers: Workers | None = None
    """Those that carry out the attempts; None where each attempt has a process of its own."""
    command_attempts: Attempts | None = None
    """What carries out commands; None for `attempts`."""
    host_of: HostOf | None = None
    """The host of each lease in a cluster; None where everything runs on this machine."""
    active: dict[int, Attempts] = field(default_factory=dict)
    """What carries out the present attempt of each running unit, by its number."""
    lost: dict[int, list[str]] = field(default_factory=dict)
    """Nodes that were lost while a unit ran on them, by its number."""
    setup_env: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """Variables that setup scripts have exported, by the path of the unit."""
    held_by_workers: dict[tuple[str, ...], dict[str, int]] = field(default_factory=dict)
    """Memory that was in use on GPUs before the worker that has them."""
    pins: Mapping[str, str] | None = None
    """Variables that the network preflight sets in every child's environment; None without a preflight."""
    post: Post = lambda event: None
    """Where events go; the dispatcher puts its queue here."""
    followed: dict[int, tuple[str, ReportTail]] = field(default_factory=dict)
    """Running units: path and report, by number."""
    present: dict[int, str] = field(default_factory=dict)
    """Node id of the test that each running unit runs now, as its report says; empty between tests."""
    cancelled: set[int] = field(default_factory=set)
    killed: set[int] = field(default_factory=set)
    """Units whose end was asked for, and those of them that are to end at once."""
    suspicion: GpuSuspicion = field(default_factory=GpuSuspicion)
    retries: Retries = field(default_factory=lambda: Retries(0))
    check_leaning: "Check | None" = None
    """Settles whether a failing file passes after those before it; None where that is not asked for."""
    notes: list[str] = field(default_factory=list)
    """Problems apart from the tests, such as a temporary directory that could not be removed."""
    isolation: list[IsolationNote] = field(default_factory=list)
    """Files whose tests were not forked."""

    def marker(self, number: int) -> str:
        """The text by which the processes of unit `number` can be found."""
        return f"{self.run_id}-{self.name(number)}"

    def name(self, number: int) -> str:
        """Return the name of the present attempt, which no other attempt of the run has."""
        num_lost = len(self.lost.get(number, ()))
        return self.retries.name(number) + (f"+{num_lost}" if num_lost else "")

    def directory(self, number: int) -> Path:
        """Where the attempt of unit `number` keeps its files."""
        return self.run_directory / UNITS / self.name(number)

    def tmpdir(self, number: int) -> Path:
        """The TMPDIR of unit `number`."""
        return self.scratch / self.name(number)

    async def run(self, number: int, unit: Unit, lease: Lease) -> None:
        """Run `unit`; its last event is its UnitFinished, AttemptFailed or LeaseRefused, after the fate of its GPUs."""
        directory, gpu_ids = self.directory(number), lease.gpu_ids
        self.post(events.AttemptStarted(self.t(), unit.path, gpu_ids, lease.slot, str(directory)))
        env = self._env(unit, lease, "", "", 0)
        baseline, unfit = await self._check(unit, lease, env)
        if unfit:
            refuse_lease(self.post, self.t(), unit.path, gpu_ids, unfit)
            return
        unkillable: tuple[str, ...] = ()
        spent = False
        report = TestReport()
        tail = ReportTail(directory / "report.jsonl")
        try:
            end, timeout_s, memory = await self._measured(number, self.retries.asked(number, unit), lease, tail)
        except (OSError, HarnessError) as error:  # a full disk, no port left: this unit's failure, not the run's
            why = " ".join(f"the attempt could not be started: {error}".split())
            result = UnitResult(unit, Outcome.SUPERVISOR_LOST, why)
        else:
            if end.reason == NODE_LOST:
                if self._is_lost(number, unit, lease):
                    return
                end = replace(end, reason="cancelled") if number in self.cancelled else end
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
        await asyncio.to_thread(self._clean_up, number, result)
        if self.workers is not None and self.workers.has(env):
            self.held_by_workers[gpu_ids] = baseline
            end_lease(self.post, self.t(), unit.path, gpu_ids, self._suspected(result, gpu_ids))
        else:
            await self._return_gpus(number, result, unkillable, lease, baseline)
        event = await asyncio.to_thread(partial(self.retries.end, number, result, report, spent=spent))
        self.post(replace(event, t=self.t()))
        if self.warm is not None:
            await self.warm.learn(report.imported)

    def _is_lost(self, number: int, unit: Unit, lease: Lease) -> bool:
        """Take note that the node of an attempt was lost; whether its unit is queued again for it."""
        node, lost = lease.nodes[0], self.lost.setdefault(number, [])
        lost.append(node)
        if len(lost) >= MAX_LOST or number in self.cancelled:
            return False
        reason = f"{' or '.join(lease.nodes)} was lost while it ran"
        self.post(events.AttemptLost(self.t(), unit.path, node, lease.gpu_ids, reason))
        return True

    def _is_comparable(self, number: int, result: UnitResult) -> bool:
        """Whether the need of the tests that were collected shows whether the plan was right.

        The plan has the need of all tests. Those of a part may need less, never more.
        """
        unit, found = result.unit, result.collected_need
        is_whole = not (
            unit.selection
            or unit.command
            or self.retries.rest(number)
            or runs_parts_of_files(self.options.invocation.trailing)
        )
        return is_whole and found is not None and (unit.part is None or found.exceeds(unit.need))

    async def _check(self, unit: Unit, lease: Lease, env: Mapping[str, str]) -> tuple[dict[str, int], dict[str, str]]:
        """Memory in use on GPUs before the attempt (or before the worker that holds them), and why GPUs are unfit."""
        gpu_ids = lease.gpu_ids
        unfit: dict[str, str] = {}
        if self.workers is not None:
            if not unit.command and self.workers.has(env) and (known := self.held_by_workers.get(gpu_ids)) is not None:
                return known, unfit
            await self.workers.make_room(env, keeps_fitting=unit.command is None)
            for others in [each for each in self.held_by_workers if set(each) & set(gpu_ids)]:
                held = await self.watch.not_back(others, self.held_by_workers.pop(others), hurry=lambda: False)
                unfit |= {gpu_id: f"after a worker: {why}" for gpu_id, why in held.items() if gpu_id in gpu_ids}
        baseline, found = await self._watch_of(lease).check(gpu_ids)
        return baseline, found | unfit

    def _watch_of(self, lease: Lease) -> GpuWatch | SharedWatch:
        if self.shared_watch is None:
            self.shared_watch = SharedWatch(self.watch)
        return self.shared_watch if lease.budget_bytes else self.watch

    async def run_attempt(self, number: int, unit: Unit, lease: Lease, tail: ReportTail) -> tuple[ProcessEnd, float]:
        """How the attempt ended, and the limit it had; OSError or HarnessError where it could not be started."""
        self.directory(number).mkdir(parents=True)
        if rest := self.retries.rest(number):
            write_part(self.directory(number) / PART_FILE, PartTests(mine=rest))
        elif unit.part:
            write_part(self.directory(number) / PART_FILE, self.collected.parts[unit.path])
        tail.file.make()  # before there are tests: whatever these do to its name, this file is theirs
        self.tmpdir(number).mkdir(mode=0o700, parents=True)  # parents: a test may have deleted them
        spec = self._spec(number, unit, lease)
        if number in self.cancelled:  # while the driver was asked
            return ProcessEnd(None, None, "cancelled", (), (), 0.0), spec.timeout_s
        self.followed[number] = (unit.path, tail)
        try:
            if unit.command:
                write_start(Path(tail.file.path), unit)
            self.active[number] = self._attempts_of(unit, lease)
            end = await self.active[number].run(
                spec, lambda reason: self.post(events.AttemptTerminating(self.t(), unit.path, reason))
            )
            if unit.command:
                write_end(Path(tail.file.path), unit, end, spec.timeout_s)
            while self.follow(number):
                await asyncio.sleep(0)  # signals are heard, however much there is
        finally:
            self.followed.pop(number, None)
            self.active.pop(number, None)
        return end, spec.timeout_s

    async def _measured(
        self, number: int, unit: Unit, lease: Lease, tail: ReportTail
    ) -> tuple[ProcessEnd, float, GpuMemoryUse | None]:
        """The answer of `run_attempt`, and the GPU memory that the attempt used."""
        attempts, marker = self._attempts_of(unit, lease), self.marker(number)
        sampler = self.memory_sampler()
        sampler.begin(number, lease.gpu_ids, lambda: attempts.pid_of(marker), lambda: self._present_test(number))
        try:
            end, timeout_s = await self.run_attempt(number, unit, lease, tail)
        finally:
            memory = await sampler.end(number)
            self.present.pop(number, None)
        return end, timeout_s, memory

    def memory_sampler(self) -> MemorySampler:
        """Return the sampler of the run, and make it for the first attempt."""
        if self.sampler is None:
            self.sampler = MemorySampler(self.watch.meter, t=self.t, post=self.post)
        return self.sampler

    def _attempts_of(self, unit: Unit, lease: Lease) -> Attempts:
        if self.host_of is not None:
            return self.host_of(lease).attempts
        return self.command_attempts if unit.command and self.command_attempts else self.attempts

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
        if attempts := self.active.get(number):
            attempts.cancel(self.marker(number))

    def kill(self, number: int) -> None:
        """End the attempt of unit `number` at once."""
        self.cancelled.add(number)
        self.killed.add(number)
        if attempts := self.active.get(number):
            attempts.kill(self.marker(number))

    def _host(self, lease: Lease) -> Host:
        if self.host_of is not None:
            return self.host_of(lease)
        return Host(self.attempts, self.run_directory, self.scratch, self.options.invocation.cwd)

    def _spec(self, number: int, unit: Unit, lease: Lease) -> ProcessSpec:
        spec = self._pytest_spec(number, unit, lease)
        if unit.command is None:
            return spec
        argv = (*SHELL, unit.command.line)
        cwd = os.path.normpath(self._host(lease).cwd / os.path.relpath(unit.command.cwd, self.options.invocation.cwd))
        return replace(spec, argv=argv, session=None, cwd=cwd, startup_timeout_s=inf)

    def _pytest_spec(self, number: int, unit: Unit, lease: Lease) -> ProcessSpec:
        host, invocation = self._host(lease), self.options.invocation
        directory = host.directory / self.directory(number).relative_to(self.run_directory)
        tmpdir = host.scratch / self.tmpdir(number).relative_to(self.scratch)
        report, basetemp, is_named = str(directory / "report.jsonl"), str(tmpdir / "pytest"), self._is_named(unit)
        paths = [self.from_cwd(path) for path in unit.selection or unit.together or (unit.file_path,)]
        options = {"rlharness_report": report, "basetemp": basetemp, "rlharness_as_found": not is_named}
        plugins = (*FOR_TESTS, *odd_name_plugins(paths, invocation.cwd))
        part = str(directory / PART_FILE) if unit.part or self.retries.rest(number) else None
        is_measured = self.collected.coverage is not None
        own_file = {COVERAGE_FILE: str(directory / ".coverage")} if is_measured else {}
        grace_s = self.options.grace_s if self.options.isolate == "test" else None
        return ProcessSpec(
            argv=(
                *pytest_command(self.options, host.python),
                *(word for name in ("harness.plugin", *plugins) for word in ("-p", name)),
                *(f"--rlharness-report={report}", f"--basetemp={basetemp}"),
                *(("-p", OWN_COVERAGE) if is_measured else ()),
                *(() if is_named else ("--rlharness-as-found",)),
                *(("-p", PARTS, f"--rlharness-part={part}") if part else ()),
                *(("-p", FORKED_TESTS, f"--rlharness-fork-tests={grace_s}") if grace_s is not None else ()),
                *invocation.trailing,
                *self.collected.pytest_args,
                *paths,
            ),
            session={
                "args": paths,
                "options": options
                | ({"rlharness_part": part} if part else {})
                | ({"rlharness_fork_tests": grace_s} if grace_s is not None else {})
                | (WITHOUT_XDIST if NO_WORKERS in self.collected.pytest_args else {}),
                "plugins": [*plugins] + [PARTS] * bool(part) + [FORKED_TESTS] * (grace_s is not None),
            },
            cwd=str(host.cwd),
            env=self._env(unit, lease, str(tmpdir), self.marker(number), self._master_port(host, lease)) | own_file,
            directory=str(directory),
            marker=self.marker(number),
            timeout_s=self.retries.limit_s(number, unit.timeout_s or self.options.timeout_s),
            startup_timeout_s=self.options.collect_timeout_s,
            grace_s=self.options.grace_s,
        )

    def _master_port(self, host: Host, lease: Lease) -> int:
        """The port of a lease on this machine; 0 elsewhere, where the node has its own."""
        return self.ports.master_port(lease.slot) if host.is_here else 0

    def _env(self, unit: Unit, lease: Lease, tmpdir: str, marker: str, master_port: int) -> dict[str, str]:
        own = unit.command.variables() if unit.command else {}
        environ = self._host(lease).environ
        return child_env(
            {
                **(self.options.invocation.environ if environ is None else environ),
                **self.setup_env.get(unit.path, {}),
                **own,
            },
            gpus=lease.gpus,
            tmpdir=tmpdir,
            marker=marker,
            master_port=master_port,
            by_number=self.options.by_number,
            pins=self.pins,
            xdist=xdist_variables(lease.slot, self.num_slots, self.run_id),
        )

    def _is_named(self, unit: Unit) -> bool:
        """Whether the command line names this very file, which pytest then takes whatever it is called."""
        cwd, file = self.options.invocation.cwd, os.path.abspath(self.collected.rootdir / unit.file_path)
        return any(str(each.absolute) == file for each in split_selections(self.options.paths, cwd))

    def from_cwd(self, path: str) -> str:
        """A path or node id below the root directory, as pytest is to be given it in the working directory."""
        file, rest = split_node_id(path, self.collected.rootdir)  # the rest is no path, though it may hold slashes
        relative = os.path.relpath(self.collected.rootdir / file, self.options.invocation.cwd)
        return ("./" if relative.startswith("-") else "") + relative + (f"::{rest}" if rest else "")

    async def _return_gpus(
        self, number: int, result: UnitResult, unkillable: tuple[str, ...], lease: Lease, baseline: dict[str, int]
    ) -> None:
        """Wait until the GPUs' memory is back; quarantine those on which it does not come back, and suspected ones."""
        gpu_ids = lease.gpu_ids
        suspected = self._suspected(result, gpu_ids)
        if unkillable:
            held = dict.fromkeys(gpu_ids, f"SIGKILL did not end a process: {unkillable[0]}")
        else:
            held = await self._watch_of(lease).not_back(gpu_ids, baseline, hurry=lambda: number in self.killed)
        end_lease(self.post, self.t(), result.unit.path, gpu_ids, suspected | held)

    def _suspected(self, result: UnitResult, gpu_ids: tuple[str, ...]) -> dict[str, str]:
        return self.suspicion.observe(result.unit.file_path, result.outcome, gpu_ids)

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
