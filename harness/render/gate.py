"""Output of `rlharness gate`: a verdict on each scenario, and what of that fails: text, JSON, or for GitHub.

On GitHub Actions: an annotation per scenario that needs attention, and the summary of the job.
"""

import shlex
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from math import isfinite
from typing import Any

from harness.bits.findings import FindingCode
from harness.bits.redaction import redact_argv
from harness.bits.text import count, one_line, path_text
from harness.lab.gate.change import CODE_OF_KIND, Change, Rounding
from harness.lab.gate.gate import Gate, GateScenario
from harness.lab.gate.golden import STEP as WHOLE_STEP
from harness.lab.gate.golden import Golden
from harness.process.program_output import output_tail
from harness.render.divergence import changed_lines, headline, unchanged_lines, verdict_json
from harness.render.github import append_to_summary, command, folded, plain, say_lines
from harness.render.rare_events import rare_events_line
from harness.render.replay import ending_lines
from harness.render.serialise import serialised
from harness.trace.curve import common_names
from harness.trace.verdict import EXIT_CODES

SIGNS = {Change.EQUAL: "✅", Change.NEW: "✅", Change.ACCEPTED: "✅", Change.NUMERICS: "🟡", Change.CONFIGURATION: "🟡"}
UNREMARKABLE = (Change.EQUAL, Change.NEW, Change.ACCEPTED)
"""Changes without an annotation."""


def annotations(gate: Gate) -> Iterator[str]:
    """A workflow command for each scenario that fails the gate, or is not what it was."""
    for scenario in gate.scenarios:
        change = scenario.comparison.change
        is_failure = scenario.name in gate.failures
        if not is_failure and change in UNREMARKABLE:
            continue
        title = f"{scenario.name}: {_title(gate, scenario)}"
        text = "\n".join([f"{LABELS[change]}{where(scenario)}", *detail_lines(scenario)])
        yield command("error" if is_failure else "warning", text, title=title)


def annotate(gate: Gate) -> None:
    """Say the annotations on standard error, which GitHub reads as well: standard output may be JSON."""
    say_lines(annotations(gate))


def _title(gate: Gate, scenario: GateScenario) -> str:
    return ", ".join(gate.failures.get(scenario.name, ())) or LABELS[scenario.comparison.change].lower()


def summary(gate: Gate) -> str:
    """The job's summary, in Markdown."""
    decision = "failed" if gate.failures else "passed"
    if gate.interrupted_by:
        decision = f"interrupted by {gate.interrupted_by}"
    lines = [
        f"### rlharness gate: {decision}",
        "",
        f"{plain(sides_line(gate).removeprefix('gate: '))}: {plain(summary_line(gate) or 'nothing was compared')}.",
        "",
        "| scenario | | where |",
        "|---|---|---|",
        *map(_row, gate.scenarios),
        "",
    ]
    for scenario in gate.scenarios:
        if scenario.comparison.change is not Change.EQUAL or scenario.name in gate.failures:
            title = f"{one_line(scenario.name)}: {_title(gate, scenario)}"
            lines += folded(title, detail_lines(scenario))
    lines += [f"- {plain(str(note))}" for note in gate.notes]
    if gate.failures:
        lines += ["", f"The gate fails on {failing_changes(gate)}."]
    return "\n".join(lines) + "\n"


def _row(scenario: GateScenario) -> str:
    change = scenario.comparison.change
    label = f"{SIGNS.get(change, '❌')} {LABELS[change].lower()}"
    return f"| {plain(scenario.name)} | {label} | {plain(where(scenario).removeprefix(': '))} |"


def append_summary(gate: Gate, environ: Mapping[str, str]) -> None:
    """Add the summary to that of the job; the counts alone if it is too large."""
    counts = plain(summary_line(gate))
    short = f"### rlharness gate\n\n{counts}; the full summary exceeds the size limit.\n"
    append_to_summary(summary(gate), environ, short=short)


VERSION = 1
LABELS = {
    Change.EQUAL: "EQUAL",
    Change.NUMERICS: "NUMERICS ONLY",
    Change.BEHAVIOUR: "BEHAVIOUR CHANGED",
    Change.CONFIGURATION: "CONFIGURATION CHANGED",
    Change.NONDETERMINISTIC: "NONDETERMINISTIC",
    Change.NOT_COMPARABLE: "NOT COMPARABLE",
    Change.BROKEN: "BROKEN",
    Change.NEW: "NEW",
    Change.REMOVED: "REMOVED",
    Change.ACCEPTED: "ACCEPTED",
}
TONES = {Change.EQUAL: "32", Change.NEW: "32", Change.ACCEPTED: "32", Change.BEHAVIOUR: "1;31", Change.BROKEN: "1;31"}
YELLOW = "33"
KINDS: dict[FindingCode, str] = {code: kind for kind, code in CODE_OF_KIND.items()}
MAX_ULP = 100_000
"""Distances beyond this are no rounding, and their number says nothing."""
PARTED = (Change.NUMERICS, Change.BEHAVIOUR)


