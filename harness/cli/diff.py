"""`rlharness diff`: compare two traces."""

import re

import click

from harness.bits.errors import UsageError
from harness.cli import options as opt
from harness.process.invocation import Invocation
from harness.render.console import show

_SPAN = re.compile(r"(\d{1,18})(?:-(\d{1,18}))?")


@click.command()
@click.argument("a", type=opt.PATH)
@click.argument("b", type=opt.PATH)
@opt.option("--steps FIRST-LAST", "Compare only these steps, e.g. the part a resumed run shares with the original.")
@opt.option("--shift K", "B was resumed at step K of A, and counts from 0: its step 0 is A's step K.", opt.COUNT)
@opt.output
def diff(invocation: Invocation, output: opt.Output, /, *, a: str, b: str, steps: str | None, shift: int | None) -> int:
    """Compare two traces, and report the first difference.

    A step is recorded in phases: rollout (the batch that comes in), reward, advantage, forward, loss, backward
    (gradients), optimizer, sync. A value is one tensor, number or text of a phase. An ulp is the distance from one
    float to the next.

    Exits with 0 if they are equal, 10 if they diverge, 11 if they are not comparable, or 12 if one is incomplete.
    """
    from dataclasses import replace
    from pathlib import Path

    from harness.bits.text import path_text
    from harness.lab.report.subjects import Pair, Subject
    from harness.render.divergence import verdict_text
    from harness.render.next_commands import next_lines
    from harness.render.serialise import serialised
    from harness.trace.diff import diff as compare
    from harness.trace.reader import excerpt, read_trace
    from harness.trace.resumption import align
    from harness.trace.verdict import EXIT_CODES

    first, second = (read_trace(Path(path_text(invocation.cwd / side))) for side in (a, b))
    notes = []
    if shift is not None:
        first, second, note = align(first, second, shift)
        notes = [note]
    if steps is not None:
        span = span_of(steps)
        first, second = excerpt(first, *span), excerpt(second, *span)
    verdict = compare(first, second)
    verdict = replace(verdict, notes=(*notes, *verdict.notes))
    code = EXIT_CODES[verdict.kind]
    if output.is_json:
        opt.show_json(serialised(verdict))
        return code
    show(verdict_text(verdict, colour=output.colour))
    for line in next_lines(Pair(Subject("A", a, first), Subject("B", b, second), verdict)):
        show(f"  {line}")
    return code


def span_of(text: str) -> tuple[int, int]:
    """(first, last) of "7" or "10-19"; UsageError for any other text."""
    match = _SPAN.fullmatch(text.strip())
    first, last = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
    if first > last:
        raise UsageError(f"--steps {text}", legal="a step or a range of steps: 7, 10-19")
    return first, last
