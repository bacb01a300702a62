"""What is run next: the baseline, itself once more, drawn perturbations, and of the first that fails ever less.

    baseline ─▶ nothing changed ─▶ probe 1, 2, ... ─▶ nothing changed, several times ─▶ ddmin ─▶ fewer steps ─▶ simplify
                     └──── differs: no perturbation is needed ◀───────┘

While a cause is looked for, a perturbation counts as harmless only after several runs: what comes and goes is not lost.
A search that is cut short keeps the smallest perturbation that was seen to fail.
"""

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

from harness.bits.errors import UsageError
from harness.lab.chaos.comparison import Outcome, Sign
from harness.lab.chaos.drawing import drawn
from harness.lab.chaos.executor import OutOfTimeError
from harness.lab.chaos.finding import Chaos, Finding, NotApplied, Tally
from harness.lab.chaos.plan import ChaosPlan
from harness.lab.chaos.shrink import ddmin, simplify
from harness.lab.experiments.perturbation_factors import (
    CRASH,
    END,
    Factor,
    Perturbation,
    crash_factor,
    moment,
    parse_moment,
)
from harness.lab.experiments.recording_result import Problem
from harness.lab.experiments.run import Run
from harness.trace.reader import Trace

ROOM = 4
"""A cause is looked for within so many times the steps that it took to show."""
T = TypeVar("T")


@dataclass(slots=True)
class _Trail:
    """What is known of the perturbation that is shrunk."""

    perturbation: dict[str, Any]
    outcome: Outcome
    num_steps: int | None
    tallies: dict[str, Tally] = field(default_factory=dict)
    """By the text of a perturbation and of its steps."""

    def __post_init__(self) -> None:
        self.count(self.perturbation, self.num_steps, has_failed=True)

    def count(self, perturbation: Perturbation, num_steps: int | None, *, has_failed: bool) -> None:
        """One more run."""
        key = _key(perturbation, num_steps)
        self.tallies[key] = self.tallies.get(key, Tally()).plus(has_failed=has_failed)

    def cut(self, num_steps: int) -> None:
        """Look no further than these steps, which show it."""
        self.num_steps = num_steps
        self.count(self.perturbation, num_steps, has_failed=True)

    @property
    def tally(self) -> Tally:
        """Of the smallest so far."""
        return self.tallies[_key(self.perturbation, self.num_steps)]

    @property
    def last_step(self) -> int:
        """The step that shows it, or the one that has to begin so that the run crashes for that."""
        assert self.outcome.step is not None
        if CRASH not in self.perturbation:
            return self.outcome.step
        step, phase = parse_moment(self.perturbation[CRASH])
        return max(self.outcome.step, step + (phase == END))


class Prober(Protocol):
    """Runs a perturbation; `ChaosExecutor` is the one that does."""

    num_runs: int
    """So many have been started."""

    @property
    def baseline(self) -> Trace:
        """Of the run with nothing changed."""

    async def record_baseline(self) -> Run:
        """Make that run."""

    async def probe(self, perturbation: Perturbation, num_steps: int | None = None) -> Outcome:
        """Run under a perturbation, and compare; OutOfTimeError where nothing more is to begin."""


