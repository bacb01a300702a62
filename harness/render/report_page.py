"""The page of traces: headline, what A and B are, phases, curves, first differences. All that is foreign is text."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from itertools import islice
from math import ceil, isfinite
from typing import Any

from harness.bits.redaction import redact_argv, redact_text
from harness.bits.text import count, one_line
from harness.lab.report.subjects import Pair, Report, Subject
from harness.render import divergence
from harness.render.divergence import LABELS, apart, distance, noun, pair_of
from harness.render.next_commands import COMMIT, FILE, next_commands
from harness.render.pages import html_page
from harness.trace.diff import RecordedDifference, all_differences
from harness.trace.format import CURVE_NAMES, MANIFEST, PHASES, Scope
from harness.trace.manifest import short_field
from harness.trace.values import compare, is_cost
from harness.trace.verdict import STEP_ONLY, Difference, Kind

GENERATOR = "rlharness report"
"""In every page: what a file must hold to be replaced by a new page."""
SIGNS = {Kind.EQUAL: "=", Kind.DIVERGED: "≠", Kind.NOT_COMPARABLE: "?", Kind.INCOMPLETE: "…"}
HOW = {Difference.VALUE_ONLY_IN_A: "only in A", Difference.VALUE_ONLY_IN_B: "only in B"}
MAX_VALUES = 50
"""Maximum number of rows of the table of first differences."""
MAX_POINTS = 1_000
"""Maximum number of points of a curve; of a longer one, evenly spaced steps are shown."""
MAX_PLOTS = 24
WIDTH, HEIGHT = 320, 120


def page(report: Report) -> str:
    """Return the whole page. Raises TraceError if a trace cannot be read."""
    return html_page(
        "report.html",
        styles=("report.css",),
        filters={"differ": lambda number: "differs" if number == 1 else "differ"},
        generator=GENERATOR,
        name=report.subjects[0].name,
        letters=[subject.letter for subject in report.subjects],
        rows=_run_rows(report),
        pairs=[_pair_view(pair) for pair in report.pairs],
        plots=list(islice(_plots(report), MAX_PLOTS)),
    )


def _run_rows(report: Report) -> list[tuple[str, list[str], bool]]:
    """Return (heading, a text for each run, whether they differ) of what a reader asks of a run first."""
    found = [_facts(subject) for subject in report.subjects]
    rows = {name: [each.get(name, "") for each in found] for name in {name: 0 for each in found for name in each}}
    different = {name for name, texts in rows.items() if len({*texts}) > 1} - {"Trace", "Recorded"}
    return [(name, texts, name in different) for name, texts in rows.items() if any(texts)]


def _facts(subject: Subject) -> dict[str, str]:
    trace, manifest = subject.trace, subject.trace.manifest
    found = {"Trace": redact_text(subject.name)}
    if manifest is not None:
        written = datetime.fromtimestamp((trace.directory / MANIFEST).stat().st_mtime, UTC)
        code = manifest.fingerprint.subject
        files = ", ".join(name.removeprefix(FILE) for name in code if name.startswith(FILE))
        found |= {
            "Recorded": written.strftime("%Y-%m-%d %H:%M UTC"),
            "Command": " ".join(redact_argv(tuple(map(short_field, manifest.argv)))),
            "Commit": code.get(COMMIT, "unknown")[:60] + (f", with changes of {files}" if files else ""),
            "Determinism level": manifest.level,
        }
    steps = trace.steps
    found["Steps"] = f"{count(len(steps), 'step')}, {steps[0]} to {steps[-1]}" if steps else "no steps"
    found |= {"Processes": str(len(trace.ranks)), "Incomplete": "; ".join(trace.gaps), "Note": "; ".join(trace.damages)}
    return {name: one_line(text, 600) for name, text in found.items()}


def _pair_view(pair: Pair) -> dict[str, Any]:
    """Return one comparison as the template takes it."""
    verdict, first = pair.verdict, pair.verdict.first
    differences = list(_differences(pair))
    return {
        "a": pair.a.letter,
        "b": pair.b.letter,
        "verdict": verdict,
        "sign": SIGNS[verdict.kind],
        "label": LABELS[verdict.kind],
        "headline": _sentence(divergence.headline(verdict)),
        "reasons": [_sentence(one_line(str(reason))) for reason in verdict.reasons],
        "causes": list(map(_sentence, divergence.cause_lines(verdict, pair.b.letter))),
        "attribution": list(map(_sentence, divergence.attribution_lines(verdict))),
        "text": redact_text(divergence.verdict_text(verdict, colour=False)),
        "step": first.step if first else None,
        "phases": list(_phases(pair, [each for _, each in differences])),
        "commands": next_commands(pair),
        "values": [_row(pair, *each) for each in differences[:MAX_VALUES]],
        "num_more": max(0, len(differences) - MAX_VALUES),
    }


def _sentence(text: str) -> str:
    text = redact_text(text)
    return f"{text[:1].upper()}{text[1:]}{'' if text.endswith('.') else '.'}"


def _differences(pair: Pair) -> Iterator[tuple[int, RecordedDifference]]:
    """Yield (rank, difference) of the values of the step that differs first, without states of generators."""
    first, a, b = pair.verdict.first, pair.a.trace, pair.b.trace
    if first is None or first.what in STEP_ONLY:
        return
    for rank in sorted(a.logs(first.step).keys() & b.logs(first.step).keys()):
        found = all_differences(a.columns(first.step, rank), b.columns(first.step, rank))
        yield from ((rank, each) for each in found if each.scope is not Scope.CONTEXT)


def _phases(pair: Pair, differences: Sequence[RecordedDifference]) -> Iterator[dict[str, Any]]:
    """Yield the recorded phases of the step that differs first, in order; none if one run lacks the step."""
    first, a, b = pair.verdict.first, pair.a.trace, pair.b.trace
    if first is None or first.what in STEP_ONLY:
        return
    ranks = a.logs(first.step).keys() & b.logs(first.step).keys()
    found = (each for rank in ranks for each in a.columns(first.step, rank).values())
    values = Counter(each.phase for each in found if each.scope is not Scope.CONTEXT)
    different = Counter(value.phase for each in differences if (value := each.a or each.b))
    here = next(value.phase for value in (first.a, first.b) if value)
    for phase in dict.fromkeys((*(phase for phase in PHASES if values[phase] or different[phase]), here)):
        state = "first" if phase == here else "different" if different[phase] else "equal"
        numbers = {"num_different": different[phase], "num_values": max(values[phase], different[phase])}
        yield {"name": phase, "state": state, **numbers}


def _row(pair: Pair, rank: int, each: RecordedDifference) -> tuple[str, str, str, str, str]:
    """Return (noun, name as it was recorded, A, B, how far apart) of a difference."""
    step, value = pair.verdict.first.step if pair.verdict.first else 0, each.a or each.b
    assert value is not None
    found = None
    if each.what is Difference.VALUE and each.a and each.b:
        x, y = pair.a.trace.tensor(step, rank, each.a), pair.b.trace.tensor(step, rank, each.b)
        found = compare(each.a.dtype, x, y) if x is not None and y is not None and len(x) == len(y) else None
    texts = pair_of(each.a, each.b, found)
    if found is not None and found.num_elements > 1:
        texts = f"{found.a} at {found.first}", f"{found.b} at {found.first}"
    one, other = (
        text or ("not recorded" if side is None else f"digest {side.digest.hex()[:8]}…")
        for text, side in zip(texts, (each.a, each.b), strict=True)
    )
    how = (
        distance(found)
        if found
        else HOW.get(each.what, "different bits" if each.what is Difference.VALUE else f"different {each.what.value}")
    )
    number = (f" #{value.occurrence}" if value.occurrence else "") + (f", rank {rank}" if rank else "")
    part = " (one batch or rank)" if value.scope is Scope.PHYSICAL else ""
    return noun(value) + part, f"{one_line(value.phase, 40)} {one_line(value.name)}{number}", one, other, how


def _plots(report: Report) -> Iterator[dict[str, Any]]:
    """Yield a plot for each value of the curves, without costs; the values that every curve has come first."""
    curves = {each.letter: {point.step: point.values for point in each.trace.curve} for each in report.subjects}
    known = dict.fromkeys(name for curve in curves.values() for values in curve.values() for name in values)
    parted = [(pair.b.letter, pair.verdict.first.step) for pair in report.pairs if pair.verdict.first is not None]
    for name in (each for each in dict.fromkeys((*CURVE_NAMES, *known)) if each in known and not is_cost(each)):
        lines = {
            letter: {step: values[name].value() for step, values in curve.items() if values.get(name)}
            for letter, curve in curves.items()
        }
        yield {"name": one_line(name, 60), **plot(lines, parted)}


def plot(lines: Mapping[str, Mapping[int, float]], parted: Sequence[tuple[str, int]]) -> dict[str, Any]:
    """Return one value of all runs in the coordinates of an SVG of WIDTH by HEIGHT; a value that is no number is a gap.

    `lines` has a value for each step of each run; `parted` has the step from which a run differs from A.
    """
    steps = sorted({step for line in lines.values() for step in line})
    shown = steps[:: ceil(len(steps) / MAX_POINTS)]
    finite = [value for line in lines.values() for value in line.values() if isfinite(value)]
    low, high = min(finite, default=0.0), max(finite, default=0.0)

    def x_of(step: int) -> float:
        return round(WIDTH * (step - steps[0]) / max(1, steps[-1] - steps[0]), 1)

    paths = {}
    for letter, line in lines.items():
        path, is_gap = "", True
        for step in shown:
            value = line.get(step)
            if value is not None and isfinite(value):  # halves: the distance of two floats may not fit into a float
                y = HEIGHT * ((high / 2 - value / 2) / (high / 2 - low / 2) if low < high else 0.5)
                path += f"{'M' if is_gap else 'L'}{x_of(step)} {y:.1f}"
            is_gap = value is None or not isfinite(value)
        paths[letter] = path and path + "h0.01"  # a single point is seen by its cap
    notes = [
        f"{letter} is {value} from step {step} on"
        for letter, line in lines.items()
        for step, value in [each for each in sorted(line.items()) if not isfinite(each[1])][:1]
    ]
    marks = [(letter, x_of(step)) for letter, step in parted if steps[0] <= step <= steps[-1]]
    ends = {"first": steps[0], "last": steps[-1], **dict(zip(("low", "high"), apart(low, high), strict=True))}
    return {"paths": paths, "marks": marks, "notes": notes, **ends}
