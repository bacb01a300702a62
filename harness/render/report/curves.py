"""Curves of all runs over each other, a plot for each value as SVG; a table of the costs that no verdict compares.

The script of a page draws nothing: a plot is part of the page, scales with it, and is printed as it is seen.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import ceil, isfinite, nan

from harness.lab.report.subjects import Report
from harness.render.divergence import apart
from harness.trace.curve import NAMES, common_names
from harness.trace.curve_diff import is_cost

MAX_POINTS = 1_000
"""Maximum number of points of a line; a longer line shows the extremes of neighbouring steps."""
MAX_PLOTS = 24
WIDTH, HEIGHT = 320, 120


@dataclass(frozen=True, slots=True)
class Plot:
    """One value of all runs, in the coordinates of an SVG of WIDTH by HEIGHT."""

    name: str
    paths: tuple[tuple[str, str], ...]
    """(letter, path) of each run."""
    marks: tuple[tuple[str, float], ...]
    """(letter, x) of the step from which each run differs from A."""
    low: str
    high: str
    first: int
    last: int
    notes: tuple[str, ...]


def plots(report: Report) -> list[Plot]:
    """Return a plot for each value of the curves, without costs; the values that every curve has come first."""
    curves = {each.letter: {point.step: point.values for point in each.trace.curve} for each in report.subjects}
    steps = sorted({step for curve in curves.values() for step in curve})
    known = dict.fromkeys(name for curve in curves.values() for values in curve.values() for name in values)
    names = [name for name in dict.fromkeys((*NAMES, *known)) if name in known and not is_cost(name)]
    parted = [(pair.b.letter, pair.verdict.first.step) for pair in report.pairs if pair.verdict.first is not None]

    def lines(name: str) -> dict[str, list[float | None]]:
        found = {letter: [curve.get(step, {}).get(name) for step in steps] for letter, curve in curves.items()}
        return {letter: [None if each is None else each.value() for each in line] for letter, line in found.items()}

    return [plot(name, steps, lines(name), parted) for name in names[:MAX_PLOTS]]


def plot(
    name: str, steps: Sequence[int], lines: Mapping[str, Sequence[float | None]], parted: Sequence[tuple[str, int]]
) -> Plot:
    """Return the plot of one value over `steps`; a value that is no number is a gap."""
    size = ceil(2 * len(steps) / MAX_POINTS) if len(steps) > MAX_POINTS else 1
    notes = [f"minimum and maximum, for every {size} steps"] if size > 1 else []
    known = [value for line in lines.values() for value in line if value is not None and isfinite(value)]
    low, high = (min(known), max(known)) if known else (0.0, 0.0)
    first, last = steps[0], steps[-1]

    def x_of(step: int) -> float:
        return round(WIDTH * (step - first) / max(1, last - first), 1)

    def y_of(value: float) -> float:  # halves: the distance of two floats may not fit into a float
        return round(HEIGHT * ((high / 2 - value / 2) / (high / 2 - low / 2) if low < high else 0.5), 1)

    paths = []
    for letter, line in lines.items():
        points = [(step, nan if value is None else value) for step, value in zip(steps, line, strict=True)]
        wild = [(step, value) for step, value in zip(steps, line, strict=True) if value is not None]
        notes += [f"{letter} is {value} from step {step} on" for step, value in wild if not isfinite(value)][:1]
        path, is_gap = "", True
        for step, value in _extremes(points, size):
            if isfinite(value):
                path += f"{'M' if is_gap else 'L'}{x_of(step)} {y_of(value)}"
            is_gap = not isfinite(value)
        paths.append((letter, path and path + "h0.01"))  # a single point is seen by its cap
    marks = tuple((letter, x_of(step)) for letter, step in parted if first <= step <= last)
    return Plot(name, tuple(paths), marks, *apart(low, high), first, last, tuple(notes))


def _extremes(points: list[tuple[int, float]], size: int) -> Iterator[tuple[int, float]]:
    """Yield the points of a line; of each `size` steps the smallest and the largest value, in their order."""
    for start in range(0, len(points), size):
        part = points[start : start + size]
        known = [point for point in part if isfinite(point[1])]
        yield from sorted({min(known, key=lambda p: p[1]), max(known, key=lambda p: p[1])}) if known else part[:1]


def measured(report: Report) -> list[tuple[str, list[tuple[str, str]]]]:
    """Return (name, (first, last) of each run) of the costs in the curves, which no verdict compares."""
    curves = [subject.trace.curve for subject in report.subjects]
    names = dict.fromkeys(name for curve in curves for name in common_names(curve) if is_cost(name))
    values = {
        name: [[f"{p.values[name].value():.4g}" for p in curve if name in p.values] or [""] for curve in curves]
        for name in names
    }
    return [(name, [(found[0], found[-1]) for found in runs]) for name, runs in values.items()]
