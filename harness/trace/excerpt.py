"""Some steps or ranks of a trace, as a trace of their own: to compare what a run did again with what it had done.

    recorded   0 1 2 3 4 5 6 7 8 9
    again            3 4 5           ──▶ diff(excerpt(recorded, 3, 5), again)

Nothing is copied: values and tensors are read from their original files.
"""

from dataclasses import replace

from harness.bits.errors import TraceError
from harness.trace.reader import RankLog, Trace


def excerpt(trace: Trace, first: int, last: int) -> Trace:
    """Return the steps `first` to `last` of a trace, both included. It is complete if it has all of the last one.

    TraceError where it has none of them.
    """
    logs = {rank: _cut(log, first, last) for rank, log in trace.ranks.items()}
    if not any(log.heads for log in logs.values()):
        known = f"{trace.steps[0]} to {trace.steps[-1]}" if trace.steps else "none"
        steps = f"step {first}" if first == last else f"steps {first} to {last}"
        raise TraceError(f"{trace.directory} has no {steps}", legal=f"the steps that it has: {known}")
    manifest = trace.manifest
    if manifest is not None and last in trace.steps:
        manifest = replace(manifest, complete=True)
    curve = tuple(point for point in trace.curve if first <= point.step <= last)
    has_lost = not curve or curve[-1].step < last
    return Trace(trace.directory, manifest, logs, curve, trace.curve_ends_at if has_lost else None)


def common_ranks(a: Trace, b: Trace) -> tuple[Trace, Trace]:
    """Return two traces reduced to the ranks of both, if their world sizes are equal and logs are missing.

    Traces with shards are returned unchanged: only all ranks together show whether shards were cut differently.
    """
    if a.manifest is None or b.manifest is None or a.manifest.world_size != b.manifest.world_size:
        return a, b
    ranks = sorted(a.ranks.keys() & b.ranks.keys())
    if not ranks or min(len(a.ranks), len(b.ranks)) >= a.manifest.world_size:
        return a, b
    if any(head.num_shards for trace in (a, b) for log in trace.ranks.values() for head in log.heads.values()):
        return a, b
    one, other = (replace(manifest, world_size=len(ranks)) for manifest in (a.manifest, b.manifest))
    logs_a, logs_b = ({rank: trace.ranks[rank] for rank in ranks} for trace in (a, b))
    return replace(a, manifest=one, ranks=logs_a), replace(b, manifest=other, ranks=logs_b)


def _cut(log: RankLog, first: int, last: int) -> RankLog:
    """The same log with these steps only; what comes after them is no part of it, be it torn or not."""
    heads = {step: head for step, head in log.heads.items() if first <= step <= last}
    is_whole = last in heads
    return replace(
        log,
        heads=heads,
        is_closed=is_whole or log.is_closed,
        num_skipped_bytes=0 if is_whole else log.num_skipped_bytes,
    )
