"""The results as a table for people, as JSON, and in DESIGN.md between two markers."""

import json
import os
import platform
import re
from collections import Counter
from collections.abc import Mapping
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from tests.benchmarks.mutations.runner import Results
from tests.benchmarks.mutations.trials import GATE, NOTHING, Finding

HEAD = "| fault | seen in | found by | step | said to lie in | right |\n|---|---|---|---|---|---|"


def as_json(results: Results, took_s: float) -> str:
    """Everything, for programs."""
    told = {
        "version": 1,
        "seconds": round(took_s, 1),
        "faults": [_fields(each) for each in results.findings],
        "honest_pairs": results.num_pairs,
        "false_alarms": list(results.alarms),
        "shortcomings": results.shortcomings,
    }
    return json.dumps(told, indent=1)


def as_text(results: Results, took_s: float) -> str:
    """A line a fault, then the sums."""
    lines = [
        f"{each.fault.name:32} {each.check:8} {_steps(each):>6}  {'|'.join(each.phases) or '-':16}"
        f" {'right' if each.is_localised else 'WRONG':6} {each.how}"
        for each in results.findings
    ]
    return "\n".join([*lines, "", summary(results, took_s), *results.shortcomings])


def as_markdown(results: Results, took_s: float) -> str:
    """The table with its date, versions and sums."""
    machine = (
        f"Python {platform.python_version()}, torch {version('torch')}, {platform.machine()}, {os.cpu_count()} cores"
    )
    rows = [
        f"| {each.fault.name}: {each.fault.about} | {each.fault.source} | {_found_by(each)} | {_steps(each)} |"
        f" {' or '.join(each.phases) or '-'}{f', `{each.leaf}`' if each.leaf else ''} |"
        f" {'yes' if each.is_localised else 'no'} |"
        for each in results.findings
    ]
    dated = f"{datetime.now(UTC):%Y-%m-%d}, {machine}."
    return "\n".join([f"{dated} {summary(results, took_s)}", "", HEAD, *rows])


def summary(results: Results, took_s: float) -> str:
    """The sums in two sentences; faults that move no bit are not among those to be found."""
    found = [each for each in results.findings if not each.fault.is_harmless]
    num_harmless = len(results.findings) - len(found)
    checks = Counter(each.check for each in found)
    by_check = ", ".join(
        f"{checks[check]} by {check}" for check in ("engine", "replay", "chaos", "gate") if checks[check]
    )
    late = sum(each.steps_after is not None and each.steps_after > 1 for each in found)
    return (
        f"{len(found) - checks['nothing']} of {len(found)} faults found ({by_check}), {late} later than a step after"
        f" their first effect, {sum(each.is_localised for each in found)} localised;"
        f"{f' {num_harmless} more move no bit;' if num_harmless else ''} {len(results.alarms)} false alarms"
        f" in {results.num_pairs} honest pairs; {took_s:.0f} s."
    )


def markers(collection: str) -> tuple[str, str]:
    """Return what stands before and after the table of a collection."""
    return f"<!-- mutations: {collection}: begin -->", f"<!-- mutations: {collection}: end -->"


def write_into(path: Path, collection: str, results: Results, took_s: float) -> None:
    """Put the table of a collection between its markers in a document; ValueError where it has none."""
    text = path.read_text("utf-8")
    begin, end = markers(collection)
    between = re.compile(f"{re.escape(begin)}.*?{re.escape(end)}", re.DOTALL)
    if not between.search(text):
        raise ValueError(f"{path} has no {begin} and {end}")
    made = f"{begin}\n{as_markdown(results, took_s)}\n{end}"
    path.write_text(between.sub(lambda _: made, text), "utf-8")


def _fields(finding: Finding) -> Mapping[str, Any]:
    fault = finding.fault
    return {
        "name": fault.name,
        "source": fault.source,
        "about": fault.about,
        "found_by": finding.check,
        "how": finding.how,
        "what": finding.what,
        "phases": list(finding.phases),
        "leaf": finding.leaf,
        "right_phases": list(fault.phases),
        "is_localised": finding.is_localised,
        "step": finding.step,
        "steps_after_first_effect": finding.steps_after,
        "num_reached": finding.num_reached,
        "num_runs": finding.num_runs,
        "needs_golden": finding.check == GATE,
    }


def _found_by(finding: Finding) -> str:
    """Return the check and what it said; the gate needs a trace of the engine as it was before the fault."""
    if finding.check == NOTHING:
        return "nothing: no bit depends on it" if finding.fault.is_harmless else "**nothing**"
    if finding.check == GATE:
        return f"{finding.check}, a second revision alone" + (f": {later}" if (later := _later(finding)) else "")
    return f"{finding.check}: {finding.how}"


def _later(finding: Finding) -> str:
    """Return what found it too late, if another check did."""
    return finding.how.partition("; ")[2]


def _steps(finding: Finding) -> str:
    """Return the step that is named, and how many steps after its first effect it is."""
    if finding.step is None:
        return "-" if finding.steps_after is None else "start"
    return f"{finding.step}{f' (+{finding.steps_after})' if finding.steps_after else ''}"
