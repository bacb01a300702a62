"""What two traces have in common where one records more than the other. Reads traces, starts nothing."""

from dataclasses import dataclass

from harness.trace.chain import CHAINED, Key
from harness.trace.reader import Trace


@dataclass(frozen=True, slots=True)
class Alone:
    """What only one of two traces records, in whatever step; what both record is the same."""

    in_a: tuple[str, ...]
    """Phase and name of each, once: "loss clip_fraction"."""
    in_b: tuple[str, ...]
    has_common: bool = True
    """Whether there is a value that both record."""


def recorded_alone(a: Trace, b: Trace) -> Alone | None:
    """What only one of them records; None where something differs that both record, or their steps or ranks do."""
    if a.steps != b.steps or a.ranks.keys() != b.ranks.keys():
        return None
    alone: tuple[dict[str, None], dict[str, None]] = ({}, {})
    has_common = False
    for step in a.steps:
        for rank in a.logs(step):
            x, y = (_values(trace, step, rank) for trace in (a, b))
            if any(x[key] != y[key] for key in x.keys() & y.keys()):
                return None
            has_common = has_common or not x.keys().isdisjoint(y)
            for names, mine, other in ((alone[0], x, y), (alone[1], y, x)):
                names.update(dict.fromkeys(f"{key[0]} {key[1]}" for key in mine if key not in other))
    return Alone(tuple(alone[0]), tuple(alone[1]), has_common)


def _values(trace: Trace, step: int, rank: int) -> dict[Key, tuple[str, tuple[int, ...], str, bytes]]:
    """What counts of a step, by key."""
    values = trace.columns(step, rank).values()
    return {
        value.key: (value.dtype, value.shape, value.algorithm, value.digest)
        for value in values
        if value.scope in CHAINED
    }
