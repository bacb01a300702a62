"""Values that decide what a program computes are recorded: each planted cause is the first difference."""

import sys
from pathlib import Path

import pytest

from harness.trace import read_trace
from harness.trace.diff import diff
from harness.trace.format import BATCH_ORIGIN, RecordedValue, Scope
from harness.trace.resumption import align
from harness.trace.values import numbers
from harness.trace.verdict import CauseCode, Kind, Verdict, VerdictCode
from tests.support.recorded_programs import ROOT, run
from tests.support.verified import verify

PLANTS = (
    "none",
    "again",
    "betas",
    "switch",
    "generator",
    "write",
    "write one",
    "average",
    "worker1",
    "worker2",
    "stream",
    "resumed",
    "resumed-in-part",
    "all state",
    "moment",
    "actor critic",
    "actor critic: target",
    *("own", "own: order", "own: eval", "own: gradient", "own: transformed"),
)


@pytest.fixture(scope="module")
def traces(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("planted")
    script = ROOT / "tests" / "recording" / "planted_runs.py"
    done = run(sys.executable, str(script), str(directory), *PLANTS, env={"OMP_NUM_THREADS": "1"})
    assert done.exit_code == 0, done.errors
    assert "recording ended" not in done.errors
    return directory


def compare(traces: Path, a: str, b: str) -> Verdict:
    return diff(read_trace(traces / a), read_trace(traces / b))


def first_of(verdict: Verdict) -> tuple[int, str, str]:
    first = verdict.first
    assert first is not None
    value = first.a or first.b
    assert value is not None
    return first.step, value.phase, value.name


@pytest.mark.full
def test_an_honest_pair_is_equal(traces: Path) -> None:
    trace = read_trace(traces / "none")
    assert (verify(trace), trace.steps) == ([], (0, 1, 2, 3))
    assert compare(traces, "none", "again").kind is Kind.EQUAL


@pytest.mark.parametrize(
    ("plant", "expected"),
    [
        ("betas", (0, "optimizer", "group0.betas.1")),
        ("switch", (2, "optimizer", "group0.maximize")),
        ("generator", (0, "rollout", "batch")),
        ("write", (2, "forward", "weight")),
        ("write one", (2, "loss", "loss")),  # past torch's count, and in no sample of the words
        ("moment", (2, "optimizer", "weight")),
        ("average", (2, "forward", "watch.average.0")),
        ("worker2", (0, "rollout", "batch")),
    ],
)
def test_the_planted_cause_is_the_first_difference(traces: Path, plant: str, expected: tuple[int, str, str]) -> None:
    verdict = compare(traces, "none", plant)
    assert verdict.kind is Kind.DIVERGED
    assert first_of(verdict) == expected


@pytest.mark.parametrize(
    ("plant", "expected"),
    [
        ("actor critic: target", (4, "forward", "Critic#2.weight")),
        ("own: order", (2, "rollout", "batch.Sequential.0")),
        ("own: eval", (2, "forward", "mode")),
        ("own: gradient", (2, "backward", "2.weight")),
    ],
)
def test_the_planted_cause_of_a_loop_is_the_first_difference(
    traces: Path, plant: str, expected: tuple[int, str, str]
) -> None:
    verdict = compare(traces, plant.partition(":")[0], plant)
    assert (verdict.num_steps, first_of(verdict)) == (8 if plant.startswith("actor") else 4, expected)


def test_transforms_of_a_module_change_nothing_of_its_record(traces: Path) -> None:
    verdict = compare(traces, "own", "own: transformed")
    assert (verdict.kind, verdict.num_steps) == (Kind.EQUAL, 4)


def test_large_state_of_an_optimizer_is_read_at_every_eighth_step_unless_it_is_asked_for(traces: Path) -> None:
    names = [{each.name for each in values_of(traces / "none", step)} for step in range(2)]
    assert [{"weight exp_avg", "bias exp_avg"} & each for each in names] == [
        {"weight exp_avg", "bias exp_avg"},
        {"bias exp_avg"},
    ]
    assert "weight exp_avg" in {each.name for each in values_of(traces / "all state", 1)}
    verdict = compare(traces, "none", "all state")
    assert (verdict.kind, verdict.part) == (Kind.EQUAL, None)


def test_the_generator_of_a_loader_is_named(traces: Path) -> None:
    context = compare(traces, "none", "generator").context
    assert context is not None
    assert context.step == 0
    assert "random.loader0" in context.names


def test_a_batch_of_a_worker_is_explained(traces: Path) -> None:
    verdict = compare(traces, "worker1", "worker2")
    first = verdict.first
    assert first is not None
    assert CauseCode.BATCH_OF_WORKER(index=2, worker=0, num_workers=2) in verdict.causes
    assert first.step == 2


def test_a_weight_that_was_written_outside_the_optimizer_is_explained(traces: Path) -> None:
    causes = compare(traces, "none", "write").causes
    assert CauseCode.WRITTEN_OUTSIDE(name="weight", traces=("B",)) in causes
    causes = compare(traces, "none", "average").causes
    assert not any(each.code is CauseCode.WRITTEN_OUTSIDE for each in causes)


def values_of(directory: Path, step: int) -> list[RecordedValue]:
    return read_trace(directory).ranks[0].columns(step).values()


def origin_of(directory: Path, step: int) -> list[int]:
    (value,) = (each for each in values_of(directory, step) if each.name == BATCH_ORIGIN)
    assert value.scope is Scope.CONTEXT
    return [int(each) for each in numbers(value.dtype, value.digest)[:3]]


def test_each_batch_of_a_worker_says_which(traces: Path) -> None:
    assert [origin_of(traces / "worker1", step) for step in range(4)] == [[i, i % 2, 2] for i in range(4)]
    # The first worker of the stream ends after one batch: the third batch is the second worker's as the fourth is.
    assert [origin_of(traces / "stream", step)[1:] for step in range(4)] == [[0, 2], [1, 2], [1, 2], [1, 2]]
    assert BATCH_ORIGIN not in {each.name for each in values_of(traces / "none", 0)}


def test_settings_stand_in_the_first_step_and_in_those_that_change_them(traces: Path) -> None:
    names = [{each.name for each in values_of(traces / "switch", step)} for step in range(4)]
    assert {"group0.lr", "group0.betas.0", "group0.amsgrad", "group0.fused"} <= names[0]
    assert [{"group0.lr", "group0.maximize", "group0.amsgrad"} & each for each in names[1:]] == [
        {"group0.lr"},
        {"group0.lr", "group0.maximize"},
        {"group0.lr"},
    ]


def test_a_resumed_run_is_compared_from_its_step_on(traces: Path) -> None:
    a, b = read_trace(traces / "none"), read_trace(traces / "resumed")
    plain = diff(a, b)
    assert plain.kind is Kind.NOT_COMPARABLE
    assert VerdictCode.RESUMED_AT(shift=2) in plain.notes
    part_a, part_b, note = align(a, b, 2)
    assert note == VerdictCode.RESUMED(shift=2, first_step=2, last_step=3, names=("--resume",))
    verdict = diff(part_a, part_b)
    assert (verdict.kind, verdict.num_steps, verdict.reasons) == (Kind.EQUAL, 2, ())
    assert verdict.part is None
    context = verdict.context
    assert context is None or context.step is None or set(context.names) <= {"random.numpy"}, "that is not seeded"


def test_state_that_was_lost_when_a_run_was_resumed_is_named(traces: Path) -> None:
    verdict = diff(*align(read_trace(traces / "none"), read_trace(traces / "resumed-in-part"), 2)[:2])
    assert verdict.kind is Kind.DIVERGED
    assert first_of(verdict) == (2, "optimizer", "weight")
    verdict = diff(*align(read_trace(traces / "write"), read_trace(traces / "resumed"), 2)[:2])
    assert first_of(verdict) == (2, "forward", "weight")
