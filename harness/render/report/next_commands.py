"""Suggested commands for two runs that diverge. The only file read is `call.json`, for the runtime settings."""

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from harness.bits.files import MAX_JSON_BYTES, read_regular
from harness.bits.redaction import redact_argv
from harness.lab.experiments.entry_call import CALL, EntryCall
from harness.lab.experiments.run_spec import TRAIN
from harness.lab.report.subjects import Pair
from harness.render.divergence import STEP_ONLY
from harness.trace.reasons import ResumedAt
from harness.trace.verdict import Kind


@dataclass(frozen=True, slots=True)
class Next:
    """A command, and what it is for."""

    why: str
    command: str


def next_commands(pair: Pair) -> list[Next]:
    """Return commands that inspect the difference of two runs; none for equal runs."""
    if pair.verdict.kind is Kind.EQUAL:
        return []
    again: Iterator[Next] = iter(())
    argv = pair.a.trace.manifest.argv if pair.a.trace.manifest else ()
    is_scenario, is_comparable = argv[: len(TRAIN)] == TRAIN, pair.verdict.kind is not Kind.NOT_COMPARABLE
    if is_scenario and (is_comparable or "numerics" not in pair.verdict.fingerprints):
        again = _of_scenario(pair, argv[len(TRAIN) :])
    elif is_comparable:
        again = _of_program(pair, argv)
    return [
        *again,
        Next("Print the same verdict in a terminal or for a script", _typed("diff", pair.a.name, pair.b.name)),
    ]


def next_command(pair: Pair) -> str:
    """Return the command to type after the verdict on two traces, with a word on what it does; empty for equal ones."""
    if shifts := [note.shift for note in pair.verdict.notes if isinstance(note, ResumedAt)]:
        return f"compare as a resumed run: {_typed('diff', pair.a.name, pair.b.name, '--shift', str(shifts[0]))}"
    found = next_commands(pair)[:-1]  # the last one is diff itself
    if pair.verdict.operations is not None:
        found = found[1:]
    if found:
        return f"look closer: {found[0].command}"
    is_equal = pair.verdict.kind is Kind.EQUAL
    return "" if is_equal else f"see both on one page: {_typed('report', pair.a.name, pair.b.name)}"


def _of_program(pair: Pair, argv: Sequence[str]) -> Iterator[Next]:
    """Commands for runs of a command line, whose values cannot be restored."""
    if not argv:
        return
    program, step = ("--", *argv), _step(pair)
    words = ("--step", step, "--trace-ops") if step else ()
    yield Next(
        "Run the command that the trace names twice on this machine, and find the first operation that differs",
        _typed("replay", *words, *program),
    )
    if pair.a.trace.manifest and pair.a.trace.manifest.level == "off":
        why = "Run that command with determinism flags, which may be enough"
        yield Next(why, _typed("replay", "--level", "deterministic", *program))


def _of_scenario(pair: Pair, words: Sequence[str]) -> Iterator[Next]:
    """Yield commands for runs of a scenario; any of its steps can be repeated."""
    a, b, step = pair.a, pair.b, _step(pair)
    if step and all((each.trace.directory / CALL).is_file() for each in (a, b)):
        why = f"Repeat step {step} of both with the code that they name, and find the first operation that differs"
        yield Next(why, _typed("reproduce", a.name, "--step", step, "--trace-ops", "--against", b.name))
    if pair.verdict.kind is Kind.NOT_COMPARABLE:
        return
    if varied := [word for name, x, y in _varied(pair) for word in ("--sweep", f"{name}={x},{y}")]:
        yield Next("Repeat both with the runtime settings that differ", _typed("replay", *words, *varied))
        yield Next("Find the smallest perturbation that changes a bit", _typed("chaos", *words))


def _typed(*words: str) -> str:
    return shlex.join(redact_argv(["rlharness", *words]))


def _step(pair: Pair) -> str:
    """Return the step whose operations to record; empty if one run lacks it."""
    first = pair.verdict.first
    return str(first.step) if first is not None and first.what not in STEP_ONLY else ""


def _varied(pair: Pair) -> Iterator[tuple[str, str, str]]:
    """Yield the runtime settings that differ, with both values."""
    free = _runtime_sections(pair.a.trace.directory)
    for field in pair.verdict.fingerprints.get("perturbation", ()):
        if field.name.partition(".")[0] in free and field.a is not None and field.b is not None:
            yield field.name, field.a, field.b


def _runtime_sections(directory: Path) -> frozenset[str]:
    try:
        data = read_regular(directory / CALL, max_bytes=MAX_JSON_BYTES, follows_links=True)
        return frozenset(EntryCall.parse(data).runtime_sections)
    except (OSError, ValueError):
        return frozenset()