class PerturbationSearch:
    """One search."""

    def __init__(self, plan: ChaosPlan, bench: Prober) -> None:
        self._plan = plan
        self._bench = bench
        self._factors: dict[str, Factor] = {}
        self._without = Tally()
        self._num_probes = 0
        self._not_applied: list[NotApplied] = []
        self._finding: Finding | None = None

    async def search(self) -> Chaos:
        """Carry out the plan; return the results so far if it cannot continue.

        UsageError where nothing can be changed, or the entry refuses what it is given.
        """
        is_out_of_time = False
        try:
            run = await self._bench.record_baseline()
            if not run.recording.is_complete or not run.recording.num_steps:
                problem = next(iter(run.recording.problems), Problem("no step was recorded"))
                return Chaos(
                    self._plan,
                    num_runs=self._bench.num_runs,
                    problem=problem.what,
                    remedy=problem.remedy,
                    output=run.output,
                )
            is_cut = self._plan.num_steps is not None
            factors = with_moments(self._plan.factors, self._bench.baseline, is_cut=is_cut)
            self._factors = {each.name: each for each in factors}
            if not self._factors:
                raise UsageError(
                    f"nothing to perturb: a run of {len(self._bench.baseline.steps)} steps is too short for a crash",
                    legal="2 steps or more, or other factors",
                    remedy="run more steps, or omit --factors",
                )
            await self._search()
        except OutOfTimeError:
            is_out_of_time = True
        return Chaos(
            self._plan,
            self._finding,
            self._num_probes,
            self._bench.num_runs,
            is_out_of_time=is_out_of_time,
            not_applied=tuple(self._not_applied),
        )

    async def _search(self) -> None:
        if await self._fails_unchanged(1):
            return
        if self._plan.only is not None:
            await self._reproduce(self._plan.only)
            return
        for index in range(1, self._plan.num_probes + 1):
            perturbation = drawn(tuple(self._factors.values()), self._plan.seed, index)
            outcome = await self._bench.probe(perturbation)
            if outcome.sign is Sign.NOT_APPLIED:
                self._not_applied.append(NotApplied(perturbation, outcome.problem))
                continue
            self._num_probes += 1
            if outcome.has_failed:
                await self._explain(perturbation, outcome, index)
                return

    async def _reproduce(self, perturbation: Perturbation) -> None:
        """Run one perturbation until it fails, or often enough."""
        tally = Tally()
        while tally.num_runs < self._plan.num_repeats:
            outcome = await self._bench.probe(perturbation)
            if outcome.sign is Sign.NOT_APPLIED:
                self._not_applied.append(NotApplied(perturbation, outcome.problem))
                return
            self._num_probes = 1
            tally = tally.plus(has_failed=outcome.has_failed)
            if outcome.has_failed:
                self._finding = Finding(
                    perturbation, outcome, tally, self._without, perturbation, num_steps=self._plan.num_steps
                )
                return

    async def _fails_unchanged(self, num_runs: int) -> bool:
        """Whether the run differs from itself, in so many more runs; that is a finding too."""
        for _ in range(num_runs):
            outcome = await self._bench.probe({})
            self._without = self._without.plus(has_failed=outcome.has_failed)
            if outcome.has_failed:
                self._finding = Finding({}, outcome, self._without, self._without, {})
                while self._without.num_runs < self._plan.num_repeats:
                    again = await self._bench.probe({})
                    self._without = self._without.plus(has_failed=again.has_failed)
                    self._finding = Finding({}, outcome, self._without, self._without, {})
                return True
        return False

    async def _explain(self, perturbation: dict[str, Any], outcome: Outcome, index: int) -> None:
        """Look for the smallest part of a perturbation that still fails in the same way."""
        trail = _Trail(perturbation, outcome, self._plan.num_steps)
        self._keep(trail, perturbation, index, is_smallest=False)
        if await self._fails_unchanged(self._plan.num_repeats):
            return
        self._keep(trail, perturbation, index, is_smallest=False)
        try:
            await self._shrink(trail)
        except OutOfTimeError:
            self._keep(trail, perturbation, index, is_smallest=False)
            raise
        self._keep(trail, perturbation, index, is_smallest=True)

    async def _shrink(self, trail: _Trail) -> None:
        """Fewer factors, fewer steps, values that are simpler and show it as early; then what is left several times."""
        steps = self._bench.baseline.steps
        num_steps = ROOM * _num_until(steps, trail.last_step)
        if num_steps < len(steps) and not self._plan.subject.is_command:
            trail.cut(num_steps)
        whole = trail.perturbation
        await self._drive(ddmin(tuple(whole)), trail, lambda names: {name: whole[name] for name in names})
        await self._cut_steps(trail)
        await self._drive(simplify(trail.perturbation, self._simpler), trail, dict)
        await self._cut_steps(trail)
        while trail.tally.num_runs < self._plan.num_repeats:
            await self._run(trail, trail.perturbation, trail.num_steps)

    async def _cut_steps(self, trail: _Trail) -> None:
        """Go no further than the step that shows it, if it shows then."""
        num_steps = _num_until(self._bench.baseline.steps, trail.last_step)
        if not self._plan.subject.is_command and num_steps != trail.num_steps:
            await self._fails(trail, trail.perturbation, num_steps)

    async def _drive(self, search: Generator[T, bool, T], trail: _Trail, made: Callable[[T], dict[str, Any]]) -> None:
        """Answer what a search asks until it has its result."""
        try:
            candidate = next(search)
            while True:
                candidate = search.send(await self._fails(trail, made(candidate), trail.num_steps))
        except StopIteration:
            return

    async def _fails(self, trail: _Trail, perturbation: dict[str, Any], num_steps: int | None) -> bool:
        """Whether a perturbation fails in one of several runs; it is the smallest so far, then."""
        for _ in range(self._plan.num_repeats):
            if await self._run(trail, perturbation, num_steps):
                return True
        return False

    async def _run(self, trail: _Trail, perturbation: dict[str, Any], num_steps: int | None) -> bool:
        """One run, counted; whether it fails in the same way as the first one."""
        outcome = await self._bench.probe(perturbation, num_steps)
        is_alike = outcome.sign is trail.outcome.sign
        trail.count(perturbation, num_steps, has_failed=is_alike)
        if is_alike:
            trail.perturbation, trail.num_steps, trail.outcome = perturbation, num_steps, outcome
        return is_alike

    def _simpler(self, name: str, value: Any) -> Iterable[Any]:
        factor = self._factors[name]
        return factor.values.simpler(value, factor.usual)

    def _keep(self, trail: _Trail, first: Mapping[str, Any], index: int, *, is_smallest: bool) -> None:
        self._finding = Finding(
            trail.perturbation,
            trail.outcome,
            trail.tally,
            self._without,
            first,
            index,
            num_steps=trail.num_steps,
            is_smallest=is_smallest,
        )


def _key(perturbation: Perturbation, num_steps: int | None) -> str:
    return f"{sorted(perturbation.items())} {num_steps}"


def _num_until(steps: tuple[int, ...], step: int) -> int:
    """How many steps there are up to this one; it may be one that the baseline does not have."""
    return max(1, sum(each <= step for each in steps))


def with_moments(factors: Sequence[Factor], baseline: Trace, *, is_cut: bool = False) -> tuple[Factor, ...]:
    """The factors, a crash with its moments: each phase of each step but the first, which no checkpoint precedes.

    A run that is cut is ended with its last step: nothing comes right after that.
    """
    moments = tuple(_moments(baseline))[: -1 if is_cut else None]
    known = (crash_factor(moments) if each.name == CRASH else each for each in factors)
    return tuple(each for each in known if each.name != CRASH or moments)


def _moments(baseline: Trace) -> Iterator[str]:
    for step in baseline.steps[1:]:
        rank = next(iter(baseline.logs(step)))
        phases = dict.fromkeys(value.phase for value in baseline.columns(step, rank).values())
        yield from (moment(step, phase) for phase in (*phases, END))
