"""Outcomes of tests, and their counts."""

from dataclasses import dataclass, field
from enum import StrEnum


class TestOutcome(StrEnum):
    """Outcome of one test in pytest's words, and two for tests that did not report one."""

    __test__ = False

    PASSED = "passed"
    FAILED = "failed"
    ERROR = "error"  # in its setup or teardown
    SKIPPED = "skipped"
    XFAILED = "xfailed"
    XPASSED = "xpassed"
    UNFINISHED = "unfinished"  # it was running when the process ended
    UNSTARTED = "unstarted"  # it was collected and never begun


@dataclass(frozen=True, slots=True)
class TestCounts:
    """Number of tests per `TestOutcome` in one unit."""

    __test__ = False

    counts: dict[TestOutcome, int] = field(default_factory=dict)

    def __getitem__(self, outcome: TestOutcome) -> int:
        return self.counts.get(outcome, 0)

    @property
    def total(self) -> int:
        return sum(self.counts.values())

    @property
    def all_skipped(self) -> bool:
        """Whether there were tests and each was skipped: a file that quietly did nothing."""
        return self.total > 0 and self.counts.get(TestOutcome.SKIPPED, 0) == self.total
