"""Whether a file, or part of one, that fails in a process of its own passes in pytest's own order.

The check is one more supervised attempt, on the lease that the unit still holds. For a file it runs those before it and
the file in one process; it has a time limit, and a run makes few of them. For a part it runs the whole file, once for
all parts: it decides the outcome of each of their tests, as pytest itself would.
"""

import asyncio
import json
import shutil
from collections import defaultdict
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from harness.bits.errors import HarnessError, ReportError
from harness.bits.files import open_for_writing
from harness.runner import events
from harness.runner.attempts.attempt_spec import UNITS
from harness.runner.attempts.unit_run import Attempt, UnitRunner
from harness.runner.need import Need
from harness.runner.report_file import ReportTail, TestReport, read_report
from harness.runner.reruns.retries import AGAIN, NAMED, RETRIED
from harness.runner.units import Outcome, Unit, UnitResult

MAX_CHECKS = 3
"""Number of files that one run checks; where more fail, something else is the matter."""
LIMIT_S = 120.0
IN_ORDER = "in_order"
CHECKED = (Outcome.FAILED, Outcome.COLLECT_ERROR)


def files_before(units: Sequence[Unit], unit: Unit) -> tuple[str, ...]:
    """Return the files before that of `unit`, in order, that can share its lease."""
    before: dict[str, None] = {}
    for each in units:
        if each.file_path == unit.file_path:
            break
        if each.can_run:
            before[each.file_path] = None
    wide = {each.file_path for each in units if each.need.exceeds(unit.need)}
    return tuple(file for file in before if file not in wide)


def failing_tests(report: TestReport, file: str) -> tuple[str, ...]:
    """Return the tests of `file` that a report does not show to have passed, been skipped or failed as expected."""
    return tuple(nodeid for nodeid in _tests_of(report, file) if report.outcome_of(nodeid) in AGAIN)


def passes_in(report: TestReport, file: str, wanted: Sequence[str]) -> bool:
    """Return whether a report shows `file` to pass, its tests `wanted` among those that ran."""
    tests = _tests_of(report, file)
    broken = any(nodeid.partition("::")[0] == file for nodeid, _ in report.collect_errors)
    ended = report.finished_exit is not None and not report.unread
    return ended and not broken and bool(tests) and set(wanted) <= set(tests) and not failing_tests(report, file)


def _tests_of(report: TestReport, file: str) -> list[str]:
    return [nodeid for nodeid in report.all_ids() if nodeid.partition("::")[0] == file]


@dataclass(slots=True)
class _Parts:
    """The parts of one file."""

    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    whole: list[tuple[Need, Path, TestReport]] = field(default_factory=list)
    """Runs of the whole file: need of the lease, directory, report; an empty one where it did not come to its end."""
    passed: list[tuple[Need, tuple[str, ...]]] = field(default_factory=list)
    """Tests of the parts that passed before it ran."""


