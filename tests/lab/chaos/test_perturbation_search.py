"""What is run next, against a bench that fails as it is told: whatever the causes, they are what is found."""

import asyncio
from collections.abc import Callable, Mapping
from pathlib import Path
from random import Random
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.bits.errors import UsageError
from harness.bits.exit_codes import ExitCode
from harness.lab.chaos.search import (
    CRASH,
    Chaos,
    ChaosExecutor,
    ChaosPlan,
    Factor,
    Finding,
    Outcome,
    OutOfTimeError,
    PerturbationSearch,
    Sign,
    Subject,
    Tally,
    with_moments,
)
from harness.lab.experiment.launcher import Run
from harness.lab.experiment.recording_result import Problem, Recording
from harness.recording.run_spec import EntryCall, RunSpec
from harness.trace.reader import Trace
from tests.support.traces import steps_of, trace

NAMES = tuple("abcdef")
FACTORS = tuple(Factor(f"x.{name}", range(1, 10), 1) for name in NAMES)
CRASHED = Factor(CRASH, ())
NUM_STEPS = 8
Fails = Callable[[Mapping[str, Any]], int | None]
"""The step that a perturbation moves; None where it moves none."""


class FakeBench:
    """Runs nothing: `fails` says what comes out."""

    def __init__(self, baseline: Trace, fails: Fails, *, sign: Sign = Sign.MOVED, most: int = 10_000) -> None:
        self.baseline = baseline
        self.num_runs = 0
        self.asked: list[dict[str, Any]] = []
        self.is_complete = True
        self._fails, self._sign, self._most = fails, sign, most

    async def record_baseline(self) -> Run:
        self.num_runs += 1
        problems = () if self.is_complete else (Problem("it has no seed", "give it --seed"),)
        return Run(1, False, Recording(self.baseline.directory, 0, NUM_STEPS, (0,), 1, problems), 1.0)

    async def probe(self, perturbation: Mapping[str, Any]) -> Outcome:
        if self.num_runs == self._most:
            raise OutOfTimeError
        self.num_runs += 1
        self.asked.append(dict(perturbation))
        step = self._fails(perturbation)
        return Outcome(Sign.SAME) if step is None else Outcome(self._sign, step)


@pytest.fixture(scope="module")
def baseline(tmp_path_factory: pytest.TempPathFactory) -> Trace:
    return trace(tmp_path_factory.mktemp("baseline") / "t", steps_of(NUM_STEPS))


def plan(**options: Any) -> ChaosPlan:
    subject = Subject(lambda values: RunSpec(("python",), call=EntryCall("a:b", {})), FACTORS, ("tiny",))
    return ChaosPlan(**{"subject": subject, "factors": FACTORS, "directory": Path("out"), **options})


def found(bench: FakeBench, **options: Any) -> Finding:
    finding = search(bench, **options).finding
    assert finding is not None
    return finding


def search(bench: FakeBench, **options: Any) -> Chaos:
    return asyncio.run(PerturbationSearch(plan(**options), cast(ChaosExecutor, bench)).search())


@settings(derandomize=True, max_examples=150)
@given(
    cause=st.dictionaries(st.sampled_from([f.name for f in FACTORS]), st.integers(2, 5), min_size=1, max_size=2),
    step=st.integers(0, NUM_STEPS - 1),
    seed=st.integers(0, 1000),
    sign=st.sampled_from([Sign.MOVED, Sign.BROKE]),
)
def test_whatever_acts_together_is_found(
    baseline: Trace, cause: dict[str, int], step: int, seed: int, sign: Sign
) -> None:
    def fails(perturbation: Mapping[str, Any]) -> int | None:
        return step if all(perturbation.get(name, 0) >= value for name, value in cause.items()) else None

    chaos = search(FakeBench(baseline, fails, sign=sign), num_probes=200, seed=seed)
    assert chaos.finding is not None
    assert chaos.finding.perturbation.keys() == cause.keys()
    assert chaos.finding.outcome.step == step
    assert (chaos.finding.tally, chaos.finding.without) == (Tally(3, 3), Tally(0, 4))
    assert chaos.exit_code == (ExitCode.DIVERGED if sign is Sign.MOVED else ExitCode.INCOMPLETE_RECORDING)
    assert chaos.finding.is_smallest
    assert chaos.finding.index == chaos.num_probes


def test_what_comes_and_goes_is_not_lost(baseline: Trace) -> None:
    """With eight repeats, a cause that shows in half of all runs is found alone in nearly all searches."""
    alone = 0
    for seed in range(60):
        random = Random(seed)

        def fails(perturbation: Mapping[str, Any], random: Random = random) -> int | None:
            return 2 if "x.c" in perturbation and random.random() < 0.5 else None

        finding = found(FakeBench(baseline, fails), seed=seed, num_probes=60, num_repeats=8)
        assert "x.c" in finding.perturbation
        assert finding.tally.num_failed >= 1
        alone += list(finding.perturbation) == ["x.c"]
    assert alone >= 56


