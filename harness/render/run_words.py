"""Outcomes, figures, notes and failures of a run of tests in words, which every output of it shares."""

import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from harness.bits.errors import ReportError
from harness.bits.exit_codes import ExitCode
from harness.bits.files import open_regular
from harness.bits.text import count, one_line, ranges
from harness.process.program_output import harmless, output_tail, show_file
from harness.runner.events import RunFinished
from harness.runner.need import Need
from harness.runner.records.stats import RunState
from harness.runner.report_file import TestCounts, TestOutcome, TestReport, read_report
from harness.runner.reruns.retries import read_attempts
from harness.runner.schedule.splitting import Split
from harness.runner.units import GpuMemoryUse, IsolationNote, Outcome, UnitResult, Unmeasured, exceeds_budget, file_of

REASON_OF_CODE: dict[int, str] = {
    ExitCode.INTERRUPTED: "the run was interrupted",
    ExitCode.INTERNAL_ERROR: "rlharness itself failed",
    ExitCode.USAGE_ERROR: "pytest refused its arguments",
    ExitCode.NOTHING_COLLECTED: "no tests were collected",
    ExitCode.GPU_QUARANTINED: "the tests passed, but a GPU was quarantined",
    ExitCode.UNITS_NOT_RUN: "units were not run for lack of GPUs (--allow-missing-gpus accepts this)",
}
TEST_WORDS = {TestOutcome.ERROR: "in error", TestOutcome.UNSTARTED: "not started"}


def words(name: str) -> str:
    """Return an outcome, or a reason of AttemptTerminating, in words: "test_timeout" is "test timeout"."""
    return one_line(name.replace("_", " "))


def label(outcome: Outcome) -> str:
    """The outcome in words, in capitals if it needs attention: "passed", "FAILED", "TIMED OUT"."""
    text = words(outcome.value)
    return text if outcome in (Outcome.PASSED, Outcome.NO_TESTS) else text.upper()


def tally(tests: TestCounts) -> str:
    """14 passed, 2 skipped: in the order of TestOutcome, worst not first; "no tests" for none."""
    parts = [f"{tests[each]:,} {TEST_WORDS.get(each, each.value)}" for each in TestOutcome if tests[each]]
    return ", ".join(parts) or "no tests"


def outcome_counts(outcomes: Mapping[Outcome, int]) -> str:
    """Units by outcome: "34 passed, 3 failed"."""
    found = [(each, num) for each in Outcome if (num := outcomes.get(each))]
    return ", ".join(f"{num:,} {words(each.value)}" for each, num in found)


def facts(result: UnitResult, state: RunState) -> list[str]:
    """Return how long a unit ran, on which GPUs, and its test counts; empty if it never started."""
    if not result.directory:
        return []
    return [f"{result.duration_s:.1f} s", gpus(result.gpu_ids, state.gpus), tally(result.tests)]


def exit_reason(event: RunFinished, state: RunState) -> str:
    """Return the reason for the exit code; empty if it needs none."""
    if event.exit_code == ExitCode.USAGE_ERROR and not event.error and not state.outcomes[Outcome.USAGE_ERROR]:
        return "a requested file could not be written: see the notes"
    if event.exit_code == ExitCode.INTERRUPTED and event.error:  # of merged runs
        return one_line(event.error, 1000)
    return REASON_OF_CODE.get(ExitCode(event.exit_code), "")


def estimated(num_estimated: int, num_planned: int) -> str:
    """Return how many durations of a plan are estimates; empty if all were measured in earlier runs."""
    return f"estimated for {num_estimated:,} of {num_planned:,} files" if num_estimated else ""


def gpus(gpu_ids: Iterable[str], lines: Iterable[str]) -> str:
    """The GPUs of a lease by their positions among the run's: "gpu 0", "gpus 0-3,6"; "cpu" for none.

    `lines` are those of RunStarted: "0 NVIDIA H200 143 GB GPU-..."
    """
    names = {line[-1]: line[0] for line in map(str.split, lines) if line}
    shown = [names.get(gpu_id, gpu_id) for gpu_id in gpu_ids]
    return f"gpu{'' if len(shown) == 1 else 's'} {ranges(shown)}" if shown else "cpu"


# ---- isolation


def isolation_text(note: IsolationNote) -> str:
    """Return the sentence of a note. It may hold texts of others, unescaped."""
    detail, num = note.detail, note.num_processes
    name, _, reader = detail.partition(" ")
    more = f" ({detail})" if detail else ""
    subject = "the file" if note.path else "the suite"
    why = note.reason(subject=subject, detail=detail, more=more, name=name, reader=reader) if note.reason else detail
    processes = f"{count(num, 'process', 'processes')} {'has' if num == 1 else 'have'}" if num else "each file has"
    files, each, whose = note.path or count(num, "file"), " each" if num > 1 else "", "their" if num else "its"
    values: dict[str, Any] = {"path": note.path, "detail": detail, "files": files, "each": each, "whose": whose}
    return str(note.code(processes=processes, why=why, **values))


# ---- files in parts


def split_line(split: Split) -> str:
    """Return a line about one file: its number of parts or the obstacle, and why it is to be split."""
    path, why = one_line(split.path), split.reason(expected_s=split.expected_s, bound_s=split.bound_s)
    if not split.obstacle:
        return f"{path} is split into {count(split.num_parts, 'part')}: {why}"
    return f"{path} is not split: {one_line(split.obstacle)} ({why})"


# ---- GPU memory


