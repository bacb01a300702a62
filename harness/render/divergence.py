"""Output of `rlharness diff`: the verdict and the first difference of two traces, for a person or as JSON."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import isnan, prod

from harness.bits.digests import RAW
from harness.bits.findings import Finding
from harness.bits.text import count, one_line, ranges
from harness.render.console import at_most, painted
from harness.render.operations import operations_text
from harness.trace.diff import NO_NUMERICS
from harness.trace.explanation import SETTING, logged_too
from harness.trace.format import RecordedValue, Scope, raw_value
from harness.trace.manifest import PARTS
from harness.trace.values import ELEMENT_BYTES, FLOATS, ValueDifference, coordinates, numbers, shown
from harness.trace.verdict import (
    COUNTED,
    STEP_ONLY,
    TOKENS,
    Count,
    CurveDifference,
    Difference,
    Divergence,
    Element,
    FieldDifference,
    Kind,
    Verdict,
)

TONES = {Kind.EQUAL: "32", Kind.DIVERGED: "1;31", Kind.NOT_COMPARABLE: "33", Kind.INCOMPLETE: "33"}
LABELS = {kind: kind.value.upper().replace("_", " ") for kind in Kind}
VALUES = {
    "rollout": "the {} of the rollout",
    "reward": "{} of the reward",
    "reference": "{} of the reference",
    "advantage": "{} of the advantage",
    "forward": "{} of the forward pass",
    "loss": "the loss {}",
    "backward": "the gradient of {}",
    "optimizer": "{} after the update",
    "sync": "{} sent to the sampler",
}
"""Noun of a value, by its phase."""
SETTINGS = {"lr": "the learning rate", "weight_decay": "the weight decay", "betas.0": "beta 1", "betas.1": "beta 2"}
"""Nouns of settings of optimizers."""
PLURAL = re.compile("the (tokens|rewards|advantages|logprobs)|[^ ]*(tokens|logprobs|rewards|advantages) ")
STATE = re.compile(r"(?P<weight>(^|[._])(weight|bias))$|(^|[._])(running_mean|running_var|num_batches_tracked)$")
"""Ends of names of a module's state, which is recorded in the forward pass."""
MAX_ULP = 1 << 14
"""A distance beyond it is no rounding, and means nothing in units in the last place."""
MAX_CAUSES = 4
MAX_FIELDS = 8
"""Maximum number of names of each part of a fingerprint that are shown side by side."""
MAX_CHARS = 60
HEADINGS = {
    "identity": "the configuration or the command differs",
    "content": "data or functions that the configuration names differ",
    "numerics": "hardware or software differs",
    "subject": "the code differs",
    "perturbation": "runtime settings differ",
    "libraries": "libraries that cannot change results differ",
}


def verdict_text(verdict: Verdict, *, colour: bool) -> str:
    """Return the verdict on one line, then reasons, the first difference, and other differences."""
    return "\n".join(
        [
            f"{painted(LABELS[verdict.kind], TONES[verdict.kind], colour)}  {headline(verdict)}",
            *[f"  {one_line(str(reason))}" for reason in verdict.reasons],
            *_place(verdict),
            *[f"  likely cause: {line}" for line in cause_lines(verdict)],
            *_beside(verdict),
            *[f"  {line}" for line in attribution_lines(verdict)],
            *(operations_text(verdict.operations) if verdict.operations else []),
            *([] if verdict.kind is Kind.EQUAL else _curve(verdict.curve)),
            *[line for part in (*PARTS, NO_NUMERICS) for line in field_lines(part, verdict.fingerprints.get(part, ()))],
            *[f"  note: {_finding(note)}" for note in verdict.notes],
        ]
    )


