"""The one rule of packing: at each moment start, in the order of the queue, every unit that fits.

`Queue` is the rule; the dispatcher asks it for the next unit of the real run, and `simulate` asks it the same against
expected durations, so that a plan is what would happen if the expectations held. No GPU idles while a queued unit
fits, whatever the order: that alone keeps the makespan within (2 - 1/m) of the optimum for m GPUs, and the order, not
the rule, is what `order.best_order` chooses.

No unit starves, since the queue is finite: a wide or exclusive unit that is passed over repeatedly gets its GPUs
at the latest when all other units have ended. `packing.plan` puts exclusive units first, where nothing has to be
drained for them.
"""

import heapq
from bisect import bisect_right, insort
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from heapq import merge
from math import inf
from typing import Generic, Protocol, TypeVar

from harness.runner.need import Need

L = TypeVar("L")


@dataclass(frozen=True, slots=True)
class Job:
    """A unit as packing sees it."""

    index: int
    """Position in the run's list of units; unique."""
    need: Need
    expected_s: float
    spread: float = 0.1
    """Uncertainty of `expected_s`: standard deviation of the logarithm of actual over expected seconds."""


class Table(Protocol[L]):
    """Source of leases: `leases.LeaseTable`, or a count of free GPUs if that is all that matters.

    Once a need was refused it stays refused until something is given back, and so does a need of more memory that is
    equal to it but for that.
    """

    def lease(self, need: Need) -> L | None: ...

    def give_back(self, lease: L, /) -> None: ...

    def most_memory_gb(self, need: Need) -> float:
        """Upper bound of the memory with which `need` could be leased now; -1 if no memory is little enough."""
        ...


Entry = tuple[int, Job]
"""A queued unit with its position: unique, so that entries compare by it; below 0 for units that were put first."""


class _Line:
    """Queued units of one need: they fit or do not fit together."""

    __slots__ = ("_waiting", "head")
    has_one_need = True

    def __init__(self, entries: Iterable[Entry]) -> None:
        """Queue these units, in ascending order."""
        self._waiting = deque(entries)
        self.head: Entry | None = self._waiting[0]
        """The first unit; None without one."""

    def entries(self) -> list[Entry]:
        """All units, in order."""
        return list(self._waiting)

    def pop(self, entry: Entry) -> None:
        """Take out a unit, which is the first of its need."""
        self._waiting.popleft()
        self.head = self._waiting[0] if self._waiting else None

    def put_first(self, entry: Entry) -> bool:
        """Queue a unit before all others; False, and nothing is done, if its need is another one."""
        if self.head and self.head[1].need != entry[1].need:
            return False
        self._waiting.appendleft(entry)
        self.head = entry
        return True

    def drop(self, why: Callable[[Need], str]) -> list[tuple[Entry, str]]:
        """Take out every unit against whose need there is a reason."""
        reason = why(self.head[1].need) if self.head else ""
        dropped = [(entry, reason) for entry in self._waiting] if reason else []
        if dropped:
            self._waiting.clear()
            self.head = None
        return dropped


