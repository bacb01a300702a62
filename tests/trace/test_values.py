"""Floats by their bits: what is written is read, decimals are short and true."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.bits.errors import TraceError
from harness.trace.values import FLOATS, Float, plain
from tests.support.traces import SEEDED

any_float = st.sampled_from(list(FLOATS)).flatmap(
    lambda dtype: st.builds(Float, st.just(dtype), st.integers(0, 2 ** (8 * FLOATS[dtype].num_bytes) - 1))
)


@SEEDED
@given(any_float)
def test_what_is_written_is_read(value: Float) -> None:
    assert Float.parse(str(value)) == value
    if not math.isnan(value.value()):
        assert Float.of(value.value(), value.dtype) == value


@SEEDED
@given(any_float)
def test_a_decimal_is_the_value_in_its_own_dtype(value: Float) -> None:
    decimal = value.decimal()
    assert (decimal is None) == (not math.isfinite(value.value()))
    if decimal is not None:
        assert Float.of(decimal, value.dtype) == value


@pytest.mark.parametrize(
    ("value", "dtype", "text"),
    [
        (0.1, "f32", "f32:3dcccccd"),
        (0.1, "f64", "f64:3fb999999999999a"),
        (-0.0, "f16", "f16:8000"),
        (1.0, "bf16", "bf16:3f80"),
        (1e300, "f32", "f32:7f800000"),
        (-1e300, "bf16", "bf16:ff80"),
        (math.nan, "bf16", "bf16:7fc0"),
    ],
)
def test_known_floats(value: float, dtype: str, text: str) -> None:
    assert str(Float.of(value, dtype)) == text


def test_json_holds_bits_and_a_decimal() -> None:
    assert plain(Float.of(0.1, "f32")) == ["f32:3dcccccd", 0.1]
    assert plain(Float("f32", 0x7FC00001)) == ["f32:7fc00001", None]
    assert plain(None) is None


@pytest.mark.parametrize("text", ["f32:3dccccc", "f32:3DCCCCCD", "f8:00", "", "f32", "f16: 001"])
def test_other_texts_are_refused(text: str) -> None:
    with pytest.raises(TraceError):
        Float.parse(text)
