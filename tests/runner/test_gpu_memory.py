"""Measured GPU memory of a unit: the fold of its samples, with what is said where there is no figure."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.runner.need import Need
from harness.runner.units import GpuMemoryUse, Listed, MemoryTally, Unmeasured, exceeds_budget, merge_uses

GB = 10**9
OWN, OTHER, HIDDEN = 10, 11, 12
SHARED = Need(1, memory_gb=12, shared=True)


def use_of(*samples: tuple[Listed | tuple[Listed, ...], str]) -> GpuMemoryUse:
    """The use of a unit with the process OWN, of the processes on each of its GPUs and the test of the moment."""
    tally = MemoryTally()
    for listed, test in samples:
        on_gpus = listed if isinstance(listed, tuple) else (listed,)
        tally.take(on_gpus, tree={OWN}, living={OWN, OTHER}, test=test)
    return tally.finish()


def test_only_the_processes_of_the_unit_count() -> None:
    found = use_of(({OWN: 3 * GB, OTHER: 70 * GB}, "a"), ({OTHER: 80 * GB}, "b"), ({OWN: 2 * GB}, "c"))
    assert found == GpuMemoryUse(3 * GB, None, "a", {"a": 3 * GB, "c": 2 * GB})


def test_a_peak_is_on_one_gpu() -> None:
    assert use_of((({OWN: 3 * GB}, {OWN: 5 * GB}), "a")) == GpuMemoryUse(5 * GB, None, "a", {"a": 5 * GB})


@pytest.mark.parametrize(
    ("listed", "why"),
    [
        ({}, Unmeasured.NOT_SEEN),
        ({OTHER: GB}, Unmeasured.NOT_SEEN),
        ({OWN: 0}, Unmeasured.NOT_SEEN),
        ({HIDDEN: GB}, Unmeasured.NOT_VISIBLE),
        ({OWN: None}, Unmeasured.NOT_REPORTED),
        ({OTHER: None}, Unmeasured.NOT_SEEN),
    ],
)
def test_a_reason_takes_the_place_of_a_figure(listed: Listed, why: Unmeasured) -> None:
    assert use_of((listed, "a")) == GpuMemoryUse(None, why)


def test_a_figure_of_some_processes_alone_is_no_figure() -> None:
    assert use_of(({OWN: GB}, "a"), ({OWN: None}, "b")).why is Unmeasured.NOT_REPORTED


amounts = st.dictionaries(st.sampled_from([OWN, OTHER]), st.integers(0, 100 * GB), max_size=2)


@given(st.lists(st.tuples(amounts, st.sampled_from(["", "a", "b"])), max_size=8))
def test_the_peak_is_the_largest_sample(samples: list[tuple[Listed, str]]) -> None:
    tally = MemoryTally()
    for listed, test in samples:
        tally.take([listed], tree={OWN}, living={OWN, OTHER}, test=test)
    found = tally.finish()
    own = [listed.get(OWN) or 0 for listed, _ in samples]
    assert (found.peak_bytes or 0) == max(own, default=0)
    for name in ("a", "b"):
        of_test = [used for used, (_, test) in zip(own, samples, strict=True) if test == name and used]
        assert found.tests.get(name) == (max(of_test) if of_test else None)
    if found.test:
        assert found.tests[found.test] == found.peak_bytes


def test_attempts_and_parts_have_the_highest_peak_of_all() -> None:
    one, two = GpuMemoryUse(3, None, "a", {"a": 3, "b": 1}), GpuMemoryUse(2, None, "b", {"b": 2})
    missing = GpuMemoryUse(None, Unmeasured.NOT_SEEN)
    assert merge_uses([None, missing, one, two]) == GpuMemoryUse(3, None, "a", {"a": 3, "b": 2})
    assert merge_uses([missing, None]) == missing
    assert merge_uses([None]) is None


def test_only_the_budget_of_a_shared_gpu_can_be_exceeded() -> None:
    use = GpuMemoryUse(12 * GB + 1)
    assert exceeds_budget(use, SHARED)
    assert not exceeds_budget(GpuMemoryUse(12 * GB), SHARED)
    assert not exceeds_budget(use, Need(1, memory_gb=12)), "memory that its GPU must have"
    assert not exceeds_budget(GpuMemoryUse(None, Unmeasured.NOT_SEEN), SHARED)
    assert not exceeds_budget(None, SHARED)
