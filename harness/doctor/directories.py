"""TMPDIR with a real lock taken in it, room for socket paths, /dev/shm, the limits of the process."""

import os
import resource
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from harness.doctor.host import Answer, Host, module_command
from harness.doctor.lock_trial import STEPS
from harness.machine.findings import Finding, Severity
from harness.process.daemon_thread import in_daemon_thread
from harness.process.program_output import as_float
from harness.process.scratch import (
    FALLBACKS,
    MAX_SOCKET_PATH_BYTES,
    RAY_TAIL_BYTES,
    Candidate,
    Mount,
    fs_type_of,
    is_network,
    read_mounts,
    why_unfit,
)

DEFAULT_TMPDIR = "/tmp"
SHM = "/dev/shm"
TRIAL_S = 5.0
SURVEY_S = 3.0
SLOW_S = 0.1
"""A lock or a map that takes this long: a local file system needs well under a millisecond."""
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


@dataclass(frozen=True, slots=True)
class Directory:
    """A directory as it was found."""

    path: str
    is_writable: bool
    fs_type: str = ""
    free_bytes: int = 0
    total_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Trial:
    """Result of `lock_trial` in a directory."""

    took_s: Mapping[str, float]
    """By step, those that were done."""
    errors: Mapping[str, str]
    """By step, those that failed."""
    problem: str = ""
    """Why the trial has no end; empty where it has one."""


@dataclass(frozen=True, slots=True)
class Limit:
    """A limit of this process, as `ulimit` counts it."""

    soft: float
    hard: float
    """inf for none."""


async def inspect_tmpdir(host: Host) -> Sequence[Finding]:
    """The directory that Python, Ray and torch take for their temporary files, and a trial of it."""
    path = host.environ.get("TMPDIR") or DEFAULT_TMPDIR
    directory = await _survey(path)
    if directory is None:
        return [unanswering("TMPDIR", path)]
    trial = None
    if directory.is_writable:
        argv = module_command("harness.doctor.lock_trial", path)
        trial = read_trial(await host.ask(argv, limit_s=TRIAL_S))
    others = [other for other in [await _survey(p) for p in FALLBACKS if p != path] if other is not None]
    better = next((other.path for other in others if not why_unfit(_candidate(other))), "")
    return [check_tmpdir(directory, trial, is_set=bool(host.environ.get("TMPDIR")), better=better)]


async def inspect_socket_paths(host: Host) -> Sequence[Finding]:
    """Whether Ray's sockets fit below the directory it would take."""
    return [check_socket_paths(host.environ)]


async def inspect_shared_memory(host: Host) -> Sequence[Finding]:
    """The size of /dev/shm."""
    directory = await _survey(SHM)
    return [unanswering(SHM, SHM) if directory is None else check_shared_memory(directory)]


async def inspect_limits(host: Host) -> Sequence[Finding]:
    """Check the limits of `ulimit`."""
    has_rdma = os.path.isdir("/dev/infiniband")
    names = {"nofile": resource.RLIMIT_NOFILE, "nproc": resource.RLIMIT_NPROC, "memlock": resource.RLIMIT_MEMLOCK}
    limits = {name: _limit(number) for name, number in names.items()}
    limits |= {"as": _limit(resource.RLIMIT_AS), "fsize": _limit(resource.RLIMIT_FSIZE)}
    return check_resource_limits(limits, has_rdma=has_rdma, is_root=os.geteuid() == 0)


def read_trial(answer: Answer) -> Trial:
    """Parse the output of `lock_trial`."""
    said = [line for line in answer.objects("step", "took_s", "error") if line["step"] in STEPS]
    took_s = {str(line["step"]): as_float(line["took_s"]) for line in said}
    errors = {str(line["step"]): str(line["error"]) for line in said if line["error"]}
    problem = answer.problem
    if not problem and answer.exit_code != 0:
        problem = f"the trial ended with {answer.exit_code}: {answer.output.strip()[-200:]}"
    return Trial(took_s, errors, problem)


def unanswering(check: str, path: str) -> Finding:
    """A directory whose file system does not answer at all."""
    is_elsewhere = check == "TMPDIR" and path != DEFAULT_TMPDIR
    return Finding(
        check,
        Severity.BROKEN,
        f"the file system of {path} did not answer within {SURVEY_S:g} s",
        breaks="every process that opens a file there waits, and cannot be killed meanwhile",
        remedy=f"export TMPDIR={DEFAULT_TMPDIR}"
        if is_elsewhere
        else f"umount -l {shlex.quote(path)}, and mount it again",
        exports=(("TMPDIR", DEFAULT_TMPDIR),) if is_elsewhere else (),
    )


