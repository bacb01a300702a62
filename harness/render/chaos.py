"""Output of `rlharness chaos`: a sentence on the cause, how often it occurred, and the command that reproduces it."""

import shlex
from collections.abc import Iterator, Sequence
from math import ceil, isfinite, log
from pathlib import Path
from typing import Any

from harness.bits.redaction import redact_argv
from harness.bits.text import count, one_line, path_text
from harness.lab.chaos.search import (
    BASELINE,
    HASH_SEED,
    USUAL_HASH_SEED,
    Chaos,
    ChaosPlan,
    Finding,
    Outcome,
    Perturbation,
    Sign,
    Tally,
    format_perturbation,
    recording_words,
    written,
)
from harness.lab.chaos.vary import Kind, Varied, VaryPlan, assignment
from harness.lab.experiment.launcher import OUTPUT, Run
from harness.process.clock import Clock
from harness.process.program_output import output_tail
from harness.render.console import say
from harness.render.divergence import verdict_json, verdict_text
from harness.render.replay import ending_lines
from harness.render.run_lines import RunLines
from harness.render.serialise import serialised
from harness.trace.verdict import EXIT_CODES, Divergence

SIGNS = {Sign.SAME: "every bit equal", Sign.MOVED: "DIVERGED", Sign.BROKE: "BROKE", Sign.NOT_APPLIED: "NOT APPLIED"}


class SearchLines(RunLines):
    """Display of a search, which reports each result itself."""

    def begin(self, number: int, *, has_operations: bool) -> None:
        """Report nothing yet."""
        self._said_s = 0.0


class VaryLines(SearchLines):
    """Display of a comparison of settings: a line for each run."""

    def __init__(self, plan: VaryPlan) -> None:
        super().__init__()
        self._number, self._num_runs = 0, 3 + sum(len(values) - 1 for values in plan.settings.values())

    def begins(self, what: str) -> None:
        """Report that a run starts."""
        self._number += 1
        self.title = f"run {self._number} of {max(self._number, self._num_runs)}: {what}"

    def finished(self, run: Run, duration_s: float) -> None:
        """Report the end of a run."""
        say(f"{one_line(self.title)}: {count(run.recording.num_steps, 'step')}, {duration_s:.1f} s")


class ChaosLines(SearchLines):
    """Display of a perturbation search.

    The first two runs are the baseline and its repetition. Then come the drawn perturbations, or several runs of the
    requested one. After the first failure come the runs that search for its cause; their number is unknown.
    """

    def __init__(self, plan: ChaosPlan, clock: Clock) -> None:
        super().__init__()
        self._noun, self._num_probes = ("probe", plan.num_probes) if plan.only is None else ("run", plan.num_repeats)
        self._max_s, self._clock = plan.max_s, clock
        self._began_s = self._probes_began_s = clock.monotonic_s()
        self._num_done = -1
        """Number of finished probes, after the baseline."""
        self._has_found = False

    def begins(self, what: Perturbation) -> None:
        """Report that a run with this perturbation starts."""
        self.title = format_perturbation(what)
        if self._num_done < 0:
            say("baseline: two runs without perturbation")
            self._num_done = 0
        elif self._num_done == 0 and not what:
            self._probes_began_s = self._clock.monotonic_s()

    def finished(self, outcome: Outcome, duration_s: float) -> None:
        """Report the end of a probe."""
        if self._has_found:
            title = "searching for the cause"
        elif self._num_done == 0:
            title = "baseline"
        else:
            title = f"{self._noun} {self._num_done} of {self._num_probes}"
        self._num_done += 1
        self._has_found = self._has_found or outcome.has_failed
        at = f" at step {outcome.step}" if outcome.step is not None else ""
        say(f"{title}: {one_line(self.title)}: {SIGNS[outcome.sign]}{at}, {duration_s:.1f} s{self._left()}")

    def _left(self) -> str:
        """Return the time that the remaining probes will take; empty while their number is unknown."""
        num_left = self._num_probes + 1 - self._num_done
        if self._has_found or num_left <= 0:
            return ""
        now_s = self._clock.monotonic_s()
        left_s = (now_s - self._probes_began_s) / self._num_done * num_left
        if isfinite(self._max_s):
            left_s = min(left_s, max(0.0, self._began_s + self._max_s - now_s))
        return f"; about {_minutes(left_s)} left"


