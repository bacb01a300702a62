"""Stacks of every process of a tree, taken from outside: Python stacks by py-spy, the rest from /proc."""

import contextlib
import io
import itertools
import os
import re
import subprocess

from harness.bits.files import open_for_writing
from harness.bits.redaction import redact_text
from harness.process.clock import Clock
from harness.process.supervisor.process_tree import Process, command_line

MAX_PROCESSES = 64
PER_BATCH_S = 4.0
AFTER_KILL_S = 0.5
TOTAL_S = 10.0  # the tree lives on while it is looked at: not for long
ROUND_SIZE = 8  # py-spy processes at once
OURS = re.compile(r"    .+ \((_pytest/|pluggy/|pytest/|importlib/|<frozen |harness/(runner|process)/)")
"""A frame that every test has above it."""


def dump_stacks(processes: list[Process], path: str, py_spy: str, clock: Clock) -> int:
    """Write the stacks of `processes` to the file `path`; returns how many of them gave a Python stack.

    A process whose stack cannot be had is listed with what /proc says of each of its threads and with the
    reason. `py_spy` is the program's path, empty where it is not installed.
    """
    num_python = 0
    until_s = clock.monotonic_s() + TOTAL_S
    chosen = processes[:MAX_PROCESSES]
    file = open_for_writing(path, appends=True)
    with io.TextIOWrapper(file, encoding="utf-8", errors="replace") as out:
        for start in range(0, len(chosen), ROUND_SIZE):
            batch = chosen[start : start + ROUND_SIZE]
            in_time = clock.monotonic_s() < until_s
            running = [_start_py_spy(process, py_spy) if in_time else "no time was left" for process in batch]
            batch_until_s = clock.monotonic_s() + PER_BATCH_S
            for process, spy in zip(batch, running, strict=True):
                text, reason = _finish_py_spy(spy, max(0.0, batch_until_s - clock.monotonic_s()))
                out.write(f"== process {process.pid}, parent {process.parent_pid}: {command_line(process.pid)}\n")
                if text:
                    num_python += 1
                    out.write(redact_text(_folded(_without_command_line(text))).rstrip() + "\n\n")
                else:
                    why = redact_text(reason) or "not a Python process"
                    out.write(f"no Python stack: {why}\n{_threads(process.pid)}\n")
        if len(processes) > MAX_PROCESSES:
            out.write(f"... and {len(processes) - MAX_PROCESSES} more processes\n")
    return num_python


def _start_py_spy(process: Process, py_spy: str) -> "subprocess.Popen[str] | str":
    """A running py-spy, or the reason why there is none."""
    try:
        executable = os.readlink(f"/proc/{process.pid}/exe")
    except OSError as error:
        return f"{error.strerror}"
    if "python" not in os.path.basename(executable):
        return f"{os.path.basename(executable)} is not Python"
    if not py_spy:
        return "py-spy is not installed"
    command = [py_spy, "dump", "--pid", str(process.pid)]
    pipe, null = subprocess.PIPE, subprocess.DEVNULL
    try:
        return subprocess.Popen(command, stdin=null, stdout=pipe, stderr=pipe, text=True, errors="replace")
    except OSError as error:
        return f"{py_spy} cannot be started: {error.strerror}"


def _finish_py_spy(spy: "subprocess.Popen[str] | str", timeout_s: float) -> tuple[str, str]:
    """What py-spy printed, or the reason why it printed nothing."""
    if isinstance(spy, str):
        return "", spy
    try:
        text, complaint = spy.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        spy.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):  # it may hang with what it looks at
            spy.communicate(timeout=AFTER_KILL_S)
        return "", f"py-spy gave no answer in {PER_BATCH_S:g} s"
    return (text, "") if spy.returncode == 0 else ("", complaint.strip() or f"py-spy exited with {spy.returncode}")


def _without_command_line(text: str) -> str:
    """What py-spy printed, from the line that names the interpreter on: the command line before it has its secrets."""
    _, found, rest = text.rpartition("\nPython v")
    return f"Python v{rest}" if found else text


def _folded(text: str) -> str:
    """The stacks with one line for frames in a row that are no frames of a suite."""
    lines: list[str] = []
    for is_ours, found in itertools.groupby(text.splitlines(), lambda line: OURS.match(line) is not None):
        frames = [*found]
        lines += [f"    ... {len(frames)} of pytest and rlharness"] if is_ours and len(frames) > 1 else frames
    return "\n".join(lines)


def _threads(pid: int) -> str:
    """State and kernel wait channel of each thread of `pid`, a line each."""
    lines = []
    try:
        threads = sorted(os.listdir(f"/proc/{pid}/task"), key=int)
    except OSError:
        return "  gone\n"
    for thread in threads:
        base = f"/proc/{pid}/task/{thread}/"
        fields = dict(
            line.split(":\t", 1) for line in _text(base + "status").splitlines() if line.startswith(("State", "SigBlk"))
        )
        where = f"waits in {_text(base + 'wchan') or '?'}, system call {_text(base + 'syscall').split(' ')[0] or '?'}"
        blocked = fields.get("SigBlk", "?").strip()
        name = _text(base + "comm").strip()
        lines.append(f"  thread {thread} {name}: {fields.get('State', '?')}, {where}, signals blocked {blocked}")
    return "\n".join(lines) + "\n"


def _text(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read().strip()
    except OSError:
        return ""
