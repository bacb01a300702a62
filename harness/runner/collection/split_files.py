"""Split the files of a collection that dominate: put a unit for each part."""

from collections.abc import Mapping
from dataclasses import replace

from harness.runner.collection.collect import Collected
from harness.runner.records.history import Expectation, History
from harness.runner.schedule.leases import LeaseTable
from harness.runner.schedule.splitting import FileLoad, SplitReason, choose_files, plan_parts
from harness.runner.units import NeedSource, Part, Unit

Expectations = Mapping[str, Expectation]


def split_files(
    collected: Collected, expected: Expectations, table: LeaseTable, history: History
) -> tuple[Collected, Expectations]:
    """Return the collection with a unit for each part of the files that are split, and what is expected of each."""
    loads = [_load(unit, collected, expected[unit.path]) for unit in collected.units if unit.can_run]
    reasons = choose_files(loads, table)
    for path in history.leaning_files(reasons):  # its tests depend on each other
        del reasons[path]
    if not reasons:
        return collected, expected
    listed = {path: collected.files[path].tests or () for path in reasons}
    planned = plan_parts(loads, reasons, listed, history.test_durations_s(reasons), table)
    units: list[Unit] = []
    seconds = dict(expected)
    tests: dict[str, frozenset[int]] = {}
    for unit in collected.units:
        parts = planned[unit.path][1] if unit.path in planned else []
        if len(parts) < 2:
            units.append(unit)
            continue
        for number, part in enumerate(parts, 1):
            of_file = Part(number, len(parts))
            path = f"{unit.path} {of_file}"
            units.append(replace(unit, path=path, file=unit.path, part=of_file, need=part.need))
            seconds[path] = replace(expected[unit.path], seconds=part.seconds)
            named = frozenset(part.nodeids)
            tests[path] = frozenset(test.number for test in listed[unit.path] if test.nodeid in named)
    # One that runs whole is worth a word where its duration shows that it should not.
    splits = [
        split for split, _ in planned.values() if split.num_parts > 1 or split.reason is not SplitReason.FEW_FILES
    ]
    return replace(collected, units=tuple(units), parts=tests, splits=tuple(splits)), seconds


def _load(unit: Unit, collected: Collected, expected: Expectation) -> FileLoad:
    return FileLoad(
        unit.path,
        unit.need,
        expected.seconds,
        is_measured=not expected.is_estimate,
        asked_gpus=frozenset(need.gpus for need in collected.asks_of(unit).values()),
        is_divisible=not (unit.selection or unit.together or unit.path in collected.not_found)
        and unit.path in collected.files
        and unit.path not in collected.kept,
        is_given=unit.source is NeedSource.TABLE,
    )