def check_tmpdir(directory: Directory, trial: Trial | None, *, is_set: bool, better: str = "") -> Finding:
    """Check TMPDIR; without a `trial` it cannot be written to, `better` is a suitable directory."""
    where = directory.path if is_set else f"{directory.path} (TMPDIR is not set)"
    kind = f"{directory.fs_type or 'unknown file system'}, {_gb(directory.free_bytes)} free"

    def finding(severity: Severity, measured: str, breaks: str) -> Finding:
        export = f"export TMPDIR={shlex.quote(better or 'DIR')}"
        remedy = export if better else f"{export}, a writable directory on a local disk"
        return Finding("TMPDIR", severity, measured, breaks, remedy, (("TMPDIR", better),) if better else ())

    if trial is None:
        measured = f"{where} is not a directory in which this process can create files"
        return finding(Severity.BROKEN, measured, "Ray, compilers and every other program that needs a temporary file")
    if failure := _failure(trial):
        measured = f"{where} ({kind}): {failure}"
        return finding(
            Severity.BROKEN,
            measured,
            "every program that locks a file, binds a socket or maps memory there: Ray, torch, vLLM, Triton's cache",
        )
    slowest = max(trial.took_s, key=lambda step: trial.took_s[step])
    lock_s = max(trial.took_s.get("flock", 0.0), trial.took_s.get("lockf", 0.0))
    measured = f"{where} ({kind}): a lock took {_ms(lock_s)}"
    if is_network(directory.fs_type):
        breaks = "files are on another machine: locks, sockets and memory maps are slow, or fail under concurrent use"
        return finding(Severity.WARNING, measured, breaks)
    if trial.took_s[slowest] >= SLOW_S:
        measured = f"{where} ({kind}): {slowest} took {trial.took_s[slowest]:.2f} s"
        return finding(Severity.WARNING, measured, "every lock or memory map of a temporary file takes as long")
    if directory.free_bytes < LOW_SPACE_BYTES:
        breaks, remedy = "Ray's spilled objects and compilers fill it", f"make room: du -x -d 1 {where}"
        return Finding("TMPDIR", Severity.WARNING, measured, breaks, remedy)
    return Finding("TMPDIR", Severity.FINE, measured)


def _failure(trial: Trial) -> str:
    """The first thing that did not work, in words; empty where all did."""
    if trial.problem:
        stuck = next((step for step in STEPS if step not in trial.took_s), "")
        return f"{stuck or 'the trial'}: {trial.problem}"
    return next((f"{step}: {error}" for step, error in trial.errors.items()), "")


def check_socket_paths(environ: Mapping[str, str]) -> Finding:
    """Whether a Unix socket of Ray fits below RAY_TMPDIR, else TMPDIR, else /tmp, as Ray chooses."""
    name = next((name for name in ("RAY_TMPDIR", "TMPDIR") if environ.get(name)), "")
    path = environ.get(name, "") or DEFAULT_TMPDIR
    num_bytes = len(os.fsencode(path)) + RAY_TAIL_BYTES
    measured = f"Ray's longest socket path below {path} has {num_bytes} bytes; {MAX_SOCKET_PATH_BYTES} are allowed"
    if num_bytes <= MAX_SOCKET_PATH_BYTES:
        return Finding("socket paths", Severity.FINE, measured)
    exports = () if name == "RAY_TMPDIR" else (("TMPDIR", DEFAULT_TMPDIR),)
    return Finding(
        "socket paths",
        Severity.BROKEN,
        measured,
        breaks="ray.init outside of `rlharness run`, which gives each file a short TMPDIR",
        remedy="unset RAY_TMPDIR" if name == "RAY_TMPDIR" else f"export TMPDIR={DEFAULT_TMPDIR}",
        exports=exports,
        unsets=("RAY_TMPDIR",) if name == "RAY_TMPDIR" else (),
    )


def check_shared_memory(directory: Directory) -> Finding:
    """/dev/shm: what NCCL, data loaders and Ray's object store put their buffers in."""
    size = f"{_gb(directory.total_bytes)}, {_gb(directory.free_bytes)} free"
    remedy = "mount -o remount,size=16G /dev/shm; of a container: docker run --shm-size=16g, or --ipc=host"
    if not directory.is_writable:
        breaks = "Python's multiprocessing, NCCL between processes, data loaders with workers"
        return Finding(SHM, Severity.BROKEN, "this process cannot write to it", breaks, remedy)
    if directory.total_bytes < TINY_SHM_BYTES:
        breaks = "NCCL cannot allocate its buffers; data loaders with workers die of a bus error"
        return Finding(SHM, Severity.BROKEN, size, breaks, remedy)
    if directory.total_bytes < SMALL_SHM_BYTES:
        breaks = "Ray puts its object store into TMPDIR instead, which is slower; large batches may not fit"
        return Finding(SHM, Severity.WARNING, size, breaks, remedy)
    if directory.free_bytes < TINY_SHM_BYTES:
        breaks = "NCCL and data loaders die when it is full; Ray puts its object store into TMPDIR"
        return Finding(SHM, Severity.WARNING, size, breaks, "ls -lt /dev/shm, and remove files of dead processes")
    return Finding(SHM, Severity.FINE, size)


