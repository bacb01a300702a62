"""`rlharness report` from arguments to a page: traces are read, each is compared with the first, one file is written.

TRACE|RUN... ─▶ subjects ─▶ a verdict on each but the first ─▶ page ─▶ FILE.html, put in place whole
"""

import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from harness.bits.errors import UsageError
from harness.bits.exit_codes import ExitCode
from harness.bits.files import open_regular, write_replacing
from harness.bits.text import count, one_line, path_text
from harness.lab.experiments.preparation import place_of
from harness.lab.report.subjects import Pair, Report, Subject, letter
from harness.process.invocation import Invocation
from harness.render.console import say, show
from harness.render.divergence import LABELS, headline, verdict_json
from harness.render.report.page import GENERATOR, page
from harness.trace.diff import diff
from harness.trace.layout import MANIFEST, log_name
from harness.trace.reader import Trace, read_trace
from harness.trace.verdict import EXIT_CODES

VERSION = 1
LARGE_BYTES = 2**28
MARK_BYTES = 4096
"""Number of bytes at the beginning of a file that are searched for the mark of a report."""
_RUN = re.compile(r"run-(\d+)")


def run_report(invocation: Invocation, arguments: Mapping[str, Any]) -> ExitCode:
    """Carry out `rlharness report`; raises UsageError and TraceError for user errors."""
    out = place_of(invocation.cwd, arguments["out"])
    _check_out(out)
    report = read_report(invocation.cwd, arguments["traces"])
    size_bytes = _write(out, page(report))
    if arguments["json"]:
        show(json.dumps(report_json(report, out, size_bytes)))
    else:
        show("\n".join([*_lines(report), f"{path_text(out)}: {size_bytes / 1e3:,.0f} kB, opens in any browser"]))
    return ExitCode.OK


def read_report(cwd: Path, typed: Sequence[str]) -> Report:
    """Read the runs that were typed and compare them; the directory of a replay stands for its runs."""
    names = [name for each in typed for name in _traces_of(cwd, _without_detours(cwd, each))]
    subjects = [Subject(letter(at), name, _read(cwd, name)) for at, name in enumerate(names)]
    first = subjects[0]
    return Report(tuple(subjects), tuple(Pair(first, each, diff(first.trace, each.trace)) for each in subjects[1:]))


def _read(cwd: Path, name: str) -> Trace:
    """Read a trace; report first that a large one takes a while."""
    size_bytes = sum(path.stat().st_size for path in (cwd / name).glob("rank-*.log"))
    if size_bytes >= LARGE_BYTES:
        say(f"{one_line(name)} is large ({size_bytes / 1e6:,.0f} MB): reading and comparing it takes a while")
    return read_trace(cwd / name)


def _without_detours(cwd: Path, typed: str) -> str:
    """Return a typed path without `..` in it: the page shows it, and suggested commands contain it."""
    return path_text(place_of(cwd, typed)) if ".." in Path(typed).parts else typed


def _traces_of(cwd: Path, typed: str) -> list[str]:
    """Return the typed trace, or the runs of the directory of a replay, without those that record operations."""
    directory = cwd / typed
    if any((directory / name).exists() for name in (MANIFEST, log_name(0))):
        return [typed]
    runs = {int(found[1]): path.name for path in directory.glob("run-*") if (found := _RUN.fullmatch(path.name))}
    return [os.path.join(typed, runs[number]) for number in sorted(runs)] or [typed]


def _lines(report: Report) -> Iterator[str]:
    """Yield a line for each verdict, or the length of a single run, then missing and damaged parts."""
    for pair in report.pairs:
        yield f"{pair.b.letter}: {one_line(pair.b.name)}  {LABELS[pair.verdict.kind]}  {headline(pair.verdict)}"
    if not report.pairs:
        (only,) = report.subjects
        steps = count(len(only.trace.steps), "step")
        yield f"A: {one_line(only.name)}, {steps}, no other run to compare with"
    for subject in report.subjects:
        for gap in subject.trace.gaps:
            yield f"  {subject.letter} is incomplete: {one_line(gap)}"
        for damage in subject.trace.damages:
            yield f"  note: {subject.letter}: {one_line(damage)}"


def report_json(report: Report, out: Path, size_bytes: int) -> dict[str, Any]:
    """Return the comparisons and the path of the page as plain values."""
    return {
        "version": VERSION,
        "exit_code": int(ExitCode.OK),
        "page": str(out),
        "size_bytes": size_bytes,
        "runs": [{"letter": each.letter, "name": each.name, "gaps": list(each.trace.gaps)} for each in report.subjects],
        "comparisons": [
            {
                "a": pair.a.letter,
                "b": pair.b.letter,
                **verdict_json(pair.verdict, exit_code=EXIT_CODES[pair.verdict.kind]),
            }
            for pair in report.pairs
        ],
    }


# ------------------------------------------------------------------------------------------------------------- the file


def _check_out(out: Path) -> None:
    """Raise UsageError for a directory, and for a file that is not a report and may be worth keeping."""
    if out.is_dir():
        raise UsageError(
            f"{path_text(out)} is a directory", legal="a file, new or an earlier report", remedy="--out FILE.html"
        )
    if out.exists() and GENERATOR.encode() not in _beginning(out):
        raise UsageError(
            f"{path_text(out)} exists and is not a report",
            legal="a new file, or an earlier report, which is replaced",
            remedy="choose another file with --out, or delete this one",
        )


def _beginning(path: Path) -> bytes:
    try:
        with open_regular(path, follows_links=True) as file:
            return file.read(MARK_BYTES)
    except OSError as error:
        raise UsageError(
            f"{path_text(path)} cannot be read: {error.strerror}",
            legal="an earlier report, which is replaced",
            remedy="choose another file with --out",
        ) from None


def _write(out: Path, text: str) -> int:
    """Write a page atomically and return its size in bytes; raises UsageError, and leaves nothing, if that fails."""
    data = text.encode("utf-8", "backslashreplace")
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        write_replacing(out, data)
    except OSError as error:
        raise UsageError(
            f"the report cannot be written to {path_text(out)}: {error.strerror}",
            legal="a file in a directory that can be written to",
            remedy="choose another file with --out",
        ) from None
    return len(data)