class _MemoryLine:
    """Queued units whose needs differ in memory alone: where one fits, those that ask for less do too."""

    __slots__ = ("_firsts", "_memories_gb", "_ranks", "_waiting", "head")

    def __init__(self, entries: Iterable[Entry]) -> None:
        """Queue these units, in ascending order."""
        by_memory: dict[float, deque[Entry]] = {}
        for entry in entries:
            by_memory.setdefault(entry[1].need.memory_gb, deque()).append(entry)
        self._memories_gb = sorted(by_memory)
        self._ranks = {memory_gb: rank for rank, memory_gb in enumerate(self._memories_gb)}
        self._waiting = [by_memory[memory_gb] for memory_gb in self._memories_gb]
        # A tree of minima: node n is the first unit below the nodes 2n and 2n + 1; the last nodes are the ranks.
        num_ranks = len(self._waiting)
        self._firsts: list[Entry | None] = [None] * num_ranks + [line[0] for line in self._waiting]
        for node in range(num_ranks - 1, 0, -1):
            self._firsts[node] = _first_of(self._firsts[2 * node], self._firsts[2 * node + 1])
        self.head = self._firsts[1]
        """The first unit; None without one."""

    def entries(self) -> list[Entry]:
        """All units, in order."""
        return sorted(entry for line in self._waiting for entry in line)

    def pop(self, entry: Entry) -> None:
        """Take out a unit, which is the first of its need."""
        rank = self._ranks[entry[1].need.memory_gb]
        self._waiting[rank].popleft()
        self._update(rank)

    def put_first(self, entry: Entry) -> bool:
        """Queue a unit before all others; False, and nothing is done, if no unit has asked for this memory."""
        rank = self._ranks.get(entry[1].need.memory_gb)
        if rank is None:
            return False
        self._waiting[rank].appendleft(entry)
        self._update(rank)
        return True

    def _update(self, rank: int) -> None:
        node = rank + len(self._waiting)
        self._firsts[node] = self._waiting[rank][0] if self._waiting[rank] else None
        while node > 1:
            node >>= 1
            self._firsts[node] = _first_of(self._firsts[2 * node], self._firsts[2 * node + 1])
        self.head = self._firsts[1]

    def drop(self, why: Callable[[Need], str]) -> list[tuple[Entry, str]]:
        """Take out every unit against whose need there is a reason."""
        dropped: list[tuple[Entry, str]] = []
        for line in reversed(self._waiting):
            if line:
                reason = why(line[0][1].need)
                if not reason:
                    break  # nor is there one against those that ask for less
                dropped += [(entry, reason) for entry in line]
        for entry, _ in dropped:
            self.pop(entry)
        return dropped

    def below(self, need: Need, most_gb: float) -> float:
        """The greatest memory of a unit that is at most `most_gb` and less than that of a need; -1 if there is none."""
        rank = min(self._ranks[need.memory_gb], bisect_right(self._memories_gb, most_gb))
        return self._memories_gb[rank - 1] if rank else -1.0

    def first_within(self, most_gb: float) -> Entry | None:
        """The first unit that asks for no more memory than `most_gb`."""
        low = len(self._waiting)
        if most_gb == inf:
            return self.head
        high = low + bisect_right(self._memories_gb, most_gb)
        best: Entry | None = None
        while low < high:  # the nodes of the tree that cover the ranks from `low` to below `high`
            if low & 1:
                best = _first_of(best, self._firsts[low])
                low += 1
            if high & 1:
                high -= 1
                best = _first_of(best, self._firsts[high])
            low, high = low >> 1, high >> 1
        return best


