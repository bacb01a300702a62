"""Resources of this process: TMPDIR, socket paths, /dev/shm, ulimits, containment, limits of control groups."""

import math
import os
import resource
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.bits.errors import HarnessError
from harness.doctor import probe
from harness.doctor.host import Host
from harness.machine.findings import BROKEN, FINE, WARNING, MachineCode, MachineFinding
from harness.process.children import Answer
from harness.process.scratch import is_network
from harness.process.supervisor_client import probe_backends

SHM = "/dev/shm"
TRIAL_S = 5.0
SLOW_S = 0.1
"""A lock or a map that takes this long: a local file system needs well under a millisecond."""
STEPS = ("trial", "survey", "create", "lock")
LOW_SPACE_BYTES = 1_000_000_000
TINY_SHM_BYTES = 128_000_000
"""Docker's default is 64 MB: two ranks of NCCL, or a few batches of a data loader, need more."""
SMALL_SHM_BYTES = 2_000_000_000
MIN_OPEN_FILES = 4096
"""Below it Ray warns of connections that fail (ray.init, which raises the soft limit to the hard one)."""
MIN_PROCESSES = 4096
"""Threads count too: one Ray on 64 cores starts over a thousand."""
SMALL_FILE_BYTES = 10_000_000_000
"""A smaller limit than this on files is one that the checkpoint of a small model meets."""
FULL = 0.95
"""Part of a limit in use from which on it is as good as reached."""
HOLDS = {
    "cgroup": "control groups: no process can escape a test file's process tree",
    "pidns": "PID namespaces: no process can escape a test file's process tree",
    "subreaper": "adopting orphans only",
}
SHM_REMEDY = "mount -o remount,size=16G /dev/shm; of a container: docker run --shm-size=16g, or --ipc=host"


class ResourceCode(MachineCode):
    """Codes of directories, limits and containment."""

    # fmt: off
    TMPDIR = "tmpdir", FINE, "TMPDIR", "{where}: a lock took {lock}"
    TMPDIR_UNWRITABLE = "tmpdir_unwritable", BROKEN, "TMPDIR", """
        {where} is not a directory in which this process can create files
        breaks: Ray, compilers and every other program that needs a temporary file"""
    TMPDIR_FAILS = "tmpdir_fails", BROKEN, "TMPDIR", """
        {where}: {step}: {problem}
        breaks: every program that locks a file there: Ray, torch, vLLM, Triton's cache"""
    TMPDIR_REMOTE = "tmpdir_remote", WARNING, "TMPDIR", """
        {where}: a lock took {lock}
        breaks: files are on another machine: locks, sockets and memory maps are slow, or fail under concurrent use"""
    TMPDIR_SLOW = "tmpdir_slow", WARNING, "TMPDIR", """
        {where}: a lock took {took_s:.2f} s
        breaks: every lock of a temporary file takes as long"""
    TMPDIR_FULL = "tmpdir_full", WARNING, "TMPDIR", """
        {where}: a lock took {lock}
        breaks: Ray's spilled objects and compilers fill it
        remedy: make room: du -x -d 1 {path}"""
    SHM = "shm", FINE, "/dev/shm", "{size}"
    SHM_UNWRITABLE = "shm_unwritable", BROKEN, "/dev/shm", f"""
        this process cannot write to it
        breaks: Python's multiprocessing, NCCL between processes, data loaders with workers
        remedy: {SHM_REMEDY}"""
    SHM_TINY = "shm_tiny", BROKEN, "/dev/shm", f"""
        {{size}}
        breaks: NCCL cannot allocate its buffers; data loaders with workers die of a bus error
        remedy: {SHM_REMEDY}"""
    SHM_SMALL = "shm_small", WARNING, "/dev/shm", f"""
        {{size}}
        breaks: Ray puts its object store into TMPDIR instead, which is slower; large batches may not fit
        remedy: {SHM_REMEDY}"""
    SHM_FULL = "shm_full", WARNING, "/dev/shm", """
        {size}
        breaks: NCCL and data loaders die when it is full; Ray puts its object store into TMPDIR
        remedy: ls -lt /dev/shm, and remove files of dead processes"""
    ULIMITS = "ulimits", FINE, "ulimits", "{nofile} open files (up to {most}), {nproc} processes"
    ULIMIT = "ulimit", BROKEN, "{check}", """
        {measured}
        breaks: {effect}
        remedy: echo '* - {name} {value}' | sudo tee -a /etc/security/limits.conf, and log in again; of a container:
          docker run --ulimit {name}={docker}"""
    CONTAINED = "contained", FINE, "containment", "{holds}"
    CONTAINED_WEAKLY = "contained_weakly", WARNING, "containment", """
        {holds}
        breaks: a process that forks faster than it is stopped, or runs as another user, can outlive its test file"""
    UNCONTAINED = "uncontained", BROKEN, "containment", """
        no method of terminating a process tree works: {reasons}
        breaks: rlharness run refuses to start: it could not terminate the processes it starts"""
    MEMORY = "memory_limit", FINE, "memory limit", "{measured}"
    MEMORY_FULL = "memory_full", WARNING, "memory limit", """
        {measured}, {used:.0%} in use
        breaks: the kernel kills the next process that requests memory, or the largest one
        remedy: end the processes that use it (ps aux --sort -rss | head), or raise docker run --memory"""
    CPU = "cpu_limit", FINE, "CPU limit", "{measured}"
    CPU_SPREAD = "cpu_spread", WARNING, "CPU limit", """
        {measured}
        breaks: torch starts {num_cores} threads that wait for each other: CPU work slows down
        remedy: {fix}; rlharness run --cpu-units {num_cpus}"""
    # fmt: on


