"""Whether a file, or part of one, that fails in a process of its own passes in pytest's own order.

The check is one more supervised attempt, on the lease that the unit still holds: for a file, those before it and the
file in one process; for a part, its whole file. It has a time limit, and a run makes few of them.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from harness.core.errors import HarnessError, ReportError
from harness.core.report_file import ReportTail, TestReport
from harness.runner.attempts.unit_run import UnitRunner
from harness.runner.reruns.retries import AGAIN
from harness.runner.schedule.leases import Lease
from harness.runner.units import Outcome, Unit, UnitResult

MAX_CHECKS = 3
"""Number of files that one run checks; where more fail, something else is the matter."""
LIMIT_S = 120.0
CHECKED = (Outcome.FAILED, Outcome.COLLECT_ERROR)


def files_before(units: Sequence[Unit], unit: Unit) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the files before that of `unit`, in order: those that can share its lease, and those that cannot."""
    paths = [each.file_path for each in units]
    before = dict.fromkeys(each.file_path for each in units[: paths.index(unit.file_path)] if each.can_run)
    wide = {each.file_path for each in units if each.need.exceeds(unit.need)}
    return tuple(file for file in before if file not in wide), tuple(file for file in before if file in wide)


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
class LeaningCheck:
    """The checks of one run."""

    checks_files: bool = False
    """Whether failing files run again after those before them; failing parts always run again with their whole file."""
    num_left: int = MAX_CHECKS

    async def settle(
        self, runner: UnitRunner, number: int, lease: Lease, result: UnitResult, report: TestReport
    ) -> tuple[UnitResult, tuple[str, ...]]:
        """Return the result of an attempt, leaning where the check passes, and processes that SIGKILL did not end."""
        unit = result.unit
        before = () if unit.part else files_before(runner.collected.units, unit)[0]
        is_wanted = unit.part or (self.checks_files and before and not unit.together)
        if result.outcome not in CHECKED or number in runner.cancelled or not is_wanted or not self.num_left:
            return result, ()
        self.num_left -= 1
        file, wanted = unit.file_path, failing_tests(report, unit.file_path)
        found, unkillable = await _in_order(runner, number, lease, unit, before)
        if found is None or not (pass_in(found, wanted) if unit.part else passes_in(found, file, wanted)):
            return result, unkillable
        if unit.part:  # it fails since it was split, which is no fault of the suite
            why = "passes if the whole file runs in one process, as it will from the next run"
            is_accepted = True
        else:
            why = f"passes after the {len(before)} files before it; rlharness run --leaning {file} names the test"
            is_accepted = runner.options.accepts_leaning
        reason = f"{result.reason}; {why}" if result.reason else why
        return replace(result, outcome=Outcome.LEANING, reason=reason, is_accepted=is_accepted), unkillable


async def _in_order(
    runner: UnitRunner, number: int, lease: Lease, unit: Unit, before: Sequence[str]
) -> tuple[TestReport | None, tuple[str, ...]]:
    """Return what the files `before` and the whole file of `unit` report in one process; None where they did not end.

    With it, processes that SIGKILL did not end.
    """
    file = unit.file_path
    whole = replace(unit, path=file, selection=(*before, file), file="", part=None, timeout_s=LIMIT_S)
    checking = replace(
        runner,
        run_directory=runner.directory(number) / "in_order",
        scratch=runner.tmpdir(number) / "o",
        post=lambda event: None,  # the unit has said what its tests did
        followed={},
    )
    tail = ReportTail(checking.directory(number) / "report.jsonl")
    try:
        end, _ = await checking.run_attempt(number, whole, lease, tail)
        found = tail.report()
    except (OSError, HarnessError, ReportError) as error:
        runner.notes.append(f"{file} could not be run in order: {' '.join(str(error).split())}")
        return None, ()
    finally:
        tail.close()
    if end.reason == "timeout":
        runner.notes.append(f"{file} may lean on other tests: in order, it takes longer than {LIMIT_S:g} s")
    return None if end.reason else found, end.unkillable


def pass_in(report: TestReport, wanted: Sequence[str]) -> bool:
    """Return whether a report shows all of `wanted`, at least one, to have run and not failed."""
    ended = report.finished_exit is not None and not report.unread
    ran = set(report.all_ids())
    return ended and bool(wanted) and all(nodeid in ran and report.outcome_of(nodeid) not in AGAIN for nodeid in wanted)
