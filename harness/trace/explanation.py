"""Likely causes of a first difference, by what the traces show, and what a trace knows of a value that it lacks."""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from math import isnan, prod
from typing import NamedTuple

from harness.bits.digests import RAW, digest
from harness.bits.findings import Finding, FindingCode
from harness.bits.levels import DETERMINISTIC
from harness.trace.format import BATCH_ORIGIN, CHAINED, LOADER_SEED, Key, RecordedValue, Scope, contexts, enc, raw_value
from harness.trace.ops import DOCUMENTED, FROM_PYTHON, OpDifference, base_name
from harness.trace.reader import Trace
from harness.trace.values import ELEMENT_BYTES, FLOATS, compare, numbers
from harness.trace.verdict import (
    ADVANTAGE_SIGNS,
    BATCHES,
    INTEGERS,
    REWARDS,
    STEP_ONLY,
    TOKENS,
    CauseCode,
    Count,
    CurveDifference,
    Difference,
    Divergence,
    Element,
    Known,
    SettingDifference,
    Verdict,
)

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
        if names := tuple(each.name for each in first.settings):
            yield CauseCode.SETTINGS_DIFFER(names=names)
        else:
            gradients = [each for _, each in case.a.columns(first.step, case.rank).of_phases(("backward",))]
            is_own = bool(gradients) and not any(each.scope in CHAINED for each in gradients)
            yield CauseCode.OWN_OPTIMIZER_DIFFERS() if is_own else CauseCode.STATE_DIFFERS()
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


# -------------------------------------------------------------------------------------------------------------- effects
# Effects of a divergence on a whole run: floats only, or tokens, rewards and signs of advantages too. Pure.
#
# The effects follow from the recorded values of rollouts, rewards and advantages, over all steps of both traces. Values
# with equal digests are equal. The others are compared if both traces have them, as raw values or as kept tensors.

NO_TOKENS = ("mask", "position")
"""Integers of a rollout are tokens, [sequences, positions], but for batches and values with such a word in the name."""
BATCH = "batch"
"""Name of a DataLoader's batch, and prefix of its parts: the program read these values and did not generate them."""
TEXTS = ("text", "texts", "bytes")
DIGEST = "digest"
"""Part of the names of texts that describe other values, perhaps floats; such a text is not counted."""
PHASES = ("rollout", "reward", "advantage")
RankValue = tuple[int, RecordedValue]


def attribute(a: Trace, b: Trace) -> Mapping[str, Count]:
    """Return counts by kind, as the verdict names them; kinds without recorded values are absent.

    TraceError where a file of kept tensors cannot be read.
    """
    counts: dict[str, Count] = {}
    steps_b = set(b.steps)
    is_by_rank = a.ranks.keys() == b.ranks.keys()
    for step in (step for step in a.steps if step in steps_b):
        found_a, found_b = (_counted(one, step, other if is_by_rank else None) for one, other in ((a, b), (b, a)))
        seen: set[Key] = set()
        for where in dict.fromkeys([*found_a, *found_b]):
            one, other = found_a.get(where), found_b.get(where)
            _, scope, key = where
            if scope is Scope.LOGICAL and key in seen and one and other and one[1] == other[1]:
                continue  # a global value that a lower rank has had already
            seen.add(key)
            _count(counts, step, (a, *(one or (0, None))), (b, *(other or (0, None))))
    return counts


def _counted(trace: Trace, step: int, counterpart: Trace | None) -> dict[tuple[int, Scope, Key], RankValue]:
    """Return the values that count by rank, scope and key, of ranks that have the step in both traces.

    `counterpart` is the other trace if it has the same ranks. Without it, global values are keyed by rank 0, and by
    their own rank if it disagrees with the lowest. Shards are left out, whose elements have no place that people know,
    and parts of a kind of which there are global values.
    """
    found: dict[tuple[int, Scope, Key], RankValue] = {}
    ranks = trace.logs(step) if counterpart is None else trace.logs(step).keys() & counterpart.logs(step).keys()
    for rank in sorted(ranks):
        values = [value for _, value in trace.columns(step, rank).of_phases(PHASES) if kind_of(value)]
        global_kinds = {kind_of(value) for value in values if value.scope is Scope.LOGICAL}
        for value in values:
            is_part = value.scope is Scope.PHYSICAL and kind_of(value) not in global_kinds and counterpart is not None
            if value.scope is Scope.LOGICAL or is_part:
                lowest = found.setdefault((0 if counterpart is None else rank, value.scope, value.key), (rank, value))
                if lowest[1] != value:
                    found[rank, value.scope, value.key] = rank, value
    return found


