"""From a context to a plan: find the units, expect their durations, split files that dominate, pack them."""

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import inf
from pathlib import Path
from typing import Any

from harness.process.child_env import child_env
from harness.process.supervisor_client import ProcessSpec
from harness.runner.collection.collect import Collected, Collector, collect
from harness.runner.collection.collect_options import CollectOptions
from harness.runner.collection.default_needs import give_needs
from harness.runner.collection.deselected import expect_selected, set_aside_deselected
from harness.runner.collection.idle_patterns import note_idle
from harness.runner.collection.split_files import split_files
from harness.runner.collection.together import keep_together
from harness.runner.options import selects_by_outcome, selects_tests
from harness.runner.records.history import Expectation
from harness.runner.reruns.last_failed import failed_first, read_last_failed, select_last_failed
from harness.runner.reruns.resuming import keep_passed, with_digests, with_kept
from harness.runner.run_context import RunContext
from harness.runner.schedule.leases import LeaseTable
from harness.runner.schedule.packing import Job, Plan, plan
from harness.runner.schedule.sharding import Shard, ShardPlan, plan_shard
from harness.runner.sessions.pytest_command import pytest_command

DECIDING = ("CUDA_VISIBLE_DEVICES", "PYTEST_ADDOPTS")
"""Variables that may decide which tests pytest collects from a file."""


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


async def collect_and_plan(
    context: RunContext, on_progress: Callable[[int, int], None], *, finds_node_ids: bool = False
) -> Planned:
    """Find the units, expect their durations, pack them.

    `on_progress` gets the number of imported files. With `finds_node_ids`, a node id that names no test is reported
    now and not planned. Raises CollectionError, UsageError.
    """
    options = context.options
    if context.warm is not None and await context.warm.wait_ready(options.collect_timeout_s):
        context.supervisors.parent = context.warm
    has_selection = selects_tests(options.invocation.trailing)
    wanted = _collect_options(context, finds_node_ids=finds_node_ids, has_selection=has_selection)
    make_spec = partial(_collection_spec, context)
    collected = await collect(options.paths, wanted, context.supervisors, make_spec, on_progress)
    collected = keep_together(_noted(collected, context), options.together)
    collected = with_digests(collected, options.invocation.trailing)
    sizes = {unit.path: collected.sizes_bytes.get(unit.path, 0) for unit in collected.units}
    collected = give_needs(collected, options, context.gpus.inventory)
    expected: Mapping[str, Expectation] = context.history.expectations(sizes)
    collected, shard = _cut(collected, {path: each.seconds for path, each in expected.items()}, options.shard)
    uses_last = options.last_failed or options.failed_first
    last = await asyncio.to_thread(read_last_failed, options.results_root) if uses_last else None
    if options.last_failed:
        collected = select_last_failed(collected, last)
    if options.resume:
        collected = keep_passed(collected, options.resume)
    if has_selection:
        collected = set_aside_deselected(collected)
        expected = expect_selected(expected, collected, context.history.test_durations_s(collected.files))
    table = new_table(context)
    if options.split and not selects_by_outcome(options.invocation.trailing):
        collector = Collector(wanted, context.supervisors, make_spec)
        collected, expected = await split_files(
            collected, expected, table, context.history, collector, on_progress=on_progress
        )
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


def _collect_options(context: RunContext, *, finds_node_ids: bool, has_selection: bool) -> CollectOptions:
    options = context.options
    return CollectOptions(
        cwd=options.invocation.cwd,
        directory=context.scratch / "collection",
        timeout_s=options.collect_timeout_s,
        file_timeout_s=options.timeout_s,
        limit=options.cpu_units,
        pytest_args=options.invocation.trailing,
        needs=options.needs,
        distrusted=context.history.to_import,
        memory=context.history,
        context=json.dumps([options.invocation.trailing, *map(options.invocation.environ.get, DECIDING)]),
        preload=partial(_preload, context),
        finds_node_ids=finds_node_ids,
        imports_all=has_selection and bool(context.gpus.inventory.gpus),
    )


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


def _noted(collected: Collected, context: RunContext) -> Collected:
    return note_idle(collected, context.options, context.warm.refused if context.warm is not None else {})


async def _preload(context: RunContext, imports: Sequence[str]) -> None:
    modules = (*context.options.preload, *imports)
    if context.warm is not None:
        await context.warm.preload(modules)


def new_table(context: RunContext) -> LeaseTable:
    """Return a table of this run's GPUs and CPU slots, all of them free."""
    return LeaseTable(context.gpus.inventory, context.options.cpu_units, context.options.mix_models)


def _collection_spec(
    context: RunContext,
    pytest_args: tuple[str, ...],
    directory: Path,
    timeout_s: float,
    session: Mapping[str, Any] | None = None,
) -> ProcessSpec:
    """A pytest process that only collects; its GPUs are the ones this process sees."""
    options = context.options
    tmpdir = context.scratch / "c"
    tmpdir.mkdir(exist_ok=True)
    marker = f"{context.run_id}-c{directory.name}"
    return ProcessSpec(
        argv=(*pytest_command(options), *pytest_args),
        cwd=str(options.invocation.cwd),
        env=child_env(
            options.invocation.environ,
            gpus=None,
            tmpdir=str(tmpdir),
            marker=marker,
            master_port=context.ports.master_port(0),
        ),
        directory=str(directory),
        marker=marker,
        timeout_s=timeout_s,
        startup_timeout_s=inf,
        grace_s=options.grace_s,
        session=session,
    )
