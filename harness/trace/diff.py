"""Comparison of two traces.

    roots of every step ─▶ the first that differ ─▶ that one step opened ─▶ the first value ─▶ verdict

Before that, processes without a rank are matched. Values of chained scope decide. Where both traces have the same
ranks, each rank is compared with its counterpart, and the one that differs at the earliest position of its log comes
first: ranks run one program, so the position is the clock they share. A rank that lacks a step of its counterpart's
differs before every value of that step. Where the ranks of the two traces are not the same, or where values were cut
into other shards, values are merged over ranks; a global value on which the ranks of a trace disagree differs.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace

from harness.bits.findings import Finding
from harness.bits.redaction import redact_fields
from harness.trace.attribution import attribute
from harness.trace.chain import CHAINED, Scope, chain_start
from harness.trace.context import compare_contexts
from harness.trace.curve_diff import compare_curves, uncompared
from harness.trace.excerpt import common_ranks
from harness.trace.explanation import causes, completed
from harness.trace.first_difference import earliest, missing_frame, missing_step, only_in_one
from harness.trace.global_values import paired_global_values, shard_sums
from harness.trace.manifest import PARTS, Fingerprint, short_field
from harness.trace.mapped_libraries import deciding
from harness.trace.matching import match_processes
from harness.trace.ops import ops_of_divergence, ops_of_other_steps
from harness.trace.reader import Trace, chain_breaks
from harness.trace.reasons import VerdictCode
from harness.trace.resumption import resumed_at
from harness.trace.value_diff import StepDifference, compare_columns, compare_values
from harness.trace.verdict import Divergence, FieldDifference, Kind, Verdict

NO_NUMERICS = "libraries"
"""Part of a comparison: libraries that cannot move bits. They are shown and decide nothing."""
PLACED = (*CHAINED, Scope.PHYSICAL)
"""Scopes that the first difference may have."""

Fields = dict[str, tuple[FieldDifference, ...]]
ByRank = dict[int | None, StepDifference]


def diff(a: Trace, b: Trace) -> Verdict:
    """Compare two traces; TraceError if a log holds frames that are complete but malformed."""
    gaps, match = _faults(VerdictCode.TRACE_INCOMPLETE, a.gaps, b.gaps), match_processes(a, b)
    b = match.b
    if match.has_other_curve:
        a, b = replace(a, curve=()), replace(b, curve=())
    num_ranks = len(a.ranks.keys() | b.ranks.keys())
    a, b = common_ranks(a, b)
    found = _compare_steps(a, b)
    fingerprints = _compare_fingerprints(a, b)
    kind, reasons = _classify(a, b, found, fingerprints, gaps)
    curve = compare_curves(a, b)
    part = _first_part(a, b, found.first)
    if found.first is not None and part is not None and _is_fetched_ahead(a, b, part, found.first):
        found.first, part = part, None
    attribution = {} if found.first is None else attribute(a, b)
    directories = a.directory, b.directory
    numbers = {rank: log.number for rank, log in b.ranks.items()}
    notes: list[Finding] = [
        *match.notes(),
        *found.notes,
        *found.faults,
        *gaps,
        *_faults(VerdictCode.TRACE_DAMAGED, a.damages, b.damages),  # of kept tensors those asked for until now
        *uncompared(a, b),
    ]
    if len(a.ranks.keys() | b.ranks.keys()) < num_ranks:
        notes.append(VerdictCode.RANKS_MISSING(num_compared=len(a.ranks), num_ranks=num_ranks))
    if kind is Kind.EQUAL and curve:
        names = tuple(each.name for each in curve)
        notes.append(VerdictCode.CURVE_DIFFERS(step=curve[0].step, names=names))
    if found.first is not None:
        if a.steps and b.steps and found.first.step in (a.steps[0], b.steps[0]) and (resumed := resumed_at(a, b)):
            notes.append(resumed)
        notes += ops_of_other_steps(*directories, found.first.step)
    verdict = Verdict(
        kind=kind,
        reasons=tuple(reasons),
        notes=tuple(note for note in notes if note not in reasons),
        first=None if found.first is None else completed(a, b, found.first),
        part=part,
        context=compare_contexts(a, b, None if found.first is None else found.first.step),
        attribution=attribution,
        num_ranks=num_ranks,
        num_steps=found.num_steps,
        num_steps_different=found.num_different,
        is_nan_payload_only=found.first is not None and found.is_nan_payload_only,
        fingerprints=fingerprints,
        curve=curve,
        operations=None if found.first is None else ops_of_divergence(*directories, found.first.step, numbers),
    )
    return verdict if kind is not Kind.DIVERGED else replace(verdict, causes=tuple(causes(a, b, verdict)))


# ------------------------------------------------------------------------------------------------------------- steps


@dataclass(slots=True)
class _Found:
    """What the steps have shown so far."""

    first: Divergence | None = None
    num_steps: int = 0
    num_different: int = 0
    num_incomparable: int = 0
    is_nan_payload_only: bool = True
    faults: list[Finding] = field(default_factory=list)
    """In what a trace contradicts itself."""
    has_wrong_root: bool = False
    is_merged: bool = False
    """Whether ranks cannot be compared one by one: the ranks differ, or the same values have different shards."""
    notes: list[Finding] = field(default_factory=list)


def _compare_steps(a: Trace, b: Trace) -> _Found:
    found = _Found(faults=[*_chain_faults("A", a), *_chain_faults("B", b)], is_merged=not _has_same_ranks(a, b))
    steps_a, steps_b = set(a.steps), set(b.steps)
    for step in sorted(steps_a | steps_b):
        if step in steps_a and step in steps_b:
            found.num_steps += 1
            alone = only_in_one(a, b, step) if _has_same_ranks(a, b) else {}
            if alone:
                _count_missing(found)
                found.first = found.first or missing_frame(step, alone, _ranks_that_differ(a, b, step))
            elif not _has_equal_roots(a, b, step):
                _fold(a, b, step, found)
        elif _would_have(b if step in steps_a else a, step):
            found.num_steps += 1
            _count_missing(found)
            found.first = found.first or missing_step(a, b, step)
    return found


def _count_missing(found: _Found) -> None:
    """Add a step that is missing somewhere."""
    found.num_different += 1
    found.is_nan_payload_only = False


def _ranks_that_differ(a: Trace, b: Trace, step: int) -> list[int]:
    """Of the ranks that have a step in both traces."""
    return [rank for rank, each in _open(a, b, step, CHAINED).items() if rank is not None and each.first]


def _has_same_ranks(a: Trace, b: Trace) -> bool:
    """Whether each rank of either trace has a counterpart in the other, whatever steps it has."""
    return a.ranks.keys() == b.ranks.keys()


def _fold(a: Trace, b: Trace, step: int, found: _Found) -> None:
    """Add a step whose roots differ to what was found; it is opened as long as it can tell something new."""
    is_by_rank = not found.is_merged
    if is_by_rank and found.first and not found.is_nan_payload_only and not found.num_incomparable:
        found.num_different += 1
        return
    if is_by_rank and _is_recut(a, b, step):
        found.is_merged, is_by_rank = True, False
    opened = _open(a, b, step, CHAINED) if is_by_rank else _open_merged(a, b, step, found)
    different = [each for each in opened.values() if each.first]
    num_incomparable = sum(each.num_incomparable for each in opened.values())
    found.num_incomparable += num_incomparable
    if different:
        found.num_different += 1
        found.is_nan_payload_only &= all(each.is_nan_payload_only for each in different)
        if found.first is None:
            opened = _open(a, b, step, PLACED) if is_by_rank and _has_parts(a, step) else opened
            found.first = earliest(a, b, step, opened)
    elif is_by_rank and not num_incomparable and not found.has_wrong_root:
        found.has_wrong_root = True
        found.faults.append(VerdictCode.ROOT_MISMATCH(step=step))


def _has_equal_roots(a: Trace, b: Trace, step: int) -> bool:
    """Whether roots alone show that the logical values of a step are equal."""
    heads_a = {rank: log.heads[step] for rank, log in a.logs(step).items()}
    heads_b = {rank: log.heads[step] for rank, log in b.logs(step).items()}
    if _has_same_ranks(a, b):
        return all(heads_a[rank].root == heads_b[rank].root for rank in heads_a.keys() & heads_b.keys())
    if any(head.num_shards for head in (*heads_a.values(), *heads_b.values())):
        return False  # parts of other cuts: equal roots would not make equal wholes, nor unequal ones unequal
    roots_a = {head.root for head in heads_a.values() if head.num_logical}
    roots_b = {head.root for head in heads_b.values() if head.num_logical}
    return len(roots_a) == 1 and roots_a == roots_b


def _is_recut(a: Trace, b: Trace, step: int) -> bool:
    """Whether a rank's shards differ while their sums over all ranks do not."""
    sums_a, sums_b = shard_sums(a, step), shard_sums(b, step)
    equal = {key for key, digests in sums_a.items() if sums_b.get(key, (0, 0))[0] == digests[0]}
    return any(sums_a[key][1] != sums_b[key][1] for key in equal)


