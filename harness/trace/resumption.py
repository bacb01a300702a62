"""A run that was resumed from a checkpoint, and numbers its steps from 0 again, beside the run that went through.

    A  0 1 2 3 4 5 6 7
    B          0 1 2 3      --shift 4: B's step 0 is A's step 4

A new process records everything that it holds in its first step; the run that went through recorded at that step what
had changed. What B has beyond A there is compared with what A recorded last of it.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace

from harness.bits.errors import TraceError
from harness.bits.findings import Finding
from harness.trace.format import (
    CHAINED,
    RANDOM,
    Columns,
    RecordedValue,
    Scope,
    contexts,
    layout_of,
    next_chain,
    step_root,
)
from harness.trace.reader import RankLog, Trace, excerpt
from harness.trace.verdict import VerdictCode

HELD = ("forward", "optimizer")
"""Phases whose values a process may hold unchanged from step to step."""

MAX_VALUES = 2_000_000
"""So many values of A are searched for the beginning of B: about a second."""


def align(a: Trace, b: Trace, shift: int) -> tuple[Trace, Trace, Finding]:
    """Return A and B with the same numbers for the same steps, reduced to those of both, and a note on that.

    Step 0 of B is step `shift` of A. TraceError where they have no step in common.
    """
    moved = replace(b, ranks={rank: _renumbered(log, shift) for rank, log in b.ranks.items()}, curve=(), _opened={})
    steps = sorted(set(a.steps) & set(moved.steps))
    if not steps:
        raise TraceError(
            f"--shift {shift}: no step of {b.directory} is one of {a.directory}",
            legal=f"a number that moves the steps {_span(b)} to some of the steps {_span(a)}",
            remedy="name the step of A at which B was resumed",
        )
    part_a, part_b = (excerpt(each, steps[0], steps[-1]) for each in (replace(a, curve=()), moved))
    ranks = {rank: _filled(a, rank, log, part_b, steps[0]) for rank, log in part_a.ranks.items()}
    others = {rank: _without_skipped(log, part_a, rank, steps[0]) for rank, log in part_b.ranks.items()}
    one, other = (each.manifest.fingerprint.identity if each.manifest else {} for each in (a, b))
    names = tuple(sorted(name for name in {**one, **other} if one.get(name) != other.get(name)))
    if part_b.manifest is not None and a.manifest is not None:
        found = replace(part_b.manifest.fingerprint, identity=a.manifest.fingerprint.identity)
        part_b = replace(part_b, manifest=replace(part_b.manifest, fingerprint=found))
    note = VerdictCode.RESUMED(shift=shift, first_step=steps[0], last_step=steps[-1], names=names)
    return replace(part_a, ranks=ranks, _opened={}), replace(part_b, ranks=others, _opened={}), note


def resumed_at(a: Trace, b: Trace) -> Finding | None:
    """Return after which step of A the run B begins, by its weights; None where it begins as A does, or elsewhere.

    All weights that B's optimizers hold at its beginning have to be those that A's have left in one step.
    """
    rank = min(a.ranks.keys() & b.ranks.keys(), default=None)
    if rank is None or not a.steps or not b.steps:
        return None
    trained = {each.name for each in _of_phase(b, b.steps[0], rank, "optimizer")}
    begins = {each.name: each.digest for each in _of_phase(b, b.steps[0], rank, "forward") if each.name in trained}
    starts = {each.name: each.digest for each in _of_phase(a, a.steps[0], rank, "forward")}
    if not begins or any(starts.get(name) == digest for name, digest in begins.items()):
        return None
    num_read = 0
    for step, head in a.ranks[rank].heads.items():
        num_read += head.num_values
        if num_read > MAX_VALUES:
            return None
        if not all(digest in a.columns(step, rank).digests for digest in begins.values()):
            continue  # without decoding its values
        left = {each.name: each.digest for each in _of_phase(a, step, rank, "optimizer")}
        if all(left.get(name) == digest for name, digest in begins.items()):
            shift = step + 1 - b.steps[0]
            return VerdictCode.RESUMED_AT(shift=shift) if shift > 0 else None
    return None


def _of_phase(trace: Trace, step: int, rank: int, phase: str) -> Iterator[RecordedValue]:
    if step in trace.ranks[rank].heads:
        yield from (value for _, value in trace.columns(step, rank).of_phases((phase,)) if value.scope in CHAINED)


def _renumbered(log: RankLog, shift: int) -> RankLog:
    """A log whose step k has the number k + shift, with the roots and chains that follow from that."""
    roots = {step: step_root(step + shift, log.columns(step).values()) for step in log.heads}
    heads = {step + shift: replace(head, step=step + shift, root=roots[step]) for step, head in log.heads.items()}
    places = {step + shift: place for step, place in log.places.items()}
    return _chained(replace(log, heads=heads, places=places, shift=shift))


def _chained(log: RankLog) -> RankLog:
    """The same log with the chains that follow from its roots."""
    chain, heads = bytes(16), {}
    for step, head in log.heads.items():
        chain = next_chain(chain, head.root)
        heads[step] = replace(head, chain=chain)
    return replace(log, heads=heads)


def _filled(a: Trace, rank: int, log: RankLog, b: Trace, step: int) -> RankLog:
    """A's log of a rank, its first step with what B records there of values that A holds since earlier steps."""
    if rank not in b.ranks or step not in log.heads or step not in b.ranks[rank].heads:
        return _chained(log)
    mine = a.columns(step, rank).values()
    keys = {(each.scope, each.key) for each in mine}
    wanted = [each for each in b.columns(step, rank).values() if (each.scope, each.key) not in keys and _is_held(each)]
    known = _last_known(a, rank, step, wanted)
    values = _merged(mine, [known[each.scope, each.key] for each in wanted if (each.scope, each.key) in known])
    return _with_values(log, step, values)


