"""Find a good order for first fit: simulate orders made by rules, keep the best, improve it a little by trial.

Durations are expectations, and an order tuned to the second against them does worse, once they are off by a tenth,
than the plain rule it was tuned from. So an order is rated by its makespan as expected *and* over a few scenarios in
which every duration is off by as much as its `Job.spread` says; and only orders of well-known durations are improved
by trial at all. The budget is a number of simulations, never a time: the same units give the same order anywhere.
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from harness.core.need import Need
from harness.runner.schedule.first_fit import Job, Table, makespan_s
from harness.runner.schedule.makespan_bounds import TOLERANCE

NUM_SCENARIOS = 8
"""Number of perturbed sets of durations that rate an order, in addition to the expected one."""
MAX_TRIED_SPREAD = 0.3
"""Above this mean `Job.spread` (weighed by GPUs x seconds) orders are chosen by rule alone."""


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


RULES: dict[str, Callable[[Job], tuple[float, ...]]] = {
    "area": lambda job: (-(job.need.gpus or 1) * job.expected_s,),
    "duration": lambda job: (-job.expected_s,),
    "width, duration": lambda job: (-job.need.gpus, -job.expected_s),
    "duration x sqrt(width)": lambda job: (-((job.need.gpus or 1) ** 0.5) * job.expected_s,),
    "duration x width squared": lambda job: (-((job.need.gpus or 1) ** 2) * job.expected_s,),
    "narrow first": lambda job: (job.need.gpus, -job.expected_s),
    "shuffled": lambda job: (random.Random(job.index).random(),),
}
"""Orders by name, each as a sort key. Every one is the best for some suites: area where widths are powers of two,
width where they are odd, narrow first and shuffled where the durations are unknown."""


SHARING_RULES: dict[str, Callable[[Job], tuple[float, ...]]] = {
    "whole GPUs, then memory x duration": lambda job: (
        job.need.shared,
        -job.need.gpus * job.expected_s,
        -job.need.memory_gb * job.expected_s,
    ),
    "whole GPUs, then memory, duration": lambda job: (
        job.need.shared,
        -job.need.gpus * job.expected_s,
        -job.need.memory_gb,
        -job.expected_s,
    ),
    "width, then memory x duration": lambda job: (-job.need.gpus, -job.need.memory_gb * job.expected_s),
}
"""More orders, for units that share GPUs."""


MIN_GAIN_S = 0.1
"""A search for less takes longer than it saves."""


@dataclass(frozen=True, slots=True)
class Found:
    """The order to run."""

    order: tuple[Job, ...]
    makespan_s: float
    """As expected, no duration perturbed."""
    origin: str
    """The rule it comes from, with ", improved" where trials bettered it."""
    num_simulations: int


class OrderSearch:
    """Looks for the order of `jobs` (at least one) with the least makespan.

    Every rule is simulated, then trials until `num_simulations` are spent; the last may spend NUM_SCENARIOS more.
    `make_table` gives a table with everything free. The same arguments find the same order.
    """

    def __init__(
        self, jobs: Sequence[Job], make_table: Callable[[], Table[Any]], *, num_simulations: int, seed: int = 0
    ) -> None:
        self._jobs = tuple(jobs)
        self._make_table = make_table
        self._budget = num_simulations
        self._num_simulations = 0
        self._rng = random.Random(seed)
        # Half of the budget for the rules, at most; where units are many, orders matter less and simulations cost more.
        num_scenarios = num_simulations // (2 * len(RULES)) - 1
        self._scenarios = self._make_scenarios(max(0, min(NUM_SCENARIOS, num_scenarios)))
        self._found, self._baseline = self._best_rule()

    @property
    def found(self) -> Found:
        """The best order so far."""
        order, makespans, origin = self._found
        return Found(order, makespans[0], origin, self._num_simulations)

    def improve(self, bound_s: float) -> None:
        """Move units about in the best order until it reaches `bound_s`, a lower bound, or the budget is spent.

        A move stays if the makespan as expected grows no longer by it, and the mean over the scenarios neither.
        """
        order, makespans, origin = self._found
        if len(order) < 2 or self._mean_spread() > MAX_TRIED_SPREAD:
            return
        while self._num_simulations < self._budget and makespans[0] > bound_s * (1 + TOLERANCE) + MIN_GAIN_S:
            tried = self._moved(order)
            outcome = self._judge(tried, makespans)
            if outcome is not None:
                if self._total(outcome) < self._total(makespans) * (1 - TOLERANCE):
                    origin = f"{self._found[2]}, improved"
                order, makespans = tried, outcome
        self._found = (order, makespans, origin)

    def _make_scenarios(self, num_scenarios: int) -> list[list[float]]:
        """The expected durations, then the perturbed ones; each by `Job.index`."""
        scenarios = []
        for number in range(num_scenarios + 1):
            seconds = [0.0] * (max(job.index for job in self._jobs) + 1)
            for job in self._jobs:
                error = self._rng.lognormvariate(0.0, job.spread) if number else 1.0
                seconds[job.index] = job.expected_s * error
            scenarios.append(seconds)
        return scenarios

    def _best_rule(self) -> tuple[tuple[tuple[Job, ...], list[float], str], list[float]]:
        tried = []
        rules = RULES | SHARING_RULES if any(job.need.shared for job in self._jobs) else RULES
        for name, key in rules.items():
            order = tuple(sorted(self._jobs, key=key))
            tried.append((order, [self._makespan_s(order, seconds) for seconds in self._scenarios], name))
        baseline = tried[0][1]
        return min(tried, key=lambda entry: _relative(entry[1], baseline)), baseline

    def _judge(self, order: tuple[Job, ...], best: list[float]) -> list[float] | None:
        """The makespans of `order` per scenario if they are no worse than `best`; None as soon as they are."""
        makespans: list[float] = []
        limit = self._total(best)
        for seconds in self._scenarios:
            makespans.append(self._makespan_s(order, seconds))
            if makespans[0] > best[0] or self._total(makespans) > limit:
                return None
        return makespans

    def _moved(self, order: tuple[Job, ...]) -> tuple[Job, ...]:
        """`order` with one unit, or two, taken out and put in elsewhere."""
        moved = list(order)
        for _ in range(1 if self._rng.random() < 0.6 else 2):
            job = moved.pop(self._rng.randrange(len(moved)))
            moved.insert(self._rng.randrange(len(moved) + 1), job)
        return tuple(moved)

    def _makespan_s(self, order: tuple[Job, ...], seconds: list[float]) -> float:
        self._num_simulations += 1
        return makespan_s(order, self._make_table(), seconds)

    def _total(self, makespans: list[float]) -> float:
        return _relative(makespans, self._baseline)

    def _mean_spread(self) -> float:
        areas = [(job.need.gpus or 1) * job.expected_s for job in self._jobs]
        weighed = sum(area * job.spread for area, job in zip(areas, self._jobs, strict=True))
        return weighed / sum(areas) if sum(areas) > 0 else 0.0


def _relative(makespans: list[float], baseline: list[float]) -> float:
    """Sum of makespans, each over that of the first rule in the same scenario, so that all scenarios weigh alike."""
    return sum(found / base for found, base in zip(makespans, baseline, strict=False) if base > 0)