def kind_of(value: RecordedValue) -> str:
    """Return the kind that a value of PHASES counts as; empty if it is not counted."""
    if value.phase == "rollout":
        is_integer = value.dtype in ELEMENT_BYTES and value.dtype not in FLOATS and value.dtype != "bool"
        if value.name == BATCH or value.name.startswith(f"{BATCH}."):
            return BATCHES if is_integer or value.dtype in TEXTS else ""
        if value.dtype in TEXTS or (is_integer and len(value.shape) < 2):
            return "" if DIGEST in value.name.lower() else INTEGERS
        return TOKENS if is_integer and not any(word in value.name.lower() for word in NO_TOKENS) else ""
    return REWARDS if value.phase == "reward" else ADVANTAGE_SIGNS


def _count(
    counts: dict[str, Count],
    step: int,
    a: tuple[Trace, int, RecordedValue | None],
    b: tuple[Trace, int, RecordedValue | None],
) -> None:
    (trace_a, rank_a, one), (trace_b, rank_b, other) = a, b
    value = one or other
    assert value is not None
    kind = kind_of(value)
    count = counts.setdefault(kind, Count())
    num_elements = 0 if value.dtype in TEXTS else prod(value.shape)
    element = None
    if one == other:
        count.num_compared += num_elements
        return
    if one is None or other is None or (one.dtype, one.shape) != (other.dtype, other.shape):
        count.num_unknown += 1
    else:
        x, y = trace_a.tensor(step, rank_a, one), trace_b.tensor(step, rank_b, other)
        if x is None or y is None or len(x) != len(y) or value.dtype not in ELEMENT_BYTES:
            count.num_unknown += 1
        else:
            count.num_compared += num_elements
            num_different, element = _changed(kind, value.dtype, x, y)
            count.num_different += num_different
            if not num_different:
                return
    if count.first is None:
        count.first = Element(step, rank_a if one else rank_b, value.name, value.shape, element)


def _changed(kind: str, dtype: str, a: bytes, b: bytes) -> tuple[int, int | None]:
    """(how many elements changed, the first of them)."""
    if kind == ADVANTAGE_SIGNS:
        changed = [at for at, (x, y) in enumerate(zip(_signs(dtype, a), _signs(dtype, b), strict=True)) if x != y]
        return len(changed), changed[0] if changed else None
    found = compare(dtype, a, b)
    return (found.num_different, found.first) if found else (0, None)


def _signs(dtype: str, data: bytes) -> Sequence[int | None]:
    """1, 0 or -1 for each element; None for NaN."""
    return [None if isnan(x) else (x > 0) - (x < 0) for x in numbers(dtype, data)]


# ------------------------------------------------------------------------------------------------------ one trace alone
# What one trace shows without another: batches that came before, rewards that stay 0. Pure.

MAX_STEPS = 2000
"""So many steps are read: about a second."""
LEAST_ZEROS = 3
"""Number of steps without a reward that are no accident."""


class RepeatCode(FindingCode):
    """What a run does again and again."""

    BATCHES_REPEAT = (
        "batches_repeat",
        "{num} of the {num_batches} batches came before: step {step} has that of step {earlier}",
    )
    REWARDS_ZERO = "rewards_zero", "all rewards are 0 since step {step}"


def repeats(trace: Trace) -> Iterator[Finding]:
    """Yield what the first rank shows; nothing of a program that has a single batch."""
    log = trace.ranks[min(trace.ranks)]
    first_seen: dict[tuple[bytes, ...], int] = {}
    repeated: list[tuple[int, int]] = []
    num_batches, zero_since, num_zero = 0, 0, 0
    for step in islice(log.heads, MAX_STEPS):
        values = [value for _, value in log.columns(step).of_phases(("rollout", "reward"))]
        if batch := tuple([each.digest for each in values if _is_batch(each)]):
            num_batches += 1
            if (earlier := first_seen.setdefault(batch, step)) != step:
                repeated.append((step, earlier))
        if rewards := [each for each in values if each.phase == "reward"]:
            is_zero = all(_is_zero(each) for each in rewards)
            zero_since, num_zero = (zero_since if num_zero else step, num_zero + 1) if is_zero else (0, 0)
    if repeated and len(first_seen) > 1:
        step, earlier = repeated[0]
        yield RepeatCode.BATCHES_REPEAT(num=len(repeated), num_batches=num_batches, step=step, earlier=earlier)
    if num_zero >= LEAST_ZEROS:
        yield RepeatCode.REWARDS_ZERO(step=zero_since)


def _is_batch(value: RecordedValue) -> bool:
    return value.phase == "rollout" and value.scope is Scope.PHYSICAL and f"{value.name}.".startswith("batch.")


def _is_zero(value: RecordedValue) -> bool:
    num_bytes = math.prod(value.shape) * ELEMENT_BYTES.get(value.dtype, 0)
    return num_bytes > 0 and (value.algorithm, value.digest) == digest(bytes(num_bytes))
