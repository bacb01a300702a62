"""The packing benchmark in small: the targets hold with a history, and a miss is told."""

import random

import pytest

from harness.runner.schedule.leases import LeaseTable
from harness.runner.schedule.packing import plan
from tests.benchmarks.packing import (
    InstanceClass,
    Knowledge,
    Ratios,
    classes,
    eight_cards,
    measure,
    report,
    shared_classes,
)

SMALL = 40


@pytest.mark.full
@pytest.mark.parametrize("instances", classes(), ids=lambda instances: instances.name)
def test_targets_are_met_with_a_history(instances: InstanceClass) -> None:
    found = measure(instances, SMALL if instances.num_files <= 60 else 5, seed=7)
    ours = found.ratios["ours", Knowledge.HISTORY]
    assert ours.mean <= 1.03
    assert ours.p95 <= 1.1
    assert min(ours.values) >= 1 - 1e-9, "below its lower bound"
    assert found.ratios["FIFO strict", Knowledge.HISTORY].mean > ours.mean
    assert "PASS" in report(instances, found)


@pytest.mark.full
@pytest.mark.parametrize("instances", shared_classes(), ids=lambda instances: instances.name)
def test_plans_in_which_files_share_gpus_are_near_the_bound(instances: InstanceClass) -> None:
    found = measure(instances, 3, seed=7)
    ours = found.ratios["ours", Knowledge.HISTORY]
    assert min(ours.values) >= 1 - 1e-9 and ours.max <= 1.08
    assert found.ratios["FIFO strict", Knowledge.HISTORY].mean > ours.mean
    assert "PASS" in report(instances, found)


def test_a_plan_in_which_files_share_gpus_is_near_the_bound() -> None:
    """One instance of the class with the most budgets, as the quick tier has it."""
    instances = shared_classes()[1]
    jobs = instances.draw(random.Random(7))
    assert {job.need.gpus for job in jobs if not job.need.shared} == {1, 2}
    budgets_gb = [job.need.memory_gb for job in jobs if job.need.shared]
    assert len(budgets_gb) > len(jobs) / 2
    assert all(3.0 <= budget_gb <= 40.0 for budget_gb in budgets_gb)
    made = plan(jobs, LeaseTable(eight_cards(), 1))
    assert made.bound.value_s <= made.makespan_s <= 1.08 * made.bound.value_s


def test_a_missed_target_is_told() -> None:
    whole, shared = classes()[0], shared_classes()[0]
    assert whole.meets_targets(Ratios([1.0] * 19 + [1.05]))
    assert not whole.meets_targets(Ratios([1.04] * 20))
    assert not whole.meets_targets(Ratios([1.0] * 18 + [1.11] * 2))
    assert shared.meets_targets(Ratios([1.0] * 19 + [1.08]))
    assert not shared.meets_targets(Ratios([1.0] * 99 + [1.09]))
