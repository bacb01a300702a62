"""The three means of holding a process tree so that all of it can be ended, strongest first.

| tier | holds | proof that no process lives |
|---|---|---|
| cgroup | a control group (v2) of its own, ended by cgroup.kill | its `populated` is 0 |
| pidns | a PID namespace with an init of ours; it dies with the supervisor too | that init has been reaped |
| subreaper | orphans come to the supervisor; stopped to a fixpoint, then killed | waitpid says ECHILD |

Every tier is a subreaper as well, and every tier ends by finding that no child is left.
"""

import errno
import os
import signal
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

from harness.process.supervisor import process_tree, syscalls
from harness.process.supervisor.process_tree import Process

BACKENDS = ("cgroup", "pidns", "subreaper")
KILL_FILE = "cgroup.kill"
MAX_STOP_ROUNDS = 50  # a process that may not be stopped (another user's) could fork for ever

Start = Callable[[], "NoReturn"]
"""Runs in the forked child: arranges its files and replaces it by the leader's program."""


class Subreaper:
    """One process tree, from the leader's start to the proof that none of it lives.

    Its processes are found by following parents, which works because orphans are adopted by this process.
    """

    def __init__(self) -> None:
        self.leader_pid = 0
        self.leader_status: int | None = None
        """The leader's raw wait status once it has ended."""
        self.is_gone = False
        """Whether it is proven that no process of the tree lives, and none can come to life."""
        syscalls.become_subreaper()

    def spawn(self, start: Start) -> None:
        """Fork the leader inside the containment."""
        go_read, go_write = os.pipe()
        try:
            self.leader_pid = os.fork()
            if self.leader_pid == 0:
                os.close(go_write)
                _be_leader(start, go_read)
            self.hold(self.leader_pid)
            os.write(go_write, b"g")
        finally:
            os.close(go_read)
            os.close(go_write)

    def hold(self, pid: int) -> None:
        """Take hold of the leader, which waits for permission to start its program."""

    def reap(self) -> None:
        """Collect what has ended; updates `leader_status` and `is_gone`. Never blocks."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                self.is_gone = self.nobody_outside_the_tree()
                return
            if pid == 0:
                return
            self.on_reaped(pid, status)

    def on_reaped(self, pid: int, status: int) -> None:
        """Note one ended child."""
        if pid == self.leader_pid:
            self.leader_status = status

    def nobody_outside_the_tree(self) -> bool:
        """Asked when no child is left: whether that proves the end."""
        return True

    def alive(self) -> list[Process]:
        """The processes of the tree that have not ended."""
        return [process for process in process_tree.descendants(os.getpid()) if not process.is_zombie]

    def signal_leader(self, signum: int) -> None:
        """Signal the leader alone."""
        if self.leader_status is None and (leader := process_tree.read_process(self.leader_pid)):
            process_tree.send_signal(leader, signum)

    def signal_all(self, signum: int) -> None:
        """Signal every process of the tree once."""
        for process in self.alive():
            process_tree.send_signal(process, signum)

    def kill(self) -> None:
        """One round of killing all of it; repeat until `is_gone`.

        Stops descendants until no new one appears, so that none can fork away, then kills them all.
        """
        stopped: set[tuple[int, int]] = set()
        for _ in range(MAX_STOP_ROUNDS):
            fresh = [p for p in self.alive() if (p.pid, p.start_ticks) not in stopped]
            if not fresh:
                break
            for process in fresh:
                process_tree.send_signal(process, signal.SIGSTOP)
                stopped.add((process.pid, process.start_ticks))
        self.signal_all(signal.SIGKILL)

    def close(self) -> None:
        """Remove what the containment itself made, once it is gone: nothing here."""


class ControlGroup(Subreaper):
    """A cgroup v2 directory of its own; membership is inherited and survives every fork and new session."""

    def __init__(self, directory: str) -> None:
        super().__init__()
        self.directory = directory
        os.mkdir(directory)
        if not os.path.exists(os.path.join(directory, KILL_FILE)):
            os.rmdir(directory)
            raise OSError(errno.ENOSYS, f"control groups have no {KILL_FILE} here (Linux 5.14 and later have it)")

    def hold(self, pid: int) -> None:
        with open(os.path.join(self.directory, "cgroup.procs"), "w", encoding="utf-8") as file:
            file.write(str(pid))

    def nobody_outside_the_tree(self) -> bool:
        return not self._populated()

    def alive(self) -> list[Process]:
        held = {process.pid: process for process in group_members(self.directory)}
        return list((held | {process.pid: process for process in super().alive()}).values())

    def kill(self) -> None:
        kill_group(self.directory)
        super().kill()  # who moved itself out of the group is still a descendant

    def close(self) -> None:
        remove_group(self.directory)

    def _populated(self) -> bool:
        try:
            with open(os.path.join(self.directory, "cgroup.events"), encoding="utf-8") as file:
                return "populated 1" in file.read()
        except FileNotFoundError:  # the tree removed it, as root may; a group with a process in it cannot be removed
            return False


class PidNamespace(Subreaper):
    """A PID namespace whose init is ours: when init goes, the kernel kills everybody in it, then reports init."""

    def __init__(self) -> None:
        super().__init__()
        self._init_pid = 0
        self._status_fd = -1

    def spawn(self, start: Start) -> None:
        status_read, status_write = os.pipe()
        go_read, go_write = os.pipe()
        outside = os.open("/proc/self/ns/pid", os.O_RDONLY | os.O_CLOEXEC)
        syscalls.unshare(syscalls.CLONE_NEWPID)
        self._init_pid = os.fork()
        if self._init_pid == 0:
            os.close(go_write)
            _be_init(start, status_write, go_read)
        syscalls.enter_namespace(outside, syscalls.CLONE_NEWPID)  # what is forked later (a stack dump) stays out
        for fd in (outside, status_write, go_read):
            os.close(fd)
        self._status_fd = status_read
        ready = os.read(status_read, 1)
        os.write(go_write, b"g")
        os.close(go_write)
        if ready != b"r":
            raise OSError(f"the PID namespace did not come up: {_read_all(status_read).decode(errors='replace')}")
        os.set_blocking(status_read, False)

    def on_reaped(self, pid: int, status: int) -> None:
        self._read_status()
        if pid == self._init_pid and self.leader_status is None:
            self.leader_status = status  # killed with the namespace

    def reap(self) -> None:
        self._read_status()
        super().reap()

    def alive(self) -> list[Process]:
        return [p for p in process_tree.descendants(self._init_pid) if not p.is_zombie]

    def signal_leader(self, signum: int) -> None:
        first = [p for p in self.alive() if p.parent_pid == self._init_pid]
        if self.leader_status is None and first:
            process_tree.send_signal(min(first, key=lambda p: (p.start_ticks, p.pid)), signum)

    def kill(self) -> None:
        if init := process_tree.read_process(self._init_pid):
            process_tree.send_signal(init, signal.SIGKILL)

    def close(self) -> None:
        if self._status_fd >= 0:
            os.close(self._status_fd)

    def _read_status(self) -> None:
        try:
            text = os.read(self._status_fd, 64)
        except BlockingIOError:
            return
        if text and self.leader_status is None:
            self.leader_status = int(text.split()[0])


def group_members(directory: str) -> list[Process]:
    """Living processes of a control group and of all groups that were made below it."""
    found = []
    for below, _, _ in os.walk(directory):
        try:
            with open(os.path.join(below, "cgroup.procs"), encoding="utf-8") as file:
                pids = [int(line) for line in file]
        except OSError:  # removed meanwhile, or a group of threads, whose processes its parent lists
            continue
        found += [p for p in map(process_tree.read_process, pids) if p and not p.is_zombie]
    return found


def kill_group(directory: str) -> None:
    """Send SIGKILL to every process in a control group and below; a missing group is empty."""
    try:
        fd = os.open(os.path.join(directory, KILL_FILE), os.O_WRONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    try:
        os.write(fd, b"1")
    finally:
        os.close(fd)


def remove_group(directory: str) -> None:
    """Remove a control group without processes, and those below it."""
    for below, _, _ in os.walk(directory, topdown=False):
        try:
            os.rmdir(below)
        except OSError as error:  # the kernel lets go of a group a moment after its last process
            if error.errno not in (errno.EBUSY, errno.ENOENT):
                raise


def _be_leader(start: Start, go_fd: int) -> NoReturn:
    """In the forked child: wait until it is held, then become the program."""
    try:
        syscalls.die_with_parent()
        if os.read(go_fd, 1) == b"g":  # else the supervisor died before its death could reach us, or cannot hold us
            start()
    finally:
        os._exit(1)


def _be_init(start: Start, status_fd: int, go_fd: int) -> NoReturn:
    """The life of the namespace's first process: mount its /proc, start the leader, reap until nobody is left."""
    try:
        restore_signals()
        for fd in (0, 1):  # the runner's pipes belong to the supervisor alone
            os.dup2(os.open(os.devnull, os.O_RDWR), fd)
        syscalls.die_with_parent()
        syscalls.unshare(syscalls.CLONE_NEWNS)
        syscalls.mount("none", "/", "", syscalls.MS_REC | syscalls.MS_PRIVATE)
        syscalls.mount("proc", "/proc", "proc", syscalls.MS_NOSUID | syscalls.MS_NODEV | syscalls.MS_NOEXEC)
    except OSError as error:
        os.write(status_fd, f"!{error}".encode())
        os._exit(1)
    os.write(status_fd, b"r")
    if os.read(go_fd, 1) != b"g":  # the supervisor died before its death could reach us
        os._exit(1)
    leader = os.fork()
    if leader == 0:
        start()
    while True:
        try:
            pid, status = os.waitpid(-1, 0)
        except ChildProcessError:
            os._exit(0)
        if pid == leader:
            os.write(status_fd, f"{status}\n".encode())


SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD, signal.SIGPIPE, signal.SIGXFSZ)
"""Those whose handlers a supervisor sets, or Python itself."""


def restore_signals(handlers: Mapping[int, Any] | None = None) -> None:
    """Undo, in a forked child, what the supervisor's loop did to signals: handlers, mask, wake-up pipe."""
    signal.set_wakeup_fd(-1)
    for signum in SIGNALS:
        signal.signal(signum, (handlers or {}).get(signum) or signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def _read_all(fd: int) -> bytes:
    return b"".join(iter(lambda: os.read(fd, 4096), b""))


def cgroup_home() -> str:
    """The cgroup v2 directory this process is in; OSError where no such hierarchy is mounted."""
    with open("/proc/self/cgroup", encoding="utf-8") as file:
        own = next((line[3:].strip() for line in file if line.startswith("0::")), None)
    with open("/proc/self/mountinfo", encoding="utf-8") as file:
        # fields: id parent major:minor root mountpoint ... - fstype source options
        for line in file:
            fields, _, tail = line.partition(" - ")
            if own is not None and tail.startswith("cgroup2 "):
                root, mountpoint = fields.split()[3:5]
                inside = own if root == "/" else own.removeprefix(root)
                return mountpoint + ("" if inside == "/" else inside)
    raise OSError(errno.ENOENT, "no cgroup v2 hierarchy is mounted")


def make_containment(backend: str, cgroup_directory: str) -> Subreaper:
    """The containment named `backend`; OSError where this machine does not allow it."""
    if backend == "cgroup":
        return ControlGroup(cgroup_directory)
    return PidNamespace() if backend == "pidns" else Subreaper()
