"""Plan a run: the order in which first fit takes the units, the schedule that it makes, and a bound of its length.

First fit: at each moment start, in the order of the queue, every unit that fits. `Queue` is that rule; the dispatcher
asks it for the next unit of the real run, and `simulate` asks it the same against expected durations. No GPU idles
while a queued unit fits, whatever the order: that alone keeps the makespan within (2 - 1/m) of the optimum for m GPUs.

Exclusive units come first, where no GPU has to be drained for them. The others are sorted by area (GPUs x expected
seconds), by GPUs or by seconds, whichever order has the shortest schedule: area alone takes 1.02 times the lower bound
on average, the best of the three 1.01 times (tests/benchmarks/packing.py). No unit starves, since the queue is finite:
a wide unit that is passed over gets its GPUs at the latest at the end.

Pure: no clock, no machine.

Sharding divides the units among machines: the longest unit goes first onto the shard with the least expected time so
far. The result depends on the paths, their expected durations and the number of shards alone.
"""

import hashlib
import heapq
import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from harness.bits.errors import UsageError
from harness.machine.inventory import Gpu
from harness.runner.need import Need
from harness.runner.schedule.leases import Lease, LeaseTable

TOLERANCE = 1e-9
"""Relative difference below which two spans of time count as equal."""


@dataclass(frozen=True, slots=True)
class Job:
    """A unit as packing sees it."""

    index: int
    """Position in the run's list of units; unique."""
    need: Need
    expected_s: float


class Queue:
    """Units still to start, first fit first.

    Units of one need fit or do not fit together, so each need has a line, and a start tries the heads of the lines.
    """

    def __init__(self, order: Iterable[Job]) -> None:
        self._lines: dict[Need, deque[tuple[int, Job]]] = {}
        """Units by need, each with its position; below 0 for units that were put first."""
        for position, job in enumerate(order):
            self._lines.setdefault(job.need, deque()).append((position, job))
        self._next_first = -1

    def __len__(self) -> int:
        return sum(map(len, self._lines.values()))

    def next(self, table: LeaseTable) -> tuple[Job, Lease] | None:
        """The first queued unit that `table` can serve now, with its lease; None where none fits."""
        for line in sorted(filter(None, self._lines.values()), key=lambda line: line[0][0]):
            if lease := table.lease(line[0][1].need):
                return line.popleft()[1], lease
        return None

    def next_width(self) -> int:
        """Return the GPUs of the unit that is first in the queue; 0 without one."""
        heads = [line[0] for line in self._lines.values() if line]
        return min(heads, key=lambda head: head[0])[1].need.gpus if heads else 0

    def put_first(self, job: Job) -> None:
        """Put a unit that is to run again before all others."""
        self._lines.setdefault(job.need, deque()).appendleft((self._next_first, job))
        self._next_first -= 1

    def drop(self, why: Callable[[Need], str]) -> list[tuple[Job, str]]:
        """Take out every unit against whose need `why` gives a reason (`LeaseTable.why_never`), in order."""
        dropped = []
        for need in list(self._lines):
            if reason := why(need):
                dropped += [(*entry, reason) for entry in self._lines.pop(need)]
        return [(job, reason) for _, job, reason in sorted(dropped, key=lambda entry: entry[0])]

    def drain(self) -> list[Job]:
        """Take out every unit, in order: the run was cancelled."""
        return [job for job, _ in self.drop(lambda _: "cancelled")]


@dataclass(frozen=True, slots=True)
class Placement:
    """Where and when a schedule runs one unit; seconds from the start of the run."""

    index: int
    gpu_ids: tuple[str, ...]
    """Empty for a unit on a CPU slot."""
    start_s: float
    end_s: float
    exclusive: bool = False


def simulate(order: Iterable[Job], table: LeaseTable, seconds: Sequence[float] | None = None) -> Iterator[Placement]:
    """Yield the placements that first fit makes of an order, as units start; `table` has everything free.

    `seconds` gives the duration of the unit at each `Job.index`; without it, each lasts as long as expected. Units
    that the table can never serve have no placement.
    """
    queue, running, now_s = Queue(order), list[tuple[float, int, Lease]](), 0.0
    while True:
        while found := queue.next(table):
            job, lease = found
            end_s = now_s + (job.expected_s if seconds is None else seconds[job.index])
            heapq.heappush(running, (end_s, job.index, lease))  # the index keeps leases from being compared
            yield Placement(job.index, lease.gpu_ids, now_s, end_s, lease.exclusive)
        if not running:
            return
        now_s = running[0][0]
        while running and running[0][0] == now_s:
            table.give_back(heapq.heappop(running)[2])