# ---------------------------------------------------------------------------------------------------------- directories


def check_tmpdir(host: Host) -> list[MachineFinding]:
    """The directory that Python, Ray and torch take for their temporary files: a child tries it."""
    path = host.environ.get("TMPDIR", "")
    steps = (probe.better_directory, probe.survey, probe.create, probe.lock)
    return [classify_tmpdir(path, host.ask(TRIAL_S, *((step, path or "/tmp") for step in steps)))]


def classify_tmpdir(path: str, answers: Sequence[Answer]) -> MachineFinding:
    """Check TMPDIR by the answers to the steps of its trial; `path` is empty where it is not set."""
    said = {step: each.value for step, each in zip(STEPS, answers, strict=False) if each.kind == "ok"}
    better, lock_s = said.get("trial", ""), said.get("lock", 0.0)
    fs_type, free_bytes = said.get("survey", ("", 0))
    where = path or "/tmp (TMPDIR is not set)"
    kind = f"{where} ({fs_type or 'unknown file system'}, {_gb(free_bytes)} free)" if "survey" in said else where
    fix: dict[str, Any] = (
        {"exports": {"TMPDIR": better}} if better else {"remedy": "export TMPDIR=DIR, a directory on a local disk"}
    )
    step, last = STEPS[len(answers) - 1], answers[-1]
    if last.kind == "failed" and step in ("survey", "create"):
        return ResourceCode.TMPDIR_UNWRITABLE(where=where, **fix)
    if last.kind != "ok":
        return ResourceCode.TMPDIR_FAILS(where=kind, step=step, problem=last.value, **fix)
    lock = f"{lock_s * 1000:.1f} ms" if lock_s >= 0.0001 else "less than 0.1 ms"
    if is_network(fs_type):
        return ResourceCode.TMPDIR_REMOTE(where=kind, lock=lock, **fix)
    if lock_s >= SLOW_S:
        return ResourceCode.TMPDIR_SLOW(where=kind, took_s=lock_s, **fix)
    if free_bytes < LOW_SPACE_BYTES:
        return ResourceCode.TMPDIR_FULL(where=kind, lock=lock, path=path or "/tmp")
    return ResourceCode.TMPDIR(where=kind, lock=lock)


def check_shared_memory(host: Host) -> Iterator[MachineFinding]:
    """/dev/shm: what NCCL, data loaders and Ray's object store put their buffers in."""
    if not (os.path.isdir(SHM) and os.access(SHM, os.W_OK | os.X_OK)):
        yield ResourceCode.SHM_UNWRITABLE()
        return
    space = os.statvfs(SHM)
    yield classify_shared_memory(space.f_blocks * space.f_frsize, space.f_bavail * space.f_frsize)


def classify_shared_memory(total_bytes: int, free_bytes: int) -> MachineFinding:
    """Check the size of /dev/shm."""
    size = f"{_gb(total_bytes)}, {_gb(free_bytes)} free"
    if total_bytes < TINY_SHM_BYTES:
        return ResourceCode.SHM_TINY(size=size)
    if total_bytes < SMALL_SHM_BYTES:
        return ResourceCode.SHM_SMALL(size=size)
    return ResourceCode.SHM_FULL(size=size) if free_bytes < TINY_SHM_BYTES else ResourceCode.SHM(size=size)


