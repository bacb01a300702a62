"""Divide the units of a suite among shards, so that each machine of a CI job runs its own part.

The longest unit goes first onto the shard with the least expected time so far. The result depends on the paths, their
expected durations and the number of shards, and on nothing else of the machine.
"""

import hashlib
import heapq
import re
from collections.abc import Mapping
from dataclasses import dataclass

from harness.bits.errors import UsageError

_SHARD = re.compile(r"([0-9]{1,6})/([0-9]{1,6})", re.ASCII)
_DIGITS = 12


@dataclass(frozen=True, slots=True)
class Shard:
    """One shard of several: number 2 of 8 is `2/8`."""

    number: int
    """From 1 to `count`."""
    count: int

    def __str__(self) -> str:
        return f"{self.number}/{self.count}"


@dataclass(frozen=True, slots=True)
class ShardPlan:
    """The shard that a run was given, and what it is a shard of."""

    number: int
    count: int
    num_suite_units: int
    """Number of units in all shards together."""
    partition: str
    """Digest of the assignment of all units; shards of one suite fit together only if it is equal."""


def parse_shard(text: str) -> Shard:
    """Return the shard that `K/N` names; raises UsageError for anything else."""
    found = _SHARD.fullmatch(text)
    shard = Shard(int(found[1]), int(found[2])) if found else None
    if shard is None or not 1 <= shard.number <= shard.count:
        raise UsageError(
            f"--shard {text or repr(text)}",
            legal="K/N with 1 <= K <= N, for example 2/8",
            remedy="give the number of this shard, then the number of all shards: --shard 1/4 to --shard 4/4",
        )
    return shard


def assign_shards(expected_s: Mapping[str, float], count: int) -> dict[str, int]:
    """Return the number of the shard of each path, from 1 to `count`, given its expected seconds.

    Equal durations are taken in the order of the paths. Of equally loaded shards the one with fewer units comes first.
    """
    loads = [(0, 0, number) for number in range(1, count + 1)]
    assigned = {}
    for path in sorted(expected_s, key=lambda path: (-_milliseconds(expected_s[path]), path)):
        load_ms, num_units, number = loads[0]
        assigned[path] = number
        heapq.heapreplace(loads, (load_ms + _milliseconds(expected_s[path]), num_units + 1, number))
    return assigned


def plan_shard(expected_s: Mapping[str, float], shard: Shard) -> tuple[frozenset[str], ShardPlan]:
    """Return the paths that `shard` runs, and what it is a part of."""
    assigned = assign_shards(expected_s, shard.count)
    digest = hashlib.sha256(str(shard.count).encode())
    for path in sorted(assigned):
        digest.update(f"\n{assigned[path]} {path}".encode("utf-8", "backslashreplace"))
    paths = frozenset(path for path, number in assigned.items() if number == shard.number)
    return paths, ShardPlan(shard.number, shard.count, len(assigned), digest.hexdigest()[:_DIGITS])


def _milliseconds(seconds: float) -> int:
    """Whole milliseconds: sums of integers do not depend on their order."""
    return round(seconds * 1000)