def cause_lines(verdict: Verdict, letter: str = "B") -> list[str]:
    """Return the likely causes of the first difference, the most likely one first; `letter` is the name of B."""
    letters = {"B": letter, ("B",): (letter,), ("A", "B"): ("A", letter)}
    found = [
        replace(cause, values={name: letters.get(value, value) for name, value in cause.values.items()})
        for cause in verdict.causes[:MAX_CAUSES]
    ]
    return [_finding(cause) for cause in found]


def _finding(finding: Finding) -> str:
    return one_line(f"{finding}; {finding.remedy}" if finding.remedy else str(finding), 400)


# ----------------------------------------------------------------------------------------------------------- headline


def headline(verdict: Verdict) -> str:
    """Return the text after the label: 40 steps, every recorded bit; step 3: the learning rate differs, 0.1 against 1.

    It names what differs first, in words; `where` names it as it was recorded.
    """
    if verdict.kind is Kind.EQUAL:
        return f"{count(verdict.num_steps, 'step')}, every recorded bit"
    first = verdict.first
    if first is None:
        num = verdict.num_steps
        return f"no difference in {count(num, 'step')}" if num else "no step is complete in both"
    prefix = "" if verdict.kind is Kind.DIVERGED else "first difference: "
    if first.what in STEP_ONLY:
        return f"{prefix}{where(first, verdict.num_ranks)}"
    too = "".join(f"; {one_line(each.name)} too, {_pair(each)}" for each in logged_too(verdict)[:MAX_FIELDS])
    payload = " (NaN payloads only)" if verdict.is_nan_payload_only else ""
    return f"{prefix}step {first.step}{_rank(first)}: {_difference(first)}{payload}{too}"


def _difference(first: Divergence) -> str:
    """The learning rate differs, 0.0097 against 0.0081."""
    rates = [each for each in first.settings if each.name.endswith(".lr")]
    for setting in rates[:1] or first.settings[:1]:
        return f"{noun(setting.a or setting.b)} differs, {' against '.join(pair_of(setting.a, setting.b))}"
    value = first.a or first.b
    known = None if first.known is None else first.known.value
    known_a, known_b = first.a or known, first.b or known
    if first.what is Difference.DTYPE and first.a and first.b:
        one, other = (one_line(each.dtype, MAX_CHARS) for each in (first.a, first.b))
        return f"{noun(value)} is {one} in A and {other} in B"
    if first.what is Difference.SHAPE and first.a and first.b:
        return f"{noun(value)} has shape {[*first.a.shape]} in A and {[*first.b.shape]} in B"
    if known_a is None or known_b is None:
        return f"only {'A' if first.a else 'B'} has {noun(value)}"
    texts, what = pair_of(known_a, known_b, first.value), noun(value)
    verb = "differ" if PLURAL.match(what) else "differs"
    if first.value is not None and first.value.num_elements > 1:
        return f"{what} {verb} in {first.value.num_different:,} of {count(first.value.num_elements, 'element')}"
    return f"{what} {verb}" + (f", {' against '.join(texts)}" if all(texts) else "")


def noun(value: RecordedValue | None) -> str:
    """Return what a value is: the learning rate, the gradient of layers.3.weight, the loss."""
    assert value is not None
    name = one_line(value.name)
    if value.phase == "optimizer" and (found := SETTING.fullmatch(name)):
        word = SETTINGS.get(found["key"], f"the setting {found['key']}")
        group = f" of group {found['group']}" if found["group"] != "0" else ""
        return word + group + (f" of {found['optimizer']}" if found["optimizer"] else "")
    if value.phase == "optimizer" and " " in name:
        parameter, _, key = name.partition(" ")
        return f"the optimizer's {key} of {parameter}"
    if value.phase == "rollout" and f"{name}.".startswith("batch."):
        part = name.removeprefix("batch").removeprefix(".")
        return f"part {part} of the batch" if part else "the batch"
    if value.phase == "forward" and (found := STATE.search(name)):
        return f"the {'weight' if found['weight'] else 'buffer'} {name} before the update"
    if name in (value.phase, f"{value.phase}s"):
        return f"the {name}"
    return VALUES.get(value.phase, f"{{}} of {one_line(value.phase, MAX_CHARS)}").format(name)


