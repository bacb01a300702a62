"""Wholes of a step over all ranks: what is compared where ranks of two traces cannot be compared one by one.

Of a whole that ranks of one trace have otherwise there is no one value. It is compared by that which the other trace
has not: such a whole is never equal, unless the two have the same ranks and each rank the same of it.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from harness.trace.chain import CHAINED, Key, Leaf, Scope
from harness.trace.digests import add_shards
from harness.trace.reader import Trace

RankLeaf = tuple[int, Leaf]
"""(rank, a whole that it has otherwise than a lower one)."""


@dataclass(frozen=True, slots=True)
class Wholes:
    """The wholes of a step of two traces, as they face each other; of logical scope."""

    a: Sequence[Leaf]
    b: Sequence[Leaf]
    apart: Sequence[tuple[str, int, Leaf]]
    """("A" or "B", rank, leaf): the first of each trace that a rank has otherwise than a lower one."""


def facing_wholes(a: Trace, b: Trace, step: int) -> Wholes:
    """The wholes of a step that both traces have."""
    (wholes_a, apart_a), (wholes_b, apart_b) = whole_leaves(a, step), whole_leaves(b, step)
    if a.ranks.keys() == b.ranks.keys():
        alike = {*apart_a} & {*apart_b}
        apart_a, apart_b = ([each for each in apart if each not in alike] for apart in (apart_a, apart_b))
    wholes_a = _unlike(wholes_a, apart_a, wholes_b)
    wholes_b = _unlike(wholes_b, apart_b, wholes_a)
    apart = [(name, *first) for name, each in (("A", apart_a), ("B", apart_b)) for first in each[:1]]
    return Wholes(wholes_a, wholes_b, apart)


def _unlike(wholes: list[Leaf], apart: Sequence[RankLeaf], others: Sequence[Leaf]) -> list[Leaf]:
    """The wholes of one trace, each that `others` has just so in another rank's form, if there is one."""
    if not apart:
        return wholes
    alike = {*others}
    forms = {leaf.key: leaf for _, leaf in reversed(apart)}
    return [forms.get(leaf.key, leaf) if leaf in alike else leaf for leaf in wholes]


def whole_leaves(trace: Trace, step: int) -> tuple[list[Leaf], list[RankLeaf]]:
    """(leaves of wholes, those that a later rank has otherwise) of one step, over all ranks; of logical scope.

    Shards of a key are added. Of a whole that several ranks have, and of the dtype and shape of shards, the lowest
    rank's counts.
    """
    merged: dict[Key, Leaf] = {}
    shards: dict[Key, list[bytes]] = {}
    apart = []
    for rank in trace.logs(step):
        for leaf in trace.columns(step, rank).leaves():
            if leaf.scope not in CHAINED:
                continue
            first = merged.setdefault(leaf.key, leaf)
            if leaf.scope is Scope.SHARD and leaf._replace(digest=first.digest) == first:
                shards.setdefault(leaf.key, []).append(leaf.digest)
            elif leaf != first:
                apart.append((rank, leaf._replace(scope=Scope.LOGICAL)))
    for key, digests in shards.items():
        merged[key] = merged[key]._replace(digest=add_shards(digests), scope=Scope.LOGICAL)
    return list(merged.values()), apart


def shard_sums(trace: Trace, step: int) -> dict[Key, tuple[bytes, dict[int, bytes]]]:
    """Of each key that is in shards: (the sum over all ranks, the digest of each rank's shard)."""
    shards: dict[Key, dict[int, bytes]] = {}
    for rank, log in trace.logs(step).items():
        columns = trace.columns(step, rank) if log.heads[step].num_shards else None
        for leaf in columns.leaves() if columns else ():
            if leaf.scope is Scope.SHARD:
                shards.setdefault(leaf.key, {})[rank] = leaf.digest
    return {key: (add_shards(digests.values()), digests) for key, digests in shards.items()}
