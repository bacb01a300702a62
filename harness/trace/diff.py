"""Comparison of two traces.

    roots of every step ─▶ the first that differ ─▶ that one step opened ─▶ the first value ─▶ verdict

Before that, processes without a rank are matched. Values of chained scope decide. Where both traces have the same
ranks, each rank is compared with its counterpart, and the one that differs at the earliest position of its log comes
first: ranks run one program, so the position is the clock they share. A rank that lacks a step of its counterpart's
differs before every value of that step. Where the ranks of the two traces are not the same, or where values were cut
into other shards, values are merged over ranks; a global value on which the ranks of a trace disagree differs.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import compress, count, product, takewhile
from math import inf
from operator import ne
from pathlib import Path
from struct import iter_unpack

from harness.bits.digests import DIGEST_BYTES, RAW, add_shards
from harness.bits.findings import Finding
from harness.bits.redaction import redact_fields
from harness.trace.explanation import attribute, causes, completed
from harness.trace.fingerprint import deciding
from harness.trace.format import (
    CHAINED,
    RANDOM,
    Columns,
    CurvePoint,
    Key,
    RecordedValue,
    Scope,
    chain_start,
    contexts,
    enc,
    raw_value,
    step_root,
)
from harness.trace.manifest import PARTS, Fingerprint, short_field
from harness.trace.ops import ops_of_divergence, recorded_steps
from harness.trace.reader import RankLog, Trace, chain_breaks, common_ranks
from harness.trace.resumption import resumed_at
from harness.trace.values import Float, ValueDifference, compare, is_cost
from harness.trace.verdict import (
    Context,
    CurveDifference,
    Difference,
    Divergence,
    FieldDifference,
    Kind,
    Verdict,
    VerdictCode,
)

# ----------------------------------------------------------------------------------------------------- values of a step
# Comparison of two lists of values of one step: which differ, and which of them came first. Pure.
#
# Values are paired by scope and key, not by position; position decides which difference came first.

_CHUNK = 4096 * DIGEST_BYTES


@dataclass(frozen=True, slots=True)
class RecordedDifference:
    """Two unequal values of one key."""

    position: float
    """Index among A's values; if only B has the value, one half after the value it follows."""
    what: Difference
    a: RecordedValue | None
    b: RecordedValue | None

    @property
    def scope(self) -> Scope:
        recorded_value = self.a or self.b
        assert recorded_value is not None
        return recorded_value.scope

    def value(self) -> ValueDifference | None:
        """The difference of the elements, if the digests hold them."""
        if self.a is None or self.b is None or self.what is not Difference.VALUE or self.a.algorithm != RAW:
            return None
        return compare(self.a.dtype, raw_value(self.a), raw_value(self.b))


@dataclass(frozen=True, slots=True)
class StepDifference:
    """Result of comparing two lists of values."""

    first: RecordedDifference | None
    """None if the comparable values are equal."""
    last_equal: RecordedValue | None
    num_before: int
    """Values of A before the first difference, equal in both."""
    num_values: int
    """Number of values in A, and of those that only B has."""
    num_different: int
    num_incomparable: int
    """Number of values whose digests have different algorithms."""
    is_nan_payload_only: bool

    @property
    def position(self) -> float:
        """Position of the first difference; infinite if there is none."""
        return inf if self.first is None else self.first.position


def compare_columns(a: Columns, b: Columns, scopes: Iterable[Scope] = Scope) -> StepDifference:
    """Compare the values of one step of one rank, those of `scopes` only."""
    wanted = set(scopes)
    if not a.has_values_of(b):
        return compare_values(a.values(), b.values(), wanted)
    different = [index for index in _different(a.digests, b.digests) if a.scopes[index] in wanted]
    num_values = sum(a.scopes.count(scope) for scope in wanted)
    if not different:
        return StepDifference(None, None, 0, num_values, 0, 0, False)
    before = next((index for index in range(different[0] - 1, -1, -1) if a.scopes[index] in wanted), None)
    scopes_before = a.scopes[: different[0]]
    (first,) = _pairs(a, b, different[:1])
    return StepDifference(
        first=first,
        last_equal=None if before is None else a.value(before),
        num_before=sum(scopes_before.count(scope) for scope in wanted),
        num_values=num_values,
        num_different=len(different),
        num_incomparable=0,
        is_nan_payload_only=_all_nan([first]) and _all_nan(_pairs(a, b, different)),
    )