def pair_of(
    a: RecordedValue | None, b: RecordedValue | None, difference: ValueDifference | None = None
) -> tuple[str, str]:
    """Return two values as texts, with few digits; empty for one that is not known."""
    if a is not None and b is not None and a.dtype == b.dtype and a.dtype in FLOATS and not (a.shape or b.shape):
        x, y = (numbers(each.dtype, raw_value(each))[0] if each.algorithm == RAW else None for each in (a, b))
        if x is not None and y is not None and not (isnan(x) or isnan(y)):
            return apart(x, y)
    if difference is not None and difference.num_elements == 1:
        return difference.a, difference.b
    return value_text(a), value_text(b)


def apart(x: float, y: float) -> tuple[str, str]:
    """Return two floats with the fewest digits, three or more, with which they are unequal."""
    for digits in range(3, 18):
        one, other = f"{x:.{digits}g}", f"{y:.{digits}g}"
        if one != other:
            return one, other
    return repr(x), repr(y)


def value_text(value: RecordedValue | None) -> str:
    """Return a value that is recorded as it is, as a person reads it; empty for one whose digest alone is known."""
    if value is None or value.algorithm != RAW:
        return ""
    if value.dtype not in ELEMENT_BYTES:
        is_text = value.dtype == "text"
        return repr(value.digest.rstrip(b"\0").decode("utf-8", "replace")) if is_text else ""
    data, size = raw_value(value), ELEMENT_BYTES[value.dtype]
    bits = [int.from_bytes(data[at : at + size], "little") for at in range(0, len(data), size)]
    texts = [shown(value.dtype, each) for each in bits]
    return texts[0] if not value.shape and texts else f"[{', '.join(texts)}]"


def where(place: Divergence, num_ranks: int) -> str:
    """Return a difference as it was recorded: step 7, backward layers.3.weight, rank 1."""
    if place.what in STEP_ONLY:
        whose = "" if place.rank is None else f", rank {place.rank}"
        return f"step {place.step}{whose} exists only in {STEP_ONLY[place.what]}"
    return f"step {place.step}, {_name(place.a or place.b, num_ranks, place.num_microbatches)}{_rank(place)}"


def _rank(place: Divergence) -> str:
    return f", rank {place.rank}" if place.rank is not None and (place.rank or place.ranks != (0,)) else ""


def _name(value: RecordedValue | None, num_ranks: int, num_microbatches: int = 1) -> str:
    """backward layers.3.weight; with its occurrence, where it is not the first, and whose it is, where it is a part."""
    assert value is not None
    name = f"{one_line(value.phase, MAX_CHARS)} {one_line(value.name)}"
    if value.scope is Scope.PHYSICAL:
        if value.occurrence or num_microbatches > 1:
            name += f" in {'batch' if value.phase == 'rollout' else 'microbatch'} {value.occurrence}"
        return name + (" (this rank's part)" if num_ranks > 1 else "")
    name += f" #{value.occurrence}" if value.occurrence else ""
    return name + (" (this rank's shard)" if value.scope is Scope.SHARD and num_ranks > 1 else "")


# ---------------------------------------------------------------------------------------------------------- the lines


def _place(verdict: Verdict) -> Iterator[str]:
    place = verdict.first
    if place is None:
        return
    if place.what not in STEP_ONLY:
        yield f"  {_name(place.a or place.b, verdict.num_ranks, place.num_microbatches)}"
        for side, value in (("A", place.a), ("B", place.b)):
            yield f"    {side}  {_value(place, value, side)}"
        if place.value is not None and place.value.a not in ("True", "False"):
            yield f"    {distance(place.value)}"
        yield f"  equal before it: {_before(place, verdict.num_ranks)}"
        yield f"  different in this step: {place.num_different:,} of {count(place.num_values, 'value')}"
    if len(place.ranks) > 1 or (place.rank and place.what not in STEP_ONLY):
        yield f"  ranks that differ: {ranges(map(str, place.ranks))}"
    yield f"  different steps: {verdict.num_steps_different:,} of {verdict.num_steps:,}"


