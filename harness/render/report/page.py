"""A report as one HTML file. Everything foreign is text here."""

from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

from harness.bits.redaction import redact_argv, redact_fields, redact_text
from harness.bits.text import count, one_line
from harness.lab.report.subjects import Pair, Report, Subject
from harness.render import divergence
from harness.render.divergence import LABELS, distance, noun, pair_of
from harness.render.pages import html_page
from harness.render.report.completions import flipped_rollouts
from harness.render.report.curves import measured, plots
from harness.render.report.next_commands import COMMIT, FILE, next_commands
from harness.trace.chain import PHASES, RecordedValue, Scope
from harness.trace.element_diff import ValueDifference, compare
from harness.trace.explanation import last_known
from harness.trace.layout import MANIFEST
from harness.trace.manifest import PARTS, Manifest, short_field
from harness.trace.value_diff import RecordedDifference, all_differences
from harness.trace.verdict import STEP_ONLY, TOKENS, Difference, Kind

GENERATOR = "rlharness report"
"""In every page: what a file must hold to be replaced by a new page."""
ROOM = "harness.render.report"
SIGNS = {Kind.EQUAL: "=", Kind.DIVERGED: "≠", Kind.NOT_COMPARABLE: "?", Kind.INCOMPLETE: "…"}
HOW = {
    Difference.VALUE: "different bits",
    Difference.DTYPE: "different dtypes",
    Difference.SHAPE: "different shapes",
    Difference.VALUE_ONLY_IN_A: "{} in A only",
    Difference.VALUE_ONLY_IN_B: "{} in B only",
}
MAX_STEPS = 20
"""Maximum number of steps whose differences are listed, from the first that differs on."""
MAX_VALUES = 50
"""Maximum number of rows of the table of first differences."""


def page(report: Report) -> str:
    """Return the whole page. Raises TraceError if a trace cannot be read."""
    manifest = report.subjects[0].trace.manifest
    return html_page(
        "report.html",
        room=ROOM,
        styles=("report/templates/report.css",),
        script="report/templates/copy.js",
        filters={"differ": lambda number: "differs" if number == 1 else "differ"},
        generator=GENERATOR,
        name=report.subjects[0].name,
        letters=[subject.letter for subject in report.subjects],
        rows=_run_rows(report),
        pairs=[_pair_view(pair) for pair in report.pairs],
        alone=None if report.pairs else fingerprints(manifest, manifest),
        plots_found=plots(report),
        measured=measured(report),
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
    verdict = pair.verdict
    first, values = verdict.first, list(_values(pair))
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
        "told": redact_text(divergence.verdict_text(verdict, colour=False)),
        "step": first.step if first else None,
        "phases": list(_phases(pair)),
        "commands": next_commands(pair),
        "first_values": values[:MAX_VALUES],
        "is_cut": len(values) > MAX_VALUES,
        "fingerprints": fingerprints(pair.a.trace.manifest, pair.b.trace.manifest),
        "rollouts": list(flipped_rollouts(pair)),
        "has_tokens": TOKENS in verdict.attribution,
    }


def _sentence(text: str) -> str:
    text = redact_text(text)
    return f"{text[:1].upper()}{text[1:]}{'' if text.endswith('.') else '.'}"


def fingerprints(a: Manifest | None, b: Manifest | None) -> list[dict[str, Any]]:
    """Return the parts that either has, without secrets, as lines (name, A, B); of one run, `b` is `a`."""
    found = []
    for part in PARTS:
        fields = [getattr(each.fingerprint, part) if each else {} for each in (a, b)]
        left, right = (redact_fields({name: short_field(text) for name, text in each.items()}) for each in fields)
        lines = [(name, left.get(name), right.get(name)) for name in sorted(left.keys() | right.keys())]
        if lines:
            different, alike = [e for e in lines if e[1] != e[2]], [e for e in lines if e[1] == e[2]]
            found.append({"part": part, "different": different, "alike": alike})
    return found


