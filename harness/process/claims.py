"""Names held by one process on this machine, so that two runs never take the same GPU or port block.

A name is an abstract Unix socket (`\\0rlharness-<name>`, see unix(7)): the kernel lets one socket bind it and frees it
when the holder's last descriptor closes, however the holder dies. Nothing is left on disk. The descriptor is closed on
exec, so a child never holds on to a name; a child forked without exec would. The name space is the network
namespace's: runs in two containers with networks of their own do not see each other's names.

Abstract names have no permissions, so another user can bind them all, and need not listen. `try_claim_past` then holds
a name among the runs of this user alone, by a lock on a file in the user's cache directory.
"""

import errno
import fcntl
import os
import socket
import struct
from dataclasses import dataclass
from typing import BinaryIO

from harness.bits.files import open_for_writing
from harness.process.user_cache import user_cache

_PREFIX = "\0rlharness-"
_MAX_ADDRESS_BYTES = 107
"""Longest address a Unix socket can bind: sun_path's 108 bytes, less one as for any path."""
_NUM_PENDING_QUESTIONS = 64
"""Questions of `holder_of` a holder can be asked; none is ever accepted, and the kernel queues this many."""
_PEER_CREDENTIALS = struct.Struct("3i")  # struct ucred: pid, uid, gid


class Claims:
    """The names this run holds; also a context manager that gives them all back."""

    def __init__(self) -> None:
        self._sockets: dict[str, socket.socket] = {}
        self._locks: dict[str, BinaryIO] = {}

    def try_claim(self, name: str) -> bool:
        """Whether `name` (at most 96 bytes) is now held here; False where another holder has it.

        Claiming a name that is already held here is True and changes nothing. A name too long raises ValueError.
        """
        if name in self._sockets:
            return True
        address = _address(name)
        holder = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)  # close-on-exec, as all of Python's sockets
        try:
            holder.bind(address)
            holder.listen(_NUM_PENDING_QUESTIONS)
        except OSError as error:
            holder.close()
            if error.errno == errno.EADDRINUSE:
                return False
            raise
        self._sockets[name] = holder
        return True

    def try_claim_past(self, name: str) -> bool:
        """Whether `name`, which no run of this user holds, is now held here among the runs of this user.

        False if another run of this user has it, and if the holder does not say: more have asked than it answers.
        UsageError, OSError where the user has no cache directory.
        """
        if name in self._locks:
            return False
        if self.try_claim(name):  # it is free now
            return True
        directory = user_cache({}) / "claims"
        directory.mkdir(mode=0o700, exist_ok=True)
        lock = open_for_writing(directory / f"{os.uname().nodename}-{name}")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            is_own = _credentials(name)[1] == os.geteuid()  # asked last: one that has just bound it listens by now
        except ConnectionRefusedError:  # bound by a process that does not listen: none of ours
            is_own = False
        except OSError:  # locked, or more have asked than the holder's queue takes
            is_own = True
        if is_own:
            lock.close()
            return False
        self._locks[name] = lock
        return True

    def release(self, name: str) -> None:
        """Give `name` back; a name not held here raises KeyError."""
        (self._locks if name in self._locks else self._sockets).pop(name).close()

    def close(self) -> None:
        """Give every name back."""
        for held in (self._sockets, self._locks):
            while held:
                held.popitem()[1].close()

    def __enter__(self) -> "Claims":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@dataclass(frozen=True, slots=True)
class Holder:
    """The process that holds a name."""

    pid: int
    """As numbered in our PID namespace."""
    uid: int

    def __str__(self) -> str:
        whose = "" if self.uid == os.geteuid() else f" of user {self.uid}"
        return f"pid {self.pid}{whose}"


def holder_of(name: str) -> Holder | None:
    """Return who holds `name`; None if no or an unknown process does."""
    try:
        pid, uid = _credentials(name)
    except OSError:
        return None
    return Holder(pid, uid) if pid else None


def _credentials(name: str) -> tuple[int, int]:
    """Return number, 0 outside our PID namespace, and user of the process that listens on `name`; OSError for none."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as asker:
        asker.setblocking(False)
        asker.connect(_address(name))
        credentials = asker.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER_CREDENTIALS.size)
    pid, uid, _ = _PEER_CREDENTIALS.unpack(credentials)
    return pid, uid


def _address(name: str) -> str:
    address = _PREFIX + name
    if len(address.encode()) > _MAX_ADDRESS_BYTES:
        raise ValueError(f"name of {len(name.encode())} bytes, at most {_MAX_ADDRESS_BYTES - len(_PREFIX)}: {name!r}")
    return address