def test_a_run_that_differs_from_itself_is_no_perturbations_doing(baseline: Trace) -> None:
    random = Random(3)
    accused = 0
    for _ in range(60):
        finding = found(FakeBench(baseline, lambda perturbation: 1 if random.random() < 0.4 else None))
        accused += bool(finding.perturbation)
        if not finding.perturbation:
            assert finding.tally == finding.without
            assert finding.tally.num_failed >= 1
    assert accused <= 60 * 0.6**4 + 8, "four runs that agree by luck, at most"


@pytest.mark.parametrize("most", range(1, 30))
def test_a_search_that_is_cut_short_keeps_what_it_has_seen(baseline: Trace, most: int) -> None:
    def fails(perturbation: Mapping[str, Any]) -> int | None:
        return 1 if "x.c" in perturbation else None

    bench = FakeBench(baseline, fails, most=most)
    chaos = search(bench, seed=4)
    assert chaos.num_runs <= most
    failed = [perturbation for perturbation in bench.asked if fails(perturbation) is not None]
    assert (chaos.finding is not None) == bool(failed)
    if not chaos.num_probes:
        assert chaos.exit_code == ExitCode.INCOMPLETE_RECORDING, "nothing was perturbed, and nothing is said of it"
    if chaos.finding is not None:
        assert chaos.finding.perturbation == failed[-1], "the smallest so far"
        assert chaos.finding.is_smallest != chaos.is_out_of_time


def test_one_perturbation_is_run_until_it_shows(baseline: Trace) -> None:
    answers = iter([None, None, None, 4])  # the baseline's second run is the first
    bench = FakeBench(baseline, lambda perturbation: next(answers))
    chaos = search(bench, only={"x.a": 3}, num_repeats=5, num_steps=6)
    assert bench.asked == [{}, {"x.a": 3}, {"x.a": 3}, {"x.a": 3}]
    assert chaos.finding is not None
    assert (chaos.finding.tally, chaos.num_probes) == (Tally(1, 3), 1)


def test_what_was_not_applied_is_neither_found_nor_cleared(baseline: Trace) -> None:
    bench = FakeBench(baseline, lambda perturbation: 0 if "x.c" in perturbation else None, sign=Sign.NOT_APPLIED)
    chaos = search(bench, num_probes=9)
    assert (chaos.finding, chaos.exit_code) == (None, ExitCode.OK)
    missed = [perturbation for perturbation in bench.asked if "x.c" in perturbation]
    assert [each.perturbation for each in chaos.not_applied] == missed != []
    assert chaos.num_probes == 9 - len(missed) > 0
    only = search(bench, only={"x.c": 3}, num_repeats=4)
    assert (only.num_probes, only.num_runs - chaos.num_runs) == (0, 3), "it is not tried again"
    assert (len(only.not_applied), only.exit_code) == (1, ExitCode.INCOMPLETE_RECORDING)


def test_without_a_baseline_nothing_is_perturbed(baseline: Trace) -> None:
    bench = FakeBench(baseline, lambda perturbation: None)
    bench.is_complete = False
    chaos = search(bench)
    assert (chaos.problem, chaos.exit_code, bench.asked) == ("it has no seed", ExitCode.INCOMPLETE_RECORDING, [])
    assert (chaos.remedy, chaos.output) == ("give it --seed", baseline.directory / "output.log")


def test_a_crash_may_come_in_any_phase_that_a_checkpoint_precedes(baseline: Trace) -> None:
    (factor,) = with_moments([CRASHED], baseline)
    moments = list(factor.values)
    assert moments[:3] == ["1.rollout", "1.forward", "1.loss"]
    assert moments[-1] == f"{NUM_STEPS - 1}.end"
    assert not any(moment.startswith("0.") for moment in moments)
    (cut,) = with_moments([CRASHED], baseline, is_cut=True)
    assert cut.values == moments[:-1], "what is ended with its last step has nothing behind it"


def test_a_run_of_one_step_is_not_crashed(tmp_path: Path) -> None:
    short = trace(tmp_path / "t", steps_of(1))
    assert with_moments([FACTORS[0], CRASHED], short) == (FACTORS[0],)
    with pytest.raises(UsageError, match="nothing to perturb: a run of 1 steps is too short for a crash"):
        search(FakeBench(short, lambda perturbation: None), factors=(CRASHED,))


def test_a_perturbation_is_run_once_and_counted_once(baseline: Trace) -> None:
    """Two cores, and a run that has two threads: one value is left."""
    bench = FakeBench(baseline, lambda perturbation: None)
    chaos = search(bench, factors=(Factor("threads", range(1, 3), 2),), num_probes=5)
    assert bench.asked == [{}, {"threads": 1}]
    assert chaos.num_probes == 1
