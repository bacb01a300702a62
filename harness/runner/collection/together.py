"""Files that run in one process, since one leans on another: the groups of `together` in the configuration."""

from collections.abc import Iterable, Sequence
from dataclasses import replace

from harness.bits.errors import UsageError
from harness.runner.collection.collect import Collected
from harness.runner.need import Need, paths_matching
from harness.runner.units import Unit


def keep_together(collected: Collected, groups: Sequence[Sequence[str]]) -> Collected:
    """Return the collection with one unit for the files of each group, in the group's order.

    The unit has the path of the last file, and needs what any of them needs. Raises UsageError for a file of two
    groups, and for files that ask for different models of GPU.
    """
    units = {unit.path: unit for unit in collected.units}
    sizes_bytes, notes = dict(collected.sizes_bytes), list(collected.notes)
    taken: dict[str, int] = {}
    for number, patterns in enumerate(groups):
        able = [unit.path for unit in collected.units if unit.can_run and unit.path not in collected.not_found]
        paths = list(dict.fromkeys(path for pattern in patterns for path in paths_matching(pattern, able)))
        if twice := [path for path in paths if taken.setdefault(path, number) != number]:
            raise UsageError(
                f"together: {twice[0]} is in two groups",
                legal="each file in one group",
                remedy="join the two lists, in the order in which the files have to run",
            )
        if len(paths) < 2:
            continue
        *before, last = paths
        units[last] = _joined([units[path] for path in paths])
        sizes_bytes[last] = sum(sizes_bytes.get(path, 0) for path in paths)
        for path in before:
            del units[path]
        notes.append(f"together: {', '.join(before)} and {last} run in one process, as {last}")
    return replace(collected, units=tuple(units.values()), sizes_bytes=sizes_bytes, notes=tuple(notes))


def _joined(units: Sequence[Unit]) -> Unit:
    last = units[-1]
    limits_s = [unit.timeout_s for unit in units if unit.timeout_s is not None]
    return replace(
        last,
        need=_need([unit.need for unit in units], last.path),
        timeout_s=max(limits_s, default=None),
        selection=(),
        together=tuple(path for unit in units for path in unit.selection or (unit.path,)),
    )


def _need(needs: Iterable[Need], path: str) -> Need:
    from harness.plugin import MarkError, merge_needs  # it imports pytest, which a run without groups does not need

    try:
        return Need.from_json(merge_needs([need.to_json() for need in needs]))
    except MarkError as error:
        raise UsageError(
            f"together: the files that run with {path} cannot share a process: one {error}",
            remedy="leave one of them out of the group",
        ) from None
