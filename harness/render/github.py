"""Output of a gate on GitHub Actions: annotations beside the job's log, and a summary of the job.

Annotations are workflow commands, lines that the runner reads from what a step prints; the summary is Markdown in the
file that GITHUB_STEP_SUMMARY names.
"""

import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from html import escape
from pathlib import Path

from harness.core.text import one_line
from harness.lab.gate.change import Change
from harness.lab.gate.result import Gate, GateScenario
from harness.render.console import say
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
from harness.render.gate_reasons import reason_text
from harness.runner.retries import flaky_tests
from harness.runner.stats import RunState
from harness.runner.units import Outcome

SUMMARY_VARIABLE = "GITHUB_STEP_SUMMARY"
MAX_BYTES = 2**20
"""A summary with more is refused as a whole."""
SIGNS = {Change.EQUAL: "✅", Change.NEW: "✅", Change.ACCEPTED: "✅", Change.NUMERICS: "🟡", Change.CONFIGURATION: "🟡"}
UNREMARKABLE = (Change.EQUAL, Change.NEW, Change.ACCEPTED)
"""Changes without an annotation."""


def is_on_github(environ: Mapping[str, str]) -> bool:
    """Whether this is a job of GitHub Actions."""
    return environ.get("GITHUB_ACTIONS") == "true"


def annotations(gate: Gate) -> Iterator[str]:
    """A workflow command for each scenario that fails the gate, or is not what it was."""
    for scenario in gate.scenarios:
        change = scenario.finding.change
        is_failure = scenario.name in gate.failures
        if not is_failure and change in UNREMARKABLE:
            continue
        title = f"{scenario.name}: {_title(gate, scenario)}"
        text = "\n".join([f"{LABELS[change]}{where(scenario)}", *detail_lines(scenario)])
        yield command("error" if is_failure else "warning", text, title=title)


def flaky_annotations(state: RunState) -> Iterator[str]:
    """Yield a warning for each flaky file of a run."""
    for result in state.with_outcome(Outcome.FLAKY):
        tests = flaky_tests(result)
        text = "\n".join([*tests, *(f"{each.outcome.value}: {each.reason}" for each in result.attempts), result.reason])
        yield command("warning", text, title=f"flaky: {one_line(result.unit.path)}", file=result.unit.path)


def annotate(gate: Gate) -> None:
    """Say the annotations on standard error, which GitHub reads as well: standard output may be JSON."""
    say_lines(annotations(gate))


def say_lines(lines: Iterable[str]) -> None:
    """Print workflow commands on standard error."""
    with suppress(OSError, ValueError):  # standard error is closed
        for line in lines:
            print(line, file=sys.stderr, flush=True)


def command(kind: str, message: str, **properties: str) -> str:
    """A workflow command; what would end it, or one of its properties, is written as GitHub reads it back."""
    told = ",".join(f"{name}={_escaped(value, ',:')}" for name, value in properties.items())
    return f"::{kind}{' ' if told else ''}{told}::{_escaped(message)}"


def _escaped(text: str, others: str = "") -> str:
    return "".join(f"%{ord(each):02X}" if each in f"%\r\n{others}" else each for each in text)


def _title(gate: Gate, scenario: GateScenario) -> str:
    return ", ".join(gate.failures.get(scenario.name, ())) or LABELS[scenario.finding.change].lower()


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
        if scenario.finding.change is not Change.EQUAL or scenario.name in gate.failures:
            title = f"{one_line(scenario.name)}: {_title(gate, scenario)}"
            told = list(detail_lines(scenario))
            lines += [f"<details><summary>{escape(title)}</summary>", "", *_fenced(told), "", "</details>", ""]
    lines += [f"- {plain(reason_text(note))}" for note in gate.notes]
    if gate.failures:
        lines += ["", f"The gate fails on {failing_changes(gate)}."]
    return "\n".join(lines) + "\n"


def _row(scenario: GateScenario) -> str:
    change = scenario.finding.change
    label = f"{SIGNS.get(change, '❌')} {LABELS[change].lower()}"
    cost = next(map(cost_line, shown_costs(scenario)), "")
    return f"| {plain(scenario.name)} | {label} | {plain(where(scenario).removeprefix(': '))} | {plain(cost)} |"


def _fenced(lines: list[str]) -> list[str]:
    """Lines as they are; the fence is longer than any in them."""
    longest = max((len(run) for line in lines for run in re.findall("`+", line)), default=0)
    fence = "`" * max(3, longest + 1)
    return [f"{fence}text", *lines, fence]


def plain(text: str) -> str:
    """Return text escaped for Markdown and HTML, on one line."""
    return re.sub(r"([\\`*_\[\]|~])", r"\\\1", escape(one_line(text), quote=False))


def append_summary(gate: Gate, environ: Mapping[str, str]) -> None:
    """Add the summary to the job's; what cannot be written is said, and is no reason to fail."""
    if not (path := environ.get(SUMMARY_VARIABLE)):
        return
    data = summary(gate).encode("utf-8", "backslashreplace")
    if len(data) > MAX_BYTES:
        data = f"### rlharness gate\n\n{plain(summary_line(gate))}; the full summary exceeds the size limit.\n".encode()
    try:
        with Path(path).open("ab") as file:
            file.write(data)
    except OSError as error:
        say(f"the job's summary cannot be written to {path}: {error.strerror}")
