"""Split the files of a collection that dominate: group their tests, and put a unit for each part."""

from collections.abc import Mapping
from dataclasses import replace

from harness.runner.collection.collect import Collected
from harness.runner.records.history import Expectation, History
from harness.runner.schedule.leases import LeaseTable
from harness.runner.schedule.splitting import (
    FileLoad,
    Group,
    Obstacle,
    PartPlan,
    Slots,
    Split,
    SplitReason,
    choose_files,
    group_tests,
    make_parts,
    obstacle_of,
)
from harness.runner.units import NeedSource, Part, Unit

Expectations = Mapping[str, Expectation]


def split_files(
    collected: Collected, expected: Expectations, table: LeaseTable, history: History
) -> tuple[Collected, Expectations]:
    """Return the collection with a unit for each part of the files that are split, and what is expected of each."""
    slots = Slots(len(table.choice.gpus), table.cpu_units, lambda need: table.choice.eligible(need).bit_count())
    loads = [_load(unit, collected, expected[unit.path]) for unit in collected.units if unit.can_run]
    reasons = choose_files(loads, slots)
    for path in history.leaning_files(reasons):  # its tests depend on each other
        del reasons[path]
    if not reasons:
        return collected, expected
    durations_s = history.test_durations_s(reasons)
    groups = {
        unit.path: group_tests(
            collected.files[unit.path].tests or (),
            unit.need,
            expected[unit.path].seconds,
            durations_s,
            is_given=unit.source is NeedSource.TABLE,
        )
        for unit in collected.units
        if unit.path in reasons
    }
    return _with_parts(collected, expected, _plan(loads, groups, reasons, slots))


def _load(unit: Unit, collected: Collected, expected: Expectation) -> FileLoad:
    asks = collected.asks_of(unit)
    return FileLoad(
        unit.path,
        unit.need,
        expected.seconds,
        is_measured=not expected.is_estimate,
        asked_gpus=frozenset(need.gpus for need in asks.values()),
        is_divisible=not (unit.selection or unit.together or unit.path in collected.not_found)
        and unit.path in collected.files
        and unit.path not in collected.kept,
    )


def _plan(
    loads: list[FileLoad], groups: Mapping[str, list[Group]], reasons: Mapping[str, SplitReason], slots: Slots
) -> dict[str, tuple[Split, list[PartPlan]]]:
    """Each file to split with its parts; one part for a file that runs whole."""
    units = [(load.need, load.expected_s) for load in loads if not groups.get(load.path)]
    units += [(group.need, group.seconds) for found in groups.values() for group in found]
    bounds_s = (slots.bound_s(units, is_gpu=False), slots.bound_s(units, is_gpu=True))
    planned: dict[str, tuple[Split, list[PartPlan]]] = {}
    for load in loads:
        if load.path not in groups:
            continue
        split = Split(load.path, reasons[load.path], 1, load.expected_s, bounds_s[load.need.gpus > 0])
        if not groups[load.path]:
            planned[load.path] = replace(split, obstacle=Obstacle.NOT_COLLECTED), []
            continue
        rivals = [each for each in loads if each.path != load.path and (each.need.gpus > 0) is (load.need.gpus > 0)]
        has_others = bool(rivals)
        found = groups[load.path]
        parts = make_parts(found, slots, bounds_s, is_measured=load.is_measured, has_others=has_others)
        if len(parts) == 1:
            split = obstacle_of(split, found)
        planned[load.path] = replace(split, num_parts=len(parts)), parts
    return planned


def _with_parts(
    collected: Collected, expected: Expectations, planned: Mapping[str, tuple[Split, list[PartPlan]]]
) -> tuple[Collected, Expectations]:
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
            listed = collected.files[unit.path].tests or ()
            tests[path] = frozenset(test.number for test in listed if test.nodeid in named)
    splits = tuple(split for split, _ in planned.values() if _is_worth_saying(split))
    return replace(collected, units=tuple(units), parts=tests, splits=splits), seconds


def _is_worth_saying(split: Split) -> bool:
    """Whether the file is split, or its duration shows that it should be."""
    return split.num_parts > 1 or split.reason is not SplitReason.FEW_FILES
