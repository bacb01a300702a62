"""Ranks: each is compared with its counterpart, or wholes over all of them; what contradicts itself equals nothing."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from harness.trace.diff import diff
from harness.trace.format import RecordedValue, Scope
from harness.trace.reader import Trace, read_trace
from harness.trace.verdict import Difference, Divergence, Kind, VerdictCode
from tests.support.traces import (
    Change,
    Steps,
    flip_bit,
    manifest_of,
    recorded_value,
    steps_of,
    trace,
    trace_of_ranks,
    write,
)


def part(name: str, content: object) -> RecordedValue:
    return recorded_value("forward", name, content, scope=Scope.PHYSICAL)


def test_the_rank_that_differs_first_is_named(tmp_path: Path) -> None:
    def of_rank(rank: int, is_sick: bool) -> Steps:
        made = []
        for step in range(3):
            sick = is_sick and step >= 1
            parts = [part(f"hidden.{n}", (rank, step, n, sick and (rank, n) >= (1, 1))) for n in range(3)]
            made.append([*parts, recorded_value("backward", "w", (step, sick))])
        return made

    a = trace_of_ranks(tmp_path / "a", [of_rank(0, False), of_rank(1, False)])
    b = trace_of_ranks(tmp_path / "b", [of_rank(0, True), of_rank(1, True)])
    first = diff(a, b).first
    assert first is not None
    assert first.a is not None
    assert (first.step, first.rank, first.ranks, first.a.name) == (1, 1, (0, 1), "hidden.1")
    assert first.last_equal is not None
    assert (first.last_equal.name, first.num_different, first.num_values) == ("hidden.0", 3, 4)


def test_ranks_parts_do_not_count_and_are_told(tmp_path: Path) -> None:
    def steps(content: int) -> Steps:
        return [[recorded_value("loss", "loss", step), part("hidden", content if step else 0)] for step in range(2)]

    a, b = trace(tmp_path / "a", steps(1)), trace(tmp_path / "b", steps(2))
    verdict = diff(a, b)
    assert (verdict.kind, verdict.first) == (Kind.EQUAL, None)
    assert verdict.part is not None
    assert verdict.part.a is not None
    assert (verdict.part.step, verdict.part.a.name, verdict.part.num_values) == (1, "hidden", 1)
    assert diff(a, a).part is None


def test_runs_of_other_world_sizes_can_be_equal(tmp_path: Path) -> None:
    logical = steps_of(3)
    alone = trace(tmp_path / "a", logical)
    shared = trace_of_ranks(
        tmp_path / "b",
        [
            [
                [each for n, each in enumerate(recorded_values) if n % 2 == rank] + [part("hidden", rank)]
                for recorded_values in logical
            ]
            for rank in range(2)
        ],
    )
    everywhere = trace_of_ranks(tmp_path / "c", [logical, logical])
    for other in (shared, everywhere):
        for verdict in (diff(alone, other), diff(other, alone)):
            assert (verdict.kind, verdict.num_steps_different, verdict.notes) == (Kind.EQUAL, 0, ())


def two_ranks(directory: Path, *changes: Change) -> Trace:
    """A trace of as many ranks as changes."""
    return trace_of_ranks(directory, [steps_of(2, change) for change in changes])


def as_it_is(step: int, recorded_value: RecordedValue) -> RecordedValue:
    return recorded_value


SICK = flip_bit(1, "backward", "layers.1.weight")


def test_ranks_of_one_trace_that_contradict_each_other_equal_no_other_world(tmp_path: Path) -> None:
    """A whole that two ranks have otherwise is not the one value that a trace of another world size has."""
    alone, apart = trace(tmp_path / "a", steps_of(2)), two_ranks(tmp_path / "b", as_it_is, SICK)
    of_four = two_ranks(tmp_path / "c", as_it_is, SICK, as_it_is, SICK)
    sick = trace(tmp_path / "d", steps_of(2, SICK))
    for a, b, names in (
        *((alone, apart, "B"), (apart, alone, "A"), (sick, apart, "B"), (apart, sick, "A")),
        *((apart, of_four, "AB"), (of_four, apart, "AB")),
    ):
        verdict = diff(a, b)
        first = verdict.first
        assert first is not None
        assert first.a is not None
        assert first.b is not None
        assert (verdict.kind, verdict.num_steps_different) == (Kind.DIVERGED, 1)
        assert (first.step, first.what, first.num_different) == (1, Difference.VALUE, 1)
        assert (first.a.name, first.b.name) == ("layers.1.weight", "layers.1.weight")
        assert first.a.digest != first.b.digest
        assert verdict.notes == tuple(
            VerdictCode.RANK_DISAGREES(trace=name, rank=1, step=1, phase="backward", name="layers.1.weight")
            for name in names
        )


def test_ranks_that_contradict_each_other_alike_are_equal_one_by_one(tmp_path: Path) -> None:
    """Ranks with batches of their own: each has the values of its counterpart."""
    a, b = two_ranks(tmp_path / "a", as_it_is, SICK), two_ranks(tmp_path / "b", as_it_is, SICK)
    assert (diff(a, b).kind, diff(a, b).notes) == (Kind.EQUAL, ())
    first = diff(two_ranks(tmp_path / "c", as_it_is, as_it_is), a).first
    assert first is not None
    assert (first.rank, first.ranks) == (1, (1,))


def test_a_log_that_is_none_of_the_world_is_told(tmp_path: Path) -> None:
    a, b = trace(tmp_path / "a", steps_of(2)), trace(tmp_path / "b", steps_of(2))
    for name, change, kind in (("a", as_it_is, Kind.EQUAL), ("c", SICK, Kind.DIVERGED)):
        stray = write(tmp_path / name / "stray", steps_of(2, change)) / "rank-0.log"
        shutil.copy(stray, b.directory / "rank-1.log")
        verdict = diff(a, read_trace(b.directory))
        assert verdict.kind is kind
        message = "rank-1.log exists, but its manifest counts 1 rank"
        assert VerdictCode.TRACE_DAMAGED(trace="B", message=message) in verdict.notes


# ------------------------------------------------------------------------------------- ranks that have not every step


def uneven(directory: Path, *num_steps: int, sick: int | None = None, complete: bool = True) -> Trace:
    """A trace whose ranks have so many steps; one bit differs in step 3 of the rank `sick`."""
    manifest = replace(manifest_of(), world_size=len(num_steps))
    for rank, number in enumerate(num_steps):
        change = flip_bit(3 if rank == sick else 99, "loss", "loss")
        write(directory, steps_of(number, change), manifest, rank=rank, complete=complete)
    return read_trace(directory)


def test_a_rank_that_lacks_a_step_of_its_counterpart_has_diverged(tmp_path: Path) -> None:
    a, b = uneven(tmp_path / "a", 5, 5), uneven(tmp_path / "b", 5, 3)
    for verdict, what in ((diff(a, b), Difference.STEP_ONLY_IN_A), (diff(b, a), Difference.STEP_ONLY_IN_B)):
        assert (verdict.kind, verdict.num_steps, verdict.num_steps_different) == (Kind.DIVERGED, 5, 2)
        assert verdict.first == Divergence(3, what, rank=1, ranks=(1,))
        assert not verdict.is_nan_payload_only
    assert diff(b, uneven(tmp_path / "c", 5, 3)).kind is Kind.EQUAL


def test_a_rank_whose_log_was_not_closed_may_have_come_further(tmp_path: Path) -> None:
    a, cut = uneven(tmp_path / "a", 5, 5), uneven(tmp_path / "b", 5, 3, complete=False)
    verdict = diff(a, cut)
    assert (verdict.kind, verdict.num_steps, verdict.first) == (Kind.INCOMPLETE, 3, None)
    assert VerdictCode.TRACE_INCOMPLETE(trace="B", message="rank-1.log was not closed") in verdict.reasons


def test_a_rank_that_was_closed_early_in_a_program_that_fell_is_incomplete(tmp_path: Path) -> None:
    a, fell = uneven(tmp_path / "a", 5, 5), uneven(tmp_path / "b", 5, 3)
    assert fell.manifest is not None
    fell = replace(fell, manifest=replace(fell.manifest, complete=False))
    verdict = diff(a, fell)
    assert (verdict.kind, verdict.num_steps, verdict.num_steps_different) == (Kind.INCOMPLETE, 5, 0)
    sick = replace(uneven(tmp_path / "c", 5, 3, sick=0), manifest=fell.manifest)
    first = diff(a, sick).first
    assert first is not None
    assert (first.step, first.what, first.rank) == (3, Difference.VALUE, 0)


@pytest.mark.parametrize("lost", [0, 1])
def test_of_a_trace_that_lacks_a_log_the_other_ranks_are_compared(tmp_path: Path, lost: int) -> None:
    whole, shorn = (uneven(tmp_path / name, 5, 5) for name in "ac")
    sick = uneven(tmp_path / "b", 5, 5, sick=1 - lost)
    (shorn.directory / f"rank-{lost}.log").unlink()
    shorn = read_trace(shorn.directory)
    gap = VerdictCode.TRACE_INCOMPLETE(trace="B", message=f"rank-{lost}.log is missing")
    note = VerdictCode.RANKS_MISSING(num_compared=1, num_ranks=2)
    verdict = diff(whole, shorn)
    assert (verdict.kind, verdict.num_steps, verdict.num_steps_different) == (Kind.INCOMPLETE, 5, 0)
    assert (verdict.reasons, verdict.notes) == ((gap,), (note,))
    verdict = diff(sick, shorn)
    assert verdict.first is not None
    assert (verdict.kind, verdict.first.step, verdict.first.rank) == (Kind.DIVERGED, 3, 1 - lost)
    assert gap in verdict.notes
    assert note in verdict.notes
    other = read_trace(tmp_path / "b")
    (other.directory / f"rank-{1 - lost}.log").unlink()
    verdict = diff(read_trace(other.directory), shorn)
    assert (verdict.kind, verdict.num_steps, verdict.notes) == (Kind.INCOMPLETE, 0, ())
    assert verdict.reasons == (VerdictCode.TRACE_INCOMPLETE(trace="A", message=f"rank-{1 - lost}.log is missing"), gap)