def gb_text(num_bytes: int | None) -> str:
    """An amount of memory in GB (10**9 bytes); "not measured" for None."""
    if num_bytes is None:
        return "not measured"
    return f"{num_bytes / 1e9:,.2f} GB" if num_bytes < 10**10 else f"{num_bytes / 1e9:,.1f} GB"


def over_budget_lines(uses: Iterable[tuple[str, Need, GpuMemoryUse | None]]) -> Iterator[str]:
    """Yield a line for each unit (path, need, use) that exceeded its budget, with the tests during which it did."""
    for path, need, use in uses:
        if use is not None and exceeds_budget(use, need):
            over = [nodeid for nodeid, peak in use.tests.items() if peak > need.budget_bytes]
            named = ", ".join(one_line(each.partition("::")[2] or each) for each in over[:3])
            tests = f", while {named}{f' and {len(over) - 3:,} more' * (len(over) > 3)} ran" if over else ""
            yield f"{one_line(path)}: {gb_text(use.peak_bytes)} at its peak, budget {need.memory_gb:g} GB{tests}"


def unmeasured_lines(results: Iterable[UnitResult]) -> Iterator[str]:
    """Yield a line for each reason that a user can do something about why the memory of units was not measured."""
    whys = [result.gpu_memory.why for result in results if result.gpu_memory is not None]
    for why in Unmeasured:
        if why is not Unmeasured.NOT_SEEN and why in whys:
            yield f"the GPU memory of {count(whys.count(why), 'unit')} was not measured: {why.sentence}"


# ---- failures

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


def list_failures(state: RunState, finished: RunFinished | None) -> list[Failure]:
    """Return the failures of a run, that of the run itself first, then the first of each file, then the second.

    Reads the reports of failed units.
    """
    found = [*_of_run(state, finished)] if finished else []
    for each in finished.session_failures if finished else ():
        found.append(Failure("pytest's session", "error", each.reason, without_middle(each.text)))
    results = state.with_outcome(*Outcome)
    num = Counter((result.outcome, result.unit.collect_error) for result in results)
    for result in results:
        # Of units with one collection error, only the first is listed.
        num_same = num.pop((result.outcome, result.unit.collect_error), 0) if result.unit.collect_error else 1
        found += [replace(each, num_same=num_same - 1) for each in unit_failures(result) if num_same]
    num_of_file, ranks = Counter[str](), []
    for failure in found:
        num_of_file[file := file_of(failure.name.partition("::")[0])] += 1
        ranks.append((bool(failure.name), num_of_file[file]))
    return [found[at] for at in sorted(range(len(found)), key=ranks.__getitem__)]


def list_unmet(state: RunState) -> list[Failure]:
    """Return the units that were not run for lack of GPUs, which is no failure if the user accepts it."""
    unmet = [result for result in state.with_outcome(Outcome.NOT_RUN) if result.for_want_of_gpus]
    return [Failure(result.unit.path, "not run", result.reason) for result in unmet]


def _of_run(state: RunState, finished: RunFinished) -> Iterator[Failure]:
    if finished.exit_code in (ExitCode.OK, ExitCode.TESTS_FAILED) and not finished.error:
        return
    reason = finished.error or exit_reason(finished, state) or "the run failed"
    yield Failure("", f"exit code {finished.exit_code}", one_line(reason, 1000))


def unit_failures(result: UnitResult) -> Iterator[Failure]:
    """Yield the failed tests of a unit, those that never ended, and the unit itself where they do not explain it."""
    outcome = result.outcome
    if not (outcome.is_failure or outcome is Outcome.INTERRUPTED):
        return
    report = report_of(result)
    why = result.reason if outcome is Outcome.LEANING else ""
    failed = [(nodeid, end) for nodeid, end in report.ends.items() if end.outcome in FAILED]
    for nodeid, end in failed:
        reason = "; ".join(part for part in (why, end.reason) if part)
        yield Failure(nodeid, "leaning" if why else end.outcome.value, reason, without_middle(end.text))
    if outcome is Outcome.INTERRUPTED:
        return
    for lost in report.lost:
        stacks = output_tail(Path(result.directory, "stacks.txt"))
        yield Failure(lost.nodeid, words(lost.how), lost.reason, "\n".join(stacks))
    if report.lost or (failed and outcome in (Outcome.FAILED, Outcome.LEANING)):
        return
    text = "\n".join(text for _, text in report.collect_errors) or result.unit.collect_error
    if not text and result.directory:
        text = "\n".join(output_tail(Path(result.directory, "output.log")))
    yield Failure(result.unit.path, words(outcome.value), result.reason, without_middle(text))


def report_of(result: UnitResult) -> TestReport:
    """Return the tests of a unit, by its report and its retries; none of a report that cannot be read."""
    try:
        return read_attempts(result) if result.directory else TestReport()
    except (OSError, ReportError):
        return TestReport()


def without_middle(text: str, limit: int = MAX_CHARS) -> str:
    """Return `text`, its middle left out where it is longer than `limit` characters."""
    half = limit // 2
    left_out = f"\n[... {len(text) - 2 * half:,} characters left out ...]\n"
    return text if len(text) <= limit else f"{text[:half]}{left_out}{text[len(text) - half :]}"


def shown(text: str, *, colour: bool = False) -> str:
    """Return the text of a failure without anything that a terminal would obey but colours, if it may have them."""
    return harmless(text.encode("utf-8", "backslashreplace"), colour=colour)


def has_printed(result: UnitResult) -> bool:
    """Whether pytest has printed the failures of a unit before it exited."""
    with suppress(OSError, ReportError):
        return read_report(Path(result.directory, "report.jsonl")).finished_exit in (0, 1, 2, 4, 5)
    return False


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
