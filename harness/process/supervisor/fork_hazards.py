"""What a process would share with its forks and must not, found where it is: in the process from which they are forked.

Threads, CUDA, sockets, files that are written, child processes, the working directory, replaced system functions; and
the variables of the environment that differ between the forks and have been read already.
"""

import ctypes
import fcntl
import os
import pkgutil
import stat
import sys
import tempfile
import threading
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from types import FrameType
from typing import Any

from harness.process.supervisor import process_tree

THREADS = "threads"
CUDA_NOT_INITIALIZED = 3
USED_BY_SUPERVISORS = (
    *(f"os:{name}" for name in ("fork", "read", "write", "waitpid", "dup2", "open", "close", "pipe", "_exit")),
    *("select:poll", "signal:signal", "time:monotonic", "json:loads", "json:dumps"),
)
PASSED_THROUGH = (os.__file__, sys.modules["_collections_abc"].__file__, "<frozen os>", "<frozen _collections_abc>")


class _Watched(type(os.environ)):  # type: ignore[misc]
    """The environment, which notes who reads which variable. Making a copy of all of it reads none."""

    watch: "Watch"
    _copied_at: tuple[int, int] | None = None

    def __getitem__(self, key: str) -> Any:
        if key in self.watch.varying:
            frame = _asking_frame()
            if (id(frame), frame.f_lasti) != self._copied_at and frame.f_code.co_filename != tempfile.__file__:
                self.watch.note(key, str(frame.f_globals.get("__name__", "?")))
        return super().__getitem__(key)

    def __iter__(self) -> Iterator[str]:
        frame = _asking_frame()
        self._copied_at = (id(frame), frame.f_lasti)
        yield from super().__iter__()


def _asking_frame() -> FrameType:
    """The frame below those of the environment's own methods."""
    frame = sys._getframe(2)
    while frame.f_back is not None and (
        frame.f_code.co_filename in PASSED_THROUGH or frame.f_code is _Watched.__iter__.__code__
    ):
        frame = frame.f_back
    return frame


class Watch:
    """Watches a process from its start on, until a fork of it ends the watch for itself."""

    def __init__(self, varying: Iterable[str], known_readers: Iterable[str] = ()) -> None:
        self.varying = frozenset(varying)
        self._known_readers = frozenset(known_readers)
        """Modules whose reads are not noted."""
        self.environ = dict(os.environ)
        """The environment as it was at the start."""
        self._cwd = os.getcwd()
        self.known_files = {*open_files()}
        """Descriptors that may be shared."""
        self._streams = {_identity(fd) for fd in (1, 2)}
        self.reads: dict[str, str] = {}
        """Variables of `varying` that were read, with the module that read each first."""
        self._originals = {name: pkgutil.resolve_name(name) for name in USED_BY_SUPERVISORS}
        self._plain = type(os.environ)
        os.environ.__class__ = _Watched
        os.environ.watch = self  # type: ignore[attr-defined]

    def note(self, key: str, reader: str) -> None:
        """Note that `reader` has read the variable `key`."""
        if reader not in self._known_readers:
            self.reads.setdefault(key, reader)

    def end(self) -> None:
        """Watch no more."""
        os.environ.__class__ = self._plain

    def hazard(self, own_children: Sequence[int] = ()) -> tuple[str, str] | None:
        """(code, detail) of the first thing that a fork would share now and must not; None for nothing.

        `own_children` are processes that the caller has started itself.
        """
        if (num := num_threads_kept()) > 1:
            names = sorted(thread.name for thread in threading.enumerate() if thread is not threading.main_thread())
            return THREADS, ", ".join(names) or f"{num - 1} of a library"
        if cuda_is_initialized():
            return "cuda", ""
        if others := [pid for pid in _children() if pid not in own_children]:
            return "processes", process_tree.command_line(others[0])
        for fd in {int(entry) for entry in os.listdir("/proc/self/fd")} - self.known_files:
            with suppress(OSError):
                target = os.readlink(f"/proc/self/fd/{fd}")
                if target.startswith(("socket:", "anon_inode:[eventpoll]")):
                    return "sockets", "1"
                if _is_written(fd) and _identity(fd) not in self._streams:
                    return "files", target
                self.known_files.add(fd)
        with suppress(OSError):
            if (cwd := os.getcwd()) != self._cwd:
                return "cwd", cwd
        for name, original in self._originals.items():
            if pkgutil.resolve_name(name) is not original:
                return "replaced", name.replace(":", ".")
        return None


def _children() -> list[int]:
    try:
        with open(f"/proc/self/task/{os.getpid()}/children", encoding="ascii") as file:
            return [int(each) for each in file.read().split()]
    except OSError:  # a kernel without it
        return [process.pid for process in process_tree.children(os.getpid())]


def num_threads_kept() -> int:
    """Number of threads that stay through a fork: libraries such as OpenBLAS end theirs before one, others do not."""
    if num_threads() > 1 and threading.active_count() == 1:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            pid = os.fork()
        if pid == 0:
            os._exit(0)
        os.waitpid(pid, 0)
    return num_threads()


def num_threads() -> int:
    """Number of threads of this process, those of libraries too."""
    return len(os.listdir("/proc/self/task"))


def open_files() -> Mapping[int, str]:
    """The descriptors of this process and what each leads to."""
    found = {}
    for entry in os.listdir("/proc/self/fd"):
        with suppress(OSError):
            found[int(entry)] = os.readlink(f"/proc/self/fd/{entry}")
    return found


def _identity(fd: int) -> tuple[int, int]:
    status = os.fstat(fd)
    return status.st_dev, status.st_ino


def _is_written(fd: int) -> bool:
    """Whether a descriptor is of a regular file that can be written, such as a database."""
    with suppress(OSError):
        return stat.S_ISREG(os.fstat(fd).st_mode) and fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_ACCMODE != os.O_RDONLY
    return False


def cuda_is_initialized() -> bool:
    """Whether this process has initialised the CUDA driver, which no fork of it could use."""
    try:
        driver = ctypes.CDLL("libcuda.so.1", mode=os.RTLD_NOLOAD)
    except OSError:
        return False
    return bool(driver.cuDeviceGetCount(ctypes.byref(ctypes.c_int(0))) != CUDA_NOT_INITIALIZED)
