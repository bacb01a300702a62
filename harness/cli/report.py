"""`rlharness report`: one HTML page that shows where and how runs diverge.

TRACE|RUN... ─▶ subjects ─▶ a verdict on each but the first ─▶ page ─▶ FILE.html, put in place whole
"""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from harness.bits.errors import UsageError
from harness.bits.exit_codes import ExitCode
from harness.cli import options as opt
from harness.process.invocation import Invocation
from harness.render.console import show

if TYPE_CHECKING:
    from harness.lab.report.subjects import Report

MARK_BYTES = 4096
"""Number of bytes at the beginning of a file that are searched for the mark of a report."""
_RUN = re.compile(r"run-(\d+)")


@click.command(epilog="TRACE is written by trace, RUN by train or replay, whose directory stands for all its runs.")
@click.argument("traces", metavar="TRACE|RUN...", nargs=-1, required=True, type=opt.PATH)
@opt.option("--out FILE", "File for the page; replaces an earlier report.", opt.PATH, default="report.html")
@opt.json_flag
@click.pass_obj
def report(invocation: Invocation, /, *, traces: tuple[str, ...], out: str, is_json: bool) -> int:
    """Write one HTML page that shows where and how runs diverge.

    The page is self-contained: it needs no network and no server.
    """

    from harness.bits.files import open_regular, write_replacing
    from harness.bits.text import count, one_line, path_text
    from harness.lab.experiment.preparation import place_of
    from harness.render.divergence import LABELS, headline
    from harness.render.report_page import GENERATOR, page
    from harness.render.serialise import attributes, serialised

    path = place_of(invocation.cwd, out)
    found = read_report(invocation.cwd, traces)
    data = page(found).encode("utf-8", "backslashreplace")
    try:
        if path.exists():
            with open_regular(path, follows_links=True) as file:
                if GENERATOR.encode() not in file.read(MARK_BYTES):
                    what = f"{path_text(path)} exists and is not a report"
                    raise UsageError(what, remedy="choose another file with --out, or delete this one")
        path.parent.mkdir(parents=True, exist_ok=True)
        write_replacing(path, data)
    except OSError as error:
        raise opt.unwritable("the report", path, error) from None
    if is_json:
        runs = [{**attributes(each, "letter", "name"), "gaps": list(each.trace.gaps)} for each in found.subjects]
        pairs = [{"a": each.a.letter, "b": each.b.letter, **serialised(each.verdict)} for each in found.pairs]
        head = {"version": 1, "exit_code": int(ExitCode.OK), "page": str(path), "size_bytes": len(data)}
        opt.show_json({**head, "runs": runs, "comparisons": pairs})
        return ExitCode.OK
    for each in found.pairs:
        show(f"{each.b.letter}: {one_line(each.b.name)}  {LABELS[each.verdict.kind]}  {headline(each.verdict)}")
    if not found.pairs:
        (only,) = found.subjects
        steps = count(len(only.trace.steps), "step")
        show(f"A: {one_line(only.name)}, {steps}, no other run to compare with")
    for subject in found.subjects:
        for gap in subject.trace.gaps:
            show(f"  {subject.letter} is incomplete: {one_line(gap)}")
        for damage in subject.trace.damages:
            show(f"  note: {subject.letter}: {one_line(damage)}")
    show(f"{path_text(path)}: {len(data) / 1e3:,.0f} kB, opens in any browser")
    return ExitCode.OK


def read_report(cwd: Path, typed: Sequence[str]) -> "Report":
    """Read the runs that were typed, and compare each with the first; the directory of a replay stands for its runs."""
    from harness.bits.text import path_text
    from harness.lab.experiment.preparation import place_of
    from harness.lab.report.subjects import Pair, Report, Subject, letter
    from harness.trace.diff import diff
    from harness.trace.format import MANIFEST, log_name
    from harness.trace.reader import read_trace

    names: list[str] = []
    for each in typed:
        # The page shows the path, and suggested commands contain it.
        name = path_text(place_of(cwd, each)) if ".." in Path(each).parts else each
        is_trace = any((cwd / name / file).exists() for file in (MANIFEST, log_name(0)))
        runs = {int(found[1]): path.name for path in (cwd / name).glob("run-*") if (found := _RUN.fullmatch(path.name))}
        names += [name] if is_trace or not runs else [f"{name.rstrip('/')}/{runs[number]}" for number in sorted(runs)]
    subjects = [Subject(letter(at), name, read_trace(cwd / name)) for at, name in enumerate(names)]
    first = subjects[0]
    return Report(tuple(subjects), tuple(Pair(first, each, diff(first.trace, each.trace)) for each in subjects[1:]))
