"""The packing benchmark in small: the targets hold with a history, and a miss is told."""

import pytest

from tests.benchmarks.packing import InstanceClass, Knowledge, Ratios, classes, measure, report

SMALL = 40


@pytest.mark.full
@pytest.mark.parametrize("instances", classes(), ids=lambda instances: instances.name)
def test_targets_are_met_with_a_history(instances: InstanceClass) -> None:
    found = measure(instances, SMALL if instances.num_files <= 60 else 5, seed=7)
    ours = found.ratios["ours", Knowledge.HISTORY]
    assert ours.mean <= 1.03
    assert ours.p95 <= 1.08
    assert min(ours.values) >= 1 - 1e-9, "below its lower bound"
    assert found.ratios["FIFO strict", Knowledge.HISTORY].mean > ours.mean
    assert "PASS" in report(instances, found)


def test_a_missed_target_is_told() -> None:
    assert Ratios([1.0] * 19 + [1.05]).meets_targets
    assert not Ratios([1.04] * 20).meets_targets
    assert not Ratios([1.0] * 18 + [1.09] * 2).meets_targets
