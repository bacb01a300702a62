"""Digests: shards add up, and the changes that a weaker sum is blind to are seen."""

import random
import struct
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.bits.digests import DIGEST_BYTES, ELEMENT_BYTES, RAW, XXH3_128, add_shards, digest, mix, shardsum, word_key
from harness.bits.errors import TraceError
from tests.support.traces import SEEDED

SIZES = st.sampled_from(ELEMENT_BYTES)
CODES = {4: "I", 8: "Q"}
Change = dict[int, tuple[int, int]]
"""Index of an element -> its bits before and after."""


def is_seen(change: Change, size: int = 4) -> bool:
    """Whether these changes of a value, however large it is, change its digest: the rest of the sum stays."""
    before, after = (
        add_shards(shardsum(struct.pack(f"<{CODES[size]}", bits[side]), size, at) for at, bits in change.items())
        for side in (0, 1)
    )
    return before != after


@SEEDED
@given(SIZES, st.binary(max_size=64), st.lists(st.integers(0, 64), max_size=4), st.randoms(use_true_random=False))
def test_shards_add_up_in_any_order(size: int, data: bytes, cuts: list[int], order: random.Random) -> None:
    data = data[: len(data) // size * size]
    edges = [0, *sorted(min(cut, len(data) // size) for cut in cuts), len(data) // size]
    shards = [shardsum(data[a * size : b * size], size, 1020 + a) for a, b in pairwise(edges)]
    order.shuffle(shards)
    assert add_shards(shards) == shardsum(data, size, 1020)


@SEEDED
@given(st.integers(0, 2**40), st.integers(0, 2**32 - 1), st.integers(0, 2**32 - 1))
def test_a_single_change_is_always_seen(index: int, before: int, after: int) -> None:
    assert is_seen({index: (before, after)}) == (before != after)
    assert word_key(0, index) % 2 == word_key(1, index) % 2 == 1


@pytest.mark.full
@settings(SEEDED, max_examples=1000)
@given(
    st.tuples(st.integers(0, 1023), st.integers(0, 1023)).filter(lambda pair: pair[0] != pair[1]),
    st.tuples(st.integers(0, 2**30), st.integers(0, 2**30)).filter(lambda pair: pair[0] != pair[1]),
    st.one_of(st.just(2**31), st.integers(1, 2**31)),
    st.booleans(),
)
def test_the_corners_of_a_rectangle_do_not_cancel(
    places: tuple[int, int], blocks: tuple[int, int], by: int, is_same_sign: bool
) -> None:
    """+d -d -d +d at two places of two blocks: what a sum of row keys plus column keys is blind to."""
    up, down = (2**31 - by // 2, 2**31 - by // 2 + by), (2**31 - by // 2 + by, 2**31 - by // 2)
    (i, j), (a, b) = places, blocks
    corners = {1024 * a + i: up, 1024 * a + j: down, 1024 * b + i: down, 1024 * b + j: up}
    assert is_seen(dict.fromkeys(corners, up) if is_same_sign else corners)


@SEEDED
@given(st.sampled_from([1, 64, 1000, 1024, 2048]), st.tuples(st.integers(0, 40), st.integers(0, 40)), st.data())
def test_swapped_rows_are_seen(num_columns: int, rows: tuple[int, int], data: st.DataObject) -> None:
    columns = data.draw(st.lists(st.integers(0, num_columns - 1), min_size=1, max_size=6, unique=True))
    one, other = (data.draw(st.lists(st.integers(0, 2**32 - 1), min_size=6, max_size=6)) for _ in range(2))
    change: Change = {}
    for column, x, y in zip(columns, one, other, strict=False):
        change |= {rows[0] * num_columns + column: (x, y), rows[1] * num_columns + column: (y, x)}
    is_change = rows[0] != rows[1] and one[: len(columns)] != other[: len(columns)]
    assert is_seen(change) == is_change or rows[0] == rows[1]


@SEEDED
@given(st.lists(st.integers(0, 2**32 - 1), min_size=2, max_size=12), st.randoms(use_true_random=False))
def test_a_permutation_is_seen(values: list[int], order: random.Random) -> None:
    shuffled = order.sample(values, len(values))
    one, other = (struct.pack(f"<{len(values)}I", *each) for each in (values, shuffled))
    assert (shardsum(one, 4) == shardsum(other, 4)) == (values == shuffled)


def test_a_shard_of_zeros_that_is_missing_is_seen() -> None:
    whole = shardsum(bytes(4000), 4)
    assert add_shards([shardsum(bytes(2000), 4), shardsum(bytes(2000), 4, 500)]) == whole
    assert add_shards([shardsum(bytes(2000), 4)]) != whole
    assert add_shards([whole, shardsum(bytes(4), 4, 3)]) != whole


def test_larger_elements_are_words_low_ones_first() -> None:
    data = random.Random(3).randbytes(48)
    assert shardsum(data, 8, 5) == shardsum(data, 4, 10)
    assert shardsum(data, 16, 5) == shardsum(data, 4, 20)
    assert shardsum(b"\xff" * 4, 4) != shardsum(b"\xff" * 4, 2), "a word of ones is no zero"


def test_mix_is_splitmix64() -> None:
    state, found = 1234567, []
    for _ in range(3):
        found.append(mix(state))
        state = (state + 0x9E3779B97F4A7C15) % 2**64
    assert found == [6457827717110365317, 3203168211198807973, 9817491932198370423]


@SEEDED
@given(st.binary(max_size=40))
def test_short_values_are_kept_as_they_are(data: bytes) -> None:
    algorithm, found = digest(memoryview(data))
    assert len(found) == DIGEST_BYTES
    assert algorithm == (RAW if len(data) <= 16 else XXH3_128)
    if algorithm == RAW:
        assert found[: len(data)] == data


@pytest.mark.parametrize(("data", "size"), [(b"abc", 2), (bytes(24), 16), (b"", 3)])
def test_elements_of_other_sizes_are_refused(data: bytes, size: int) -> None:
    with pytest.raises(TraceError, match=f"elements of {size}"):
        shardsum(data, size)
