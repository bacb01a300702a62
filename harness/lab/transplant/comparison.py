"""What followed from a transplant: whether A became B, and how far the curve moved. Reads traces, starts nothing.

    step K of A'      reward  │ advantages  │  loss  backward  optimizer      step K+1      rollout  reward  ...
                      before  │ put: B's    │  demanded: B's bits                         demanded, but what is put, and
                                                                                          what differed before it at K

A difference before the patched value at step K is a difference of its own, of a reward function for one: it stays, and
is no effect of the patch.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from math import isfinite

from harness.lab.transplant.patches import Patch, logical_values
from harness.recording.patch_report import Fate, Transplanted
from harness.trace.chain import Key, RecordedValue
from harness.trace.curve import NAMES
from harness.trace.curve_diff import common_points, is_cost
from harness.trace.element_diff import compare, numbers
from harness.trace.reader import Trace
from harness.trace.values import FLOATS

NEAR = 0.95
"""Of the way to B: of every value of the curve so much, and what was put explains the difference but for noise."""
WEIGHTS = "weights"
"""Instead of a name of the curve: the optimizer's values of the last step."""
ROUNDING = 1e-4
"""Fraction of a value's size: if A and B are closer than this, the share of the way moved means nothing."""


class Effect(StrEnum):
    """What came of a transplant."""

    BECOMES_B = "becomes_b"
    """Every bit that follows is B's."""
    MOVES = "moves"
    """Something followed, and it is not B."""
    NOTHING = "nothing"
    """Every later bit is still A's: the patched value is a copy, or is not read."""
    SAME_ALREADY = "same_already"
    """B had the same bits there: there was nothing to patch."""
    DOES_NOT_FIT = "does_not_fit"
    """It could not be put."""
    FAILED = "failed"
    """The run ended differently from A."""


@dataclass(frozen=True, slots=True)
class Where:
    """Position of a recorded value in a step."""

    step: int
    phase: str
    name: str
    occurrence: int

    @property
    def key(self) -> Key:
        return self.phase, self.name, self.occurrence


@dataclass(frozen=True, slots=True)
class Distance:
    """Largest distance between values: of the curve, from the first step on that uses the patched values, or of
    the optimizer's values in the last step.
    """

    name: str
    size: float
    """The largest value, without its sign, of A and B."""
    a_to_b: float
    to_a: float
    to_b: float

    @property
    def share(self) -> float | None:
        """Which part of the way from A to B it went: 1 arrives, 0 stays, less than 0 goes elsewhere."""
        return 1 - self.to_b / self.a_to_b if self.a_to_b else None


@dataclass(frozen=True, slots=True)
class Outcome:
    """A transplant, and what came of it."""

    patch: Patch
    directory: str
    effect: Effect
    num_put: int = 0
    """Values whose bits were others."""
    num_kept: int = 0
    """Values that differ and stayed A's, since they are no memory: texts."""
    from_b: Where | None = None
    """The first later value that is not B's."""
    from_a: Where | None = None
    """The first later value that is no longer A's."""
    before: tuple[str, ...] = ()
    """Values that differed from B already at the first step, before the patched one."""
    distances: tuple[Distance, ...] = ()
    num_reached: int = 0
    """Of the later values in which A and B differ, the number that are B's now."""
    num_apart: int = 0
    """How many these are in all."""
    problem: str = ""

    @property
    def distance(self) -> Distance | None:
        """Distance of the most informative value: if A became B the first of the curve, else the one that moved least.

        Values in which A and B differ by rounding alone count only if there are no others.
        """
        if self.effect is Effect.BECOMES_B:
            return next(iter(self.distances), None)
        told = [each for each in self.distances if each.a_to_b >= ROUNDING * each.size] or self.distances
        return min(told, key=lambda each: each.share or 0.0, default=None)

    @property
    def is_near(self) -> bool:
        """Whether the curve went nearly all of the way to B, and not every bit did."""
        distance = self.distance
        return self.effect is Effect.MOVES and distance is not None and (distance.share or 0.0) >= NEAR


def compare_transplants(
    patch: Patch, made: Trace, a: Trace, b: Trace, *, report: Sequence[Transplanted], problem: str = ""
) -> Outcome:
    """What came of a transplant whose run has left a trace; `problem` says how it ended, if not in order."""
    directory = str(made.directory)
    num_put = sum(each.fate is Fate.PUT for each in report)
    kept = [each for each in report if each.fate is Fate.NO_MEMORY]
    if unlike := [each for each in report if each.fate is Fate.UNLIKE]:
        return Outcome(patch, directory, Effect.DOES_NOT_FIT, problem=_described(unlike[0]))
    if problem:
        return Outcome(patch, directory, Effect.FAILED, num_put, problem=problem)
    if not report:
        return Outcome(patch, directory, Effect.DOES_NOT_FIT, problem="A did not record such a value")
    if not num_put and kept:
        return Outcome(patch, directory, Effect.DOES_NOT_FIT, num_kept=len(kept), problem=_described(kept[0]))
    if not num_put:
        return Outcome(patch, directory, Effect.SAME_ALREADY)
    steps = [step for step in made.steps if step >= patch.first and step in a.steps and step in b.steps]
    put_by_step: dict[int, set[Key]] = {}
    for each in report:
        put_by_step.setdefault(each.step, set()).add(each.key)
    before = _before(patch, made, b, put_by_step)
    not_a = list(_different(steps, made, a, put_by_step))
    not_b = [where for where in _different(steps, made, b, put_by_step) if where.key not in before]
    apart = [where for where in _different(steps, a, b, put_by_step) if where.key not in before]
    return Outcome(
        patch,
        directory,
        Effect.NOTHING if not not_a else Effect.MOVES if not_b else Effect.BECOMES_B,
        num_put,
        len(kept),
        from_b=next(iter(not_b), None),
        from_a=next(iter(not_a), None),
        before=tuple(dict.fromkeys(f"{phase} {name}" for phase, name, _ in before)),
        distances=(*_distances(steps[patch.take.is_weights :], made, a, b), *_of_weights(steps[-1], made, a, b)),
        num_reached=len(set(apart) - set(not_b)),
        num_apart=len(apart),
    )


