"""The order for one attempt: command, paths, environment and limits."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from harness.process.child_env import OMP_NUM_THREADS, child_env, xdist_variables
from harness.process.ports import PortBlocks
from harness.process.supervisor_client import ProcessSpec, Supervisors
from harness.runner.collection.collect import Collected
from harness.runner.options import RunOptions
from harness.runner.report_file import ListedTest
from harness.runner.reruns.retries import Retries
from harness.runner.schedule.leases import Lease
from harness.runner.selections import split_node_id, split_selections
from harness.runner.sessions.pytest_command import FORKED_TESTS, OWN_COVERAGE, XDIST, pytest_command
from harness.runner.sessions.suite import Suite
from harness.runner.units import Unit

if TYPE_CHECKING:
    from harness.runner.ray.cluster import RayCluster

COVERAGE_FILE = "COVERAGE_FILE"
UNITS = "units"
"""Name of the directory of all attempts in the directory of a run."""


@dataclass(slots=True, kw_only=True)
class AttemptSpecs:
    """What the attempts of one run are called, and where and how they run."""

    options: RunOptions
    collected: Collected
    attempts: "Supervisors | RayCluster"
    suite: Suite
    ports: PortBlocks
    run_id: str
    run_directory: Path
    scratch: Path
    """Short and local; each attempt's TMPDIR is a directory in it."""
    num_slots: int = 1
    """Number of GPUs and CPU slots of the run."""
    num_gpus: int = 0
    """Number of GPUs of this machine that the run has, among which its cores are divided; 0 to divide nothing."""
    pins: Mapping[str, str] | None = None
    """Variables that the network preflight sets in every child's environment; None without a preflight."""
    retries: Retries = field(default_factory=lambda: Retries(0))

    def marker(self, number: int) -> str:
        """The text by which the processes of unit `number` can be found."""
        return f"{self.run_id}-{self.name(number)}"

    def name(self, number: int) -> str:
        """Return the name of the present attempt, which no other attempt of the run has."""
        return self.retries.name(number)

    def directory(self, number: int) -> Path:
        """Where the attempt of unit `number` keeps its files."""
        return self.run_directory / UNITS / self.name(number)

    def tmpdir(self, number: int) -> Path:
        """The TMPDIR of unit `number`."""
        return self.scratch / self.name(number)

    def spec(self, number: int, unit: Unit, lease: Lease) -> ProcessSpec:
        """Return the order for the present attempt at a unit: the fork of the session, and the command without one."""
        invocation, directory, tmpdir = self.options.invocation, self.directory(number), self.tmpdir(number)
        report, basetemp, is_named = str(directory / "report.jsonl"), str(tmpdir / "pytest"), self._is_named(unit)
        rest = self.retries.rest(number)
        tests = self.collected.tests_of(unit, rest)
        if rest or unit.part:
            asked: Sequence[str] = rest or [test.nodeid for test in tests or ()]
        else:
            asked = unit.selection or (unit.file_path,)
        paths = [self.from_cwd(path) for path in asked]
        is_measured = self.collected.coverage is not None
        own_file = {COVERAGE_FILE: str(directory / ".coverage")} if is_measured else {}
        grace_s = self.options.grace_s if self.options.isolate == "test" else None
        plugins = [XDIST, *[OWN_COVERAGE] * is_measured, *[FORKED_TESTS] * (grace_s is not None)]
        env = self._env(lease, str(tmpdir), self.marker(number)) | own_file
        files = tuple(dict.fromkeys(split_node_id(each)[0] for each in asked))
        return ProcessSpec(
            argv=(
                *pytest_command(self.options, plugins),
                *(f"--rlharness-report={report}", f"--basetemp={basetemp}"),
                *(() if is_named else ("--rlharness-as-found",)),
                *((f"--rlharness-fork-tests={grace_s}",) if grace_s is not None else ()),
                *invocation.trailing,
                *self.collected.pytest_args,
                *paths,
            ),
            session=None
            if tests is None or self.options.ray or self.options.isolate == "interpreter" or self.suite.why_own(env)
            else {
                "env": {name: value for name, value in env.items() if self.suite.env.get(name) != value},
                "unset": [name for name in self.suite.env if name not in env],
                "items": [test.number for test in tests],
                "files": files,
                "deselected": self.collected.files[unit.file_path].num_deselected,
                "report": report,
                "basetemp": basetemp,
                "grace_s": grace_s,
                **self._late(unit, files, tests, rest),
            },
            cwd=str(invocation.cwd),
            env=env,
            directory=str(directory),
            marker=self.marker(number),
            timeout_s=self.retries.limit_s(number, unit.timeout_s or self.options.timeout_s),
            startup_timeout_s=self.options.collect_timeout_s,
            grace_s=self.options.grace_s,
        )

    def _late(
        self, unit: Unit, files: Sequence[str], tests: Sequence[ListedTest], rest: Sequence[str]
    ) -> dict[str, object]:
        """What a process collects itself: `only` these tests, or all `without` those of other parts."""
        if not any(self.collected.files[path].is_late for path in files):
            return {"late": [], "only": None, "without": None}
        is_whole = not rest and unit.part is None
        asked = unit.selection or (unit.file_path,) if is_whole else files
        mine = [test.nodeid for test in tests]
        others = {test.nodeid for test in self.collected.files[unit.file_path].tests or ()} - {*mine}
        is_first = unit.part is not None and unit.part.number == 1 and not rest and not unit.selection
        return {
            "late": [self.from_cwd(path) for path in asked],
            "only": None if is_whole or is_first else mine,
            "without": sorted(others) if is_first else None,
        }

    def _env(self, lease: Lease, tmpdir: str, marker: str) -> dict[str, str]:
        return child_env(
            {**self._threads(lease), **self.options.invocation.environ},
            gpus=lease.gpus,
            tmpdir=tmpdir,
            marker=marker,
            master_port=self.ports.master_port(lease.slot),
            by_number=self.options.by_number,
            pins=self.pins,
            xdist=xdist_variables(lease.slot, self.num_slots, self.run_id),
        )

    def _threads(self, lease: Lease) -> dict[str, str]:
        """The threads of OpenMP for a lease, which is to leave those of other GPUs alone; nothing without others."""
        if not 0 < len(lease.gpus) < self.num_gpus:
            return {}
        return {OMP_NUM_THREADS: str(max(1, len(os.sched_getaffinity(0)) * len(lease.gpus) // self.num_gpus))}

    def _is_named(self, unit: Unit) -> bool:
        """Whether the command line names this very file, which pytest then takes whatever it is called."""
        cwd, file = self.options.invocation.cwd, os.path.abspath(self.collected.rootdir / unit.file_path)
        return any(str(each.absolute) == file for each in split_selections(self.options.paths, cwd))

    def from_cwd(self, path: str) -> str:
        """A path or node id below the root directory, as pytest is to be given it in the working directory."""
        file, rest = split_node_id(path)  # the rest is no path, though it may hold slashes
        relative = os.path.relpath(self.collected.rootdir / file, self.options.invocation.cwd)
        return ("./" if relative.startswith("-") else "") + relative + (f"::{rest}" if rest else "")
