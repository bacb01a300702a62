"""Runs on a terminal of their own: what Ctrl-C typed there does, and the terminal going away."""

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

import pytest

from harness.exit_codes import ExitCode
from tests.runner.whole_run import HARNESS, PATIENCE_S, QUICK, Done, environment, until, write_suite

SLEEPS = "import time\ndef test_sleeps():\n    open('asleep', 'w')\n    time.sleep(60)\n"
TAKE_TERMINAL = """
import fcntl, os, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
os.execv(sys.executable, [sys.executable, *sys.argv[1:]])
"""
SHOW_CURSOR, HIDE_CURSOR = "\x1b[?25h", "\x1b[?25l"


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


@pytest.mark.parametrize("num_times", [1, 2])
def test_ctrl_c_typed_on_the_terminal(tmp_path: Path, num_times: int) -> None:
    write_suite(tmp_path, {"test_a.py": SLEEPS, "test_b.py": QUICK})
    record = Done(tmp_path, 0, "", "").record / "events.jsonl"
    with on_terminal(tmp_path, "run", "--gpus", "none", "--grace", "20") as (process, terminal):
        until((tmp_path / "asleep").exists, process)
        for number in range(num_times):
            if number:
                until(lambda: "cancel_requested" in record.read_text(), process)
            if process.poll() is None:
                terminal.type("\x03")
        code = process.wait(PATIENCE_S)
        shown = terminal.all_shown()
    assert code == ExitCode.INTERRUPTED
    done = Done(tmp_path, code, shown, "")
    done.assert_sound()
    assert done.outcomes["test_a.py"] == "interrupted"
    assert shown.count(HIDE_CURSOR) == shown.count(SHOW_CURSOR) == 1
    text = plain(shown)
    assert "SIGINT: no further unit starts, what runs is ended; once more kills it" in " ".join(text.split())
    assert text.rstrip().splitlines()[-1].strip().endswith(")")
    assert "Traceback" not in text
    assert "^C" not in text.rstrip().splitlines()[-1]


def test_a_terminal_that_is_closed_ends_the_run_in_order(tmp_path: Path) -> None:
    write_suite(tmp_path, {"test_a.py": SLEEPS})
    process, master = start_on_terminal(tmp_path, "run", "--gpus", "none")
    with process:
        until((tmp_path / "asleep").exists, process)
        os.close(master)
        code = process.wait(PATIENCE_S)
    done = Done(tmp_path, code, "", "")
    done.assert_sound()
    assert code == ExitCode.INTERRUPTED
    assert [event["reason"] for event in done.of("cancel_requested")] == ["SIGHUP"]
