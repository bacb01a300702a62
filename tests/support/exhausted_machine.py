"""A machine that has run out of something, for one command: a disk, inodes, descriptors, processes, memory.

    BASE/prepared/{work,tmp,home}   where every trial begins
    BASE/{work,tmp,home}            in the mount namespace of a trial: file systems of its own, with copies of these

The command runs in BASE/work, with TMPDIR and HOME in the two others. Afterwards the file systems are whole again, and
another command can follow. Mounting takes root, or the kernel's permission.
"""

import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from tests.support.suite_runs import environment

AREAS = ("work", "tmp", "home")
TOKEN = "RLH_TRIAL"
UNENDED = -99
UNPREPARED = 77
GONE_S = 15.0
PIDS_HOMES = ("/sys/fs/cgroup/pids", "/sys/fs/cgroup")
"""Where a control group with `pids.max` can be made: version 1, and 2. RLIMIT_NPROC does not bind root."""

_SCRIPT = r"""
base=$1 areas=$2 size=$3 inodes=$4 mode=$5; shift 5
for area in work tmp home; do
    mount -t tmpfs -o size=512m,nr_inodes=100000,mode=0755 none "$base/$area" || exit 77
    cp -a "$base/prepared/$area/." "$base/$area/" || exit 77
    head -c 4096 /dev/zero >"$base/$area/.occupied" || exit 77
done
for area in $areas; do
    at="$base/$area"
    if [ -n "$size" ]; then
        used=$(df --output=used -B1 "$at" | tail -n 1)
        mount -o remount,size=$((used + size)) "$at" || exit 77
    fi
    if [ -n "$inodes" ]; then
        used=$(df --output=iused "$at" | tail -n 1)
        mount -o remount,nr_inodes=$((used + inodes)) "$at" || exit 77
    fi
    [ -z "$mode" ] || mount -o remount,ro "$at" || exit 77
done
touch "$STAMP"
cd "$base/work"
[ -z "$PIDS" ] || echo 0 >"$PIDS/cgroup.procs" || exit 77
"$@" </dev/null
code=$?
[ -z "$PIDS" ] || echo max >"$PIDS/pids.max"
for area in work tmp home; do
    mount -o remount,rw,size=512m,nr_inodes=100000 "$base/$area"
done
cd "$base"
find work tmp home -newer "$STAMP" \( ! -type d -o -name 'rlh-*' \) ! -name .occupied -printf '%s\t%p\n' >"$FOUND"
find work -newer "$STAMP" -name '*.json' -print0 | "$PYTHON" -ISc "$READ" >"$FOUND.broken"
if [ -n "$AGAIN" ]; then
    cd "$base/work"
    sh -c "$AGAIN" </dev/null >"$FOUND.again" 2>&1
    echo "$?" >"$FOUND.code"
fi
exit $code
"""

_READ = """
import json, sys
for path in filter(None, sys.stdin.read().split(chr(0))):
    try:
        with open(path) as file:
            json.load(file)
    except ValueError:
        print(path)
"""
"""Prints those of the files named on standard input that hold no JSON."""


@dataclass(frozen=True, slots=True)
class Exhaustion:
    """A machine that lacks something."""

    name: str
    areas: tuple[str, ...] = AREAS
    """Those of AREAS whose file system is small or read-only."""
    free_bytes: int | None = None
    free_inodes: int | None = None
    is_read_only: bool = False
    num_processes: int | None = None
    """Processes and threads that the command may have, itself among them."""
    limits: Mapping[str, int] = field(default_factory=dict)
    """Limits of each process, by the name of prlimit(1): `nofile`, `fsize`, `as`, `data`."""


@dataclass(frozen=True, slots=True)
class Trial:
    """A command that ended on such a machine."""

    code: int
    """The exit code; UNENDED for a command that was killed at the limit of its time."""
    stdout: str
    stderr: str
    seconds: float
    found: Mapping[str, int]
    """Sizes of new and changed files by path, such as `work/report.html`."""
    broken: tuple[str, ...]
    """New files in BASE/work that are called JSON and hold none."""
    left: tuple[str, ...]
    """Commands of processes that outlived it."""
    again: tuple[int, str] | None
    """Exit code and output of the command that followed on the restored machine; None if none did."""


