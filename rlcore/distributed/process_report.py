"""Effective values of each process: what its variables are and what torch says, compared before a run starts.

controller: environment = worker_environment(level, os.environ) ─▶ each process is started with it
process:    report = report_of(ProcessName(...))                ─▶ reads what is in effect
controller: own = report_of(ProcessName(...), environment)
            check_reports([own, *reports], level)               ─▶ LevelError names process, role, rank, value
"""

import os
import platform
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch

from harness.bits.levels import MOVE_BITS, OF_SPREADING, OF_THREADS
from rlcore.errors import LevelError

HASH = 'hash("rlcore")'
THREADS = "torch.get_num_threads()"
GPU = "torch.cuda.get_device_name()"
DETERMINISTIC = "torch.are_deterministic_algorithms_enabled()"
BENCHMARK = "torch.backends.cudnn.benchmark"
OF_PROCESSES = frozenset({THREADS, GPU})
"""Values that agree among the ranks of one process, and may differ from the controller's."""
OF_WORK = OF_SPREADING | OF_THREADS | {THREADS, HASH}
"""Values that decide how work is spread."""
MAX_NAMED = 8
"""Most mismatches that an error names."""


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


def report_of(name: ProcessName, environ: Mapping[str, str] = os.environ) -> ProcessReport:
    """Return what is in effect in this process now; `environ`: of a controller, the variables that it gives others."""
    return ProcessReport(name, platform.node(), os.getpid(), effective_values(environ))


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


def check_reports(reports: Sequence[ProcessReport], level: str) -> None:
    """Raise LevelError if a process differs from the controller, whose report is the first.

    At level off nothing is compared. At level invariant, values that decide how work is spread are not.
    """
    if level == "off":
        return
    of_processes = OF_PROCESSES | (OF_THREADS - reports[0].values.keys())
    first_of: dict[str, ProcessReport] = {}
    found: dict[str, str] = {}  # what is in effect, and what should be
    for report in reports:
        first = first_of.setdefault(report.name.process, report)
        names = report.values.keys() | first.values.keys() | reports[0].values.keys()
        for name in sorted(names - OF_WORK if level == "invariant" else names):
            reference = first if name in of_processes else reports[0]
            value, legal = (each.values.get(name, "not set") for each in (report, reference))
            if value != legal:
                found[f"{report}: {name} is {value}"] = f"{name} {legal}, as in {reference}"
    if found:
        more = f"; and {len(found) - MAX_NAMED} more" if len(found) > MAX_NAMED else ""
        raise LevelError(
            f"the level {level!r} does not hold in every process: " + "; ".join([*found][:MAX_NAMED]) + more,
            legal="; ".join(dict.fromkeys([*found.values()][:MAX_NAMED])),
            remedy="set a variable for the controller, which gives it to all; make other values equal everywhere",
        )
