"""Output of `rlharness bisect`: the first bad commit or version, and its first difference; or JSON."""

import shlex
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from harness.bits.text import count, one_line, path_text
from harness.lab.bisect.bisection import Bisection, Outcome, Probe
from harness.render.divergence import attribution_lines, headline, verdict_json
from harness.trace.verdict import EXIT_CODES

VERSION = 1
MAX_CANDIDATES = 20
"""Maximum number of listed candidates for the first bad one."""


def bisection_text(found: Bisection, *, colour: bool) -> str:
    """Return the answer, then the difference, then the probes."""
    return "\n".join(_lines(found, colour))


def _lines(found: Bisection, colour: bool) -> Iterator[str]:
    is_one = len(found.candidates) == 1
    label = "FIRST BAD" if is_one else "ONE OF THESE IS THE FIRST BAD"
    label = f"\x1b[1;31m{label}\x1b[0m" if colour else label
    if found.interrupted_by:
        yield f"interrupted by {found.interrupted_by}; results so far:"
    yield f"{label}  {one_line(found.found.label)}" if is_one else label
    if not is_one:
        shown = found.candidates[:MAX_CANDIDATES]
        yield from (f"  {one_line(probe.label)}  ({one_line(probe.reason)})" for probe in shown)
        if more := len(found.candidates) - len(shown):
            yield f"  and {more:,} more"
    elif found.commit is not None:
        yield f"  {found.commit.name}, {one_line(found.commit.author)}, {found.commit.date}"
    if is_one:
        yield f"  {one_line(found.found.reason)}"
    if found.verdict.first is not None:
        whose = "" if is_one else f" of {one_line(found.found.label)}"
        yield f"  first difference{whose} from {one_line(found.last_good.label)}: {headline(found.verdict)}"
        yield from (f"    {line}" for line in attribution_lines(found.verdict))
    yield f"  {_effort(found)}"
    if found.verdict.first is not None:
        sides = [path_text(probe.directory) for probe in (found.last_good, found.found) if probe.directory]
        yield f"  look closer: {shlex.join(['rlharness', 'diff', *sides])}"
    yield f"  traces: {shlex.quote(path_text(found.directory))}"


def _effort(found: Bisection) -> str:
    """3 probes between 4a5b6c7 and 8d9e0f1, 1 of them skipped."""
    skipped = [probe for probe in found.probes if probe.outcome is Outcome.SKIP]
    line = f"{count(len(found.probes), 'probe')} between {_short(found.good)} and {_short(found.bad)}"
    if skipped:
        names = ", ".join(f"{_short(probe)} ({one_line(probe.reason, 80)})" for probe in skipped)
        line += f"; could not be run: {names}"
    return line


def _short(probe: Probe) -> str:
    """The first word of a commit, the whole of a version."""
    return probe.label if probe.label.endswith(probe.name) else probe.label.split()[0]


def bisection_json(found: Bisection) -> dict[str, Any]:
    """The same in plain values only."""
    return {
        "version": VERSION,
        "exit_code": int(found.exit_code),
        "interrupted_by": found.interrupted_by,
        "scenario": found.scenario,
        "by": found.criterion.text,
        "found": _probe_json(found.found),
        "commit": found.commit and asdict(found.commit),
        "candidates": [_probe_json(probe) for probe in found.candidates],
        "last_good": _probe_json(found.last_good),
        "good": _probe_json(found.good),
        "bad": _probe_json(found.bad),
        "num_probes": len(found.probes),
        "probes": [_probe_json(probe) for probe in found.probes],
        "verdict": verdict_json(found.verdict, exit_code=EXIT_CODES[found.verdict.kind]),
        "directory": str(found.directory),
    }


def _probe_json(probe: Probe) -> dict[str, Any]:
    return {
        "name": probe.name,
        "told": probe.label,
        "outcome": probe.outcome.value,
        "reason": probe.reason,
        "directory": probe.directory and str(probe.directory),
    }
