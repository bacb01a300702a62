"""The grid of a report: counts, first differences, neighbours that share a row or a column."""

import struct
import tempfile
from base64 import b64decode
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.bits.digests import SHARDSUM_128, shardsum
from harness.render.report import grid as grids
from harness.render.report import grid_data as grid_data_module
from harness.render.report.grid import Grid, difference_grid
from harness.render.report.grid_data import KINDS, NO_RANK, grid_data
from harness.trace.chain import RecordedValue, Scope
from harness.trace.diff import diff
from harness.trace.reader import Trace
from harness.trace.verdict import Difference, Kind
from tests.support.traces import (
    SEEDED,
    VALUES,
    flip_bit,
    recorded_value,
    scalar,
    steps_of,
    trace,
    trace_of_ranks,
    trace_of_values,
    value,
)

RECORD = struct.Struct("<HHHHBB16s16s")


def different_steps(grid: Grid, name: str, phase: str) -> list[int]:
    """Columns of one step in which a leaf differs, by their step."""
    (row,) = [at for at, each in enumerate(grid.rows) if (each.phase, each.names) == (phase, (name,))]
    return [
        steps[0] for at, steps in enumerate(grid.columns) if grid.num_different[row * len(grid.columns) + at] and steps
    ]


@pytest.mark.full
@given(st.integers(1, 40), st.integers(1, 12), st.integers(1, 200), st.integers(0, 39), st.integers(0, 11))
@SEEDED
def test_nothing_is_lost_where_neighbours_share_a_cell(
    num_steps: int, num_values: int, max_cells: int, at_step: int, at_leaf: int
) -> None:
    def steps(is_other: bool) -> Sequence[Sequence[RecordedValue]]:
        return [
            [
                recorded_value("backward", f"w{name}", (step, name, is_other and step >= at_step and name == at_leaf))
                for name in range(num_values)
            ]
            for step in range(num_steps)
        ]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(grids, "MAX_ROWS", 5)
        with tempfile.TemporaryDirectory() as scratch:
            a, b = (trace(Path(scratch, str(other)), steps(other)) for other in (False, True))
            found = difference_grid(a, b, max_cells)
    assert sum(found.num_pairs.values()) == num_steps * num_values
    num_different = max(0, num_steps - at_step) if at_leaf < num_values else 0
    assert sum(found.num_different.values()) == num_different
    assert set(found.firsts) == {cell for cell, num in found.num_different.items() if num}
    assert [step for steps in found.columns for step in steps] == list(range(num_steps))
    assert [name for row in found.rows for name in row.names] == [f"w{at}" for at in range(num_values)]
    assert len(found.rows) <= 5
    assert len(found.rows) * len(found.columns) <= max(max_cells, len(found.rows))
    if num_different:
        first = min(found.firsts.values(), key=lambda each: each.step)
        assert (first.step, first.a and first.a.name) == (at_step, f"w{at_leaf}")


def test_leaves_that_no_step_has_together_are_kept_within_bounds(tmp_path: Path) -> None:
    steps = [[recorded_value("backward", f"w{step}", step)] for step in range(40)]
    a, b = (
        trace(tmp_path / "a", steps),
        trace(tmp_path / "b", [*steps[:-1], [recorded_value("backward", "w39", "other")]]),
    )
    found = difference_grid(a, b, 100)
    assert (len(found.rows), len(found.columns)) == (40, 2)
    assert sum(found.num_pairs.values()) == 40
    (first,) = found.firsts.values()
    assert first.step == 39


