"""Reading processes from /proc, and signalling one without ever hitting another that took over its number."""

import contextlib
import os
import signal
from collections.abc import Callable
from typing import NamedTuple

from harness.bits.redaction import redact_argv

MAX_COMMAND_BYTES = 1 << 16
EXITING_S = 120.0
"""For a process that unpins hundreds of GB of memory, frees that of eight GPUs, or writes a core."""
PF_EXITING = 0x4
"""Flag of the kernel (include/linux/sched.h) in the ninth field of /proc/PID/stat."""


class Process(NamedTuple):
    """One process as /proc/PID/stat shows it; (pid, start_ticks) names it for good."""

    pid: int
    parent_pid: int
    start_ticks: int
    state: str  # R, S, D, T, Z, ... as in proc(5)
    name: str
    num_threads: int

    @property
    def is_zombie(self) -> bool:
        """Whether it has ended and only waits to be reaped.

        A process whose first thread has gone shows Z as well, and lives on in its other threads.
        """
        return self.state in "ZX" and self.num_threads <= 1


def read_process(pid: int) -> Process | None:
    """The process `pid`, or None when there is none."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            text = file.read()
    except OSError:
        return None
    name_start, name_end = text.find("("), text.rfind(")")  # the name itself may hold brackets and spaces
    rest = text[name_end + 2 :].split()
    if len(rest) < 20:
        return None
    return Process(pid, int(rest[1]), int(rest[19]), rest[0], text[name_start + 1 : name_end], int(rest[17]))


def is_exiting(pid: int) -> bool:
    """Whether a process has begun to end, which may take it minutes: it gives back what it has pinned and on GPUs."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            fields = file.read().rpartition(")")[2].split()
        return bool(int(fields[6]) & PF_EXITING)
    except (OSError, IndexError, ValueError):
        return False


def is_unkillable(waited_s: float, limit_s: float, living: Callable[[], list[Process]]) -> bool:
    """Whether processes are given up on, `waited_s` seconds after SIGKILL: those that are exiting are given longer."""
    if waited_s < limit_s:
        return False
    return waited_s >= EXITING_S or not any(is_exiting(process.pid) for process in living())


def all_processes() -> list[Process]:
    """Every process that this PID namespace shows."""
    found = (read_process(int(entry)) for entry in os.listdir("/proc") if entry.isdigit())
    return [process for process in found if process is not None]


def descendants(*root_pids: int) -> list[Process]:
    """Children of the processes `root_pids`, their children, and so on; zombies included, the roots not."""
    children: dict[int, list[Process]] = {}
    for process in all_processes():
        children.setdefault(process.parent_pid, []).append(process)
    found: list[Process] = []
    frontier = list(root_pids)
    while frontier:
        below = children.pop(frontier.pop(), [])
        found += below
        frontier += [process.pid for process in below]
    return found


def send_signal(process: Process, signum: int) -> str:
    """Send `signum` to exactly this process; "" when sent or already gone, else why it could not be.

    The PID is pinned by a pidfd before its start time is compared, so a recycled number is never hit. Where the
    kernel has no pidfd (some sandboxes), the comparison alone must do.
    """
    fd = -1
    try:
        with contextlib.suppress(OSError):
            fd = os.pidfd_open(process.pid)
        now = read_process(process.pid)
        if now is None or now.start_ticks != process.start_ticks:
            return ""
        if fd >= 0:
            signal.pidfd_send_signal(fd, signum)
        else:
            os.kill(process.pid, signum)
    except ProcessLookupError:
        return ""
    except OSError as error:
        return str(error.strerror)
    finally:
        if fd >= 0:
            os.close(fd)
    return ""


def command_line(pid: int, limit: int = 200) -> str:
    """The arguments of a process joined by spaces, its bare name if it shows none, cut to `limit` characters.

    Secrets are taken out; the last argument of a very long command line may be half of one, and is left out.
    """
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            raw = file.read(MAX_COMMAND_BYTES)
    except OSError:
        raw = b""
    words = raw.decode("utf-8", "replace").rstrip("\0").split("\0")
    is_cut = len(raw) == MAX_COMMAND_BYTES
    told = redact_argv(words[:-1] if is_cut else words)
    text = " ".join([*told, "…"] if is_cut else told).strip()
    if not text:
        process = read_process(pid)
        text = f"[{process.name}]" if process else "[gone]"
    return text if len(text) <= limit else text[: limit - 1] + "…"


def children(parent_pid: int) -> list[Process]:
    """The direct children of a process, zombies included."""
    return [process for process in all_processes() if process.parent_pid == parent_pid]


def describe(process: Process) -> str:
    """`4711 S python -c ...`: number, state, command."""
    return f"{process.pid} {process.state} {command_line(process.pid)}"


def bearing(marker: str) -> list[Process]:
    """Living processes with a variable of the value `marker` in their environment, as it was at their start."""
    needle = f"={marker}\0".encode()  # the whole value: one attempt's marker may begin another's
    found = []
    for process in all_processes():
        try:
            with open(f"/proc/{process.pid}/environ", "rb") as file:
                if needle in file.read() and not process.is_zombie:
                    found.append(process)
        except OSError:  # gone meanwhile, or another user's: not ours
            continue
    return found