@dataclass(slots=True)
class LeaningCheck:
    """The checks of one run."""

    checks_files: bool = False
    """Whether failing files run again after those before them; failing parts always run again with their whole file."""
    num_left: int = MAX_CHECKS
    parts: defaultdict[str, _Parts] = field(default_factory=lambda: defaultdict(_Parts))

    async def settle(self, runner: UnitRunner, attempt: Attempt) -> None:
        """Settle the result of an attempt: leaning where the check passes."""
        unit, file = attempt.unit, attempt.unit.file_path
        if unit.part:
            async with self.parts[file].lock:
                await self._settle_part(runner, attempt)
            return
        is_wanted = self.checks_files and self.num_left
        if attempt.result.outcome not in CHECKED or attempt.number in runner.cancelled or not is_wanted:
            return
        if before := files_before(runner.collected.units, unit):
            self.num_left -= 1
            found = await _in_order(runner, attempt, before)
            if found is not None and passes_in(found, file, failing_tests(attempt.report, file)):
                why = f"passes after the {len(before)} files before it"
                attempt.result = _leaning(attempt.result, why, is_accepted=runner.options.accepts_leaning)

    async def _settle_part(self, runner: UnitRunner, attempt: Attempt) -> None:
        """Settle the result of a part by what its tests did in the whole file, which runs once one part has failed."""
        unit, outcome, number = attempt.unit, attempt.result.outcome, attempt.number
        parts, tests = self.parts[unit.file_path], tuple(attempt.report.all_ids())
        if not tests or number in runner.cancelled or outcome not in (*RETRIED, Outcome.PASSED):
            return
        known = [each for each in parts.whole if not unit.need.exceeds(each[0])]
        if not known and outcome is Outcome.PASSED:
            parts.passed.append((unit.need, tests))
            return
        if not known:
            found = await _in_order(runner, attempt, ())
            whole = found if found and found.finished_exit is not None and not found.unread else TestReport()
            known = [(unit.need, runner.directory(number) / IN_ORDER / UNITS / runner.name(number), whole)]
            parts.whole += known
            ran = [test for need, passed in parts.passed if not need.exceeds(unit.need) for test in passed]
            tests += tuple(test for test in ran if whole.outcome_of(test) in NAMED)
        with suppress(OSError, ReportError):  # a full disk, or a test has put something else in the place of its report
            attempt.result = _as_in_whole(runner, number, attempt.result, tests, known[0])


def _as_in_whole(
    runner: UnitRunner, number: int, result: UnitResult, tests: Sequence[str], whole: tuple[Need, Path, TestReport]
) -> UnitResult:
    """Return the result of a part with the outcomes that `tests` have in the whole file, as far as it has any."""
    ends = [(test, whole[2].ends[test]) for test in tests if test in whole[2].ends]
    if not ends:
        return result
    directory = runner.directory(number)
    with open_for_writing(directory / "report.jsonl", appends=True) as file:
        for test, end in ends:
            file.write(json.dumps({"k": "end", "id": test, **asdict(end)}).encode() + b"\n")
            runner.post(events.TestFinished(runner.t(), result.unit.path, test, end.outcome, end.duration_s))
    found = read_report(directory / "report.jsonl")
    if any(found.outcome_of(test) in AGAIN for test in found.all_ids()):
        shutil.copyfile(whole[1] / "output.log", directory / "output.log")
        result = replace(result, outcome=Outcome.FAILED, reason="the whole file, in one process, has these outcomes")
    elif result.outcome is not Outcome.PASSED:
        result = _leaning(result, "passes if the whole file runs in one process, as it will from the next run")
    return replace(result, tests=found.counts())


def _leaning(result: UnitResult, why: str, *, is_accepted: bool = True) -> UnitResult:
    """Return the result of a unit that failed for the order of its tests alone; of a part, no fault of the suite."""
    reason = f"{result.reason}; {why}" if result.reason else why
    return replace(result, outcome=Outcome.LEANING, reason=reason, is_accepted=is_accepted)


async def _in_order(runner: UnitRunner, attempt: Attempt, before: Sequence[str]) -> TestReport | None:
    """Return what the files `before` and the whole file of a unit report in one process; None where it did not end."""
    unit, number, file = attempt.unit, attempt.number, attempt.unit.file_path
    limit_s = (unit.timeout_s or runner.options.timeout_s) if unit.part else LIMIT_S
    whole = replace(unit, path=file, selection=(*before, file), file="", part=None, timeout_s=limit_s)
    checking = replace(
        runner,
        run_directory=runner.directory(number) / IN_ORDER,
        scratch=runner.tmpdir(number) / "o",
        post=lambda event: None,  # the unit has said what its tests did
        followed={},
    )
    tail = ReportTail(checking.directory(number) / "report.jsonl")
    try:
        end = await checking.run_attempt(number, whole, attempt.lease, tail)
        found = tail.report()
    except (OSError, HarnessError, ReportError) as error:
        runner.notes.append(f"{file} could not be run in order: {' '.join(str(error).split())}")
        return None
    finally:
        tail.close()
    attempt.unkillable += end.unkillable
    if end.reason == "timeout":
        runner.notes.append(f"{file} may lean on other tests: in order, it takes longer than {limit_s:g} s")
    return None if end.reason else found