def why_unable() -> str:
    """Return why this process cannot make such machines; empty if it can."""
    probe = ["unshare", "--mount", "mount", "-t", "tmpfs", "-o", "size=4k,nr_inodes=9", "none", "/mnt"]
    if missing := [name for name in ("unshare", "prlimit") if not shutil.which(name)]:
        return f"there is no {missing[0]}(1)"
    if subprocess.run(probe, capture_output=True, check=False).returncode:
        return "mounting is not permitted here"
    return ""


def run_exhausted(
    base: Path, exhaustion: Exhaustion, words: Sequence[str], *, number: int, limit_s: float, again: Sequence[str] = ()
) -> Trial:
    """Run a command line on a machine that lacks something, `again` after it; return how it ended and what it left.

    Raises LookupError where no control group for a limit of processes can be made.
    """
    token, found = f"rlhx-{os.getpid()}-{number}", base / f"found-{number}"
    pids = _control_group(token, exhaustion.num_processes)
    own = {"TMPDIR": str(base / "tmp"), "HOME": str(base / "home"), "XDG_CACHE_HOME": str(base / "home" / ".cache")}
    own |= {"PYTHON": sys.executable, "READ": _READ}
    own |= {"FOUND": str(found), "STAMP": f"{found}.stamp", "AGAIN": shlex.join(again), "PIDS": pids, TOKEN: token}
    began_s = time.monotonic()
    with subprocess.Popen(
        _command(base, exhaustion, words),
        env=environment(**own, PYTHONDONTWRITEBYTECODE="1"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        stdin=subprocess.DEVNULL,
        start_new_session=True,
    ) as process:
        try:
            stdout, stderr = process.communicate(timeout=limit_s)
            code = process.returncode
        except subprocess.TimeoutExpired:
            _kill(living(token))
            stdout, stderr = process.communicate()
            code = UNENDED
    seconds = time.monotonic() - began_s
    while (left := living(token)) and time.monotonic() < began_s + seconds + GONE_S:
        time.sleep(0.05)
    names = tuple(_command_of(pid) for pid in left)
    _kill(left)
    if pids:
        with suppress(OSError):  # one that was killed a moment ago is in it still
            os.rmdir(pids)
    out, errors = stdout.decode(errors="replace"), stderr.decode(errors="replace")
    broken = tuple(Path(f"{found}.broken").read_text().splitlines()) if code not in (UNENDED, UNPREPARED) else ()
    return Trial(code, out, errors, seconds, _files_in(found), broken, names, _followed(found) if again else None)


def living(token: str) -> list[int]:
    """Processes that carry the token of a trial, zombies left out."""
    needle = f"{TOKEN}={token}\0".encode()
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        with suppress(OSError):
            state = Path(f"/proc/{name}/stat").read_text().rpartition(")")[2].split()[0]
            if state not in "ZX" and needle in Path(f"/proc/{name}/environ").read_bytes():
                found.append(int(name))
    return found


def _command(base: Path, exhaustion: Exhaustion, words: Sequence[str]) -> list[str]:
    size, inodes = ("" if each is None else str(each) for each in (exhaustion.free_bytes, exhaustion.free_inodes))
    limits = [f"--{name}={value}" for name, value in exhaustion.limits.items()]
    mode, areas = "ro" if exhaustion.is_read_only else "", " ".join(exhaustion.areas)
    shell = ["unshare", "--mount", "sh", "-c", _SCRIPT, "sh", str(base), areas, size, inodes, mode]
    return [*shell, *(["prlimit", *limits] if limits else []), *words]


def _control_group(token: str, num_processes: int | None) -> str:
    """Make a control group for so many processes beside the shell that starts them; empty for None."""
    if num_processes is None:
        return ""
    for home in map(Path, PIDS_HOMES):
        with suppress(OSError):
            (home / token).mkdir()
            (home / token / "pids.max").write_text(str(num_processes + 1))
            return str(home / token)
    raise LookupError("no control group with pids.max can be made here")


def _files_in(found: Path) -> dict[str, int]:
    lines = found.read_text(errors="replace").splitlines() if found.exists() else []
    return {path: int(size) for size, path in (line.split("\t", 1) for line in lines)}


def _followed(found: Path) -> tuple[int, str] | None:
    code = Path(f"{found}.code")
    return (int(code.read_text()), Path(f"{found}.again").read_text(errors="replace")) if code.exists() else None


def _kill(pids: Sequence[int]) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def _command_of(pid: int) -> str:
    with suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")[:200]
    return ""