def _minutes(seconds: float) -> str:
    """40 s, 12 min."""
    return f"{seconds:.0f} s" if seconds < 100 else f"{seconds / 60:.0f} min"


VERSION = 1
NOUNS = {
    "rollout": "{} of the rollout",
    "reward": "{} of the rewards",
    "reference": "{} of the reference",
    "advantage": "{} of the advantages",
    "forward": "{} of the forward pass",
    "loss": "{} of the loss",
    "backward": "the gradient of {}",
    "optimizer": "{} of the optimizer",
    "sync": "{} of the sync",
}


def chaos_text(chaos: Chaos, *, colour: bool) -> str:
    """Return the finding, or that there is none, and the extent of the search."""
    return "\n  ".join([_labelled(*_headline(chaos), colour), *_lines(chaos)])


def _lines(chaos: Chaos) -> Iterator[str]:
    finding, plan = chaos.finding, chaos.plan
    yield from _without_baseline(chaos)
    if finding is not None:
        yield from _detail(chaos, finding)
    if chaos.interrupted_by or chaos.is_out_of_time:
        why = f"interrupted by {chaos.interrupted_by}" if chaos.interrupted_by else "time limit reached"
        wanted = count(1 if plan.only is not None else plan.num_probes, "perturbation")
        yield f"{why}: {chaos.num_probes} of {wanted} completed in {count(chaos.num_runs, 'run')}"
    for each in chaos.not_applied:
        yield f"not applied: {one_line(format_perturbation(each.perturbation))}: {one_line(each.why)}"
    if finding is not None:
        yield from _closer(finding.outcome, plan.directory / BASELINE)
        yield f"reproduce: {command(chaos)}"
    yield f"traces: {shlex.quote(path_text(plan.directory))}"


def _headline(chaos: Chaos) -> tuple[str, str, str]:
    """(label, colour, sentence) of a search."""
    if chaos.problem:
        return "NO BASELINE", "33", f"the unperturbed run is incomplete: {one_line(chaos.problem)}"
    if chaos.finding is not None:
        has_moved = chaos.finding.outcome.sign is Sign.MOVED
        return "DIVERGED" if has_moved else "BROKE", "1;31" if has_moved else "33", sentence(chaos)
    if chaos.num_probes:
        return "NOTHING FOUND", "32", _nothing(chaos)
    if chaos.not_applied:
        return "NOT APPLIED", "33", "no perturbation took effect, so there is no result"
    label = "INTERRUPTED" if chaos.interrupted_by else "OUT OF TIME"
    return label, "33", "no perturbation finished, so there is no result"


def _labelled(label: str, tone: str, text: str, colour: bool) -> str:
    return f"\x1b[{tone}m{label}\x1b[0m  {one_line(text, 1000)}" if colour else f"{label}  {one_line(text, 1000)}"


def _nothing(chaos: Chaos) -> str:
    plan = chaos.plan
    if plan.only is not None:
        runs = f"in {count(chaos.num_runs, 'run')}, including the baseline"
        return f"{one_line(format_perturbation(plan.only))} {_verb('change', len(plan.only))} no bit {runs}"
    factors = ", ".join(factor.name for factor in plan.factors)
    probes = count(chaos.num_probes, "perturbation")
    return f"{probes} of {factors} {_verb('change', chaos.num_probes)} no bit"


def _verb(plural: str, number: int) -> str:
    return f"{plural}s" if number == 1 else plural


