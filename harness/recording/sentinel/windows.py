"""Single copies between two steps: no other rank holds them, so each is compared with itself.

    end of a step ─▶ digest ─▶ (nothing may write to it) ─▶ begin of the next step ─▶ digest

torch counts the writes that it knows of: a tensor that was written is not compared. Programs also write past torch,
through `.data`: they do so on several ranks at once, and accidents happen on one. A tensor that changed on several
ranks in the same step is taken as written, and not watched any more.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch

from harness.recording.sentinel.comparison import Key
from harness.recording.sentinel.replicas import Copy, digests_of

Ranks = tuple[int, ...]


class Change(NamedTuple):
    """A single copy that changed without a write."""

    kind: str
    name: str
    since_step: int
    """Step after which it was digested."""
    before: str
    """Digest after that step."""
    after: str
    """Digest before the next one."""


class _Mark(NamedTuple):
    address: int
    versions: tuple[int, int]


class Windows:
    """Watches single copies from the end of each step to the beginning of the next one."""

    def __init__(self) -> None:
        self._marks: dict[Key, tuple[int, _Mark, str]] = {}
        """Step after which it was digested, what it is known by, digest."""
        self._held: dict[Ranks, list[Change]] = {}
        """By domain, until its ranks compare."""
        self._written: set[tuple[str, str]] = set()
        """(kind, name) of what programs write past torch."""

    def note(self, step: int, copies: Sequence[Copy]) -> None:
        """Digest single copies after a step."""
        watched = [each for each in copies if self._is_watched(each)]
        digests = digests_of(watched)
        self._marks = {
            each.key: (step, mark, digests[each.key])
            for each in watched
            if (mark := _mark(each)) is not None and each.key in digests
        }

    def look(self, copies: Sequence[Copy]) -> None:
        """Digest them again before the next step, and hold what changed."""
        unwritten = [each for each in copies if each.key in self._marks and _mark(each) == self._marks[each.key][1]]
        digests = digests_of(unwritten)
        for each in unwritten:
            step, _, before = self._marks[each.key]
            if (now := digests[each.key]) != before:
                change = Change(each.key.kind, each.key.name, step, before, now)
                self._held.setdefault(each.domain, []).append(change)

    def held(self, domain: Ranks) -> list[Change]:
        """Return what changed since the ranks of a domain compared last, and forget it."""
        return self._held.pop(domain, [])

    def unreported(self) -> list[Change]:
        """Return what changed and was not compared yet."""
        return [change for changes in self._held.values() for change in changes]

    def ignore(self, changes: Sequence[Change]) -> None:
        """Stop watching what the program writes itself."""
        self._written |= {(each.kind, each.name) for each in changes}

    def _is_watched(self, copy: Copy) -> bool:
        return copy.is_single and (copy.key.kind, copy.key.name) not in self._written


def split_changes(by_rank: Mapping[int, Sequence[Change]]) -> tuple[dict[int, list[Change]], list[Change]]:
    """Return (what changed on one rank alone, by rank; what changed on several in the same step)."""
    num_ranks: dict[tuple[str, str, int], int] = {}
    for changes in by_rank.values():
        for each in changes:
            num_ranks[each[:3]] = num_ranks.get(each[:3], 0) + 1
    written = {each[:2] for each, number in num_ranks.items() if number > 1}
    alone = {rank: [each for each in changes if each[:2] not in written] for rank, changes in by_rank.items()}
    shared = [each for changes in by_rank.values() for each in changes if each[:2] in written]
    return {rank: changes for rank, changes in alone.items() if changes}, shared


def _mark(copy: Copy) -> _Mark | None:
    if copy.tensor.is_inference() or copy.local.is_inference() or copy.local.layout is not torch.strided:
        return None
    return _Mark(copy.local.data_ptr(), (copy.tensor._version, copy.local._version))