def compare_values(
    a: Sequence[RecordedValue], b: Sequence[RecordedValue], scopes: Iterable[Scope] = Scope
) -> StepDifference:
    """Compare values that may differ in key and order."""
    wanted = set(scopes)
    left = {index: value for index, value in enumerate(a) if value.scope in wanted}
    right = {index: value for index, value in enumerate(b) if value.scope in wanted}
    found, equal, num_incomparable = _differences(left, right)
    before = [index for index in equal if found and index < found[0].position]
    return StepDifference(
        first=found[0] if found else None,
        last_equal=a[max(before)] if before else None,
        num_before=len(before),
        num_values=len(left) + sum(each.what is Difference.VALUE_ONLY_IN_B for each in found),
        num_different=len(found),
        num_incomparable=num_incomparable,
        is_nan_payload_only=bool(found) and _all_nan(found),
    )


def all_differences(a: Columns, b: Columns) -> list[RecordedDifference]:
    """Return every difference of the values of one step of one rank, in their order."""
    if a.has_values_of(b):
        return list(_pairs(a, b, list(_different(a.digests, b.digests)))) if a.digests != b.digests else []
    return _differences(dict(enumerate(a.values())), dict(enumerate(b.values())))[0]


def _differences(
    left: Mapping[int, RecordedValue], right: Mapping[int, RecordedValue]
) -> tuple[list[RecordedDifference], Collection[int], int]:
    """Return (differences in their order, indices of A's values that are equal, number of incomparable values)."""
    keyed = {(value.scope, value.key): (index, value) for index, value in left.items()}
    found: list[RecordedDifference] = []
    equal: set[int] = set()
    num_incomparable, after = 0, -1.0
    for other in right.values():
        position, value = keyed.pop((other.scope, other.key), (None, None))
        if position is None or value is None:
            found.append(RecordedDifference(after + 0.5, Difference.VALUE_ONLY_IN_B, None, other))
            continue
        after = position
        if value == other:
            equal.add(position)
        elif (what := _difference(value, other)) is not None:
            found.append(RecordedDifference(position, what, value, other))
        else:
            num_incomparable += 1
    found += [RecordedDifference(at, Difference.VALUE_ONLY_IN_A, value, None) for at, value in keyed.values()]
    return sorted(found, key=lambda difference: difference.position), equal, num_incomparable


def _difference(a: RecordedValue, b: RecordedValue) -> Difference | None:
    if a.dtype != b.dtype:
        return Difference.DTYPE
    if a.shape != b.shape:
        return Difference.SHAPE
    return Difference.VALUE if a.algorithm == b.algorithm and a.digest != b.digest else None


