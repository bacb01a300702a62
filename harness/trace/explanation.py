"""Likely causes of a first difference, by what the traces show, and what a trace knows of a value that it lacks."""

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

from harness.bits.digests import RAW
from harness.bits.findings import Finding
from harness.bits.levels import DETERMINISTIC
from harness.trace.chain import CHAINED, RecordedValue, Scope, enc, raw_value
from harness.trace.context import BATCH_ORIGIN, LOADER_SEED, contexts
from harness.trace.element_diff import numbers
from harness.trace.nondeterministic_ops import DOCUMENTED, base_name
from harness.trace.ops import FROM_PYTHON, OpDifference
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
    if names := tuple(each.name for each in verdict.fingerprints.get("subject", ())):
        yield CauseCode.CODE_DIFFERS(names=names)
    if names := tuple(each.name for each in verdict.fingerprints.get("perturbation", ())):
        yield CauseCode.ENVIRONMENT_DIFFERS(names=names)
    if first.what in STEP_ONLY:
        shorter, trace = ("B", b) if first.what is Difference.STEP_ONLY_IN_A else ("A", a)
        if trace.steps and verdict.num_steps_different == sum(step >= first.step for step in {*a.steps, *b.steps}):
            yield CauseCode.ENDED_EARLIER(trace=shorter, step=trace.steps[-1])
        return
    found = verdict.operations and (verdict.operations.made or verdict.operations.first)
    operation = found and (found.a or found.b)
    if found and operation and not (found.what is OpDifference.INPUT and operation.name.startswith(FROM_PYTHON)):
        is_known = found.what is OpDifference.OUTPUT and base_name(operation.name) in DOCUMENTED
        code = CauseCode.ATOMICS if is_known else CauseCode.OPERATION_DIFFERS
        yield code(operation=operation.name, at=operation.at)
    context = verdict.context
    if has_generator := context is not None and context.step is not None and context.step > a.steps[0]:
        yield CauseCode.GENERATOR_DIFFERS(names=context.names, step=context.step)
    elif has_generator := context is not None and context.step is not None:
        yield (CauseCode.SEED_OF_HASH if _hashes_differ(a, b) else CauseCode.SEED_DIFFERS)(names=context.names)
    value = first.a or first.b
    if first.rank is not None and value is not None:
        yield from _of_value(_Case(a, b, verdict, first, value, first.rank, has_generator))


def _hashes_differ(a: Trace, b: Trace) -> bool:
    """Whether hashes of texts differ: each process draws a hash seed of its own unless it is set."""
    return any(
        each.manifest is not None
        and each.manifest.level != DETERMINISTIC
        and each.manifest.fingerprint.perturbation.get(HASH_SEED, "random") == "random"
        for each in (a, b)
    )


class _Case(NamedTuple):
    """A first difference, and where to look for its cause."""

    a: Trace
    b: Trace
    verdict: Verdict
    first: Divergence
    value: RecordedValue
    rank: int
    has_generator: bool
    """Whether the state of a generator differs, which explains data, weights and losses."""

    @property
    def sides(self) -> tuple[tuple[str, Trace, RecordedValue | None], ...]:
        return ("A", self.a, self.first.a), ("B", self.b, self.first.b)


def _of_value(case: _Case) -> Iterator[Finding]:
    """Yield causes by the phase of the first value that differs."""
    first, phase = case.first, case.value.phase
    has_operation = case.verdict.operations is not None and case.verdict.operations.first is not None
    if phase == "rollout" and f"{case.value.name}.".startswith("batch."):
        yield from _of_batch(case)
    elif phase == "forward":
        yield from _of_state(case)
    elif phase == "reward" and "rollout" in first.phases_before and not case.has_generator:
        yield (CauseCode.REWARD_OF_HASH if _hashes_differ(case.a, case.b) else CauseCode.REWARD_DIFFERS)()
    elif phase == "loss" and not case.has_generator and not has_operation:
        has_batch = "rollout" in first.phases_before
        yield (CauseCode.FORWARD_DIFFERS if has_batch else CauseCode.INPUTS_NOT_RECORDED)(step=first.step)
    elif phase == "backward":
        if changed := _changed_after_backward(case):
            yield CauseCode.GRADIENT_CHANGED(traces=changed)
            return
        if names := tuple(each.name for each in logged_too(case.verdict)):
            yield CauseCode.LOGGED_TOO(names=names)
        if not has_operation:
            yield CauseCode.BACKWARD_DIFFERS(step=first.step)
    elif phase == "optimizer":
        names = tuple(each.name for each in first.settings)
        yield CauseCode.SETTINGS_DIFFER(names=names) if names else CauseCode.STATE_DIFFERS()
    elif phase == "sync":
        yield CauseCode.SYNC_DIFFERS()


