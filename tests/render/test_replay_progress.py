"""Runs of a replay while they go on: lines, and the line that is redrawn on a terminal."""

import io
import os
import pty
import re
import threading
from contextlib import suppress

import pytest

from harness.render.replay_line import ReplayLine
from harness.render.run_lines import RunLines, make_display
from tests.support.fake_clock import FakeClock


def test_lines_are_few(capsys: pytest.CaptureFixture[str]) -> None:
    lines = RunLines(2)
    lines.begin(1, has_operations=False)
    for second in range(70):
        lines.progress(second, float(second))
    lines.end("run 1: 70 steps in 70.0 s")
    lines.begin(2, has_operations=True)
    lines.progress(1, 29.0)
    lines.close()
    assert capsys.readouterr().err.splitlines() == [
        "rlharness: run 1 of 2 begins",
        "rlharness: run 1 of 2: 30 steps after 30 s",
        "rlharness: run 1 of 2: 60 steps after 60 s",
        "rlharness: run 1: 70 steps in 70.0 s",
        "rlharness: run 2 of 2, with operations, begins",
    ]


def test_lines_where_standard_error_is_no_terminal_or_a_dumb_one(monkeypatch: pytest.MonkeyPatch) -> None:
    assert isinstance(make_display(2, FakeClock(), colour=False, environ={}), RunLines)
    master, slave = pty.openpty()
    with open(slave, "w", encoding="utf-8") as terminal, open(master, "rb"):
        monkeypatch.setattr("sys.stderr", terminal)
        assert isinstance(make_display(2, FakeClock(), colour=False, environ={"TERM": "dumb"}), RunLines)
        assert isinstance(make_display(2, FakeClock(), colour=False, environ={"TERM": "xterm"}), ReplayLine)


def test_the_line_shows_what_goes_on_and_leaves_what_has_ended() -> None:
    shown, clock = io.StringIO(), FakeClock()
    line = ReplayLine(shown, clock, 2, colour=False)
    line.begin(1, has_operations=False)
    clock.advance(12.0)
    line.progress(37, 12.0)
    deadline = threading.Event()
    while "37 steps   12 s" not in shown.getvalue():
        assert not deadline.wait(0.01)
    line.end("run 1: 40 steps in 13.0 s")
    line.begin(2, has_operations=False)
    line.close()
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown.getvalue())
    assert "run 1 of 2   37 steps   12 s" in text
    assert text.count("run 1: 40 steps in 13.0 s") == 1
    assert shown.getvalue().count("\x1b[?25l") == shown.getvalue().count("\x1b[?25h") == 1, "the cursor is back"


def test_a_terminal_that_is_gone_costs_the_display_alone(capsys: pytest.CaptureFixture[str]) -> None:
    master, slave = pty.openpty()
    with suppress(OSError), open(slave, "w", encoding="utf-8") as terminal:
        os.close(master)
        line = ReplayLine(terminal, FakeClock(), 2, colour=False)
        line.begin(1, has_operations=False)
        line.progress(1, 0.0)
        line.end("run 1: 1 step in 1.0 s")
        line.close()
    assert capsys.readouterr().err.count("the display is off") == 1
