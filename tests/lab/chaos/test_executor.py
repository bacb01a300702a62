"""Which runs a probe is made of, and what is left of them: traces written by hand, nothing started."""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

import pytest

from harness.bits.errors import UsageError
from harness.lab.chaos.search import (
    CRASHING_ENTRY,
    DELAYS,
    SIGKILLED,
    ChaosExecutor,
    ChaosPlan,
    Outcome,
    OutOfTimeError,
    Perturbation,
    Sign,
    Subject,
    outside_factors,
)
from harness.lab.experiment.launcher import Launcher, Run
from harness.lab.experiment.recording_result import Problem, Recording
from harness.recording.run_spec import EntryCall, Rejection, RunSpec
from harness.render.run_lines import RunLines
from tests.support.fake_clock import FakeClock
from tests.support.traces import flip_bit, steps_of, write

NUM_STEPS = 4
CALL = EntryCall("a:b", {"output": {"run": ""}}, ("output",), {"run": "output.run", "step": "output.step"})
Happens = Callable[[int, "Played"], tuple[int, bool]]
"""Of a run by its number: its exit code, and whether its bits are others from step 2 on."""


@dataclass
class Played:
    """Runs that are played."""

    happens: Happens = lambda number, played: (0, False)
    interrupted_by: str = ""
    refusal: Rejection | None = None
    asked: list[RunSpec] = field(default_factory=list)
    environs: list[Mapping[str, str]] = field(default_factory=list)
    said: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.display = RunLines(say=self.said.append)

    async def record(self, run_spec: RunSpec, parent: Path, number: int, *, environ: Mapping[str, str]) -> Run:
        self.asked.append(run_spec)
        self.environs.append(environ)
        exit_code, is_other = self.happens(number, self)
        num_steps = NUM_STEPS // 2 if exit_code else NUM_STEPS
        steps = steps_of(num_steps, flip_bit(2 if is_other else NUM_STEPS, "loss", "loss"))
        directory = write(parent / f"run-{number}", steps, complete=not exit_code)
        if self.refusal is not None and number > 1:
            self.refusal.write(directory)
        problems = (Problem(f"exit code {exit_code}"),) if exit_code else ()
        return Run(number, False, Recording(directory, exit_code, num_steps, (0,), 1, problems), 1.0)


@dataclass
class Made:
    """A bench and what it is made of."""

    bench: ChaosExecutor
    clock: FakeClock
    said: list[str]

    def baseline(self) -> Run:
        return asyncio.run(self.bench.record_baseline())

    def probe(self, perturbation: Perturbation) -> Outcome:
        return asyncio.run(self.bench.probe(perturbation))


def made(directory: Path, runs: Played, max_s: float = 100.0) -> Made:
    subject = Subject(
        lambda values: RunSpec(
            ("python",), call=CALL, perturbation={name: str(value) for name, value in values.items()}
        ),
        outside_factors(2, {}),
        ("tiny",),
        crash_settings={"output.every": 1},
        latency=("tools:ask",),
    )
    plan = ChaosPlan(subject, subject.factors, directory, max_s=max_s)
    clock = FakeClock()
    return Made(ChaosExecutor(plan, cast(Launcher, runs), {"HOME": "/home"}, clock), clock, runs.said)


