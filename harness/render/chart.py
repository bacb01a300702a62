"""The picture of a plan: a row per GPU and CPU slot, time from left to right, and what bounds it; or as JSON.

Plain text of a given width. A unit is drawn from `[` to `]` with as much of its name as fits between; one too short
for that is `|`, and one shorter than half a column leaves no mark. `~` is a GPU kept free for an exclusive unit.
"""

from collections.abc import Collection, Iterable, Sequence
from pathlib import PurePosixPath
from typing import Any

from harness.bits.text import count, one_line
from harness.render.console import at_most
from harness.render.run_words import estimated, split_line
from harness.runner.events import plain
from harness.runner.records.history import UNKNOWN_S
from harness.runner.schedule.makespan_bounds import TOLERANCE
from harness.runner.schedule.packing import Placement, Plan
from harness.runner.schedule.splitting import Split
from harness.runner.units import UnitResult, file_of

COLOURS = ("36", "32", "33", "35", "34", "31")  # ANSI foregrounds, in turn by a unit's index
MIN_COLUMNS = 20
MIN_NAME = 5
"""A name is cut to what fits, but to no fewer characters than this."""
MIN_TICK = 10
"""Columns between two marks of the time axis, at least."""
MAX_NAMED = 20
"""Units that cannot run which are listed; the others are counted."""
ROUND_S = (0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1_800, 3_600, 7_200, 14_400, 43_200, 86_400)


def chart(
    plan: Plan,
    paths: Sequence[str],
    *,
    width: int = 100,
    colour: bool = False,
    estimates: Collection[int] = (),
    splits: Sequence[Split] = (),
) -> str:
    """The plan as lines of about `width` characters (ANSI colours not counted), each ended by a newline.

    `paths` gives the file of each unit, by its index; `estimates` are the units whose durations are estimates, and
    `splits` the files that run in parts, or cannot.
    """
    rows = [
        (f"gpu {gpu.index}" if number == 0 else "", row)
        for gpu in plan.gpus
        for number, row in enumerate(_side_by_side(p for p in plan.placements if gpu.gpu_id in p.gpu_ids) or [[]])
    ]
    on_cpu = _side_by_side(p for p in plan.placements if not p.gpu_ids)
    rows += [(f"cpu {slot}", row) for slot, row in enumerate(on_cpu)]
    lines: list[str] = []
    if plan.makespan_s > 0:
        margin = max(len(label) for label, _ in rows) + 1
        num_columns = max(MIN_COLUMNS, width - margin)
        lines = [f"{label:{margin}}{_row_text(plan, row, paths, num_columns, colour)}" for label, row in rows]
        lines += [f"{'':{margin}}{_axis(plan.makespan_s, num_columns)}", ""]
    lines += _facts(plan, paths, estimates)
    lines += [f"{'parts' if number == 0 else '':11}  {split_line(split)}" for number, split in enumerate(splits)]
    return "".join(f"{line.rstrip()}\n" for line in lines)


def plan_json(
    plan: Plan, paths: Sequence[str], estimates: Collection[int] = (), splits: Sequence[Split] = ()
) -> dict[str, Any]:
    """Return the plan in plain values: seconds from the start of the run, files by paths, in the order of the queue."""
    bound = plan.bound
    units = [{"path": paths[each.index], **plain(each)} for each in plan.placements]
    return {
        "makespan_s": plan.makespan_s,
        "lower_bound_s": bound.value_s,
        "lower_bound_term": bound.term.name.lower(),
        "lower_bound_exclusive_s": bound.exclusive_s,
        "bounding_unit": "" if bound.unit is None else paths[bound.unit],
        "order": [paths[job.index] for job in plan.order],
        "units": [{name: value for name, value in unit.items() if name != "index"} for unit in units],
        "estimated": [paths[index] for index in sorted(estimates)],
        "never": [{"path": paths[index], "reason": reason} for index, reason in plan.never],
        "splits": plain(splits),
    }


def _axis(makespan_s: float, num_columns: int) -> str:
    """Return a mark and a label at every round number of seconds that leaves room for it."""
    step_s = next((step for step in ROUND_S if step >= makespan_s * MIN_TICK / num_columns), ROUND_S[-1])
    text = ""
    for number in range(int(makespan_s / step_s) + 1):
        mark = f"|{axis_label(number * step_s, step_s)}"
        text = text.ljust(round(number * step_s / makespan_s * num_columns)) + mark
    return text[: num_columns + 1]


