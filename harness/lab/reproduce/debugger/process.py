"""One run that stops within a step: started under a supervisor, asked through two pipes, ended for certain.

    start ─▶ (steps before it pass) ─▶ stop ─▶ show, save ... ─▶ run_to ─▶ stop ─▶ ... ─▶ end

The pipes have names in a directory of their own. The process reads one and writes the other; should this process go
away, it reads the end of its orders and ends too.
"""

import asyncio
import json
import os
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

from harness.lab.experiments.launcher import Launcher
from harness.lab.experiments.run import Run
from harness.recording.run_spec import RunSpec
from harness.recording.stepping_messages import ANSWERS, END, ORDERS, Stop, recorded_value_of
from harness.trace.chain import RecordedValue
from harness.trace.tensor_file import read_tensor

STEPPING = "harness.recording.stepping:Stepping"


@dataclass(frozen=True, slots=True)
class ProcessGone:
    """What was recorded on the way to a stop."""

    values: tuple[RecordedValue, ...]
    stop: Stop | None
    """Where it stands; None where the process has ended."""


class SteppedRun:
    """A process that runs to a requested position."""

    def __init__(self, directory: Path, task: "asyncio.Task[Run]", orders: int, answers: int) -> None:
        self.directory = directory
        """Of its trace."""
        self.passed: list[int] = []
        """The steps before the one that is wanted, as they were done."""
        self.has_arrived = False
        """Whether it has come to the step that is wanted."""
        self.run: Run | None = None
        """Once the process has ended by itself."""
        self._task = task
        self._orders = orders
        self._answers = answers
        self._heard = b""
        self._messages: deque[dict[str, Any]] = deque()
        self._news = asyncio.Event()
        self._num_saved = 0
        self._why = ""
        asyncio.get_running_loop().add_reader(answers, self._on_readable)

    @classmethod
    async def start(cls, session: Launcher, run_spec: RunSpec, parent: Path, number: int, step: int) -> Self:
        """Start it; it has not come anywhere yet. The trace goes to run-NUMBER in `parent`."""
        pipes = parent / f"pipes-{number}"
        pipes.mkdir()
        for name in (ORDERS, ANSWERS):
            os.mkfifo(pipes / name, 0o600)
        fields = {"orders": str(pipes / ORDERS), "answers": str(pipes / ANSWERS), "step": step}
        run_spec = replace(run_spec, callbacks={STEPPING: fields})
        # The orders' pipe is opened for both directions: to write alone would want a reader, who is not there yet.
        orders = os.open(pipes / ORDERS, os.O_RDWR | os.O_CLOEXEC)
        answers = os.open(pipes / ANSWERS, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        task = asyncio.create_task(session.record(run_spec, parent, number))
        return cls(parent / f"run-{number}", task, orders, answers)

    async def arrive(self) -> ProcessGone:
        """Wait for the first stop, before the step."""
        return await self._gone()

    async def run_to(
        self,
        *,
        boundaries: bool = False,
        phases: Iterable[str] = (),
        values: Iterable[str] = (),
        position: int | None = None,
    ) -> ProcessGone:
        """Run to the next of these positions, at most to the end of the step."""
        places = {"phases": list(phases), "values": list(values), "position": position}
        self._order({"do": "run", "boundaries": boundaries, **places})
        return await self._gone()

    async def show(self, position: int, ranges: Sequence[range]) -> dict[str, Any] | None:
        """The part of a value that has these indices, as the process describes it; None where that has ended."""
        indices = [[each.start, each.stop, each.step] for each in ranges]
        self._order({"do": "show", "value": position, "indices": indices})
        return await self._message()

    async def value(self, position: int, value: RecordedValue) -> tuple[bytes | None, bool]:
        """(the bytes of a value, whether they are still those that were recorded); None for what is no tensor."""
        self._num_saved += 1
        path = self.directory / f"asked-{self._num_saved}.safetensors"
        self._order({"do": "save", "value": position, "path": str(path)})
        message = await self._message()
        return read_tensor(path, value), bool(message and message["is_as_recorded"])

    def pause(self) -> None:
        """Have it stop at the next value."""
        self._order({"do": "pause"})

    async def end(self) -> None:
        """End it: in order, where it stands at the end of its step; else at once. Once is enough."""
        if self._why == END:
            self._order({"do": "run", "boundaries": False, "phases": [], "values": [], "position": None})
        elif not self._task.done():
            self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        self._close()

    async def _gone(self) -> ProcessGone:
        values: list[RecordedValue] = []
        while (message := await self._message()) is not None:
            if message["e"] == "passed":
                self.passed.append(message["step"])
            elif message["e"] == "value":
                values.append(recorded_value_of(message["value"]))
            elif message["e"] == "stopped":
                self._why, self.has_arrived = message["why"], True
                return ProcessGone(tuple(values), Stop(message["why"], message["phase"]))
        self._why = ""
        self.run = self._task.result()
        self._close()
        return ProcessGone(tuple(values), None)

    async def _message(self) -> dict[str, Any] | None:
        """The next thing that the process says; None once it has ended and said everything."""
        while not self._messages:
            if self._task.done():
                self._on_readable()  # what was written before the end
                return self._messages.popleft() if self._messages else None
            self._news.clear()
            news = asyncio.create_task(self._news.wait())
            try:
                await asyncio.wait({news, self._task}, return_when=asyncio.FIRST_COMPLETED)
            finally:
                news.cancel()
        return self._messages.popleft()

    def _order(self, order: dict[str, Any]) -> None:
        if self._orders >= 0:
            os.write(self._orders, json.dumps(order).encode() + b"\n")

    def _on_readable(self) -> None:
        if self._answers < 0:
            return
        try:
            while piece := os.read(self._answers, 1 << 16):
                self._heard += piece
        except BlockingIOError:
            pass
        else:  # the other side has closed
            asyncio.get_running_loop().remove_reader(self._answers)
        *lines, self._heard = self._heard.split(b"\n")
        for line in lines:
            self._messages.append(json.loads(line))
        self._news.set()

    def _close(self) -> None:
        """Give both pipes back."""
        orders, answers, self._orders, self._answers = self._orders, self._answers, -1, -1
        if answers >= 0:
            asyncio.get_running_loop().remove_reader(answers)
            os.close(answers)
            os.close(orders)
