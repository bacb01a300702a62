"""Stops a run within one step, and answers about what it has recorded: the process's side of the step debugger.

    on_begin_step ─▶ stop     on_record ─▶ stop, where another phase begins     on_value ─▶ stop, where it was asked for
    on_end_step ─▶ stop       the process waits in each for orders, and resumes with "run"

It looks, and changes no bit. Values are copied as they are recorded, since programs write into their tensors later; of
more than MAX_COPIED_BYTES in a step, the others are held, and shown as they are by then. The prompt going away ends
the run.
"""

import json
import os
import select
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from harness.recording.callbacks import RecorderCallback
from harness.recording.run_spec import RunEnded
from harness.recording.stepping_messages import BEGIN, END, PAUSE, PHASE, VALUE, plain_value
from harness.recording.tensors import digest_tensor, tensor_bytes
from harness.recording.value_text import elements_text, value_range
from harness.trace.chain import RecordedValue
from harness.trace.tensor_file import write_tensors

MAX_COPIED_BYTES = 2**30
MAX_TEXT_CHARS = 2_000


@dataclass(frozen=True, slots=True)
class Until:
    """Where to stop next."""

    boundaries: bool = False
    """Wherever a phase begins."""
    phases: tuple[str, ...] = ()
    """Where one of these begins."""
    values: tuple[str, ...] = ()
    """After a value of one of these names."""
    position: int | None = None
    """Before the value of that number."""

    @classmethod
    def parse(cls, order: Mapping[str, Any]) -> "Until":
        """What an order to run says."""
        return cls(order["boundaries"], tuple(order["phases"]), tuple(order["values"]), order["position"])


@dataclass(frozen=True, slots=True)
class Held:
    """A recorded value that can be asked for."""

    recorded: RecordedValue
    value: Any
    """A tensor of our own, or the program's where `is_copy` is not so; else whatever was recorded."""
    is_copy: bool

    @property
    def is_as_recorded(self) -> bool:
        """Whether it still is what was recorded."""
        return self.is_copy or digest_tensor(self.value).digest == self.recorded.digest