def _before(place: Divergence, num_ranks: int) -> str:
    """What went into it and is alike: 4 values of rollout, forward, loss; the last: loss loss."""
    if place.last_equal is None:
        return "nothing in this step"
    phases = f" of {', '.join(place.phases_before)}" if place.phases_before else ""
    return f"{count(place.num_before, 'value')}{phases}; the last: {_name(place.last_equal, num_ranks)}"


def _value(place: Divergence, value: RecordedValue | None, side: str) -> str:
    """One side: f32 [64, 32]  0.1 at element [0, 3]; a value that was not recorded here was as it is known."""
    since = ""
    if value is None:
        if place.known is None:
            return "does not record it"
        value, since = place.known.value, f", unchanged since step {place.known.step}"
    kind = f"{one_line(value.dtype, MAX_CHARS)} [{', '.join(map(str, value.shape))}]"
    text = value_text(value) or f"{one_line(value.algorithm, MAX_CHARS)} {value.digest.hex()}"
    if (difference := place.value) is not None:
        shape = value.shape if prod(value.shape) == difference.num_elements else ()  # else it is a part of that whole
        at = f" at {_element(difference.first, shape)}" if difference.num_elements > 1 else ""
        text = f"{difference.a if side == 'A' else difference.b}{at}"
    return f"{kind}  {text}{since}"


def _element(index: int, shape: Sequence[int]) -> str:
    """element 17; element [2, 17] of a matrix."""
    return f"element {coordinates(index, [*map(range, shape)]) if len(shape) > 1 else index}"


def distance(value: ValueDifference) -> str:
    """Return how far two values are apart: 3 ulp apart (3.58e-07); 2 of 3 elements differ, by at most 0.5."""
    how = "different bits"
    if value.is_nan_payload_only:
        how = "NaN in both, with different payloads"
    elif value.max_ulp == 0:
        how = "only in the sign of zero"
    elif value.max_ulp is not None and value.max_ulp <= MAX_ULP:
        how = f"{value.max_ulp:,} ulp apart ({value.max_abs:.3g})"
    elif value.max_abs is not None:
        how = f"{value.max_abs:.3g} apart" if value.max_ulp is not None else f"{value.max_abs:,} apart"
    elif value.num_nan_only_a or value.num_nan_only_b:
        how = "NaN in one of them"
    if value.num_elements == 1:
        return how
    first = "" if value.num_compared == value.num_elements else "the first "
    most = "at most " if value.max_abs else ""
    text = f"{value.num_different:,} of {first}{count(value.num_compared, 'element')} differ, {most}{how}"
    if value.num_nan_only_a or value.num_nan_only_b:
        text += f"; NaN in A only: {value.num_nan_only_a:,}, in B only: {value.num_nan_only_b:,}"
    return text


def _beside(verdict: Verdict) -> Iterator[str]:
    """Yield the random-number generators that are equal, and the first difference in parts of a value."""
    context = verdict.context
    if context is not None and context.step is None and verdict.first is not None:
        names = ", ".join(one_line(name, MAX_CHARS) for name in context.names[:MAX_FIELDS])
        yield f"  the random-number generators are equal at the start of this step: {names}"
    if verdict.part is not None:
        whose = "ranks' parts" if verdict.num_ranks > 1 else "microbatches"
        yield f"  first difference in {whose} (does not affect the verdict): {where(verdict.part, verdict.num_ranks)}"


def attribution_lines(verdict: Verdict) -> Iterator[str]:
    """Yield the kinds of values that changed in the whole run, or that only floats did."""
    yield from changed_lines(verdict).values()
    yield from unchanged_lines(verdict)


