"""A run of tests as text: lines while it runs, and at its end what failed, what needs attention, and the figures."""

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import TextIO

from harness.bits.exit_codes import ExitCode
from harness.bits.text import count, one_line, put
from harness.process.program_output import MAX_SHOWN_BYTES
from harness.render.console import at_most, painted
from harness.render.run_words import (
    FAILED,
    Failure,
    estimated,
    exit_reason,
    facts,
    gpus,
    has_printed,
    isolation_text,
    label,
    outcome_counts,
    over_budget_lines,
    show_kept,
    shown,
    split_line,
    tally,
    unit_failures,
    unmeasured_lines,
    words,
)
from harness.runner import events
from harness.runner.records.recorded_run import PAGE, MergedRun
from harness.runner.records.stats import Running, RunState
from harness.runner.report_file import TestCounts
from harness.runner.reruns.retries import flaky_tests
from harness.runner.schedule.packing import ShardPlan
from harness.runner.units import Outcome, UnitResult, file_of

"""Seconds between two lines about a collection."""
WIDTH = 80
MAX_LISTED = 20
"""A list of units shows this many; the rest is counted."""
MAX_TESTS = 20
"""Failed tests of one file that are shown although pytest has not printed them."""
BOLD_RED, RED, YELLOW, GREEN, DIM = "1;31", "31", "33", "32", "2"


# ---- sentences about events, shared with the live display


Tone = Enum("Tone", ("GOOD", "QUIET", "WARNING", "BAD"))
"""Importance of a sentence."""


@dataclass(frozen=True, slots=True)
class Sentence:
    """A word or two on what kind of thing happened, and what it was; both safe to print."""

    tone: Tone
    label: str
    text: str


def head_lines(event: events.RunStarted) -> list[str]:
    """The run's first lines: its name, the GPUs it may use and those it may not, and where its output is kept."""
    return [
        f"rlharness run {one_line(event.run_id)}: {count(len(event.gpus), 'GPU')}, "
        f"{count(event.cpu_units, 'CPU slot')}, containment {one_line(event.containment)}",
        *([f"  shard {one_line(event.shard)}"] if event.shard else []),
        *(f"  gpu {one_line(gpu)}" for gpu in event.gpus),
        *(f"  not used: {one_line(gpu)}" for gpu in event.left_out),
        *(f"  note: {one_line(note)}" for note in event.notes),
        f"  output: {one_line(event.directory)}",
    ]


def sentences(event: events.Event, state: RunState) -> list[Sentence]:
    """Return the sentences about an event; empty for an event that needs none."""
    match event:
        case events.CollectionFinished():
            found = [Sentence(Tone.QUIET, "collected", _plan(event))]
            if event.num_deselected:
                found.append(Sentence(Tone.QUIET, "deselected", unselected(event.num_deselected)))
            found += [Sentence(Tone.QUIET, "split", split_line(each)) for each in event.splits]
            return found + [Sentence(Tone.WARNING, "note", one_line(note)) for note in event.notes]
        case events.UnitFinished():
            return _unit_sentences(event.result, state)
        case events.AttemptSlow():
            attempt = state.running.get(event.path)
            where = running_line(attempt, event.t, state.gpus) if attempt else one_line(event.path)
            return [Sentence(Tone.WARNING, "slow", where)]
        case events.AttemptFailed():
            what = count(len(event.tests), "test") if event.tests else "the whole file"
            next_up = f"{what} left" if event.is_rest else f"{what} again, {event.number} of {event.limit}"
            parts = [one_line(event.path), *facts(event.result, state), next_up]
            why = f": {one_line(event.result.reason)}" if event.result.reason else ""
            word = "continuing" if event.is_rest else "retrying"
            return [Sentence(Tone.WARNING, word, f"{label(event.result.outcome)} {', '.join(parts)}{why}")]
        case events.AttemptTerminating():
            return [Sentence(Tone.WARNING, "terminating", f"{one_line(event.path)}: {words(event.reason)}")]
        case events.GpuQuarantined():
            return [Sentence(Tone.BAD, "QUARANTINED", _quarantine(event, state))]
        case events.GpuReadmitted():
            return [Sentence(Tone.QUIET, "leased again", f"{gpus([event.gpu_id], state.gpus)}: it is as it was before")]
        case events.LeaseRefused():
            why = one_line(event.lost) if event.lost else "its GPUs were not fit for use"
            return [Sentence(Tone.WARNING, "queued again", f"{one_line(event.path)}: {why}; it starts next on others")]
        case events.CancelRequested():
            hint = "; running units are terminated (interrupt again to kill them)"
            doing = f"no more units start{hint if event.interrupt and state.running else ''}"
            doing = "running units are killed" if event.kill else doing
            return [Sentence(Tone.WARNING, "cancelled", f"{one_line(event.reason)}: {doing}")]
    return []


