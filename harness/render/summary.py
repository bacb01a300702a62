"""Summary at the end of a run: each failing unit's complete output once, what needs attention, the figures."""

import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TextIO

from harness.bits.exit_codes import ExitCode
from harness.bits.files import open_regular
from harness.bits.text import count, one_line, put
from harness.process.program_output import MAX_SHOWN_BYTES, OutputFilter, show_file
from harness.render.failed_tests import failure_lines, unprinted_failures
from harness.render.gpu_memory import over_budget_lines, unmeasured_lines
from harness.render.isolation import isolation_text
from harness.render.outcomes import facts, gpus, label, tally
from harness.render.sentences import unselected
from harness.runner.events import Event, RunFinished
from harness.runner.records.run_record import PAGE
from harness.runner.records.stats import RunState
from harness.runner.report_file import TestEnd
from harness.runner.reruns.retries import flaky_tests
from harness.runner.test_outcomes import TestCounts
from harness.runner.units import NeedSource, Outcome, UnitResult, WorkerFailure

WIDTH = 80
MAX_LISTED = 20
"""A list of units shows this many; the rest is counted."""
BOLD_RED, RED, YELLOW, GREEN = "1;31", "31", "33", "32"

REMEDY_OF_NEED = {
    NeedSource.AST: "name the marker gpus in its own text, so that the plan imports it",
    NeedSource.IMPORT: "its markers change between imports: make them independent of the machine and of data files",
    NeedSource.TABLE: "correct the needs table",
}
REASON_OF_CODE = {
    ExitCode.INTERRUPTED: "the run was interrupted",
    ExitCode.INTERNAL_ERROR: "rlharness itself failed",
    ExitCode.USAGE_ERROR: "pytest refused its arguments",
    ExitCode.NOTHING_COLLECTED: "no tests were collected",
    ExitCode.GPU_QUARANTINED: "the tests passed, but a GPU was quarantined",
    ExitCode.UNITS_NOT_RUN: "units were not run for lack of GPUs (--allow-missing-gpus accepts this)",
}


