"""From files to units: needs of files that have none, files without a selected test,
files that are split into parts, and patterns of the configuration that match nothing.
"""

from collections.abc import Mapping
from dataclasses import replace

from harness.bits.errors import UsageError
from harness.bits.text import count
from harness.machine.inventory import Inventory
from harness.runner.collection.collect import Collected
from harness.runner.need import Need, NeedsTable
from harness.runner.options import RunOptions, selects_by_outcome
from harness.runner.records.history import Expectation, History
from harness.runner.schedule.leases import LeaseTable
from harness.runner.schedule.splitting import FileLoad, SplitReason, choose_files, plan_parts
from harness.runner.units import NeedSource, Outcome, Part, Unit, UnitResult

Expectations = Mapping[str, Expectation]


# ---- needs


def give_needs(collected: Collected, options: RunOptions, inventory: Inventory) -> Collected:
    """Return the collection with the default need on each file that has none, which the needs table did not decide.

    Raises UsageError for GPUs of unknown memory.
    """
    if not options.workers_per_gpu:
        return collected
    default = _default_need(options.workers_per_gpu, inventory)
    units = (
        replace(unit, need=default, source=NeedSource.TABLE)
        if unit.need == Need() and unit.source is not NeedSource.TABLE
        else unit
        for unit in collected.units
    )
    return replace(collected, units=tuple(units))


def _default_need(num_workers: int, inventory: Inventory) -> Need:
    memory_gb = min((gpu.memory_gb for gpu in inventory.gpus), default=0.0)
    if num_workers == 1 or not inventory.gpus:
        return Need(gpus=1)
    if not memory_gb:
        raise UsageError(
            "--workers-per-gpu: the driver does not report the memory of a GPU",
            legal="GPUs of known memory",
            remedy="give the files a memory-gb of their own in the needs table, or leave the option out",
        )
    # Rounded down to a megabyte, so that N budgets never exceed the GPU.
    return Need(gpus=1, memory_gb=int(memory_gb * 1000 / num_workers) / 1000, shared=True)


def note_idle(collected: Collected, options: RunOptions) -> Collected:
    """Return the collection with a note on each pattern of the configuration that matches no file: it is misspelt.

    Where only some files were asked for, nothing is noted.
    """
    if options.paths or selects_by_outcome(options.invocation.trailing):
        return collected
    idle = NeedsTable(options.needs).idle([unit.path for unit in collected.units])
    notes = (f"the pattern {pattern!r} of the needs table matches no file" for pattern in idle)
    return replace(collected, notes=(*collected.notes, *notes))


# ---- what -k, -m and --deselect leave


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
    file = collected.files.get(unit.path)
    return file.num_deselected if file is not None and file.is_deselected and not file.error else 0


def expect_selected(
    expected: Expectations, collected: Collected, durations_s: Mapping[str, float]
) -> dict[str, Expectation]:
    """Return what is expected of each unit, given that files with deselected tests run the others alone.

    `durations_s` are those of tests, by node id. Nothing changes for a file of which some selected test is not known,
    and no file is expected to take longer than all of it did.
    """
    changed = dict(expected)
    for path in [unit.path for unit in collected.units if unit.path in collected.files]:
        file = collected.files[path]
        known = [durations_s.get(test.nodeid) for test in file.tests or ()]
        seconds = [each for each in known if each is not None]
        if file.num_deselected and seconds and len(seconds) == len(known):
            changed[path] = Expectation(min(expected[path].seconds, sum(seconds)))
    return changed


# ---- files that dominate, in parts


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
            of_file, named = Part(number, len(parts)), frozenset(part.nodeids)
            path = f"{unit.path} {of_file}"
            units.append(replace(unit, path=path, file=unit.path, part=of_file, need=part.need))
            seconds[path] = replace(expected[unit.path], seconds=part.seconds)
            tests[path] = frozenset(test.number for test in listed[unit.path] if test.nodeid in named)
    # One that runs whole is worth a word where its duration shows that it should not.
    splits = [
        split for split, _ in planned.values() if split.num_parts > 1 or split.reason is not SplitReason.FEW_FILES
    ]
    return replace(collected, units=tuple(units), parts=tests, splits=tuple(splits)), seconds


def _load(unit: Unit, collected: Collected, expected: Expectation) -> FileLoad:
    path, is_part = unit.path, bool(unit.selection)
    return FileLoad(
        path,
        unit.need,
        expected.seconds,
        is_measured=not expected.is_estimate,
        asked_gpus=frozenset(need.gpus for need in collected.asks_of(unit).values()),
        is_divisible=not is_part and path not in collected.not_found and path in collected.files,
        is_given=unit.source is NeedSource.TABLE,
    )
