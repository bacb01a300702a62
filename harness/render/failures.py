"""Failures of a run: each failed test, and each unit whose end no failed test explains."""

import os
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from harness.bits.errors import ReportError
from harness.bits.exit_codes import ExitCode
from harness.bits.files import open_regular
from harness.bits.text import count, one_line
from harness.process.program_output import OutputFilter, output_tail, show_file
from harness.render.run_words import exit_reason, gpus
from harness.runner.events import RunFinished
from harness.runner.records.stats import RunState
from harness.runner.report_file import TestEnd, TestReport, read_report
from harness.runner.reruns.retries import read_attempts
from harness.runner.test_outcomes import TestOutcome
from harness.runner.units import Attempt, Outcome, UnitResult, file_of

FAILED = (TestOutcome.FAILED, TestOutcome.ERROR)
MAX_CHARS = 12_000
"""Characters of the text of one failure; its middle is left out."""
MAX_MESSAGE_LINES = 10


@dataclass(frozen=True, slots=True)
class Failure:
    """A failed test, a unit without a failed test, or the end of the run itself."""

    name: str
    """Node id of the test, or path of the unit; empty for the run itself."""
    outcome: str
    """Outcome in words: "failed", "timed out"."""
    reason: str
    """Lines for a person; most have one."""
    text: str = ""
    """Failure as pytest shows it, or the end of the output of a unit."""
    num_same: int = 0
    """Number of other units that have the same error and are left out."""

    @property
    def title(self) -> str:
        """The node id, with the outcome unless the test just failed."""
        name = one_line(self.name, 200) or "rlharness"
        return name if self.outcome == TestOutcome.FAILED.value else f"{self.outcome}: {name}"

    def message(self) -> list[str]:
        """Return the lines of the text that pytest marks as the error, after a reason that they do not hold."""
        marked = [line[1:].strip() for line in self.text.splitlines() if line.startswith("E ")]
        reason = [] if marked and self.reason in marked[0] else self.reason.splitlines()
        lines = [one_line(line) for line in (*reason, *marked) if line.strip()][:MAX_MESSAGE_LINES]
        if self.num_same:
            lines.append(f"the same error in {count(self.num_same, 'more unit')}")
        return lines or [self.outcome]


def list_failures(state: RunState, finished: RunFinished) -> list[Failure]:
    """Return the failures of a run by path, after the one of the run itself. Reads the reports of failed units."""
    found = [*_of_run(state, finished)]
    for worker in finished.failed_workers:
        found.append(Failure(f"worker {worker.name}", "error", worker.reason, without_middle(worker.text)))
    results = state.with_outcome(*Outcome)
    num = Counter((result.outcome, result.unit.collect_error) for result in results)
    for result in results:
        # Of units with one collection error, only the first is listed.
        num_same = num.pop((result.outcome, result.unit.collect_error), 0) if result.unit.collect_error else 1
        found += [replace(each, num_same=num_same - 1) for each in unit_failures(result) if num_same]
    return found


def list_unmet(state: RunState) -> list[Failure]:
    """Return the units that were not run for lack of GPUs, which is no failure if the user accepts it."""
    unmet = [result for result in state.with_outcome(Outcome.NOT_RUN) if result.for_want_of_gpus]
    return [Failure(result.unit.path, "not run", result.reason) for result in unmet]


def most_telling_first(failures: Sequence[Failure], newly_failing: Collection[str] = ()) -> list[Failure]:
    """Return failures in the order in which a reader needs them.

    The end of the run comes first, then newly failing tests and files. In both halves the first failure of each file
    comes before the second of any.
    """
    num_of_file = Counter[str]()
    ranked = []
    for failure in failures:
        num_of_file[file := file_of(failure.name.partition("::")[0])] += 1
        ranked.append((bool(failure.name), failure.name not in newly_failing, num_of_file[file]))
    return [failures[at] for at in sorted(range(len(failures)), key=ranked.__getitem__)]


def _of_run(state: RunState, finished: RunFinished) -> Iterator[Failure]:
    if finished.exit_code in (ExitCode.OK, ExitCode.TESTS_FAILED) and not finished.error:
        return
    reason = finished.error or exit_reason(finished, state) or "the run failed"
    held = [f"{gpus([each.gpu_id], state)} after {each.path}: {each.reason}" for each in state.quarantined.values()]
    yield Failure("", f"exit code {finished.exit_code}", one_line(reason, 1000), "\n".join(held))


