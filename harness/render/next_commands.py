"""Suggested commands for two runs that diverge."""

import shlex
from collections.abc import Iterator

from harness.bits.redaction import redact_argv
from harness.bits.text import harmless
from harness.lab.experiment.hints import NextCommand
from harness.lab.report.subjects import Pair, Subject
from harness.recording.run_spec import CALL, TRAIN
from harness.trace.verdict import STEP_ONLY, Kind, VerdictCode

VARIABLE, COMMIT, FILE = "variable ", "commit", "file "
"""Names, or their beginnings, of fields of a fingerprint."""


def next_commands(pair: Pair) -> list[NextCommand]:
    """Return commands that find the first operation that differs; none for equal runs, or if one lacks the step.

    Each side is repeated or recorded again by itself if it is a scenario's, or if code, command, environment or machine
    differ: a replay would compare one of them with itself.
    """
    verdict, first = pair.verdict, pair.verdict.first
    if verdict.kind is Kind.EQUAL or first is None or first.what in STEP_ONLY:
        return []
    argv, step = pair.a.trace.manifest.argv if pair.a.trace.manifest else (), str(first.step)
    differing = verdict.fingerprints.keys() & {"identity", "content", "numerics", "perturbation", "subject"}
    if argv[: len(TRAIN)] == TRAIN:
        is_repeatable = all((each.trace.directory / CALL).is_file() for each in (pair.a, pair.b))
        is_elsewhere = verdict.kind is Kind.NOT_COMPARABLE and "numerics" in differing
        return list(_of_both(pair, step)) if is_repeatable and not is_elsewhere else []
    if differing:
        return list(_of_both(pair, step))
    if not argv or verdict.kind is Kind.NOT_COMPARABLE:
        return []
    why = "Run the command that the trace names twice on this machine, and find the first operation that differs"
    return [NextCommand(why, _typed("replay", "--step", step, "--trace-ops", "--", *argv))]


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


def _of_both(pair: Pair, step: str) -> Iterator[NextCommand]:
    """Yield the commands that record the operations of a step of both, each where it ran, and compare them."""
    sides = (pair.a, pair.b)
    if not all(each.trace.manifest and each.trace.manifest.argv for each in sides):
        return
    traces = []
    for side in sides:
        assert side.trace.manifest is not None
        variables = [
            f"{field.name.removeprefix(VARIABLE)}={value}"
            for part in ("perturbation", "numerics")
            for field in pair.verdict.fingerprints.get(part, ())
            if (value := field.a if side is pair.a else field.b) is not None and field.name.startswith(VARIABLE)
        ]
        out = f"{side.name.rstrip('/')}-step-{step}"
        words, trace = ["trace", "--trace-ops", step, "--out", out, "--", *side.trace.manifest.argv], out
        if side.trace.manifest.argv[: len(TRAIN)] == TRAIN:
            words, trace = ["reproduce", side.name, "--step", step, "--trace-ops", "--out", out], f"{out}/run-1-op"
            variables = []
        traces.append(trace)
        yield NextCommand(
            f"{side.letter}{_state(pair, side)}", shlex.join(redact_argv([*variables, "rlharness", *words]))
        )
    yield NextCommand("the first operation that differs", _typed("diff", *traces))


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
