"""The curves of all runs over each other, one panel for each value. Pure."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import ceil, isfinite

from harness.trace.curve import NAMES, CurvePoint
from harness.trace.curve_diff import is_cost
from harness.trace.values import Float

MAX_POINTS = 2_000
"""Maximum number of points of a line; longer lines show extremes of neighbouring steps."""

Line = tuple[float | None, ...]


@dataclass(frozen=True, slots=True)
class Panel:
    """One value of all runs."""

    name: str
    steps: tuple[int, ...]
    lines: tuple[Line, ...]
    """Values of each run over `steps`; None for a missing or non-finite value."""
    num_together: int
    """Number of steps that two points stand for, their extremes; 1 if each step has its own point."""
    non_finite: tuple[tuple[int, int, str], ...]
    """(run, step, "nan" or "inf") of the first value of each run that is no number."""
    is_cost: bool
    """Whether the values are seconds or bytes, which vary between runs."""


def panels(curves: Sequence[Sequence[CurvePoint]]) -> list[Panel]:
    """A panel for every value that any run has, the six that every curve has first, costs last."""
    by_step = [{point.step: point.values for point in curve} for curve in curves]
    steps = sorted({step for points in by_step for step in points})
    have = dict.fromkeys(name for curve in curves for point in curve for name in point.values)
    names = sorted((*(name for name in NAMES if name in have), *(n for n in have if n not in NAMES)), key=is_cost)
    return [
        _panel(name, steps, [[points.get(step, {}).get(name) for step in steps] for points in by_step])
        for name in names
    ]


def _panel(name: str, steps: Sequence[int], found: Sequence[Sequence[Float | None]]) -> Panel:
    values = [[None if each is None else each.value() for each in line] for line in found]
    wild = [
        (run, *next((step, str(value)) for step, value in zip(steps, line, strict=True) if _is_wild(value)))
        for run, line in enumerate(values)
        if any(map(_is_wild, line))
    ]
    lines = [[None if _is_wild(value) else value for value in line] for line in values]
    size = ceil(len(steps) / (MAX_POINTS / 2)) if len(steps) > MAX_POINTS else 1
    shown = tuple(steps) if size == 1 else tuple(_ends(steps, size))
    thin = tuple(tuple(line) if size == 1 else tuple(_extremes(line, size)) for line in lines)
    return Panel(name, shown, thin, size, tuple(wild), is_cost(name))


def _is_wild(value: float | None) -> bool:
    return value is not None and not isfinite(value)


def _ends(steps: Sequence[int], size: int) -> Iterable[int]:
    """First and last step of each so many; twice the same where it is one."""
    for start in range(0, len(steps), size):
        members = steps[start : start + size]
        yield from (members[0], members[-1])


def _extremes(line: Sequence[float | None], size: int) -> Iterable[float | None]:
    """The smallest and the largest value of each so many, in the order in which they came."""
    for start in range(0, len(line), size):
        known = [value for value in line[start : start + size] if value is not None]
        if not known:
            yield from (None, None)
            continue
        low, high = min(known), max(known)
        yield from (low, high) if known.index(low) <= known.index(high) else (high, low)
