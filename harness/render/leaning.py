"""Output of `rlharness run --leaning`: the tests that a file leans on, the commands that show it; or JSON."""

import shlex
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from harness.core.text import count, one_line
from harness.runner.leaning import Leaning, LeaningKind, Probe

VERSION = 1
MAX_LISTED = 20
HEADS = {
    LeaningKind.PASSES_ALONE: "passes in a process of its own: it leans on nothing",
    LeaningKind.FAILS_ANYWAY: "fails in pytest's own order too: it leans on nothing before it",
    LeaningKind.LEANS: "fails in a process of its own, and passes after",
    LeaningKind.LEFT_BEHIND: "failed in a process of its own, and passes there once the files before it have run:"
    " something that they left behind outlives their process",
    LeaningKind.UNSTABLE: "gave different outcomes with the same tests before it: it is flaky",
}


def probe_line(number: int, probe: Probe) -> str:
    """Return the line about one probe: what ran before the file, and whether that then passed."""
    what = one_line(probe.paths[0], 120) if len(probe.paths) == 1 else _amount(probe.paths)
    what = f"the import of {what}" if probe.deselected else what
    where = f"after {what}" if probe.paths else "in a process of its own"
    return f"probe {number}: {'passes' if probe.passed else 'fails'} {where}, {probe.duration_s:.1f} s"


def _amount(paths: tuple[str, ...]) -> str:
    num_tests = sum("::" in path for path in paths)
    return count(num_tests, "test") if num_tests else count(len(paths), "file")


def leaning_text(found: Leaning, *, colour: bool) -> str:
    """Return the answer, the commands that show it, and the effort."""
    return "\n".join(_lines(found, colour))


def _lines(found: Leaning, colour: bool) -> Iterator[str]:
    head = f"{one_line(found.file)} {HEADS[found.kind]}"
    if found.kind is LeaningKind.LEANS:
        head += " the import of" if found.is_import else ""
    yield f"\x1b[1m{head}\x1b[0m" if colour else head
    yield from _listed(found.leans_on)
    if found.new_files:
        yield "files that are new in this directory:"
        yield from _listed(found.new_files)
    if found.failing and found.kind is not LeaningKind.PASSES_ALONE:
        yield "tests that fail:"
        yield from _listed(found.failing)
    if found.kind is LeaningKind.LEANS:
        yield f"passes: {one_line(shlex.join(found.passes), 4096)}"
        yield f"fails:  {one_line(shlex.join(found.fails), 4096)}"
    if found.left_out:
        yield "not tried, since they need other GPUs than the file:"
        yield from _listed(found.left_out)
    yield f"{count(len(found.probes), 'probe')} in {sum(probe.duration_s for probe in found.probes):.1f} s"


def _listed(names: tuple[str, ...]) -> Iterator[str]:
    yield from (f"  {one_line(name, 1000)}" for name in names[:MAX_LISTED])
    if len(names) > MAX_LISTED:
        yield f"  and {len(names) - MAX_LISTED:,} more"


def leaning_json(found: Leaning) -> dict[str, Any]:
    """The same in plain values only."""
    return {"version": VERSION, "exit_code": int(found.exit_code), **asdict(found)}
