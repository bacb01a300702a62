"""The first bad commit of a history of any shape, in few probes. Pure.

    good ── 1 ── 2 ──────── 5 ── bad          suspects: what bad has and good has not
                  \\── 3 ── 4 ──/

A commit is bad where an ancestor of it is: then half of the suspects go with each probe that is chosen well. Probed
bad, only its ancestors stay; probed good, its ancestors go, and so does it. One that cannot be run says nothing; the
next best is taken. Versions of a package are a history in one line.
"""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property
from graphlib import TopologicalSorter
from itertools import pairwise
from typing import Generic, TypeVar

T = TypeVar("T", bound=Hashable)


class Outcome(Enum):
    """What a probe has shown."""

    GOOD = "good"
    BAD = "bad"
    SKIP = "skip"
    """It could not be run, and says nothing."""


@dataclass(frozen=True)
class Search(Generic[T]):
    """How far a search has come. Each probe gives another one."""

    parents: Mapping[T, Sequence[T]]
    """Of every commit that `bad` has and the good one has not, and of `bad`; others are not looked at."""
    bad: T
    """The earliest that is known to be bad."""
    suspects: frozenset[T]
    """Among which the first bad one is; `bad` is one of them."""
    skipped: frozenset[T] = field(default_factory=frozenset)

    @classmethod
    def of(cls, parents: Mapping[T, Sequence[T]], bad: T) -> "Search[T]":
        """The search that begins; `bad` and all its ancestors in `parents` are suspects."""
        return cls(parents, bad, ancestors(parents, bad, frozenset(parents)))

    @property
    def candidates(self) -> tuple[T, ...]:
        """Which the first bad one may be, once nothing can be probed any more: one, unless some could not be run."""
        return tuple(sorted(self.suspects, key=self._order.__getitem__))

    @cached_property
    def next_probe(self) -> T | None:
        """The commit whose outcome halves the suspects best; None where nothing is left to be asked."""
        masks = self._masks()
        best: T | None = None
        most = 0
        for commit, mask in masks.items():
            if commit == self.bad or commit in self.skipped:
                continue
            if (gain := min(mask.bit_count(), len(masks) - mask.bit_count())) > most:
                best, most = commit, gain
        return best

    def after(self, commit: T, outcome: Outcome) -> "Search[T]":
        """The search once a suspect was probed."""
        assert commit in self.suspects and commit != self.bad
        if outcome is Outcome.SKIP:
            return Search(self.parents, self.bad, self.suspects, self.skipped | {commit})
        found = ancestors(self.parents, commit, self.suspects)
        if outcome is Outcome.BAD:
            return Search(self.parents, commit, found, self.skipped & found)
        return Search(self.parents, self.bad, self.suspects - found, self.skipped - found)

    @property
    def num_left(self) -> int:
        """About how many probes are still wanted."""
        return max(0, (len(self.suspects) - 1).bit_length())

    @cached_property
    def _order(self) -> dict[T, int]:
        """A number for each commit, parents first; equal histories are searched alike."""
        return {commit: at for at, commit in enumerate(TopologicalSorter(self.parents).static_order())}

    def _masks(self) -> dict[T, int]:
        """For each suspect, parents first, the set of itself and its ancestors among them, a bit for each."""
        masks: dict[T, int] = {}
        for at, commit in enumerate(sorted(self.suspects, key=self._order.__getitem__)):
            masks[commit] = 1 << at
            for parent in self.parents.get(commit, ()):
                masks[commit] |= masks.get(parent, 0)
        return masks


def ancestors(parents: Mapping[T, Sequence[T]], commit: T, among: frozenset[T]) -> frozenset[T]:
    """A commit and all of its ancestors that can be reached within `among`."""
    found, to_see = {commit}, [commit]
    while to_see:
        for parent in parents.get(to_see.pop(), ()):
            if parent in among and parent not in found:
                found.add(parent)
                to_see.append(parent)
    return frozenset(found)


def in_a_line(names: Sequence[T]) -> dict[T, tuple[T, ...]]:
    """The history of what comes one after the other, the first being good."""
    return {name: (before,) for before, name in pairwise(names)}
