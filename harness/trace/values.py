"""Values by their bits: what floats are made of, and how one is written down so that no bit is lost.

A float is written as its bits in its own dtype, "f32:3dcccccd", beside a decimal for people, null where it is not
finite.
"""

import math
import struct
from dataclasses import dataclass
from typing import Any

from harness.bits.errors import TraceError


@dataclass(frozen=True, slots=True)
class FloatType:
    """An IEEE 754 binary format, or bfloat16."""

    num_bytes: int
    fraction_bits: int
    max_digits: int
    """Decimal digits that are always enough."""

    @property
    def sign(self) -> int:
        return 1 << (8 * self.num_bytes - 1)

    @property
    def mask(self) -> int:
        return 2 * self.sign - 1

    @property
    def infinity(self) -> int:
        return (self.sign - 1) >> self.fraction_bits << self.fraction_bits

    def is_nan(self, bits: int) -> bool:
        """Whether these bits are a NaN."""
        return bits & (self.sign - 1) > self.infinity

    def place(self, bits: int) -> int:
        """Return the rank of these bits (no NaN) among all values; neighbours are 1 apart, both zeros are 0."""
        size = bits & (self.sign - 1)
        return -size if bits & self.sign else size


FLOATS = {
    "f64": FloatType(8, 52, 17),
    "f32": FloatType(4, 23, 9),
    "f16": FloatType(2, 10, 5),
    "bf16": FloatType(2, 7, 4),
}
_INTEGERS = {"i64": 8, "i32": 4, "i16": 2, "i8": 1, "u64": 8, "u32": 4, "u16": 2, "u8": 1, "bool": 1}
ELEMENT_BYTES = {name: kind.num_bytes for name, kind in FLOATS.items()} | _INTEGERS
"""Sizes of the dtypes whose elements are understood; others are compared byte by byte."""


@dataclass(frozen=True, slots=True)
class Float:
    """A float of any of these dtypes, by its bits."""

    dtype: str
    """A key of FLOATS."""
    bits: int

    @classmethod
    def of(cls, value: float, dtype: str = "f64") -> "Float":
        """Return the nearest float of that dtype; a number that is too large becomes infinite.

        TraceError for a dtype that is not in FLOATS.
        """
        kind = float_type(dtype)
        if dtype == "bf16":
            bits = int.from_bytes(_packed("<f", value), "little")
            if FLOATS["f32"].is_nan(bits):
                return cls(dtype, bits >> 16 | 1 << 6)  # quiet: else cutting the payload could leave an infinity
            return cls(dtype, (bits + 0x7FFF + (bits >> 16 & 1)) >> 16)
        code = {8: "<d", 4: "<f", 2: "<e"}[kind.num_bytes]
        return cls(dtype, int.from_bytes(_packed(code, value), "little"))

    @classmethod
    def parse(cls, text: str) -> "Float":
        """The inverse of str(); TraceError for any other text."""
        dtype, _, digits = text.partition(":")
        kind = float_type(dtype)
        if len(digits) != 2 * kind.num_bytes or not set(digits) <= set("0123456789abcdef"):
            raise TraceError(
                f"the float {text!r} is malformed",
                legal=f"{2 * kind.num_bytes} hexadecimal digits after {dtype}:",
            )
        return cls(dtype, int(digits, 16))

    def __str__(self) -> str:
        return f"{self.dtype}:{self.bits:0{2 * FLOATS[self.dtype].num_bytes}x}"

    def value(self) -> float:
        """The value, which any of these dtypes has as a Python float too."""
        num_bytes = FLOATS[self.dtype].num_bytes
        if self.dtype == "bf16":
            return float(struct.unpack("<f", (self.bits << 16).to_bytes(4, "little"))[0])
        code = {8: "<d", 4: "<f", 2: "<e"}[num_bytes]
        return float(struct.unpack(code, self.bits.to_bytes(num_bytes, "little"))[0])

    def decimal(self) -> float | None:
        """The float64 of fewest digits that is this value in its own dtype; None where it is not finite."""
        value = self.value()
        if not math.isfinite(value):
            return None
        kind = FLOATS[self.dtype]
        for num_digits in range(1, kind.max_digits):
            short = float(f"{value:.{num_digits}g}")
            if Float.of(short, self.dtype) == self:
                return short
        return float(f"{value:.{kind.max_digits}g}")


def float_type(dtype: str) -> FloatType:
    """The float type of that name; TraceError where there is none."""
    if dtype not in FLOATS:
        raise TraceError(f"the float type {dtype!r} does not exist", legal=", ".join(FLOATS))
    return FLOATS[dtype]


def shown(dtype: str, bits: int) -> str:
    """An element as people read it; a NaN with its bits."""
    if dtype in FLOATS:
        value = Float(dtype, bits)
        number = value.decimal()
        text = repr(number if number is not None else value.value())
        return f"{text} ({str(value).partition(':')[2]})" if math.isnan(value.value()) else text
    if dtype.startswith("i") and dtype in ELEMENT_BYTES:
        num_bits = 8 * ELEMENT_BYTES[dtype]
        return str(bits - (bits >> (num_bits - 1) << num_bits))
    return str(bool(bits)) if dtype == "bool" and bits < 2 else str(bits)


def _packed(code: str, value: float) -> bytes:
    try:
        return struct.pack(code, value)
    except OverflowError:  # Python's own; IEEE 754 rounds to infinity
        return struct.pack(code, math.copysign(math.inf, value))


def plain(value: Float | None) -> list[Any] | None:
    """A float as it stands in JSON: its bits, and a decimal beside them."""
    return None if value is None else [str(value), value.decimal()]