def makespan_s(placements: Iterable[Placement]) -> float:
    """Seconds from the start of the run to the last end."""
    return max((placement.end_s for placement in placements), default=0.0)


@dataclass(frozen=True, slots=True)
class Plan:
    """Schedule of a run in which every unit lasts as long as expected."""

    order: tuple[Job, ...]
    """What to give to `Queue`; those of `never` at its end, for `Queue.drop` to find."""
    placements: tuple[Placement, ...]
    """In the order in which the units start."""
    gpus: tuple[Gpu, ...]
    """The GPUs it was made for, by index."""
    makespan_s: float
    bound: "Bound"
    never: tuple[tuple[int, str], ...]
    """Units that no lease can serve, and why; they have no placement and no part in the bound."""


SORT_KEYS: tuple[Callable[[Job], tuple[float, ...]], ...] = (
    lambda job: (-(job.need.gpus or 1) * job.expected_s,),
    lambda job: (-job.need.gpus, -job.expected_s),
    lambda job: (-job.expected_s,),
)


def plan(jobs: Sequence[Job], table: LeaseTable, first: frozenset[int] = frozenset()) -> Plan:
    """Return the best plan found for `jobs` on the GPUs and CPU slots of `table`, leased or not.

    The units whose index is in `first` come before all others. The same arguments give the same plan.
    """
    table = table.fresh()
    never = {job.index: why for job in jobs if (why := table.why_never(job.need))}
    able = [job for job in jobs if job.index not in never]
    order: list[Job] = []
    placements: tuple[Placement, ...] = ()
    for key in SORT_KEYS:
        jobs_by_key = sorted(able, key=lambda job: (job.index not in first, not job.need.exclusive, key(job)))
        found = tuple(simulate(jobs_by_key, table.fresh()))
        if not placements or makespan_s(found) < makespan_s(placements):
            order, placements = jobs_by_key, found
    order += [job for job in jobs if job.index in never]
    length_s, bound = makespan_s(placements), lower_bound(able, table)
    return Plan(tuple(order), placements, table.gpus, length_s, bound, tuple(never.items()))


# ---- the lower bound: no schedule ends sooner, so a plan that reaches it is optimal


class Term(StrEnum):
    """Reason of a bound; its value is the text for the user."""

    NOTHING = "no file to run"
    LONGEST = "the longest file"
    AREA = "all the work shared evenly"
    ONE_AT_A_TIME = "files of which no two can run at the same time"
    BESIDE = "one file and those that cannot run at the same time"


@dataclass(frozen=True, slots=True)
class Bound:
    """A lower bound of the makespan and what sets it."""

    value_s: float
    term: Term
    num_places: int = 0
    """Size of the set of GPUs, or of CPU slots, that sets the bound; 0 if exclusive units alone do."""
    is_cpu: bool = False
    exclusive_s: float = 0.0
    """Part of `value_s` in which exclusive units have the machine."""


def lower_bound(jobs: Sequence[Job], table: LeaseTable) -> Bound:
    """Return the greatest simple bound for `jobs` on the GPUs and CPU slots of `table`, leased or not.

    Taken over the CPU slots and every set of GPUs to which some unit is confined. Units that can never run (see
    `LeaseTable.why_never`) must be left out.
    """
    exclusive_s = sum(job.expected_s for job in jobs if job.need.exclusive)
    confined = [(job, table.eligible(job.need)) for job in jobs if not job.need.exclusive]
    sets = {gpu_ids for _, gpu_ids in confined}
    best = Bound(exclusive_s, Term.ONE_AT_A_TIME if exclusive_s else Term.NOTHING, exclusive_s=exclusive_s)
    for gpu_ids in sorted({*sets, frozenset().union(*sets)}, key=sorted):
        members = [job for job, own in confined if own == gpu_ids or (own and own < gpu_ids)]
        num_places = len(gpu_ids) or table.cpu_units
        memory_gb = max((gpu.memory_gb for gpu in table.gpus if gpu.gpu_id in gpu_ids), default=0.0)
        for term, seconds in _terms(members, num_places, memory_gb):
            if exclusive_s + seconds > best.value_s * (1 + TOLERANCE):  # of equal terms, the first is named
                best = Bound(exclusive_s + seconds, term, num_places, not gpu_ids, exclusive_s)
    return best