def check_resource_limits(limits: Mapping[str, Limit], *, has_rdma: bool, is_root: bool) -> list[Finding]:
    """`limits` by their names in limits.conf(5): nofile, nproc; in bytes memlock, as, fsize."""
    findings = []
    nofile, nproc = limits["nofile"], limits["nproc"]
    if nofile.hard < MIN_OPEN_FILES:
        breaks = "Ray and data loaders run out of open files: connections fail, workers die"
        findings.append(_limited("open files", f"{nofile.hard:.0f} at most", breaks, "nofile=65536:65536"))
    if nproc.soft < MIN_PROCESSES and not is_root:
        breaks = "processes and threads of this user count together: Ray and OpenMP fail to start more"
        findings.append(_limited("processes", f"{nproc.soft:.0f}", breaks, "nproc=65536:65536"))
    if has_rdma and limits["memlock"].soft != float("inf"):
        breaks = "InfiniBand registers memory that stays locked: NCCL's network transport fails to start"
        measured = f"{limits['memlock'].soft / 1e6:.1f} MB, and there is InfiniBand here"
        findings.append(_limited("locked memory", measured, breaks, "memlock=-1:-1", Severity.BROKEN))
    if limits["as"].soft != float("inf"):
        breaks = "CUDA reserves more addresses than there is memory, and does not start"
        findings.append(
            Finding(
                "address space",
                Severity.BROKEN,
                f"limited to {_gb(limits['as'].soft)}",
                breaks,
                remedy="ulimit -v unlimited",
            )
        )
    if limits["fsize"].soft != float("inf"):
        findings.append(_short_files(limits["fsize"]))
    if findings:
        return findings
    measured = f"{nofile.soft:,.0f} open files (up to {nofile.hard:,.0f}), {nproc.soft:,.0f} processes"
    return [Finding("ulimits", Severity.FINE, measured.replace("inf", "unlimited"))]


def _short_files(limit: Limit) -> Finding:
    is_small = limit.soft < SMALL_FILE_BYTES
    breaks = "programs that write more fail with 'File too large': checkpoints, compilers, Ray's spilled objects, logs"
    severity, measured = Severity.BROKEN if is_small else Severity.WARNING, f"a file may have {_gb(limit.soft)} at most"
    if limit.hard == float("inf"):
        return Finding("file size", severity, measured, breaks, remedy="ulimit -f unlimited")
    return _limited("file size", measured, breaks, "fsize=-1:-1", severity)


def _limited(check: str, measured: str, breaks: str, docker: str, severity: Severity = Severity.WARNING) -> Finding:
    name, _, numbers = docker.partition("=")
    value = numbers.partition(":")[0].replace("-1", "unlimited")
    line = f"echo '* - {name} {value}' | sudo tee -a /etc/security/limits.conf, and log in again"
    remedy = f"{line}; of a container: docker run --ulimit {docker}"
    return Finding(check, severity, measured, breaks, remedy)


async def _survey(path: str) -> Directory | None:
    """The directory; None where its file system does not answer."""

    def survey() -> Directory:
        return survey_directory(path, read_mounts())

    try:
        return await in_daemon_thread(survey, limit_s=SURVEY_S)
    except TimeoutError:
        return None


def survey_directory(path: str, mounts: Iterable[Mount]) -> Directory:
    """What can be seen of a directory without writing to it."""
    if not os.path.isdir(path):
        return Directory(path, is_writable=False)
    space = os.statvfs(path)
    return Directory(
        path,
        is_writable=os.access(path, os.W_OK | os.X_OK),
        fs_type=fs_type_of(os.path.realpath(path), tuple(mounts)),
        free_bytes=space.f_bavail * space.f_frsize,
        total_bytes=space.f_blocks * space.f_frsize,
    )


def _candidate(directory: Directory) -> Candidate:
    return Candidate(directory.path, directory.is_writable, directory.fs_type)


def _limit(number: int) -> Limit:
    soft, hard = resource.getrlimit(number)
    infinite = resource.RLIM_INFINITY
    return Limit(float("inf") if soft == infinite else soft, float("inf") if hard == infinite else hard)


def _ms(seconds: float) -> str:
    return f"{seconds * 1000:.1f} ms" if seconds >= 0.0001 else "less than 0.1 ms"


def _gb(num_bytes: float) -> str:
    return f"{num_bytes / 1e9:.1f} GB" if num_bytes >= 1e9 else f"{num_bytes / 1e6:.0f} MB"
