"""What passes between a prompt and the process that stands within a step: lines of JSON, each way a pipe with a name.

    {"do": "run", "boundaries": true, "phases": [], "leaves": [], "position": null}   ─▶
                                  ◀─  {"e": "passed", "step": 6}, {"e": "leaf", "leaf": [...]}, ...
                                  ◀─  {"e": "stopped", "why": "phase", "phase": "reward"}
    {"do": "show", "leaf": 3, "indices": [[0, 2, 1], [5, 6, 1]]}                      ─▶
                                  ◀─  {"e": "shown", ...}
    {"do": "save", "leaf": 3, "path": "..."}                                          ─▶
                                  ◀─  {"e": "saved", "is_as_recorded": true}
    {"do": "pause"}    while it runs                                                  ─▶

The standard library only: both sides read this.
"""

from dataclasses import dataclass
from typing import Any

from harness.trace.chain import RecordedValue, Scope

ORDERS, ANSWERS = "orders.pipe", "answers.pipe"
BEGIN, PHASE, LEAF, PAUSE, END = "begin", "phase", "leaf", "pause", "end"
"""Why it stands: before the step, before another phase, behind a leaf that was asked for, by a signal, behind all."""


@dataclass(frozen=True, slots=True)
class Stop:
    """Where the process stands."""

    why: str
    phase: str
    """Of the leaf that comes next; empty where that is not known yet."""


def plain_value(value: RecordedValue) -> list[Any]:
    """A leaf as it stands in a line."""
    return [*value.key, value.dtype, list(value.shape), value.algorithm, value.digest.hex(), int(value.scope)]


def recorded_value_of(fields: list[Any]) -> RecordedValue:
    """The inverse of plain_value."""
    phase, name, occurrence, dtype, shape, algorithm, digest, scope = fields
    return RecordedValue(phase, name, occurrence, dtype, tuple(shape), algorithm, bytes.fromhex(digest), Scope(scope))
