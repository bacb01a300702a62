"""Measured GPU memory in words."""

from collections.abc import Iterable, Iterator

from harness.bits.text import count, one_line
from harness.runner.gpu_memory import GpuMemoryUse, Unmeasured, exceeds_budget
from harness.runner.need import Need
from harness.runner.units import UnitResult

REASONS = {
    Unmeasured.NOT_SEEN: "none of its processes was on a GPU in any sample",
    Unmeasured.NOT_REPORTED: "the driver reports no memory by process here, as with MIG or in some containers",
    Unmeasured.NOT_VISIBLE: "the driver lists processes that cannot be seen from here, as in a container",
    Unmeasured.NO_ANSWER: "the driver did not answer in time",
}
NOTED = (Unmeasured.NOT_REPORTED, Unmeasured.NOT_VISIBLE, Unmeasured.NO_ANSWER)
"""Reasons that a user can do something about."""


def gb_text(num_bytes: int | None) -> str:
    """An amount of memory in GB (10**9 bytes); "not measured" for None."""
    if num_bytes is None:
        return "not measured"
    return f"{num_bytes / 1e9:,.2f} GB" if num_bytes < 10**10 else f"{num_bytes / 1e9:,.1f} GB"


def memory_text(use: GpuMemoryUse, need: Need) -> str:
    """The peak of a unit with its budget and the test that ran then, or why it was not measured."""
    if use.peak_bytes is None:
        return f"GPU memory not measured: {REASONS[use.why]}" if use.why else "GPU memory not measured"
    test = f" in {one_line(use.test.partition('::')[2] or use.test)}" if use.test else ""
    budget = f" of a budget of {need.memory_gb:g} GB" if need.shared else ""
    return f"{gb_text(use.peak_bytes)} of GPU memory at its peak{test}{budget}"


def over_budget_lines(uses: Iterable[tuple[str, Need, GpuMemoryUse | None]]) -> list[str]:
    """A line for each unit (path, need, use) that exceeded its budget, with the tests during which it did."""
    lines = []
    for path, need, use in uses:
        if use is not None and exceeds_budget(use, need):
            over = [nodeid for nodeid, peak in use.tests.items() if peak > need.budget_bytes]
            named = [one_line(each.partition("::")[2] or each) for each in over[:3]]
            tests = f", while {', '.join(named)}{f' and {len(over) - 3:,} more' * (len(over) > 3)} ran" if over else ""
            amounts = f"{gb_text(use.peak_bytes)} at its peak, budget {need.memory_gb:g} GB"
            lines.append(f"{one_line(path)}: {amounts}{tests}")
    return lines


def unmeasured_lines(results: Iterable[UnitResult]) -> Iterator[str]:
    """A line for each reason why the memory of units was not measured, with their number."""
    uses = [result.gpu_memory for result in results if result.gpu_memory is not None]
    for why in NOTED:
        if num := sum(use.why is why for use in uses):
            yield f"the GPU memory of {count(num, 'unit')} was not measured: {REASONS[why]}"
