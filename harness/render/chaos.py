"""Output of `rlharness chaos`: a sentence on the cause, how often it occurred, and the command that reproduces it."""

import shlex
from collections.abc import Iterator
from typing import Any

from harness.bits.redaction import redact_argv
from harness.bits.text import count, one_line, path_text
from harness.lab.chaos.search import (
    BASELINE,
    HASH_SEED,
    USUAL_HASH_SEED,
    Chaos,
    Finding,
    Outcome,
    Search,
    Sign,
    format_perturbation,
    recording_words,
    written,
)
from harness.lab.chaos.vary import Kind, Varied, assignment
from harness.lab.experiment.launcher import OUTPUT
from harness.render.console import painted
from harness.render.divergence import noun, verdict_text
from harness.render.replay import ending_lines
from harness.render.serialise import attributes, result_json, serialised


def chaos_text(chaos: Chaos, *, colour: bool) -> str:
    """Return the finding, or that there is none, and the extent of the search."""
    return "\n  ".join([_labelled(*_headline(chaos), colour), *_lines(chaos)])


def _lines(chaos: Chaos) -> Iterator[str]:
    finding, plan = chaos.finding, chaos.plan
    yield from _without_baseline(chaos)
    if finding is not None:
        yield from _detail(chaos, finding)
    yield from _cut_short(chaos)
    for each in chaos.not_applied:
        yield f"not applied: {one_line(format_perturbation(each.perturbation))}: {one_line(each.why)}"
    if finding is not None:
        if finding.outcome.directory is not None and finding.outcome.sign is Sign.MOVED:
            sides = map(path_text, (plan.directory / BASELINE, finding.outcome.directory))
            yield f"look closer: {shlex.join(['rlharness', 'diff', *sides])}"
        elif finding.outcome.directory is not None:
            yield from ending_lines(finding.outcome.directory / OUTPUT)
        yield f"reproduce: {command(chaos)}"
    yield f"traces: {shlex.quote(path_text(plan.directory))}"


def _headline(chaos: Chaos) -> tuple[str, str, str]:
    """(label, colour, sentence) of a search."""
    plan = chaos.plan
    if chaos.problem:
        return "NO BASELINE", "33", f"the unperturbed run is incomplete: {one_line(chaos.problem)}"
    if chaos.finding is not None:
        has_moved = chaos.finding.outcome.sign is Sign.MOVED
        return "DIVERGED" if has_moved else "BROKE", "1;31" if has_moved else "33", sentence(chaos)
    if chaos.num_probes:
        names = format_perturbation(plan.only) if plan.only else ", ".join(factor.name for factor in plan.factors)
        return "NOTHING FOUND", "32", f"no bit changed in {count(chaos.num_runs, 'run')} with {one_line(names)}"
    if chaos.not_applied:
        return "NOT APPLIED", "33", "no perturbation took effect, so there is no result"
    label = "INTERRUPTED" if chaos.interrupted_by else "OUT OF TIME"
    return label, "33", "no perturbation finished, so there is no result"


def _labelled(label: str, tone: str, text: str, colour: bool) -> str:
    return f"{painted(label, tone, colour)}  {one_line(text, 1000)}"


def sentence(chaos: Chaos) -> str:
    """The thread count (training_threads=2) alone changes the gradient of embedding at step 2, in 3 of 3 runs.

    Empty without a finding.
    """
    finding = chaos.finding
    if finding is None:
        return ""
    often = f", in {finding.tally.num_failed} of {count(finding.tally.num_runs, 'run')}"
    if not finding.perturbation:
        return f"the run is nondeterministic without any perturbation: repeating it {effect(finding.outcome)}{often}"
    abouts = {factor.name: factor.about for factor in chaos.plan.subject.factors}
    settings = {name: f"{name}={one_line(written(value))}" for name, value in finding.perturbation.items()}
    names = [f"{one_line(abouts[name])} ({text})" if abouts.get(name) else text for name, text in settings.items()]
    cause = f"{names[0]} alone" if len(names) == 1 else f"the combination of {', '.join(names)}"
    return f"{cause} {effect(finding.outcome)}{often}"


def effect(outcome: Outcome) -> str:
    """changes the gradient of embedding at step 2; ends the run before step 2: and why."""
    if outcome.sign is Sign.BROKE:
        return f"ends the run before step {outcome.step} is complete: {one_line(_problem(outcome))}"
    assert outcome.verdict is not None and outcome.verdict.first is not None
    value = outcome.verdict.first.a or outcome.verdict.first.b
    return f"changes {noun(value) if value else 'the whole step'} at step {outcome.step}"


def _problem(outcome: Outcome) -> str:
    """Return the problem of a broken run, or the reasons why it cannot be compared; empty if there is none."""
    if outcome.problem or outcome.verdict is None:
        return outcome.problem
    return "; ".join(map(str, outcome.verdict.reasons))


def _cut_short(found: Search) -> Iterator[str]:
    if found.interrupted_by or found.is_out_of_time:
        why = f"interrupted by {found.interrupted_by}" if found.interrupted_by else "time limit reached"
        yield f"{why} after {count(found.num_runs, 'run')}"


def _without_baseline(chaos: Search) -> Iterator[str]:
    """Yield the remedy for an incomplete baseline, and the last lines of its output."""
    yield from [f"remedy: {one_line(chaos.remedy)}"] if chaos.remedy else []
    yield from ending_lines(chaos.output) if chaos.output is not None else ()


