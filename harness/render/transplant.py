"""Output of `rlharness transplant`: the patches, their results, and the difference that caused the rest."""

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any

from harness.core.text import count, one_line, path_text
from harness.lab.transplant.comparison import Distance, Effect, Outcome, Where
from harness.lab.transplant.findings import Findings, Pair
from harness.trace.verdict import FieldDifference

VERSION = 1
TONES = {True: "32", False: "1;31"}


def transplant_text(findings: Findings, *, colour: bool) -> str:
    """The two runs, a row for each transplant, and the cause if there is one."""
    pair = findings.pair
    lines = [
        f"A: {path_text(pair.a.directory)}  B: {path_text(pair.b.directory)}",
        f"{_begin(pair)}, compared up to step {pair.last}",
        *_identity(pair.identity_differences),
        *(_table([_row(each) for each in findings.outcomes]) if findings.outcomes else ()),
        *_problems(findings.outcomes),
        *_conclusion(findings, colour),
        *(f"  note: {one_line(note)}" for note in findings.notes),
        f"  look closer: {look_closer(findings)}",
        f"  traces: {shlex.quote(path_text(findings.directory))}",
    ]
    if findings.interrupted_by:
        until = "; results so far:" if findings.outcomes else " before any patch was tried"
        lines.insert(0, f"interrupted by {findings.interrupted_by}{until}")
    return "\n".join(lines)


def _begin(pair: Pair) -> str:
    """Return the first patched step, after the first difference if that is another step."""
    begin = f"patched from step {pair.step} on"
    return begin if pair.step == pair.parts else f"first difference at step {pair.parts}; {begin}"


def _identity(differences: Sequence[FieldDifference]) -> Iterator[str]:
    """the configurations differ, which no patch changes: seed A 1 B 2. Nothing if both runs have one configuration."""
    if differences:
        told = [f"{each.name} A {_value(each.a)} B {_value(each.b)}" for each in differences]
        yield f"the configurations differ, which no patch changes: {_names(told)}"


def _value(value: str | None) -> str:
    return "absent" if value is None else value


def _table(rows: Sequence[tuple[str, ...]]) -> Iterator[str]:
    heads = ("patched from B", "result", "values as in B", "curve", "from A", "from B", "moved to B")
    widths = [max(map(len, column)) for column in zip(heads, *rows, strict=True)]
    for row in (heads, *rows):
        cells = [text.ljust(width) for text, width in zip(row, widths, strict=True) if width]
        yield f"  {'  '.join(cells)}".rstrip()


def _row(outcome: Outcome) -> tuple[str, ...]:
    """Return the cells of a patch: title, result, number of later values as in B, and the distance of the curve."""
    values = f"{outcome.num_reached:,} of {outcome.num_apart:,}" if outcome.num_apart else ""
    told = one_line(outcome.patch.title), _effect(outcome), values
    if (distance := outcome.distance) is None:
        return *told, "", "", "", ""
    return *told, one_line(distance.name), _number(distance.to_a), _number(distance.to_b), _share(distance)


def _number(value: float) -> str:
    return f"{value:.3g}"


def _share(distance: Distance) -> str:
    return "" if distance.share is None else f"{100 * distance.share:.3g} %"


def _effect(outcome: Outcome) -> str:
    match outcome.effect:
        case Effect.BECOMES_B:
            return "equals B, every bit"
        case Effect.MOVES:
            return f"differs from B: {_where(outcome.from_b)}"
        case Effect.NOTHING:
            return "no effect"
        case Effect.SAME_ALREADY:
            return "nothing to patch: A has the same bits"
        case Effect.DOES_NOT_FIT:
            return "cannot be patched"
        case Effect.FAILED:
            return "the run failed"


def _where(where: Where | None) -> str:
    if where is None:
        return ""
    occurrence = f" #{where.occurrence}" if where.occurrence else ""
    return f"step {where.step}, {one_line(where.phase)} {one_line(where.name)}{occurrence}"


def _problems(outcomes: Sequence[Outcome]) -> Iterator[str]:
    """Yield notes that do not fit into a row."""
    for outcome in outcomes:
        title = one_line(outcome.patch.title)
        if outcome.effect is Effect.NOTHING:
            yield f"  {title}: no bit of A changed; the recorded value is a copy, or nothing reads it"
        if outcome.problem:
            yield f"  {title}: {one_line(outcome.problem)}"
        if outcome.num_kept:
            why = (
                "was not patched: it is not a tensor"
                if outcome.num_kept == 1
                else "were not patched: they are not tensors"
            )
            yield f"  {title}: {count(outcome.num_kept, 'value')} {why}"


