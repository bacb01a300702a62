"""What the traces themselves say of the cause of a first difference: where a batch came from, who wrote a weight."""

from collections.abc import Iterator
from itertools import islice

from harness.bits.digests import RAW
from harness.trace.chain import RecordedValue, Scope, raw_value
from harness.trace.context import BATCH_ORIGIN, LOADER_SEED, contexts
from harness.trace.element_diff import numbers
from harness.trace.format import Columns
from harness.trace.reader import Trace
from harness.trace.reasons import BatchOfWorker, VerdictCode, VerdictReason, WrittenOutside
from harness.trace.verdict import Divergence

MAX_STEPS_BACK = 64
"""So many steps are searched for the one in which an optimizer wrote a weight last."""


def explain(a: Trace, b: Trace, first: Divergence) -> Iterator[VerdictReason]:
    """Yield notes on a first difference; none where the traces do not say more."""
    value = first.a or first.b
    if value is None or first.rank is None:
        return
    if value.phase == "rollout" and f"{value.name}.".startswith("batch."):
        yield from _origin(a, b, first, value)
    elif value.phase == "forward":
        sides = [(name, trace, each) for name, trace, each in (("A", a, first.a), ("B", b, first.b)) if each]
        written = tuple(name for name, trace, each in sides if _is_written(trace, first.step, first.rank, each))
        if written:
            yield WrittenOutside(VerdictCode.WRITTEN_OUTSIDE, value.name, written)


def _origin(a: Trace, b: Trace, first: Divergence, value: RecordedValue) -> Iterator[VerdictReason]:
    assert first.rank is not None
    trace, other = (a, b) if first.a is not None else (b, a)
    columns = trace.columns(first.step, first.rank)
    found = _numbers_before(columns, value)
    if found is None or found[1] < 0:
        return
    seeds = [_last_seed(each, first.step, first.rank) for each in (trace, other)]
    yield BatchOfWorker(VerdictCode.BATCH_OF_WORKER, *found, is_seed_equal=seeds[0] == seeds[1])


def _numbers_before(columns: Columns, value: RecordedValue) -> tuple[int, int, int] | None:
    """(batch, worker, number of workers) that a step says before one of its values; None where it says nothing."""
    end = next((index for index, each in columns.of_phases((value.phase,)) if each == value), 0)
    origins = [each for index, each in contexts(columns) if index < end and each.name == BATCH_ORIGIN]
    if not origins or (origins[-1].algorithm, origins[-1].dtype, origins[-1].shape) != (RAW, "i32", (3,)):
        return None
    index, worker, num_workers = (int(each) for each in numbers("i32", raw_value(origins[-1])))
    return index, worker, num_workers


def _last_seed(trace: Trace, step: int, rank: int) -> bytes | None:
    """The seed of a loader's workers that was recorded last, up to a step: once for each pass over the data."""
    for each in _steps_back(trace, step + 1, rank):
        values = contexts(trace.columns(each, rank)) if trace.ranks[rank].heads[each].num_contexts else ()
        if seeds := [value.digest for _, value in values if value.name == LOADER_SEED]:
            return seeds[-1]
    return None


def _is_written(trace: Trace, step: int, rank: int, value: RecordedValue) -> bool:
    """Whether a weight is not what its optimizer's last step has left."""
    for each in islice(_steps_back(trace, step, rank), MAX_STEPS_BACK):
        for _, earlier in trace.columns(each, rank).of_phases(("optimizer",)):
            if earlier.name == value.name and earlier.scope is not Scope.PHYSICAL:
                return earlier.digest != value.digest
    return False


def _steps_back(trace: Trace, before: int, rank: int) -> Iterator[int]:
    return (step for step in reversed([*trace.ranks[rank].heads]) if step < before)