def _without_skipped(log: RankLog, a: Trace, rank: int, step: int) -> RankLog:
    """B's log of a rank, its first step without the batches that B skipped to come to the one that A reads there."""
    if rank not in a.ranks or step not in log.heads or step not in a.ranks[rank].heads:
        return log
    values = log.columns(step).values()
    num_read = Counter(each.name for each in a.columns(step, rank).values() if _is_read(each))
    num_skipped = Counter(each.name for each in values if _is_read(each))
    num_skipped.subtract(num_read)
    kept = []
    for each in values:
        num = num_skipped[each.name] if _is_read(each) and num_read[each.name] else 0
        if each.occurrence >= num:
            kept.append(each._replace(occurrence=each.occurrence - max(num, 0)))
    return _with_values(log, step, kept)


def _is_read(value: RecordedValue) -> bool:
    return value.phase == "rollout" and value.scope in (Scope.PHYSICAL, Scope.CONTEXT)


def _with_values(log: RankLog, step: int, values: Sequence[RecordedValue]) -> RankLog:
    head = replace(
        log.heads[step],
        root=step_root(step, values),
        num_values=len(values),
        num_logical=sum(each.scope is Scope.LOGICAL for each in values),
        num_parts=sum(each.scope is Scope.PHYSICAL for each in values),
        num_contexts=sum(each.scope is Scope.CONTEXT for each in values),
    )
    return _chained(replace(log, heads={**log.heads, step: head}, changed={**log.changed, step: _columns(values)}))


def _is_held(value: RecordedValue) -> bool:
    if value.scope is Scope.CONTEXT:
        return value.name.startswith(RANDOM)
    return value.phase in HELD and value.occurrence == 0 and value.scope is Scope.LOGICAL


def _last_known(
    a: Trace, rank: int, before: int, wanted: Sequence[RecordedValue]
) -> dict[tuple[Scope, tuple[str, str, int]], RecordedValue]:
    """What A recorded last, before a step, of these values; by B's scope and key."""
    found = {}
    left = {(each.scope, each.phase == "optimizer", each.name): each for each in wanted}
    for step in reversed([step for step in a.ranks[rank].heads if step < before]):
        if not left:
            break
        columns = a.columns(step, rank)
        last: dict[tuple[Scope, str], tuple[int, RecordedValue]] = {}
        for index, value in sorted([*columns.of_phases(HELD), *contexts(columns)]):
            last[value.scope, value.name] = index, value
        for key, value in list(left.items()):
            if (value.scope, value.name) in last:
                earlier = last[value.scope, value.name][1]
                found[value.scope, value.key] = earlier._replace(phase=value.phase, occurrence=value.occurrence)
                del left[key]
    return found


def _merged(values: Sequence[RecordedValue], more: Sequence[RecordedValue]) -> list[RecordedValue]:
    """Insert values before the first of A's that is of a later phase: contexts, weights, then settings."""
    by_phase = {phase: [each for each in more if each.phase == phase] for phase in ("rollout", *HELD)}
    after = {"rollout": 0, "forward": 0, "optimizer": len(values)}
    after["forward"] = next((at for at, each in enumerate(values) if each.phase != "rollout"), len(values))
    after["optimizer"] = next((at for at, each in enumerate(values) if each.phase == "optimizer"), len(values))
    merged = list(values)
    for phase in ("optimizer", "forward", "rollout"):  # from the end, so that positions hold
        merged[after[phase] : after[phase]] = by_phase[phase]
    return merged


def _columns(values: Sequence[RecordedValue]) -> Columns:
    layout = layout_of(values)
    return Columns(layout.scopes, b"".join([each.digest for each in values]), layout.lengths, layout.descriptions)


def _span(trace: Trace) -> str:
    return f"{trace.steps[0]} to {trace.steps[-1]}" if trace.steps else "none"
