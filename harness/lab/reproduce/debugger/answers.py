"""Answers to commands. Data only: `render.interactive` formats them."""

from dataclasses import dataclass
from typing import Any

from harness.lab.reproduce.debugger.step_progress import Mark, Visit
from harness.trace.chain import RecordedValue
from harness.trace.element_diff import ValueDifference


@dataclass(frozen=True, slots=True)
class Marked:
    """A recorded value, compared with that of the recorded run and that of the other run."""

    value: RecordedValue
    mark: Mark
    other: Mark | None


@dataclass(frozen=True, slots=True)
class Paused:
    """Where the run stands now, and what it has recorded on the way there."""

    step: int
    why: str
    """One of stepping_messages' words; empty where the process has ended."""
    phase: str
    """Phase of the next value, if it is known."""
    last: RecordedValue | None
    """What was recorded last."""
    visits: tuple[tuple[Visit, tuple[Marked, ...]], ...]
    """Since the stop before."""
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Listed:
    """Everything that was recorded so far."""

    visits: tuple[tuple[Visit, tuple[Marked, ...]], ...]
    other: str
    """Who the second mark is about; empty without one."""


@dataclass(frozen=True, slots=True)
class Shown:
    """A value, or a part of it."""

    value: RecordedValue
    part: str
    """The slice, as it was typed; empty for all of it."""
    shape: tuple[int, ...] | None
    """Of the part; None for what is no tensor."""
    range: dict[str, Any]
    """min, max, mean of the finite elements; nan, inf: how many there are."""
    text: str
    is_as_recorded: bool


@dataclass(frozen=True, slots=True)
class Compared:
    """A value here and in another run."""

    value: RecordedValue
    other: RecordedValue | None
    """None where the other run has none."""
    whose: str
    is_equal: bool
    part: str = ""
    """The slice, as it was typed; empty for all of it."""
    ranges: tuple[range, ...] = ()
    """The indices of the part in each dimension; of all of it all, of a text none."""
    difference: ValueDifference | None = None
    why_unknown: str = ""
    """Why the elements are not known, where the digests differ."""


@dataclass(frozen=True, slots=True)
class Message:
    """Lines that are complete as they are; `is_refused` if the command could not be carried out."""

    lines: tuple[str, ...]
    is_refused: bool = False


Answer = Paused | Listed | Shown | Compared | Message
