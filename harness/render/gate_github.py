"""Output of a gate on GitHub Actions: an annotation per scenario that needs attention, and the summary of the job."""

from collections.abc import Iterator, Mapping

from harness.bits.text import one_line
from harness.lab.gate.change import Change
from harness.lab.gate.gate import Gate, GateScenario
from harness.render.gate import (
    LABELS,
    cost_line,
    detail_lines,
    failing_changes,
    shown_costs,
    sides_line,
    summary_line,
    where,
)
from harness.render.github import append_to_summary, command, folded, plain, say_lines

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
        "| scenario | | where | cost |",
        "|---|---|---|---|",
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
    cost = next(map(cost_line, shown_costs(scenario)), "")
    return f"| {plain(scenario.name)} | {label} | {plain(where(scenario).removeprefix(': '))} | {plain(cost)} |"


def append_summary(gate: Gate, environ: Mapping[str, str]) -> None:
    """Add the summary to that of the job; the counts alone if it is too large."""
    counts = plain(summary_line(gate))
    short = f"### rlharness gate\n\n{counts}; the full summary exceeds the size limit.\n"
    append_to_summary(summary(gate), environ, short=short)