def _described(each: Transplanted) -> str:
    return f"{each.phase} {each.name} at step {each.step}: {each.why}"


def _before(patch: Patch, made: Trace, b: Trace, put: Mapping[int, set[Key]]) -> list[Key]:
    """What differs from B at the first step before the place, in the order of recording."""
    recorded_values = logical_values(made, patch.first)
    of_b = {recorded_value.key: recorded_value for recorded_value in logical_values(b, patch.first)}
    return [
        recorded_value.key
        for recorded_value in recorded_values[: _place(recorded_values, put.get(patch.first, set()))]
        if of_b.get(recorded_value.key) != recorded_value
    ]


def _place(recorded_values: Sequence[RecordedValue], put: set[Key]) -> int:
    """The position of the last leaf that was put; 0 where none was, as of operations."""
    return max((at for at, recorded_value in enumerate(recorded_values) if recorded_value.key in put), default=0)


def _different(steps: Sequence[int], made: Trace, other: Trace, put: Mapping[int, set[Key]]) -> Iterator[Where]:
    """Each place of these steps where two traces are not alike, what was put apart."""
    for step in steps:
        if made.ranks[0].heads[step].root == other.ranks[0].heads[step].root:
            continue
        recorded_values, of_other = (
            logical_values(made, step),
            {recorded_value.key: recorded_value for recorded_value in logical_values(other, step)},
        )
        own = put.get(step, set())
        for recorded_value in recorded_values:
            if recorded_value.key not in own and of_other.pop(recorded_value.key, None) != recorded_value:
                yield Where(step, *recorded_value.key)
        mine = {recorded_value.key for recorded_value in recorded_values}
        yield from (Where(step, *key) for key in of_other if key not in mine)


def _distances(steps: Sequence[int], made: Trace, a: Trace, b: Trace) -> Iterator[Distance]:
    """Of each value that all three curves have and in which A and B differ, those that people look at first."""
    wanted = set(steps)
    points = {step: values for step, values, _ in common_points(made, a)}
    pairs = [(points[step], x, y) for step, x, y in common_points(a, b) if step in wanted and step in points]
    names = dict.fromkeys(name for found, _, _ in pairs for name in found)
    for name in sorted(names, key=lambda each: (NAMES.index(each) if each in NAMES else len(NAMES), each)):
        if is_cost(name):
            continue
        values = [
            (found[name].value(), x[name].value(), y[name].value())
            for found, x, y in pairs
            if name in found and name in x and name in y
        ]
        values = [each for each in values if all(map(isfinite, each))]
        if any(x != y for _, x, y in values):
            yield Distance(
                name,
                size=max(max(abs(x), abs(y)) for _, x, y in values),
                a_to_b=max(abs(x - y) for _, x, y in values),
                to_a=max(abs(own - x) for own, x, _ in values),
                to_b=max(abs(own - y) for own, _, y in values),
            )


def _of_weights(step: int, made: Trace, a: Trace, b: Trace) -> Iterator[Distance]:
    """Of everything that the optimizer leaves behind in a step, where the three have kept it.

    A curve may follow from what was put, as rewards do, while the run stays where it was; weights are where it is.
    """
    to_a = to_b = apart = size = 0.0
    recorded_values = [
        {recorded_value.key: recorded_value for recorded_value in logical_values(trace, step)} for trace in (made, a, b)
    ]
    for key, recorded_value in recorded_values[0].items():
        found = [own.get(key) for own in recorded_values]
        if (
            key[0] != "optimizer"
            or recorded_value.dtype not in FLOATS
            or any(each is None or _kind(each) != _kind(recorded_value) for each in found)
        ):
            continue
        values = [
            trace.tensor(step, 0, each) for trace, each in zip((made, a, b), found, strict=True) if each is not None
        ]
        if any(each is None for each in values):
            return
        own, of_a, of_b = (each or b"" for each in values)
        to_a, to_b, apart = (
            max(to_a, _apart(recorded_value, own, of_a)),
            max(to_b, _apart(recorded_value, own, of_b)),
            max(apart, _apart(recorded_value, of_a, of_b)),
        )
        size = max(size, *(max(map(abs, numbers(recorded_value.dtype, each)), default=0.0) for each in (of_a, of_b)))
    if apart and isfinite(apart + to_a + to_b):
        yield Distance(WEIGHTS, size, apart, to_a, to_b)


def _kind(recorded_value: RecordedValue) -> tuple[object, ...]:
    return recorded_value.dtype, recorded_value.shape


def _apart(recorded_value: RecordedValue, x: bytes, y: bytes) -> float:
    """The largest absolute distance of two elements."""
    found = compare(recorded_value.dtype, x, y)
    return 0.0 if found is None else found.max_abs or 0.0
