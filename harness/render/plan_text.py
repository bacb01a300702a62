"""The plan of a run: where and when each file is to run, and what bounds the time of all; as text or JSON."""

from collections.abc import Collection, Sequence
from typing import Any

from harness.bits.text import count, one_line, ranges
from harness.render.console import at_most
from harness.render.run_words import estimated, split_line
from harness.runner.events import plain
from harness.runner.records.history import UNKNOWN_S
from harness.runner.schedule.packing import TOLERANCE, Plan
from harness.runner.schedule.splitting import Split
from harness.runner.units import UnitResult

MAX_NAMED = 20
"""Units that cannot run which are listed; the others are counted."""


def plan_text(
    plan: Plan, paths: Sequence[str], estimates: Collection[int] = (), splits: Sequence[Split] = ()
) -> list[str]:
    """Return a line for each file in the order in which they start, then the facts on the plan.

    `paths` gives the file of each unit, by its index; `estimates` are the units whose durations are estimates, and
    `splits` the files that run in parts, or cannot.
    """
    lines = []
    indices = {gpu.gpu_id: gpu.index for gpu in plan.gpus}
    rows = [("start", "end", "on", "file")]
    for each in sorted(plan.placements, key=lambda placement: (placement.start_s, placement.index)):
        where = f"gpu {ranges([str(indices[gpu_id]) for gpu_id in each.gpu_ids])}" if each.gpu_ids else "cpu"
        alone = ", alone" if each.exclusive else ""
        rows.append((f"{each.start_s:.1f} s", f"{each.end_s:.1f} s", where + alone, one_line(paths[each.index])))
    width = max(len(row[2]) for row in rows)
    if plan.placements:
        lines += [f"{start:>9}  {end:>9}  {where:<{width}}  {path}" for start, end, where, path in rows] + [""]
    lines += _facts(plan, paths, estimates)
    return lines + [f"{'parts' if number == 0 else '':11}  {split_line(split)}" for number, split in enumerate(splits)]


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
        "order": [paths[job.index] for job in plan.order],
        "units": [{name: value for name, value in unit.items() if name != "index"} for unit in units],
        "estimated": [paths[index] for index in sorted(estimates)],
        "never": [{"path": paths[index], "reason": reason} for index, reason in plan.never],
        "splits": plain(splits),
    }


def _facts(plan: Plan, paths: Sequence[str], estimates: Collection[int]) -> list[str]:
    lines = [f"makespan     {plan.makespan_s:.1f} s"] if plan.placements else ["nothing to run"]
    if plan.makespan_s > 0:
        sequential_s = sum(p.end_s - p.start_s for p in plan.placements)
        lines[0] += f", {sequential_s / plan.makespan_s:.1f}x faster than one file at a time"
        lines += _bound_facts(plan, estimates)
        if guess := estimated(len(estimates), len(plan.order)):
            unknown = f", {UNKNOWN_S:g} s assumed for each" if len(estimates) >= len(plan.order) else ""
            lines.append(f"durations    {guess}{unknown}")
    return lines + _named("cannot run", [(paths[index], reason) for index, reason in plan.never])


def _bound_facts(plan: Plan, estimates: Collection[int]) -> list[str]:
    bound = plan.bound
    above = plan.makespan_s / bound.value_s - 1
    reached = "reached" if above <= TOLERANCE else f"the makespan is {above:.1%} above it"
    where = f" on {count(bound.num_places, 'CPU slot' if bound.is_cpu else 'GPU')}" if bound.num_places else ""
    lines = [f"lower bound  {bound.value_s:.1f} s, {'of estimated durations' if estimates else reached}"]
    lines.append(f"             set by {bound.term.value}{where}")
    if bound.exclusive_s:
        lines.append(f"{'':13}{bound.exclusive_s:.1f} s of it for exclusive files")
    return lines


def deselected_lines(results: Sequence[UnitResult]) -> list[str]:
    """Return the lines on files of which no test is selected; empty without such files."""
    return _named("deselected", [(result.unit.path, result.reason) for result in results])


def _named(title: str, files: Sequence[tuple[str, str]]) -> list[str]:
    lines = at_most([f"{one_line(path)}: {one_line(reason)}" for path, reason in files], MAX_NAMED)
    return [f"{title:<11}  {count(len(files), 'file')}", *(f"  {line}" for line in lines)] if files else []
