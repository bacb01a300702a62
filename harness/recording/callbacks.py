"""What looks on while a process records: the one seam for those who want more than a trace of it.

    Recorder(sink, watchers=[Breakpoints(...), ...])

    begin_step ─▶ on_begin_step    record ─▶ (its value is digested) ─▶ on_value    end_step ─▶ on_end_step

A watcher sees the program's own tensors. It may raise RunEnded, which ends the run right there.
"""

from collections.abc import Mapping
from importlib import import_module
from typing import Any

from harness.trace.chain import RecordedValue
from harness.trace.values import Float


class RecorderCallback:
    """Looks on, and does nothing; what a watcher is for, it overrides."""

    pauses = False
    """Whether it lets a person stop the program: of processes that record together, only the first has it."""

    def on_begin_step(self, step: int) -> None:
        """A step begins."""

    def on_value(self, recorded_value: RecordedValue, value: Any) -> None:
        """A value was digested; `value` is a whole tensor or a text; None for a part of a tensor."""

    def on_end_step(self, step: int, values: Mapping[str, Float]) -> None:
        """A step has been handed to the sink; `values` are those of the curve."""

    def on_values(self, values: Mapping[str, Float]) -> None:
        """Values of the curve, of the step that has ended last: those that it ended with, and what is printed later."""

    def on_break_off(self, step: int, error: BaseException | None) -> None:
        """The program has gone no further than the middle of this step: because of `error`, or in order."""


def make_callbacks(told: Mapping[str, Mapping[str, Any]], *, is_first: bool = True) -> list[RecorderCallback]:
    """Those that the orders of a process name: "module:class" -> the keyword arguments, plain values, of its making.

    `is_first`: whether the process is the first of those that record together.
    """
    kinds = {name: _class_of(name) for name in told}
    return [kinds[name](**fields) for name, fields in told.items() if is_first or not kinds[name].pauses]


def _class_of(name: str) -> type[RecorderCallback]:
    module, _, kind = name.partition(":")
    found: type[RecorderCallback] = getattr(import_module(module), kind)
    return found