def unselected(num_files: int) -> str:
    """Return how many files have tests of which none is selected."""
    return f"{count(num_files, 'file')} without a selected test"


def alive(state: RunState) -> str:
    """Return the progress of the run in counts: 2 now, 4 queued, 4 of 10 done: 3 passed, 1 failed."""
    if state.units:
        outcomes = outcome_counts(state.outcomes)
        done = f"{state.num_done} of {len(state.units)} done{f': {outcomes}' if outcomes else ''}"
        return f"{len(state.running)} now, {state.num_queued} queued, {done}"
    return "collecting"


def running_line(attempt: Running, now_t: float, gpu_lines: Sequence[str]) -> str:
    """One attempt that runs: its file, since when, where, and the test it is in."""
    parts = [one_line(attempt.path), f"{now_t - attempt.started_t:.1f} s", gpus(attempt.gpu_ids, gpu_lines)]
    if attempt.test:
        test = attempt.test.removeprefix(file_of(attempt.path)).removeprefix("::")
        parts.append(f"in {one_line(test)} for {now_t - attempt.test_started_t:.1f} s")
    if attempt.terminating:
        parts.append(f"terminating: {words(attempt.terminating)}")
    return ", ".join(parts)


def shard_units(shard: ShardPlan, num_units: int) -> str:
    """Return how many units of a suite a shard has: "31 of 240 units, partition 3f9a2c81d0e4"."""
    return f"{num_units:,} of {count(shard.num_suite_units, 'unit')}, partition {shard.partition}"


def _plan(event: events.CollectionFinished) -> str:
    num_units = len(event.units)
    units = count(num_units, "unit") if event.shard is None else shard_units(event.shard, num_units)
    times = f"planned {event.planned_makespan_s:.1f} s, lower bound {event.lower_bound_s:.1f} s"
    guess = estimated(event.num_estimated, sum(seconds > 0 for seconds in event.expected_s))
    return f"{units} in {event.duration_s:.1f} s; {times}" + (f" ({guess})" if guess else "")


def _quarantine(event: events.GpuQuarantined, state: RunState) -> str:
    return f"{gpus([event.gpu_id], state.gpus)} after {one_line(event.path)}: {one_line(event.reason)}"


def _unit_sentences(result: UnitResult, state: RunState) -> list[Sentence]:
    """A unit's outcome; nothing of one of possibly thousands that were cancelled before they started, or deselected."""
    outcome = result.outcome
    if (outcome is Outcome.NOT_RUN and not result.for_want_of_gpus) or result.is_deselected:
        return []
    text = ", ".join([one_line(result.unit.path), *facts(result, state)])
    if result.left_behind:
        text += f", {count(len(result.left_behind), 'process', 'processes')} left behind and killed"
    if result.reason:
        text += f": {one_line(result.reason)}"
    is_good = outcome is Outcome.PASSED and not result.tests.all_skipped and not result.left_behind
    tone = Tone.BAD if result.is_failure else Tone.GOOD if is_good else Tone.WARNING
    return [Sentence(tone, label(outcome), text)]


