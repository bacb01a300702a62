"""What a person sees of a run: rows at a terminal, lines elsewhere, the last line of each file, an interruption."""

import json
import os
import re
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from contextlib import contextmanager
from fcntl import ioctl
from pathlib import Path
from typing import Any

import pytest

from rlcore.asynchronous.live import Live, last_line
from tests.support.asynchronous_run import make_model, write_files
from tests.support.terminal import Terminal

TRAINED = {"step": 4, "reward_mean": 0.5, "kl": -0.001, "masked": 0.25, "versions_apart": 1, "tokens_per_s": 1234.5}
SAMPLED = {"step": 5, "in_flight": 8, "waiting": 3, "discarded_share": 0.125, "tokens_per_s": 99.5, "idle": 0.5}


def write(path: Path, *lines: dict[str, Any]) -> None:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), "utf-8")


def test_the_rows_are_of_the_last_lines(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path / "metrics.jsonl", {**TRAINED, "idle": 0.1}, {**TRAINED, "step": 3, "kl": 9.0, "idle": 0.1})
    with Live(tmp_path, 20, is_shown=True) as live:
        live.show()
        write(tmp_path / "rollouts.jsonl", SAMPLED)
        (tmp_path / "metrics.jsonl").write_text('{"step": 1}\n', "utf-8")  # of an earlier version
        live.show()
    shown = capsys.readouterr().err
    assert "4/20" in shown, "a step that was lost is made again"
    for row in (
        "train  reward 0.5  kl 9  masked 25%  1 versions apart  1234 tokens/s  idle 10%",
        "orch   8 groups in flight  3 requests wait  discarded 12%  100 tokens/s  idle 50%",
    ):
        assert row in shown


def test_nothing_is_shown_where_there_is_no_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path / "rollouts.jsonl", SAMPLED)
    with Live(tmp_path, None, is_shown=False) as live:
        live.show()
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("content", [None, "", "{", "[1]\n", '{"step": 1}\n{"st'])
def test_a_line_that_is_not_there_is_empty(tmp_path: Path, content: str | None) -> None:
    if content is not None:
        (tmp_path / "metrics.jsonl").write_text(content, "utf-8")
    assert last_line(tmp_path / "metrics.jsonl") == {}


# -------------------------------------------------------------------------------------------------------- the command


def command(files: dict[str, Path]) -> list[str]:
    return [sys.executable, "-m", "rlcore.commands", "grpo", *(f"--{role}={path}" for role, path in files.items())]


def processes_of(directory: Path) -> str:
    listed = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True).stdout
    return "\n".join(line for line in listed.splitlines() if str(directory) in line)


@contextmanager
def on_terminal(arguments: list[str], num_columns: int) -> Iterator[tuple["subprocess.Popen[bytes]", Terminal]]:
    """A command on a terminal of its own, whose foreground group it leads."""
    master, slave = os.openpty()
    ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, num_columns, 0, 0))
    take = "import fcntl, os, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); os.execv(sys.argv[1], sys.argv[1:])"
    process = subprocess.Popen(
        [sys.executable, "-c", take, *arguments], stdin=slave, stdout=slave, stderr=slave, start_new_session=True
    )
    os.close(slave)
    terminal = Terminal(master)
    try:
        yield process, terminal
    finally:
        process.kill()
        process.wait()
        terminal.all_shown()
        os.close(master)


@pytest.mark.full
def test_a_terminal_has_lines_above_the_rows_and_ctrl_c_says_how_to_go_on(tmp_path: Path) -> None:
    files = write_files(tmp_path / "run", make_model(tmp_path / "model"), num_steps=2000, report_to={"interval": 1})
    with on_terminal(command(files), 200) as (process, terminal):
        deadline = time.monotonic() + 120
        while "train: step 5:" not in terminal.shown_so_far():
            assert process.poll() is None and time.monotonic() < deadline, terminal.shown_so_far()
            time.sleep(0.05)
        terminal.type("\x03")
        assert process.wait(30) == 2
    shown = terminal.all_shown()
    lines = [re.sub(r"\x1b\[\w*[A-Z]", "", line.rpartition("\r")[2]).rstrip() for line in shown.splitlines()]
    assert "interrupted: run the same command again to resume" in lines and "Traceback" not in shown
    assert re.search(r"grpo: +\d+%\|.*\| \d+/2000 ", shown)
    assert re.search(r"train  reward \S+  kl \S+  masked \d+%  [01] versions apart  \d+ tokens/s  idle \d+%", shown)
    assert re.search(r"orch   \d groups in flight  \d+ requests wait  discarded 0%  \d+ tokens/s  idle \d+%", shown)
    assert processes_of(tmp_path) == ""


@pytest.mark.full
def test_an_interruption_without_a_terminal_is_said(tmp_path: Path) -> None:
    files = write_files(tmp_path / "run", make_model(tmp_path / "model"), num_steps=2000)
    lines: list[str] = []
    with subprocess.Popen(command(files), stderr=subprocess.PIPE, text=True) as process:
        for line in process.stderr or ():
            lines.append(line)
            if "train: step 3:" in line:
                process.send_signal(signal.SIGINT)
    assert process.returncode == 2
    assert lines[-1] == "interrupted: run the same command again to resume\n" and "Traceback" not in "".join(lines)
    assert any(re.match(r"train: step 3: .*tokens_per_s=", line) for line in lines) and "\r" not in "".join(lines)
    assert processes_of(tmp_path) == ""
