"""The first place: which micro-batch it is, what stands before it, and how kept values differ."""

import struct
from collections.abc import Callable
from pathlib import Path

import pytest

from harness.bits.findings import Finding
from harness.trace.diff import diff
from harness.trace.format import Kept, Scope, write_tensors
from harness.trace.reader import read_trace
from harness.trace.verdict import Divergence, VerdictCode
from tests.support.traces import Steps, recorded_value, trace, trace_of_ranks, trace_of_values, value


def first_of(a: Steps, b: Steps, tmp_path: Path) -> Divergence:
    first = diff(trace(tmp_path / "a", a), trace(tmp_path / "b", b)).first
    assert first is not None
    return first


def weights(*numbers: float) -> bytes:
    return struct.pack(f"<{len(numbers)}f", *numbers)


def test_kept_values_are_compared(tmp_path: Path) -> None:
    one, other = [1.0] * 8, [1.0, 1.0, 1.5, 1.0, -1.0, 1.0, float("nan"), 1.0]
    steps = [
        [[value("loss", "loss", "f32", (), weights(1.0)), value("backward", "w", "f32", (2, 4), weights(*numbers))]]
        for numbers in (one, other)
    ]
    first = diff(*(trace_of_values(tmp_path / side, each) for side, each in zip("ab", steps, strict=True))).first
    assert first is not None
    assert first.value is not None
    assert (first.value.num_elements, first.value.num_different, first.value.first) == (8, 3, 2)
    assert (first.value.a, first.value.b, first.value.max_abs, first.value.num_nan_only_b) == ("1.0", "1.5", 2.0, 1)
    unkept = trace_of_values(tmp_path / "c", steps[1], keeps=False)
    first = diff(trace_of_values(tmp_path / "d", steps[0]), unkept).first
    assert first is not None
    assert first.value is None


DAMAGED = "the kept tensors of step 0, rank 0, are damaged: compared by digest only"


def damaged(message: str) -> Finding:
    return VerdictCode.TRACE_DAMAGED(trace="B", message=message)


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: data[:-1],
        lambda data: b"",
        lambda data: data[:-4] + weights(3.0),
        lambda data: data[:8] + b"[" * len(data[8:]),
    ],
    ids=["cut", "empty", "overwritten", "garbage"],
)
def test_a_kept_file_that_is_damaged_is_no_value_and_told(tmp_path: Path, damage: Callable[[bytes], bytes]) -> None:
    a, b = (
        trace_of_values(tmp_path / side, [[value("backward", "w", "f32", (8,), weights(*[number] * 8))]])
        for side, number in (("a", 1.0), ("b", 2.0))
    )
    (file,) = (tmp_path / "b" / "tensors").iterdir()
    file.write_bytes(damage(file.read_bytes()))
    verdict = diff(a, b)
    assert verdict.first is not None
    assert (verdict.first.value, verdict.notes) == (None, (damaged(DAMAGED),))
    file.unlink()
    assert diff(a, read_trace(tmp_path / "b")).notes == ()


def test_damaged_tokens_count_as_unknown_and_are_told(tmp_path: Path) -> None:
    a, b = (
        trace_of_values(tmp_path / side, [[value("rollout", "tokens", "i64", (1, 3), struct.pack("<3q", *tokens))]] * 2)
        for side, tokens in (("a", (1, 2, 3)), ("b", (1, 2, 4)))
    )
    for file in (tmp_path / "b" / "tensors").iterdir():
        file.write_bytes(file.read_bytes()[:-1] + b"\1")
    verdict = diff(a, b)
    assert (verdict.attribution["tokens"].num_unknown, verdict.attribution["tokens"].num_different) == (2, 0)
    assert verdict.notes == (damaged(DAMAGED.replace("rank 0,", "rank 0, and 1 more")),)


def test_what_a_rank_has_otherwise_than_the_lowest_is_not_damaged(tmp_path: Path) -> None:
    kept = [value("backward", "w", "f32", (8,), weights(*[number] * 8)) for number in (1.0, 2.0, 3.0)]
    alone = trace_of_values(tmp_path / "a", [[kept[0]]])
    of_two = trace_of_ranks(tmp_path / "b", [[[kept[1][0]]], [[kept[2][0]]]])
    (tmp_path / "b" / "tensors").mkdir()
    write_tensors(tmp_path / "b" / "tensors" / "rank-1-step-0.safetensors", [kept[2]])
    verdict = diff(alone, of_two)
    assert verdict.first is not None
    assert verdict.first.value is None
    assert verdict.notes == (VerdictCode.RANK_DISAGREES(trace="B", rank=1, step=0, phase="backward", name="w"),)


@pytest.mark.parametrize("sick", [0, 1, 2])
def test_the_micro_batch_is_named(tmp_path: Path, sick: int) -> None:
    losses = [recorded_value("loss", "loss", number, scope=Scope.PHYSICAL, occurrence=number) for number in range(3)]
    other = [each._replace(digest=bytes(16)) if each.occurrence >= sick else each for each in losses]
    alike = [recorded_value("loss", "loss of another", 1, scope=Scope.PHYSICAL), recorded_value("loss", "loss", 1)]
    first = first_of(
        [[*losses, *alike, recorded_value("backward", "w", 1)]],
        [[*other, *alike, recorded_value("backward", "w", 2)]],
        tmp_path,
    )
    assert first.a is not None
    assert (first.a.scope, first.a.occurrence, first.num_microbatches) == (Scope.PHYSICAL, sick, 3)
    assert (first.num_before, first.phases_before) == (sick, ("loss",) if sick else ())


def test_over_ranks_any_rank_that_has_kept_a_value_will_do(tmp_path: Path) -> None:
    def kept(number: float) -> Kept:
        return value("backward", "w", "f32", (8,), weights(*[number] * 8))

    alone = trace_of_values(tmp_path / "a", [[kept(1.0)]])
    shared = trace_of_ranks(tmp_path / "b", [[[]], [[kept(1.25)[0]]]])
    trace_of_values(tmp_path / "c", [[kept(1.25)]])
    (tmp_path / "b" / "tensors").mkdir()
    (tmp_path / "c" / "tensors" / "rank-0-step-0.safetensors").rename(
        tmp_path / "b" / "tensors" / "rank-1-step-0.safetensors"
    )
    first = diff(alone, shared).first
    assert first is not None
    assert first.value is not None
    assert (first.rank, first.value.max_abs, first.phases_before) == (None, 0.25, ())


@pytest.mark.parametrize(
    ("at", "is_used", "place"),
    [(1, False, (1, "rollout", "batch.ids")), (1, True, (2, "loss", "loss")), (0, False, (2, "loss", "loss"))],
    ids=["fetched one step ahead", "in another order", "long before"],
)
def test_a_batch_of_the_step_before_that_nothing_there_used_comes_first(
    tmp_path: Path, at: int, is_used: bool, place: tuple[int, str, str]
) -> None:
    def steps(is_other: bool) -> Steps:
        return [
            [
                recorded_value("rollout", "batch.ids", is_other and step == at, scope=Scope.PHYSICAL),
                recorded_value("loss", "part", is_other and is_used and step == at, scope=Scope.PHYSICAL),
                recorded_value("loss", "loss", is_other and step == 2),
            ]
            for step in range(3)
        ]

    first = first_of(steps(False), steps(True), tmp_path)
    assert first.a is not None
    assert (first.step, first.a.phase, first.a.name) == place