def test_leaves_that_one_has_and_steps_that_one_has(tmp_path: Path) -> None:
    def without_loss(step: int, each: RecordedValue) -> RecordedValue | None:
        return None if step >= 1 and each.name == "loss" else each

    a, b = trace(tmp_path / "a", steps_of(5)), trace(tmp_path / "b", steps_of(3, without_loss))
    found = difference_grid(a, b)
    assert (found.only_in_a, found.only_in_b) == ((3, 4), ())
    assert different_steps(found, "loss", "loss") == [1, 2]
    assert {first.what for first in found.firsts.values()} == {Difference.VALUE_ONLY_IN_A}
    assert all(first.digest_a and not first.digest_b for first in found.firsts.values())
    other_way = difference_grid(b, a)
    assert {first.what for first in other_way.firsts.values()} == {Difference.VALUE_ONLY_IN_B}
    assert (other_way.only_in_a, other_way.only_in_b) == ((), (3, 4))


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"dtype": "bf16"}, Difference.DTYPE),
        ({"shape": (32, 64)}, Difference.SHAPE),
        ({"algorithm": "own", "digest": bytes(16)}, None),
    ],
)
def test_dtype_and_shape_differ_and_other_algorithms_cannot_be_compared(
    tmp_path: Path, change: dict[str, Any], what: Difference | None
) -> None:
    def other(step: int, each: RecordedValue) -> RecordedValue:
        return each._replace(**change) if each.name == "tokens" else each

    found = difference_grid(trace(tmp_path / "a", steps_of(2)), trace(tmp_path / "b", steps_of(2, other)))
    assert {first.what for first in found.firsts.values()} == ({what} if what else set())


def test_parts_have_rows_and_random_states_have_none(tmp_path: Path) -> None:
    def steps(seed: int) -> list[list[RecordedValue]]:
        return [
            [
                recorded_value("forward", "random.torch", seed, scope=Scope.CONTEXT),
                recorded_value("backward", "w", seed, scope=Scope.PHYSICAL),
                recorded_value("backward", "w", seed, scope=Scope.PHYSICAL, occurrence=1),
                recorded_value("backward", "w", 0),
            ]
        ]

    found = difference_grid(trace(tmp_path / "a", steps(0)), trace(tmp_path / "b", steps(1)))
    assert [(row.names, row.is_part) for row in found.rows] == [(("w",), False), (("w",), True)]
    assert (dict(found.num_pairs), dict(found.num_different)) == ({0: 1, 1: 2}, {1: 2})


def shards(cuts: Sequence[int], bit: int = 0) -> list[list[list[RecordedValue]]]:
    """One step of a whole of 8 words, cut over so many ranks; of each rank its steps."""
    data, found, start = bytes([bit, *range(1, 32)]), [], 0
    for end in cuts:
        digest = shardsum(data[4 * start : 4 * end], 4, start)
        found.append([[RecordedValue("backward", "w", 0, "f32", (8,), SHARDSUM_128, digest, Scope.SHARD)]])
        start = end
    return found


def test_a_whole_that_is_cut_otherwise_does_not_differ(tmp_path: Path) -> None:
    a = trace_of_ranks(tmp_path / "a", shards([4, 8]))
    recut = trace_of_ranks(tmp_path / "recut", shards([3, 8]))
    whole = trace_of_ranks(tmp_path / "whole", shards([8]))
    sick = trace_of_ranks(tmp_path / "sick", shards([3, 8], bit=1))
    sick_whole = trace_of_ranks(tmp_path / "sick_whole", shards([8], bit=1))
    for other, num in ((recut, 0), (whole, 0), (sick_whole, 1)):
        assert sum(difference_grid(a, other).num_different.values()) == num
        assert (diff(a, other).kind is Kind.EQUAL) == (num == 0)
    assert sum(difference_grid(a, sick).num_different.values()) == 2  # of each rank its part of the whole that differs


def test_beside_a_whole_that_is_cut_otherwise_one_that_differs_is_seen(tmp_path: Path) -> None:
    def two(cuts: Sequence[int], bit: int) -> list[list[list[RecordedValue]]]:
        both = zip(shards(cuts), shards(cuts, bit), strict=True)
        return [[[*one, *(each._replace(name="v") for each in other)]] for ((one,), (other,)) in both]

    a, b = (trace_of_ranks(tmp_path / name, two(*how)) for name, how in (("a", ([4, 8], 0)), ("b", ([3, 8], 1))))
    found = difference_grid(a, b)
    assert [found.rows[cell].names for cell in found.firsts] == [("v",)]