def _terms(jobs: Sequence[Job], num_places: int, memory_gb: float) -> Iterator[tuple[Term, float]]:
    """Bounds for units of one set of GPUs, or of the CPU slots: the reason and the seconds."""
    wide: list[Job] = []
    longest_s: dict[int, float] = {}  # of the others, by width
    for job in jobs:
        width = job.need.gpus or 1
        if 2 * width > num_places and not job.need.shared:
            wide.append(job)
        else:
            longest_s[width] = max(longest_s.get(width, 0.0), job.expected_s)
    for width, own_s in longest_s.items():
        beside_s = sum(other.expected_s for other in wide if other.need.gpus > num_places - width)
        yield Term.BESIDE if beside_s else Term.LONGEST, beside_s + own_s
    yield Term.LONGEST if len(wide) == 1 else Term.ONE_AT_A_TIME, sum(job.expected_s for job in wide)
    shares = [job.need.memory_gb / memory_gb if job.need.shared else job.need.gpus or 1 for job in jobs]
    area_s = sum(share * job.expected_s for share, job in zip(shares, jobs, strict=True))
    yield Term.AREA, area_s / max(num_places, 1)


_SHARD = re.compile(r"([0-9]{1,6})/([0-9]{1,6})", re.ASCII)
_DIGITS = 12


@dataclass(frozen=True, slots=True)
class Shard:
    """One shard of several: number 2 of 8 is `2/8`."""

    number: int
    """From 1 to `count`."""
    count: int

    def __str__(self) -> str:
        return f"{self.number}/{self.count}"


@dataclass(frozen=True, slots=True)
class ShardPlan:
    """The shard that a run was given, and what it is a shard of."""

    number: int
    count: int
    num_suite_units: int
    """Number of units in all shards together."""
    partition: str
    """Digest of the assignment of all units; shards of one suite fit together only if it is equal."""


def parse_shard(text: str) -> Shard:
    """Return the shard that `K/N` names; raises UsageError for anything else."""
    found = _SHARD.fullmatch(text)
    shard = Shard(int(found[1]), int(found[2])) if found else None
    if shard is None or not 1 <= shard.number <= shard.count:
        raise UsageError(
            f"--shard {text or repr(text)}",
            legal="K/N with 1 <= K <= N, for example 2/8",
            remedy="give the number of this shard, then the number of all shards: --shard 1/4 to --shard 4/4",
        )
    return shard


def assign_shards(expected_s: Mapping[str, float], count: int) -> dict[str, int]:
    """Return the number of the shard of each path, from 1 to `count`, given its expected seconds.

    Equal durations are taken in the order of the paths. Of equally loaded shards the one with fewer units comes first.
    """
    loads = [(0, 0, number) for number in range(1, count + 1)]
    assigned = {}
    for path in sorted(expected_s, key=lambda path: (-_milliseconds(expected_s[path]), path)):
        load_ms, num_units, number = loads[0]
        assigned[path] = number
        heapq.heapreplace(loads, (load_ms + _milliseconds(expected_s[path]), num_units + 1, number))
    return assigned


def plan_shard(expected_s: Mapping[str, float], shard: Shard) -> tuple[frozenset[str], ShardPlan]:
    """Return the paths that `shard` runs, and what it is a part of."""
    assigned = assign_shards(expected_s, shard.count)
    digest = hashlib.sha256(str(shard.count).encode())
    for path in sorted(assigned):
        digest.update(f"\n{assigned[path]} {path}".encode("utf-8", "backslashreplace"))
    paths = frozenset(path for path, number in assigned.items() if number == shard.number)
    return paths, ShardPlan(shard.number, shard.count, len(assigned), digest.hexdigest()[:_DIGITS])


def _milliseconds(seconds: float) -> int:
    """Whole milliseconds: sums of integers do not depend on their order."""
    return round(seconds * 1000)
