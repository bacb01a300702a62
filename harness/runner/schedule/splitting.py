"""Decide which test files run in parts, and which tests each part has.

A file is split if it dominates its class (files on GPUs, or files on CPU slots): its expected duration exceeds the
class's area bound: the seconds of all GPUs or CPU slots over their number. Tests that must run in one process
form a group. Groups go to parts longest first, each to the part with the least to do.

Pure: no clock, no machine, no randomness.
"""

import heapq
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import ceil

from harness.bits.findings import FindingCode
from harness.runner.need import Need, merged_need
from harness.runner.report_file import ListedTest
from harness.runner.schedule.leases import LeaseTable

DOMINANT_RATIO = 1.25
DOMINANT_S = 5.0
"""A file dominates if it exceeds the area bound by this ratio and by so many seconds."""
LEAST_PART_S = 1.0
"""Expected seconds of a part, at least, where durations are known."""
LEAST_TESTS = 4
"""Tests of a part, at least, where no duration is known."""
NO_NEED = Need()
MIN_TEST_S = 1e-4


class SplitReason(FindingCode):
    """Why a file is to be split."""

    DOMINATES = "dominates", "it takes {expected_s:.1f} s, and all work spread evenly takes {bound_s:.1f} s"
    FEW_FILES = "few_files", "there are fewer files than GPUs or CPU slots for them, and no duration is known"
    NEEDS_DIFFER = "needs_differ", "its tests need different numbers of GPUs"


@dataclass(frozen=True, slots=True)
class Split:
    """One file that is split, or that would be but for an obstacle."""

    path: str
    reason: SplitReason
    num_parts: int
    """1 for a file that runs whole."""
    expected_s: float
    bound_s: float
    """Area bound of its class."""
    obstacle: str = ""
    """Why the file runs whole; empty for one that is split."""


@dataclass(frozen=True, slots=True)
class FileLoad:
    """A test file as the choice sees it."""

    path: str
    need: Need
    expected_s: float
    is_measured: bool
    """Whether `expected_s` comes from earlier runs of the file."""
    asked_gpus: frozenset[int] = frozenset()
    """Numbers of GPUs for which its tests ask."""
    is_divisible: bool = True
    """Whether the command asks for the whole file, and it can be collected."""
    is_given: bool = False
    """Whether every test has the need of the file, whatever its markers say."""


@dataclass(frozen=True, slots=True)
class TestGroup:
    """Tests that run in one process: those that are tied, or a part of a file."""

    __test__ = False

    nodeids: tuple[str, ...]
    """In the order of the file."""
    need: Need
    seconds: float


def choose_files(files: Sequence[FileLoad], table: LeaseTable) -> dict[str, SplitReason]:
    """Return the files to split, by path, each with the reason."""
    chosen: dict[str, SplitReason] = {}
    for is_gpu in (True, False):
        members = [file for file in files if (file.need.gpus > 0) is is_gpu]
        bound_s = _area_bound_s([(file.need, file.expected_s) for file in members], table, is_gpu=is_gpu)
        is_few = len(members) < _num_slots(table, is_gpu=is_gpu) and not any(file.is_measured for file in members)
        for file in members:
            if file.is_divisible and len(file.asked_gpus - {0}) > 1:
                chosen[file.path] = SplitReason.NEEDS_DIFFER
            elif file.is_divisible and table.at_once(file.need) > 1:
                if file.is_measured and file.expected_s > max(DOMINANT_RATIO * bound_s, bound_s + DOMINANT_S):
                    chosen[file.path] = SplitReason.DOMINATES
                elif is_few:
                    chosen[file.path] = SplitReason.FEW_FILES
    return chosen


def plan_parts(
    files: Sequence[FileLoad],
    reasons: Mapping[str, SplitReason],
    tests: Mapping[str, Sequence[ListedTest]],
    durations_s: Mapping[str, float],
    table: LeaseTable,
) -> dict[str, tuple[Split, list[TestGroup]]]:
    """Return each file to split with its parts; one part, or none, for a file that runs whole.

    `tests` has the tests of the files that could be listed, `durations_s` the tests of known duration.
    """
    groups = {file.path: group_tests(tests.get(file.path, ()), file, durations_s) for file in files}
    groups = {path: found for path, found in groups.items() if found and path in reasons}
    loads = [(file.need, file.expected_s) for file in files if file.path not in groups]
    loads += [(group.need, group.seconds) for found in groups.values() for group in found]
    bounds_s = (_area_bound_s(loads, table, is_gpu=False), _area_bound_s(loads, table, is_gpu=True))
    planned: dict[str, tuple[Split, list[TestGroup]]] = {}
    for file in files:
        if file.path not in reasons:
            continue
        parts: list[TestGroup] = []
        obstacle = "its tests could not be listed before the run"
        if found := groups.get(file.path):
            has_others = sum((each.need.gpus > 0) is (file.need.gpus > 0) for each in files) > 1
            parts = make_parts(found, table, bounds_s, is_measured=file.is_measured, has_others=has_others)
            obstacle = "" if len(parts) > 1 else _obstacle(found, tests[file.path])
        bound_s = bounds_s[file.need.gpus > 0]
        split = Split(file.path, reasons[file.path], max(1, len(parts)), file.expected_s, bound_s, obstacle)
        planned[file.path] = split, parts
    return planned


