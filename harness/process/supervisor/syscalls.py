"""The few system calls that Python 3.11 does not offer, through ctypes. Each raises OSError."""

import ctypes
import os
import signal

CLONE_NEWNS = 0x00020000
CLONE_NEWPID = 0x20000000
MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_REC, MS_PRIVATE = 0x2, 0x4, 0x8, 0x4000, 0x40000
PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36

_libc = ctypes.CDLL(None, use_errno=True)


def _checked(result: int, what: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def become_subreaper() -> None:
    """Make this process the parent of every orphan below it, double forks and new sessions included."""
    _checked(_libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0), "prctl(PR_SET_CHILD_SUBREAPER)")


def die_with_parent() -> None:
    """Have the kernel SIGKILL this process when the thread that forked it ends."""
    _checked(_libc.prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0), "prctl(PR_SET_PDEATHSIG)")


def unshare(flags: int) -> None:
    """Leave the namespaces named by `flags` for new ones."""
    _checked(_libc.unshare(flags), "unshare")


def enter_namespace(fd: int, kind: int) -> None:
    """Enter the namespace of `fd`; for CLONE_NEWPID this concerns children forked from now on."""
    _checked(_libc.setns(fd, kind), "setns")


def mount(source: str, target: str, fstype: str, flags: int) -> None:
    """mount(2), in this process's mount namespace."""
    _checked(_libc.mount(source.encode(), target.encode(), fstype.encode(), flags, None), f"mount {target}")
