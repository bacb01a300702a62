"""Records of operations: read whole or cut, and compared to the first operation that differs."""

import os
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.bits.errors import TraceError
from harness.trace.diff import ops_of_other_steps
from harness.trace.ops import (
    MAX_BYTES,
    OPS,
    OpDifference,
    Operation,
    OpRecord,
    OpValue,
    OpVerdict,
    compare_ops,
    ops_name,
    ops_of_divergence,
    read_ops,
    recorded_steps,
)
from harness.trace.verdict import VerdictCode
from tests.support.operations import op_value, operation
from tests.support.traces import SEEDED, write_ops

UNWRITTEN = OpValue("f32", "4", "none", "unwritten")


def record(operations: list[Operation], problem: str = "") -> OpRecord:
    return OpRecord(Path("a"), tuple(operations), problem)


def compared(a: list[Operation], b: list[Operation]) -> OpVerdict:
    return compare_ops(record(a), record(b), 0, 7)


TEN = [operation(index) for index in range(10)]


def with_change(at: int, /, **changes: object) -> list[Operation]:
    return [replace(each, **changes) if each.index == at else each for each in TEN]  # type: ignore[arg-type]


# ----------------------------------------------------------------------------------------------------------- reading


def test_what_was_written_is_read(tmp_path: Path) -> None:
    operations = [
        *TEN,
        replace(operation(10), via="pkg/a.py:3 f", random="raw 00", inputs=(op_value(1, "4,2", "conj"),)),
    ]
    found = read_ops(write_ops(tmp_path, operations), 0, 7)
    assert found is not None
    assert (list(found.operations), found.problem) == (operations, "")
    assert read_ops(tmp_path, 0, 8) is None
    assert recorded_steps(tmp_path) == [(0, 7)]


def test_operations_are_in_the_order_in_which_they_began(tmp_path: Path) -> None:
    found = read_ops(write_ops(tmp_path, [TEN[1], TEN[0]]), 0, 7)
    assert found is not None
    assert list(found.operations) == TEN[:2]


@SEEDED
@given(st.integers(0, 3000))
def test_a_record_that_is_cut_anywhere(tmp_path_factory: pytest.TempPathFactory, length: int) -> None:
    directory = write_ops(tmp_path_factory.mktemp("ops"), TEN)
    path = directory / OPS / ops_name(0, 7)
    whole = path.read_bytes()
    path.write_bytes(whole[:length])
    found = read_ops(directory, 0, 7)
    assert found is not None
    num_lines = whole[:length].count(b"\n")
    assert list(found.operations) == TEN[: max(0, num_lines - 1)]
    assert bool(found.problem) == (length < len(whole))


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ('{"k": "head", "version": 3}\n', "version 3"),
        ("nothing\n", "not a record of operations"),
        ('{"k": "op", "i": 0}\n', "not a record of operations"),
        ("[]\n", "not a record of operations"),
    ],
)
def test_what_is_no_record_is_refused(tmp_path: Path, text: str, what: str) -> None:
    (tmp_path / OPS).mkdir()
    (tmp_path / OPS / ops_name(0, 0)).write_text(text)
    with pytest.raises(TraceError, match=what):
        read_ops(tmp_path, 0, 0)


def test_what_is_too_large_is_not_read(tmp_path: Path) -> None:
    write_ops(tmp_path, TEN)
    os.truncate(tmp_path / OPS / ops_name(0, 7), MAX_BYTES + 1)  # without a block of its own
    with pytest.raises(TraceError, match="it has more than 1,073,741,824 bytes"):
        read_ops(tmp_path, 0, 7)


