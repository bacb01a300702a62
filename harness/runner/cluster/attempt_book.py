"""Which attempt is on which node, and what still counts: pure, the heart of a run across nodes.

    begin ──▶ on its node ──the node says its end────────────▶ ENDED, once
               │    └─the node is lost───────────────────────▶ lost, once; whatever is heard of it later is LATE
               └─another node of the unit is lost─▶ broken ──its node says its end──▶ LOST, once

Every attempt that has begun ends in exactly one way. A node that was lost never comes back: an agent that dials again
is a new node with a new name.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum


class Standing(StrEnum):
    """What an end that a node reports is worth."""

    ENDED = "ended"
    LOST = "lost"
    """The attempt has ended, but a node that it used was lost meanwhile: it does not count."""
    LATE = "late"
    """Of an attempt that is not on this node, or not any more: it is dropped."""


@dataclass(frozen=True, slots=True)
class Losses:
    """What is lost with a node."""

    lost: tuple[str, ...] = ()
    """Attempts that ran on it."""
    broken: tuple[str, ...] = ()
    """Attempts of units on several nodes that run on another: they are to be killed, and end as LOST."""


@dataclass(slots=True)
class AttemptBook:
    """The attempts of one run that have begun, by their markers, which are never used twice."""

    _nodes_of: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Nodes of each attempt that has not ended, that on which it runs first."""
    _broken: set[str] = field(default_factory=set)
    _used: set[str] = field(default_factory=set)
    _nodes: set[str] = field(default_factory=set)
    _lost: set[str] = field(default_factory=set)

    def join(self, node: str) -> None:
        """Take in a node. AssertionError for a name that was taken before: that is our own bug."""
        if node in self._nodes | self._lost:
            raise AssertionError(f"{node} joins twice")
        self._nodes.add(node)

    def is_alive(self, node: str) -> bool:
        """Return whether a node has joined and was not lost."""
        return node in self._nodes

    def begin(self, marker: str, nodes: Sequence[str]) -> bool:
        """Put an attempt on nodes; False where one of them is lost, so that the attempt is too.

        AssertionError for a marker that was used before: what is late for one attempt could count for the other.
        """
        if marker in self._used:
            raise AssertionError(f"the attempt {marker} begins twice")
        self._used.add(marker)
        if not all(map(self.is_alive, nodes)):
            return False
        self._nodes_of[marker] = tuple(nodes)
        return True

    def counts(self, marker: str, node: str) -> bool:
        """Return whether what `node` says of an attempt is heard: it runs there, and has not ended."""
        return self._nodes_of.get(marker, ("",))[0] == node

    def end(self, marker: str, node: str) -> Standing:
        """Take note that `node` says that an attempt has ended; return what that is worth."""
        if not self.counts(marker, node):
            return Standing.LATE
        del self._nodes_of[marker]
        if marker in self._broken:
            self._broken.remove(marker)
            return Standing.LOST
        return Standing.ENDED

    def lose(self, node: str) -> Losses:
        """Lose a node; return what is lost with it. Losing it again loses nothing."""
        if node not in self._nodes:
            return Losses()
        self._nodes.remove(node)
        self._lost.add(node)
        lost = tuple(marker for marker, nodes in self._nodes_of.items() if nodes[0] == node)
        for marker in lost:
            del self._nodes_of[marker]
        self._broken -= set(lost)
        broken = tuple(m for m, nodes in self._nodes_of.items() if node in nodes and m not in self._broken)
        self._broken |= set(broken)
        return Losses(lost, broken)

    @property
    def open(self) -> frozenset[str]:
        """Attempts that have begun and not ended."""
        return frozenset(self._nodes_of)
