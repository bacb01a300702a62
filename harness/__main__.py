"""The entry point, `rlharness` and `python -m harness`: the one place where the process's exit status is set."""

import os
import resource
import signal
import sys

ROOM_BYTES = 1 << 24
"""With less on the disk of this package, no bytecode is written there."""


def run() -> None:
    """Run the command line and exit with its code, whenever Ctrl-C comes: before an import, or after the last line."""
    try:
        code = load_and_run()
        _flush()
    except KeyboardInterrupt:
        code = 2
    _ignore_interrupts()
    sys.exit(code)


def load_and_run() -> int:
    """Import the command line and run it; return its exit code, or that of a user error without memory or files."""
    try:
        _spare_bytecode()
        from harness.cli.main import main

        return main()
    except (MemoryError, OSError, SystemError) as error:  # the last is what CPython raises now and then without memory
        print(
            f"error: rlharness cannot continue: {type(error).__name__}: {error}\n"
            "  legal:  memory and descriptors for Python and its libraries\n"
            "  remedy: raise the limits of this shell (ulimit -a shows them) or of its container",
            file=sys.stderr,
        )
        return 4


def _spare_bytecode() -> None:
    """Write no bytecode, here or in children, where a file of it may be cut short for lack of room.

    CPython before 3.12.8 and 3.13.1 keeps such a file (python/cpython#126606), and no later command could start.
    """
    disk = os.statvfs(os.path.dirname(__file__))
    is_limited = resource.getrlimit(resource.RLIMIT_FSIZE)[0] != resource.RLIM_INFINITY
    if is_limited or disk.f_bavail * disk.f_frsize < ROOM_BYTES:
        sys.dont_write_bytecode = True


def _ignore_interrupts() -> None:
    """Ignore SIGINT from now on: the interpreter that ends would die of it, and its exit code would be lost."""
    while True:
        try:
            signal.signal(signal.SIGINT, signal.SIG_IGN)
        except KeyboardInterrupt:
            continue
        return


def _flush() -> None:
    """Write out what is buffered. What cannot be written has been complained of, and must not decide the exit code.

    The interpreter flushes once more when it ends, and would exit with 120 where that fails.
    """
    for stream in (sys.stdout, sys.stderr):
        if stream is None:
            continue
        try:
            stream.flush()
        except OSError:  # a closed pipe, a full disk, a terminal that is gone
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, stream.fileno())
            os.close(null)
        except ValueError:  # it is closed
            pass


if __name__ == "__main__":
    run()