class Queue:
    """Units still to start, first fit first.

    Units of one need fit or do not fit together, and of units that differ in memory alone those that ask for less fit
    if one does. So each kind of need keeps a line of its own, and only units that may fit are tried: a start costs as
    many tries as there are kinds, not units.
    """

    def __init__(self, order: Iterable[Job]) -> None:
        by_need: dict[Need, list[Entry]] = {}  # needs are many times fewer than units: kinds are made of them
        for entry in enumerate(order):
            by_need.setdefault(entry[1].need, []).append(entry)
        by_kind: dict[Need, list[list[Entry]]] = {}
        for need, entries in by_need.items():
            by_kind.setdefault(_kind(need), []).append(entries)
        self._lines: dict[Need, _Line | _MemoryLine] = {
            kind: _Line(lists[0]) if len(lists) == 1 else _MemoryLine(merge(*lists)) for kind, lists in by_kind.items()
        }
        self._num_waiting = sum(map(len, by_need.values()))
        self._next_first = -1

    def __len__(self) -> int:
        return self._num_waiting

    def next(self, table: Table[L]) -> tuple[Job, L] | None:
        """The first queued unit that `table` can serve now, with its lease; None where none fits."""
        return next(self.fitting(table), None)

    def fitting(self, table: Table[L]) -> Iterator[tuple[Job, L]]:
        """Every queued unit that `table` can serve now, one after the other, each with its lease."""
        heads = sorted([(line.head, inf, line) for line in self._lines.values() if line.head])
        place = 0
        while place < len(heads):
            entry, most_gb, line = heads[place]
            lease = table.lease(entry[1].need)
            if lease is None:
                place += 1  # and refused it stays: nothing is given back while we look
                if isinstance(line, _Line):
                    continue
                most_gb = line.below(entry[1].need, min(most_gb, table.most_memory_gb(entry[1].need)))
            else:
                line.pop(entry)
                self._num_waiting -= 1
                del heads[place]
                yield entry[1], lease
            head = line.head if isinstance(line, _Line) else line.first_within(most_gb)
            if head:
                insort(heads, (head, most_gb, line), lo=place)

    def put_first(self, job: Job) -> None:
        """Put a unit that is to run again before all others."""
        kind, entry = _kind(job.need), (self._next_first, job)
        self._next_first -= 1
        self._num_waiting += 1
        line = self._lines.get(kind)
        if line is None:
            self._lines[kind] = _Line([entry])
        elif not line.put_first(entry):
            self._lines[kind] = _MemoryLine([entry, *line.entries()])

    def drop(self, why: Callable[[Need], str]) -> list[tuple[Job, str]]:
        """Take out every unit whose need `why` gives a reason against (`LeaseTable.why_never`), in order.

        Where there is a reason against a need, there is one against those that ask for more memory.
        """
        dropped = sorted(entry for line in self._lines.values() for entry in line.drop(why))
        self._num_waiting -= len(dropped)
        return [(job, reason) for (_, job), reason in dropped]

    def drain(self) -> list[Job]:
        """Take out every unit, in order: the run was cancelled."""
        return [job for job, _ in self.drop(lambda _: "cancelled")]


def _first_of(one: Entry | None, other: Entry | None) -> Entry | None:
    return one if other is None or (one is not None and one[0] < other[0]) else other


def _kind(need: Need) -> Need:
    """The need without what it asks of memory."""
    return need if need.memory_gb == 0 else replace(need, memory_gb=0.0)


@dataclass(frozen=True, slots=True)
class Start(Generic[L]):
    """Start and end of one unit in a simulated schedule, in seconds from the start of the run."""

    job: Job
    lease: L
    start_s: float
    end_s: float


@dataclass(frozen=True, slots=True)
class Schedule(Generic[L]):
    """Schedule that first fit makes of an order."""

    starts: tuple[Start[L], ...]
    """In the order in which the units start."""
    makespan_s: float
    unplaced: tuple[Job, ...]
    """Units the table refused even with everything free."""


def simulate(order: Iterable[Job], table: Table[L], seconds: Sequence[float] | None = None) -> Schedule[L]:
    """Run `order` against `table`, all free at first, in a time of its own.

    `seconds` gives the duration of the unit at each `Job.index`; without it, each lasts as long as expected.
    """
    queue = Queue(order)
    starts = tuple(Start(*start) for start in _starts(queue, table, seconds))
    return Schedule(starts, max((start.end_s for start in starts), default=0.0), tuple(queue.drain()))


def makespan_s(order: Iterable[Job], table: Table[L], seconds: Sequence[float] | None = None) -> float:
    """Seconds from the first start to the last end in `simulate`, without the schedule."""
    return max((end_s for _, _, _, end_s in _starts(Queue(order), table, seconds)), default=0.0)


def _starts(queue: Queue, table: Table[L], seconds: Sequence[float] | None) -> Iterator[tuple[Job, L, float, float]]:
    running: list[tuple[float, int, L]] = []
    num_started = 0
    now_s = 0.0
    while True:
        for job, lease in queue.fitting(table):
            end_s = now_s + (job.expected_s if seconds is None else seconds[job.index])
            heapq.heappush(running, (end_s, num_started, lease))  # the count keeps leases from being compared
            num_started += 1
            yield job, lease, now_s, end_s
        if not running:
            return
        now_s = running[0][0]
        while running and running[0][0] == now_s:
            table.give_back(heapq.heappop(running)[2])