def sentence(chaos: Chaos) -> str:
    """The thread count (training_threads=2) alone changes the gradient of embedding at step 2, in 3 of 3 runs.

    Empty without a finding.
    """
    finding = chaos.finding
    if finding is None:
        return ""
    outcome = finding.outcome
    often = f", in {finding.tally.num_failed} of {count(finding.tally.num_runs, 'run')}"
    if not finding.perturbation:
        what = f"it {effect(outcome)}"
        if outcome.verdict is not None and outcome.verdict.first is not None:
            what = f"the first difference is in {_value(outcome.verdict.first)} at step {outcome.step}"
        return f"the run is nondeterministic without any perturbation: {what}{often}"
    abouts = {factor.name: factor.about for factor in chaos.plan.subject.factors}
    names = [_cause(abouts.get(name, ""), name, value) for name, value in finding.perturbation.items()]
    if len(names) == 1:
        return f"{names[0]} alone {effect(outcome)}{often}"
    verb = effect(outcome).replace("changes", "change", 1).replace("ends", "end", 1)
    return f"{', '.join(names[:-1])} and {names[-1]} together {verb}{often}"


def _cause(about: str, name: str, value: Any) -> str:
    """The hash seed (hash_seed=7); runtime.n=3 for a factor without a description."""
    setting = f"{name}={one_line(written(value))}"
    return f"{one_line(about)} ({setting})" if about else setting


def effect(outcome: Outcome) -> str:
    """changes the gradient of embedding at step 2; ends the run before step 2: and why."""
    if outcome.sign is Sign.BROKE:
        return f"ends the run before step {outcome.step} is complete: {one_line(_problem(outcome))}"
    assert outcome.verdict is not None and outcome.verdict.first is not None
    return f"changes {_value(outcome.verdict.first)} at step {outcome.step}"


def _problem(outcome: Outcome) -> str:
    """Return the problem of a broken run, or the reasons why it cannot be compared; empty if there is none."""
    if outcome.problem or outcome.verdict is None:
        return outcome.problem
    return "; ".join(map(str, outcome.verdict.reasons))


def _value(place: Divergence) -> str:
    value = place.a or place.b
    if value is None:
        return "the whole step"
    name = one_line(value.name)
    return f"the {name}" if name in (value.phase, f"{value.phase}s") else NOUNS.get(value.phase, "{}").format(name)


def _without_baseline(chaos: Chaos | Varied) -> Iterator[str]:
    """Yield the remedy for an incomplete baseline, and the last lines of its output."""
    if chaos.remedy:
        yield f"remedy: {one_line(chaos.remedy)}"
    if chaos.output is not None:
        yield from ending_lines(chaos.output)


def _detail(chaos: Chaos, finding: Finding) -> Iterator[str]:
    without, verdict = finding.without, finding.outcome.verdict
    if not finding.is_smallest:
        yield "the search for a smaller cause did not finish"
    if finding.perturbation:
        differ = _verb("differ", without.num_runs)
        yield f"without perturbation: {without.num_failed} of {count(without.num_runs, 'run')} {differ}"
    if finding.index is not None and dict(finding.drawn) != dict(finding.perturbation):
        first = one_line(format_perturbation(finding.drawn))
        yield f"first seen with perturbation {finding.index} of seed {chaos.plan.seed}: {first}"
    if verdict is not None and verdict.first is not None:
        yield from verdict_text(verdict, colour=False).splitlines()[1:]


def _closer(outcome: Outcome, baseline: Path) -> Iterator[str]:
    """Yield the command that compares the run with the baseline; of one that broke, the end of its output."""
    if outcome.directory is None:
        return
    if outcome.sign is Sign.MOVED:
        yield f"look closer: {shlex.join(['rlharness', 'diff', path_text(baseline), path_text(outcome.directory)])}"
    else:
        yield from ending_lines(outcome.directory / OUTPUT)


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
    if finding.tally.num_failed < finding.tally.num_runs:
        words += ["--repeats", str(_repeats(finding.tally))]
    return shlex.join(redact_argv([*words, *program]))


def _repeats(tally: Tally) -> int:
    """Return so many runs that one of them shows it, in 99 of 100 cases if it is as likely as it was."""
    return ceil(log(0.01) / log(1 - tally.num_failed / tally.num_runs))


