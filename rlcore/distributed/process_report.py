"""Effective values of each process: what its variables are and what torch says, compared before a run starts.

controller: environment = worker_environment(level, os.environ) ─▶ each process is started with it
process:    report = report_of(ProcessName(...))                ─▶ reads what is in effect
controller: check_reports(reports, level, environment)          ─▶ LevelError names process, role, rank, value
"""

import os
import platform
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch

from harness.bits.levels import MOVE_BITS, OF_THREADS, is_of_spreading
from rlcore.errors import LevelError

HASH = 'hash("rlcore")'
THREADS = "torch.get_num_threads()"
GPU = "torch.cuda.get_device_name()"
DETERMINISTIC = "torch.are_deterministic_algorithms_enabled()"
BENCHMARK = "torch.backends.cudnn.benchmark"
DEMANDED: Mapping[str, str] = {DETERMINISTIC: "True", BENCHMARK: "False"}
"""Values that levels deterministic and invariant demand."""
OF_ROLES = frozenset({THREADS, GPU, *OF_THREADS})
"""Values that agree among the ranks of one process, and may differ between processes of different roles."""
OF_SPREADING = frozenset({THREADS, HASH})
MAX_NAMED = 8
"""Most mismatches that an error names."""
NOT_SET = "not set"


class ProcessName(NamedTuple):
    """Which process of a run: `process` and `rank` are those of the plan."""

    process: str
    roles: tuple[str, ...]
    rank: int


@dataclass(frozen=True, slots=True)
class ProcessReport:
    """Effective values of a process."""

    name: ProcessName
    host: str
    pid: int
    values: Mapping[str, str]
    """By variable, and by expression of Python or torch; a variable that is not set is absent."""

    def __str__(self) -> str:
        process, roles, rank = self.name
        return f"process {process}, role {', '.join(roles)}, rank {rank} (pid {self.pid} on {self.host})"


class _Mismatch(NamedTuple):
    what: str
    legal: str
    remedy: str


def report_of(name: ProcessName) -> ProcessReport:
    """Return what is in effect in this process now."""
    return ProcessReport(name, platform.node(), os.getpid(), effective_values(os.environ))


def effective_values(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the values of this process on which bits depend; `environ` is its own."""
    values: dict[str, object] = {
        "python": platform.python_version(),
        HASH: hash("rlcore"),
        "torch.__version__": torch.__version__,
        DETERMINISTIC: torch.are_deterministic_algorithms_enabled(),
        BENCHMARK: torch.backends.cudnn.benchmark,
        THREADS: torch.get_num_threads(),
        "torch.get_float32_matmul_precision()": torch.get_float32_matmul_precision(),
        "torch.get_default_dtype()": torch.get_default_dtype(),
        "torch.backends.cpu.get_cpu_capability()": torch.backends.cpu.get_cpu_capability(),
        "torch.backends.cudnn.allow_tf32": torch.backends.cudnn.allow_tf32,
        "torch.backends.mkldnn.enabled": torch.backends.mkldnn.enabled,
        "sys.byteorder": sys.byteorder,
        "platform.machine()": platform.machine(),
    }
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]  # a process on a CPU asks for no GPU
        values[GPU] = torch.cuda.get_device_name()
    return {name: str(value) for name, value in values.items()} | {
        name: environ[name] for name in sorted(MOVE_BITS & environ.keys()) if environ[name]
    }


def check_reports(reports: Sequence[ProcessReport], level: str, environment: Mapping[str, str]) -> None:
    """Raise LevelError if a process differs from the others or from the level; `environment` is what it was given.

    At level off nothing is compared. At level invariant, values that decide how work is spread are not.
    """
    if level == "off" or not reports:
        return
    found = [mismatch for report in reports for mismatch in _of_variables(report, level, environment)]
    found += [mismatch for report in reports for mismatch in _of_demands(report)]
    found += _between(reports, level)
    if found:
        named = found[:MAX_NAMED]
        more = f"; and {len(found) - MAX_NAMED} more" if len(found) > MAX_NAMED else ""
        raise LevelError(
            f"the level {level!r} does not hold in every process: " + "; ".join(each.what for each in named) + more,
            legal="; ".join(dict.fromkeys(each.legal for each in named)),
            remedy="; ".join(dict.fromkeys(each.remedy for each in named)),
        )


def _is_compared(name: str, level: str) -> bool:
    return level == "deterministic" or not (name in OF_SPREADING or is_of_spreading(name))


def _of_variables(report: ProcessReport, level: str, environment: Mapping[str, str]) -> list[_Mismatch]:
    """Return variables that are not as they were given, and those that move bits and were not given."""
    names = sorted(MOVE_BITS & (environment.keys() | report.values.keys()) - (OF_THREADS - environment.keys()))
    return [
        _Mismatch(
            f"{report}: {name} is {report.values.get(name, NOT_SET)}",
            f"{name}={environment[name]}" if name in environment else f"{name} {NOT_SET}",
            f"start that node without {name}, or set it for the controller too"
            if name not in environment
            else f"leave {name} alone in the process",
        )
        for name in names
        if _is_compared(name, level) and report.values.get(name) != environment.get(name)
    ]


def _of_demands(report: ProcessReport) -> list[_Mismatch]:
    return [
        _Mismatch(f"{report}: {name} is {report.values[name]}", f"{name} {value}", f"leave {name} to the level")
        for name, value in DEMANDED.items()
        if report.values[name] != value
    ]


def _between(reports: Sequence[ProcessReport], level: str) -> list[_Mismatch]:
    """Return values that differ between processes; the first process, or the first rank of each, has the legal one."""
    found = []
    first_of_process: dict[str, ProcessReport] = {}
    for report in reports:
        first = first_of_process.setdefault(report.name.process, report)
        names = sorted(
            (report.values.keys() | reports[0].values.keys() | first.values.keys()) - (MOVE_BITS - OF_THREADS)
        )
        for name in names:
            reference = first if name in OF_ROLES else reports[0]
            value, legal = (each.values.get(name, NOT_SET) for each in (report, reference))
            if _is_compared(name, level) and name not in DEMANDED and value != legal:
                what = f"{report}: {name} is {value}"
                found.append(_Mismatch(what, f"{name} {legal}, as in {reference}", f"make {name} equal everywhere"))
    return found