def _phases(pair: Pair) -> Iterator[dict[str, Any]]:
    """Yield the recorded phases of the step at which two runs diverge, in order; none if one run lacks the step."""
    first, a, b = pair.verdict.first, pair.a.trace, pair.b.trace
    if first is None or first.what in STEP_ONLY:
        return
    values = Counter(
        each.phase
        for rank in a.logs(first.step).keys() & b.logs(first.step).keys()
        for each in a.columns(first.step, rank).values()
        if each.scope is not Scope.CONTEXT
    )
    different = Counter(_of(each).phase for _, _, each in _differences(pair, first.step))
    here = _of(first).phase
    for phase in dict.fromkeys((*(phase for phase in PHASES if values[phase] or different[phase]), here)):
        state = "first" if phase == here else "different" if different[phase] else "equal"
        numbers = {"num_different": different[phase], "num_values": max(values[phase], different[phase])}
        yield {"name": phase, "state": state, **numbers}


def _differences(pair: Pair, step: int) -> Iterator[tuple[int, int, RecordedDifference]]:
    """Yield (step, rank, difference) of the values of one step, without states of generators."""
    a, b = pair.a.trace, pair.b.trace
    for rank in sorted(a.logs(step).keys() & b.logs(step).keys()):
        found = all_differences(a.columns(step, rank), b.columns(step, rank))
        yield from ((step, rank, each) for each in found if each.scope is not Scope.CONTEXT)


def _of(difference: Any) -> RecordedValue:
    value: RecordedValue = difference.a or difference.b
    return value


def _values(pair: Pair) -> Iterator[dict[str, Any]]:
    """Yield the first difference of each value, by step; one more than MAX_VALUES at most."""
    first, a, b = pair.verdict.first, pair.a.trace, pair.b.trace
    if first is None:
        return
    steps = [step for step in a.steps if step >= first.step and step in set(b.steps)][:MAX_STEPS]
    seen: set[tuple[str, str]] = set()
    for step, rank, each in (found for number in steps for found in _differences(pair, number)):
        value = _of(each)
        if (value.phase, value.name) in seen:
            continue
        seen.add((value.phase, value.name))
        difference = _element_difference(pair, step, rank, each)
        one, other = _texts(pair, step, rank, each)
        if difference is not None and difference.num_elements > 1:
            one, other = (f"{text} at {difference.first}" for text in (difference.a, difference.b))
        verb = "changed" if "unchanged" in one + other else "recorded"
        how = distance(difference) if difference else HOW[each.what].format(verb)
        part = " (one batch or rank)" if value.scope is Scope.PHYSICAL else ""
        number = (f" #{value.occurrence}" if value.occurrence else "") + (f", rank {rank}" if len(a.ranks) > 1 else "")
        name = f"{one_line(value.phase, 40)} {one_line(value.name)}{number}"
        yield {"step": step, "noun": noun(value) + part, "name": name, "a": one, "b": other, "how": how}
        if len(seen) > MAX_VALUES:
            return


def _element_difference(pair: Pair, step: int, rank: int, each: RecordedDifference) -> ValueDifference | None:
    """Return how two values of one shape differ, if both traces have them."""
    if each.what is not Difference.VALUE or each.a is None or each.b is None:
        return None
    x, y = pair.a.trace.tensor(step, rank, each.a), pair.b.trace.tensor(step, rank, each.b)
    return None if x is None or y is None or len(x) != len(y) else compare(each.a.dtype, x, y)


def _texts(pair: Pair, step: int, rank: int, each: RecordedDifference) -> tuple[str, str]:
    """Return both values as far as they are known; one that was not recorded as it was recorded last."""
    value, notes, sides = _of(each), ["", ""], [each.a, each.b]
    for at, trace in enumerate((pair.a.trace, pair.b.trace)):
        if sides[at] is None and (known := last_known(trace, step, rank, value.phase, value.name)):
            sides[at], notes[at] = known.value, f", unchanged since step {known.step}"
    one, other = (
        (text or ("not recorded" if side is None else f"digest {side.digest.hex()[:8]}…")) + note
        for text, side, note in zip(pair_of(sides[0], sides[1]), sides, notes, strict=True)
    )
    return one, other
