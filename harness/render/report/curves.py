"""Curves of all runs over each other, a plot for each value as SVG; tables of what no verdict compares. Pure.

The script of a page draws nothing: a plot is part of the page, scales with it, and is printed as it is seen.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import ceil, isfinite
from pathlib import Path

from harness.lab.experiments.recording_result import METRICS, read_metrics
from harness.lab.report.subjects import Report
from harness.render.divergence import apart
from harness.trace.curve import NAMES, CurvePoint, common_names
from harness.trace.curve_diff import is_cost
from harness.trace.values import Float

MAX_POINTS = 1_000
"""Maximum number of points of a line; a longer line shows the extremes of neighbouring steps."""
MAX_PLOTS = 24
MAX_MEASURED = 60
MAX_STEP = 2**53
WIDTH, HEIGHT = 320, 120
MEASURED = (METRICS, f"*/{METRICS}", "*/rollouts.jsonl")
"""Files of measured values, relative to a trace."""
Line = Sequence[float | None]


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
    num_together: int
    """Number of steps that two points stand for, their extremes; 1 if each step has its own point."""
    non_finite: tuple[str, ...]
    """Of each run with a value that is no number, the first such value."""


@dataclass(frozen=True, slots=True)
class Measured:
    """A value that no verdict compares: its first and last number in each run, empty for none."""

    name: str
    runs: tuple[tuple[str, str], ...]


def plots(report: Report) -> list[Plot]:
    """Return a plot for each value of the curves, without costs; the values that every curve has come first."""
    curves = [{point.step: point.values for point in subject.trace.curve} for subject in report.subjects]
    steps = sorted({step for curve in curves for step in curve})
    known = dict.fromkeys(name for curve in curves for values in curve.values() for name in values)
    names = [name for name in dict.fromkeys((*NAMES, *known)) if name in known and not is_cost(name)]
    letters = [subject.letter for subject in report.subjects]
    parted = [(pair.b.letter, pair.verdict.first.step) for pair in report.pairs if pair.verdict.first is not None]
    lines = {name: [[_number(curve, step, name) for step in steps] for curve in curves] for name in names[:MAX_PLOTS]}
    return [plot(name, steps, dict(zip(letters, found, strict=True)), parted) for name, found in lines.items()]


def _number(curve: Mapping[int, Mapping[str, Float]], step: int, name: str) -> float | None:
    value = curve.get(step, {}).get(name)
    return None if value is None else value.value()


def plot(name: str, steps: Sequence[int], lines: dict[str, Line], parted: Sequence[tuple[str, int]]) -> Plot:
    """Return the plot of one value over `steps`; a value that is no number is a gap."""
    wild = [
        f"{letter} is {value} from step {step} on"
        for letter, line in lines.items()
        for step, value in [next((x for x in zip(steps, line, strict=True) if _is_wild(x[1])), (0, None))]
        if value is not None
    ]
    size = ceil(2 * len(steps) / MAX_POINTS) if len(steps) > MAX_POINTS else 1
    known = [value for line in lines.values() for value in line if value is not None and isfinite(value)]
    low, high = (min(known), max(known)) if known else (0.0, 0.0)
    first, last = steps[0], steps[-1]

    def x_of(step: int) -> float:
        return round(WIDTH * (step - first) / max(1, last - first), 1)

    def y_of(value: float) -> float:  # halves: the distance of two floats may not fit into a float
        return round(HEIGHT * ((high / 2 - value / 2) / (high / 2 - low / 2) if low < high else 0.5), 1)

    paths = []
    for letter, line in lines.items():
        found, is_gap = [], True
        for step, value in _extremes(steps, line, size):
            if value is None or _is_wild(value):
                is_gap = True
                continue
            found.append(f"{'M' if is_gap else 'L'}{x_of(step)} {y_of(value)}")
            is_gap = False
        paths.append((letter, "".join(found) + ("h0.01" if found else "")))  # a single point is seen by its cap
    marks = tuple((letter, x_of(step)) for letter, step in parted if first <= step <= last)
    return Plot(name, tuple(paths), marks, *apart(low, high), first, last, size, tuple(wild))


def _is_wild(value: float | None) -> bool:
    return value is not None and not isfinite(value)


def _extremes(steps: Sequence[int], line: Line, size: int) -> Iterator[tuple[int, float | None]]:
    """Yield the points of a line; of each `size` steps the smallest and the largest value, in their order."""
    points = list(zip(steps, line, strict=True))
    if size == 1:
        yield from points
        return
    for start in range(0, len(points), size):
        known = [(step, value) for step, value in points[start : start + size] if value is not None and isfinite(value)]
        both = [min(known, key=lambda each: each[1]), max(known, key=lambda each: each[1])] if known else []
        yield from sorted(both)
        if not both:
            yield points[start][0], None


def measured(report: Report) -> list[Measured]:
    """Return what the runs measured that no verdict compares: costs of the curves, and files of metrics beside them."""
    curves = [subject.trace.curve for subject in report.subjects]
    known = {name for curve in curves for name in common_names(curve)}
    points = [
        [*curve, *measured_points(subject.trace.directory, known)]
        for curve, subject in zip(curves, report.subjects, strict=True)
    ]
    names = dict.fromkeys(name for run in points for name in common_names(run) if name not in known or is_cost(name))
    return [Measured(name, tuple(_ends(run, name) for run in points)) for name in [*names][:MAX_MEASURED]]


def _ends(points: Sequence[CurvePoint], name: str) -> tuple[str, str]:
    found = [f"{point.values[name].value():.4g}" for point in points if name in point.values]
    return (found[0], found[-1]) if found else ("", "")


def measured_points(directory: Path, known: set[str]) -> Iterator[CurvePoint]:
    """Yield the values of each step, named after their file, that the curves do not have; of a step the last line."""
    found: dict[int, dict[str, Float]] = defaultdict(dict)
    for path in (path for pattern in MEASURED for path in sorted(directory.glob(pattern))):
        for line in read_metrics(path):
            step = line.get("step", -1.0)
            if 0 <= step < MAX_STEP:
                named = {f"{path.stem}: {name}": Float.of(line[name], "f64") for name in line.keys() - {"step", *known}}
                found[int(step)] |= dict(sorted(named.items()))
    return (CurvePoint(step, values, "") for step, values in sorted(found.items()))
