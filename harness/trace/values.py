"""Values by their bits: what floats are made of, and how one is written down so that no bit is lost.

A float is written as its bits in its own dtype, "f32:3dcccccd", beside a decimal for people, null where it is not
finite.
"""

import math
import re
import struct
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import compress
from operator import ne
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
    def infinity(self) -> int:
        return (self.sign - 1) >> self.fraction_bits << self.fraction_bits

    def is_nan(self, bits: int) -> bool:
        """Whether these bits are a NaN."""
        return bits & (self.sign - 1) > self.infinity


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


# --------------------------------------------------------------------------------------- two values, element by element
# Two values of one dtype and shape, element by element: how many differ, by how much, and where NaN came in.
#
# Pieces that are equal are skipped as memory.

_PIECE_ELEMENTS = 2**14
MAX_DIFFERENT = 2**24
"""After so many elements that differ the rest is not looked at: some seconds."""
_SIGNED = {1: "b", 2: "h", 4: "i", 8: "q"}
_UNSIGNED = {1: "B", 2: "H", 4: "I", 8: "Q"}
_FLOAT_CODES = {"f64": "d", "f32": "f", "f16": "e"}


@dataclass(frozen=True, slots=True)
class ValueDifference:
    """How two values of one dtype and shape differ."""

    num_elements: int
    num_compared: int
    """From the first element on: all of them, unless MAX_DIFFERENT were found before."""
    num_different: int
    """Elements whose bits are not the same."""
    first: int
    """Index of the first of them, C order."""
    a: str
    """That element in A, to be read: "0.1", "nan (7fc00001)", "17"."""
    b: str
    max_ulp: int | None
    """The largest distance in units in the last place, of pairs without NaN; None where there is none, or no float."""
    max_abs: float | None
    """The largest absolute distance of pairs without NaN; None where there is none, or no number."""
    num_nan_only_a: int
    """Elements that are NaN in A and none in B."""
    num_nan_only_b: int
    num_nan_both: int
    """Number of different elements that are NaN in both, with different payloads."""

    @property
    def is_nan_payload_only(self) -> bool:
        """Whether each element that differs is a NaN in both."""
        return self.num_nan_both == self.num_different


def coordinates(number: int, ranges: Sequence[range]) -> list[int]:
    """Where the element of this number, in C order, lies in a tensor of which a part, or all, has these indices."""
    found: list[int] = []
    for indices in reversed(ranges):
        number, at = divmod(number, len(indices))
        found.append(indices[at])
    return found[::-1]


def compare(dtype: str, a: bytes, b: bytes) -> ValueDifference | None:
    """How two buffers of as many bytes differ; None where they do not.

    Little-endian, C-contiguous. Of a dtype that is not understood, each byte counts as an element.
    """
    if a == b:
        return None
    assert len(a) == len(b)
    kind = dtype if dtype in ELEMENT_BYTES else "u8"
    size, floats = ELEMENT_BYTES[kind], FLOATS.get(kind)
    sign = floats.sign if floats else 0
    num_different, first, nans = 0, -1, Counter[tuple[bool, bool]]()
    max_ulp, max_abs = -1, -1.0
    for start in range(0, len(a), _PIECE_ELEMENTS * size):
        x, y = a[start : start + _PIECE_ELEMENTS * size], b[start : start + _PIECE_ELEMENTS * size]
        if x == y:
            continue
        of_x, of_y = _unpacked(_code(kind), x), _unpacked(_code(kind), y)
        is_other = bytes(map(ne, of_x, of_y))
        first = first if num_different else start // size + is_other.find(1)
        num_different += is_other.count(1)
        elements = zip(of_x, of_y, numbers(kind, x), numbers(kind, y), strict=True)
        for bits, other_bits, number, other in compress(elements, is_other):
            if math.isnan(number) or math.isnan(other):
                nans[math.isnan(number), math.isnan(other)] += 1
                continue
            if (distance := abs(number - other)) > max_abs:
                max_abs = distance
            # bits grow with the value or shrink with it; both zeros are at 0
            ulp = abs((sign - bits if bits & sign else bits) - (sign - other_bits if other_bits & sign else other_bits))
            max_ulp = max(max_ulp, ulp)
        if num_different >= MAX_DIFFERENT:
            break
    one, other = (int.from_bytes(each[first * size : (first + 1) * size], "little") for each in (a, b))
    return ValueDifference(
        num_elements=len(a) // size,
        num_compared=min(start + _PIECE_ELEMENTS * size, len(a)) // size,
        num_different=num_different,
        first=first,
        a=shown(dtype, one),
        b=shown(dtype, other),
        max_ulp=max_ulp if floats and max_ulp >= 0 else None,
        max_abs=max_abs if dtype in ELEMENT_BYTES and max_abs >= 0 else None,
        num_nan_only_a=nans[True, False],
        num_nan_only_b=nans[False, True],
        num_nan_both=nans[True, True],
    )


def numbers(dtype: str, data: bytes) -> Sequence[float]:
    """The elements of a value of one of ELEMENT_BYTES as Python's numbers."""
    if dtype == "bf16":
        wide = bytearray(2 * len(data))
        wide[2::4], wide[3::4] = data[0::2], data[1::2]
        return _unpacked("f", wide)
    return _unpacked(_FLOAT_CODES.get(dtype) or _code(dtype), data)


def _code(dtype: str) -> str:
    """Of an element's bits."""
    is_unsigned = dtype.startswith("u") or dtype == "bool" or dtype in FLOATS
    return (_UNSIGNED if is_unsigned else _SIGNED)[ELEMENT_BYTES[dtype]]


def _unpacked(code: str, data: bytes | bytearray) -> tuple[Any, ...]:
    return struct.unpack(f"<{len(data) // struct.calcsize('<' + code)}{code}", data)


# --------------------------------------------------------------------------------------------------------------- costs

COSTS = re.compile(
    "time|timestamps?|runtime|durations?|elapsed|latency|latencies|eta|m?s|us|ns|secs?|seconds?|minutes|hours"
    "|throughput|fps|qps|sps|tps|[mh]fu|t?flops|flos|util|utilization|memory|mem|vram|[gm]i?b"
)
"""A name of the curve that has one of these words is a cost of the machine: `train_runtime`, `memory/peak_gb`."""
_WORD = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")


def is_cost(name: str) -> bool:
    """Whether a value of this name measures the cost of a step, not its result."""
    return any(COSTS.fullmatch(word.lower()) for word in _WORD.findall(name))
