"""The one rule of packing: at each moment start, in the order of the queue, every unit that fits.

`Queue` is the rule; the dispatcher asks it for the next unit of the real run, and `simulate` asks it the same against
expected durations, so that a plan is what would happen if the expectations held. No GPU idles while a queued unit
fits, whatever the order: that alone keeps the makespan within (2 - 1/m) of the optimum for m GPUs, and the order, not
the rule, is what `order_search` improves.

No unit starves, since the queue is finite: a wide or exclusive unit that is passed over repeatedly gets its GPUs
at the latest when all other units have ended. `packing.plan` puts exclusive units first, where nothing has to be
drained for them.
"""

import heapq
from bisect import insort
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from harness.core.need import Need

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

    Once a need was refused it stays refused until something is given back.
    """

    def lease(self, need: Need) -> L | None: ...

    def give_back(self, lease: L, /) -> None: ...


class Queue:
    """Units still to start, first fit first.

    Units of equal need fit or do not fit together, so each need keeps a line of its own and only the heads of the
    lines are tried: a start costs as many tries as there are distinct needs, not units.
    """

    def __init__(self, order: Iterable[Job]) -> None:
        lines: dict[Need, deque[tuple[int, Job]]] = {}
        self._num_waiting = 0
        for position, job in enumerate(order):
            lines.setdefault(job.need, deque()).append((position, job))
            self._num_waiting += 1
        # Insertion order of a dictionary is ascending position of the first job of each line.
        self._heads = [(line[0][0], need, line) for need, line in lines.items()]

    def __len__(self) -> int:
        return self._num_waiting

    def next(self, table: Table[L]) -> tuple[Job, L] | None:
        """The first queued unit that `table` can serve now, with its lease; None where none fits."""
        return next(self.fitting(table), None)

    def fitting(self, table: Table[L]) -> Iterator[tuple[Job, L]]:
        """Every queued unit that `table` can serve now, one after the other, each with its lease."""
        place = 0
        while place < len(self._heads):
            _, need, line = self._heads[place]
            lease = table.lease(need)
            if lease is None:
                place += 1  # and refused it stays: nothing is given back while we look
                continue
            _, job = line.popleft()
            del self._heads[place]
            if line:
                insort(self._heads, (line[0][0], need, line), key=_position)
            self._num_waiting -= 1
            yield job, lease

    def put_first(self, job: Job) -> None:
        """Put a unit that is to run again before all others."""
        position = min((head[0] for head in self._heads), default=0) - 1
        line = next((line for _, need, line in self._heads if need == job.need), deque[tuple[int, Job]]())
        line.appendleft((position, job))
        others = [head for head in self._heads if head[1] != job.need]
        self._heads = [(position, job.need, line), *others]
        self._num_waiting += 1

    def drop(self, why: Callable[[Need], str]) -> list[tuple[Job, str]]:
        """Take out every unit whose need `why` gives a reason against (`LeaseTable.why_never`), in order."""
        dropped: list[tuple[int, Job, str]] = []
        for head in list(self._heads):
            _, need, line = head
            reason = why(need)
            if reason:
                dropped += [(position, job, reason) for position, job in line]
                self._heads.remove(head)
        self._num_waiting -= len(dropped)
        return [(job, reason) for _, job, reason in sorted(dropped, key=lambda entry: entry[0])]

    def drain(self) -> list[Job]:
        """Take out every unit, in order: the run was cancelled."""
        return [job for job, _ in self.drop(lambda _: "cancelled")]


def _position(head: tuple[int, Need, deque[tuple[int, Job]]]) -> int:
    return head[0]


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
