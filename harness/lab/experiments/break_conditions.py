"""A run that ends where a condition holds, whichever command starts it: the lab's side of `recording/breakpoints`.

--break-on, --until ─▶ conditions ─▶ run spec, watched by Breakpoints ─▶ run ─▶ stop.json ─▶ where it has ended
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from harness.bits.errors import UsageError
from harness.bits.exit_codes import ExitCode
from harness.recording.conditions import (
    DIVERGENCE,
    INF,
    NAN,
    WORDS,
    Condition,
    Stop,
    parse_condition,
    read_stop,
    refuse_unknown,
)
from harness.recording.run_spec import RunSpec

BREAKPOINTS = "harness.recording.breakpoints:Breakpoints"
STOP = "stop.json"
"""In the directory of a command: where its run has ended."""


ELSEWHERE = f"rlharness replay SCENARIO --against RUN --break-on {DIVERGENCE}"
"""What looks for a divergence, where a command cannot."""


def conditions_of(break_on: Sequence[str], until: Sequence[str], words: Sequence[str] = WORDS) -> tuple[Condition, ...]:
    """What --break-on and --until say; UsageError for what is no condition, or no comparison.

    `words` are the conditions that make sense to a command, beside comparisons.
    """
    found = [parse_condition(text, "--break-on", words) for text in break_on]
    for text in until:
        condition = parse_condition(text, "--until", ())
        if condition.word:
            remedy = f"--break-on {condition.word}" if condition.word in words else ELSEWHERE
            raise UsageError(f"--until {condition.word}", legal="a comparison: 'reward<0.2'", remedy=remedy)
        found.append(condition)
    return tuple(found)


def conditions_of_one_run(break_on: Sequence[str], until: Sequence[str]) -> tuple[Condition, ...]:
    """The same of a command that knows of no other run; UsageError for the condition of a divergence too."""
    conditions = conditions_of(break_on, until, (NAN, INF))
    refuse_divergence(conditions, legal=f"{NAN}, {INF}, or a comparison: 'reward<0.2'", remedy=ELSEWHERE)
    return conditions


def refuse_divergence(conditions: Iterable[Condition], *, legal: str, remedy: str) -> None:
    """UsageError for the condition of a divergence, where there is no trace that could be diverged from."""
    if any(condition.word == DIVERGENCE for condition in conditions):
        raise UsageError(
            f"--break-on {DIVERGENCE}: this run has no recorded run to differ from", legal=legal, remedy=remedy
        )


def with_conditions(
    run_spec: RunSpec, conditions: Sequence[Condition], report: Path, against: Path | None = None
) -> RunSpec:
    """The same run spec, whose run ends where the first of these holds, and says in `report`, a file, where that was.

    `against` is the directory of the trace that the condition of a divergence means.
    """
    told = {"conditions": [*map(str, conditions)], "report": str(report), "against": str(against or "")}
    return replace(run_spec, callbacks={**run_spec.callbacks, BREAKPOINTS: told}) if conditions else run_spec


def read_report(report: Path) -> Stop | None:
    """Where a run has ended; None where no condition held. UsageError where one names what no curve calls so."""
    stop = read_stop(report)
    if stop is not None and stop.unknown:
        refuse_unknown([stop.unknown], stop.known)
    return stop


def exit_code_of(stop: Stop) -> ExitCode:
    """DIVERGED where the run has; any other condition that held is an answer."""
    return ExitCode.DIVERGED if stop.condition == DIVERGENCE else ExitCode.OK
