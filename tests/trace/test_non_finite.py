"""The first NaN or Inf of a step, and what it was made of."""

import math
import struct
from dataclasses import replace
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from harness.trace.ops import INF, NAN, NonFinite, Operation, OpRecord, OpValue, find_non_finite
from tests.support.traces import SEEDED


def value(*words: str) -> OpValue:
    return OpValue("f32", "8", "xxh3_128", "00" * 16, words)


def operation(index: int, gives: str = "", reads: dict[int, str] | None = None, arguments: str = "") -> Operation:
    """An operation that reads from others, by their index, what holds these words."""
    reads = {-1: ""} if reads is None else reads
    inputs = tuple(value(*words.split()) for words in reads.values())
    outputs = (value(*gives.split()),)
    return Operation(index, "forward", "aten.mul.Tensor", "train.py:1 f", "", arguments, inputs, (*reads,), "", outputs)


def found_in(*operations: Operation) -> NonFinite | None:
    return find_non_finite(OpRecord(Path("a"), operations, ""))


def test_where_all_is_finite_nothing_is_found() -> None:
    assert found_in() is None
    assert found_in(operation(0), operation(1, reads={0: ""})) is None


def test_the_first_that_makes_a_nan_is_found_and_what_hands_it_on_is_not() -> None:
    made = operation(1, "nan", {0: ""})
    assert found_in(operation(0), made, operation(2, "nan", {1: "nan"})) == NonFinite(NAN, made)


def test_the_inf_that_a_nan_is_made_of_is_followed_back_to_where_it_began() -> None:
    origin, made = operation(1, "inf", {0: ""}), operation(4, "nan", {3: "inf", 0: ""})
    between = [operation(2, "inf", {1: "inf"}), operation(3, "inf", {2: "inf"})]
    harmless = operation(0, "inf", arguments="[8], -inf")
    assert found_in(harmless, origin, *between, made) == NonFinite(NAN, made, origin=origin, num_between=2)
    from_outside = operation(0, "nan", {-1: "inf"})
    assert found_in(from_outside) == NonFinite(NAN, from_outside)


def test_what_was_there_before_is_told_by_its_first_reader() -> None:
    reader = operation(1, "", {-1: "nan"})
    assert found_in(operation(0), reader, operation(2, "nan")) == NonFinite(NAN, None, read_by=reader)
    assert found_in(replace(reader, inputs=(value("inf"),))) == NonFinite(
        INF, None, read_by=replace(reader, inputs=(value("inf"),))
    )


def test_what_was_asked_for_by_an_argument_is_meant_and_may_be_handed_on() -> None:
    mask = operation(0, "inf", arguments="[8], -inf")
    poison = operation(1, "nan", arguments="tensor, nan")
    copies = operation(2, "inf", {0: "inf"}), operation(3, "nan", {1: "nan"})
    assert found_in(mask, poison, *copies) == NonFinite(NAN, poison, is_argument=True)
    assert found_in(mask, copies[0]) == NonFinite(INF, mask, is_argument=True)
    made = operation(4, "inf")
    assert found_in(mask, poison, *copies, made) == NonFinite(INF, made)
    assert found_in(operation(0, "inf", arguments="info")) == NonFinite(INF, operation(0, "inf", arguments="info"))


def test_a_nan_comes_before_an_inf_that_came_of_nothing() -> None:
    inf, nan = operation(0, "inf"), operation(1, "nan")
    assert found_in(inf, nan) == NonFinite(NAN, nan)


@SEEDED
@given(st.lists(st.floats(width=32), min_size=1, max_size=4))
def test_a_small_value_says_itself_what_is_not_finite(numbers: list[float]) -> None:
    data = struct.pack(f"<{len(numbers)}f", *numbers).ljust(16, b"\0")
    words = {NAN for number in numbers if math.isnan(number)} | {INF for number in numbers if math.isinf(number)}
    assert OpValue("f32", str(len(numbers)), "raw", data.hex()).not_finite == words
    if len(numbers) % 2 == 0:
        assert OpValue("complex64", "1", "raw", data.hex()).not_finite == words
    assert OpValue("i64", "2", "raw", data.hex()).not_finite == set()
