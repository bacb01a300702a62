"""What runs of two sides cost, and whether one costs more than noise explains. Pure.

    of a run, a phase:     the median over its steps, the first left out: it warms up
    of a side:             the median over its runs, which alternate with those of the other side
    noise:                 1.4826 times the median distance of all runs from the median of their side
    more than noise:       over 3 of it; of all pairs of a run of the base and one of the head, at most a fifth is
                           opposite (Mann and Whitney's U: none of four, seven of thirty-six); and the quickest run
                           of the head is over the limit beside the quickest of the base

Other work on a machine makes runs slower and never quicker: a quick one shows what they take. The factor makes of a
median distance what a standard deviation would be of a normal distribution. Medians, since a machine that is busy for a
moment makes some steps slow and none fast, and one run of six may be such a moment. A phase that is less than a
twentieth of the step on both sides is part of the step, and not compared by itself.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import NamedTuple

SECONDS, MEMORY = "seconds", "memory_gb"
STEP, RUN = "step", "run"
"""Names beside those of phases: the sum over phases; the whole run, from its start to its end."""
NORMAL = 1.4826
NUM_NOISES = 3.0
MAX_CONTRADICTING = 0.2
"""Of the pairs of runs of both sides."""
LEAST_SHARE = 0.05
LEAST_RUNS = 2
"""Runs of a side: a single run does not show the noise."""


@dataclass(frozen=True, slots=True)
class RunCosts:
    """What one run cost."""

    run_s: float
    """From its start to its end."""
    seconds: Mapping[str, float] = field(default_factory=dict)
    """Duration of a step, by phase and as STEP; empty if the entry reports none."""
    memory_gb: Mapping[str, float] = field(default_factory=dict)
    """The peak, by phase."""


class Limits(NamedTuple):
    """Ratios from which on it is too much."""

    slowdown: float = 1.25
    memory: float = 1.25


@dataclass(frozen=True, slots=True)
class CostChange:
    """One cost of both sides."""

    kind: str
    """SECONDS or MEMORY."""
    name: str
    """A phase, STEP or RUN."""
    base: float
    head: float
    noise: float
    """In the same unit; infinite where there are too few runs."""
    is_beyond_noise: bool
    is_over_limit: bool
    """The ratio alone."""

    @property
    def ratio(self) -> float:
        """Of the head to the base; 1 where there is no cost at all."""
        if self.base > 0:
            return self.head / self.base
        return 1.0 if self.head <= 0 else float("inf")

    @property
    def is_too_much(self) -> bool:
        """Over its limit, and more than noise explains."""
        return self.is_over_limit and self.is_beyond_noise


def costs_of_run(run_s: float, steps: Iterable[Mapping[str, float]]) -> RunCosts:
    """The costs of a run from those of its steps: names are `seconds/PHASE` and `memory_gb/PHASE`, others count not."""
    seconds: dict[str, list[float]] = {}
    memory: dict[str, float] = {}
    for values in steps:
        told = {name.removeprefix("seconds/"): x for name, x in values.items() if name.startswith("seconds/")}
        for name, value in (told | ({STEP: sum(told.values())} if told else {})).items():
            seconds.setdefault(name, []).append(value)
        for name, value in values.items():
            if name.startswith("memory_gb/"):
                phase = name.removeprefix("memory_gb/")
                memory[phase] = max(memory.get(phase, 0.0), value)
    return RunCosts(run_s, {name: median(each[1:] or each) for name, each in seconds.items()}, memory)


def compare_costs(base: Sequence[RunCosts], head: Sequence[RunCosts], limits: Limits) -> tuple[CostChange, ...]:
    """Compare every cost that runs of both sides report: the whole run, the step, its phases, and memory by phase."""
    found = [_change(SECONDS, RUN, [each.run_s for each in base], [each.run_s for each in head], limits.slowdown)]
    for kind, limit in ((SECONDS, limits.slowdown), (MEMORY, limits.memory)):
        sides = [[getattr(each, kind) for each in side] for side in (base, head)]
        for name in _names(sides):
            x, y = ([costs[name] for costs in side] for side in sides)
            found.append(_change(kind, name, x, y, limit))
    step_s = next((max(each.base, each.head) for each in found if (each.kind, each.name) == (SECONDS, STEP)), 0.0)
    return tuple(each for each in found if each.kind == MEMORY or max(each.base, each.head) >= LEAST_SHARE * step_s)


def _names(sides: Sequence[Sequence[Mapping[str, float]]]) -> list[str]:
    """What every run of both sides tells, the step first."""
    every = [costs for side in sides for costs in side]
    names = [name for name in (every[0] if every else ()) if all(name in costs for costs in every)]
    return sorted(names, key=lambda name: name != STEP)


def _change(kind: str, name: str, base: Sequence[float], head: Sequence[float], limit: float) -> CostChange:
    of_base, of_head = median(base), median(head)
    distances = [*(abs(x - of_base) for x in base), *(abs(x - of_head) for x in head)]
    is_known = min(len(base), len(head)) >= LEAST_RUNS
    is_quickest_over = min(head) > limit * min(base)
    noise = NORMAL * median(distances) if is_known else float("inf")
    num_contradicting = sum(y <= x for x in base for y in head)
    is_ordered = num_contradicting <= MAX_CONTRADICTING * len(base) * len(head)
    return CostChange(
        kind=kind,
        name=name,
        base=of_base,
        head=of_head,
        noise=noise,
        is_beyond_noise=is_known and of_head - of_base > NUM_NOISES * noise and is_ordered and is_quickest_over,
        is_over_limit=of_head > limit * of_base,
    )
