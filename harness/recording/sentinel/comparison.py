"""Compares digests of replicas: tables by rank in, differences out. Pure: no torch, nothing is sent.

A digest of the whole table comes first, and the tables themselves only where it differs. Names, kinds and replica sets
are part of it, in order: two equal changes, or two tensors that were exchanged, do not cancel.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from xxhash import xxh3_128_hexdigest

from harness.recording.sentinel.sentinel_report import Difference, suspects_of


class Key(NamedTuple):
    """What a digest is of."""

    kind: str
    """weight, gradient or moment."""
    name: str
    replicas: tuple[int, ...]
    """Ranks whose digests must be equal, in order."""


Table = Mapping[Key, str]
"""Digest of each tensor of a rank."""
Summary = Mapping[tuple[int, ...], str]
"""One digest for all tensors of each replica set."""


def summarize(table: Table) -> dict[tuple[int, ...], str]:
    """Return one digest for each set of replicas; single copies have none."""
    texts: dict[tuple[int, ...], list[str]] = {}
    for key, digest in table.items():
        if len(key.replicas) > 1:
            texts.setdefault(key.replicas, []).append(f"{key.kind} {len(key.name)} {key.name} {digest}\n")
    return {replicas: xxh3_128_hexdigest("".join(each).encode()) for replicas, each in texts.items()}


def is_equal(summaries: Mapping[int, Summary]) -> bool:
    """Return whether all replicas have equal digests, from the summaries by rank."""
    for summary in summaries.values():
        for replicas, digest in summary.items():
            if any(summaries[rank].get(replicas) != digest for rank in replicas if rank in summaries):
                return False
    return True


def differences(tables: Mapping[int, Table]) -> list[Difference]:
    """Return the tensors of which replicas hold different bits, in the order of the first rank that has them.

    A rank without a tensor, such as one whose optimizer keeps only a part of the moments, has no say about it.
    """
    found: dict[Key, Difference] = {}
    for table in tables.values():
        for key in table:
            if len(key.replicas) < 2 or key in found:
                continue
            digests = {rank: tables[rank][key] for rank in key.replicas if rank in tables and key in tables[rank]}
            if len(set(digests.values())) > 1:
                found[key] = Difference(key.kind, key.name, digests, suspects_of(digests.items()))
    return list(found.values())


def named_ranks(found: Sequence[Difference]) -> tuple[int, ...]:
    """Ranks that any of the differences suspects."""
    return tuple(sorted({rank for each in found for rank in each.suspects}))