def logged_too(verdict: Verdict) -> list[CurveDifference]:
    """Return logged values that differ up to the step of the first difference, if it is a gradient or a loss.

    After any other first difference they are consequences.
    """
    first = verdict.first
    value = None if first is None else first.a or first.b
    if first is None or value is None or value.phase not in ("loss", "backward"):
        return []
    return [each for each in verdict.curve if each.step <= first.step and not LOSSES.search(each.name)]


def _of_batch(case: _Case) -> Iterator[Finding]:
    step, rank = case.first.step, case.rank
    trace = case.a if case.first.a is not None else case.b
    for _, origin in contexts(trace.columns(step, rank)):
        is_its = origin.name == BATCH_ORIGIN and origin.occurrence == case.value.occurrence
        if is_its and (origin.algorithm, origin.dtype, origin.shape) == (RAW, "i32", (3,)):
            index, worker, num_workers = (int(each) for each in numbers("i32", raw_value(origin)))
            if worker >= 0:
                is_equal = _last_seed(case.a, step, rank) == _last_seed(case.b, step, rank)
                code = CauseCode.BATCH_OF_WORKER if is_equal else CauseCode.WORKER_SEED_DIFFERS
                yield code(index=index, worker=worker, num_workers=num_workers)
                return
    if not case.has_generator:
        data = [each and trace.tensor(step, rank, each) for _, trace, each in case.sides]
        dtype = case.value.dtype
        is_order = (
            all(data) and dtype in ELEMENT_BYTES and len({(*sorted(numbers(dtype, x or b"")),) for x in data}) == 1
        )
        order = CauseCode.ORDER_OF_SET if _hashes_differ(case.a, case.b) else CauseCode.ORDER_DIFFERS
        yield (order if is_order else CauseCode.DATA_DIFFER)()


def _of_state(case: _Case) -> Iterator[Finding]:
    first, name = case.first, case.value.name
    written = []
    for letter, trace_, each in case.sides:
        last = None if each is None else last_known(trace_, first.step - 1, case.rank, "optimizer", name)
        if each and last and last.value.phase == "optimizer" and last.value.digest != each.digest:
            written.append(letter)
    if written:
        yield CauseCode.WRITTEN_OUTSIDE(name=name, traces=tuple(written))
    elif not case.has_generator and first.step == case.a.steps[0]:
        yield CauseCode.WEIGHTS_DIFFER()


def _changed_after_backward(case: _Case) -> tuple[str, ...]:
    """Return the traces in which a gradient changed between backward and the optimizer's step, if backward agreed."""
    a, b = (
        [
            each.digest
            for _, each in trace.columns(case.first.step, case.rank).of_phases(("backward",))
            if each.name == case.value.name and each.scope is Scope.PHYSICAL
        ]
        for _, trace, _ in case.sides
    )
    if not a or a != b or case.value.scope is not Scope.LOGICAL:
        return ()
    return tuple(name for name, _, each in case.sides if each is not None and each.digest != a[-1])


def _last_seed(trace: Trace, step: int, rank: int) -> bytes | None:
    """The seed of a loader's workers that was recorded last, up to a step: once for each pass over the data."""
    for each in _steps_back(trace, step + 1, rank):
        values = contexts(trace.columns(each, rank)) if trace.ranks[rank].heads[each].num_contexts else ()
        if seeds := [value.digest for _, value in values if value.name == LOADER_SEED]:
            return seeds[-1]
    return None


def _steps_back(trace: Trace, before: int, rank: int) -> Iterator[int]:
    return (step for step in reversed([*trace.ranks[rank].heads]) if step < before) if rank in trace.ranks else iter(())
