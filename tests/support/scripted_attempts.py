"""Attempts without processes, for tests of the dispatcher and of everything else above the supervisor.

Each attempt follows a script. Time is a number of steps, each one turn of the event loop, so a test may have hundreds
of attempts and wait for none.
"""

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.process.supervisor_client import ProcessEnd, ProcessSpec

PASSING: tuple[dict[str, Any], ...] = (
    {"k": "hello", "version": 1, "pid": 1},
    {"k": "start", "id": "test_x.py::test_x", "timeout_s": None},
    {"k": "end", "id": "test_x.py::test_x", "outcome": "passed", "duration_s": 0.5},
    {"k": "finish", "exit": 0},
)
FAILING = (*PASSING[:2], {**PASSING[2], "outcome": "failed"}, {"k": "finish", "exit": 1})


@dataclass(frozen=True, slots=True)
class Script:
    """Behaviour of one attempt."""

    num_steps: int = 1
    """Steps until it ends by itself."""
    grace_steps: int = 0
    """Steps that it continues after it was cancelled."""
    report: tuple[dict[str, Any], ...] = PASSING
    """Lines of its report, of which the last is written when it ends by itself."""
    exit_code: int | None = 0
    unkillable: tuple[str, ...] = ()
    error: Exception | None = None
    """Raised in place of an end."""
    then: "Script | None" = None
    """The script of the next attempt at the unit, if another than this."""
    on_begin: Callable[[ProcessSpec], None] = lambda spec: None
    """What its tests would do first."""


class ScriptedAttempts:
    """Attempts that follow `script`, a function of the attempt's number.

    `log` lists what began and ended, in order; `specs` maps each number to the spec it was started with.
    """

    def __init__(self, script: Callable[[int], Script]) -> None:
        self._script = script
        self._orders: dict[str, str] = {}
        self.log: list[tuple[str, int]] = []
        self.specs: dict[int, ProcessSpec] = {}

    async def run(self, spec: ProcessSpec, on_terminating: Callable[[str], None] = lambda reason: None) -> ProcessEnd:
        """Carry out one attempt, whose number ends its marker; `Script.on_begin` comes first.

        In a run the number of the repetition follows that of the unit: `run-0003-1`.
        """
        of_run = spec.marker.startswith("run-")
        name, _, retry = spec.marker[4:].partition("-") if of_run else (spec.marker.rpartition("-")[2], "", "")
        number = int(name)
        script = self._script(number)
        for _ in range(int(retry or 0)):
            script = script.then or script
        self.specs[number] = spec
        self.log.append(("begins", number))
        self._orders[spec.marker] = ""
        script.on_begin(spec)
        try:
            return await self._follow(script, spec, on_terminating)
        finally:
            self.log.append(("ends", number))
            del self._orders[spec.marker]

    async def _follow(self, script: Script, spec: ProcessSpec, on_terminating: Callable[[str], None]) -> ProcessEnd:
        _append(spec, script.report[:-1])
        left, order = script.num_steps, ""
        while left > 0 and self._orders[spec.marker] != "killed":
            await asyncio.sleep(0)
            left -= 1
            if self._orders[spec.marker] == "cancelled" and not order:
                order = "cancelled"
                on_terminating(order)
                left = min(left, script.grace_steps)
        if script.error is not None:
            raise script.error
        order = self._orders[spec.marker] or order
        if order:
            return ProcessEnd(None, 9, order, (), script.unkillable, float(script.num_steps - left))
        _append(spec, script.report[-1:])
        return ProcessEnd(script.exit_code, None, "", (), script.unkillable, float(script.num_steps))

    def cancel(self, marker: str) -> None:
        """Cancel the attempt: it ends in order."""
        if marker in self._orders:
            self._orders[marker] = self._orders[marker] or "cancelled"

    def kill(self, marker: str) -> None:
        """Kill the attempt: it ends at once."""
        if marker in self._orders:
            self._orders[marker] = "killed"

    def pid_of(self, marker: str) -> int:
        """Return 0: there is no process."""
        return 0


class ScriptedSuite:
    """A session that hears what became of the units, and wants to stop once it has heard of so many (0 for never)."""

    def __init__(self, stops_after: int = 0) -> None:
        self._stops_after = stops_after
        self.heard: list[tuple[list[Path], dict[str, str]]] = []

    def why_own(self, env: Mapping[str, str]) -> None:
        """Have every file forked."""

    async def replay(self, reports: Sequence[Path], lost: Mapping[str, str], failed: Sequence[str] = ()) -> str:
        """Hear of one unit."""
        self.heard.append(([*reports], dict(lost)))
        return "stopping after 1 failures" if len(self.heard) == self._stops_after else ""


def _append(spec: ProcessSpec, lines: tuple[dict[str, Any], ...]) -> None:
    if not lines:
        return
    with open(Path(spec.directory, "report.jsonl"), "a", encoding="utf-8") as file:
        file.writelines(json.dumps(line) + "\n" for line in lines)
