"""Decide which test files run in parts, and which tests each part has.

A file is split if it dominates its class (files on GPUs, or files on CPU slots): its expected duration exceeds the
class's area bound: the seconds of all GPUs or CPU slots over their number. Tests that must run in one process
form a group. Groups go to parts longest first, each to the part with the least to do.

Pure: no clock, no machine, no randomness.
"""

import heapq
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil

from harness.bits.findings import FindingCode
from harness.runner.need import Need
from harness.runner.report_file import ListedTest

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


class Obstacle(FindingCode):
    """Why a file that is to be split runs whole."""

    ONE_TEST = "one_test", "it has one test"
    TIED = "tied", "its tests run together"  # the detail is the tie
    SHORT = "short", "its parts would take less than 1 s"
    NOT_COLLECTED = "not_collected", "its tests could not be listed before the run"


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
    obstacle: Obstacle | None = None
    detail: str = ""
    """The tie, for TIED: see `harness.runner.sessions.parts`."""


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


@dataclass(frozen=True, slots=True)
class Slots:
    """The GPUs and CPU slots of a run."""

    num_gpus: int
    cpu_units: int
    num_eligible: Callable[[Need], int]
    """Number of GPUs that meet a need."""

    def at_once(self, need: Need) -> int:
        """How many units of `need` can run side by side; 0 where none ever can."""
        if need.gpus == 0:
            return min(1, self.cpu_units) if need.exclusive else self.cpu_units
        num_units = self.num_eligible(need) // need.gpus
        return min(1, num_units) if need.exclusive else num_units

    def bound_s(self, loads: Iterable[tuple[Need, float]], *, is_gpu: bool) -> float:
        """Area bound of a class, from the needs and expected seconds of its units; 0 if none can run."""
        num_slots = self.num_gpus if is_gpu else self.cpu_units
        able = ((need, seconds) for need, seconds in loads if (need.gpus > 0) is is_gpu and self.at_once(need))
        area_s = sum(max(need.gpus, 1) * seconds for need, seconds in able)
        return area_s / num_slots if num_slots else 0.0


def choose_files(files: Sequence[FileLoad], slots: Slots) -> dict[str, SplitReason]:
    """Return the files to split, by path, each with the reason."""
    chosen: dict[str, SplitReason] = {}
    for is_gpu in (True, False):
        members = [file for file in files if (file.need.gpus > 0) is is_gpu]
        bound_s = slots.bound_s([(file.need, file.expected_s) for file in members], is_gpu=is_gpu)
        is_known = any(file.is_measured for file in members)
        has_idle_slots = len(members) < (slots.num_gpus if is_gpu else slots.cpu_units)
        for file in members:
            if reason := _reason(file, bound_s, slots, is_few=has_idle_slots and not is_known):
                chosen[file.path] = reason
    return chosen


def _reason(file: FileLoad, bound_s: float, slots: Slots, *, is_few: bool) -> SplitReason | None:
    if not file.is_divisible:
        return None
    if len(file.asked_gpus - {0}) > 1:
        return SplitReason.NEEDS_DIFFER
    if slots.at_once(file.need) < 2:
        return None
    if file.is_measured and file.expected_s > max(DOMINANT_RATIO * bound_s, bound_s + DOMINANT_S):
        return SplitReason.DOMINATES
    return SplitReason.FEW_FILES if is_few else None


@dataclass(frozen=True, slots=True)
class Group:
    """Tests that run in one process."""

    nodeids: tuple[str, ...]
    """In the order of the file."""
    need: Need
    seconds: float
    ties: tuple[str, ...] = ()
    """Ties of its tests, in order of appearance."""


@dataclass(frozen=True, slots=True)
class PartPlan:
    """One part of a file."""

    nodeids: tuple[str, ...]
    """In the order of the file."""
    need: Need
    seconds: float


def group_tests(
    tests: Sequence[ListedTest], need: Need, expected_s: float, durations_s: Mapping[str, float], *, is_given: bool
) -> list[Group]:
    """Return the groups of a file's tests, in the order of their first tests; together they take `expected_s`.

    `durations_s` holds the tests of known duration; the others take the mean of these. Where `is_given`, every test
    has the `need` of the file. A test that asks for nothing, in a file whose other tests ask for GPUs, has the smallest
    need among these: so far it had a GPU beside them.
    """
    known_s = [durations_s[test.nodeid] for test in tests if test.nodeid in durations_s]
    mean_s = max(sum(known_s) / len(known_s), MIN_TEST_S) if known_s else 1.0
    asked = [test.need for test in tests if test.need != NO_NEED]
    least = min(asked, key=_size) if asked else NO_NEED
    of_id: dict[str, ListedTest] = {}
    for test in tests:
        of_id.setdefault(test.nodeid, test)
    own = {each: least if test.need == NO_NEED else test.need for each, test in of_id.items()}
    seconds = {each: max(durations_s.get(each, mean_s), MIN_TEST_S) for each in of_id}
    scale = expected_s / sum(seconds.values()) if seconds else 1.0
    return [
        Group(
            nodeids,
            need if is_given else _merged([own[each] for each in nodeids]),
            scale * sum(seconds[each] for each in nodeids),
            tuple(dict.fromkeys(tie for each in nodeids for tie in of_id[each].ties)),
        )
        for nodeids in _tied(list(of_id.values()))
    ]


