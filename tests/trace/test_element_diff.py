"""Two values element by element: the fast loops say what a slow one says, and NaN and zeros are themselves."""

import math
import random
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.trace import values
from harness.trace.values import ELEMENT_BYTES, FLOATS, Float, FloatType, ValueDifference, compare, shown
from tests.support.traces import SEEDED

any_float = st.sampled_from(list(FLOATS)).flatmap(
    lambda dtype: st.builds(Float, st.just(dtype), st.integers(0, 2 ** (8 * FLOATS[dtype].num_bytes) - 1))
)


def place(kind: FloatType, bits: int) -> int:
    """The rank of these bits among all values; neighbours are 1 apart, both zeros are 0."""
    size = bits & (kind.sign - 1)
    return -size if bits & kind.sign else size


def slow(dtype: str, a: bytes, b: bytes) -> ValueDifference | None:
    """The same as `compare`, an element at a time."""
    size = ELEMENT_BYTES[dtype]
    pairs = [
        (int.from_bytes(a[at : at + size], "little"), int.from_bytes(b[at : at + size], "little"))
        for at in range(0, len(a), size)
    ]
    different = [index for index, (x, y) in enumerate(pairs) if x != y]
    if not different:
        return None
    ulps: list[int] = []
    distances: list[float] = []
    nans = {(True, True): 0, (True, False): 0, (False, True): 0, (False, False): 0}
    for x, y in (pairs[index] for index in different):
        if dtype in FLOATS:
            p, q = Float(dtype, x).value(), Float(dtype, y).value()
            nans[math.isnan(p), math.isnan(q)] += 1
            if not math.isnan(p) and not math.isnan(q):
                distances.append(abs(p - q))
                ulps.append(abs(place(FLOATS[dtype], x) - place(FLOATS[dtype], y)))
        else:
            signed = [x, y] if dtype == "bool" else [int(shown(dtype, each)) for each in (x, y)]
            distances.append(abs(signed[0] - signed[1]))
    first = different[0]
    return ValueDifference(
        num_elements=len(pairs),
        num_compared=len(pairs),
        num_different=len(different),
        first=first,
        a=shown(dtype, pairs[first][0]),
        b=shown(dtype, pairs[first][1]),
        max_ulp=max(ulps, default=None),
        max_abs=max(distances, default=None),
        num_nan_only_a=nans[True, False],
        num_nan_only_b=nans[False, True],
        num_nan_both=nans[True, True],
    )


@st.composite
def two_values(draw: st.DrawFn) -> tuple[str, bytes, bytes]:
    """Two buffers of one dtype that agree in most elements, with many an infinity, NaN and zero of both signs."""
    dtype = draw(st.sampled_from(sorted(ELEMENT_BYTES)))
    size = ELEMENT_BYTES[dtype]
    bits = st.integers(0, 2 ** (8 * size) - 1)
    if dtype in FLOATS:
        kind = FLOATS[dtype]
        specials = [0, kind.sign, kind.infinity, kind.infinity | kind.sign, kind.infinity + 1, kind.infinity + 2, 1]
        bits = st.one_of(bits, st.sampled_from(specials), st.integers(kind.infinity // 2, kind.infinity // 2 + 4))
    a = draw(st.lists(bits, min_size=1, max_size=12))
    b = [draw(st.one_of(st.just(each), bits)) for each in a]
    one, other = (b"".join(each.to_bytes(size, "little") for each in value) for value in (a, b))
    return dtype, one, other


@SEEDED
@given(two_values())
def test_the_fast_loops_say_what_the_slow_one_says(values: tuple[str, bytes, bytes]) -> None:
    dtype, a, b = values
    assert compare(dtype, a, b) == slow(dtype, a, b)


@pytest.mark.parametrize("dtype", ["f32", "bf16"])
@pytest.mark.parametrize("changed", [[16384], [3, 20_000, 20_001, 49_999]])
def test_of_many_elements_the_right_ones_are_counted(dtype: str, changed: list[int]) -> None:
    size = ELEMENT_BYTES[dtype]
    a = random.Random(1).randbytes(50_000 * size)
    b = bytearray(a)
    for index in changed:
        b[index * size] ^= 1
    found = compare(dtype, a, bytes(b))
    assert found == slow(dtype, a, bytes(b))
    assert found is not None
    assert (found.num_elements, found.num_different, found.first) == (50_000, len(changed), changed[0])


def test_after_enough_differences_the_rest_is_not_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    a, b = bytes(160_000), bytes(80_000) + b"\x01" * 80_000
    monkeypatch.setattr(values, "MAX_DIFFERENT", 100)
    found = compare("u8", a, b)
    assert found is not None
    assert (found.first, found.num_elements, found.num_compared) == (80_000, 160_000, 81_920)
    assert found.num_different == 1920
    whole = compare("u8", a, bytes(159_999) + b"\x01")
    assert whole is not None
    assert (whole.num_compared, whole.num_different) == (160_000, 1)


def test_other_dtypes_have_no_ulp() -> None:
    found = compare("i32", struct.pack("<i", -5), struct.pack("<i", 7))
    assert found is not None
    assert (found.a, found.b, found.max_ulp, found.max_abs, found.is_nan_payload_only) == ("-5", "7", None, 12, False)
    unknown = compare("f8e5m2", b"\x01\x02", b"\x01\x03")
    assert unknown is not None
    assert (unknown.num_elements, unknown.first, unknown.a, unknown.max_abs) == (2, 1, "2", None)
    assert shown("u8", 255) == "255"
