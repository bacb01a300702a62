"""From a context to a plan: find the units, expect their durations, split files that dominate, pack them."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, replace

from harness.runner.collection.collect import Collected, collect
from harness.runner.collection.units import (
    expect_selected,
    give_needs,
    keep_together,
    note_idle,
    set_aside_deselected,
    split_files,
)
from harness.runner.options import selects_by_outcome, selects_tests
from harness.runner.records.history import Expectation
from harness.runner.reruns.last_failed import failed_first, read_last_failed, select_last_failed
from harness.runner.reruns.resuming import keep_passed, with_digests, with_kept
from harness.runner.run_context import RunContext
from harness.runner.schedule.leases import LeaseTable
from harness.runner.schedule.packing import Job, Plan, plan
from harness.runner.schedule.sharding import Shard, ShardPlan, plan_shard


@dataclass(frozen=True, slots=True)
class Planned:
    """Result of collection and packing."""

    collected: Collected
    table: LeaseTable
    plan: Plan
    shard: ShardPlan | None = None
    """What the units are a part of; None for a whole suite."""
    estimated: frozenset[int] = frozenset()
    """Numbers of the planned units without a known duration."""

    def expected_s(self) -> tuple[float, ...]:
        """Expected seconds of each unit, in their order; 0 for one that cannot run."""
        expected = {job.index: job.expected_s for job in self.plan.order}
        return tuple(expected.get(number, 0.0) for number in range(len(self.collected.units)))


async def collect_and_plan(context: RunContext) -> Planned:
    """Find the units, expect their durations, pack them. Raises CollectionError, UsageError."""
    options = context.options
    collected = await collect(options, context.suite)
    collected = keep_together(note_idle(collected, options), options.together)
    collected = with_digests(collected, options.invocation.trailing)
    collected = give_needs(collected, options, context.gpus.inventory)
    sizes = {unit.path: collected.sizes_bytes.get(unit.path, 0) for unit in collected.units}
    expected: Mapping[str, Expectation] = context.history.expectations(sizes)
    collected, shard = _cut(collected, {path: each.seconds for path, each in expected.items()}, options.shard)
    uses_last = options.last_failed or options.failed_first
    last = await asyncio.to_thread(read_last_failed, options.results_root) if uses_last else None
    if options.last_failed:
        collected = select_last_failed(collected, last)
    if options.resume:
        collected = keep_passed(collected, options.resume)
    collected = set_aside_deselected(collected)
    if selects_tests(options.invocation.trailing):
        expected = expect_selected(expected, collected, context.history.test_durations_s(collected.files))
    table = new_table(context)
    if options.split and not selects_by_outcome(options.invocation.trailing):
        collected, expected = split_files(collected, expected, table, context.history)
    collected = with_kept(collected)
    first: frozenset[int] = frozenset()
    if options.failed_first:
        collected, first = failed_first(collected, last)
    jobs = [
        Job(number, unit.need, expected[unit.path].seconds)
        for number, unit in enumerate(collected.units)
        if unit.can_run and unit.path not in collected.not_found and unit.path not in collected.kept
    ]
    estimated = frozenset(job.index for job in jobs if expected[collected.units[job.index].path].is_estimate)
    return Planned(collected, table, plan(jobs, table, first), shard, estimated)


def _cut(
    collected: Collected, expected_s: Mapping[str, float], shard: Shard | None
) -> tuple[Collected, ShardPlan | None]:
    """Return the part of the collection that belongs to `shard`; all of it for None."""
    if shard is None:
        return collected, None
    paths, shard_plan = plan_shard(expected_s, shard)
    units = tuple(unit for unit in collected.units if unit.path in paths)
    not_found = {path: why for path, why in collected.not_found.items() if path in paths}
    return replace(collected, units=units, not_found=not_found), shard_plan


def new_table(context: RunContext) -> LeaseTable:
    """Return a table of this run's GPUs and CPU slots, all of them free."""
    return LeaseTable(context.gpus.inventory, context.options.cpu_units, context.options.mix_models)
