"""Shards: their sums decide where ranks cannot be compared one by one, and each rank's shard where they can."""

import random
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from harness.bits.digests import SHARDSUM_128, add_shards, shardsum
from harness.trace.diff import diff
from harness.trace.format import RecordedValue, Scope
from harness.trace.reader import Trace, read_trace
from harness.trace.verdict import Kind, VerdictCode
from tests.support.traces import recorded_value, trace, trace_of_ranks
from tests.support.verified import verify

ROWS, COLUMNS = 6, 4
Cut = Callable[[int], int]
"""The rank that holds an element."""
NAMES = ("layers.0.weight", "layers.1.weight")


def by_rows(num_ranks: int) -> Cut:
    return lambda index: index // COLUMNS * num_ranks // ROWS


def by_columns(num_ranks: int) -> Cut:
    return lambda index: index % COLUMNS * num_ranks // COLUMNS


def weights(step: int, name: str, sick: tuple[int, str] | None) -> bytes:
    data = bytearray(random.Random(f"{step} {name}").randbytes(4 * ROWS * COLUMNS))
    if sick is not None and step >= sick[0] and name == sick[1]:
        data[4 * 13] ^= 1
    return bytes(data)


def shard(step: int, name: str, data: bytes, holds: Callable[[int], bool]) -> RecordedValue:
    digest = add_shards(shardsum(data[4 * at : 4 * at + 4], 4, at) for at in range(ROWS * COLUMNS) if holds(at))
    return RecordedValue("optimizer", name, 0, "f32", (ROWS, COLUMNS), SHARDSUM_128, digest, Scope.SHARD)


def sharded(directory: Path, num_ranks: int, cut: Cut, sick: tuple[int, str] | None = None) -> Trace:
    """Three steps of two weights, a part of each on every rank, and a loss that all of them have."""
    made: list[Sequence[Sequence[RecordedValue]]] = []
    for rank in range(num_ranks):
        made.append(
            [
                [
                    recorded_value("loss", "loss", step),
                    *[shard(step, name, weights(step, name, sick), lambda at: cut(at) == rank) for name in NAMES],  # noqa: B023
                ]
                for step in range(3)
            ]
        )
    return trace_of_ranks(directory, made)


@pytest.mark.parametrize("cut_a", [(1, by_rows), (2, by_rows), (3, by_rows), (2, by_columns), (4, by_columns)])
@pytest.mark.parametrize("cut_b", [(2, by_rows), (3, by_rows), (2, by_columns)])
def test_any_cut_of_one_whole_is_equal_and_one_bit_is_found(
    tmp_path: Path, cut_a: tuple[int, Callable[[int], Cut]], cut_b: tuple[int, Callable[[int], Cut]]
) -> None:
    (ranks_a, made_a), (ranks_b, made_b) = cut_a, cut_b
    a = sharded(tmp_path / "a", ranks_a, made_a(ranks_a))
    verdict = diff(a, sharded(tmp_path / "b", ranks_b, made_b(ranks_b)))
    assert (verdict.kind, verdict.num_steps_different, verdict.notes) == (Kind.EQUAL, 0, ())
    sick = sharded(tmp_path / "c", ranks_b, made_b(ranks_b), sick=(1, NAMES[1]))
    for x, y in ((a, sick), (sick, a)):
        verdict = diff(x, y)
        assert verdict.first is not None
        assert verdict.first.a is not None
        assert (verdict.kind, verdict.num_steps_different) == (Kind.DIVERGED, 2)
        assert (verdict.first.step, verdict.first.a.name, verdict.first.num_different) == (1, NAMES[1], 1)
        assert verdict.first.last_equal is not None
        assert verdict.first.last_equal.name == NAMES[0]
        assert verify(y) == []
        is_cut_alike = cut_a == cut_b
        assert (verdict.first.rank is None) == (not is_cut_alike)
        assert verdict.first.ranks == ((made_a(ranks_a)(13),) if is_cut_alike else ())


