"""Output of `rlharness diff`: the verdict and the first difference of two traces, for a person or as JSON."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from math import isfinite, prod
from typing import Any

from harness.bits.text import count, one_line, ranges
from harness.render.curve_picture import curve_picture
from harness.render.field_differences import MAX_CHARS, MAX_FIELDS, field_lines
from harness.render.operations import operations_json, operations_text
from harness.render.verdict_reasons import reason_json, verdict_reason_text
from harness.trace.chain import RecordedValue, Scope
from harness.trace.element_diff import ValueDifference, coordinates
from harness.trace.manifest import PARTS
from harness.trace.values import Float, plain
from harness.trace.verdict import (
    ADVANTAGE_SIGNS,
    BATCHES,
    COUNTED,
    INTEGERS,
    REWARDS,
    TOKENS,
    Count,
    CurveDifference,
    Difference,
    Divergence,
    Element,
    Kind,
    Verdict,
)

VERSION = 1
TONES = {Kind.EQUAL: "32", Kind.DIVERGED: "1;31", Kind.NOT_COMPARABLE: "33", Kind.INCOMPLETE: "33"}
LABELS = {
    Kind.EQUAL: "EQUAL",
    Kind.DIVERGED: "DIVERGED",
    Kind.NOT_COMPARABLE: "NOT COMPARABLE",
    Kind.INCOMPLETE: "INCOMPLETE",
}
NOUNS = {
    TOKENS: "tokens",
    INTEGERS: "integers and texts of rollouts",
    BATCHES: "integers and texts of batches",
    REWARDS: "rewards",
    ADVANTAGE_SIGNS: "signs of advantages",
}
STEP_ONLY = {Difference.STEP_ONLY_IN_A: "A", Difference.STEP_ONLY_IN_B: "B"}


def verdict_text(verdict: Verdict, *, colour: bool, width: int | None = None, is_ascii: bool = False) -> str:
    """Return the verdict on one line, then reasons, the first difference, and other differences.

    With a picture of the curves where `width`, in columns, is given.
    """
    return "\n".join(
        [
            _headline(verdict, colour),
            *[f"  {one_line(verdict_reason_text(reason))}" for reason in verdict.reasons],
            *_place(verdict),
            *_context(verdict),
            *_part(verdict),
            *[f"  {line}" for line in attribution_lines(verdict)],
            *(operations_text(verdict.operations) if verdict.operations else []),
            *([] if verdict.kind is Kind.EQUAL else _curve(verdict.curve)),
            *([] if width is None else _picture(verdict, width, is_ascii)),
            *[line for part in PARTS for line in field_lines(part, verdict.fingerprints.get(part, ()))],
            *[f"  note: {one_line(verdict_reason_text(note))}" for note in verdict.notes],
        ]
    )


def _headline(verdict: Verdict, colour: bool) -> str:
    label = LABELS[verdict.kind]
    painted = f"\x1b[{TONES[verdict.kind]}m{label}\x1b[0m" if colour else label
    return f"{painted}  {headline(verdict)}"


def headline(verdict: Verdict) -> str:
    """Return the text after the label: 40 steps, every recorded bit; step 7, backward layers.3.weight, rank 1."""
    if verdict.kind is Kind.EQUAL:
        return f"{count(verdict.num_steps, 'step')}, every recorded bit"
    if verdict.first is not None:
        shown = "" if verdict.kind is Kind.DIVERGED else "first difference: "
        payload = " (NaN payloads only)" if verdict.is_nan_payload_only else ""
        return f"{shown}{_where(verdict.first, verdict.num_ranks)}{payload}"
    return (
        f"no difference in {count(verdict.num_steps, 'step')}" if verdict.num_steps else "no step is complete in both"
    )


def _where(place: Divergence, num_ranks: int) -> str:
    """step 7, backward layers.3.weight, rank 1."""
    if place.what in STEP_ONLY:
        whose = "" if place.rank is None else f", rank {place.rank}"
        return f"step {place.step}{whose} exists only in {STEP_ONLY[place.what]}"
    recorded_value = place.a or place.b
    assert recorded_value is not None
    rank = f", rank {place.rank}" if place.rank is not None and (place.rank or place.ranks != (0,)) else ""
    return f"step {place.step}, {_name(recorded_value, num_ranks, place.num_microbatches)}{rank}"


def _name(recorded_value: RecordedValue, num_ranks: int, num_microbatches: int = 1) -> str:
    """backward layers.3.weight; with its occurrence, where it is not the first, and whose it is, where it is a part."""
    name = f"{one_line(recorded_value.phase, MAX_CHARS)} {one_line(recorded_value.name)}"
    if recorded_value.scope is Scope.PHYSICAL:
        if recorded_value.occurrence or num_microbatches > 1:
            name += f" in {'batch' if recorded_value.phase == 'rollout' else 'microbatch'} {recorded_value.occurrence}"
        return name + (" (this rank's part)" if num_ranks > 1 else "")
    name += f" #{recorded_value.occurrence}" if recorded_value.occurrence else ""
    return name + (" (this rank's shard)" if recorded_value.scope is Scope.SHARD and num_ranks > 1 else "")


def _place(verdict: Verdict) -> Iterator[str]:
    place = verdict.first
    if place is None:
        return
    if place.what not in STEP_ONLY:
        for side, recorded_value in (("A", place.a), ("B", place.b)):
            yield f"  {side}  {_recorded_value(recorded_value, place.value, side)}"
        if place.value is not None:
            yield from _distance(place.value)
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


def _recorded_value(recorded_value: RecordedValue | None, value: ValueDifference | None, side: str) -> str:
    if recorded_value is None:
        return "has no such value"
    kind = f"{one_line(recorded_value.dtype, MAX_CHARS)} [{', '.join(map(str, recorded_value.shape))}]"
    if value is not None:
        shape = (
            recorded_value.shape if prod(recorded_value.shape) == value.num_elements else ()
        )  # else it is a part of that whole
        at = f" at {_element(value.first, shape)}" if value.num_elements > 1 else ""
        return f"{kind}  {value.a if side == 'A' else value.b}{at}"
    return f"{kind}  {one_line(recorded_value.algorithm, MAX_CHARS)} {recorded_value.digest.hex()}"


def _element(index: int, shape: Sequence[int]) -> str:
    """element 17; element [2, 17] of a matrix."""
    return f"element {coordinates(index, [*map(range, shape)]) if len(shape) > 1 else index}"


def _distance(value: ValueDifference) -> Iterator[str]:
    how = "different bits"
    if value.is_nan_payload_only:
        how = "NaN in both, with different payloads"
    elif value.max_ulp == 0:
        how = "only in the sign of zero"
    elif value.max_ulp is not None:
        how = f"{value.max_ulp:,} ulp apart ({value.max_abs:.3g})"
    elif value.max_abs is not None:
        how = f"{value.max_abs:,} apart"
    elif value.num_nan_only_a or value.num_nan_only_b:
        how = "NaN in one of them"
    if value.num_elements == 1:
        yield f"  {how}"
        return
    first = "" if value.num_compared == value.num_elements else "the first "
    most = "at most " if value.max_abs else ""
    yield f"  {value.num_different:,} of {first}{count(value.num_compared, 'element')} differ, {most}{how}"
    if value.num_nan_only_a or value.num_nan_only_b:
        both = f", in both with different payloads: {value.num_nan_both:,}" if value.num_nan_both else ""
        yield f"  NaN in A only: {value.num_nan_only_a:,}, in B only: {value.num_nan_only_b:,}{both}"


def _context(verdict: Verdict) -> Iterator[str]:
    context = verdict.context
    if context is None:
        return
    names = ", ".join(one_line(name, MAX_CHARS) for name in context.names[:MAX_FIELDS])
    if context.step is not None:
        rank = f", rank {context.rank}" if verdict.num_ranks > 1 else ""
        states, have = ("state", "has") if len(context.names) == 1 else ("states", "have")
        yield f"  the {states} of {names} {have} differed since step {context.step}{rank}"
    elif verdict.first is not None:
        yield f"  the default random-number generators are equal at the start of this step: {names}"


def _part(verdict: Verdict) -> Iterator[str]:
    if verdict.part is not None:
        whose = "ranks' parts" if verdict.num_ranks > 1 else "microbatches"
        where = _where(verdict.part, verdict.num_ranks)
        yield f"  first difference in {whose} (does not affect the verdict): {where}"


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
    """Yield a line about the kinds of values that did not change, if there are any."""
    counts = verdict.attribution
    kinds = [kind for kind in COUNTED if kind in counts and counts[kind].is_equal]
    is_only = _is_floats_only(verdict)
    counted = [kind for kind in kinds if counts[kind].num_compared]  # texts have no elements to count
    equal = [f"{counts[kind].num_compared:,} {NOUNS[kind]}" for kind in counted or (kinds if is_only else [])]
    if equal:
        only = "floats only; " if is_only else ""
        yield f"{only}unchanged: {', '.join(equal)}"


def _is_floats_only(verdict: Verdict) -> bool:
    """Return whether only floats differ, as far as is known; a step in one trace only is not a float."""
    is_leaf = verdict.first is not None and verdict.first.what not in STEP_ONLY
    return is_leaf and all(each.is_equal for each in verdict.attribution.values())


def _changed(kind: str, changed: Count, num_ranks: int) -> str:
    place = changed.first
    assert place is not None
    rank = f", rank {place.rank}" if num_ranks > 1 else ""
    where = f"step {place.step}{rank}, {_element_of(kind, place)}"
    how_many = []
    if changed.num_different:
        share = 100 * changed.num_different / changed.num_compared
        how_many.append(f"{changed.num_different:,} of {changed.num_compared:,} ({percent(share)} %)")
    if changed.num_unknown:
        how_many.append(f"an unknown number in {count(changed.num_unknown, 'value')}")
    return f"{COUNTED[kind]}: {' and '.join(how_many)}; first {where}"


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
        yield f"  curve: {one_line(point.name)} at step {point.step}  A {_float(point.a)}  B {_float(point.b)}"


def _picture(verdict: Verdict, width: int, is_ascii: bool) -> list[str]:
    if verdict.curves is None or verdict.first is None:
        return []
    return curve_picture(verdict.curves, parted=verdict.first.step, width=width, is_ascii=is_ascii)


def _float(value: Float | None) -> str:
    if value is None:
        return "none"
    number = value.decimal()
    return f"{number if number is not None else value.value()} ({value})"


def verdict_json(verdict: Verdict, *, exit_code: int) -> dict[str, Any]:
    """The verdict in plain values only."""
    return {
        "version": VERSION,
        "exit_code": exit_code,
        "verdict": verdict.kind.value,
        "reasons": [verdict_reason_text(reason) for reason in verdict.reasons],
        "reason_codes": [reason_json(reason) for reason in verdict.reasons],
        "notes": [verdict_reason_text(note) for note in verdict.notes],
        "note_codes": [reason_json(note) for note in verdict.notes],
        "num_ranks": verdict.num_ranks,
        "num_steps": verdict.num_steps,
        "num_steps_different": verdict.num_steps_different,
        "is_nan_payload_only": verdict.is_nan_payload_only,
        "first": _divergence_json(verdict.first),
        "part": _divergence_json(verdict.part),
        "context": verdict.context and asdict(verdict.context),
        "attribution": _attribution_json(verdict),
        "operations": verdict.operations and operations_json(verdict.operations),
        "fingerprints": {
            part: [{"name": each.name, "a": each.a, "b": each.b} for each in differences]
            for part, differences in verdict.fingerprints.items()
        },
        "curve": [
            {"step": point.step, "name": point.name, "a": plain(point.a), "b": plain(point.b)}
            for point in verdict.curve
        ],
    }


def _divergence_json(place: Divergence | None) -> dict[str, Any] | None:
    if place is None:
        return None
    value = place.value
    return {
        "step": place.step,
        "what": place.what.value,
        "rank": place.rank,
        "ranks": list(place.ranks),
        "a": _value_json(place.a),
        "b": _value_json(place.b),
        "last_equal": _value_json(place.last_equal),
        "phases_before": list(place.phases_before),
        "num_before": place.num_before,
        "num_microbatches": place.num_microbatches,
        "num_values": place.num_values,
        "num_different": place.num_different,
        "value": value
        and {**asdict(value), "max_abs": _finite(value.max_abs), "is_nan_payload_only": value.is_nan_payload_only},
    }


def _finite(number: float | None) -> float | str | None:
    """JSON has no infinities: "inf"."""
    return number if number is None or isfinite(number) else str(number)


def _attribution_json(verdict: Verdict) -> dict[str, Any] | None:
    if not verdict.attribution:
        return None
    counts = {kind: asdict(each) for kind, each in verdict.attribution.items()}
    return {"is_floats_only": _is_floats_only(verdict), **counts}


def _value_json(recorded_value: RecordedValue | None) -> dict[str, Any] | None:
    if recorded_value is None:
        return None
    return {
        "phase": recorded_value.phase,
        "name": recorded_value.name,
        "occurrence": recorded_value.occurrence,
        "scope": recorded_value.scope.name.lower(),
        "dtype": recorded_value.dtype,
        "shape": list(recorded_value.shape),
        "algorithm": recorded_value.algorithm,
        "digest": recorded_value.digest.hex(),
    }


def percent(share: float) -> str:
    """Two digits of a share in percent; without an exponent where they are whole: 0.05, 5.6, 67, 100."""
    return f"{share:.2g}" if share < 99.5 else f"{share:.0f}"
