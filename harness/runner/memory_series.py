"""Memory in use on GPUs over time: few of many samples are recorded, and fewer drawn.

samples ─▶ SeriesThinner ─▶ GpuMemorySampled events ─▶ points of a record ─▶ maxima ─▶ points of a page

The memory of a point is in use from its time until the next point; None where it is not known.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from math import inf

CHANGE_BYTES = 64 * 10**6
"""Smaller changes are not recorded."""
INTERVAL_S = 1.0
"""Least seconds between two values that are recorded during a lease."""
SHARE_OF_RUN = 1e-3
"""Least part of the run so far between two of them, so that a run of a day records thousands of values, not more."""

Point = tuple[float, int | None]
"""Seconds since the run began, and bytes."""


@dataclass(slots=True)
class _Recorded:
    """The latest recorded value of a GPU, and what was sampled since."""

    t: float = -inf
    in_use: int | None = None
    pending: int | None = None
    """Most bytes sampled since, while no value may be recorded."""

    def is_change(self, in_use: int | None) -> bool:
        if in_use is None or self.in_use is None:
            return in_use is not self.in_use
        return abs(in_use - self.in_use) > CHANGE_BYTES


@dataclass(slots=True)
class SeriesThinner:
    """Selects the values to record among the samples of each GPU.

    A value is recorded if it differs enough from the one before, and the interval has passed. It is the most that was
    sampled meanwhile. So no peak is lost, but one within an interval is recorded at the end of it.
    """

    _recorded: dict[str, _Recorded] = field(default_factory=dict)
    """By id of the GPU."""

    def take(self, t: float, samples: Mapping[str, int | None]) -> dict[str, int | None]:
        """Return the values to record after samples at `t`: bytes by GPU id, None where they are no longer known."""
        found: dict[str, int | None] = {}
        for gpu_id, in_use in samples.items():
            known = self._recorded.setdefault(gpu_id, _Recorded())
            most = _most((known.pending, in_use))
            if t - known.t < max(INTERVAL_S, SHARE_OF_RUN * t):
                known.pending = most
                continue
            known.pending = None
            if known.is_change(most):
                known.t = t
                known.in_use = found[gpu_id] = most
        return found

    def end(self, gpu_ids: Collection[str]) -> tuple[dict[str, int | None], dict[str, int | None]]:
        """Return the values to record when GPUs are leased no more: those that are pending, then None for each."""
        ended = {gpu_id: known for gpu_id in gpu_ids if (known := self._recorded.pop(gpu_id, None))}
        pending: dict[str, int | None] = {
            gpu_id: known.pending
            for gpu_id, known in ended.items()
            if known.pending is not None and known.is_change(known.pending)
        }
        return pending, {
            gpu_id: None for gpu_id, known in ended.items() if known.in_use is not None or gpu_id in pending
        }


def peak(points: Iterable[Point]) -> int | None:
    """Return the most memory in use; None where none is known."""
    return _most(in_use for _, in_use in points)


def maxima(points: Sequence[Point], num: int) -> tuple[Point, ...]:
    """Return at most `num` points, never below those given: the most in use in each of equal parts of the time.

    `points` are in the order of their times. If there are no more than `num`, they are returned as they are.
    """
    if len(points) <= num:
        return tuple(points)
    (start_s, _), (end_s, last) = points[0], points[-1]
    num_parts = num - 1
    part_s = (end_s - start_s) / num_parts or 1.0
    most: list[int | None] = [None] * num_parts
    for (t, in_use), (until, _) in pairwise(points):
        parts = (min(int((each - start_s) / part_s), num_parts - 1) for each in (t, until))
        for part in range(next(parts), next(parts) + 1):
            most[part] = _most((most[part], in_use))
    found = [(start_s, most[0])]
    for part, in_use in enumerate(most[1:], start=1):
        if in_use != found[-1][1]:
            found.append((start_s + part * part_s, in_use))
    return (*found, (end_s, last))


def _most(values: Iterable[int | None]) -> int | None:
    return max((each for each in values if each is not None), default=None)