def unit_failures(result: UnitResult) -> Iterator[Failure]:
    """Yield the failed tests of a unit, those that never ended, and the unit itself where they do not explain it."""
    outcome = result.outcome
    if not (outcome.is_failure or outcome is Outcome.INTERRUPTED):
        return
    report = _report(result)
    why = result.reason if outcome is Outcome.LEANING else ""
    failed = [(nodeid, end) for nodeid, end in report.ends.items() if end.outcome in FAILED]
    for nodeid, end in failed:
        reason = "; ".join(part for part in (why, end.reason) if part)
        yield Failure(nodeid, "leaning" if why else end.outcome.value, reason, without_middle(end.text))
    if outcome is Outcome.INTERRUPTED:
        return
    for nodeid in report.running:
        yield Failure(nodeid, *_end_of(nodeid, result))
    if report.running or (failed and outcome in (Outcome.FAILED, Outcome.LEANING)):
        return
    text = "\n".join(text for _, text in report.collect_errors) or result.unit.collect_error
    if not text and result.directory:
        text = "\n".join(output_tail(Path(result.directory, "output.log")))
    yield Failure(result.unit.path, _words(outcome.value), result.reason, without_middle(text))


def _end_of(nodeid: str, result: UnitResult) -> tuple[str, str]:
    """Return the outcome in words and the reason of a test that never ended: those of the process that it was in."""
    attempts: tuple[UnitResult | Attempt, ...] = (result, *reversed(result.attempts))
    for attempt in attempts:
        with suppress(OSError, ReportError):
            report = read_report(Path(attempt.directory, "report.jsonl"))
            if nodeid in report.running:
                lost = next((each for each in report.lost if each.nodeid == nodeid), None)
                return (_words(lost.how), lost.reason) if lost else (_words(attempt.outcome.value), attempt.reason)
    return _words(result.outcome.value), result.reason


def _report(result: UnitResult) -> TestReport:
    try:
        return read_attempts(result) if result.directory else TestReport()
    except (OSError, ReportError):
        return TestReport()


def _words(outcome: str) -> str:
    return outcome.replace("_", " ")


def without_middle(text: str, limit: int = MAX_CHARS) -> str:
    """Return `text`, its middle left out where it is longer than `limit` characters."""
    half = limit // 2
    left_out = f"\n[... {len(text) - 2 * half:,} characters left out ...]\n"
    return text if len(text) <= limit else f"{text[:half]}{left_out}{text[len(text) - half :]}"


def shown(text: str, *, colour: bool = False) -> str:
    """Return the text of a failure without anything that a terminal would obey but colours, if it may have them."""
    output = OutputFilter(colour=colour)
    return output.feed(text.encode("utf-8", "backslashreplace")) + output.finish()


WITH_SUMMARY = (0, 1, 2, 4, 5)
"""Exit codes at which pytest prints the failures of its tests before it exits."""


def unprinted_failures(result: UnitResult) -> list[tuple[str, TestEnd]]:
    """Return the failed tests of a unit, with their node ids, that no printed output shows, since pytest was ended."""
    try:
        report = read_report(Path(result.directory) / "report.jsonl") if result.directory else TestReport()
    except (ReportError, OSError):
        return []
    if result.outcome is not Outcome.INTERRUPTED and report.finished_exit in WITH_SUMMARY:
        return []
    return [(nodeid, end) for nodeid, end in report.ends.items() if end.outcome in FAILED]


def show_kept(path: Path, write: Callable[[str], None], *, colour: bool, cap_bytes: int, if_empty: str = "") -> None:
    """Write what an attempt has left in a file, its middle left out beyond `cap_bytes`."""
    try:
        file = open_regular(path)
    except OSError as error:  # the tests may have put anything in its place
        why = "is gone" if isinstance(error, FileNotFoundError) else f"is not shown: {error.strerror}"
        write(f"({one_line(str(path), 4096)} {why})\n")
        return
    with file:
        if os.fstat(file.fileno()).st_size:
            show_file(file, str(path), write, colour=colour, cap_bytes=cap_bytes)
        elif if_empty:
            write(f"({if_empty})\n")