# --------------------------------------------------------------------------------------------------------------- limits


def check_ulimits(host: Host) -> list[MachineFinding]:
    """Check the limits of `ulimit`."""
    numbers = {"nofile": resource.RLIMIT_NOFILE, "nproc": resource.RLIMIT_NPROC, "memlock": resource.RLIMIT_MEMLOCK}
    numbers |= {"as": resource.RLIMIT_AS, "fsize": resource.RLIMIT_FSIZE}
    limits = {}
    for name, number in numbers.items():
        soft, hard = (math.inf if n == resource.RLIM_INFINITY else n for n in resource.getrlimit(number))
        limits[name] = soft, hard
    return classify_ulimits(limits, has_rdma=os.path.isdir("/dev/infiniband"), is_root=os.geteuid() == 0)


def classify_ulimits(
    limits: Mapping[str, tuple[float, float]], *, has_rdma: bool, is_root: bool
) -> list[MachineFinding]:
    """`limits`, soft and hard, by their names in limits.conf(5): nofile, nproc; in bytes memlock, as, fsize."""
    soft, hard = ({name: pair[which] for name, pair in limits.items()} for which in (0, 1))
    findings = []

    def add(name: str, check: str, measured: str, effect: str, **more: Any) -> None:
        value, docker = ("65536", "65536:65536") if name in ("nofile", "nproc") else ("unlimited", "-1:-1")
        more |= {"name": name, "check": check, "measured": measured, "effect": effect, "value": value}
        findings.append(ResourceCode.ULIMIT(docker=docker, **more))

    if hard["nofile"] < MIN_OPEN_FILES:
        effect = "Ray, data loaders and vLLM run out of open files: connections fail, workers die"
        add("nofile", "open files", f"{hard['nofile']:.0f} at most", effect, severity=WARNING)
    if soft["nproc"] < MIN_PROCESSES and not is_root:
        effect = "processes and threads of this user count together: Ray and OpenMP fail to start more"
        add("nproc", "processes", f"{soft['nproc']:.0f}", effect, severity=WARNING)
    if has_rdma and soft["memlock"] != math.inf:
        effect = "InfiniBand registers memory that stays locked: NCCL's network transport fails to start"
        add("memlock", "locked memory", f"{soft['memlock'] / 1e6:.1f} MB, and there is InfiniBand here", effect)
    if soft["as"] != math.inf:
        effect = "CUDA reserves more addresses than there is memory, and does not start"
        add("as", "address space", f"limited to {_gb(soft['as'])}", effect, remedy="ulimit -v unlimited")
    if soft["fsize"] != math.inf:
        effect = "programs that write more fail with 'File too large': checkpoints, compilers, Ray's spilled objects"
        severity = BROKEN if soft["fsize"] < SMALL_FILE_BYTES else WARNING
        remedy = "ulimit -f unlimited" if hard["fsize"] == math.inf else ""
        measured = f"a file may have {_gb(soft['fsize'])} at most"
        add("fsize", "file size", measured, effect, severity=severity, remedy=remedy)
    shown = {"nofile": soft["nofile"], "most": hard["nofile"], "nproc": soft["nproc"]}
    words = {name: f"{number:,.0f}".replace("inf", "unlimited") for name, number in shown.items()}
    return findings or [ResourceCode.ULIMITS(None, **words)]


def check_containment(host: Host) -> list[MachineFinding]:
    """The strongest means of ending a process tree, and why each stronger one does not work."""
    try:
        backends = probe_backends()
    except HarnessError as error:
        return [classify_containment("", {"tried": error.what})]
    return [classify_containment(backends.chosen, backends.refused)]


def classify_containment(backend: str, refused: Mapping[str, str]) -> MachineFinding:
    """Check the strongest `backend` that works, empty for none; `refused` says why stronger ones do not."""
    reasons = "; ".join(f"{name}: {reason}" for name, reason in refused.items())
    remedy = "systemd-run --user --scope --property=Delegate=yes rlharness run"
    if os.path.exists("/.dockerenv"):
        remedy = "docker run --cap-add SYS_ADMIN --security-opt apparmor=unconfined, which allows PID namespaces"
    if not backend:
        return ResourceCode.UNCONTAINED(reasons=reasons, remedy=remedy)
    holds = f"{HOLDS[backend]} ({reasons})" if reasons else HOLDS[backend]
    if backend == "subreaper":
        return ResourceCode.CONTAINED_WEAKLY(holds=holds, remedy=remedy)
    return ResourceCode.CONTAINED(holds=holds)


