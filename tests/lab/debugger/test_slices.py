"""A part of a tensor: as typed, and as the elements that it has, which torch says."""

import struct
from math import prod

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.bits.errors import UsageError
from harness.lab.reproduce.debugger.slices import (
    Slice,
    parse_slices,
    part_bytes,
    ranges_of,
    shape_of,
    slices_text,
)
from harness.trace.element_diff import coordinates
from tests.support.traces import SEEDED

torch = pytest.importorskip("torch")

NUMBERS = st.none() | st.integers(-9, 9)
PARTS = st.integers(-6, 6) | st.tuples(NUMBERS, NUMBERS, st.none() | st.integers(1, 9))


@given(st.lists(PARTS, min_size=1))
@SEEDED
def test_a_slice_is_read_as_it_was_meant(slices: list[Slice]) -> None:
    assert parse_slices(slices_text(slices)[1:-1]) == tuple(slices)
    assert parse_slices(slices_text(slices)[1:-1].replace(",", " ,  ")) == tuple(slices)


@st.composite
def parts_of(draw: st.DrawFn) -> tuple[list[int], list[Slice]]:
    """A shape and what may stand in brackets behind it; indices that are there, more often than not."""
    shape = draw(st.lists(st.integers(0, 5), max_size=3))
    inner = [st.integers(-size, size - 1) | PARTS if size else PARTS for size in shape]
    return shape, [draw(each) for each in inner[: draw(st.integers(0, len(inner)))]] + draw(st.lists(PARTS, max_size=1))


@given(parts_of())
@SEEDED
def test_a_part_has_the_elements_that_torch_says_and_what_it_has_not_is_refused(
    part: tuple[list[int], list[Slice]],
) -> None:
    shape, slices = part
    tensor = torch.arange(prod(shape), dtype=torch.int32).reshape(shape)
    try:
        expected = tensor[tuple(each if isinstance(each, int) else slice(*each) for each in slices)]
    except IndexError:
        with pytest.raises(UsageError, match="of a value of shape"):
            ranges_of(slices, shape)
        return
    ranges = ranges_of(slices, shape)
    index = tuple(slice(each.start, each.stop, each.step) for each in ranges)
    assert torch.equal(tensor[index].reshape(expected.shape), expected)
    assert shape_of(slices, ranges) == tuple(expected.shape)
    data = struct.pack(f"<{prod(shape)}i", *range(prod(shape)))
    numbers = expected.reshape(-1).tolist()
    assert part_bytes(data, shape, ranges) == struct.pack(f"<{len(numbers)}i", *numbers)
    for at, number in enumerate(numbers):
        place = coordinates(at, ranges)
        assert int(tensor[tuple(place)]) == number


@pytest.mark.parametrize(
    ("text", "shape", "legal"),
    [
        ("99999", (64,), "at most 1 index: -64 to 63"),
        ("0, 14", (64, 14), "at most 2 indices: -64 to 63, -14 to 13"),
        ("-65", (64,), "at most 1 index: -64 to 63"),
        ("0, 0", (64,), "at most 1 index: -64 to 63"),
        ("0", (), "no slice: it is one number"),
        ("0", (0,), "at most 1 index: none"),
    ],
)
def test_a_refusal_says_which_indices_there_are(text: str, shape: tuple[int, ...], legal: str) -> None:
    with pytest.raises(UsageError) as refused:
        ranges_of(parse_slices(text), shape)
    assert refused.value.legal == legal
    assert refused.value.what.startswith(f"the slice [{text}] of a value of shape [")
    assert refused.value.remedy


@pytest.mark.parametrize("text", ["x", "0:2:0", "0:2:00", ",", "", "1:2:3:4", "1.5", "0:2:-1"])
def test_what_is_no_slice_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="the slice"):
        parse_slices(text)