# --------------------------------------------------------------------------------------------------------- comparing


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"outputs": (op_value("other"),)}, OpDifference.OUTPUT),
        ({"outputs": ()}, OpDifference.OUTPUT),
        ({"inputs": (op_value("other"),)}, OpDifference.INPUT),
        ({"inputs": (op_value("other"),), "outputs": (op_value("too"),)}, OpDifference.INPUT),
        ({"random": "raw 01"}, OpDifference.RANDOM_STATE),
        ({"arguments": "tensor, 3"}, OpDifference.OTHER_ARGUMENTS),
        ({"inputs": (op_value(("in", 5), "5"),)}, OpDifference.OTHER_ARGUMENTS),
        ({"inputs": (op_value(("in", 5), "4", "strides=2"),)}, OpDifference.OTHER_ARGUMENTS),
        ({"inputs": ()}, OpDifference.OTHER_ARGUMENTS),
        ({"name": "aten.add.Tensor"}, OpDifference.OTHER_OPERATION),
        ({"phase": "backward"}, OpDifference.OTHER_OPERATION),
    ],
)
def test_in_what_an_operation_differs(changes: dict[str, object], what: OpDifference) -> None:
    first = compared(TEN, with_change(5, **changes)).first
    assert first is not None
    assert (first.what, first.a, first.last_equal) == (what, TEN[5], TEN[4])


@pytest.mark.parametrize(
    "changes",
    [
        {"at": "other.py:1 f"},
        {"inputs": (op_value(("in", 5), "4", "align=16"),)},
        {"inputs": (UNWRITTEN,)},
        {"makers": (1,)},
    ],
)
def test_what_is_no_difference(changes: dict[str, object]) -> None:
    assert compared(TEN, with_change(5, **changes)).first is None


def test_a_record_that_was_cut_is_compared_as_far_as_it_goes() -> None:
    verdict = compare_ops(record(TEN), record(TEN[:6], "cut"), 0, 7)
    assert (verdict.first, verdict.problems) == (None, ("B: cut",))


def test_who_wrote_the_input_that_differs() -> None:
    two = replace(TEN[5], inputs=(op_value(1), op_value(2)), makers=(3, -1))
    other = replace(two, inputs=(op_value(8), op_value(9)))
    first = compared([*TEN[:5], two], [*TEN[:5], other]).first
    assert first is not None
    assert (first.inputs_equal, first.makers) == ((False, False), (TEN[3], None))


def test_the_first_that_makes_a_difference_is_told_beside_the_first_that_shows_one() -> None:
    b = [
        replace(each, inputs=(op_value("batch"),))
        if each.index == 2
        else replace(each, outputs=(op_value("new"),))
        if each.index == 6
        else each
        for each in TEN
    ]
    verdict = compared(TEN, b)
    assert verdict.first is not None
    assert verdict.made is not None
    assert (verdict.first.a, verdict.made.a) == (TEN[2], TEN[6])


@SEEDED
@given(st.integers(0, 9), st.sampled_from(["inputs", "outputs", "arguments", "name", "random"]))
def test_the_first_of_any_change_is_found(at: int, what: str) -> None:
    changed = {
        "inputs": (op_value("x"),),
        "outputs": (op_value("y"),),
        "arguments": "3",
        "name": "a.b.c",
        "random": "raw 02",
    }
    b = [replace(each, **({what: changed[what]} if each.index >= at else {})) for each in TEN]  # type: ignore[arg-type]
    first = compared(TEN, b).first
    assert first is not None
    assert first.a == TEN[at]


# --------------------------------------------------------------------------------------------------------- in traces


def test_the_operations_of_the_rank_that_differs(tmp_path: Path) -> None:
    for rank in (0, 1):
        write_ops(tmp_path / "a", TEN, rank=rank)
        write_ops(tmp_path / "b", with_change(5, outputs=()) if rank else TEN, rank=rank)
    verdict = ops_of_divergence(tmp_path / "a", tmp_path / "b", 7)
    assert verdict is not None
    assert (verdict.rank, verdict.first is not None) == (1, True)
    assert ops_of_divergence(tmp_path / "a", tmp_path / "b", 8) is None
    assert ops_of_other_steps(tmp_path / "a", tmp_path / "b", 7) == []
    assert ops_of_other_steps(tmp_path / "a", tmp_path / "b", 8) == [
        VerdictCode.OPERATIONS_OF_OTHER_STEPS(steps=(7,), first_step=8)
    ]
