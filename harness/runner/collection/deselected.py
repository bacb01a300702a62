"""What is left of files by `-k`, `-m` and `--deselect`, before anything is scheduled.

A file without a selected test has its outcome; of one with some, their durations are expected.
"""

from collections.abc import Mapping
from dataclasses import replace

from harness.bits.text import count
from harness.runner.collection.collect import Collected
from harness.runner.records.history import Expectation
from harness.runner.units import Outcome, Unit, UnitResult


def all_deselected(num_tests: int) -> str:
    """Return the reason of a file of which no test is selected."""
    return f"{count(num_tests, 'test')} deselected"


def set_aside_deselected(collected: Collected) -> Collected:
    """Return the collection in which files without a selected test do not run, and have no tests as their outcome.

    A file of which node ids were asked for runs: pytest may refuse them.
    """
    kept = {
        unit.path: UnitResult(unit, Outcome.NO_TESTS, all_deselected(number), num_deselected=number)
        for unit in collected.units
        if (number := _num_deselected(unit, collected))
    }
    units = tuple(unit for unit in collected.units if unit.path not in kept)
    return replace(collected, units=units, kept={**collected.kept, **kept})


def _num_deselected(unit: Unit, collected: Collected) -> int:
    """Return the number of tests in a unit if all are deselected; 0 for a unit that runs."""
    if unit.selection or not unit.can_run or unit.path in collected.not_found:
        return 0
    files = [collected.files.get(path) for path in unit.together or (unit.path,)]
    known = [file for file in files if file is not None and file.is_deselected and not file.error]
    return sum(file.num_deselected for file in known) if len(known) == len(files) else 0


def expect_selected(
    expected: Mapping[str, Expectation], collected: Collected, durations_s: Mapping[str, float]
) -> dict[str, Expectation]:
    """Return what is expected of each unit, given that files with deselected tests run the others alone.

    `durations_s` are those of tests, by node id. Nothing changes for a file of which some selected test is not known,
    and no file is expected to take longer than all of it did.
    """
    changed = dict(expected)
    for path in [unit.path for unit in collected.units if unit.path in collected.files and not unit.together]:
        file = collected.files[path]
        known = [durations_s.get(test.nodeid) for test in file.tests or ()]
        seconds = [each for each in known if each is not None]
        if file.num_deselected and seconds and len(seconds) == len(known):
            whole = expected[path]
            changed[path] = replace(whole, seconds=min(whole.seconds, sum(seconds)), is_estimate=False)
    return changed