class SummaryReporter:
    """Writes the summary to `stream` when the run has finished.

    Raises OSError or ValueError where the stream is gone.
    """

    def __init__(self, stream: TextIO, *, colour: bool, cap_bytes: int = MAX_SHOWN_BYTES) -> None:
        self._stream = stream
        self._colour = colour
        self._cap_bytes = cap_bytes
        self._shown: dict[str, str] = {}
        """Collection errors that were shown: the text, and the first unit it was shown for."""

    def on_event(self, event: Event, state: RunState) -> None:
        """Wait for the last event."""
        if not isinstance(event, RunFinished):
            return
        for result in state.with_outcome(*Outcome):
            if result.is_failure:
                self._failure(result, state)
            elif result.outcome is Outcome.INTERRUPTED and (failures := unprinted_failures(result)):
                self._title(result, state)
                self._failed_tests(failures)
                self._kept(result)
        for worker in event.failed_workers:
            self._failed_worker(worker)
        for head, tone, lines in _sections(event, state):
            self._list(head, tone, lines)
        if state.units or not event.error:  # else nothing was counted, and the command line says why
            self._figures(event, state)
        self._stream.flush()

    def close(self) -> None:
        """Nothing is held."""

    def _title(self, result: UnitResult, state: RunState) -> None:
        title = f" {label(result.outcome)} {one_line(result.unit.path)} "
        self._put("\n" + self._paint(title.center(WIDTH, "="), BOLD_RED) + "\n")
        said = [", ".join(facts(result, state)), one_line(result.reason, 1000)]
        self._put(": ".join(part for part in said if part) + "\n")
        if result.outcome is Outcome.TIMED_OUT:
            self._put("rlharness sent SIGINT first: a KeyboardInterrupt below is the place where the file was then\n")
        self._put("\n")

    def _failure(self, result: UnitResult, state: RunState) -> None:
        self._title(result, state)
        if not result.directory:
            first = self._shown.setdefault(result.unit.collect_error, result.unit.path)
            if first != result.unit.path:  # a conftest that cannot be imported fails every file below it
                self._put(f"(same error as {one_line(first)}, above)\n")
                return
            output = OutputFilter(colour=self._colour)
            text = output.feed(result.unit.collect_error.encode("utf-8", "backslashreplace")) + output.finish()
            self._put(text.rstrip("\n") + "\n" if text else "(it never started)\n")
            return
        for attempt in result.attempts:
            which = "its rest" if attempt.is_rest else "earlier attempt"
            earlier = f"{which}, {label(attempt.outcome)}: {one_line(attempt.reason, 1000)}".removesuffix(": ")
            self._put(self._paint(f"({earlier}, kept in {one_line(attempt.directory, 4096)})", "2") + "\n")
        directory = Path(result.directory)
        self._file(directory / "output.log", "no output")
        for attempt in result.attempts:
            if attempt.is_rest and attempt.outcome.is_failure:
                self._file(Path(attempt.directory) / "output.log", "")
        if failures := unprinted_failures(result):
            self._put("\n" + self._paint(" tests that failed before its end ".center(WIDTH, "-"), RED) + "\n")
            self._failed_tests(failures)
        stacks = directory / "stacks.txt"
        if os.path.lexists(stacks):
            self._put("\n" + self._paint(" stacks of its processes at termination ".center(WIDTH, "-"), RED) + "\n")
            self._file(stacks, "")
        self._kept(result)

    def _failed_worker(self, worker: WorkerFailure) -> None:
        title = f" FAILED worker {worker.name}, after its last file "
        self._put("\n" + self._paint(title.center(WIDTH, "="), BOLD_RED) + f"\n{one_line(worker.reason, 1000)}\n\n")
        output = OutputFilter(colour=self._colour)
        text = output.feed(worker.text.encode("utf-8", "backslashreplace")) + output.finish()
        self._put(text.rstrip("\n") + "\n" + self._paint(f"(kept in {one_line(worker.log, 4096)})", "2") + "\n")

    def _failed_tests(self, failures: list[tuple[str, TestEnd]]) -> None:
        self._put("".join(f"{line}\n" for line in failure_lines(failures, colour=self._colour)))

    def _kept(self, result: UnitResult) -> None:
        self._put(self._paint(f"(kept in {one_line(result.directory, 4096)})", "2") + "\n")

    def _file(self, path: Path, if_empty: str) -> None:
        try:
            file = open_regular(path)
        except FileNotFoundError:
            self._put(f"({one_line(str(path), 4096)} is gone)\n")
            return
        except OSError as error:  # the tests may have put anything in its place
            self._put(f"({one_line(str(path), 4096)} is not shown: {error.strerror})\n")
            return
        with file:
            if os.fstat(file.fileno()).st_size:
                show_file(file, str(path), self._put, colour=self._colour, cap_bytes=self._cap_bytes)
            elif if_empty:
                self._put(f"({if_empty})\n")

    def _list(self, head: str, tone: str, lines: list[str]) -> None:
        if not lines:
            return
        self._put("\n" + self._paint(f"{head} ({len(lines):,})", tone) + "\n")
        for line in lines[:MAX_LISTED]:
            self._put(f"  {line}\n")
        if len(lines) > MAX_LISTED:
            self._put(f"  and {len(lines) - MAX_LISTED:,} more\n")

    def _figures(self, event: RunFinished, state: RunState) -> None:
        self._put("\n")
        for outcome in Outcome:
            if number := state.outcomes[outcome]:
                tone = RED if state.is_failure(outcome) else GREEN if outcome is Outcome.PASSED else YELLOW
                self._put("  " + self._paint(f"{outcome.value.replace('_', ' '):<17}{number:>7,}", tone) + "\n")
        deselected = f", {state.num_deselected:,} deselected" if state.num_deselected else ""
        if num_files := sum(result.is_deselected for result in state.with_outcome(Outcome.NO_TESTS)):
            deselected += f"; {unselected(num_files)}"
        self._put(f"  tests: {tally(TestCounts(dict(state.tests)))}{deselected}\n\n")
        reason = exit_reason(event, state)
        if reason:
            self._put(self._paint(f"exit code {event.exit_code}: {reason}", YELLOW) + "\n")
        page = Path(state.started.directory, PAGE) if state.started else None
        if page and page.is_file():
            self._put(self._paint(f"page: {one_line(str(page), 4096)}", "2") + "\n")
        good = event.exit_code == ExitCode.OK
        self._put(self._paint(closing_line(event, state), GREEN if good else BOLD_RED) + "\n")

    def _paint(self, text: str, code: str) -> str:
        return f"\x1b[{code}m{text}\x1b[0m" if self._colour else text

    def _put(self, text: str) -> None:
        put(self._stream, text)


