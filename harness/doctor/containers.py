"""The means of ending process trees that this machine allows, and what its control groups leave to this process."""

import math
import os
from collections.abc import Mapping, Sequence

from harness.doctor.cgroup_limits import GroupLimits, read_group_limits
from harness.doctor.host import Host
from harness.machine.findings import Finding, Severity
from harness.process.daemon_thread import in_daemon_thread

READ_S = 3.0
FULL = 0.95
"""Part of a limit in use from which on it is as good as reached."""
MIN_PROCESSES = 2048
HOLDS = {
    "cgroup": "control groups: no process can escape a test file's process tree",
    "pidns": "PID namespaces: no process can escape a test file's process tree",
    "subreaper": "adopting orphans only",
}


async def inspect_containment(host: Host) -> Sequence[Finding]:
    """The strongest means of ending a process tree."""
    return [check_containment(host.backend, host.refused, in_container=os.path.exists("/.dockerenv"))]


async def inspect_group_limits(host: Host) -> Sequence[Finding]:
    """Memory, processor time and processes."""
    limits = await in_daemon_thread(read_group_limits, limit_s=READ_S)
    memory_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    num_cores = len(os.sched_getaffinity(0))
    return check_group_limits(limits, memory_bytes=memory_bytes, num_cores=num_cores, environ=host.environ)


def check_containment(backend: str, refused: Mapping[str, str], *, in_container: bool) -> Finding:
    """`backend` is the strongest that works, empty for none; `refused` says why each stronger one does not."""
    reasons = "; ".join(f"{name}: {reason}" for name, reason in refused.items())
    if backend in ("cgroup", "pidns"):
        measured = HOLDS[backend]
        return Finding("containment", Severity.FINE, f"{measured} ({reasons})" if reasons else measured)
    if in_container:
        remedy = "docker run --cap-add SYS_ADMIN --security-opt apparmor=unconfined, which allows PID namespaces"
    else:
        remedy = "systemd-run --user --scope --property=Delegate=yes rlharness run"
    if backend:
        breaks = "a process that forks faster than it is stopped, or runs as another user, can outlive its test file"
        return Finding("containment", Severity.WARNING, f"{HOLDS[backend]} ({reasons})", breaks, remedy)
    breaks = "rlharness run refuses to start: it could not terminate the processes it starts"
    return Finding(
        "containment", Severity.BROKEN, f"no method of terminating a process tree works: {reasons}", breaks, remedy
    )


def check_group_limits(
    limits: GroupLimits, *, memory_bytes: int, num_cores: int, environ: Mapping[str, str]
) -> list[Finding]:
    """`limits` beside what the machine itself has."""
    return [
        _check_memory(limits, memory_bytes),
        _check_cpus(limits.num_cpus, num_cores, environ),
        _check_processes(limits),
    ]


def _check_memory(limits: GroupLimits, memory_bytes: int) -> Finding:
    limit, used = limits.memory_bytes, limits.used_memory_bytes
    if limit is None or limit >= memory_bytes:
        return Finding("memory limit", Severity.FINE, f"no limit below the machine's {memory_bytes / 1e9:.1f} GB")
    measured = f"{limit / 1e9:.1f} GB of the machine's {memory_bytes / 1e9:.1f} GB"
    if used is None or used < FULL * limit:
        return Finding("memory limit", Severity.FINE, measured)
    return Finding(
        "memory limit",
        Severity.WARNING,
        f"{measured}, {used / limit:.0%} in use",
        breaks="the kernel kills the next process that requests memory, or the largest one",
        remedy="end the processes that use it (ps aux --sort -rss | head), or raise docker run --memory",
    )


def _check_cpus(num_cpus: float | None, num_cores: int, environ: Mapping[str, str]) -> Finding:
    if num_cpus is None or num_cpus >= num_cores:
        return Finding("CPU limit", Severity.FINE, f"no limit below the {num_cores} cores this process may use")
    whole = max(1, math.floor(num_cpus))
    measured = f"the time of {num_cpus:g} CPUs, spread over {num_cores} cores"
    if environ.get("OMP_NUM_THREADS", "").isdigit() and int(environ["OMP_NUM_THREADS"]) <= whole:
        return Finding("CPU limit", Severity.FINE, f"{measured}; OMP_NUM_THREADS={environ['OMP_NUM_THREADS']}")
    return Finding(
        "CPU limit",
        Severity.WARNING,
        measured,
        breaks=f"torch starts {num_cores} threads that wait for each other: CPU work slows down",
        remedy=f"export OMP_NUM_THREADS={whole}; rlharness run --cpu-units {whole}",
        exports=(("OMP_NUM_THREADS", str(whole)),),
    )


def _check_processes(limits: GroupLimits) -> Finding:
    limit, live = limits.num_processes, limits.num_live_processes or 0
    if limit is None:
        return Finding("process limit", Severity.FINE, "none")
    measured = f"{limit:,}, {live:,} in use"
    if limit - live >= MIN_PROCESSES:
        return Finding("process limit", Severity.FINE, measured)
    return Finding(
        "process limit",
        Severity.WARNING,
        measured,
        breaks="threads count too: Ray and OpenMP fail to start theirs, with 'Resource temporarily unavailable'",
        remedy="docker run --pids-limit=-1; of a systemd unit: TasksMax=infinity",
    )
