"""A part of a tensor, as what a person types in brackets, and as the elements that it has. Pure.

show weight [0:2, -1]   ─▶   (0, 2, None), -1   ─▶ of shape [3, 4] ─▶   ranges 0:2, 3:4   ─▶   their bytes
"""

import re
from collections.abc import Sequence
from itertools import product
from math import prod

from harness.bits.errors import UsageError
from harness.bits.text import count

Slice = int | tuple[int | None, int | None, int | None]
"""An index, or begin, end and step of a part."""
_PART = re.compile(r"(-?\d+)?(?:(:)(-?\d+)?(?::(\d+)?)?)?", re.ASCII)


def parse_slices(text: str) -> tuple[Slice, ...]:
    """What stands in the brackets: numbers, and parts BEGIN:END:STEP, with commas between them."""
    found: list[Slice] = []
    for part in text.split(","):
        match = _PART.fullmatch(part.strip())
        if match is None or not part.strip() or (match[4] is not None and not int(match[4])):
            raise UsageError(
                f"the slice [{text}]", legal="numbers and BEGIN:END:STEP, STEP above 0", remedy="as in [0:2, -1]"
            )
        begin, colon, end, step = match.groups()
        found.append((_number(begin), _number(end), _number(step)) if colon else int(begin))
    return tuple(found)


def slices_text(slices: Sequence[Slice]) -> str:
    """The inverse of parse_slices, with its brackets; empty for all of a value."""
    return f"[{', '.join(map(_text, slices))}]" if slices else ""


def ranges_of(slices: Sequence[Slice], shape: Sequence[int]) -> tuple[range, ...]:
    """The indices that a part has in each dimension of a tensor; UsageError for indices that are not there."""
    if len(slices) > len(shape):
        raise _refusal(slices, shape)
    found = []
    for size, each in zip(shape, [*slices, *[(None, None, None)] * (len(shape) - len(slices))], strict=True):
        if isinstance(each, int):
            if not -size <= each < size:
                raise _refusal(slices, shape)
            found.append(range(each % size, each % size + 1))
        else:
            begin, end, step = each
            found.append(range(*slice(begin, end, min(step or 1, max(size, 1))).indices(size)))
    return tuple(found)


def shape_of(slices: Sequence[Slice], ranges: Sequence[range]) -> tuple[int, ...]:
    """Return the shape of a part, without the dimensions of which one index was named."""
    named = {at for at, each in enumerate(slices) if isinstance(each, int)}
    return tuple(len(indices) for at, indices in enumerate(ranges) if at not in named)


def part_bytes(data: bytes, shape: Sequence[int], ranges: Sequence[range]) -> bytes:
    """The bytes of a part of a tensor whose bytes, in C order, are `data`."""
    num_elements = prod(shape)
    size = len(data) // num_elements if num_elements else 0
    strides = [size * prod(shape[at + 1 :]) for at in range(len(shape))]
    whole = len(shape)
    while whole and ranges[whole - 1] == range(shape[whole - 1]):  # behind here all of it lies in one piece
        whole -= 1
    piece = size * prod(shape[whole:])
    offsets = ([index * stride for index in indices] for indices, stride in zip(ranges, strides[:whole], strict=False))
    return b"".join(data[begin : begin + piece] for begin in map(sum, product(*offsets)))


def _refusal(slices: Sequence[Slice], shape: Sequence[int]) -> UsageError:
    legal = ", ".join(f"{-size} to {size - 1}" if size else "none" for size in shape)
    return UsageError(
        f"the slice {slices_text(slices)} of a value of shape [{', '.join(map(str, shape))}]",
        legal=f"at most {count(len(shape), 'index', 'indices')}: {legal}" if shape else "no slice: it is one number",
        remedy="use BEGIN:END for a part of unknown size",
    )


def _text(part: Slice) -> str:
    if isinstance(part, int):
        return str(part)
    begin, end, step = ("" if number is None else str(number) for number in part)
    return f"{begin}:{end}" + (f":{step}" if step else "")


def _number(text: str | None) -> int | None:
    return int(text) if text else None
