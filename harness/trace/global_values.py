"""Global values of a step, merged over ranks, for traces whose ranks cannot be compared one by one.

If ranks of one trace disagree on a global value, the trace has no single value to compare. Such a value never counts as
equal, unless both traces have the same ranks and each rank the same value. The comparison then uses a form that the
other trace does not have.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from harness.bits.digests import add_shards
from harness.trace.chain import CHAINED, Key, RecordedValue, Scope, step_root
from harness.trace.reader import Trace

RankValue = tuple[int, RecordedValue]
"""(rank, a global value on which it disagrees with a lower one)."""


@dataclass(frozen=True, slots=True)
class GlobalValues:
    """The global values of a step of two traces, paired; of logical scope."""

    a: Sequence[RecordedValue]
    b: Sequence[RecordedValue]
    apart: Sequence[tuple[str, int, RecordedValue]]
    """("A" or "B", rank, value): per trace, the first value on which a rank disagrees with a lower one."""


def paired_global_values(a: Trace, b: Trace, step: int) -> GlobalValues:
    """Return the global values of a step that both traces have."""
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
    """Return the global values of one trace; one that equals a value of `others` takes another rank's form, if any."""
    if not apart:
        return global_values_
    alike = {*others}
    forms = {recorded_value.key: recorded_value for _, recorded_value in reversed(apart)}
    return [
        forms.get(recorded_value.key, recorded_value) if recorded_value in alike else recorded_value
        for recorded_value in global_values_
    ]


def global_values(trace: Trace, step: int) -> tuple[list[RecordedValue], list[RankValue]]:
    """Return (global values, those on which a later rank disagrees) of one step, over all ranks; of logical scope.

    Digests of shards of a key are added. If several ranks have a value, the lowest rank's counts, as do its dtype and
    shape for shards.
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


def global_root(trace: Trace, step: int) -> bytes | None:
    """Return the root of a step over all ranks, which is that of a run in one process with the same global values.

    None if no rank has the step, or if ranks disagree on a value.
    """
    logs = trace.logs(step)
    if len(logs) == 1:
        (log,) = logs.values()
        return log.heads[step].root
    values, apart = global_values(trace, step)
    return step_root(step, values) if values and not apart else None


def shard_sums(trace: Trace, step: int) -> dict[Key, tuple[bytes, dict[int, bytes]]]:
    """Return for each sharded key (the sum over all ranks, the digest of each rank's shard)."""
    shards: dict[Key, dict[int, bytes]] = {}
    for rank, log in trace.logs(step).items():
        columns = trace.columns(step, rank) if log.heads[step].num_shards else None
        for recorded_value in columns.values() if columns else ():
            if recorded_value.scope is Scope.SHARD:
                shards.setdefault(recorded_value.key, {})[rank] = recorded_value.digest
    return {key: (add_shards(digests.values()), digests) for key, digests in shards.items()}
