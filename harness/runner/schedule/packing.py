"""Plan a run: the order in which first fit is to take the units, the schedule that makes, and how good it can be.

The units fall into *pools* that never compete: those that need no GPU, and those confined to sets of GPUs that do
not overlap. Each pool is ordered by itself. In front of each stand the units that fit beside no other of their pool;
in front of everything stand the exclusive units. Both lose nothing there: whatever the schedule, cutting such a unit
out of it leaves a schedule of the others that is shorter by its length, so the best makespan is its length plus the
best of the others, wherever it stands. And at the start nothing has to be drained for it, it cannot be starved, and
no GPU is idle that another unit could use.

Pure: no clock, no machine.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from harness.machine.inventory import Gpu
from harness.runner.need import Need
from harness.runner.schedule.first_fit import Job, Queue, Schedule, Table, makespan_s, simulate
from harness.runner.schedule.gpu_choice import GpuChoice
from harness.runner.schedule.leases import Lease, LeaseTable
from harness.runner.schedule.makespan_bounds import Bound, lower_bound, run_alone
from harness.runner.schedule.order import FreeCount, best_order

__all__ = ["Job", "Placement", "Plan", "Queue", "Schedule", "makespan_s", "plan", "simulate", "start_first"]


@dataclass(frozen=True, slots=True)
class Placement:
    """Where and when the plan runs one unit; seconds from the start of the run."""

    index: int
    gpu_ids: tuple[str, ...]
    """Empty for a unit on a CPU slot."""
    start_s: float
    end_s: float
    exclusive: bool = False


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
    bound: Bound
    never: tuple[tuple[int, str], ...]
    """Units that no lease can serve, and why; they have no placement and no part in the bound."""


def plan(jobs: Sequence[Job], table: LeaseTable) -> Plan:
    """Return the best order found for `jobs` on the GPUs and CPU slots of `table`, leased or not.

    The same arguments give the same plan.
    """
    table = table.fresh()
    needs: dict[Need, Need] = {}  # one object for equal needs: they are looked up a million times below
    jobs = [replace(job, need=needs.setdefault(job.need, job.need)) for job in jobs]
    never = [(job, why) for job in jobs if (why := table.why_never(job.need))]
    barred = {job.index for job, _ in never}
    able = [job for job in jobs if job.index not in barred]
    exclusive = sorted((job for job in able if job.need.exclusive), key=lambda job: -job.expected_s)
    pools = _split([job for job in able if not job.need.exclusive], table.choice)
    in_pools = [job for gpus, members in pools for job in _pool_order(members, gpus, table)]
    order = (*exclusive, *in_pools, *(job for job, _ in never))
    schedule = simulate(order, table)
    assert len(schedule.unplaced) == len(never), f"these do not fit, for an unknown reason: {schedule.unplaced}"
    return Plan(
        order,
        _placements(schedule),
        table.choice.gpus,
        schedule.makespan_s,
        lower_bound(able, table),
        tuple((job.index, why) for job, why in never),
    )


def start_first(made: Plan, indexes: frozenset[int], table: LeaseTable) -> Plan:
    """Return the plan with these units before all others, each part in the order that the plan has."""
    if not indexes:
        return made
    order = tuple(sorted(made.order, key=lambda job: job.index not in indexes))
    schedule = simulate(order, table.fresh())
    return replace(made, order=order, placements=_placements(schedule), makespan_s=schedule.makespan_s)


def _placements(schedule: Schedule[Lease]) -> tuple[Placement, ...]:
    return tuple(
        Placement(start.job.index, start.lease.gpu_ids, start.start_s, start.end_s, start.lease.exclusive)
        for start in schedule.starts
    )


def _split(jobs: Sequence[Job], choice: GpuChoice) -> list[tuple[int, list[Job]]]:
    """The pools: units whose GPUs overlap, directly or through others, with all these GPUs; 0 for the CPU places."""
    pools: list[tuple[int, list[Job]]] = []
    for job in jobs:
        gpus = choice.eligible(job.need)
        members: list[Job] = []
        apart = []
        for other_gpus, others in pools:
            if other_gpus & gpus or other_gpus == gpus:
                gpus |= other_gpus
                members = others + members if members else others
            else:
                apart.append((other_gpus, others))
        members.append(job)
        pools = [*apart, (gpus, members)]
    return sorted(pools, key=lambda pool: (pool[0] == 0, pool[0]))


def _pool_order(jobs: list[Job], gpus: int, table: LeaseTable) -> tuple[Job, ...]:
    """Order the units of one pool, those that fit beside no other first."""
    alone: tuple[Job, ...] = ()
    make_table: Callable[[], Table[Any]] = table.fresh
    if all(gpus == 0 or table.choice.is_interchangeable(job.need, gpus) for job in jobs):
        num_places = gpus.bit_count() if gpus else table.cpu_units
        alone = tuple(jobs[i] for i in run_alone([job.need.gpus or 1 for job in jobs], num_places))
        make_table = partial(FreeCount, num_places)
    apart = {job.index for job in alone}
    return alone + best_order([job for job in jobs if job.index not in apart], make_table)
