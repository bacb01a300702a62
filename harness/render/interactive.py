"""Output of the step debugger: the prompt, and the answer to each command, for a person or as a line of JSON."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from math import prod
from typing import Any

from harness.bits.text import count, one_line
from harness.lab.reproduce.debugger.answers import Answer, Compared, Listed, Marked, Message, Paused, Shown
from harness.lab.reproduce.debugger.step_progress import Mark, StepProgress, Visit
from harness.trace.chain import RecordedValue
from harness.trace.element_diff import ValueDifference, coordinates

MAX_LISTED = 40
"""Maximum number of listed values of a phase; those that differ come first."""
BAD, GOOD = "1;31", "32"


def prompt_text(walk: StepProgress) -> str:
    """Return the prompt with the current position: (step 7, before reward) ."""
    last = walk.values[-1] if walk.values else None
    return f"(step {walk.step}, {_where(walk.why, walk.phase, last)}) "


def _where(why: str, phase: str, last: RecordedValue | None) -> str:
    match why:
        case "":
            return "ended"
        case "begin":
            return "beginning"
        case "end":
            return "end"
    if phase:
        return f"before {phase}"
    return f"after {last.phase} {one_line(last.name)}" if last is not None else "beginning"


def answer_text(answer: Answer, *, colour: bool) -> str:
    """Return the answer as text."""
    match answer:
        case Paused():
            lines = _paused(answer, colour)
        case Listed():
            lines = _listed(answer, colour)
        case Shown():
            lines = _shown(answer)
        case Compared():
            lines = _compared(answer)
        case Message():
            lines = iter(answer.lines)
    return "\n".join(lines)


def _paused(stood: Paused, colour: bool) -> Iterator[str]:
    for visit, recorded_values in stood.visits:
        yield f"  {_visit_name(visit):<13} {_summary(recorded_values, colour)}"
    match stood.why:
        case "":
            pass  # the notes say how it has ended
        case "end":
            yield f"at the end of step {stood.step}"
        case "begin":
            yield f"at the beginning of step {stood.step}"
        case _:
            yield _where(stood.why, stood.phase, stood.last)
    yield from (f"  {one_line(note)}" for note in stood.notes)


def _visit_name(visit: Visit) -> str:
    return f"{visit.phase} #{visit.number}" if visit.number else visit.phase


def _summary(recorded_values: Sequence[Marked], colour: bool) -> str:
    """5 values, as recorded; of 2 the first that differs: rewards."""
    told = [_agreement([each.mark for each in recorded_values], recorded_values, "as recorded", colour)]
    others = [each.other for each in recorded_values if each.other is not None]
    if others:
        told.append(_agreement(others, recorded_values, "as in the other run", colour))
    return f"{count(len(recorded_values), 'value')}: {'; '.join(told)}"


def _agreement(marks: Sequence[Mark], recorded_values: Sequence[Marked], phrase: str, colour: bool) -> str:
    unlike = [each.value for each, mark in zip(recorded_values, marks, strict=True) if mark is Mark.DIFFERENT]
    if unlike:
        text = f"{len(unlike):,} NOT {phrase}, first {one_line(unlike[0].name)}"
        return f"\x1b[{BAD}m{text}\x1b[0m" if colour else text
    if set(marks) == {Mark.ABSENT}:
        return f"not {phrase.removeprefix('as ')}"
    if Mark.ABSENT in marks:
        return f"{marks.count(Mark.EQUAL):,} {phrase}, {marks.count(Mark.ABSENT):,} missing"
    return phrase


def _listed(listed: Listed, colour: bool) -> Iterator[str]:
    if not listed.visits:
        yield "nothing recorded so far"
        return
    head = "= as recorded, ! different, ? missing"
    yield f"{head}; second mark: compared with {one_line(listed.other)}" if listed.other else head
    for visit, recorded_values in listed.visits:
        yield _visit_name(visit)
        shown = [
            *(each for each in recorded_values if not _is_alike(each)),
            *(each for each in recorded_values if _is_alike(each)),
        ]
        kept = shown[:MAX_LISTED]
        width = max(len(_name(each.value)) for each in kept)
        yield from (_listed_value(each, colour, width) for each in recorded_values if each in kept)
        if len(recorded_values) > MAX_LISTED:
            yield f"  and {count(len(recorded_values) - MAX_LISTED, 'value')} more"


def _is_alike(marked: Marked) -> bool:
    return marked.mark is Mark.EQUAL and marked.other in (None, Mark.EQUAL)


def _listed_value(marked: Marked, colour: bool, width: int) -> str:
    marks = marked.mark.value + (f" {marked.other.value}" if marked.other is not None else "")
    if colour and not _is_alike(marked):
        marks = f"\x1b[{BAD}m{marks}\x1b[0m"
    return f"  {marks}  {_name(marked.value):<{width}}  {_kind(marked.value)}"


def _name(recorded_value: RecordedValue) -> str:
    return one_line(recorded_value.name) + (f"#{recorded_value.occurrence}" if recorded_value.occurrence else "")


def _kind(recorded_value: RecordedValue) -> str:
    return f"{one_line(recorded_value.dtype)} [{', '.join(map(str, recorded_value.shape))}]"


def _shown(shown: Shown) -> Iterator[str]:
    part = f" [{', '.join(map(str, shown.shape))}]" if shown.part and shown.shape is not None else ""
    value = shown.value
    yield f"{value.phase} {_name(value)}  {_kind(value)}{_part(shown.part)}{part}"
    if shown.range:
        told = [f"{name} {shown.range[name]:.9g}" for name in ("min", "max", "mean") if name in shown.range]
        told += [f"{count(shown.range[name], word, word)}" for name, word in (("nan", "NaN"), ("inf", "infinite"))]
        yield f"  {', '.join(told)}"
    yield from (f"  {line.rstrip()}" for line in shown.text.splitlines())
    if not shown.is_as_recorded:
        yield "  the program has written to it since it was recorded; this is its current value"


def _compared(compared: Compared) -> Iterator[str]:
    value, other = compared.value, compared.other
    whose = one_line(compared.whose)
    yield f"{value.phase} {_name(value)}  {_kind(value)}{_part(compared.part)}, compared with {whose}"
    if compared.is_equal:
        yield "  equal, every bit"
    elif other is None:
        yield "  no such value there"
    elif (value.dtype, value.shape) != (other.dtype, other.shape):
        yield f"  here {_kind(value)}, there {_kind(other)}"
    elif compared.difference is not None:
        yield from _difference(compared.difference, compared)
    else:
        yield f"  DIFFERENT by an unknown amount: {one_line(compared.why_unknown)}"


def _part(text: str) -> str:
    return f" {text}" if text else ""


def _difference(value: ValueDifference, compared: Compared) -> Iterator[str]:
    """How many elements, by how much, the first, NaN."""
    furthest = []
    if value.max_ulp is not None:
        furthest.append(f"{value.max_ulp:,} ulp")
    if value.max_abs is not None:
        furthest.append(f"{value.max_abs:.3g}")
    at_most = f", by at most {' ('.join(furthest)}{')' if len(furthest) > 1 else ''}" if furthest else ""
    yield f"  DIFFERENT in {value.num_different:,} of {count(value.num_elements, 'element')}{at_most}"
    is_of_elements = prod(map(len, compared.ranges)) == value.num_elements  # else of bytes, or of a rank's part
    at = coordinates(value.first, compared.ranges) if compared.ranges and is_of_elements else value.first
    yield f"  the first, {at}: here {value.a}, there {value.b}"
    if value.num_nan_only_a or value.num_nan_only_b:
        yield f"  NaN here only: {value.num_nan_only_a:,}, there only: {value.num_nan_only_b:,}"


def answer_json(answer: Answer) -> dict[str, Any]:
    """The same in plain values only."""
    told: dict[str, Any] = {"answer": type(answer).__name__.lower()}
    match answer:
        case Paused():
            phases = [_visit_json(visit, recorded_values) for visit, recorded_values in answer.visits]
            place = {"step": answer.step, "at": answer.why or "ended", "phase": answer.phase}
            return told | place | {"visits": phases, "notes": list(answer.notes)}
        case Listed():
            return told | {"visits": [_visit_json(visit, recorded_values) for visit, recorded_values in answer.visits]}
        case Shown():
            fields: dict[str, Any] = {"part": answer.part, "range": answer.range, "text": answer.text}
            shape = None if answer.shape is None else list(answer.shape)
            return told | _value_json(answer.value) | fields | {"shape": shape, "is_as_recorded": answer.is_as_recorded}
        case Compared():
            found = answer.difference
            value = found and {**asdict(found), "max_abs": str(found.max_abs)}
            fields = {"whose": answer.whose, "part": answer.part, "is_equal": answer.is_equal, "value": value}
            return told | _value_json(answer.value) | fields | {"why_unknown": answer.why_unknown}
        case Message():
            return told | {"lines": list(answer.lines), "is_refused": answer.is_refused}


def _visit_json(visit: Visit, recorded_values: Sequence[Marked]) -> dict[str, Any]:
    marks = [
        {**_value_json(each.value), "recorded": each.mark.name.lower(), "other": each.other and each.other.name.lower()}
        for each in recorded_values
    ]
    return {"phase": visit.phase, "number": visit.number, "values": marks}


def _value_json(recorded_value: RecordedValue) -> dict[str, Any]:
    return {
        "phase": recorded_value.phase,
        "name": recorded_value.name,
        "occurrence": recorded_value.occurrence,
        "dtype": recorded_value.dtype,
        "shape": list(recorded_value.shape),
        "digest": recorded_value.digest.hex(),
    }
