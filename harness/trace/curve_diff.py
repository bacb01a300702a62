"""Two curves: the first step at which what was measured is not the same. Pure.

How long something took, and how much memory, is never the same twice: names that say so do not count.
"""

import re
from collections.abc import Iterator, Mapping

from harness.bits.findings import Finding
from harness.trace.curve import CurvePoint
from harness.trace.reader import Trace
from harness.trace.reasons import VerdictCode
from harness.trace.values import Float
from harness.trace.verdict import CurveDifference

COSTS = re.compile(
    "time|timestamps?|runtime|durations?|elapsed|latency|latencies|eta|m?s|us|ns|secs?|seconds?|minutes|hours"
    "|throughput|fps|qps|tps|[mh]fu|t?flops|util|utilization|memory|mem|vram|[gm]i?b"
)
"""A name of the curve that has one of these words is a cost of the machine: `train_runtime`, `memory/peak_gb`."""
_WORD = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")


def is_cost(name: str) -> bool:
    """Whether a value of this name measures the cost of a step, not its result."""
    return any(COSTS.fullmatch(word.lower()) for word in _WORD.findall(name))


def compare_curves(a: Trace, b: Trace) -> tuple[CurveDifference, ...]:
    """Return the values that differ at the first step with a difference, without those that `uncompared` reports.

    A value that is absent from the last step of one curve does not differ: programs log after a step, and may end
    before that.
    """
    ends = {trace.curve[-1].step for trace in (a, b) if trace.curve}
    for step, x, y in common_points(a, b):
        is_end = len(ends) > 1 and step in ends
        names = [name for name in dict.fromkeys([*x, *y]) if not is_cost(name)]
        if differing := [name for name in names if _differ(x.get(name), y.get(name), is_end=is_end)]:
            return tuple(CurveDifference(step, name, x.get(name), y.get(name)) for name in differing)
    return ()


def _differ(x: Float | None, y: Float | None, *, is_end: bool) -> bool:
    if x is None or y is None:
        return not is_end
    return x.dtype == y.dtype and x != y


def uncompared(a: Trace, b: Trace) -> Iterator[Finding]:
    """Yield notes on what could not be compared in the curves: missing lines, and unequal values of unequal dtypes.

    The last line of a killed program is always missing, and is not reported.
    """
    for name, trace, other in (("A", a, b), ("B", b, a)):
        known = {point.step for point in trace.curve}
        lacked = {*trace.steps[: -1 if trace.gaps else None]} - known
        absent = [point.step for point in other.curve if point.step in lacked]
        if not absent or trace.curve_ends_at is not None:  # the damage is told
            continue
        if known:
            yield VerdictCode.CURVE_LINES_MISSING(trace=name, steps=tuple(absent))
        else:
            yield VerdictCode.CURVE_MISSING(trace=name)
    for step, x, y in common_points(a, b):
        if names := [
            name for name in x if name in y and _is_printed_differently(x[name], y[name]) and not is_cost(name)
        ]:
            of_a, of_b = x[names[0]].dtype, y[names[0]].dtype
            yield VerdictCode.CURVE_DTYPES_DIFFER(step=step, names=tuple(names), a=of_a, b=of_b)
            return


def _is_printed_differently(x: Float, y: Float) -> bool:
    """Whether one was read in a line, say, with the digits that it was given there, and the other seen as it is."""
    return x.dtype != y.dtype and x.value() != y.value()


def common_points(a: Trace, b: Trace) -> Iterator[tuple[int, Mapping[str, Float], Mapping[str, Float]]]:
    """(step, values of A, values of B) of each step that both curves have."""
    of_b: dict[int, CurvePoint] = {point.step: point for point in b.curve}
    for point in a.curve:
        if (other := of_b.get(point.step)) is not None:
            yield point.step, point.values, other.values
