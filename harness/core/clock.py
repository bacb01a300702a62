"""The one source of time: a monotonic clock for durations and deadlines, a wall clock for names and dates.

`FakeClock` is the shipped seam for tests: time moves only when it is told to.
"""

import time
from datetime import UTC, datetime
from typing import Protocol


class Clock(Protocol):
    """Seconds on a clock that never goes backwards, and the date."""

    def monotonic_s(self) -> float: ...

    def wall(self) -> datetime: ...


class SystemClock:
    """The machine's own clocks."""

    def monotonic_s(self) -> float:
        return time.monotonic()

    def wall(self) -> datetime:
        return datetime.now(UTC)


def sleep(seconds: float) -> None:
    """Let time pass in this thread; only for those whose work it is to be late."""
    time.sleep(seconds)


class FakeClock:
    """A clock for tests that stands still until `advance` is called."""

    def __init__(self, start_s: float = 0.0, date: datetime | None = None) -> None:
        self.now_s = start_s
        self.date = date or datetime(2026, 1, 1, tzinfo=UTC)

    def monotonic_s(self) -> float:
        return self.now_s

    def wall(self) -> datetime:
        return self.date

    def advance(self, seconds: float) -> None:
        """Move time forward by `seconds` (at least 0)."""
        if seconds < 0:
            raise ValueError(f"time does not go backwards: {seconds}")
        self.now_s += seconds
