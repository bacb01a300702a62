"""Patches values of one run into another, when its program records them.

    record(phase, name, value) ─▶ the memory of `value` gets the donor's bits ─▶ digested ─▶ the program continues

A recorded value is mostly memory that the program continues to use. If it is a copy, nothing follows: the launcher
recognizes that by the later values. Memory is written past autograd's count of versions: the value that a backward has
saved is the donor's too, as if the program had computed it.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from harness.recording.callbacks import RecorderCallback
from harness.recording.patch_report import Fate, Transplanted, is_taken
from harness.recording.recorder import look
from harness.recording.recording_config import RunEnded
from harness.recording.tensors import dtype_name, tensor_bytes
from harness.trace.chain import Key, RecordedValue, Scope
from harness.trace.reader import read_trace
from harness.trace.tensor_file import read_tensor, write_tensors

OPERATION = "operation"
"""In place of a phase: what is put is the result of an operation."""


class Transplant(RecorderCallback):
    """Patches values of a donor's trace into this run, in the steps `first` to `last`.

    All of these phases, and `values`, each [phase, name] or [phase, name, occurrence]. A patch that cannot be put as a
    whole ends the run: half of a transplant would show nothing.
    """

    def __init__(
        self,
        donor: str,
        report: str,
        *,
        first: int,
        last: int,
        phases: Sequence[str],
        values: Sequence[Sequence[Any]],
    ) -> None:
        self._donor = read_trace(Path(donor))
        self._report = Path(report)
        self._steps = range(first, last + 1)
        self._phases = frozenset(phases)
        self._recorded_values = frozenset(map(tuple, values))
        self._step = -1
        self._waiting: dict[Key, RecordedValue] = {}

    def on_begin_step(self, step: int) -> None:
        """Which leaves are to be put in this step."""
        self._step = step
        self._waiting = {}
        if step in self._steps:
            recorded_values = self._donor.columns(step, 0).values()
            self._waiting = {
                recorded_value.key: recorded_value
                for recorded_value in recorded_values
                if recorded_value.scope is Scope.LOGICAL and self._takes(recorded_value.key)
            }

    def on_record(self, phase: str, name: str, occurrence: int, value: Any) -> None:
        """Put the donor's bits into a value, if they are wanted; RunEnded where that cannot be done."""
        key = phase, name, occurrence
        if self._step not in self._steps or not self._takes(key):
            return
        recorded_value = self._waiting.pop(key, None)
        if recorded_value is None:
            self._tell(key, Fate.UNLIKE, "only A has it")
        else:
            self._tell(key, *self._put(recorded_value, value))

    def on_end_step(self, step: int, values: object) -> None:
        """Whatever the donor has of this step was to be put; RunEnded where something was not there to be put into."""
        for key in self._waiting:
            self._tell(key, Fate.UNLIKE, "only B has it")

    def _takes(self, key: Key) -> bool:
        return is_taken(key, self._phases, self._recorded_values)

    def _put(self, recorded_value: RecordedValue, value: Any) -> tuple[Fate, str]:
        (seen, *_) = look([(recorded_value.name, value)])
        if seen.digested == (
            recorded_value.dtype,
            recorded_value.shape,
            recorded_value.algorithm,
            recorded_value.digest,
        ):
            return Fate.EQUAL, ""
        if not isinstance(value, torch.Tensor):
            return Fate.NO_MEMORY, f"it is of type {type(value).__name__}"
        return put(value, recorded_value, self._donor.tensor(self._step, 0, recorded_value))

    def _tell(self, key: Key, fate: Fate, why: str = "") -> None:
        with self._report.open("a", encoding="utf-8") as file:
            file.write(Transplanted(self._step, *key, fate, why).to_line())
        if fate is Fate.UNLIKE:
            raise RunEnded


class OperationDonor(RecorderCallback):
    """Keeps what one operation of the step gives whose operations are recorded."""

    def __init__(self, index: int, path: str) -> None:
        self._index = index
        self._path = Path(path)

    def on_operation(self, index: int, name: str, results: Sequence[torch.Tensor]) -> None:
        """Write the results down, if it is the one."""
        if index == self._index:
            write_tensors(
                self._path,
                [(recorded_value, bytes(tensor_bytes(each))) for recorded_value, each in _named(name, results)],
            )


class OperationTransplant(RecorderCallback):
    """Puts into the results of one operation what the same one has given in the donor."""

    def __init__(self, index: int, path: str, report: str, step: int) -> None:
        self._index = index
        self._path = Path(path)
        self._report = Path(report)
        self._step = step

    def on_operation(self, index: int, name: str, results: Sequence[torch.Tensor]) -> None:
        """Put them, if it is the one; RunEnded where the donor's is another operation, or gives other shapes."""
        if index != self._index:
            return
        for recorded_value, value in _named(name, results):
            data = read_tensor(self._path, recorded_value)
            if data is None:
                fate, why = Fate.UNLIKE, f"operation {index} is {name} in A, and in B another one"
            elif data == tensor_bytes(value):
                fate, why = Fate.EQUAL, ""
            else:
                fate, why = put(value, recorded_value, data)
            with self._report.open("a", encoding="utf-8") as file:
                file.write(
                    Transplanted(
                        self._step, OPERATION, recorded_value.name, recorded_value.occurrence, fate, why
                    ).to_line()
                )
            if fate is Fate.UNLIKE:
                raise RunEnded


def put(value: torch.Tensor, recorded_value: RecordedValue, data: bytes | None) -> tuple[Fate, str]:
    """Write a recorded value's bits into the memory of a value of the same dtype and shape; return its fate and why."""
    if (dtype_name(value.dtype), tuple(value.shape)) != (recorded_value.dtype, recorded_value.shape):
        shapes = [f"{dtype} {list(shape)}" for dtype, shape in _kinds(value, recorded_value)]
        return Fate.UNLIKE, f"it is {shapes[0]} in A, {shapes[1]} in B"
    if data is None or len(data) != value.numel() * value.element_size():
        return Fate.UNLIKE, "B's value was not kept"
    source = torch.frombuffer(bytearray(data), dtype=value.dtype).reshape(value.shape)
    try:
        value.data.copy_(source)
    except RuntimeError as error:  # several elements in one place of memory
        return Fate.UNLIKE, f"its memory cannot be written to: {str(error).splitlines()[0]}"
    return Fate.PUT, ""


def _kinds(value: torch.Tensor, recorded_value: RecordedValue) -> list[tuple[str, tuple[int, ...]]]:
    return [(dtype_name(value.dtype), tuple(value.shape)), (recorded_value.dtype, recorded_value.shape)]


def _named(name: str, results: Sequence[torch.Tensor]) -> list[tuple[RecordedValue, torch.Tensor]]:
    """Each result with a leaf that says which one it is; its digest is of no matter here."""
    return [
        (RecordedValue(OPERATION, name, at, dtype_name(each.dtype), tuple(each.shape), "none", b""), each)
        for at, each in enumerate(results)
    ]
