"""Criteria of a bad probe: its bits differ from the good one's, or its reward, or a value of its curve. Pure."""

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from math import isnan

from harness.bits.errors import UsageError
from harness.lab.bisect.search import Outcome
from harness.recording.conditions import OPERATORS, Condition, parse_condition
from harness.trace.diff import diff
from harness.trace.reader import Trace
from harness.trace.verdict import Kind

BITS, REWARD = "bits", "reward"
OPTION = "--by"
REWARD_MEAN = "reward_mean"


@dataclass(frozen=True, slots=True)
class Classified:
    """What a probe is."""

    outcome: Outcome
    reason: str
    """In a few words."""


@dataclass(frozen=True, slots=True)
class Criterion:
    """Distinguishes good probes from bad ones."""

    text: str
    """As it was typed."""
    condition: Condition | None = None
    """Bad is where it holds; None of BITS and REWARD."""
    tolerance: float = 0.0
    """Of REWARD: how far it may move."""

    def classify(self, good: Trace, probe: Trace) -> Classified:
        """What a probe is, beside the run that is known to be good."""
        if self.text == BITS:
            return _by_bits(good, probe)
        if self.condition is None:
            return self._by_reward(good, probe)
        return self._by_condition(self.condition, probe)

    def check(self, good: Trace) -> None:
        """UsageError where the curve of the good one has nothing of what is asked for."""
        known = _names(good)
        name = self.condition.name_among(known) if self.condition else REWARD_MEAN
        if self.text != BITS and name not in known:
            raise UsageError(
                f"{OPTION} {self.text}: the curve of the good run has no value {name!r}",
                legal=", ".join(sorted(known)) or "nothing: this scenario records no curve",
                remedy=f"{OPTION} {BITS} compares everything that is recorded",
            )

    def _by_reward(self, good: Trace, probe: Trace) -> Classified:
        x, y = (dict(_values(trace, REWARD_MEAN)) for trace in (good, probe))
        if not x.keys() & y.keys():
            return Classified(Outcome.SKIP, f"no step has a {REWARD_MEAN} in both")
        for step in sorted(x.keys() | y.keys()):
            if step not in x or step not in y:
                return Classified(Outcome.BAD, f"step {step} is in one of them only")
            moved = abs(x[step] - y[step])
            if moved > self.tolerance or isnan(x[step]) != isnan(y[step]):
                return Classified(Outcome.BAD, f"the reward of step {step} is {y[step]:.6g}, not {x[step]:.6g}")
        return Classified(Outcome.GOOD, "the same reward")

    def _by_condition(self, condition: Condition, probe: Trace) -> Classified:
        values = list(_values(probe, condition.name_among(_names(probe))))
        if not values:
            return Classified(Outcome.SKIP, f"its curve has no {condition.name}")
        for step, value in values:
            if isnan(value) or OPERATORS[condition.relation](value, condition.number):
                return Classified(Outcome.BAD, f"{condition.name} of step {step} is {value:.6g}")
        return Classified(Outcome.GOOD, f"no step has {condition}")


def parse_criterion(text: str, tolerance: float | None) -> Criterion:
    """A criterion as it is typed; UsageError for any other text."""
    if tolerance is not None and text != REWARD:
        raise UsageError(f"--tolerance with --by {text}", legal=f"--by {REWARD} --tolerance X")
    if text in (BITS, REWARD):
        return Criterion(text, tolerance=tolerance or 0.0)
    with suppress(UsageError):
        condition = parse_condition(text, OPTION)
        if not condition.word:
            return Criterion(text, condition)
    raise UsageError(
        f"{OPTION} {text}",
        legal=f"{BITS}, {REWARD}, or METRIC>X, with one of {' '.join(OPERATORS)}",
        remedy=f"{OPTION} 'loss>10'",
    )


def _by_bits(good: Trace, probe: Trace) -> Classified:
    verdict = diff(good, probe)
    first = verdict.first
    if first is None:
        if verdict.kind is Kind.EQUAL:
            return Classified(Outcome.GOOD, "every bit is the same")
        codes = dict.fromkeys(reason.code.value for reason in verdict.reasons)
        return Classified(Outcome.SKIP, f"cannot be compared: {', '.join(codes)}")
    value = first.a or first.b
    where = f", first in {value.phase} {value.name}" if value else ""
    return Classified(Outcome.BAD, f"bits differ from step {first.step} on{where}")


def _names(trace: Trace) -> set[str]:
    """Of all values of the curve."""
    return {name for point in trace.curve for name in point.values}


def _values(trace: Trace, name: str) -> Iterator[tuple[int, float]]:
    """(step, value) of a name of the curve."""
    for point in trace.curve:
        if name in point.values:
            yield point.step, point.values[name].value()
