"""How far apart the tensors of one step are where two runs part: as far as rounding goes, or further.

The step's tensors are those of a pair of runs that kept them. A change of numerics moves the last digits of what it
acts on first; a change of behaviour moves more, even where no token flips within a few steps. What is small beside its
phase, a gradient that cancels, say, may differ whole by rounding: distances are measured against the largest element of
the phase. Single numbers are left out for that reason, and what comes after the gradients, since Adam makes a step of
any gradient's sign.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from math import isfinite, prod

from harness.trace.chain import CHAINED, PHASES, RecordedValue, Scope
from harness.trace.element_diff import compare, numbers
from harness.trace.reader import Trace
from harness.trace.values import ELEMENT_BYTES, FLOATS

HALF_OF_THE_DIGITS = {"f64": 2**-11.5, "f32": 2**-11.5, "f16": 2**-5.0, "bf16": 2**-3.5}
"""By dtype, the square root of its precision; float64 as float32, since much of it was computed as that."""
MAX_BYTES = 2**28
"""A step with more than this is not kept for it: 256 MiB."""
_PIECE_BYTES = 2**18


@dataclass(frozen=True, slots=True)
class Rounding:
    """How far apart the tensors of one step are."""

    step: int
    num_compared: int
    """Tensors that both sides have kept."""
    num_different: int
    first: str
    """The first of them, in the order of recording: "backward layers.0.weight"; empty where none differs."""
    first_ulp: int
    """Its largest distance in units in the last place; of pairs without NaN."""
    max_ulp: int
    """The largest of all."""
    name: str
    """Of the tensor with it."""
    share: float
    """The largest distance relative to the largest element of its phase, of the compared phases."""
    phase: str
    """The phase with it; empty if no phase is compared."""
    is_rounding: bool
    """Whether at least half of the digits agree in every compared phase, and no NaN came or went."""
    num_nan: int = 0
    """Elements that are NaN on one side alone."""


@dataclass(slots=True)
class _Phase:
    """What the tensors of one phase and dtype have shown."""

    largest: float = 0.0
    distance: float = 0.0


def measure_rounding(a: Trace, b: Trace, step: int, first_phase: str) -> Rounding | None:
    """Compare what both have kept of a step, in which they part in this phase; None where they kept nothing alike.

    TraceError where a file of kept tensors cannot be read.
    """
    judged = phases_compared(first_phase)
    by_phase: dict[tuple[str, str], _Phase] = {}
    num_compared = num_different = first_ulp = max_ulp = num_nan = 0
    first = name = ""
    for value, x, y in _pairs(a, b, step):
        num_compared += 1
        is_classified = value.phase in judged and prod(value.shape) > 1
        phase = by_phase.setdefault((value.phase, value.dtype), _Phase()) if is_classified else _Phase()
        phase.largest = max(phase.largest, _largest(value.dtype, x)) if is_classified else 0.0
        if (found := compare(value.dtype, x, y)) is None:
            continue
        num_different += 1
        phase.distance = max(phase.distance, found.max_abs or 0.0)
        num_nan += found.num_nan_only_a + found.num_nan_only_b
        ulp, told = found.max_ulp or 0, f"{value.phase} {value.name}"
        if not first:
            first, first_ulp = told, ulp
        if ulp > max_ulp:
            max_ulp, name = ulp, told
    if not num_compared:
        return None
    shares = {key: _share(each) for key, each in by_phase.items() if each.distance}
    worst = max(shares, key=shares.__getitem__, default=("", ""))
    return Rounding(
        step=step,
        num_compared=num_compared,
        num_different=num_different,
        first=first,
        first_ulp=first_ulp,
        max_ulp=max_ulp,
        name=name,
        share=shares.get(worst, 0.0),
        phase=worst[0],
        is_rounding=not num_nan and all(share <= HALF_OF_THE_DIGITS[dtype] for (_, dtype), share in shares.items()),
        num_nan=num_nan,
    )


def earliest_phase(a: Trace, b: Trace, step: int) -> str:
    """Of the phases in which two traces of a step differ, the one that comes first in a step; empty for none.

    What was recorded first need not be of it: another update may follow, and a warm start comes before all of them.
    """
    found: set[str] = set()
    for rank in a.logs(step).keys() & b.logs(step).keys():
        of_a, of_b = (
            {(value.scope, value.key): value for value in each.columns(step, rank).values()} for each in (a, b)
        )
        found |= {key[0] for scope, key in of_a if scope in CHAINED and of_b.get((scope, key)) != of_a[scope, key]}
    return min(found, key=lambda phase: PHASES.index(phase) if phase in PHASES else len(PHASES), default="")


def phases_compared(first: str) -> tuple[str, ...]:
    """From the phase in which the runs part to the gradients; that phase alone where it comes after them."""
    if first not in PHASES:
        return (first,)
    at, end = PHASES.index(first), PHASES.index("backward")
    return PHASES[at : end + 1] if at <= end else (first,)


def step_bytes(trace: Trace, step: int) -> int:
    """How much it would take to keep the tensors of a step."""
    values = (value for rank in trace.logs(step) for value in trace.columns(step, rank).values())
    return sum(prod(value.shape) * ELEMENT_BYTES.get(value.dtype, 1) for value in values)


def _pairs(a: Trace, b: Trace, step: int) -> Iterator[tuple[RecordedValue, bytes, bytes]]:
    """Floats that both have kept, of one dtype and shape: the leaf in A, and both values."""
    for rank in sorted(a.logs(step).keys() & b.logs(step).keys()):
        of_b = {(value.scope, value.key): value for value in b.columns(step, rank).values()}
        for value in a.columns(step, rank).values():
            other = of_b.get((value.scope, value.key))
            if other is None or value.dtype not in FLOATS or value.scope is Scope.CONTEXT:
                continue
            if (value.dtype, value.shape) != (other.dtype, other.shape):
                continue
            x, y = a.tensor(step, rank, value), b.tensor(step, rank, other)
            if x is not None and y is not None and len(x) == len(y):
                yield value, x, y


def _largest(dtype: str, data: bytes) -> float:
    """The largest absolute value that is finite."""
    pieces = (data[at : at + _PIECE_BYTES] for at in range(0, len(data), _PIECE_BYTES))
    return max((abs(x) for piece in pieces for x in numbers(dtype, piece) if isfinite(x)), default=0.0)


def _share(phase: _Phase) -> float:
    return phase.distance / phase.largest if phase.largest else float("inf")
