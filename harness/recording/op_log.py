"""The record of one step's operations: a line of JSON each, in the file of one rank.

    {"k": "head", "version": 1, "rank": 0, "step": 7}
    {"k": "op", "i": 0, "phase": "forward", "op": "aten.addmm.default", "at": "train.py:41 forward", ...}
    {"k": "end", "num_ops": 213, "problem": ""}

A line is handed to the kernel in one piece before the next operation runs, so that kill -9 costs at most the operation
at hand. What cannot be written ends the record, never the program.
"""

import json
import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from harness.trace.ops import OPS, VERSION, ops_name

_ENCODER = json.JSONEncoder(separators=(",", ":"), check_circular=False)


class OpLog:
    """Writes the operations of one step; `say` is given one line where the record ends early."""

    def __init__(self, directory: Path, *, rank: int, step: int, say: Callable[[str], None]) -> None:
        self.path = directory / OPS / ops_name(rank, step)
        self.num_ops = 0
        self.ended_by = ""
        """Why nothing is recorded any more; empty while it is."""
        self._say = say
        self._fd = -1
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._fd = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC, 0o666)
        except OSError as error:
            self._end(error.strerror or "unknown")
        self._write({"k": "head", "version": VERSION, "rank": rank, "step": step})

    def append(self, operation: Mapping[str, Any]) -> None:
        """Write one operation, {"k": "op", ...}; nothing where the record has ended."""
        if self._write(operation):
            self.num_ops += 1

    def give_up(self, problem: str) -> None:
        """End the record before its time: `problem` says why."""
        if self._write({"k": "end", "num_ops": self.num_ops, "problem": problem}):
            self._end(problem)

    def close(self) -> None:
        """End the record in order. Once is enough."""
        if self._write({"k": "end", "num_ops": self.num_ops, "problem": ""}):
            self.ended_by = "closed"
            self._close()

    def _write(self, line: Mapping[str, Any]) -> bool:
        """Hand a line to the kernel; says whether the record goes on after it."""
        if self.ended_by:
            return False
        left = memoryview(_ENCODER.encode(line).encode() + b"\n")
        try:
            while left:
                left = left[os.write(self._fd, left) :]
        except OSError as error:
            self._end(error.strerror or "unknown")
        return not self.ended_by

    def _end(self, problem: str) -> None:
        self.ended_by = problem
        self._close()
        self._say(f"recording of operations ended after {self.num_ops}, the program continues: {problem} ({self.path})")

    def _close(self) -> None:
        if self._fd >= 0:
            with suppress(OSError):
                os.close(self._fd)
            self._fd = -1
