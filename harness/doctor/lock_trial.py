"""Run as a program, `lock_trial DIR`: does in DIR what others will do there.

Prints a JSON line for each step once it is done, {"step", "took_s", "error"}: the step that hung is the first without
its line. A process of its own, since a lock on a dead file server cannot be given up by the thread that waits for it.
"""

import fcntl
import json
import mmap
import os
import socket
import sys
import tempfile
from collections.abc import Callable, Iterator

from harness.process.clock import Clock, SystemClock

NUM_TRIES = 3
"""Number of repetitions. The fastest of each step counts: a slow file system is always slow, a busy machine is not."""
STEPS = ("create", "flock", "lockf", "mmap", "socket")


def main() -> None:
    """Try every step in the directory that was given; a step that fails does not keep the others from being tried."""
    clock = SystemClock()
    began_s = clock.monotonic_s()
    try:
        fd, path = tempfile.mkstemp(prefix="rlh-lock-", dir=sys.argv[1])
    except OSError as error:
        _say("create", clock.monotonic_s() - began_s, error)
        return
    _say("create", clock.monotonic_s() - began_s, None)
    try:
        for step, carry_out in _steps(fd, path):
            _say(step, *fastest(carry_out, clock))
    finally:
        os.close(fd)
        os.unlink(path)


def fastest(carry_out: Callable[[], None], clock: Clock) -> tuple[float, OSError | None]:
    """(seconds of the fastest of NUM_TRIES, None), or those of the first that failed, and how."""
    took_s = []
    for _ in range(NUM_TRIES):
        began_s = clock.monotonic_s()
        try:
            carry_out()
        except OSError as error:
            return clock.monotonic_s() - began_s, error
        took_s.append(clock.monotonic_s() - began_s)
    return min(took_s), None


def _steps(fd: int, path: str) -> Iterator[tuple[str, Callable[[], None]]]:
    yield "flock", lambda: _lock(fcntl.flock, fd)
    yield "lockf", lambda: _lock(fcntl.lockf, fd)
    yield "mmap", lambda: _map(fd)
    yield "socket", lambda: _bind(f"{path}.s")


def _lock(function: Callable[[int, int], object], fd: int) -> None:
    function(fd, fcntl.LOCK_EX)
    function(fd, fcntl.LOCK_UN)


def _map(fd: int) -> None:
    os.write(fd, bytes(mmap.PAGESIZE))
    with mmap.mmap(fd, mmap.PAGESIZE) as mapped:
        mapped[0] = 1
        mapped.flush()


def _bind(path: str) -> None:
    """Binds a Unix socket; by a short name where the whole path is too long for one, which is another check's."""
    directory, name = os.path.split(path)
    os.chdir(directory)
    with socket.socket(socket.AF_UNIX) as opened:
        opened.bind(name)
    os.unlink(name)


def _say(step: str, took_s: float, failure: OSError | None) -> None:
    error = failure.strerror or str(failure) if failure else ""
    print(json.dumps({"step": step, "took_s": round(took_s, 6), "error": error}), flush=True)


if __name__ == "__main__":
    main()
