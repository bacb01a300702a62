"""Output of `rlharness bisect`: the first bad commit or version, and its first difference; or JSON."""

import shlex
from collections.abc import Iterator
from typing import Any

from harness.bits.text import count, one_line, path_text
from harness.lab.bisect.bisection import Bisection, Outcome
from harness.render.console import at_most, painted
from harness.render.divergence import attribution_lines, headline
from harness.render.serialise import result_json

MAX_CANDIDATES = 20
"""Maximum number of listed candidates for the first bad one."""


def bisection_text(found: Bisection, *, colour: bool) -> str:
    """Return the answer, then the difference, then the probes."""
    return "\n".join(_lines(found, colour))


def _lines(found: Bisection, colour: bool) -> Iterator[str]:
    is_one = len(found.candidates) == 1
    label = "FIRST BAD" if is_one else "ONE OF THESE IS THE FIRST BAD"
    label = painted(label, "1;31", colour)
    if found.interrupted_by:
        yield f"interrupted by {found.interrupted_by}; results so far:"
    yield f"{label}  {one_line(found.found.label)}" if is_one else label
    if not is_one:
        candidates = [f"{one_line(probe.label)}  ({one_line(probe.reason)})" for probe in found.candidates]
        yield from (f"  {line}" for line in at_most(candidates, MAX_CANDIDATES))
    elif found.commit is not None:
        yield f"  {found.commit.name}, {one_line(found.commit.author)}, {found.commit.date}"
    if is_one:
        yield f"  {one_line(found.found.reason)}"
    if found.verdict.first is not None:
        whose = "" if is_one else f" of {one_line(found.found.label)}"
        yield f"  first difference{whose} from {one_line(found.last_good.label)}: {headline(found.verdict)}"
        yield from (f"    {line}" for line in attribution_lines(found.verdict))
    skipped = [f"{probe.label} ({probe.reason})" for probe in found.probes if probe.outcome is Outcome.SKIP]
    effort = f"{count(len(found.probes), 'probe')} between {found.good.label} and {found.bad.label}"
    yield "  " + one_line(effort + (f"; could not be run: {', '.join(skipped)}" if skipped else ""), 1000)
    if found.verdict.first is not None:
        sides = [path_text(probe.directory) for probe in (found.last_good, found.found) if probe.directory]
        yield f"  look closer: {shlex.join(['rlharness', 'diff', *sides])}"
    yield f"  traces: {shlex.quote(path_text(found.directory))}"


def bisection_json(found: Bisection) -> dict[str, Any]:
    """Return the same in plain values."""
    return result_json(found, num_probes=len(found.probes))
