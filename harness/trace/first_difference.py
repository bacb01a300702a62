"""The first difference between the values of one step, and its description."""

from collections.abc import Collection, Iterator, Mapping

from harness.trace.chain import RecordedValue, Scope, enc
from harness.trace.element_diff import ValueDifference, compare
from harness.trace.format import Columns
from harness.trace.reader import Trace
from harness.trace.value_diff import RecordedDifference, StepDifference
from harness.trace.verdict import Difference, Divergence

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
