"""Name what this machine, or a limit of this process, has run out of, from the error of a call.

    OSError, MemoryError, ... ─▶ exhaustion_of(error) ─▶ ExhaustedError: the value, the limit and the remedy

A full disk, a read-only file system, no descriptor, no process or no memory left: none of them is a bug.
"""

import errno
import os
import re
import resource
import tempfile
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from harness.bits.errors import ExhaustedError, HarnessError

if TYPE_CHECKING:
    import asyncio

_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)
_NO_THREAD = "can't start new thread"
_UNMAPPED = re.compile("failed to map segment|[Cc]annot allocate memory")
"""The dynamic linker's words for a library that memory is lacking for."""
MAKE_ROOM = "free some there, or use another disk: --out or --results-dir for results, TMPDIR for temporary files"
_MAX_CAUSES = 20
_UNLIMITED = "unlimited"


def exhaustion_of(error: BaseException) -> ExhaustedError | None:
    """Return the user's error for one that says that something has run out; None for any other error.

    A group of exceptions, and an error with a cause, are searched for one that does.
    """
    for each in _causes(error):
        if isinstance(each, ExhaustedError):
            return each
        if found := _lack(each):
            lack, legal, remedy = found
            return ExhaustedError(f"{lack}: {str(each) or type(each).__name__}", legal=legal, remedy=remedy)
    return None


def reason_of(error: BaseException) -> str:
    """Return what an error says, on one line: with the limit, where it is that something has run out."""
    found = exhaustion_of(error)
    return " ".join(f"{found.what}; {found.remedy}".split()) if found else " ".join(str(error).split())


def shortage_at(path: str | os.PathLike[str]) -> str:
    """Return what the file system of `path` lacks for a new file, with its size; empty where it lacks nothing.

    The nearest directory above a path that does not exist is looked at.
    """
    found = os.path.abspath(path)
    while not os.path.lexists(found) and os.path.dirname(found) != found:
        found = os.path.dirname(found)
    try:
        disk = os.statvfs(found)
    except OSError:
        return ""
    if disk.f_flag & os.ST_RDONLY:
        return f"the file system of {found} is read-only"
    if disk.f_files and not (disk.f_ffree if os.geteuid() == 0 else disk.f_favail):
        return f"the disk of {found} has none of its {disk.f_files:,} inodes left"
    if disk.f_blocks and not (disk.f_bfree if os.geteuid() == 0 else disk.f_bavail):
        return f"the disk of {found} is full: no byte of {disk.f_blocks * disk.f_frsize:,} is free"
    return ""


def _causes(error: BaseException) -> Iterator[BaseException]:
    """The error, the members of groups, and causes, outermost first; a user's error stands for its own causes."""
    left = [error]
    for _ in range(_MAX_CAUSES):
        if not left:
            return
        each = left.pop(0)
        yield each
        if isinstance(each, BaseExceptionGroup):
            left += each.exceptions
        if each.__cause__ is not None and not isinstance(each, HarnessError):
            left.append(each.__cause__)


def _lack(error: BaseException) -> tuple[str, str, str] | None:
    """Return what an error says to be lacking, what is legal and the remedy; None where it says nothing of the kind."""
    number = error.errno if isinstance(error, OSError) else None
    if isinstance(error, OSError) and number in _DISK:
        named = [name for name in (error.filename2, error.filename) if isinstance(name, str | bytes)]
        paths = [os.fsdecode(name) for name in named] or [tempfile.gettempdir(), os.getcwd()]
        is_readonly = number == errno.EROFS
        either = "a file system is read-only" if is_readonly else "a disk takes no more"
        remedy = MAKE_ROOM.replace("free some there", "make it writable") if is_readonly else MAKE_ROOM
        lack = next(filter(None, map(shortage_at, paths)), either)
        return lack, "a disk with space and inodes left, mounted for writing", remedy
    if number == errno.EFBIG and _soft("FSIZE") != _UNLIMITED:  # else a file that is too large for its reader
        return _limit("file of this size", "FSIZE", "size of a file, in bytes", "ulimit -f unlimited")
    if number == errno.EMFILE:
        return _limit("file descriptor left", "NOFILE", "open files", "ulimit -n 4096")
    if number == errno.ENFILE:
        remedy = "end what holds them (lsof shows it), or raise the limit: sysctl fs.file-max"
        return "this machine has no file descriptor left", "fewer open files than fs.file-max", remedy
    is_fork = isinstance(error, OSError) and number == errno.EAGAIN and error.filename is None
    if is_fork or (isinstance(error, RuntimeError) and str(error).startswith(_NO_THREAD)):
        return _limit("process or thread left", "NPROC", "processes of this user, or pids.max", "ulimit -u 4096")
    is_unmapped = isinstance(error, ImportError) and _UNMAPPED.search(str(error))
    if number == errno.ENOMEM or isinstance(error, MemoryError) or is_unmapped:
        lack = f"there is no memory left ({_soft('AS')} bytes of addresses, {_soft('DATA')} bytes of data)"
        remedy = "raise the limit of this shell (ulimit -v unlimited, ulimit -d unlimited) or of its container"
        return lack, "memory for this command and its libraries", remedy
    return None


def _limit(lacking: str, name: str, counted: str, remedy: str) -> tuple[str, str, str]:
    lack = f"there is no {lacking}, the limit is {_soft(name)} ({counted})"
    return lack, f"a higher RLIMIT_{name}", f"raise the limit of this shell or of its container: {remedy}"


def _soft(name: str) -> str:
    """The limit as a person reads it."""
    value = resource.getrlimit(getattr(resource, f"RLIMIT_{name}"))[0]
    return _UNLIMITED if value == resource.RLIM_INFINITY else f"{value:,}"


class LoopErrors:
    """An exception handler for a loop: what says that this machine has run out of something is noted once, in a line.

    Anything else goes to the loop's default handler. With descriptors lacking, asyncio accepts no connection and tries
    again after a second, also where the server has been closed meanwhile; that failure is a part of the first.
    """

    def __init__(self, note: Callable[[str], None]) -> None:
        self._note = note
        self._noted: set[str] = set()

    def __call__(self, loop: "asyncio.AbstractEventLoop", context: dict[str, Any]) -> None:
        """Take one error, as asyncio's documentation of `set_exception_handler` describes it."""
        error = context.get("exception")
        if error is not None and exhaustion_of(error) is not None:
            line = f"{context['message']}: {reason_of(error)}"
            if line not in self._noted:
                self._noted.add(line)
                self._note(line)
        elif not (self._noted and isinstance(error, ValueError) and "_start_serving" in repr(context.get("handle"))):
            loop.default_exception_handler(context)