class Stepping(RecorderCallback):
    """Stops in one step. `orders` and `answers` are the paths of the pipes."""

    pauses = True

    def __init__(self, orders: str, answers: str, step: int, max_copied_bytes: int = MAX_COPIED_BYTES) -> None:
        self._orders = os.open(orders, os.O_RDONLY | os.O_CLOEXEC)
        self._answers = os.open(answers, os.O_WRONLY | os.O_CLOEXEC)
        self._heard = b""
        self._early: list[dict[str, Any]] = []
        self._wanted = step
        self._max_copied_bytes = max_copied_bytes
        self._is_there = False
        self._until = Until()
        self._phase = ""
        self._given: Any = None
        self._held: list[Held] = []
        self._num_copied_bytes = 0

    def on_begin_step(self, step: int) -> None:
        """Stop before everything."""
        self._is_there = step == self._wanted
        if self._is_there:
            self._phase, self._held, self._num_copied_bytes = "", [], 0
            self._stop(BEGIN, "")

    def on_record(self, phase: str, name: str, occurrence: int, value: Any) -> None:
        """Stop before a value: where its phase is another than that of the value before, or it was asked for."""
        if not self._is_there:
            return
        self._given = value
        until, is_new = self._until, phase != self._phase
        is_first, self._phase = not self._phase, phase
        if self._was_paused():
            self._stop(PAUSE, phase)
        elif until.position == len(self._held):
            self._stop(PHASE if is_new else PAUSE, phase)
        elif is_new and not is_first and (until.boundaries or phase in until.phases):
            self._stop(PHASE, phase)

    def on_value(self, recorded_value: RecordedValue, tensor: torch.Tensor | None) -> None:
        """Hold a value, and stop after it if it is requested."""
        if not self._is_there:
            return
        self._held.append(self._hold(recorded_value, tensor))
        self._answer(
            {"e": "value", "value": plain_value(recorded_value)}
        )  # at once: nobody knows whether there will be a stop
        if {recorded_value.name, f"{recorded_value.phase}/{recorded_value.name}"} & set(self._until.values):
            self._stop(VALUE, "")

    def on_end_step(self, step: int, values: object) -> None:
        """Stop after the last value; for earlier steps, only report their end."""
        if self._is_there:
            self._stop(END, "")
            self._is_there, self._held, self._given = False, [], None
        else:
            self._answer({"e": "passed", "step": step})

    def _hold(self, recorded_value: RecordedValue, tensor: torch.Tensor | None) -> Held:
        if tensor is None:
            return Held(recorded_value, self._given, is_copy=True)
        num_bytes = tensor.numel() * tensor.element_size()
        if self._num_copied_bytes + num_bytes > self._max_copied_bytes:
            return Held(recorded_value, tensor.detach(), is_copy=False)
        self._num_copied_bytes += num_bytes
        return Held(recorded_value, _copied(tensor), is_copy=True)

    def _stop(self, why: str, phase: str) -> None:
        """Tell where the run stands, and answer until it may go on."""
        self._answer({"e": "stopped", "why": why, "phase": phase})
        while (order := self._next_order())["do"] != "run":
            if order["do"] == "show":
                self._answer(described(self._held[order["value"]], order["indices"]))
            elif order["do"] == "save":
                self._answer(self._save(self._held[order["value"]], Path(order["path"])))
        self._until = Until.parse(order)

    def _save(self, held: Held, path: Path) -> dict[str, Any]:
        if isinstance(held.value, torch.Tensor):
            write_tensors(path, [(held.recorded, bytes(tensor_bytes(held.value)))])
        return {"e": "saved", "is_as_recorded": held.is_as_recorded}

    def _was_paused(self) -> bool:
        """Whether the order to pause has come while the run went on; any other is for the next stop."""
        if not self._early and select.select([self._orders], [], [], 0)[0]:
            order = self._next_order()
            if order["do"] == "pause":
                return True
            self._early.append(order)
        return False

    def _next_order(self) -> dict[str, Any]:
        if self._early:
            return self._early.pop()
        while b"\n" not in self._heard:
            if not (piece := os.read(self._orders, 1 << 16)):
                raise RunEnded  # nobody asks any more
            self._heard += piece
        line, _, self._heard = self._heard.partition(b"\n")
        return dict(json.loads(line))

    def _answer(self, fields: Mapping[str, Any]) -> None:
        left = memoryview(json.dumps(fields).encode() + b"\n")
        try:
            while left:
                left = left[os.write(self._answers, left) :]
        except BrokenPipeError:
            raise RunEnded from None


def described(held: Held, indices: Sequence[Sequence[int]]) -> dict[str, Any]:
    """A value as a person looks at it: what it is, its range, its elements.

    Of a tensor the part that has these indices, begin, end and step of each dimension.
    """
    told: dict[str, Any] = {"e": "shown", "is_as_recorded": held.is_as_recorded}
    if not isinstance(held.value, torch.Tensor):
        return told | {"range": {}, "text": _cut(repr(held.value))}
    ranges = [range(*each) for each in indices]
    part = held.value.detach()[tuple(slice(*each) for each in indices)]
    return told | {"range": value_range(part), "text": _cut(elements_text(held.recorded.dtype, part, ranges))}


def _copied(tensor: torch.Tensor) -> torch.Tensor:
    """The same bits on the host, in memory of our own; by no operation of torch that a mode could see."""
    data = bytearray(tensor_bytes(tensor))
    whole = torch.frombuffer(data, dtype=tensor.dtype) if data else torch.empty(0, dtype=tensor.dtype)
    return whole.reshape(tensor.shape)


def _cut(text: str) -> str:
    return text if len(text) <= MAX_TEXT_CHARS else f"{text[:MAX_TEXT_CHARS]}..."
