"""`rlharness diff` from arguments to exit code."""

import json
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from harness.bits.errors import UsageError
from harness.bits.exit_codes import ExitCode
from harness.bits.findings import Finding
from harness.bits.text import path_text
from harness.lab.report.subjects import Pair, Subject
from harness.process.invocation import Invocation, wants_colour
from harness.render.console import show
from harness.render.divergence import verdict_json, verdict_text
from harness.render.report.next_commands import next_lines
from harness.trace.diff import diff
from harness.trace.excerpt import excerpt
from harness.trace.reader import read_trace
from harness.trace.resumption import align
from harness.trace.verdict import EXIT_CODES

_SPAN = re.compile(r"(\d{1,18})(?:-(\d{1,18}))?")


def span_of(text: str) -> tuple[int, int]:
    """(first, last) of "7" or "10-19"; UsageError for any other text."""
    match = _SPAN.fullmatch(text.strip())
    first, last = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
    if first > last:
        raise UsageError(f"--steps {text}", legal="a step or a range of steps: 7, 10-19")
    return first, last


def run_diff(invocation: Invocation, arguments: Mapping[str, Any]) -> ExitCode:
    """Carry out `rlharness diff`; raises TraceError for a user error."""
    a, b = (read_trace(Path(path_text(invocation.cwd / arguments[side]))) for side in ("a", "b"))
    notes: tuple[Finding, ...] = ()
    if (shift := arguments["shift"]) is not None:
        a, b, note = align(a, b, shift)
        notes = (note,)
    if (text := arguments["steps"]) is not None:
        first, last = span_of(text)
        a, b = excerpt(a, first, last), excerpt(b, first, last)
    verdict = diff(a, b)
    verdict = replace(verdict, notes=(*notes, *verdict.notes))
    pair = Pair(Subject("A", str(arguments["a"]), a), Subject("B", str(arguments["b"]), b), verdict)
    code = EXIT_CODES[verdict.kind]
    if arguments["json"]:
        show(json.dumps(verdict_json(verdict, exit_code=code)))
    else:
        colour = wants_colour(arguments["color"], invocation)
        show(verdict_text(verdict, colour=colour))
        for line in next_lines(pair):
            show(f"  {line}")
    return code