def gate_text(gate: Gate, *, colour: bool) -> str:
    """Return the report for a person, with the decision last."""
    lines = [sides_line(gate)]
    for scenario in gate.scenarios:
        lines += _scenario(gate, scenario, colour)
    lines += [f"note: {one_line(str(note))}" for note in gate.notes]
    return "\n".join([*lines, *_decision(gate, colour), f"  traces: {shlex.quote(path_text(gate.directory))}"])


def sides_line(gate: Gate) -> str:
    """Return the line that names both sides."""
    head = f"{gate.head.short}{' with uncommitted changes' if gate.is_dirty else ''}"
    if gate.base is None:
        return f"gate: {head}"
    return f"gate: {head}, against {gate.base.short} {one_line(gate.base.subject, 60)!r}"


def _scenario(gate: Gate, scenario: GateScenario, colour: bool) -> Iterator[str]:
    label = LABELS[scenario.comparison.change]
    if colour:
        label = f"\x1b[{TONES.get(scenario.comparison.change, YELLOW)}m{label}\x1b[0m"
    against = f" ({scenario.against})" if scenario.golden is not None else ""
    yield f"{label}  {one_line(scenario.name)}{against}{where(scenario)}"
    yield from (f"  {line}" for line in detail_lines(scenario))
    yield from (f"  {line}" for line in _next_command(gate, scenario))


def _next_command(gate: Gate, scenario: GateScenario) -> Iterator[str]:
    """Yield commands that show more about a scenario."""
    comparison = scenario.comparison
    if comparison.change is Change.NONDETERMINISTIC:
        yield f"look closer: {shlex.join(['rlharness', 'replay', *redact_argv(scenario.replay)])}"
    if comparison.verdict is None or comparison.verdict.first is None or comparison.change not in PARTED:
        return
    runs = (gate.directory / scenario.name.replace("/", "-") / side / "run-1" for side in ("base", "head"))
    yield f"look closer: {shlex.join(['rlharness', 'diff', *map(path_text, runs)])}"
    if gate.bisect and scenario.name in gate.failures and scenario.golden is None:
        yield f"find the commit: {shlex.join(redact_argv([*gate.bisect, *scenario.replay]))}"


def where(scenario: GateScenario) -> str:
    """: 12 steps, every recorded bit; : step 3, backward layers.0.weight. Nothing where nothing was compared."""
    comparison, golden = scenario.comparison, scenario.golden
    if comparison.place:
        return f": {comparison.place}"
    if comparison.change is Change.EQUAL and golden is not None:
        return f": {count(len(golden.steps), 'step')}, every recorded bit"
    if comparison.verdict is None:
        return ""
    if comparison.change is Change.EQUAL:  # also where one side records more
        return f": {count(comparison.verdict.num_steps, 'step')}, every recorded bit"
    return f": {headline(comparison.verdict)}"


def detail_lines(scenario: GateScenario) -> Iterator[str]:
    """Yield reasons and distances, without the verdict itself."""
    comparison, verdict = scenario.comparison, scenario.comparison.verdict
    is_parted = verdict is not None and verdict.first is not None and comparison.change is not Change.EQUAL
    counted = changed_lines(verdict) if verdict and is_parted else {}
    for reason in comparison.reasons:  # the count of the same says more
        yield counted.pop(KINDS.get(reason.code, ""), one_line(str(reason)))
        if reason.remedy:
            yield f"  remedy: {one_line(reason.remedy)}"
    if scenario.output is not None:
        yield from ending_lines(scenario.output)
    if is_parted and comparison.rounding is not None:
        yield from rounding_lines(comparison.rounding)
    yield from counted.values()
    if verdict and is_parted:
        yield from unchanged_lines(verdict)
    if scenario.golden is not None:
        yield from golden_lines(scenario.golden, is_new=comparison.change is Change.ACCEPTED)
    if verdict and comparison.change is Change.EQUAL:
        yield rare_events_line(verdict.num_steps, 2)
    for note in (*comparison.notes, *scenario.notes):
        yield f"note: {one_line(str(note))}"


