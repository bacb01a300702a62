"""The entry point, `rlharness` and `python -m harness`: the one place where the process's exit status is set."""

import os
import signal
import sys


def run() -> None:
    """Run the command line and exit with its code, whenever Ctrl-C comes: before an import, or after the last line."""
    try:
        from harness.cli.main import main

        code = main()
        _flush()
    except KeyboardInterrupt:
        code = 2
    _ignore_interrupts()
    sys.exit(code)


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
