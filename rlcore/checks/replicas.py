"""Replicas that must be bitwise equal: which of them differ, from their digests. Pure.

Digests are of bits, type and shape, and stand under their names: two equal changes, or two tensors that were exchanged,
do not cancel, as they would in a XOR of words.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

Digests = Mapping[str, str]


class ReplicaDifference(NamedTuple):
    """A tensor of which replicas hold different bits."""

    name: str
    digests: tuple[str, ...]
    """Of each replica, in their order."""
    suspects: tuple[int, ...]
    """Replicas that differ from more than half; all of them if no digest has a majority."""


def differences(digests: Sequence[Digests]) -> list[ReplicaDifference]:
    """Return the tensors that differ, from the digests of each replica; a replica may lack a tensor."""
    names = dict.fromkeys(name for each in digests for name in each)
    found = []
    for name in names:
        own = tuple(each.get(name, "") for each in digests)
        if len(set(own)) > 1:
            found.append(ReplicaDifference(name, own, _suspects(own)))
    return found


def suspects_of(found: Sequence[ReplicaDifference]) -> tuple[int, ...]:
    """Return the replicas that any of the differences suspects."""
    return tuple(sorted({replica for each in found for replica in each.suspects}))


def _suspects(digests: Sequence[str]) -> tuple[int, ...]:
    digest, number = Counter(digests).most_common(1)[0]
    has_majority = 2 * number > len(digests)
    return tuple(replica for replica, own in enumerate(digests) if not has_majority or own != digest)