def closing_line(event: RunFinished, state: RunState) -> str:
    """The run in one line: counts, wall time against sequential time, utilisation of the GPUs, lower bound."""
    outcomes = ", ".join(f"{state.outcomes[o]:,} {o.value.replace('_', ' ')}" for o in Outcome if state.outcomes[o])
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
    if event.bounding_unit:
        facts.append(f"{one_line(event.bounding_unit)} sets the bound: split it")
    return f"{units} in {event.wall_s:.1f} s ({'; '.join(facts)})"


def _sections(event: RunFinished, state: RunState) -> Iterator[tuple[str, str, list[str]]]:
    """(head, colour, lines) of each list, empty ones included."""
    results = state.with_outcome(*Outcome)
    not_run = [result for result in results if result.outcome is Outcome.NOT_RUN]
    failures = [result for result in results if result.is_failure]
    failed = [f"{label(r.outcome)} {', '.join([one_line(r.unit.path), *facts(r, state)])}" for r in failures]
    yield "failed, shown above", RED, failed
    workers = [f"worker {w.name}: {w.reason} (see {one_line(w.log, 4096)})" for w in event.failed_workers]
    yield "workers that failed after their last file", RED, workers
    yield "flaky, passed when run again", YELLOW, [_flaky(r) for r in results if r.outcome is Outcome.FLAKY]
    yield "leaning on others, accepted", YELLOW, [_kept_line(r) for r in results if r.is_accepted]
    yield "interrupted", YELLOW, [_kept_line(r) for r in results if r.outcome is Outcome.INTERRUPTED]
    cancelled = [r for r in not_run if not r.for_want_of_gpus]
    yield "not run because the run was cancelled", YELLOW, [_with_reason(r) for r in cancelled]
    yield "not run for lack of GPUs", YELLOW, [_with_reason(r) for r in not_run if r.for_want_of_gpus]
    yield (
        "no tests",
        YELLOW,
        [_with_reason(r) for r in results if r.outcome is Outcome.NO_TESTS and not r.is_deselected],
    )
    yield "every test skipped", YELLOW, [_skips(r) for r in results if r.tests.all_skipped]
    yield "left processes behind, now killed", YELLOW, [_left(r) for r in results if r.left_behind]
    yield "needs that differ from the plan", YELLOW, [_need(r) for r in results if r.need_disagrees]
    over = over_budget_lines((r.unit.path, r.unit.need, r.gpu_memory) for r in results)
    yield "used more GPU memory than their budget", YELLOW, over
    held = state.quarantined.values()
    quarantined = [f"{gpus([e.gpu_id], state)} after {one_line(e.path)}: {one_line(e.reason)}" for e in held]
    yield "GPUs in quarantine, not leased again", RED, quarantined
    notes = (*event.notes, *map(isolation_text, event.isolation), *unmeasured_lines(results))
    yield "notes", YELLOW, [one_line(note, 1000) for note in notes]


def exit_reason(event: RunFinished, state: RunState) -> str:
    """Return the reason for the exit code; empty if it needs none."""
    if event.exit_code == ExitCode.USAGE_ERROR and not event.error and not state.outcomes[Outcome.USAGE_ERROR]:
        return "a requested file could not be written: see the notes"
    if event.exit_code == ExitCode.INTERRUPTED and event.error:  # of merged runs
        return one_line(event.error, 1000)
    return REASON_OF_CODE.get(ExitCode(event.exit_code), "")


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


def _skips(result: UnitResult) -> str:
    return _joined(result, result.skip_reasons or ["no reason given"])


def _left(result: UnitResult) -> str:
    return _joined(result, result.left_behind)


def _need(result: UnitResult) -> str:
    found = f"planned with {result.unit.need}, but its markers ask for {result.collected_need}"
    return _joined(result, [found, REMEDY_OF_NEED[result.unit.source]])


def _joined(result: UnitResult, facts: Iterable[str]) -> str:
    """path: fact; fact."""
    text = "; ".join(one_line(fact) for fact in facts)
    return one_line(result.unit.path) + (f": {text}" if text else "")
