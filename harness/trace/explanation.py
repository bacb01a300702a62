"""Likely causes of a first difference, by what the traces show, and what a trace knows of a value that it lacks."""

import re
from collections.abc import Iterator
from dataclasses import replace

from harness.bits.digests import RAW
from harness.bits.findings import Finding
from harness.bits.levels import OFF
from harness.trace.chain import CHAINED, RecordedValue, Scope, enc, raw_value
from harness.trace.context import BATCH_ORIGIN, LOADER_SEED, contexts
from harness.trace.element_diff import numbers
from harness.trace.fingerprint import UNCOMMITTED
from harness.trace.format import Columns
from harness.trace.nondeterministic_ops import DOCUMENTED, base_name
from harness.trace.ops import OpDifference
from harness.trace.reader import Trace
from harness.trace.reasons import CauseCode
from harness.trace.values import ELEMENT_BYTES
from harness.trace.verdict import STEP_ONLY, CurveDifference, Difference, Divergence, Known, SettingDifference, Verdict

MAX_VALUES = 2_000_000
"""So many values of earlier steps are searched: about a second."""
HELD = ("forward", "optimizer")
"""Phases whose values are recorded when they have changed."""
SETTING = re.compile(r"(?:(?P<optimizer>.+)\.)?group(?P<group>\d+)\.(?P<key>[^ ]+)")
"""Name of a setting of an optimizer: group0.lr, SGD#2.group0.betas.1."""
BUFFERS = ("running_mean", "running_var", "num_batches_tracked")
HASH_SEED = "variable PYTHONHASHSEED"
LOSSES = re.compile("loss|grad", re.IGNORECASE)
"""Logged values that follow from the loss."""


def completed(a: Trace, b: Trace, first: Divergence) -> Divergence:
    """Add to a first difference what the traces know of values that they recorded in an earlier step only."""
    value, rank = first.a or first.b, first.rank
    if value is None or rank is None:
        return first
    if (lacks := {Difference.VALUE_ONLY_IN_A: b, Difference.VALUE_ONLY_IN_B: a}.get(first.what)) is not None:
        first = replace(first, known=last_known(lacks, first.step, rank, value.phase, value.name))
    if value.phase != "optimizer" or not SETTING.fullmatch(value.name):
        return first
    names = dict.fromkeys([*_setting_names(a, first.step, rank), *_setting_names(b, first.step, rank)])
    found = []
    for name in names:
        known = [last_known(trace, first.step, rank, "optimizer", name) for trace in (a, b)]
        one, other = (None if each is None else each.value for each in known)
        if one is None or other is None or (one.dtype, one.digest) != (other.dtype, other.digest):
            found.append(SettingDifference(name, one, other))
    return replace(first, settings=tuple(found))


def last_known(trace: Trace, step: int, rank: int, phase: str, name: str) -> Known | None:
    """Return what a trace recorded last of a value that is recorded when it changes, up to a step."""
    keys = [enc(each, name) for each in (HELD if phase in HELD else ())]
    num_read = 0
    for each in _steps_back(trace, step + 1, rank) if keys else ():
        columns = trace.columns(each, rank)
        num_read += len(columns.scopes)
        if any(key in columns.descriptions for key in keys):
            found = [value for _, value in columns.of_phases(HELD) if value.name == name and value.scope in CHAINED]
            if found:
                return Known(each, found[-1])
        if num_read > MAX_VALUES:
            break
    return None


def _setting_names(trace: Trace, step: int, rank: int) -> list[str]:
    columns = trace.columns(step, rank)
    described = (at for at, text in enumerate(columns.all_descriptions()) if b"group" in text)
    return [value.name for value in map(columns.value, described) if SETTING.fullmatch(value.name)]


def causes(a: Trace, b: Trace, verdict: Verdict) -> Iterator[Finding]:
    """Yield likely causes of the first difference, the most likely one first; none where the traces show none."""
    first = verdict.first
    assert first is not None
    if names := code_names(verdict):
        yield CauseCode.CODE_DIFFERS(names=names)
    if names := tuple(each.name for each in verdict.fingerprints.get("perturbation", ())):
        yield CauseCode.ENVIRONMENT_DIFFERS(names=names)
    if first.what in STEP_ONLY:
        shorter, trace = ("B", b) if first.what is Difference.STEP_ONLY_IN_A else ("A", a)
        if trace.steps and verdict.num_steps_different == sum(step >= first.step for step in {*a.steps, *b.steps}):
            yield CauseCode.ENDED_EARLIER(trace=shorter, step=trace.steps[-1])
        return
    yield from _of_operations(a, verdict)
    yield from _of_generators(a, b, verdict)
    value = first.a or first.b
    assert value is not None
    if first.rank is not None:
        yield from _of_value(a, b, verdict, first, value)


def code_names(verdict: Verdict) -> tuple[str, ...]:
    """Return the names of the subject that differ; earlier versions counted files that the runs themselves made."""
    names = (each.name for each in verdict.fingerprints.get("subject", ()))
    return tuple(name for name in names if name != UNCOMMITTED)


def _of_operations(a: Trace, verdict: Verdict) -> Iterator[Finding]:
    found = verdict.operations and (verdict.operations.made or verdict.operations.first)
    if found and found.what is OpDifference.OUTPUT and found.a and base_name(found.a.name) in DOCUMENTED:
        yield CauseCode.ATOMICS(operation=found.a.name, at=found.a.at)


def _of_generators(a: Trace, b: Trace, verdict: Verdict) -> Iterator[Finding]:
    if verdict.context is None or verdict.context.step is None or not a.steps:
        return
    names, step = verdict.context.names, verdict.context.step
    if step > a.steps[0]:
        yield CauseCode.GENERATOR_DIFFERS(names=names, step=step)
    else:
        yield (CauseCode.SEED_OF_HASH if _hashes_differ(a, b) else CauseCode.SEED_DIFFERS)(names=names)