def _tied(tests: Sequence[ListedTest]) -> list[tuple[str, ...]]:
    """Node ids of the tests that are tied to each other, directly or through others."""
    leader = list(range(len(tests)))

    def find(number: int) -> int:
        while leader[number] != number:
            leader[number] = number = leader[leader[number]]
        return number

    first: dict[str, int] = {}
    for number, test in enumerate(tests):
        for tie in test.ties:
            one, other = find(number), find(first.setdefault(tie, number))
            leader[max(one, other)] = min(one, other)
    members: dict[int, list[str]] = {}
    for number, test in enumerate(tests):
        members.setdefault(find(number), []).append(test.nodeid)
    return [tuple(nodeids) for nodeids in members.values()]


def _size(need: Need) -> tuple[int, bool, bool, float, tuple[int, int], str]:
    return need.gpus, need.exclusive, not need.shared, need.memory_gb, need.min_capability or (0, 0), need.model or ""


def _merged(needs: Sequence[Need]) -> Need:
    """The need that satisfies each of these; one file has one model."""
    exclusive = any(need.exclusive for need in needs)
    on_gpus = [need for need in needs if need.gpus]
    return Need(
        gpus=max(need.gpus for need in needs),
        memory_gb=max(need.memory_gb for need in needs),
        model=next((need.model for need in needs if need.model), None),
        min_capability=max((need.min_capability for need in needs if need.min_capability), default=None),
        exclusive=exclusive,
        shared=bool(on_gpus) and all(need.shared for need in on_gpus) and not exclusive,
    )


def make_parts(
    groups: Sequence[Group], slots: Slots, bounds_s: tuple[float, float], *, is_measured: bool, has_others: bool
) -> list[PartPlan]:
    """Return the parts of a file, the one with the largest need that this machine can meet first.

    `bounds_s` are the area bounds of the classes (CPU slots, GPUs). A need has about as many parts as its tests take
    area bounds, twice as many where `has_others`, which fill the gaps; never more than slots, or twice as many.
    """
    by_need: dict[Need, list[Group]] = {}
    for group in groups:
        by_need.setdefault(group.need, []).append(group)
    parts: list[PartPlan] = []
    more = 2 if has_others else 1
    for need in sorted(by_need, key=lambda need: (slots.at_once(need) > 0, _size(need)), reverse=True):
        members = by_need[need]
        load_s = sum(group.seconds for group in members)
        bound_s = bounds_s[need.gpus > 0]
        num_wanted = ceil(min(more * load_s / bound_s, len(members)) - 1e-6) if bound_s > 0 else 1
        num_tests = sum(len(group.nodeids) for group in members)
        most = int(load_s / LEAST_PART_S) if is_measured else num_tests // LEAST_TESTS
        at_once = slots.at_once(need) * (1 if need.exclusive else more)
        parts += _fill(members, max(1, min(num_wanted, most, at_once, len(members))))
    return parts


def _fill(groups: Sequence[Group], num_parts: int) -> list[PartPlan]:
    """Put groups into parts, longest first, each into the part with the least to do; ties by position."""
    order = {nodeid: place for place, nodeid in enumerate(each for group in groups for each in group.nodeids)}
    heap = [(0.0, 0, number) for number in range(num_parts)]
    taken: list[list[Group]] = [[] for _ in heap]
    for group in sorted(groups, key=lambda group: -group.seconds):
        load_s, num_groups, number = heapq.heappop(heap)
        taken[number].append(group)
        heapq.heappush(heap, (load_s + group.seconds, num_groups + 1, number))
    return [
        PartPlan(
            tuple(sorted((nodeid for group in members for nodeid in group.nodeids), key=order.__getitem__)),
            members[0].need,
            sum(group.seconds for group in members),
        )
        for members in taken
        if members
    ]


def obstacle_of(split: Split, groups: Sequence[Group]) -> Split:
    """Return the split of a file that has one part, with the obstacle."""
    num_tests = sum(len(group.nodeids) for group in groups)
    if num_tests < 2:
        return replace(split, obstacle=Obstacle.ONE_TEST)
    if len(groups) == 1:
        return replace(split, obstacle=Obstacle.TIED, detail=next(iter(groups[0].ties), ""))
    return replace(split, obstacle=Obstacle.SHORT)