def group_tests(tests: Sequence[ListedTest], file: FileLoad, durations_s: Mapping[str, float]) -> list[TestGroup]:
    """Return the groups of a file's tests, in the order of their first tests; together they take its `expected_s`.

    A test of unknown duration takes the mean of the others. A test that asks for nothing, in a file whose other tests
    ask for GPUs, has the smallest need among these: so far it had a GPU beside them.
    """
    of_id = {test.nodeid: test for test in reversed(tests)}
    tests = [of_id[nodeid] for nodeid in dict.fromkeys(test.nodeid for test in tests)]
    known_s = [durations_s[test.nodeid] for test in tests if test.nodeid in durations_s]
    mean_s = sum(known_s) / len(known_s) if known_s else 1.0
    seconds = {test.nodeid: max(durations_s.get(test.nodeid, mean_s), MIN_TEST_S) for test in tests}
    scale = file.expected_s / sum(seconds.values()) if seconds else 1.0
    least = min((test.need for test in tests if test.need != NO_NEED), key=_size, default=NO_NEED)
    return [
        TestGroup(
            tuple(test.nodeid for test in members),
            file.need if file.is_given else merged_need([least if t.need == NO_NEED else t.need for t in members]),
            scale * sum(seconds[test.nodeid] for test in members),
        )
        for members in _tied(tests)
    ]


def _tied(tests: Sequence[ListedTest]) -> list[list[ListedTest]]:
    """Sets of tests that are tied to each other, directly or through others; a test without a tie is alone."""
    groups: list[list[ListedTest]] = []
    of_tie: dict[str, list[ListedTest]] = {}
    for test in tests:
        tied = [of_tie[tie] for tie in test.ties if tie in of_tie]
        group = tied[0] if tied else []
        for other in tied[1:]:
            if other is not group:
                group += other
                for each in other:
                    of_tie |= dict.fromkeys(each.ties, group)
                groups = [each for each in groups if each is not other]
        if not tied:
            groups.append(group)
        group.append(test)
        of_tie |= dict.fromkeys(test.ties, group)
    return groups


def _size(need: Need) -> tuple[object, ...]:
    return need.gpus, need.exclusive, not need.shared, need.memory_gb, str(need)


def make_parts(
    groups: Sequence[TestGroup],
    table: LeaseTable,
    bounds_s: tuple[float, float],
    *,
    is_measured: bool,
    has_others: bool,
) -> list[TestGroup]:
    """Return the parts of a file, the one with the largest need that this machine can meet first.

    `bounds_s` are the area bounds of the classes (CPU slots, GPUs). A need has about as many parts as its tests take
    area bounds, twice as many where `has_others`, which fill the gaps; never more than slots, or twice as many.
    """
    by_need: dict[Need, list[TestGroup]] = {}
    for group in groups:
        by_need.setdefault(group.need, []).append(group)
    parts: list[TestGroup] = []
    more = 2 if has_others else 1
    for need in sorted(by_need, key=lambda need: (table.at_once(need) > 0, _size(need)), reverse=True):
        members = by_need[need]
        load_s = sum(group.seconds for group in members)
        bound_s = bounds_s[need.gpus > 0]
        num_wanted = ceil(min(more * load_s / bound_s, len(members)) - 1e-6) if bound_s > 0 else 1
        num_tests = sum(len(group.nodeids) for group in members)
        most = int(load_s / LEAST_PART_S) if is_measured else num_tests // LEAST_TESTS
        at_once = table.at_once(need) * (1 if need.exclusive else more)
        parts += _fill(members, max(1, min(num_wanted, most, at_once, len(members))))
    return parts


def _fill(groups: Sequence[TestGroup], num_parts: int) -> list[TestGroup]:
    """Put groups into parts, longest first, each into the part with the least to do; ties by position."""
    order = {nodeid: place for place, nodeid in enumerate(each for group in groups for each in group.nodeids)}
    heap = [(0.0, number) for number in range(num_parts)]
    taken: list[list[str]] = [[] for _ in heap]
    for group in sorted(groups, key=lambda group: -group.seconds):
        load_s, number = heap[0]
        taken[number] += group.nodeids
        heapq.heapreplace(heap, (load_s + group.seconds, number))
    loads_s = {number: load_s for load_s, number in heap}
    return [
        TestGroup(tuple(sorted(nodeids, key=order.__getitem__)), groups[0].need, loads_s[number])
        for number, nodeids in enumerate(taken)
        if nodeids
    ]


def _obstacle(groups: Sequence[TestGroup], tests: Sequence[ListedTest]) -> str:
    """Why a file with these groups has one part."""
    if sum(len(group.nodeids) for group in groups) < 2:
        return "it has one test"
    if len(groups) > 1:
        return "its parts would take less than 1 s"
    return f"its tests run in one process ({next(tie for test in tests for tie in test.ties)})"


def _num_slots(table: LeaseTable, *, is_gpu: bool) -> int:
    return len(table.gpus) if is_gpu else table.cpu_units


def _area_bound_s(loads: Iterable[tuple[Need, float]], table: LeaseTable, *, is_gpu: bool) -> float:
    """Area bound of a class, from the needs and expected seconds of its units; 0 if none can run."""
    able = ((need, seconds) for need, seconds in loads if (need.gpus > 0) is is_gpu and table.at_once(need))
    area_s = sum(max(need.gpus, 1) * seconds for need, seconds in able)
    return area_s / max(1, _num_slots(table, is_gpu=is_gpu))