def chaos_json(chaos: Chaos) -> dict[str, Any]:
    """Return the same in plain values only, without secrets."""
    plan = chaos.plan
    return {
        **_ended_json(chaos, ("rlharness", "chaos", *plan.subject.typed)),
        "seed": plan.seed,
        "factors": [factor.name for factor in plan.factors],
        "num_probes": chaos.num_probes,
        "num_probes_wanted": 1 if plan.only is not None else plan.num_probes,
        "not_applied": serialised(chaos.not_applied),
        "finding": chaos.finding and _finding_json(chaos, chaos.finding),
    }


def _ended_json(found: Chaos | Varied, argv: Sequence[str]) -> dict[str, Any]:
    names = ("num_runs", "problem", "remedy", "interrupted_by", "is_out_of_time", "output")
    return {
        "version": VERSION,
        "exit_code": int(found.exit_code),
        "command": list(redact_argv(argv)),
        "directory": str(found.plan.directory),
        **{name: serialised(getattr(found, name)) for name in names},
        "output_tail": output_tail(found.output) if found.output else [],
    }


def _finding_json(chaos: Chaos, finding: Finding) -> dict[str, Any]:
    outcome, verdict = finding.outcome, finding.outcome.verdict
    names = ("perturbation", "drawn", "index", "is_smallest")
    return {
        "sentence": sentence(chaos),
        **{name: serialised(getattr(finding, name)) for name in names},
        **serialised(finding.tally),
        "num_runs_unchanged": finding.without.num_runs,
        "num_failed_unchanged": finding.without.num_failed,
        **{name: serialised(getattr(outcome, name)) for name in ("sign", "step", "directory")},
        "problem": _problem(outcome),
        "reproduce": command(chaos),
        "verdict": verdict and verdict_json(verdict, exit_code=EXIT_CODES[verdict.kind]),
    }


# -------------------------------------------------------------------------------------------------------------- --vary

TONES = {Kind.EQUAL: "32", Kind.ROUNDING: "32", Kind.BY_DESIGN: "32", Kind.RANDOM: "33", Kind.FAILED: "33"}


def varied_text(varied: Varied, *, colour: bool) -> str:
    """Return a line for each value, and the next command."""
    lines = [_labelled(*_summary(varied), colour), *_without_baseline(varied)]
    for each in varied.verdicts:
        lines.append(_labelled(each.kind.value.upper(), TONES.get(each.kind, "1;31"), each.sentence, colour))
        if each.kind is Kind.FAILED and each.directory:
            lines += [f"  {line}" for line in ending_lines(each.directory / OUTPUT)]
    if varied.interrupted_by or varied.is_out_of_time:
        why = f"interrupted by {varied.interrupted_by}" if varied.interrupted_by else "time limit reached"
        lines.append(f"{why} after {count(varied.num_runs, 'run')}")
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
        return "NOT NEUTRAL", "1;31", f"{one_line(names)} {_verb('change', len(varied.faults))} the results"
    unknown = [assignment(each.values) for each in varied.verdicts if each.kind in (Kind.RANDOM, Kind.FAILED)]
    if unknown or varied.interrupted_by or varied.is_out_of_time:
        return "NOT DETERMINED", "33", f"no result for {one_line(', '.join(unknown)) or 'the values that did not run'}"
    kinds = {each.kind for each in varied.verdicts}
    allowed = "no bit" if kinds == {Kind.EQUAL} else "nothing beyond rounding"
    design = ", except by design" if Kind.BY_DESIGN in kinds else ""
    values = ", ".join(assignment(each.values) for each in varied.verdicts)
    return "NEUTRAL", "32", f"{one_line(values)} {_verb('change', len(varied.verdicts))} {allowed}{design}"


def next_commands(varied: Varied) -> list[str]:
    """Return the commands that look closer at the first difference, or at a base that does not repeat itself."""
    plan = varied.plan
    words = recording_words(plan.options.scenario_options.recording)
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
    """Return the same in plain values only, without secrets."""
    plan = varied.plan
    return {
        **_ended_json(varied, plan.argv),
        "settings": serialised(plan.settings),
        "has_bits": plan.options.has_bits,
        "unsteady": varied.unsteady,
        "verdicts": serialised(varied.verdicts),
        "look_closer": next_commands(varied),
    }