def axis_label(seconds: float, step_s: float) -> str:
    for unit, unit_s in (("h", 3_600), ("min", 60)):
        if step_s % unit_s == 0:
            return f"{round(seconds / unit_s)} {unit}"
    return f"{round(seconds, 1):g} s"


def _side_by_side(placements: Iterable[Placement]) -> list[list[Placement]]:
    """Spread units on CPU slots, or on a GPU that they share, over the fewest rows without overlaps."""
    rows: list[list[Placement]] = []
    for placement in sorted(placements, key=lambda p: p.start_s):
        row = next((row for row in rows if row[-1].end_s <= placement.start_s), None)
        if row is None:
            rows.append(row := [])
        row.append(placement)
    return rows


def _row_text(plan: Plan, row: Sequence[Placement], paths: Sequence[str], num_columns: int, colour: bool) -> str:
    def columns(placement: Placement) -> tuple[int, int]:
        start, end = (round(s / plan.makespan_s * num_columns) for s in (placement.start_s, placement.end_s))
        return start, end

    cells = ["."] * num_columns
    for start, end in (columns(each) for each in plan.placements if each.exclusive):
        cells[start:end] = "~" * (end - start)
    for placement in row:
        start, end = columns(placement)
        cells[start:end] = _bar(paths[placement.index], end - start)
        if colour and end > start:
            cells[start] = f"\x1b[{COLOURS[placement.index % len(COLOURS)]}m{cells[start]}"
            cells[end - 1] += "\x1b[0m"
    return "".join(cells)


def _bar(path: str, length: int) -> str:
    if length < 2:
        return "|" * length
    room = length - 2
    file = file_of(path)
    name = PurePosixPath(file).stem.removeprefix("test_") + path.removeprefix(file)
    name = one_line(name.encode("ascii", "replace").decode())  # a control character is ASCII too
    return f"[{name[:room] if len(name) <= room or room >= MIN_NAME else '':=<{room}}]"


def _facts(plan: Plan, paths: Sequence[str], estimates: Collection[int]) -> list[str]:
    lines = [f"makespan     {plan.makespan_s:.1f} s"] if plan.placements else ["nothing to run"]
    if plan.makespan_s > 0:
        sequential_s = sum(p.end_s - p.start_s for p in plan.placements)
        lines[0] += f", {sequential_s / plan.makespan_s:.1f}x faster than one file at a time"
        lines += _bound_facts(plan, paths, estimates)
        if guess := estimated(len(estimates), len(plan.order)):
            lines.append(f"durations    {guess}")
            lines[-1] += f", {UNKNOWN_S:g} s assumed for each that never ran"
    return lines + _named("cannot run", [(paths[index], reason) for index, reason in plan.never])


def _bound_facts(plan: Plan, paths: Sequence[str], estimates: Collection[int]) -> list[str]:
    bound = plan.bound
    above = plan.makespan_s / bound.value_s - 1
    reached = "reached" if above <= TOLERANCE else f"the makespan is {above:.1%} above it"
    where = f" on {count(bound.num_places, 'CPU slot' if bound.is_cpu else 'GPU')}" if bound.num_places else ""
    lines = [f"lower bound  {bound.value_s:.1f} s, {'of estimated durations' if estimates else reached}"]
    lines.append(f"             set by {bound.term.value}{where}")
    if bound.exclusive_s:
        lines.append(f"{'':13}{bound.exclusive_s:.1f} s of it for exclusive files; ~ marks GPUs kept free for them")
    is_part = bound.unit is not None and file_of(paths[bound.unit]) != paths[bound.unit]
    if bound.unit is not None and not is_part and bound.unit not in estimates and len(plan.placements) > 1:
        alone_s = next(job.expected_s for job in plan.order if job.index == bound.unit)
        lines.append(f"split        {one_line(paths[bound.unit])}: its {alone_s:.1f} s set the bound")
    return lines


def deselected_lines(results: Sequence[UnitResult]) -> list[str]:
    """Return the lines on files of which no test is selected; empty without such files."""
    return _named("deselected", [(result.unit.path, result.reason) for result in results])


def _named(title: str, files: Sequence[tuple[str, str]]) -> list[str]:
    lines = at_most([f"{one_line(path)}: {one_line(reason)}" for path, reason in files], MAX_NAMED)
    return [f"{title:<11}  {count(len(files), 'file')}", *(f"  {line}" for line in lines)] if files else []
