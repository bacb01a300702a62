"""Reading report.jsonl, what `harness.plugin` writes inside the pytest process while its tests run.

The writer may be killed at any byte. A line counts once its newline is there; one that is not a whole record of a
known kind with the right fields is passed over and counted. Kinds this version does not know are ignored.
Standard library only, and nothing here writes.
"""

import json
import math
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from harness.errors import ReportError
from harness.runner.units import Need, TestCounts, TestOutcome

VERSION = 1
"""The newest version of report.jsonl that is understood here."""

MAX_SKIP_REASONS = 8


@dataclass(frozen=True, slots=True)
class TestEnd:
    """How one test ended."""

    __test__ = False

    outcome: TestOutcome
    duration_s: float
    reason: str
    """One line: the reason of a skip, the first line of a failure."""
    text: str
    """The whole failure as pytest shows it, or empty."""


@dataclass(slots=True)
class TestReport:
    """Everything one attempt wrote about its tests."""

    __test__ = False

    collected: bool = False
    """Whether pytest got as far as a finished collection."""
    collected_need: Need | None = None
    nodeids: tuple[str, ...] = ()
    """The tests that were to run, in order."""
    ends: dict[str, TestEnd] = field(default_factory=dict)
    """By node id; of a test that ran twice the last end counts."""
    running: tuple[str, ...] = ()
    """Tests that began and never ended."""
    finished_exit: int | None = None
    """The exit code pytest had decided on at its own end; None if it never came to that."""
    collect_errors: tuple[tuple[str, str], ...] = ()
    """(node id, text) of everything that could not be collected."""
    refused: str = ""
    """What pytest says is wrong with its arguments, a line for each; empty where it took them."""
    asks: dict[str, Need] = field(default_factory=dict)
    """What each test asks for, by its name in the file; told only where a file is imported for its need."""
    num_unreadable: int = 0
    """Whole lines that are no record."""

    def all_ids(self) -> Iterator[str]:
        """Every test this report knows of, collected ones first and in their order."""
        yield from dict.fromkeys((*self.nodeids, *self.ends, *self.running))

    def outcome_of(self, nodeid: str) -> TestOutcome:
        """How `nodeid` ended, UNFINISHED or UNSTARTED if it never wrote that."""
        if nodeid in self.running:
            return TestOutcome.UNFINISHED
        end = self.ends.get(nodeid)
        return end.outcome if end else TestOutcome.UNSTARTED

    def counts(self) -> TestCounts:
        """Number of tests by outcome."""
        return TestCounts(dict(Counter(self.outcome_of(nodeid) for nodeid in self.all_ids())))

    def skip_reasons(self) -> tuple[str, ...]:
        """Distinct reasons of skipped tests in order of appearance, at most `MAX_SKIP_REASONS`."""
        skips = (end.reason for end in self.ends.values() if end.outcome is TestOutcome.SKIPPED)
        return tuple(dict.fromkeys(skips))[:MAX_SKIP_REASONS]


def read_report(path: str | Path) -> TestReport:
    """What an attempt wrote, as far as it came; an empty report where there is no file.

    Raises ReportError for a file of a newer version, OSError where it cannot be read.
    """
    report = TestReport()
    with suppress(FileNotFoundError), open(path, "rb") as file:
        _read_into(report, file, str(path))
    return report


class ReportTail:
    """Follows a report while it is written: each `poll` gives the records since the one before."""

    def __init__(self, path: str | Path) -> None:
        self._path = path
        self._offset = 0
        self._torn = b""

    def poll(self) -> list[dict[str, Any]]:
        """The new records, of any kind, unchecked; none while the file does not exist.

        Raises OSError where the file is there and cannot be read.
        """
        try:
            with open(self._path, "rb") as file:
                file.seek(self._offset)
                data = file.read()
        except FileNotFoundError:
            return []
        self._offset += len(data)
        *lines, self._torn = (self._torn + data).split(b"\n")
        records = (_record(line) for line in lines)
        return [record for record in records if record is not None]


def _read_into(report: TestReport, file: BinaryIO, path: str) -> None:
    begun: dict[str, None] = {}
    for line in file:
        if not line.endswith(b"\n"):
            break
        record = _record(line)
        if record is None:
            report.num_unreadable += 1
            continue
        if record["k"] == "hello":
            _check_version(record.get("version"), path)
        try:
            _apply(record, report, begun)
        except (KeyError, TypeError, ValueError, OverflowError):
            report.num_unreadable += 1
    report.running = tuple(begun)


def _record(line: bytes) -> dict[str, Any] | None:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return record if isinstance(record, dict) and isinstance(record.get("k"), str) else None


def _apply(record: dict[str, Any], report: TestReport, begun: dict[str, None]) -> None:
    """Fold one record in; where its fields are wrong, raise KeyError, TypeError, ValueError or OverflowError."""
    match record["k"]:
        case "collected":
            nodeids = tuple(_text(nodeid) for nodeid in record["nodeids"])
            report.collected_need = Need.from_json(dict(record["need"]))
            report.nodeids, report.collected = nodeids, True
        case "collect_error":
            report.collect_errors += ((_text(record["id"]), _text(record["text"])),)
        case "asks":
            report.asks = {_text(test): Need.from_json(dict(need)) for test, need in dict(record["by_test"]).items()}
        case "refused":
            report.refused = _text(record["text"])
        case "start":
            begun[_text(record["id"])] = None
        case "end":
            nodeid, seconds = _text(record["id"]), float(record["duration_s"])
            end = TestEnd(
                outcome=TestOutcome(record["outcome"]),
                duration_s=seconds if math.isfinite(seconds) else 0.0,
                reason=_text(record.get("reason", "")),
                text=_text(record.get("text", "")),
            )
            report.ends[nodeid] = end
            begun.pop(nodeid, None)
        case "finish":
            report.finished_exit = int(record["exit"])


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
        remedy="install the same rlharness in the environment of the tests and in the one that runs them",
    )
