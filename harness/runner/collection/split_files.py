"""Split the files of a collection that dominate: list their tests, group them, and put a unit for each part."""

import os
import shutil
from collections.abc import Callable, Mapping
from dataclasses import replace

from harness.machine.fan_out import fan_out
from harness.runner.collection.collect import Collected, Collector
from harness.runner.records.collected_file import CollectedFile
from harness.runner.records.history import Expectation, History
from harness.runner.schedule.leases import LeaseTable
from harness.runner.schedule.splitting import FileLoad, Split, SplitReason, TestGroup, choose_files, plan_parts
from harness.runner.sessions.part_file import PartTests
from harness.runner.units import NeedSource, Part, Unit

Expectations = Mapping[str, Expectation]


async def split_files(
    collected: Collected,
    expected: Expectations,
    table: LeaseTable,
    history: History,
    collector: Collector,
    *,
    on_progress: Callable[[int, int], None] = lambda num_done, num_total: None,
) -> tuple[Collected, Expectations]:
    """Return the collection with a unit for each part of the files that are split, and what is expected of its units.

    A file to split whose tests are not known yet is imported, in a process of its own, to list them; the warm session
    then imports for all parts what these files import. A file that hangs at its import does not run.
    """
    loads = [_load(unit, collected, expected[unit.path]) for unit in collected.units if unit.can_run]
    reasons = choose_files(loads, table)
    for path in history.leaning_files(reasons):  # its tests depend on each other
        del reasons[path]
    if not reasons:
        return collected, expected
    chosen = [unit for unit in collected.units if unit.path in reasons]
    files, hung = await _list_tests(chosen, collected, collector, on_progress)
    collected = replace(collected, notes=(*collected.notes, *collector.notes))
    if hung:
        collected = replace(collected, units=tuple(hung.get(unit.path, unit) for unit in collected.units))
        loads = [load for load in loads if load.path not in hung]
        chosen = [unit for unit in chosen if unit.path not in hung]
    tests = {unit.path: files[unit.path].tests or () for unit in chosen if unit.path in files}
    reasons = {unit.path: reasons[unit.path] for unit in chosen}
    planned = plan_parts(loads, reasons, tests, history.test_durations_s(reasons), table)
    if collector.options.preload is not None:
        split = [path for path, (_, parts) in planned.items() if len(parts) > 1]
        await collector.options.preload([name for path in split for name in files[path].imported])
    return _with_parts(collected, expected, planned)


def _load(unit: Unit, collected: Collected, expected: Expectation) -> FileLoad:
    asks = {} if unit.source is NeedSource.TABLE else collected.asks.get(unit.path, {})
    return FileLoad(
        unit.path,
        unit.need,
        expected.seconds,
        is_measured=not expected.is_estimate,
        asked_gpus=frozenset(need.gpus for need in asks.values()),
        is_divisible=not (unit.selection or unit.together or unit.path in collected.not_found)
        and unit.path in collected.sizes_bytes,
        is_given=unit.source is NeedSource.TABLE,
    )


async def _list_tests(
    units: list[Unit], collected: Collected, collector: Collector, on_progress: Callable[[int, int], None]
) -> tuple[dict[str, CollectedFile], dict[str, Unit]]:
    """Return the files with their tests, without those that cannot be collected, and the units that hang at import."""
    files = {unit.path: collected.files[unit.path] for unit in units if unit.path in collected.files}
    unknown = [unit for unit in units if unit.path not in files or files[unit.path].tests is None]
    collector.keys = dict(collected.keys)
    directory = collector.options.directory
    directory.mkdir(parents=True, exist_ok=True)

    hung: dict[str, Unit] = {}
    num_done = 0

    async def collect(unit: Unit) -> None:
        nonlocal num_done
        file = os.path.abspath(collected.rootdir / unit.path)
        imported, _ = await collector.collected(unit, (file,), collected.pytest_args)
        if imported.collect_timed_out:
            hung[unit.path] = imported
        num_done += 1
        on_progress(num_done, len(unknown))

    if unknown:
        on_progress(0, len(unknown))
    try:
        await fan_out(collect, unknown, limit=collector.options.limit)
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    collector.keep([unit.path for unit in unknown])
    return files | collector.files, hung


def _with_parts(
    collected: Collected, expected: Expectations, planned: Mapping[str, tuple[Split, list[TestGroup]]]
) -> tuple[Collected, Expectations]:
    units: list[Unit] = []
    seconds = dict(expected)
    tests: dict[str, PartTests] = {}
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
            others = tuple(nodeid for other in parts if other is not part for nodeid in other.nodeids)
            tests[path] = PartTests(others=others) if number == 1 else PartTests(mine=part.nodeids)
    splits = tuple(split for split, _ in planned.values() if _is_worth_saying(split))
    return replace(collected, units=tuple(units), parts=tests, splits=splits), seconds


def _is_worth_saying(split: Split) -> bool:
    """Whether the file is split, or its duration shows that it should be."""
    return split.num_parts > 1 or split.reason is not SplitReason.FEW_FILES
