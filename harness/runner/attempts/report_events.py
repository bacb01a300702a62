"""Events from the lines of a test report that is still being written."""

import math
from typing import Any

from harness.runner import events
from harness.runner.test_outcomes import TestOutcome

TEST_OUTCOMES = frozenset(TestOutcome)


def test_event(t: float, path: str, record: dict[str, Any]) -> events.Event | None:
    """Return the event of a line about a test; None for any other line, and for one that a test itself wrote."""
    match record:
        case {"k": "start", "id": str(nodeid), "timeout_s": None | int() | float() as timeout_s}:
            if timeout_s is None or _is_number(timeout_s):
                return events.TestStarted(t, path, nodeid, timeout_s)
        case {"k": "end", "id": str(nodeid), "outcome": str(outcome), "duration_s": int() | float() as duration_s}:
            if outcome in TEST_OUTCOMES and _is_number(duration_s):
                return events.TestFinished(t, path, nodeid, outcome, duration_s)
    return None


def _is_number(value: float) -> bool:
    """Whether a number of a report can be shown as seconds."""
    try:
        return math.isfinite(value)
    except OverflowError:  # JSON has integers of any length
        return False