def test_of_several_ranks_each_is_counted(tmp_path: Path) -> None:
    sick = steps_of(2, flip_bit(1, "backward", "layers.0.weight"))
    a = trace_of_ranks(tmp_path / "a", [steps_of(2), steps_of(2)])
    b = trace_of_ranks(tmp_path / "b", [steps_of(2), sick])
    found = difference_grid(a, b)
    (first,) = found.firsts.values()
    assert (first.step, first.rank, sum(found.num_different.values())) == (1, 1, 1)
    assert sum(found.num_pairs.values()) == 2 * 2 * len(VALUES)
    of_one_rank = difference_grid(trace(tmp_path / "c", steps_of(2)), b)
    assert different_steps(of_one_rank, "layers.0.weight", "backward") == [1], "rank 1 contradicts rank 0"


# ------------------------------------------------------------------------------------------ as the page's script has it


def unpacked(data: dict[str, object], name: str) -> tuple[int, ...]:
    raw = b64decode(str(data[name]))
    return struct.unpack(f"<{len(raw) // 4}I", raw)


def test_the_script_is_given_the_same_numbers(tmp_path: Path) -> None:
    a = trace(tmp_path / "a", steps_of(6))
    b = trace(tmp_path / "b", steps_of(6, flip_bit(3, "backward", "layers.1.weight")))
    found = difference_grid(a, b)
    data = grid_data(found, a, b)
    assert [row["names"] for row in data["rows"]] == [[name] for _, name in VALUES]
    assert [data["phases"][row["phase"]] for row in data["rows"]] == [phase for phase, _ in VALUES]
    assert unpacked(data, "pairs") == (1,) * 36
    assert unpacked(data, "different") == tuple(int(cell // 6 == 4 and cell % 6 >= 3) for cell in range(36))
    records = [RECORD.unpack(each) for each in chunks(b64decode(data["firsts"]), RECORD.size)]
    assert len(records) == 3
    first = found.firsts[4 * 6 + 3]
    assert records[0] == (0, 0, 0, 0, KINDS.index(Difference.VALUE), 0, first.digest_a, first.digest_b)


def chunks(data: bytes, size: int) -> list[bytes]:
    return [data[start : start + size] for start in range(0, len(data), size)]


def test_of_many_kept_values_the_earliest_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def run(name: str, last: float) -> Trace:
        data = struct.pack("<8f", *range(7), last)
        return trace_of_values(tmp_path / name, [[value("backward", "w", "f32", (8,), data)]] * 3)

    a, b = run("a", 7.0), run("b", 8.0)
    grid = difference_grid(a, b)
    assert list(grid_data(grid, a, b)["values"]) == ["0", "1", "2"]
    monkeypatch.setattr(grid_data_module, "MAX_KEPT_BYTES", 2 * 32)
    assert list(grid_data(grid, a, b)["values"]) == ["0", "1"]


def test_values_that_are_known_are_told_in_ulp(tmp_path: Path) -> None:
    a = trace(tmp_path / "a", [[scalar("loss", "loss", 0x3F800000)]])
    b = trace(tmp_path / "b", [[scalar("loss", "loss", 0x3F800003)]])
    assert known(a, b) == {"0": "A 1.0, B 1.0000004, 3 ulp apart"}
    kept = [[value("backward", "w", "f32", (8,), struct.pack("<8f", *range(8)))]]
    other = [[value("backward", "w", "f32", (8,), struct.pack("<8f", 0, 1, 2, 3, 4, 5, 6.0000005, 8))]]
    a, b = trace_of_values(tmp_path / "c", kept), trace_of_values(tmp_path / "d", other)
    assert known(a, b) == {
        "0": "2 of 8 elements differ, at most 2,097,152 ulp apart; the first, element 6: A 6.0, B 6.0000005"
    }
    without = trace_of_values(tmp_path / "e", other, keeps=False)
    assert known(a, without) == {}


def known(a: Trace, b: Trace) -> object:
    return grid_data(difference_grid(a, b), a, b)["values"]


def test_a_whole_that_was_merged_has_no_rank(tmp_path: Path) -> None:
    a, b = trace_of_ranks(tmp_path / "a", shards([8])), trace_of_ranks(tmp_path / "b", shards([4, 8], bit=1))
    data = grid_data(difference_grid(a, b), a, b)
    assert RECORD.unpack(b64decode(data["firsts"]))[1] == NO_RANK
