"""Suggested commands for two runs that diverge."""

import shlex
from collections.abc import Iterator
from dataclasses import dataclass

from harness.bits.redaction import redact_argv
from harness.bits.text import harmless
from harness.lab.report.subjects import Pair, Subject
from harness.recording.entry_call import CALL
from harness.recording.run_spec import TRAIN
from harness.trace.reasons import VerdictCode
from harness.trace.verdict import STEP_ONLY, Kind

VARIABLE, COMMIT, FILE = "variable ", "commit", "file "
"""Names, or their beginnings, of fields of a fingerprint."""


@dataclass(frozen=True, slots=True)
class Next:
    """A command, and what it is for."""

    why: str
    command: str


def next_commands(pair: Pair) -> list[Next]:
    """Return commands that find the first operation that differs; none for equal runs, or if one lacks the step.

    If code, command, environment or machine differ, each side is recorded again where it ran: a replay would compare
    one of them with itself.
    """
    verdict, first = pair.verdict, pair.verdict.first
    if verdict.kind is Kind.EQUAL or first is None or first.what in STEP_ONLY:
        return []
    argv, step = pair.a.trace.manifest.argv if pair.a.trace.manifest else (), str(first.step)
    if argv[: len(TRAIN)] == TRAIN:
        is_repeatable = all((each.trace.directory / CALL).is_file() for each in (pair.a, pair.b))
        if not is_repeatable or (verdict.kind is Kind.NOT_COMPARABLE and "numerics" in verdict.fingerprints):
            return []
        why = f"Repeat step {step} of both with the code that they name, and find the first operation that differs"
        return [Next(why, _typed("reproduce", pair.a.name, "--step", step, "--trace-ops", "--against", pair.b.name))]
    if _differ_outside(pair):
        return list(_of_both(pair, step))
    if not argv or verdict.kind is Kind.NOT_COMPARABLE:
        return []
    why = "Run the command that the trace names twice on this machine, and find the first operation that differs"
    return [Next(why, _typed("replay", "--step", step, "--trace-ops", "--", *argv))]


def next_lines(pair: Pair) -> list[str]:
    """Return the lines to print after the verdict on two traces: the command to type next."""
    if shifts := [note.values["shift"] for note in pair.verdict.notes if note.code is VerdictCode.RESUMED_AT]:
        return [f"compare as a resumed run: {_typed('diff', pair.a.name, pair.b.name, '--shift', str(shifts[0]))}"]
    found = next_commands(pair) if pair.verdict.operations is None else []
    if len(found) > 1:
        lines = [harmless(f"  {each.command}    # {each.why}") for each in found]
        return ["look closer, by the operations of that step on both sides:", *lines]
    if found:
        return [f"look closer: {harmless(found[0].command)}"]
    is_equal = pair.verdict.kind is Kind.EQUAL
    return [] if is_equal else [f"see both on one page: {_typed('report', pair.a.name, pair.b.name)}"]


def _differ_outside(pair: Pair) -> bool:
    """Whether more differs between two runs than chance: code, command, settings, hardware or software."""
    return bool(pair.verdict.fingerprints.keys() & {"identity", "content", "numerics", "perturbation", "subject"})


def _of_both(pair: Pair, step: str) -> Iterator[Next]:
    """Yield the commands that record the operations of a step of two programs, each where it ran, and compare them."""
    sides = (pair.a, pair.b)
    if not all(each.trace.manifest and each.trace.manifest.argv for each in sides):
        return
    out = [f"{each.name.rstrip('/')}-step-{step}" for each in sides]
    for side, directory in zip(sides, out, strict=True):
        assert side.trace.manifest is not None
        variables = [
            f"{field.name.removeprefix(VARIABLE)}={value}"
            for part in ("perturbation", "numerics")
            for field in pair.verdict.fingerprints.get(part, ())
            if (value := field.a if side is pair.a else field.b) is not None and field.name.startswith(VARIABLE)
        ]
        words = ["rlharness", "trace", "--trace-ops", step, "--out", directory, "--", *side.trace.manifest.argv]
        yield Next(f"{side.letter}{_state(pair, side)}", shlex.join(redact_argv([*variables, *words])))
    yield Next("the first operation that differs", _typed("diff", *out))


def _state(pair: Pair, side: Subject) -> str:
    """Return at which code, and on which machine, a side has to run: , at commit 1a2b3c4."""
    found, text = pair.verdict.fingerprints, ""
    assert side.trace.manifest is not None
    subject = side.trace.manifest.fingerprint.subject
    if "subject" in found and (commit := subject.get(COMMIT)):
        changed = [name.removeprefix(FILE) for name in subject if name.startswith(FILE)]
        text = f", at commit {commit[:10]}" + (f" with its changes of {', '.join(changed[:3])}" if changed else "")
    return text + (", on its machine" if "numerics" in found else "")


def _typed(*words: str) -> str:
    return shlex.join(redact_argv(["rlharness", *words]))