def _detail(chaos: Chaos, finding: Finding) -> Iterator[str]:
    without, verdict = finding.without, finding.outcome.verdict
    if finding.perturbation:
        yield f"without perturbation: {without.num_failed} of {count(without.num_runs, 'run')} differ"
    if verdict is not None and verdict.first is not None:
        yield from verdict_text(verdict, colour=False).splitlines()[1:]


def command(chaos: Chaos) -> str:
    """Return the command that reproduces the finding; empty without one."""
    finding, subject = chaos.finding, chaos.plan.subject
    if finding is None:
        return ""
    program = ["--", *subject.run_spec({}).argv] if subject.is_command else []
    if not finding.perturbation:
        runs = ["--runs", str(max(2, finding.tally.num_runs + 1))]
        again = shlex.join(redact_argv(["rlharness", "replay", *subject.typed, *runs, *program]))
        seed = {factor.name: factor.usual for factor in subject.factors}.get(HASH_SEED, USUAL_HASH_SEED)
        return again if seed is None else f"PYTHONHASHSEED={seed} {again}"
    only = [word for name, value in finding.perturbation.items() for word in ("--only", f"{name}={written(value)}")]
    words = ["rlharness", "chaos", *subject.typed, *only]
    if chaos.plan.num_steps is not None:
        words += ["--steps", str(chaos.plan.num_steps)]
    return shlex.join(redact_argv([*words, *program]))


def chaos_json(chaos: Chaos) -> dict[str, Any]:
    """Return the same in plain values, without secrets."""
    plan, finding, own = chaos.plan, chaos.finding, None
    if finding is not None:
        own = attributes(finding, "perturbation", "drawn", "index", "is_smallest", "without")
        own |= {**serialised(finding.outcome), **serialised(finding.tally), "problem": _problem(finding.outcome)}
        own = {"sentence": sentence(chaos), **own, "reproduce": command(chaos)}
    return result_json(
        chaos,
        command=redact_argv(("rlharness", "chaos", *plan.subject.typed)),
        directory=plan.directory,
        seed=plan.seed,
        factors=[factor.name for factor in plan.factors],
        num_probes_wanted=1 if plan.only is not None else plan.num_probes,
        finding=own,
    )


# -------------------------------------------------------------------------------------------------------------- --vary

TONES = {Kind.EQUAL: "32", Kind.ROUNDING: "32", Kind.BY_DESIGN: "32", Kind.RANDOM: "33", Kind.FAILED: "33"}


def varied_text(varied: Varied, *, colour: bool) -> str:
    """Return a line for each value, and the next command."""
    lines = [_labelled(*_summary(varied), colour), *_without_baseline(varied)]
    for each in varied.verdicts:
        lines.append(_labelled(each.kind.value.upper(), TONES.get(each.kind, "1;31"), each.sentence, colour))
        if each.kind is Kind.FAILED and each.directory:
            lines += [f"  {line}" for line in ending_lines(each.directory / OUTPUT)]
    lines += _cut_short(varied)
    lines += [f"look closer: {words}" for words in next_commands(varied)]
    return "\n  ".join([*lines, f"runs: {shlex.quote(path_text(varied.plan.directory))}"])


def _summary(varied: Varied) -> tuple[str, str, str]:
    """(label, colour, sentence) of a comparison of settings."""
    if varied.problem:
        return "NO BASE", "33", f"the run with the base values failed: {one_line(varied.problem)}"
    if varied.unsteady:
        text = f"two runs with the base values differ {one_line(varied.unsteady)}, so no value can be compared"
        return "NOT REPEATABLE", "33", text
    if varied.faults:
        names = ", ".join(assignment(each.values) for each in varied.faults)
        return "NOT NEUTRAL", "1;31", f"the results change with {one_line(names)}"
    unknown = [assignment(each.values) for each in varied.verdicts if each.kind in (Kind.RANDOM, Kind.FAILED)]
    if unknown or varied.interrupted_by or varied.is_out_of_time:
        return "NOT DETERMINED", "33", f"no result for {one_line(', '.join(unknown)) or 'the values that did not run'}"
    kinds = {each.kind for each in varied.verdicts}
    allowed = "no bit changes" if kinds == {Kind.EQUAL} else "nothing changes beyond rounding"
    design = ", except by design," if Kind.BY_DESIGN in kinds else ""
    values = ", ".join(assignment(each.values) for each in varied.verdicts)
    return "NEUTRAL", "32", f"{allowed}{design} with {one_line(values)}"


def next_commands(varied: Varied) -> list[str]:
    """Return the commands that look closer at the first difference, or at a base that does not repeat itself."""
    plan = varied.plan
    words = recording_words(plan.options.scenario_options)
    if varied.unsteady:
        return [shlex.join(redact_argv(["rlharness", "replay", *words, "--", *plan.command({})]))]
    fault = next((each for each in varied.faults if each.kind is Kind.DIFFERENT and each.step is not None), None)
    if fault is None:  # a factor or a setting is named: nothing is left to find by operations
        return []
    traced = ["rlharness", "trace", *words, "--trace-ops", str(fault.step), "--out"]
    runs = {"base": plan.command({}), "varied": plan.command(fault.values)}
    pair = [shlex.join(redact_argv([*traced, name, "--", *argv])) for name, argv in runs.items()]
    return [*pair, "rlharness diff base varied"]


def varied_json(varied: Varied) -> dict[str, Any]:
    """Return the same in plain values, without secrets."""
    plan = varied.plan
    more = {"directory": plan.directory, "settings": plan.settings, "has_bits": plan.options.has_bits}
    return result_json(varied, command=redact_argv(plan.argv), look_closer=next_commands(varied), **more)