class PlainReporter:
    """The display where there is no terminal: a line for each thing worth one, without control characters.

    Raises OSError or ValueError where `stream` is gone.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def on_event(self, event: events.Event, state: RunState) -> None:
        """Write the lines of an event."""
        match event:
            case events.RunStarted():
                put(self._stream, "".join(f"{line}\n" for line in head_lines(event)))
            case events.Heartbeat() | events.DumpRequested():
                self._line(event.t, "running" if isinstance(event, events.Heartbeat) else "dump", alive(state))
                for attempt in state.running.values():
                    self._line(event.t, "", running_line(attempt, event.t, state.gpus))
            case _:
                total = str(len(state.units))
                done = f"[{len(state.results):>{len(total)}}/{total}] "
                done = done if isinstance(event, events.UnitFinished) else ""
                for said in sentences(event, state):
                    self._line(event.t, said.label, done + said.text)
        self._stream.flush()

    def close(self) -> None:
        """Hold nothing."""

    def _line(self, t: float, label: str, text: str) -> None:
        put(self._stream, f"{t:8.1f} s  {label:<15}  {text}\n")


# ---- the end of a run


class SummaryReporter:
    """Writes to `stream` when the run has finished: failures, each with its complete output once, lists, figures.

    Raises OSError or ValueError where the stream is gone.
    """

    def __init__(self, stream: TextIO, *, colour: bool, cap_bytes: int = MAX_SHOWN_BYTES) -> None:
        self._stream = stream
        self._colour = colour
        self._cap_bytes = cap_bytes
        self._collect_errors: dict[str, str] = {}
        """Collection errors that were shown, with the first unit that each was shown for."""

    def on_event(self, event: events.Event, state: RunState) -> None:
        """Write at the end."""
        if not isinstance(event, events.RunFinished):
            return
        for result in state.with_outcome(*Outcome):
            if result.is_failure:
                self._failure(result, state)
            elif result.outcome is Outcome.INTERRUPTED and (failures := list(unit_failures(result))):
                self._title(result, state)
                self._failed_tests(failures)
                self._kept(result.directory)
        for each in event.session_failures:
            self._rule(" FAILED pytest's session, after its last test ", BOLD_RED, "=")
            text = shown(each.text, colour=self._colour).rstrip("\n")
            self._put(f"{one_line(each.reason, 1000)}\n\n{text}\n")
            self._kept(each.log)
        for head, tone, found in sections_of(event, state):
            if found:
                self._put("\n" + self._paint(f"{head} ({len(found):,})", tone) + "\n")
                self._put("".join(f"  {line}\n" for line in at_most(found, MAX_LISTED)))
        if state.units or not event.error:  # else nothing was counted, and the command line says why
            self._figures(event, state)
        self._stream.flush()

    def close(self) -> None:
        """Hold nothing."""

    def _title(self, result: UnitResult, state: RunState) -> None:
        self._rule(f" {label(result.outcome)} {one_line(result.unit.path)} ", BOLD_RED, "=")
        said = [", ".join(facts(result, state)), one_line(result.reason, 1000)]
        self._put(": ".join(part for part in said if part) + "\n")
        if result.outcome is Outcome.TIMED_OUT:
            self._put("rlharness sent SIGINT first: a KeyboardInterrupt below is the place where the file was then\n")
        self._put("\n")

    def _failure(self, result: UnitResult, state: RunState) -> None:
        self._title(result, state)
        if not result.directory:
            first = self._collect_errors.setdefault(result.unit.collect_error, result.unit.path)
            if first != result.unit.path:  # a conftest that cannot be imported fails every file below it
                self._put(f"(same error as {one_line(first)}, above)\n")
                return
            text = shown(result.unit.collect_error, colour=self._colour)
            self._put(text.rstrip("\n") + "\n" if text else "(it never started)\n")
            return
        for attempt in result.attempts:
            which = "its rest" if attempt.is_rest else "earlier attempt"
            earlier = f"{which}, {label(attempt.outcome)}: {one_line(attempt.reason, 1000)}".removesuffix(": ")
            self._kept(attempt.directory, f"{earlier}, ")
        directory = Path(result.directory)
        self._file(directory / "output.log", "no output")
        for attempt in result.attempts:
            if attempt.is_rest and attempt.outcome.is_failure:
                self._file(Path(attempt.directory) / "output.log")
        if not has_printed(result):
            self._failed_tests([each for each in unit_failures(result) if each.outcome in FAILED])
        stacks = directory / "stacks.txt"
        if os.path.lexists(stacks):
            self._rule(" stacks of its processes at termination ", RED, "-")
            self._file(stacks)
        self._kept(result.directory)

    def _failed_tests(self, failures: list[Failure]) -> None:
        for each in failures[:MAX_TESTS]:
            self._put(
                f"\n{each.outcome.upper()} {one_line(each.name)}{f': {one_line(each.reason)}' if each.reason else ''}\n"
            )
            self._put(shown(each.text, colour=self._colour).rstrip("\n") + "\n" if each.text else "")
        if len(failures) > MAX_TESTS:
            self._put(f"and {len(failures) - MAX_TESTS:,} more\n")

    def _kept(self, directory: str, said: str = "") -> None:
        self._put(self._paint(f"({said}kept in {one_line(directory, 4096)})", DIM) + "\n")

    def _file(self, path: Path, if_empty: str = "") -> None:
        show_kept(path, self._put, colour=self._colour, cap_bytes=self._cap_bytes, if_empty=if_empty)

    def _figures(self, event: events.RunFinished, state: RunState) -> None:
        self._put("\n")
        for outcome in Outcome:
            if number := state.outcomes[outcome]:
                tone = RED if state.is_failure(outcome) else GREEN if outcome is Outcome.PASSED else YELLOW
                self._put("  " + self._paint(f"{outcome.value.replace('_', ' '):<17}{number:>7,}", tone) + "\n")
        deselected = f", {state.num_deselected:,} deselected" if state.num_deselected else ""
        if num_files := sum(result.is_deselected for result in state.with_outcome(Outcome.NO_TESTS)):
            deselected += f"; {unselected(num_files)}"
        self._put(f"  tests: {tally(TestCounts(dict(state.tests)))}{deselected}\n\n")
        if reason := exit_reason(event, state):
            self._put(self._paint(f"exit code {event.exit_code}: {reason}", YELLOW) + "\n")
        page = Path(state.started.directory, PAGE) if state.started else None
        if page and page.is_file():
            self._put(self._paint(f"page: {one_line(str(page), 4096)}", DIM) + "\n")
        tone = GREEN if event.exit_code == ExitCode.OK else BOLD_RED
        self._put(self._paint(closing_line(event, state), tone) + "\n")

    def _rule(self, title: str, tone: str, character: str) -> None:
        self._put("\n" + self._paint(title.center(WIDTH, character), tone) + "\n")

    def _paint(self, text: str, code: str) -> str:
        return painted(text, code, self._colour)

    def _put(self, text: str) -> None:
        put(self._stream, text)


def closing_line(event: events.RunFinished, state: RunState) -> str:
    """The run in one line: counts, wall time against sequential time, utilisation of the GPUs, lower bound."""
    outcomes = outcome_counts(state.outcomes)
    if num_unknown := len(state.units) - len(state.results):  # of merged runs
        outcomes += f"{', ' * bool(outcomes)}{num_unknown:,} without an outcome"
    units = count(len(state.units), "unit") + (f": {outcomes}" if outcomes else "")
    if event.sequential_s <= 0:  # nothing ran
        return f"{units} in {event.wall_s:.1f} s"
    facts = [f"sequential {event.sequential_s:.1f} s"]
    if event.wall_s > 0:
        facts[0] += f", {event.sequential_s / event.wall_s:.1f}x"
    if state.gpus:
        facts.append(f"GPUs {event.utilisation:.0%} leased")
    if event.lower_bound_s > 0:
        facts.append(f"lower bound {event.lower_bound_s:.1f} s{' as measured' if state.num_estimated else ''}")
    return f"{units} in {event.wall_s:.1f} s ({'; '.join(facts)})"


def sections_of(event: events.RunFinished, state: RunState) -> Iterator[tuple[str, str, list[str]]]:
    """(head, colour, lines) of each list, empty ones included."""
    results = state.with_outcome(*Outcome)
    failed = [
        f"{label(r.outcome)} {', '.join([one_line(r.unit.path), *facts(r, state)])}" for r in results if r.is_failure
    ]
    yield "failed, shown above", RED, failed
    ends = [f"{each.reason} (see {one_line(each.log, 4096)})" for each in event.session_failures]
    yield "pytest's session failed after its last test", RED, ends
    by = {outcome: [r for r in results if r.outcome is outcome and not r.is_deselected] for outcome in Outcome}
    not_run = by[Outcome.NOT_RUN]
    skipped = [_joined(r, r.skip_reasons or ["no reason given"]) for r in results if r.tests.all_skipped]
    over = over_budget_lines((r.unit.path, r.unit.need, r.gpu_memory) for r in results)
    notes = (*event.notes, *map(isolation_text, event.isolation), *unmeasured_lines(results))
    attention = {
        "flaky, passed when run again": map(_flaky, by[Outcome.FLAKY]),
        "leaning on others, accepted": [_kept_line(r) for r in results if r.is_accepted],
        "interrupted": map(_kept_line, by[Outcome.INTERRUPTED]),
        "not run because the run was cancelled": [_with_reason(r) for r in not_run if not r.for_want_of_gpus],
        "not run for lack of GPUs": [_with_reason(r) for r in not_run if r.for_want_of_gpus],
        "no tests": map(_with_reason, by[Outcome.NO_TESTS]),
        "every test skipped": skipped,
        "left processes behind, now killed": [_joined(r, r.left_behind) for r in results if r.left_behind],
        "needs that differ from the plan": [_need(r) for r in results if r.need_disagrees],
        "used more GPU memory than their budget": over,
        "GPUs in quarantine, not leased again": [_quarantine(each, state) for each in state.quarantined.values()],
        "notes": [one_line(note, 1000) for note in notes],
    }
    for head, lines in attention.items():
        yield head, RED if head.startswith("GPUs") else YELLOW, list(lines)


def _with_reason(result: UnitResult) -> str:
    return _joined(result, [result.reason] if result.reason else [])


def _flaky(result: UnitResult) -> str:
    attempts = [
        f"{label(each.outcome)}{f' ({each.reason})' if each.reason else ''} in {each.directory}"
        for each in result.attempts
    ]
    return _joined(result, [*flaky_tests(result), *attempts, result.reason])


def _kept_line(result: UnitResult) -> str:
    where = f" (kept in {one_line(result.directory, 4096)})" if result.directory else ""
    return _with_reason(result) + where


def _need(result: UnitResult) -> str:
    return _joined(result, [f"planned with {result.unit.need}, but its markers ask for {result.collected_need}"])


def _joined(result: UnitResult, facts: Iterable[str]) -> str:
    """path: fact; fact."""
    text = "; ".join(one_line(fact) for fact in facts)
    return one_line(result.unit.path) + (f": {text}" if text else "")


def merge_lines(merged: MergedRun) -> Iterator[str]:
    """Yield a line for each of the merged runs, and one for each missing shard or early end."""
    shards = f", {count(merged.num_shards, 'shard')}" if merged.num_shards else ""
    yield f"rlharness merge: {count(len(merged.runs), 'run')}{shards}"
    for run in merged.runs:
        shard = f"shard {one_line(run.started.shard)}, " if run.started.shard else ""
        units = count(len(run.collected.units), "unit") if run.collected is not None else "no units known"
        end = f"exit code {run.finished.exit_code}" if run.finished is not None else "its record has no end"
        yield f"  {shard}{units}, {end}: {one_line(run.name, 4096)}"
    for error in merged.errors:
        yield f"  {one_line(error, 4096)}"
