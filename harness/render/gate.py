"""Output of `rlharness gate`: a verdict on each scenario, and what of that fails: text, JSON, or for GitHub.

On GitHub Actions: an annotation per scenario that needs attention, and the summary of the job.
"""

import shlex
from collections.abc import Iterator, Mapping
from typing import Any

from harness.bits.findings import FindingCode
from harness.bits.redaction import redact_argv
from harness.bits.text import count, one_line, path_text
from harness.lab.gate.change import CODE_OF_KIND, Change, Rounding
from harness.lab.gate.gate import Gate, GateScenario
from harness.render.console import painted
from harness.render.divergence import changed_lines, headline, unchanged_lines
from harness.render.github import append_to_summary, command, fenced, plain, say_lines
from harness.render.replay import ending_lines, rare_events_line
from harness.render.serialise import attributes, result_json, serialised

UNREMARKABLE = (Change.EQUAL, Change.NEW, Change.ACCEPTED)
"""Changes without an annotation."""


def annotations(gate: Gate) -> Iterator[str]:
    """A workflow command for each scenario that fails the gate, or is not what it was."""
    for scenario in gate.scenarios:
        change = scenario.comparison.change
        is_failure = scenario.name in gate.failures
        if not is_failure and change in UNREMARKABLE:
            continue
        reasons = ", ".join(gate.failures.get(scenario.name, ())) or LABELS[change].lower()
        title = f"{scenario.name}: {reasons}"
        text = "\n".join([f"{LABELS[change]}{where(scenario)}", *detail_lines(scenario)])
        yield command("error" if is_failure else "warning", text, title=title)


def annotate(gate: Gate) -> None:
    """Say the annotations on standard error, which GitHub reads as well: standard output may be JSON."""
    say_lines(annotations(gate))


def append_summary(gate: Gate, environ: Mapping[str, str]) -> None:
    """Add the report to the summary of the job; the counts alone if it is too large."""
    decision = "failed" if gate.failures else "passed"
    head = f"### rlharness gate: {(gate.interrupted_by and 'interrupted') or decision}\n\n"
    text = "\n".join(fenced(gate_text(gate, colour=False).splitlines()))
    append_to_summary(f"{head}{text}\n", environ, short=f"{head}{plain(summary_line(gate))}\n")


LABELS = {each: each.value.upper().replace("_", " ") for each in Change} | {
    Change.NUMERICS: "NUMERICS ONLY",
    Change.BEHAVIOUR: "BEHAVIOUR CHANGED",
    Change.CONFIGURATION: "CONFIGURATION CHANGED",
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
    change = scenario.comparison.change
    label = painted(LABELS[change], TONES.get(change, YELLOW), colour)
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
    base, head = (gate.directory / scenario.name.replace("/", "-") / side / "run-1" for side in ("base", "head"))
    sides = (scenario.golden.trace.directory if scenario.golden else base), head
    yield f"look closer: {shlex.join(['rlharness', 'diff', *map(path_text, sides)])}"
    if gate.bisect and scenario.name in gate.failures and scenario.golden is None:
        yield f"find the commit: {shlex.join(redact_argv([*gate.bisect, *scenario.replay]))}"


def where(scenario: GateScenario) -> str:
    """: 12 steps, every recorded bit; : step 3, backward layers.0.weight. Nothing where nothing was compared."""
    comparison = scenario.comparison
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
        if comparison.change is Change.ACCEPTED:
            yield f"golden of {count(len(scenario.golden.trace.steps), 'step')}"
        newest = scenario.golden.history[-1]
        yield f"accepted on {newest.date} at {newest.commit}: {one_line(newest.reason)}"
    if verdict and comparison.change is Change.EQUAL:
        yield rare_events_line(verdict.num_steps, 2)
    for note in (*comparison.notes, *scenario.notes):
        yield f"note: {one_line(str(note))}"


def rounding_lines(rounding: Rounding) -> Iterator[str]:
    """Yield the tensor that differs most, and by how much relative to its elements."""
    if not rounding.num_different:  # tokens and texts alone
        return
    ulp = f"up to {rounding.max_ulp:,} ulp" if rounding.max_ulp <= MAX_ULP else "more than rounding"
    counted = f"tensors of step {rounding.step}: {rounding.num_different:,} of {rounding.num_compared:,} differ"
    yield f"{counted}, most of all {one_line(rounding.name)}, by {ulp}"
    if rounding.phase and rounding.is_rounding:  # else it is the reason
        share = f"{100 * rounding.share:.3g} % of the largest element of its phase"
        yield f"largest difference before the optimizer: {share}, in {rounding.phase}"


def _decision(gate: Gate, colour: bool) -> Iterator[str]:
    if gate.interrupted_by:
        yield f"interrupted by {gate.interrupted_by}: no verdict"
        return
    if not gate.failures:
        yield f"{painted('passed', '32', colour)}: {summary_line(gate)}"
        return
    label = painted("FAILED", "1;31", colour)
    for name, reasons in gate.failures.items():
        yield f"{label}  {one_line(name)}: {', '.join(reasons)}"
    yield f"  the gate fails on {', '.join([*gate.fail_on, 'scenarios that do not run'])}"


def summary_line(gate: Gate) -> str:
    """2 equal, 1 numerics only."""
    changes = [each.comparison.change for each in gate.scenarios]
    return ", ".join(f"{changes.count(each)} {LABELS[each].lower()}" for each in Change if each in changes)


def gate_json(gate: Gate) -> dict[str, Any]:
    """Return the same in plain values."""
    head = {**serialised(gate.head), "is_dirty": gate.is_dirty}
    scenarios = []
    for scenario in gate.scenarios:
        found, own = serialised(scenario.comparison), attributes(scenario, "name", "against", "output", "notes")
        notes = {name: found[name] + own[name] for name in ("notes", "note_codes")}
        golden = scenario.golden and serialised(scenario.golden.history)
        scenarios.append({**found, **own, **notes, "golden": golden})
    names = ("interrupted_by", "base", "fail_on", "failures", "directory", "notes")
    return result_json(gate, *names, head=head, scenarios=scenarios)
