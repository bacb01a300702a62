"""Ends a run where a condition holds: at the value that shows it, in the middle of its step.

every recorded value     ─▶ nan? inf?                ─┐
every value of the curve ─▶ nan? inf? reward<0.2?    ─┴▶ the stop is written, RunEnded
"""

import math
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from harness.recording.metrics import INF, NAN, Stop, parse_condition
from harness.recording.notices import say
from harness.recording.process import rank_and_world_size
from harness.recording.recorder import RecorderCallback
from harness.recording.run_spec import RunEnded
from harness.recording.tensors import NOT_OF_DTYPE
from harness.trace.format import RecordedValue, Scope
from harness.trace.values import Float, shown

NOT_FINITE = "NonFiniteError"
"""How a class of errors is called with which a program ends itself at a value that is not finite."""
OF_TENSORS = {NAN: torch.isnan, INF: torch.isinf}
OF_NUMBERS = {NAN: math.isnan, INF: math.isinf}


class Breakpoints(RecorderCallback):
    """Looks for conditions, texts of `conditions`; where the first one holds is written to `report`, a path."""

    def __init__(self, conditions: Sequence[str], report: str) -> None:
        parsed = [parse_condition(text) for text in conditions]
        self._words = {condition.word for condition in parsed if condition.word}
        self._comparisons = [condition for condition in parsed if not condition.word]
        self._report = Path(report)
        self._rank = 0
        self._step = 0
        self._known: set[str] = set()
        self._stop: Stop | None = None

    def on_begin_step(self, step: int) -> None:
        """End the run if a value reported since the previous step meets the condition."""
        if self._stop is not None:
            raise RunEnded
        if self._known:
            self._refuse_unknown()
        self._rank = rank_and_world_size(os.environ)[0]
        self._step = step

    def on_value(self, recorded_value: RecordedValue, value: Any) -> None:
        """End the run at a value that is not finite."""
        if recorded_value.scope is Scope.CONTEXT:
            return
        for word in sorted(self._words & OF_TENSORS.keys()):
            if isinstance(value, torch.Tensor) and (element := _first(word, value.detach())) is not None:
                self._end(Stop(word, self._step, self._rank, *recorded_value.key, element, str(value[element].item())))

    def on_end_step(self, step: int, values: Mapping[str, Float]) -> None:
        """End the run where a value of the curve says so."""
        self.on_values(values)
        if self._stop is not None:
            raise RunEnded

    def on_values(self, values: Mapping[str, Float]) -> None:
        """Check reported values; one that meets the condition after its step ends the run with the next step."""
        self._known |= values.keys()
        for name, value in values.items():
            for word in sorted(self._words & OF_NUMBERS.keys()):
                if OF_NUMBERS[word](value.value()):
                    self._note_curve(word, name, value)
        for condition in self._comparisons:
            if condition.holds(values):
                name = condition.name_among(values)
                self._note_curve(str(condition), name, values[name])

    def on_break_off(self, step: int, error: BaseException | None) -> None:
        """An error at a value that is not finite is such a value."""
        words = sorted(self._words & OF_TENSORS.keys())
        if words and any(kind.__name__ == NOT_FINITE for kind in type(error).__mro__):
            self._note(Stop(words[-1], step, self._rank, value=str(getattr(error, "what", error))))

    def _note_curve(self, condition: str, name: str, value: Float) -> None:
        self._note(Stop(condition, self._step, self._rank, name=name, value=shown(value.dtype, value.bits)))

    def _refuse_unknown(self) -> None:
        """End the run where nothing was ever told that a comparison could be made with."""
        for each in self._comparisons:
            if each.name_among(self._known) not in self._known:
                self._end(Stop("", self._step, self._rank, unknown=each.name, known=tuple(sorted(self._known))))

    def _end(self, stop: Stop) -> None:
        self._note(stop)
        raise RunEnded

    def _note(self, stop: Stop) -> None:
        """Write down where a condition held; the first of all processes counts, and one that cannot be written too."""
        if self._stop is None:
            self._stop = stop
            try:
                with suppress(FileExistsError):
                    stop.write(self._report)
            except OSError as error:
                say(f"where the run has ended cannot be written: {error}: {stop}")


def _first(word: str, tensor: torch.Tensor) -> tuple[int, ...] | None:
    """The indices of the first element that is NaN, or infinite; None where none is."""
    try:
        where = OF_TENSORS[word](tensor)
    except RuntimeError as error:  # of dtypes that have no such value, as float8_e4m3fn has no Inf
        if NOT_OF_DTYPE not in str(error):
            raise
        return None
    return tuple(where.nonzero()[0].tolist()) if where.any() else None
