"""A grid as the page's script takes it: numbers packed into text, and for cells whose values are known how they differ.

A cell's counts are u32le, one after the other, row by row; of each cell that differs, in the same order, its first
difference: steps from the column's first (u16le), rank (u16le, 65535 for none), occurrence (u16le), name in its row
(u16le), kind and algorithm (a byte each), two digests of 16 bytes.
"""

import struct
from base64 import b64encode
from collections.abc import Iterator, Mapping
from math import prod
from typing import Any

from harness.bits.digests import DIGEST_BYTES, RAW
from harness.bits.text import one_line
from harness.render.report.grid import First, Grid
from harness.trace.chain import RecordedValue
from harness.trace.element_diff import ValueDifference, compare
from harness.trace.reader import Trace
from harness.trace.values import ELEMENT_BYTES
from harness.trace.verdict import Difference

KINDS = tuple(Difference)
NO_RANK = 0xFFFF
MAX_VALUES = 5_000
"""Maximum number of cells with values, the earliest steps first."""
MAX_KEPT_BYTES = 2**23
"""Maximum number of bytes of saved tensors that are compared for them."""


def grid_data(grid: Grid, a: Trace, b: Trace) -> dict[str, Any]:
    """The grid in plain values; TraceError where a file of kept tensors cannot be read."""
    num_cells = len(grid.rows) * len(grid.columns)
    phases = list(dict.fromkeys(row.phase for row in grid.rows))
    algorithms = sorted({value.algorithm for first in grid.firsts.values() if (value := first.a or first.b)})
    return {
        "phases": [one_line(phase, 60) for phase in phases],
        "rows": [
            {"phase": phases.index(row.phase), "names": [one_line(name) for name in row.names], "part": row.is_part}
            for row in grid.rows
        ],
        "ranks": max(len(a.ranks), len(b.ranks)),
        "columns": [[steps[0], steps[-1], len(steps)] for steps in grid.columns],
        "onlyA": [sum(step in alone for step in steps) for alone in [set(grid.only_in_a)] for steps in grid.columns],
        "onlyB": [sum(step in alone for step in steps) for alone in [set(grid.only_in_b)] for steps in grid.columns],
        "pairs": _packed(struct.pack(f"<{num_cells}I", *map(grid.num_pairs.__getitem__, range(num_cells)))),
        "different": _packed(struct.pack(f"<{num_cells}I", *map(grid.num_different.__getitem__, range(num_cells)))),
        "firsts": _packed(b"".join(_record(grid, cell, algorithms) for cell in sorted(grid.firsts))),
        "kinds": [kind.value for kind in KINDS],
        "algorithms": [one_line(name, 60) for name in algorithms],
        "values": known_values(grid, a, b),
    }


def _packed(data: bytes) -> str:
    return b64encode(data).decode("ascii")


_RECORD = struct.Struct(f"<HHHHBB{DIGEST_BYTES}s{DIGEST_BYTES}s")


def _record(grid: Grid, cell: int, algorithms: list[str]) -> bytes:
    first = grid.firsts[cell]
    value = first.a or first.b
    assert value is not None
    row, column = divmod(cell, len(grid.columns))
    return _RECORD.pack(
        min(first.step - grid.columns[column][0], NO_RANK),
        NO_RANK if first.rank is None else min(first.rank, NO_RANK - 1),
        min(value.occurrence, NO_RANK),
        grid.rows[row].names.index(value.name),
        KINDS.index(first.what),
        min(algorithms.index(value.algorithm), 255),
        first.digest_a,
        first.digest_b,
    )


def known_values(grid: Grid, a: Trace, b: Trace) -> Mapping[str, str]:
    """By cell, how its first difference differs in elements and units in the last place, where both have the values."""
    told: dict[str, str] = {}
    left = MAX_KEPT_BYTES
    for cell in sorted(grid.firsts, key=lambda cell: (grid.firsts[cell].step, cell)):
        first = grid.firsts[cell]
        size = _kept_bytes(first)
        if len(told) >= MAX_VALUES or size > left:
            continue
        if (value := first_value(first, a, b)) is not None:
            told[str(cell)] = distance(value)
            left -= size
    return told


def _kept_bytes(first: First) -> int:
    if first.a is None or first.a.algorithm == RAW:
        return 0
    return prod(first.a.shape) * ELEMENT_BYTES.get(first.a.dtype, 1)


def first_value(first: First, a: Trace, b: Trace) -> ValueDifference | None:
    """How the values of a first difference differ; None where they are not known, or not of one shape."""
    if first.what is not Difference.VALUE or first.a is None or first.b is None:
        return None
    sides = ((a, first.a, first.digest_a), (b, first.b, first.digest_b))
    one, other = (next(_kept(trace, first, value._replace(digest=digest)), None) for trace, value, digest in sides)
    if one is None or other is None or len(one) != len(other):
        return None
    return compare(first.a.dtype, one, other)


def _kept(trace: Trace, first: First, value: RecordedValue) -> Iterator[bytes]:
    for rank in trace.logs(first.step) if first.rank is None else [first.rank]:
        if (data := trace.tensor(first.step, rank, value)) is not None:
            yield data


def distance(value: ValueDifference) -> str:
    """A 0.1, B 0.2, 3 ulp; of more than one element how many differ."""
    how = "" if value.max_ulp is None else f", at most {value.max_ulp:,} ulp apart"
    if value.num_nan_only_a or value.num_nan_only_b:
        how += f", NaN in A only: {value.num_nan_only_a:,}, in B only: {value.num_nan_only_b:,}"
    if value.num_elements == 1:
        return f"A {value.a}, B {value.b}{how.replace('at most ', '')}"
    return (
        f"{value.num_different:,} of {value.num_elements:,} elements differ{how};"
        f" the first, element {value.first:,}: A {value.a}, B {value.b}"
    )
