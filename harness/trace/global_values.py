"""Wholes of a step over all ranks: what is compared where ranks of two traces cannot be compared one by one.

Of a whole that ranks of one trace have otherwise there is no one value. It is compared by that which the other trace
has not: such a whole is never equal, unless the two have the same ranks and each rank the same of it.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from harness.trace.chain import CHAINED, Key, RecordedValue, Scope
from harness.trace.digests import add_shards
from harness.trace.reader import Trace

RankValue = tuple[int, RecordedValue]
"""(rank, a whole that it has otherwise than a lower one)."""


@dataclass(frozen=True, slots=True)
class GlobalValues:
    """The wholes of a step of two traces, as they face each other; of logical scope."""

    a: Sequence[RecordedValue]
    b: Sequence[RecordedValue]
    apart: Sequence[tuple[str, int, RecordedValue]]
    """("A" or "B", rank, leaf): the first of each trace that a rank has otherwise than a lower one."""


def paired_global_values(a: Trace, b: Trace, step: int) -> GlobalValues:
    """The wholes of a step that both traces have."""
    (wholes_a, apart_a), (wholes_b, apart_b) = global_values(a, step), global_values(b, step)
    if a.ranks.keys() == b.ranks.keys():
        alike = {*apart_a} & {*apart_b}
        apart_a, apart_b = ([each for each in apart if each not in alike] for apart in (apart_a, apart_b))
    wholes_a = _unlike(wholes_a, apart_a, wholes_b)
    wholes_b = _unlike(wholes_b, apart_b, wholes_a)
    apart = [(name, *first) for name, each in (("A", apart_a), ("B", apart_b)) for first in each[:1]]
    return GlobalValues(wholes_a, wholes_b, apart)


def _unlike(
    global_values_: list[RecordedValue], apart: Sequence[RankValue], others: Sequence[RecordedValue]
) -> list[RecordedValue]:
    """The wholes of one trace, each that `others` has just so in another rank's form, if there is one."""
    if not apart:
        return global_values_
    alike = {*others}
    forms = {recorded_value.key: recorded_value for _, recorded_value in reversed(apart)}
    return [
        forms.get(recorded_value.key, recorded_value) if recorded_value in alike else recorded_value
        for recorded_value in global_values_
    ]


def global_values(trace: Trace, step: int) -> tuple[list[RecordedValue], list[RankValue]]:
    """(leaves of wholes, those that a later rank has otherwise) of one step, over all ranks; of logical scope.

    Shards of a key are added. Of a whole that several ranks have, and of the dtype and shape of shards, the lowest
    rank's counts.
    """
    merged: dict[Key, RecordedValue] = {}
    shards: dict[Key, list[bytes]] = {}
    apart = []
    for rank in trace.logs(step):
        for recorded_value in trace.columns(step, rank).values():
            if recorded_value.scope not in CHAINED:
                continue
            first = merged.setdefault(recorded_value.key, recorded_value)
            if recorded_value.scope is Scope.SHARD and recorded_value._replace(digest=first.digest) == first:
                shards.setdefault(recorded_value.key, []).append(recorded_value.digest)
            elif recorded_value != first:
                apart.append((rank, recorded_value._replace(scope=Scope.LOGICAL)))
    for key, digests in shards.items():
        merged[key] = merged[key]._replace(digest=add_shards(digests), scope=Scope.LOGICAL)
    return list(merged.values()), apart


def shard_sums(trace: Trace, step: int) -> dict[Key, tuple[bytes, dict[int, bytes]]]:
    """Of each key that is in shards: (the sum over all ranks, the digest of each rank's shard)."""
    shards: dict[Key, dict[int, bytes]] = {}
    for rank, log in trace.logs(step).items():
        columns = trace.columns(step, rank) if log.heads[step].num_shards else None
        for recorded_value in columns.values() if columns else ():
            if recorded_value.scope is Scope.SHARD:
                shards.setdefault(recorded_value.key, {})[rank] = recorded_value.digest
    return {key: (add_shards(digests.values()), digests) for key, digests in shards.items()}
