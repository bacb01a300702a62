"""Reading report.jsonl, what `harness.plugin` writes inside the pytest process while its tests run.

The writer may be killed at any byte. A line counts once its newline is there; one that is not a whole record of a
known kind with the right fields is passed over and counted. Kinds this version does not know are ignored.
The tests can do anything to the file: what is read of it has limits, and no read waits for anybody.
"""

import json
import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from harness.bits.errors import ReportError
from harness.bits.files import MALFORMED
from harness.process.growing_file import GrowingFile, GrowingLines
from harness.runner.need import Need


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


VERSION = 1
"""The newest version of report.jsonl that is understood here."""

MAX_SKIP_REASONS = 8
MAX_UNREADABLE = 10_000
"""After so many lines that are no records, nothing more is read."""


@dataclass(frozen=True, slots=True)
class TestEnd:
    """Outcome of one test."""

    __test__ = False

    outcome: TestOutcome
    duration_s: float
    reason: str
    """Reason of a skip, or first line of a failure."""
    text: str
    """The whole failure as pytest shows it, or empty."""
    several: tuple[tuple[str, str, str], ...] = ()
    """(category, reason, text) of each failure and skip, those of subtests too, if it has more than its own."""
    properties: tuple[tuple[str, str], ...] = ()
    """What it has recorded with `record_property`."""
    sections: tuple[tuple[str, str], ...] = ()
    """What pytest has captured, by the titles of pytest."""


@dataclass(frozen=True, slots=True)
class ListedTest:
    """One test of a file that was collected and not run."""

    nodeid: str
    need: Need
    ties: tuple[str, ...] = ()
    """What ties it to other tests: those with a tie in common run in one process (`harness.runner.sessions.ties`)."""
    number: int = 0
    """Its place among all tests of the suite."""


@dataclass(frozen=True, slots=True)
class LostTest:
    """A test whose own process ended before the test had."""

    nodeid: str
    how: str
    """`crashed`, `exited_early` or `timed_out`."""
    reason: str


@dataclass(slots=True)
class TestReport:
    """Everything one attempt wrote about its tests."""

    __test__ = False

    collected: bool = False
    """Whether pytest got as far as a finished collection."""
    collected_need: Need | None = None
    nodeids: tuple[str, ...] = ()
    """The tests that were to run, in order."""
    num_deselected: int = 0
    """Tests of the file that pytest's options or a hook have left out."""
    ends: dict[str, TestEnd] = field(default_factory=dict)
    """Outcomes by node id; the last one counts for a test that ran twice."""
    running: tuple[str, ...] = ()
    """Tests that began and never ended."""
    running_limit_s: float | None = None
    """Limit of the present one; None if it has none of its own."""
    lost: tuple[LostTest, ...] = ()
    """Those of them that had a process of their own, which ended without the others."""
    left_behind: tuple[str, ...] = ()
    """Processes that single tests left, and that were killed, as "test: pid state command"."""
    unforked: str = ""
    """Code of the obstacle to a process for each test; empty for none."""
    unforked_detail: str = ""
    """Value that belongs to that code, such as a plugin."""
    fails_in_teardown: bool = False
    """Whether a teardown has failed or was cut short: it may be that of fixtures of other tests."""
    interrupted: str | None = None
    """The test that raised KeyboardInterrupt, which ended pytest; empty if none ran, None without KeyboardInterrupt."""
    finished_exit: int | None = None
    """The exit code pytest had decided on at its own end; None if it never came to that."""
    collect_errors: tuple[tuple[str, str], ...] = ()
    """(node id, text) of everything that could not be collected."""
    refused: str = ""
    """Pytest's complaints about its arguments, a line each; empty if it accepted them."""
    suite_properties: tuple[tuple[str, str], ...] = ()
    """What tests have recorded with `record_testsuite_property`."""
    num_unreadable: int = 0
    """Whole lines that are no record."""
    unread: str = ""
    """Why not all of the file was read; empty where all was."""

    def all_ids(self) -> Iterator[str]:
        """Every test this report knows of, collected ones first and in their order."""
        yield from dict.fromkeys((*self.nodeids, *self.ends, *self.running))

    def outcome_of(self, nodeid: str) -> TestOutcome:
        """Return the outcome of `nodeid`, UNFINISHED or UNSTARTED if the report has none."""
        if nodeid in self.running:
            return TestOutcome.UNFINISHED
        end = self.ends.get(nodeid)
        return end.outcome if end else TestOutcome.UNSTARTED

    @property
    def present(self) -> tuple[str, ...]:
        """The running tests without those whose own process ended before: usually one."""
        alone = {each.nodeid for each in self.lost}
        return tuple(nodeid for nodeid in self.running if nodeid not in alone)

    def counts(self) -> TestCounts:
        """Number of tests by outcome."""
        return TestCounts(dict(Counter(self.outcome_of(nodeid) for nodeid in self.all_ids())))

    def skip_reasons(self) -> tuple[str, ...]:
        """Distinct reasons of skipped tests in order of appearance, at most `MAX_SKIP_REASONS`."""
        skips = (end.reason for end in self.ends.values() if end.outcome is TestOutcome.SKIPPED)
        return tuple(dict.fromkeys(skips))[:MAX_SKIP_REASONS]


def read_report(path: str | Path) -> TestReport:
    """Return the records of an attempt so far; an empty report if there is no file.

    Raises ReportError for a file of a newer version, OSError where it cannot be read.
    """
    tail = ReportTail(path)
    try:
        return tail.report()
    finally:
        tail.close()


