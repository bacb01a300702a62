"""A clock for tests."""

from datetime import UTC, datetime


class FakeClock:
    """A clock that stands still until `advance` is called."""

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