def kept(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def test_only_what_differs_is_kept_beside_the_baseline(tmp_path: Path) -> None:
    found = made(tmp_path, Played(lambda number, _: (0, number == 3)))
    assert found.baseline().recording.is_complete
    assert found.probe({"threads": 2}).sign is Sign.SAME
    assert (found.probe({"threads": 3}).sign, kept(tmp_path)) == (Sign.MOVED, ["run-1", "run-3"])
    assert found.bench.num_runs == 3
    assert found.said == ["run 2 of 22: threads=2: same", "run 3 of 22: threads=3: moved at step 2"]


def test_a_perturbation_reaches_the_run(tmp_path: Path) -> None:
    runs = Played()
    found = made(tmp_path, runs)
    found.baseline()
    found.probe({"hash_seed": 7, "threads": 2})
    first, second = runs.asked
    assert (first.perturbation["hash_seed"], second.perturbation["hash_seed"]) == ("0", "7")
    assert [each["PYTHONHASHSEED"] for each in runs.environs] == ["0", "7"]
    assert [each.get("OMP_NUM_THREADS") for each in runs.environs] == [None, "2"]


@pytest.mark.parametrize("has_checkpoint", [True, False])
def test_a_run_that_died_as_it_was_to_is_gone_on_from_or_begun_anew(tmp_path: Path, *, has_checkpoint: bool) -> None:
    runs = Played(lambda number, _: (SIGKILLED, False) if number == 2 else (0, False))
    if has_checkpoint:
        (tmp_path / "run-2" / "checkpoints" / "step-000001").mkdir(parents=True)
    found = made(tmp_path, runs)
    found.baseline()
    assert found.probe({"crash": "2.loss"}).sign is Sign.SAME
    _, crashed, gone_on = runs.asked
    assert crashed.call is not None
    assert gone_on.call is not None
    assert (crashed.call.entry, gone_on.call.entry) == (CRASHING_ENTRY, CALL.entry)
    assert crashed.perturbation["output.every"] == gone_on.perturbation["output.every"] == "1"
    assert gone_on.call.config["output"]["run"] == (str(tmp_path / "run-2") if has_checkpoint else "")
    assert kept(tmp_path) == ["run-1"]


def test_a_run_that_did_not_die_is_not_gone_on_from(tmp_path: Path) -> None:
    runs = Played()
    found = made(tmp_path, runs)
    found.baseline()
    outcome = found.probe({"crash": "2.loss"})
    assert len(runs.asked) == 2
    assert (outcome.sign, outcome.has_failed, kept(tmp_path)) == (Sign.NOT_APPLIED, False, ["run-1"])
    assert outcome.problem.startswith("the crash never came")


@pytest.mark.parametrize("is_called", [True, False])
def test_delays_that_nothing_had_are_not_applied(tmp_path: Path, *, is_called: bool) -> None:
    def happens(number: int, runs: Played) -> tuple[int, bool]:
        if number == 2 and is_called:
            mark = Path(runs.asked[-1].callbacks[DELAYS]["mark"])
            mark.parent.mkdir()
            mark.touch()
        return 0, False

    found = made(tmp_path, Played(happens))
    found.baseline()
    outcome = found.probe({"latency": 7})
    assert outcome.sign is (Sign.SAME if is_called else Sign.NOT_APPLIED)
    assert outcome.problem == ("" if is_called else "no call of tools:ask was delayed")
    assert kept(tmp_path) == ["run-1"]


@pytest.mark.parametrize("when", [1, 2])
def test_what_a_signal_has_ended_is_no_finding(tmp_path: Path, when: int) -> None:
    def happens(number: int, runs: Played) -> tuple[int, bool]:
        runs.interrupted_by = "SIGINT" if number == when else ""
        return (130, False) if number == when else (0, False)

    runs = Played(happens)
    found = made(tmp_path, runs)
    if when == 1:
        with pytest.raises(OutOfTimeError):
            found.baseline()
        return
    found.baseline()
    with pytest.raises(OutOfTimeError):
        found.probe({"threads": 2})
    assert runs.display.title == "run 2 of 22: threads=2"


def test_what_an_entry_refuses_is_the_users_to_mend(tmp_path: Path) -> None:
    found = made(tmp_path, Played(refusal=Rejection("two are too many", "1", "have one")))
    found.baseline()
    with pytest.raises(UsageError, match="the entry refuses to begin with threads=2: two are too many") as refused:
        found.probe({"threads": 2})
    assert (refused.value.legal, refused.value.remedy, kept(tmp_path)) == ("1", "have one", ["run-1"])
