"""The order in which first fit takes the units of a pool: the best of a few sort keys.

Durations are expectations, so each key is simulated as expected and over a few sets of durations that are off by as
much as `Job.spread` says. The number of simulations depends on the units alone, never on time: the same units give the
same order anywhere.
"""

import random
from collections.abc import Callable, Sequence
from typing import Any

from harness.runner.need import Need
from harness.runner.schedule.first_fit import Job, Table, makespan_s

NUM_PERTURBED = 8
"""Most perturbed sets of durations, beside the expected one."""
MAX_SIMULATED_UNITS = 30_000
"""Units of one pool that are simulated, over all keys and sets of durations, beyond one set."""


class FreeCount:
    """A `Table` for interchangeable slots: a count. The need itself serves as the lease.

    For the units of one set of interchangeable GPUs, or of the CPU slots; none of them exclusive.
    """

    def __init__(self, num_places: int) -> None:
        self._num_free = num_places

    def lease(self, need: Need) -> Need | None:
        width = need.gpus or 1
        if width > self._num_free:
            return None
        self._num_free -= width
        return need

    def give_back(self, lease: Need) -> None:
        self._num_free += lease.gpus or 1

    def most_memory_gb(self, need: Need) -> float:
        """No memory is little enough: what was refused was refused for its width."""
        return -1.0


SortKey = Callable[[Job], tuple[float, ...]]
KEYS: tuple[SortKey, ...] = (
    lambda job: (-(job.need.gpus or 1) * job.expected_s,),
    lambda job: (-job.expected_s,),
    lambda job: (-job.need.gpus, -job.expected_s),
    lambda job: (-((job.need.gpus or 1) ** 0.5) * job.expected_s,),
    lambda job: (-((job.need.gpus or 1) ** 2) * job.expected_s,),
    lambda job: (job.need.gpus, -job.expected_s),
    lambda job: (random.Random(job.index).random(),),
)
"""Every one is the best for some suites: area where widths are powers of two, width where they are odd, narrow first
and shuffled where the durations are unknown."""
SHARING_KEYS: tuple[SortKey, ...] = (
    lambda job: (job.need.shared, -job.need.gpus * job.expected_s, -job.need.memory_gb * job.expected_s),
    lambda job: (job.need.shared, -job.need.gpus * job.expected_s, -job.need.memory_gb, -job.expected_s),
    lambda job: (-job.need.gpus, -job.need.memory_gb * job.expected_s),
)
"""More keys, for units that share GPUs."""


def best_order(jobs: Sequence[Job], make_table: Callable[[], Table[Any]]) -> tuple[Job, ...]:
    """Return the order with the least sum of makespans over the sets of durations.

    `make_table` gives a table with everything free. The same arguments give the same order.
    """
    is_shared = any(job.need.shared for job in jobs)
    keys = KEYS + SHARING_KEYS if is_shared else KEYS
    # Where units are many, orders matter less and simulations cost more; so do leases of budgets.
    most_units = MAX_SIMULATED_UNITS // 3 if is_shared else MAX_SIMULATED_UNITS
    num_sets = max(1, min(1 + NUM_PERTURBED, most_units // (len(keys) * max(1, len(jobs)))))
    rng = random.Random(0)
    sets = []
    for number in range(num_sets):
        seconds = [0.0] * (max((job.index for job in jobs), default=-1) + 1)
        for job in jobs:
            seconds[job.index] = job.expected_s * (rng.lognormvariate(0.0, job.spread) if number else 1.0)
        sets.append(seconds)
    orders = [tuple(sorted(jobs, key=key)) for key in keys]
    return min(orders, key=lambda order: sum(makespan_s(order, make_table(), seconds) for seconds in sets))