def _open(a: Trace, b: Trace, step: int, scopes: Iterable[Scope]) -> ByRank:
    """Return the differences of a step by rank, for ranks that have it in both traces."""
    ranks = [rank for rank in a.logs(step) if rank in b.logs(step)]
    return {rank: compare_columns(a.columns(step, rank), b.columns(step, rank), scopes) for rank in ranks}


def _open_merged(a: Trace, b: Trace, step: int, found: _Found) -> ByRank:
    """Return the differences of the global values of a step, under None."""
    global_values_ = paired_global_values(a, b, step)
    if not found.notes:
        found.notes += [
            VerdictCode.RANK_DISAGREES(trace=name, rank=rank, step=step, phase=value.phase, name=value.name)
            for name, rank, value in global_values_.apart
        ]
    return {None: compare_values(global_values_.a, global_values_.b)}


def _first_part(a: Trace, b: Trace, first: Divergence | None) -> Divergence | None:
    """Return the first difference among physical values, in steps before the first with different logical values."""
    steps_b = set(b.steps) if _has_same_ranks(a, b) else set()
    for step in a.steps:
        if first is not None and step >= first.step:
            return None
        if not _has_parts(a, step) or step not in steps_b:
            continue
        opened = _open(a, b, step, (Scope.PHYSICAL,))
        if any(each.first for each in opened.values()):
            found = earliest(a, b, step, opened)
            value = found.a or found.b
            is_sampled = value is not None and value.phase == "optimizer" and None in (found.a, found.b)
            if not is_sampled:  # large state of an optimizer, which one of both has recorded in more steps
                return found
    return None