class ReportTail:
    """Follows a report while it is written: each `poll` gives the records since the one before.

    The file is opened once; a later file of the same name is not read.
    """

    def __init__(self, path: str | Path) -> None:
        self.file = GrowingFile(path)
        self._begin()

    def _begin(self) -> None:
        self.file.rewind()
        self._lines = GrowingLines(self.file)
        self._num_unreadable = 0

    @property
    def _has_given_up(self) -> bool:
        return self._num_unreadable > MAX_UNREADABLE

    def poll(self) -> list[dict[str, Any]]:
        """The new records, of any kind, unchecked; none while the file does not exist.

        Raises OSError where the file is there and cannot be read.
        """
        if self._has_given_up:
            return []
        left_out = self._lines.num_left_out
        lines = self._lines.poll()
        records = [record for line in lines if (record := _record(line)) is not None]
        self._num_unreadable += len(lines) - len(records) + self._lines.num_left_out - left_out
        return records

    @property
    def is_behind(self) -> bool:
        """Whether more could be read at once: one poll reads a limited amount."""
        return self.file.is_behind and not self._has_given_up

    def report(self) -> TestReport:
        """Everything that stands in the file, read from its beginning.

        Raises ReportError for a file of a newer version, OSError where it cannot be read.
        """
        report, begun, torn_down, first_kind = TestReport(), dict[str, float | None](), set[str](), ""
        self._begin()
        while True:
            for record in self.poll():
                first_kind = first_kind or record["k"]
                if record["k"] == "hello":
                    _check_version(record.get("version"), str(self.file.path))
                try:
                    _apply(record, report, begun, torn_down)
                except MALFORMED:
                    self._num_unreadable += 1
            if not self.is_behind:
                break
        report.running = tuple(begun)
        report.fails_in_teardown |= not torn_down.isdisjoint(begun)
        report.running_limit_s = next(map(begun.__getitem__, report.present), None)
        report.num_unreadable = self._num_unreadable
        report.unread = self.file.excess
        if first_kind not in ("", "hello"):  # the plugin writes that one before any test
            report.unread = f"{self.file.path} has lost its beginning: a test emptied or truncated it"
        if self._has_given_up:
            report.unread = f"{self.file.path} has {self._num_unreadable:,} lines that are not records, maybe more"
        return report

    def close(self) -> None:
        """Close the file."""
        self.file.close()


def _record(line: bytes) -> dict[str, Any] | None:
    if line[:1] != b"{":  # the plugin's records begin so
        return None
    try:
        record = json.loads(line)
    except MALFORMED:
        return None
    return record if isinstance(record, dict) and isinstance(record.get("k"), str) else None


def _apply(record: dict[str, Any], report: TestReport, begun: dict[str, float | None], torn_down: set[str]) -> None:
    """Fold one record in; where its fields are wrong, raise KeyError, TypeError, ValueError or OverflowError."""
    match record["k"]:
        case "collected":
            nodeids = tuple(_text(nodeid) for nodeid in record["nodeids"])
            report.collected_need = Need.from_json(dict(record["need"]))
            report.num_deselected = int(record.get("deselected", 0))
            report.nodeids, report.collected = nodeids, True
        case "collect_error":
            report.collect_errors += ((_text(record["id"]), _text(record["text"])),)
        case "refused":
            report.refused = _text(record["text"])
        case "start":
            limit_s = record.get("timeout_s")
            begun[_text(record["id"])] = None if limit_s is None else float(limit_s)
            torn_down.discard(record["id"])
        case "teardown":
            torn_down.add(_text(record["id"]))
        case "end":
            nodeid, seconds = _text(record["id"]), float(record["duration_s"])
            end = TestEnd(
                outcome=TestOutcome(record["outcome"]),
                duration_s=seconds if math.isfinite(seconds) else 0.0,
                reason=_text(record.get("reason", "")),
                text=_text(record.get("text", "")),
                several=_texts(record.get("several", ()), 3),
                **_of_reports(record.get("reports", ())),
            )
            report.ends[nodeid] = end
            report.fails_in_teardown |= "error" in record.get("counted", ())[1:]
            begun.pop(nodeid, None)
        case "suite_property":
            report.suite_properties += ((_text(record["name"]), _text(record["value"])),)
        case "lost":
            report.lost += (LostTest(_text(record["id"]), _text(record["how"]), _text(record["why"])),)
        case "left_behind":
            nodeid = _text(record["id"])
            report.left_behind += tuple(f"{nodeid}: {_text(process)}" for process in record["processes"])
        case "unforked":
            report.unforked, report.unforked_detail = _text(record["why"]), _text(record.get("detail", ""))
        case "interrupted":
            report.interrupted = _text(record["id"])
        case "finish":
            report.finished_exit = int(record["exit"])


def _of_reports(reports: Any) -> dict[str, Any]:
    """What a test has recorded and printed: of each phase as a whole, of which the last has all properties."""
    whole = [report for report in reports if isinstance(report, dict)]
    properties = [(str(name), str(value)) for name, value in whole[-1]["user_properties"]] if whole else []
    sections = dict.fromkeys(pair for report in whole for pair in _texts(report["sections"], 2))
    return {"properties": tuple(properties), "sections": tuple(sections)}


def _texts(rows: Any, num: int) -> tuple[Any, ...]:
    """Rows of so many texts. Raises ValueError or TypeError for anything else."""
    found = tuple(tuple(map(_text, row)) for row in rows)
    if any(len(row) != num for row in found):
        raise ValueError(f"not {num} texts")
    return found


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"not text: {value!r}")
    return value


def _check_version(version: object, path: str) -> None:
    if isinstance(version, int) and version <= VERSION:
        return
    raise ReportError(
        f"{path} was written by version {version} of the pytest plugin",
        legal=f"versions up to {VERSION}",
        remedy="install the same version of rlharness in the environment of the tests and in that of the runner",
    )