def changed_lines(verdict: Verdict) -> dict[str, str]:
    """Return a line for each kind of value that changed, by kind."""
    counts = verdict.attribution
    kinds = [kind for kind in COUNTED if kind in counts and not counts[kind].is_equal]
    return {kind: _changed(kind, counts[kind], verdict.num_ranks) for kind in kinds}


def unchanged_lines(verdict: Verdict) -> Iterator[str]:
    """Yield a line about the kinds of values that did not change, if any were compared."""
    counts = verdict.attribution
    kinds = [kind for kind in COUNTED if kind in counts and counts[kind].is_equal and counts[kind].num_compared]
    if kinds:
        only = "floats only; " if verdict.is_floats_only else ""
        nouns = [f"{counts[kind].num_compared:,} {COUNTED[kind].rpartition(' ')[0]}" for kind in kinds]
        yield f"{only}unchanged: {', '.join(nouns)}"


def _changed(kind: str, changed: Count, num_ranks: int) -> str:
    place = changed.first
    assert place is not None
    rank = f", rank {place.rank}" if num_ranks > 1 else ""
    share = percent(100 * changed.num_different / max(1, changed.num_compared))
    known = f"{changed.num_different:,} of {changed.num_compared:,} ({share} %)" if changed.num_different else ""
    unknown = f"an unknown number in {count(changed.num_unknown, 'value')}" if changed.num_unknown else ""
    how_many = " and ".join(filter(None, (known, unknown)))
    return f"{COUNTED[kind]}: {how_many}; first step {place.step}{rank}, {_element_of(kind, place)}"


def _element_of(kind: str, place: Element) -> str:
    """sequence 2, position 17."""
    if place.element is None:
        return one_line(place.name, MAX_CHARS)
    if kind == TOKENS and len(place.shape) == 2:
        sequence, position = coordinates(place.element, [*map(range, place.shape)])
        return f"sequence {sequence}, position {position}"
    return _element(place.element, place.shape)


def _curve(curve: Sequence[CurveDifference]) -> Iterator[str]:
    for point in curve[:MAX_FIELDS]:
        yield f"  logged {one_line(point.name)} differs at step {point.step}: {_pair(point)}"


def _pair(point: CurveDifference) -> str:
    if point.a is not None and point.b is not None:
        return " against ".join(apart(point.a.value(), point.b.value()))
    sides = [None if each is None else (each.decimal(), each.value()) for each in (point.a, point.b)]
    return " against ".join("none" if each is None else str(each[1] if each[0] is None else each[0]) for each in sides)


def field_lines(part: str, differences: Sequence[FieldDifference]) -> Iterator[str]:
    """Yield the lines on one part of two fingerprints; shared libraries are counted.

    package numpy     A 2.4.1  B 2.2.6
    78 shared libraries differ: --json lists them
    """
    if not differences:
        return
    yield f"  {HEADINGS[part]}"
    rows = []
    for each in (field for field in differences if not field.name.startswith("library ")):
        absent = "as committed, or absent" if each.name.startswith("file ") else "none"
        a, b = (absent if value is None else one_line(value, MAX_CHARS) for value in (each.a, each.b))
        rows.append((one_line(each.name, MAX_CHARS), a, b))
    width, width_a = (max((len(row[at]) for row in rows[:MAX_FIELDS]), default=0) for at in (0, 1))
    lines = [f"{name:<{width}}  A {a:<{width_a}}  B {b}" for name, a, b in rows]
    yield from (f"    {line}" for line in at_most(lines, MAX_FIELDS))
    if num_libraries := len(differences) - len(rows):
        yield f"    {count(num_libraries, 'shared library differs', 'shared libraries differ')}: --json lists them"


def percent(share: float) -> str:
    """Two digits of a share in percent; without an exponent where they are whole: 0.05, 5.6, 67, 100."""
    return f"{share:.2g}" if share < 99.5 else f"{share:.0f}"