def golden_lines(golden: Golden, *, is_new: bool) -> Iterator[str]:
    """Yield when and why a golden was accepted, and the contents of a new one."""
    if is_new:
        roots = ", ".join(name.replace("_", " ") for name in golden.roots if name != WHOLE_STEP)
        curve = ", ".join(common_names(golden.curve)) or "no values"
        steps = count(len(golden.steps), "step")
        yield f"golden of {steps}: digests of each step and its {one_line(roots)}; curve of {one_line(curve)}"
    for newest in golden.history[-1:]:
        yield f"accepted on {newest.date} at {newest.commit}: {one_line(newest.reason)}"


def rounding_lines(rounding: Rounding) -> Iterator[str]:
    """Yield the first differing tensor, the one that differs most, and by how much relative to its elements."""
    if not rounding.num_different:  # tokens and texts alone
        return
    first, largest = (
        f"{one_line(name)} by {f'up to {ulp:,} ulp' if ulp <= MAX_ULP else 'more than rounding'}"
        for name, ulp in ((rounding.first, rounding.first_ulp), (rounding.name, rounding.max_ulp))
    )
    counted = f"tensors of step {rounding.step}: {rounding.num_different:,} of {rounding.num_compared:,} differ"
    yield f"{counted}, first {first}" + (" (the largest)" if first == largest else f", largest {largest}")
    if rounding.phase and rounding.is_rounding:  # else it is the reason
        share = f"{100 * rounding.share:.3g} % of the largest element of its phase"
        yield f"largest difference before the optimizer: {share}, in {rounding.phase}"


def _decision(gate: Gate, colour: bool) -> Iterator[str]:
    if gate.interrupted_by:
        yield f"interrupted by {gate.interrupted_by}: no verdict"
        return
    if not gate.failures:
        yield f"\x1b[32mpassed\x1b[0m: {summary_line(gate)}" if colour else f"passed: {summary_line(gate)}"
        return
    label = "\x1b[1;31mFAILED\x1b[0m" if colour else "FAILED"
    for name, reasons in gate.failures.items():
        yield f"{label}  {one_line(name)}: {', '.join(reasons)}"
    yield f"  the gate fails on {failing_changes(gate)}"


def failing_changes(gate: Gate) -> str:
    """Return what fails the gate: behaviour, numerics and scenarios that do not run."""
    changes = ", ".join(gate.fail_on)
    return f"{changes} and scenarios that do not run" if changes else "scenarios that do not run"


def summary_line(gate: Gate) -> str:
    """2 equal, 1 numerics only."""
    changes = [each.comparison.change for each in gate.scenarios]
    return ", ".join(f"{changes.count(each)} {LABELS[each].lower()}" for each in Change if each in changes)


def gate_json(gate: Gate) -> dict[str, Any]:
    """Return the same in plain values only."""
    return {
        "version": VERSION,
        "exit_code": int(gate.exit_code),
        **{name: serialised(getattr(gate, name)) for name in ("interrupted_by", "base", "fail_on", "failures")},
        "head": {**asdict(gate.head), "is_dirty": gate.is_dirty},
        "directory": str(gate.directory),
        "notes": [str(note) for note in gate.notes],
        "note_codes": serialised(gate.notes),
        "scenarios": [_scenario_json(scenario) for scenario in gate.scenarios],
    }


def _scenario_json(scenario: GateScenario) -> dict[str, Any]:
    comparison = scenario.comparison
    verdict = comparison.verdict
    rounding = comparison.rounding
    notes = (*comparison.notes, *scenario.notes)
    return {
        "name": scenario.name,
        "change": comparison.change.value,
        "against": scenario.against,
        "place": comparison.place,
        "reasons": [str(reason) for reason in comparison.reasons],
        "reason_codes": serialised(comparison.reasons),
        "notes": [str(note) for note in notes],
        "note_codes": serialised(notes),
        "verdict": verdict and verdict_json(verdict, exit_code=EXIT_CODES[verdict.kind]),
        "rounding": rounding and {**asdict(rounding), "share": _finite(rounding.share)},
        "golden": scenario.golden and [asdict(each) for each in scenario.golden.history],
        "output": scenario.output and str(scenario.output),
        "output_tail": output_tail(scenario.output) if scenario.output else [],
    }


def _finite(number: float) -> float | None:
    """JSON has no infinities: null."""
    return number if isfinite(number) else None
