"""Where a run stands within a step, what it has recorded there, and how that compares with other runs. Pure."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from harness.bits.errors import UsageError
from harness.lab.reproduce.debugger.words import did_you_mean
from harness.recording.stepping_messages import BEGIN, END, Stop
from harness.trace.chain import Key, RecordedValue, Scope

_OCCURRENCE = re.compile(r"(.+)#(\d+)")


class Mark(StrEnum):
    """Comparison of a recorded value with that of the same key in another run."""

    EQUAL = "="
    DIFFERENT = "!"
    ABSENT = "?"
    """The other run has none."""


@dataclass(frozen=True, slots=True)
class Visit:
    """Consecutive recorded values of one phase."""

    phase: str
    number: int
    """0 for the first time that this phase was there in the step."""
    begin: int
    """The position of its first value."""
    values: tuple[RecordedValue, ...]


@dataclass(slots=True)
class StepProgress:
    """The way through one step so far."""

    step: int
    recorded: Mapping[tuple[Scope, Key], RecordedValue]
    """What the recorded run has of this step; nothing where it did not get there."""
    other: Mapping[tuple[Scope, Key], RecordedValue] | None = None
    """What the run has that it is compared with, where that is another one."""
    values: list[RecordedValue] = field(default_factory=list)
    why: str = BEGIN
    """Why it stands; empty once the process has ended."""
    phase: str = ""
    """Phase of the next value, if it is known."""

    def take(self, values: Sequence[RecordedValue], stop: Stop | None) -> None:
        """Advance to a stop, past new values; to None if the process has ended."""
        self.values += values
        self.why, self.phase = ("", "") if stop is None else (stop.why, stop.phase)

    @property
    def has_ended(self) -> bool:
        """Whether everything of the step was recorded."""
        return self.why == END

    def visits(self, values: Sequence[RecordedValue] | None = None) -> list[Visit]:
        """The phases as they came, of all leaves or of some at the end of them."""
        found: list[tuple[str, int, list[RecordedValue]]] = []
        for at, value in enumerate(self.values):
            if not found or found[-1][0] != value.phase:
                found.append((value.phase, at, []))
            found[-1][2].append(value)
        first = len(self.values) - len(self.values if values is None else values)
        counts: dict[str, int] = {}
        visits = []
        for phase, begin, own in found:
            counts[phase] = number = counts.get(phase, -1) + 1
            if kept := own[max(0, first - begin) :]:
                visits.append(Visit(phase, number, begin, tuple(kept)))
        return visits

    def position_back(self) -> int:
        """How many leaves were recorded where the phase of the last one began."""
        return max((visit.begin for visit in self.visits()), default=0)

    def mark(self, value: RecordedValue) -> Mark:
        """Compare a value with that of the recorded run."""
        return _mark(value, self.recorded)

    def mark_of_other(self, value: RecordedValue) -> Mark | None:
        """What it is to that of the run it is compared with; None without one."""
        return None if self.other is None else _mark(value, self.other)

    def find(self, text: str) -> int:
        """Return the position of a value by its name: NAME, PHASE/NAME, either with #OCCURRENCE.

        The last one of several occurrences. UsageError for an unknown name, or if values of several phases have it.
        """
        match = _OCCURRENCE.fullmatch(text)
        name, occurrence = (match[1], int(match[2])) if match else (text, None)
        found = [
            at
            for at, value in enumerate(self.values)
            if name in (value.name, f"{value.phase}/{value.name}") and occurrence in (None, value.occurrence)
        ]
        keys = {self.values[at].key[:2] for at in found}
        if len(keys) > 1:
            names = ", ".join(f"{phase}/{each}" for phase, each in sorted(keys))
            raise UsageError(f"{text!r} is the name of several values", legal=names, remedy="type its phase before it")
        if not found:
            raise UsageError(
                f"no value {text!r} is recorded so far",
                legal="the names that list shows",
                remedy=did_you_mean(name, names_of(self.values)) or "next or continue runs to later values",
            )
        return found[-1]


def names_of(values: Iterable[RecordedValue]) -> list[str]:
    """What values may be called, without and with their phase."""
    return [name for value in values for name in (value.name, f"{value.phase}/{value.name}")]


def by_key(values: Sequence[RecordedValue]) -> dict[tuple[Scope, Key], RecordedValue]:
    """Leaves as they are found again."""
    return {(value.scope, value.key): value for value in values}


def first_other(before: Sequence[RecordedValue], again: Sequence[RecordedValue]) -> RecordedValue | None:
    """Return the first value that differs from the earlier run; None if all are equal."""
    return next((value for value, other in zip(before, again, strict=False) if value != other), None)


def _mark(value: RecordedValue, others: Mapping[tuple[Scope, Key], RecordedValue]) -> Mark:
    other = others.get((value.scope, value.key))
    return Mark.ABSENT if other is None else Mark.EQUAL if other == value else Mark.DIFFERENT
