"""Which limit of an attempt has passed: pure, from the lines of its report and the time."""

from typing import Any

MAX_LIMIT_S = 1e9  # what is longer is no limit
TEST_SLACK_S = 1.0  # pytest-timeout, where a suite has it, acts inside the process first

FORK_SLACK_S = 20.0  # for the stacks of a test, and for the processes that it leaves


class Deadlines:
    """The limits of one attempt, all in seconds of the same monotonic clock.

    Until the report says "collected", the start-up limit holds. A test that carries its own limit is held to
    that one alone while it runs, so that a long one may outlast the file's limit; the rest of the file is
    held to the file's limit.
    """

    def __init__(self, started_s: float, timeout_s: float, startup_timeout_s: float) -> None:
        self._unit_s = started_s + timeout_s
        self._startup_s = started_s + startup_timeout_s
        self._test_s: float | None = None
        self._slack_s = TEST_SLACK_S

    def observe(self, line: dict[str, Any], now_s: float) -> None:
        """Take one line of the report into account."""
        kind = line.get("k")
        if kind in ("collected", "finish"):
            self._startup_s = float("inf")
        if kind == "forked":  # the process from which each test is forked ends a test that exceeds its limit
            self._slack_s = TEST_SLACK_S + FORK_SLACK_S + (_seconds(line.get("grace_s")) or 0.0)
        if kind == "start":
            limit_s = _seconds(line.get("timeout_s"))
            self._test_s = None if limit_s is None else now_s + limit_s + self._slack_s
        elif kind in ("end", "finish"):
            self._test_s = None

    def next_s(self) -> float:
        """When the earliest limit now in force passes."""
        return self._test_s if self._test_s is not None else min(self._startup_s, self._unit_s)

    def expired(self, now_s: float) -> str:
        """The reason to end the attempt: "test_timeout", "collect_timeout", "timeout", or "" for none."""
        if now_s < self.next_s():
            return ""
        if self._test_s is not None:
            return "test_timeout"
        return "collect_timeout" if now_s >= self._startup_s else "timeout"


def _seconds(value: Any) -> float | None:
    """A limit as a report gives it; None for none (0, as pytest-timeout has it) and for what is no number."""
    if not isinstance(value, (int, float)) or not 0 < value <= MAX_LIMIT_S:
        return None
    return float(value)
