"""Messages between a prompt and the process paused within a step: lines of JSON, each way a named pipe.

```
    {"do": "run", "boundaries": true, "phases": [], "values": [], "position": null}   ─▶
                                  ◀─  {"e": "passed", "step": 6}, {"e": "value", "value": [...]}, ...
                                  ◀─  {"e": "stopped", "why": "phase", "phase": "reward"}
    {"do": "show", "value": 3, "indices": [[0, 2, 1], [5, 6, 1]]}                     ─▶
                                  ◀─  {"e": "shown", ...}
    {"do": "save", "value": 3, "path": "..."}                                         ─▶
                                  ◀─  {"e": "saved", "is_as_recorded": true}
    {"do": "pause"}    while it runs                                                  ─▶
```

The standard library only: both sides read this.
"""

from dataclasses import dataclass
from typing import Any

from harness.trace.chain import RecordedValue, Scope

ORDERS, ANSWERS = "orders.pipe", "answers.pipe"
BEGIN, PHASE, VALUE, PAUSE, END = "begin", "phase", "value", "pause", "end"
"""Why it is paused: before the step or another phase, after a requested value, by a signal, after the last value."""


@dataclass(frozen=True, slots=True)
class Stop:
    """Where the process stands."""

    why: str
    phase: str
    """Phase of the next value; empty if it is not known yet."""


def plain_value(value: RecordedValue) -> list[Any]:
    """Return a recorded value as plain values for a line."""
    return [*value.key, value.dtype, list(value.shape), value.algorithm, value.digest.hex(), int(value.scope)]


def recorded_value_of(fields: list[Any]) -> RecordedValue:
    """The inverse of plain_value."""
    phase, name, occurrence, dtype, shape, algorithm, digest, scope = fields
    return RecordedValue(phase, name, occurrence, dtype, tuple(shape), algorithm, bytes.fromhex(digest), Scope(scope))
