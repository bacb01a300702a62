"""A command on a terminal of its own: what is typed there, what it shows."""

import fcntl
import os
import re
import struct
import subprocess
import sys
import termios
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.suite_runs import HARNESS, PATIENCE_S, environment

TAKE_TERMINAL = """
import fcntl, os, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
os.execv(sys.executable, [sys.executable, *sys.argv[1:]])
"""


class Terminal:
    """The far side of a terminal: what is typed and shown."""

    def __init__(self, master: int) -> None:
        self._master = master
        self._shown = bytearray()
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        try:
            while chunk := os.read(self._master, 1 << 16):
                self._shown += chunk
        except OSError:  # nobody holds the near side any more
            return

    def type(self, text: str) -> None:
        os.write(self._master, text.encode())

    def shown_so_far(self) -> str:
        """What was shown until now."""
        return self._shown.decode("utf-8", "replace")

    def all_shown(self) -> str:
        """Everything that was shown, once the run is over."""
        self._reader.join(PATIENCE_S)
        return self._shown.decode("utf-8", "replace")


def start_on_terminal(directory: Path, *arguments: str) -> tuple["subprocess.Popen[bytes]", int]:
    """A run that has a terminal of 80 columns and 24 lines, and the terminal's far side."""
    master, slave = os.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    process = subprocess.Popen(
        [sys.executable, "-c", TAKE_TERMINAL, *HARNESS[1:], *arguments],
        cwd=directory,
        env=environment(TERM="xterm"),
        stdin=slave,
        stdout=slave,
        stderr=slave,
        start_new_session=True,
    )
    os.close(slave)
    return process, master


@contextmanager
def on_terminal(directory: Path, *arguments: str) -> Iterator[tuple["subprocess.Popen[bytes]", Terminal]]:
    """A run on a terminal that shows everything at once."""
    process, master = start_on_terminal(directory, *arguments)
    terminal = Terminal(master)
    try:
        yield process, terminal
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()
        terminal.all_shown()
        os.close(master)


def plain(shown: str) -> str:
    """What was shown without what moves the cursor and colours."""
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown).replace("\r", "")
