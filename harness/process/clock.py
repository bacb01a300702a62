"""The one source of time: a monotonic clock for durations and deadlines, a wall clock for names and dates."""

import os
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


def ticks_since_boot() -> int:
    """Return the time in the unit and from the origin of `process_tree.Process.start_ticks`."""
    return int(time.clock_gettime(time.CLOCK_BOOTTIME) * os.sysconf("SC_CLK_TCK"))