def test_a_whole_is_compared_with_its_shards(tmp_path: Path) -> None:
    shards = sharded(tmp_path / "shards", 2, by_rows(2))

    def whole(directory: Path, algorithm: str, sick: tuple[int, str] | None = None) -> Trace:
        steps = []
        for step in range(3):
            recorded_values = [shard(step, name, weights(step, name, sick), lambda at: True) for name in NAMES]
            global_values_ = [each._replace(scope=Scope.LOGICAL, algorithm=algorithm) for each in recorded_values]
            steps.append([recorded_value("loss", "loss", step), *global_values_])
        return trace(directory, steps)

    assert diff(shards, whole(tmp_path / "a", SHARDSUM_128)).kind is Kind.EQUAL
    verdict = diff(whole(tmp_path / "b", SHARDSUM_128, (2, NAMES[0])), shards)
    assert verdict.first is not None
    assert (verdict.kind, verdict.first.step) == (Kind.DIVERGED, 2)
    verdict = diff(shards, whole(tmp_path / "c", "xxh3_128"))
    assert (verdict.kind, verdict.reasons) == (
        Kind.NOT_COMPARABLE,
        (VerdictCode.DIGESTS_INCOMPARABLE(num_values=6),),
    )


def test_a_shard_that_is_missing_is_a_difference(tmp_path: Path) -> None:
    a = sharded(tmp_path / "a", 3, by_rows(3))
    fewer = sharded(tmp_path / "b", 2, by_rows(3))
    verdict = diff(a, fewer)
    assert verdict.first is not None
    assert (verdict.kind, verdict.first.step, verdict.num_steps_different) == (Kind.DIVERGED, 0, 3)


def test_of_wholes_that_may_be_cut_otherwise_nothing_is_known_without_every_log(tmp_path: Path) -> None:
    a, b = sharded(tmp_path / "a", 2, by_rows(2)), sharded(tmp_path / "b", 2, by_columns(2))
    (b.directory / "rank-1.log").unlink()
    verdict = diff(a, read_trace(b.directory))
    assert (verdict.kind, verdict.num_steps) == (Kind.INCOMPLETE, 0)
    assert (verdict.reasons, verdict.notes) == (
        (VerdictCode.TRACE_INCOMPLETE(trace="B", message="rank-1.log is missing"),),
        (),
    )


def test_a_part_that_two_ranks_have_counts_twice(tmp_path: Path) -> None:
    """Equal roots of ranks are no proof where the cut is another."""
    part = shard(0, "w", weights(0, "w", None), lambda at: True)
    step = [recorded_value("loss", "loss", 0), part]
    alone = trace(tmp_path / "a", [step])
    twice = trace_of_ranks(tmp_path / "b", [[step], [step]])
    assert {log.heads[0].root for log in (*alone.ranks.values(), *twice.ranks.values())} == {
        alone.ranks[0].heads[0].root
    }
    assert diff(alone, twice).kind is Kind.DIVERGED


def test_ranks_whose_wholes_differ_alike_are_equal_over_any_cut(tmp_path: Path) -> None:
    """A rank's own value, in its own log of either trace, beside shards that were cut otherwise."""

    def two_ranks(directory: Path, cut: Cut, own: int) -> Trace:
        data = weights(0, "w", None)
        parts = [shard(0, "w", data, lambda at: cut(at) == 0), shard(0, "w", data, lambda at: cut(at) == 1)]
        return trace_of_ranks(
            directory, [[[part, recorded_value("rollout", "batch", rank * own)]] for rank, part in enumerate(parts)]
        )

    rows, columns = by_rows(2), by_columns(2)
    verdict = diff(two_ranks(tmp_path / "a", rows, 1), two_ranks(tmp_path / "b", columns, 1))
    assert (verdict.kind, verdict.notes) == (Kind.EQUAL, ())
    assert diff(two_ranks(tmp_path / "c", rows, 1), two_ranks(tmp_path / "d", columns, 2)).kind is Kind.DIVERGED