def _different(a: bytes, b: bytes) -> Iterator[int]:
    """The indices of digests that are not the same, in order."""
    for start in range(0, len(a), _CHUNK):
        x, y = a[start : start + _CHUNK], b[start : start + _CHUNK]
        if x != y:
            is_other = map(ne, iter_unpack(f"{DIGEST_BYTES}s", x), iter_unpack(f"{DIGEST_BYTES}s", y))
            yield from compress(count(start // DIGEST_BYTES), is_other)


def _pairs(a: Columns, b: Columns, different: Sequence[int]) -> Iterator[RecordedDifference]:
    """Return the values of these increasing indices; their descriptions are equal."""
    if len(different) == 1:
        descriptions = iter([a.description(different[0])])
    else:
        chosen = set(different)
        descriptions = (text for at, text in enumerate(a.all_descriptions()) if at in chosen)
    for at, description in zip(different, descriptions, strict=True):
        yield RecordedDifference(at, Difference.VALUE, a.value(at, description), b.value(at, description))


def _all_nan(differences: Iterable[RecordedDifference]) -> bool:
    return all((value := difference.value()) and value.is_nan_payload_only for difference in differences)


# ------------------------------------------------------------------------------------------------- the first difference
# The first difference between the values of one step, and its description.

OnlyInOne = Mapping[int, Difference]
"""Rank -> which of two traces has a step of it that the other lacks; by rank."""


def earliest(a: Trace, b: Trace, step: int, opened: Mapping[int | None, StepDifference]) -> Divergence:
    """The difference at the earliest position of a log; of equal positions that of the lowest rank.

    `opened` is by rank, or under None if values were merged over ranks. TraceError where a file of kept tensors
    cannot be read.
    """
    different = {rank: each for rank, each in opened.items() if each.first}
    rank, shown = min(different.items(), key=lambda item: (item[1].position, item[0] or 0))
    first = shown.first
    assert first is not None
    columns = None if rank is None else a.columns(step, rank)
    return Divergence(
        step=step,
        what=first.what,
        rank=rank,
        ranks=tuple(rank for rank in different if rank is not None),
        a=first.a,
        b=first.b,
        last_equal=shown.last_equal,
        num_before=shown.num_before,
        phases_before=() if columns is None or shown.num_incomparable else columns.phases(int(first.position + 0.5)),
        num_microbatches=1 if columns is None else _num_like(columns, first.a or first.b),
        num_values=shown.num_values,
        num_different=shown.num_different,
        value=first.value() or _kept_difference(a, b, step, rank, first),
    )


def only_in_one(a: Trace, b: Trace, step: int) -> OnlyInOne:
    """The ranks of which only one of two traces of the same ranks has a step.

    A rank of an incomplete trace whose log ends before the step lacks nothing: it may have come to it.
    """
    logs_a, logs_b = a.logs(step), b.logs(step)
    found = {rank: Difference.STEP_ONLY_IN_A for rank in logs_a.keys() - logs_b.keys() if _lacks(b, rank, step)}
    found |= {rank: Difference.STEP_ONLY_IN_B for rank in logs_b.keys() - logs_a.keys() if _lacks(a, rank, step)}
    return dict(sorted(found.items()))


def _lacks(trace: Trace, rank: int, step: int) -> bool:
    return not trace.gaps or step < max(trace.ranks[rank].heads, default=-1)


def missing_step(a: Trace, b: Trace, step: int) -> Divergence:
    """The difference of a step that only one of two traces has, of all its ranks or of some."""
    owner, what = (a, Difference.STEP_ONLY_IN_A) if step in a.steps else (b, Difference.STEP_ONLY_IN_B)
    ranks = tuple(owner.logs(step))
    if a.ranks.keys() != b.ranks.keys() or len(ranks) == len(owner.ranks):
        return Divergence(step, what)
    return Divergence(step, what, ranks[0], ranks)


def missing_frame(step: int, alone: OnlyInOne, different: Collection[int]) -> Divergence:
    """Return the difference of a step that some ranks of one trace lack; values of other ranks may differ too.

    `alone` is not empty, `different` are the ranks whose values differ. It comes before every value of the step.
    """
    rank, what = next(iter(alone.items()))
    return Divergence(step, what, rank, tuple(sorted({*alone, *different})))


def _num_like(columns: Columns, value: RecordedValue | None) -> int:
    """How many parts of this phase and name there are."""
    if value is None or value.scope is not Scope.PHYSICAL:
        return 1
    prefix = enc(value.phase, value.name)
    like = [each.startswith(prefix) for each in columns.all_descriptions()]
    return sum(is_like and scope == Scope.PHYSICAL for is_like, scope in zip(like, columns.scopes, strict=True))


def _kept_difference(
    a: Trace, b: Trace, step: int, rank: int | None, first: RecordedDifference
) -> ValueDifference | None:
    """How the values differ, where both traces have kept them."""
    if first.what is not Difference.VALUE or first.a is None or first.b is None:
        return None
    one, other = (next(_kept(trace, step, rank, value), None) for trace, value in ((a, first.a), (b, first.b)))
    if one is None or other is None or len(one) != len(other):
        return None
    return compare(first.a.dtype, one, other)


def _kept(trace: Trace, step: int, rank: int | None, value: RecordedValue) -> Iterator[bytes]:
    for each in trace.logs(step) if rank is None else [rank]:
        if (data := trace.tensor(step, each, value)) is not None:
            yield data


# -------------------------------------------------------------------------------------------------------- global values
# Global values of a step, merged over ranks, for traces whose ranks cannot be compared one by one.
#
# If ranks of one trace disagree on a global value, the trace has no single value to compare. Such a value never counts
# as equal, unless both traces have the same ranks and each rank the same value. The comparison then uses a form that
# the other trace does not have.

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


# --------------------------------------------------------------------------------------------- processes without a rank
# Processes without a rank: their logs are numbered by arrival, and two traces are matched by what the logs hold.
#
#     A  rank-0.log  x x x        B  rank-0.log  y y z        A's process 0 is B's process 1,
#        rank-1.log  y y y           rank-1.log  x x x        A's process 1 is B's process 0
#
# Logs that are equal in every step belong together; of the others, those that are equal for the longest time. Pure.

Likeness = tuple[int, int]
"""(equal steps at the beginning, equal values in the step after them)."""


@dataclass(frozen=True, slots=True)
class Match:
    """Two traces whose processes were matched."""

    b: Trace
    """The second trace, its logs under the numbers of the first one's."""
    numbers: Mapping[int, int]
    """The number in the first trace -> that in the second, of processes without a rank; empty without a choice."""
    is_guess: bool = False
    """Whether another match would be as good."""

    @property
    def has_other_curve(self) -> bool:
        """Whether the curve of the second trace is that of another process: it is the one with number 0."""
        return self.numbers.get(0, 0) != 0

    def notes(self) -> Iterator[Finding]:
        """Yield notes on the matching, for readers of the comparison."""
        if self.is_guess or any(number != other for number, other in self.numbers.items()):
            code = VerdictCode.PROCESSES_GUESSED if self.is_guess else VerdictCode.PROCESSES_MATCHED
            yield code(numbers=tuple(self.numbers.items()))
        if self.has_other_curve:
            yield VerdictCode.CURVES_OF_OTHER_PROCESSES()


def match_processes(a: Trace, b: Trace) -> Match:
    """Match the processes of two traces that have no rank; the others belong together by their ranks."""
    of_a, of_b = (sorted(trace.ranks.keys() & set(trace.unranked)) for trace in (a, b))
    if not of_a or not of_b:
        return Match(b, {})
    numbers = _match_equal(a, b, of_a, of_b)
    left_a = [each for each in of_a if each not in numbers]
    taken = set(numbers.values())
    left_b = [each for each in of_b if each not in taken]
    found, is_guess = _match_alike(a, b, left_a, left_b)
    numbers = dict(sorted({**numbers, **found}.items()))
    return Match(_renumbered(b, numbers), numbers, is_guess)


def _match_equal(a: Trace, b: Trace, of_a: list[int], of_b: list[int]) -> dict[int, int]:
    """The processes whose logs are equal in every step; under the same number where there is a choice."""
    roots_a, roots_b = ({each: tuple(_roots(trace.ranks[each])) for each in of} for trace, of in ((a, of_a), (b, of_b)))
    found = {number: number for number in of_a if number in roots_b and roots_a[number] == roots_b[number]}
    free: dict[tuple[tuple[int, bytes], ...], list[int]] = {}
    for other in reversed([each for each in of_b if each not in found]):
        free.setdefault(roots_b[other], []).append(other)
    for number in of_a:
        if number not in found and (others := free.get(roots_a[number])):
            found[number] = others.pop()
    return found


def _match_alike(a: Trace, b: Trace, of_a: list[int], of_b: list[int]) -> tuple[dict[int, int], bool]:
    """(the other processes, the most alike first; whether there was a choice between equally good ones)."""
    found: dict[int, int] = {}
    is_guess = False
    is_choice = len(of_a) + len(of_b) > 2
    likeness = {pair: _likeness(a, b, *pair) if is_choice else (0, 0) for pair in product(of_a, of_b)}
    free_a, free_b = dict.fromkeys(of_a), dict.fromkeys(of_b)
    for x, y in sorted(likeness, key=lambda pair: (*(-each for each in likeness[pair]), pair[0] != pair[1], pair)):
        if x not in free_a or y not in free_b:
            continue
        del free_a[x], free_b[y]
        rivals = (*((x, other) for other in free_b), *((other, y) for other in free_a))
        is_guess = is_guess or any(likeness[pair] == likeness[x, y] for pair in rivals)
        found[x] = y
    return found, is_guess


def _roots(log: RankLog) -> list[tuple[int, bytes]]:
    return [(step, head.root) for step, head in log.heads.items()]


def _likeness(a: Trace, b: Trace, number: int, other: int) -> Likeness:
    roots_a, roots_b = _roots(a.ranks[number]), _roots(b.ranks[other])
    pairs = zip(roots_a, roots_b, strict=False)
    num_equal = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
    steps = [roots[num_equal][0] for roots in (roots_a, roots_b) if num_equal < len(roots)]
    if len(steps) < 2 or steps[0] != steps[1]:
        return num_equal, 0
    opened = compare_columns(a.columns(steps[0], number), b.columns(steps[0], other), tuple(Scope))
    return num_equal, opened.num_values - opened.num_different


def _renumbered(trace: Trace, numbers: Mapping[int, int]) -> Trace:
    """A trace with the logs `numbers.values()` under `numbers`; any other keeps its number, or gets a free one."""
    ranks = {number: trace.ranks[other] for number, other in numbers.items()}
    unused = iter(range(2 * len(trace.ranks) + 1))
    for number in sorted(trace.ranks.keys() - {*numbers.values()}):
        free = number if number not in ranks else next(each for each in unused if each not in ranks)
        ranks[free] = trace.ranks[number]
    return replace(trace, ranks=dict(sorted(ranks.items())), damaged=set(), _opened={})


# ------------------------------------------------------------------------------------------------------------- contexts
# Contexts of two traces: the first step at which the state of a random-number generator differs.

States = dict[tuple[str, int], tuple[str, str, bytes]]
"""Name and occurrence -> dtype, algorithm, digest."""


def compare_contexts(a: Trace, b: Trace, until: int | None) -> Context | None:
    """Compare the contexts of all steps that both have, up to `until`; None where there is nothing to compare.

    A state is recorded where it has changed, so those that were recorded last count. A state that only one trace has
    is not compared: a trace with the operations of step 0 begins earlier. Nor is any in the first step of a resumed
    run: its process reads them when torch is imported, and restores them later.
    """
    names: dict[str, None] = {}
    known_a: dict[int, States] = {}
    known_b: dict[int, States] = {}
    steps_b = set(b.steps)
    for step in (step for step in a.steps if step in steps_b and (until is None or step <= until)):
        logs_a, logs_b = a.logs(step), b.logs(step)
        for rank in sorted(logs_a.keys() & logs_b.keys()):
            one, other = _states(a, step, rank), _states(b, step, rank)
            last_a, last_b = known_a.setdefault(rank, {}), known_b.setdefault(rank, {})
            last_a.update(one)
            last_b.update(other)
            if logs_b[rank].shift and step == b.steps[0]:
                continue
            both = [key for key in dict.fromkeys([*one, *other]) if key in last_a and key in last_b]
            different = [key for key in both if last_a[key] != last_b[key]]
            if different:
                return Context(tuple(dict.fromkeys(name for name, _ in different)), step, rank)
            names |= dict.fromkeys(name for name, _ in one)
    return Context(tuple(names)) if names else None


def _states(trace: Trace, step: int, rank: int) -> States:
    if not trace.ranks[rank].heads[step].num_contexts:
        return {}
    return {
        (value.name, value.occurrence): (value.dtype, value.algorithm, value.digest)
        for _, value in contexts(trace.columns(step, rank))
        if value.name.startswith(RANDOM)
    }


# --------------------------------------------------------------------------------------------------------------- curves
# Two curves: the first step at which what was measured is not the same. Pure.
#
# Costs of the machine are never the same twice, and do not count.


def compare_curves(a: Trace, b: Trace) -> tuple[CurveDifference, ...]:
    """Return the values that differ at the first step with a difference, without those that `uncompared` reports.

    A value that is absent from the last step of one curve does not differ: programs log after a step, and may end
    before that.
    """
    ends = {trace.curve[-1].step for trace in (a, b) if trace.curve}
    for step, x, y in common_points(a, b):
        is_end = len(ends) > 1 and step in ends
        names = [name for name in dict.fromkeys([*x, *y]) if not is_cost(name)]
        if differing := [name for name in names if _differ(x.get(name), y.get(name), is_end=is_end)]:
            return tuple(CurveDifference(step, name, x.get(name), y.get(name)) for name in differing)
    return ()


def _differ(x: Float | None, y: Float | None, *, is_end: bool) -> bool:
    if x is None or y is None:
        return not is_end
    return x.dtype == y.dtype and x != y


def uncompared(a: Trace, b: Trace) -> Iterator[Finding]:
    """Yield notes on what could not be compared in the curves: missing lines, and unequal values of unequal dtypes.

    The last line of a killed program is always missing, and is not reported.
    """
    for name, trace, other in (("A", a, b), ("B", b, a)):
        known = {point.step for point in trace.curve}
        lacked = {*trace.steps[: -1 if trace.gaps else None]} - known
        absent = [point.step for point in other.curve if point.step in lacked]
        if not absent or trace.curve_ends_at is not None:  # the damage is told
            continue
        if known:
            yield VerdictCode.CURVE_LINES_MISSING(trace=name, steps=tuple(absent))
        else:
            yield VerdictCode.CURVE_MISSING(trace=name)
    for step, x, y in common_points(a, b):
        if names := [
            name for name in x if name in y and _is_printed_differently(x[name], y[name]) and not is_cost(name)
        ]:
            of_a, of_b = x[names[0]].dtype, y[names[0]].dtype
            yield VerdictCode.CURVE_DTYPES_DIFFER(step=step, names=tuple(names), a=of_a, b=of_b)
            return


def _is_printed_differently(x: Float, y: Float) -> bool:
    """Whether one was read in a line, say, with the digits that it was given there, and the other seen as it is."""
    return x.dtype != y.dtype and x.value() != y.value()


def common_points(a: Trace, b: Trace) -> Iterator[tuple[int, Mapping[str, Float], Mapping[str, Float]]]:
    """(step, values of A, values of B) of each step that both curves have."""
    of_b: dict[int, CurvePoint] = {point.step: point for point in b.curve}
    for point in a.curve:
        if (other := of_b.get(point.step)) is not None:
            yield point.step, point.values, other.values


# ------------------------------------------------------------------------------------------------------- the comparison

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
    fingerprints, part = _compare_fingerprints(a, b), _first_part(a, b, found.first)
    if part is not None and found.first is None and not _has_deciding(a):  # its one step stops before the weights
        found.first, found.num_different, found.is_nan_payload_only, part = part, 1, False, None
    kind, reasons = _classify(a, b, found, fingerprints, gaps)
    curve = compare_curves(a, b)
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


# ---------------------------------------------------------------------------------------------------------------- steps


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


def _has_deciding(trace: Trace) -> bool:
    """Whether a trace has values that its roots cover."""
    return any(head.num_logical or head.num_shards for log in trace.ranks.values() for head in log.heads.values())


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


# -------------------------------------------------------------------------------------------------------------- verdict


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
    if not _has_deciding(a) and not any(_has_parts(a, step) for step in a.steps):
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


def ops_of_other_steps(a: Path, b: Path, step: int) -> list[Finding]:
    """Return a note if operations were recorded in both traces, but not of this step."""
    steps_a, steps_b = ({found for _, found in recorded_steps(each)} for each in (a, b))
    if step in steps_a & steps_b or not steps_a & steps_b:
        return []
    return [VerdictCode.OPERATIONS_OF_OTHER_STEPS(steps=tuple(sorted(steps_a & steps_b)), first_step=step)]
