"""What the step debugger prints: the prompt, and the answer to each command, for a person or as a line of JSON."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from math import prod
from typing import Any

from harness.core.text import count, one_line
from harness.lab.reproduce.debugger.answers import Answer, Compared, Listed, Marked, Shown, Stood, Told
from harness.lab.reproduce.debugger.walk import Mark, Visit, Walk
from harness.trace.chain import Leaf
from harness.trace.element_diff import ValueDifference, coordinates

MAX_LISTED = 40
"""So many values of one phase are listed, those that differ first."""
BAD, GOOD = "1;31", "32"


def prompt_text(walk: Walk) -> str:
    """Where somebody stands: (step 7, before reward) ."""
    return f"(step {walk.step}, {_where(walk.why, walk.phase, walk.leaves[-1] if walk.leaves else None)}) "


def _where(why: str, phase: str, last: Leaf | None) -> str:
    match why:
        case "":
            return "ended"
        case "begin":
            return "beginning"
        case "end":
            return "end"
    if phase:
        return f"before {phase}"
    return f"behind {last.phase} {one_line(last.name)}" if last is not None else "beginning"


def answer_text(answer: Answer, *, colour: bool) -> str:
    """What a person reads."""
    match answer:
        case Stood():
            lines = _stood(answer, colour)
        case Listed():
            lines = _listed(answer, colour)
        case Shown():
            lines = _shown(answer)
        case Compared():
            lines = _compared(answer)
        case Told():
            lines = iter(answer.lines)
    return "\n".join(lines)


def _stood(stood: Stood, colour: bool) -> Iterator[str]:
    for visit, leaves in stood.visits:
        yield f"  {_visit_name(visit):<13} {_summary(leaves, colour)}"
    match stood.why:
        case "":
            pass  # the notes say how it has ended
        case "end":
            yield f"step {stood.step} has come to its end"
        case "begin":
            yield f"at the beginning of step {stood.step}"
        case _:
            yield _where(stood.why, stood.phase, stood.last)
    yield from (f"  {one_line(note)}" for note in stood.notes)


def _visit_name(visit: Visit) -> str:
    return f"{visit.phase} #{visit.number}" if visit.number else visit.phase


def _summary(leaves: Sequence[Marked], colour: bool) -> str:
    """5 values, as recorded; of 2 the first that differs: rewards."""
    told = [_agreement([each.mark for each in leaves], leaves, "as recorded", colour)]
    others = [each.other for each in leaves if each.other is not None]
    if others:
        told.append(_agreement(others, leaves, "as in the other run", colour))
    return f"{count(len(leaves), 'value')}: {'; '.join(told)}"


def _agreement(marks: Sequence[Mark], leaves: Sequence[Marked], phrase: str, colour: bool) -> str:
    unlike = [each.leaf for each, mark in zip(leaves, marks, strict=True) if mark is Mark.DIFFERENT]
    if unlike:
        text = f"{len(unlike):,} NOT {phrase}, first {one_line(unlike[0].name)}"
        return f"\x1b[{BAD}m{text}\x1b[0m" if colour else text
    if set(marks) == {Mark.ABSENT}:
        return f"nothing to compare with {phrase.removeprefix('as ')}"
    if Mark.ABSENT in marks:
        return f"{marks.count(Mark.EQUAL):,} {phrase}, {marks.count(Mark.ABSENT):,} not there"
    return phrase


def _listed(listed: Listed, colour: bool) -> Iterator[str]:
    if not listed.visits:
        yield "nothing was recorded so far"
        return
    head = "= as recorded, ! not, ? not there"
    yield f"{head}; second mark: as in {one_line(listed.other)}" if listed.other else head
    for visit, leaves in listed.visits:
        yield _visit_name(visit)
        shown = [*(each for each in leaves if not _is_alike(each)), *(each for each in leaves if _is_alike(each))]
        kept = shown[:MAX_LISTED]
        width = max(len(_name(each.leaf)) for each in kept)
        yield from (_listed_leaf(each, colour, width) for each in leaves if each in kept)
        if len(leaves) > MAX_LISTED:
            yield f"  and {count(len(leaves) - MAX_LISTED, 'value')} more"


def _is_alike(marked: Marked) -> bool:
    return marked.mark is Mark.EQUAL and marked.other in (None, Mark.EQUAL)


def _listed_leaf(marked: Marked, colour: bool, width: int) -> str:
    marks = marked.mark.value + (f" {marked.other.value}" if marked.other is not None else "")
    if colour and not _is_alike(marked):
        marks = f"\x1b[{BAD}m{marks}\x1b[0m"
    return f"  {marks}  {_name(marked.leaf):<{width}}  {_kind(marked.leaf)}"


def _name(leaf: Leaf) -> str:
    return one_line(leaf.name) + (f"#{leaf.occurrence}" if leaf.occurrence else "")


def _kind(leaf: Leaf) -> str:
    return f"{one_line(leaf.dtype)} [{', '.join(map(str, leaf.shape))}]"


def _shown(shown: Shown) -> Iterator[str]:
    part = f" [{', '.join(map(str, shown.shape))}]" if shown.part and shown.shape is not None else ""
    yield f"{shown.leaf.phase} {_name(shown.leaf)}  {_kind(shown.leaf)}{_part(shown.part)}{part}"
    if shown.range:
        told = [f"{name} {shown.range[name]:.9g}" for name in ("min", "max", "mean") if name in shown.range]
        told += [f"{count(shown.range[name], word, word)}" for name, word in (("nan", "NaN"), ("inf", "infinite"))]
        yield f"  {', '.join(told)}"
    yield from (f"  {line.rstrip()}" for line in shown.text.splitlines())
    if not shown.is_as_recorded:
        yield "  the program has written to it since it was recorded: this is what it holds now"


def _compared(compared: Compared) -> Iterator[str]:
    leaf, other = compared.leaf, compared.other
    yield f"{leaf.phase} {_name(leaf)}  {_kind(leaf)}{_part(compared.part)}, beside that of {one_line(compared.whose)}"
    if compared.is_equal:
        yield "  equal, every bit"
    elif other is None:
        yield "  it has no such value"
    elif (leaf.dtype, leaf.shape) != (other.dtype, other.shape):
        yield f"  here {_kind(leaf)}, there {_kind(other)}"
    elif compared.value is not None:
        yield from _difference(compared.value, compared)
    else:
        yield f"  DIFFERENT; by how much is not known: {one_line(compared.why_unknown)}"


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
        case Stood():
            phases = [_visit_json(visit, leaves) for visit, leaves in answer.visits]
            place = {"step": answer.step, "at": answer.why or "ended", "phase": answer.phase}
            return told | place | {"visits": phases, "notes": list(answer.notes)}
        case Listed():
            return told | {"visits": [_visit_json(visit, leaves) for visit, leaves in answer.visits]}
        case Shown():
            fields: dict[str, Any] = {"part": answer.part, "range": answer.range, "text": answer.text}
            shape = None if answer.shape is None else list(answer.shape)
            return told | _leaf_json(answer.leaf) | fields | {"shape": shape, "is_as_recorded": answer.is_as_recorded}
        case Compared():
            value = answer.value and {**asdict(answer.value), "max_abs": str(answer.value.max_abs)}
            fields = {"whose": answer.whose, "part": answer.part, "is_equal": answer.is_equal, "value": value}
            return told | _leaf_json(answer.leaf) | fields | {"why_unknown": answer.why_unknown}
        case Told():
            return told | {"lines": list(answer.lines), "is_refused": answer.is_refused}


def _visit_json(visit: Visit, leaves: Sequence[Marked]) -> dict[str, Any]:
    marks = [
        {**_leaf_json(each.leaf), "recorded": each.mark.name.lower(), "other": each.other and each.other.name.lower()}
        for each in leaves
    ]
    return {"phase": visit.phase, "number": visit.number, "leaves": marks}


def _leaf_json(leaf: Leaf) -> dict[str, Any]:
    return {
        "phase": leaf.phase,
        "name": leaf.name,
        "occurrence": leaf.occurrence,
        "dtype": leaf.dtype,
        "shape": list(leaf.shape),
        "digest": leaf.digest.hex(),
    }