def _conclusion(findings: Findings, colour: bool) -> Iterator[str]:
    """Yield the conclusion from all rows."""
    cause = findings.cause
    label = "CAUSE" if cause else "NO CAUSE FOUND" if findings.outcomes else "NOTHING TRIED"
    painted = f"\x1b[{TONES[bool(cause)]}m{label}\x1b[0m" if colour else label
    if not findings.outcomes:
        yield f"{painted}  no patch was tried, so the cause is unknown"
        return
    if cause is None:
        yield f"{painted}  no patch turns A into B"
        return
    last = findings.pair.last
    title = one_line(cause.patch.title)
    if cause.effect is Effect.BECOMES_B:
        yield f"{painted}  {title}: with B's values, A equals B in every later bit, up to step {last}"
    elif cause.distance is not None:
        share = min(99.99, 100 * (cause.distance.share or 0.0))
        yield f"{painted}  {title}: with B's values, every curve value moves at least {share:.4g} % of the way to B"
        yield f"  not bitwise: the first remaining difference is at {_where(cause.from_b)}"
    if cause.before:
        yield f"  differs earlier and was not patched: {_names(cause.before)}"
    at = findings.outcomes.index(cause)
    if refused := [each.patch.take.text for each in findings.outcomes[:at] if each.effect is Effect.DOES_NOT_FIT]:
        yield f"  could not be patched and may be the cause: {_names(refused)}"
    once = next(
        (each for each in findings.outcomes if each.patch.is_once and each.patch.take == cause.patch.take), None
    )
    if once is not None and once is not cause:
        is_enough = once.effect is Effect.BECOMES_B
        told = "is enough: later differences follow from it" if is_enough else "is not enough: it acts again later"
        yield f"  patching step {once.patch.first} alone {told}"
    on_the_way = [
        one_line(each.patch.take.text)
        for each in findings.outcomes
        if each.effect is Effect.BECOMES_B and each.patch.take != cause.patch.take
    ]
    if on_the_way:
        told = (
            "also turn A into B, as effects of the cause"
            if cause.effect is Effect.BECOMES_B
            else "bitwise equal to B with"
        )
        yield f"  {told}: {', '.join(dict.fromkeys(on_the_way))}"


def look_closer(findings: Findings) -> str:
    """Return the next command: for the first operation of the cause, else for the first difference."""
    pair, cause = findings.pair, findings.cause
    a, b = path_text(pair.a.directory), path_text(pair.b.directory)
    if cause is None:
        return shlex.join(["rlharness", "diff", a, b])
    return shlex.join(["rlharness", "reproduce", a, "--step", str(cause.patch.first), "--trace-ops", "--against", b])


def _names(names: Sequence[str], limit: int = 4) -> str:
    shown = ", ".join(map(one_line, names[:limit]))
    return shown if len(names) <= limit else f"{shown} and {count(len(names) - limit, 'other')}"


def transplant_json(findings: Findings) -> dict[str, Any]:
    """The same in plain values only."""
    pair, cause = findings.pair, findings.cause
    return {
        "version": VERSION,
        "exit_code": int(findings.exit_code),
        "interrupted_by": findings.interrupted_by,
        "a": str(pair.a.directory),
        "b": str(pair.b.directory),
        "first_difference": pair.parts,
        "step": pair.step,
        "last_step": pair.last,
        "identity_differences": [asdict(each) for each in pair.identity_differences],
        "directory": str(findings.directory),
        "cause": cause and cause.patch.take.text,
        "look_closer": look_closer(findings),
        "transplants": [_outcome_json(each) for each in findings.outcomes],
        "notes": list(findings.notes),
    }


def _outcome_json(outcome: Outcome) -> dict[str, Any]:
    patch = outcome.patch
    return {
        "take": patch.take.text,
        "first_step": patch.first,
        "last_step": patch.last,
        "directory": outcome.directory,
        "effect": outcome.effect.value,
        "num_put": outcome.num_put,
        "num_kept": outcome.num_kept,
        "first_not_b": outcome.from_b and asdict(outcome.from_b),
        "first_not_a": outcome.from_a and asdict(outcome.from_a),
        "num_values_different": outcome.num_apart,
        "num_values_reached": outcome.num_reached,
        "before": list(outcome.before),
        "distances": [{**asdict(each), "share": each.share} for each in outcome.distances],
        "problem": outcome.problem,
    }