# ------------------------------------------------------------------------------------------------------- control groups


@dataclass(frozen=True, slots=True)
class GroupLimits:
    """The tightest limits of the control groups around this process; None where there is none.

    A group's limit holds for everything below it, so the tightest from this process's own group up to the root of what
    can be seen counts. A container that sees only its own part of the tree has its limit at that root.
    """

    memory_bytes: int | None = None
    used_memory_bytes: int | None = None
    """In use within the group that sets the limit on memory, without the page cache that can go at once."""
    num_cpus: float | None = None
    """Processor time as so many whole processors."""


def check_control_group(host: Host) -> list[MachineFinding]:
    """Limits of memory and processor time, beside what the machine itself has."""
    memory_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return classify_group_limits(read_group_limits(), memory_bytes, len(os.sched_getaffinity(0)), host.environ)


def classify_group_limits(
    limits: GroupLimits, memory_bytes: int, num_cores: int, environ: Mapping[str, str]
) -> list[MachineFinding]:
    """`limits` beside what the machine itself has."""
    machine = f"the machine's {memory_bytes / 1e9:.1f} GB"
    limit, used = limits.memory_bytes, limits.used_memory_bytes or 0
    memory = ResourceCode.MEMORY(measured=f"no limit below {machine}")
    if limit is not None and limit < memory_bytes:
        code = ResourceCode.MEMORY_FULL if used >= FULL * limit else ResourceCode.MEMORY
        memory = code(measured=f"{limit / 1e9:.1f} GB of {machine}", used=used / max(1, limit))
    cpus = ResourceCode.CPU(measured=f"no limit below the {num_cores} cores this process may use")
    if limits.num_cpus is not None and limits.num_cpus < num_cores:
        whole, threads = max(1, math.floor(limits.num_cpus)), environ.get("OMP_NUM_THREADS", "")
        measured = f"the time of {limits.num_cpus:g} CPUs, spread over {num_cores} cores"
        fix: dict[str, Any] = {"exports": {"OMP_NUM_THREADS": str(whole)}}
        if threads.isdigit() and int(threads) <= whole:
            cpus = ResourceCode.CPU(measured=f"{measured}; OMP_NUM_THREADS={threads}")
        else:
            cpus = ResourceCode.CPU_SPREAD(measured=measured, num_cores=num_cores, num_cpus=whole, **fix)
    return [memory, cpus]


def read_group_limits(root: Path = Path("/")) -> GroupLimits:
    """Read the limits of this process's control groups, of version 2; `root` is where proc and sys are found."""
    top = root / "sys/fs/cgroup"
    own = next((line[3:] for line in _text(root / "proc/self/cgroup").splitlines() if line.startswith("0::")), "/")
    group = top / own.strip("/")
    groups = [each for each in (group, *group.parents) if each.is_relative_to(top)]
    limits = [(limit, each) for each in groups if (limit := _number(_text(each / "memory.max"))) is not None]
    limit, tightest = min(limits, default=(None, top))
    used = None
    if limit is not None:
        facts = dict(line.split(" ", 1) for line in _text(tightest / "memory.stat").splitlines())
        cached = _number(facts.get("inactive_file", "")) or 0
        used = max(0, (_number(_text(tightest / "memory.current")) or 0) - cached)
    cpus = []
    for each in groups:
        quota, _, period = _text(each / "cpu.max").partition(" ")
        if (number := _number(quota)) is not None and (whole := _number(period)):
            cpus.append(number / whole)
    return GroupLimits(limit, used, min(cpus, default=None))


def _text(path: Path) -> str:
    try:
        return path.read_text("ascii")
    except (OSError, ValueError):
        return ""


def _number(text: str) -> int | None:
    """The number in a file; None for "max", and where there is no such file."""
    text = text.strip()
    return int(text) if text.isascii() and text.isdigit() else None


def _gb(num_bytes: float) -> str:
    return f"{num_bytes / 1e9:.1f} GB" if num_bytes >= 1e9 else f"{num_bytes / 1e6:.0f} MB"