def _hashes_differ(a: Trace, b: Trace) -> bool:
    """Whether hashes of texts differ: each process draws a hash seed of its own unless it is set."""
    return any(
        each.manifest is not None
        and each.manifest.level == OFF
        and each.manifest.fingerprint.perturbation.get(HASH_SEED, "random") == "random"
        for each in (a, b)
    )


def _of_value(a: Trace, b: Trace, verdict: Verdict, first: Divergence, value: RecordedValue) -> Iterator[Finding]:
    """Yield causes by the phase of the first value that differs; generators that differ explain data and losses."""
    rank = first.rank or 0
    has_generator = verdict.context is not None and verdict.context.step is not None
    if value.phase == "rollout" and f"{value.name}.".startswith("batch."):
        origin = _origin(a, b, first, value, rank)
        yield from origin
        if not origin and not has_generator:
            yield from _of_data(a, b, first)
    elif value.phase == "forward":
        yield from _of_state(a, b, first, value, rank, has_generator=has_generator)
    elif value.phase == "loss" and not has_generator:
        has_batch = "rollout" in first.phases_before
        yield (CauseCode.FORWARD_DIFFERS if has_batch else CauseCode.INPUTS_NOT_RECORDED)(step=first.step)
    elif value.phase == "backward":
        if changed := _changed_after_backward(a, b, first, value, rank):
            yield CauseCode.GRADIENT_CHANGED(traces=changed)
            return
        if names := tuple(each.name for each in logged_too(verdict)):
            yield CauseCode.LOGGED_TOO(names=names)
        yield CauseCode.BACKWARD_DIFFERS(step=first.step)
    elif value.phase == "optimizer":
        names = tuple(each.name for each in first.settings)
        yield CauseCode.SETTINGS_DIFFER(names=names) if names else CauseCode.STATE_DIFFERS()
    elif value.phase == "sync":
        yield CauseCode.SYNC_DIFFERS()


def logged_too(verdict: Verdict) -> list[CurveDifference]:
    """Return logged values that differ up to the step of the first difference and do not follow from the loss."""
    last = -1 if verdict.first is None else verdict.first.step
    return [each for each in verdict.curve if each.step <= last and not LOSSES.search(each.name)]


def _of_data(a: Trace, b: Trace, first: Divergence) -> Iterator[Finding]:
    elements = [_elements(trace, first, each) for trace, each in ((a, first.a), (b, first.b))]
    if elements[0] is None or elements[1] is None or sorted(elements[0]) != sorted(elements[1]):
        yield CauseCode.DATA_DIFFER()
    else:
        yield CauseCode.ORDER_OF_SET() if _hashes_differ(a, b) else CauseCode.ORDER_DIFFERS()


def _elements(trace: Trace, first: Divergence, value: RecordedValue | None) -> list[float] | None:
    if value is None or first.rank is None or value.dtype not in ELEMENT_BYTES:
        return None
    data = trace.tensor(first.step, first.rank, value)
    return None if data is None else [*numbers(value.dtype, data)]


def _of_state(
    a: Trace, b: Trace, first: Divergence, value: RecordedValue, rank: int, *, has_generator: bool
) -> Iterator[Finding]:
    if first.known is not None and value.name.endswith(BUFFERS):
        trace = "B" if first.what is Difference.VALUE_ONLY_IN_A else "A"
        yield CauseCode.LEFT_IN_EVAL(trace=trace, name=value.name, since=first.known.step)
        return
    written = []
    for name, side, each in (("A", a, first.a), ("B", b, first.b)):
        last = None if each is None else last_known(side, first.step - 1, rank, "optimizer", value.name)
        if each and last and last.value.phase == "optimizer" and last.value.digest != each.digest:
            written.append(name)
    if written:
        yield CauseCode.WRITTEN_OUTSIDE(name=value.name, traces=tuple(written))
    elif not has_generator and a.steps and first.step == a.steps[0]:
        yield CauseCode.WEIGHTS_DIFFER()


def _changed_after_backward(a: Trace, b: Trace, first: Divergence, value: RecordedValue, rank: int) -> tuple[str, ...]:
    """Return the traces in which a gradient changed between backward and the optimizer's step, if backward agreed."""
    if value.scope is not Scope.LOGICAL:
        return ()
    made = [
        [each.digest for _, each in trace.columns(first.step, rank).of_phases(("backward",)) if _is_made(each, value)]
        for trace in (a, b)
    ]
    if not made[0] or made[0] != made[1]:
        return ()
    sides = (("A", first.a), ("B", first.b))
    return tuple(name for name, each in sides if each is not None and each.digest != made[0][-1])


def _is_made(each: RecordedValue, value: RecordedValue) -> bool:
    return each.name == value.name and each.scope is Scope.PHYSICAL


def _origin(a: Trace, b: Trace, first: Divergence, value: RecordedValue, rank: int) -> list[Finding]:
    """Return from which worker of a DataLoader a batch came; nothing if the trace does not say so."""
    trace, other = (a, b) if first.a is not None else (b, a)
    found = _numbers_before(trace.columns(first.step, rank), value)
    if found is None or found[1] < 0:
        return []
    is_equal = _last_seed(trace, first.step, rank) == _last_seed(other, first.step, rank)
    code = CauseCode.BATCH_OF_WORKER if is_equal else CauseCode.WORKER_SEED_DIFFERS
    return [code(index=found[0], worker=found[1], num_workers=found[2])]


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


def _steps_back(trace: Trace, before: int, rank: int) -> Iterator[int]:
    return (step for step in reversed([*trace.ranks[rank].heads]) if step < before) if rank in trace.ranks else iter(())