def _is_fetched_ahead(a: Trace, b: Trace, part: Divergence, first: Divergence) -> bool:
    """Whether `part` is a batch that its own step did not use, since nothing else of it differs: the next step did."""
    if not (part.a and part.b and first.a and first.b) or part.rank is None or part.step != first.step - 1:
        return False
    is_batch = part.a.phase == "rollout" and f"{part.a.name}.".startswith("batch.")
    one, other = ([each for _, each in trace.columns(part.step, part.rank).of_phases(("rollout",))] for trace in (a, b))
    return is_batch and compare_values(one, other, (Scope.PHYSICAL,)).num_different == part.num_different


def _has_parts(trace: Trace, step: int) -> bool:
    """Whether a step has values of physical scope."""
    return any(log.heads[step].num_parts for log in trace.logs(step).values())


def _would_have(trace: Trace, step: int) -> bool:
    """Whether a step that a trace does not have would be there if it had happened."""
    return not trace.gaps or step < max(trace.steps, default=-1)


def _chain_faults(name: str, trace: Trace) -> Iterator[Finding]:
    start = None if trace.manifest is None else chain_start(trace.manifest.fingerprint.identity)
    for rank, log in trace.ranks.items():
        for step in chain_breaks(log, start)[:1]:
            yield VerdictCode.CHAIN_BROKEN(trace=name, rank=rank, step=step)


# ----------------------------------------------------------------------------------------------------------- verdict


def _classify(
    a: Trace, b: Trace, found: _Found, fingerprints: Fields, gaps: list[Finding]
) -> tuple[Kind, list[Finding]]:
    """The verdict and its reasons. No level claims anything across different content or numerics."""
    codes = {"identity": VerdictCode.IDENTITY_DIFFERS}
    if found.first is not None:
        codes |= {"content": VerdictCode.CONTENT_DIFFERS, "numerics": VerdictCode.NUMERICS_DIFFER}
    names = {part: tuple(each.name for each in differences) for part, differences in fingerprints.items()}
    reasons: list[Finding] = [code(names=names[part]) for part, code in codes.items() if part in names]
    if found.first is not None:
        unknown = [name for name, trace in (("A", a), ("B", b)) if trace.manifest is None]
        reasons += [VerdictCode.IDENTITY_UNKNOWN(trace=name) for name in unknown]
    else:
        reasons += found.faults
    if found.first is None and found.num_incomparable:
        reasons.append(VerdictCode.DIGESTS_INCOMPARABLE(num_values=found.num_incomparable))
    if reasons:
        return Kind.NOT_COMPARABLE, reasons
    if found.first is not None:
        return Kind.DIVERGED, []
    if gaps:
        return Kind.INCOMPLETE, gaps
    if not found.num_steps:
        return Kind.INCOMPLETE, [VerdictCode.NO_STEP()]
    if not any(head.num_logical or head.num_shards for log in a.ranks.values() for head in log.heads.values()):
        return Kind.INCOMPLETE, [VerdictCode.NO_VALUE()]
    return Kind.EQUAL, []


def _faults(code: VerdictCode, of_a: Iterable[str], of_b: Iterable[str]) -> list[Finding]:
    return [code(trace=name, message=each) for name, found in (("A", of_a), ("B", of_b)) for each in found]


def _compare_fingerprints(a: Trace, b: Trace) -> Fields:
    """What differs, by part; nothing where a manifest is missing, since nothing is known then."""
    if a.manifest is None or b.manifest is None:
        return {}
    found = {part: _compare_part(a.manifest.fingerprint, b.manifest.fingerprint, part) for part in PARTS}
    decide = deciding({each.name: "" for each in found["numerics"]})
    found[NO_NUMERICS] = tuple(each for each in found["numerics"] if each.name not in decide)
    found["numerics"] = tuple(each for each in found["numerics"] if each.name in decide)
    return {part: differences for part, differences in found.items() if differences}


def _compare_part(a: Fingerprint, b: Fingerprint, part: str) -> tuple[FieldDifference, ...]:
    left, right = getattr(a, part), getattr(b, part)
    if part == "content":  # what one of them did not record is not known to differ
        left, right = ({name: each[name] for name in left.keys() & right.keys()} for each in (left, right))
    names = [name for name in sorted(left.keys() | right.keys()) if left.get(name) != right.get(name)]
    # Whoever has written the traces may have left secrets in them.
    shown = [redact_fields({name: short_field(each[name]) for name in names if name in each}) for each in (left, right)]
    return tuple(FieldDifference(name, *(each.get(name) for each in shown)) for name in names)
