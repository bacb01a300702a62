"""Whether the GPUs of a lease are back, asked of meters that are slow, silent or contradict themselves."""

import asyncio
import threading
from collections.abc import Sequence
from typing import Any

from harness.machine.gpu_health import FaultKind, GpuFault, GpuProcess, Meter
from harness.machine.gpu_watch import HURRIED_WAIT_S, STRANGER_BYTES, GpuWatch
from harness.machine.inventory import Gpu
from tests.support.fake_clock import FakeClock
from tests.support.fake_meter import FakeMeter

GB = 10**9


class Story(FakeMeter):
    """Shows one amount of memory after the other for every GPU, and moves the clock a second with each question."""

    def __init__(self, clock: FakeClock, *used_bytes: int) -> None:
        super().__init__()
        self.clock = clock
        self.left = list(used_bytes)

    def used_memory_bytes(self, gpu_ids: Sequence[str]) -> dict[str, int]:
        self.clock.advance(1.0)
        return dict.fromkeys(gpu_ids, self.left.pop(0) if len(self.left) > 1 else self.left[0])


def watch(meter: Meter, clock: FakeClock | None = None, **limits: float) -> GpuWatch:
    return GpuWatch(meter, clock or FakeClock(), (), **{"poll_s": 0.0, **limits})


def test_a_check_leaves_out_memory_that_cannot_be_read_and_names_a_gpu_that_does_not_answer() -> None:
    meter = FakeMeter({"a": 5}, silent={"b"})
    baseline, unfit = asyncio.run(watch(meter, answer_s=0.05).check(("a", "b", "c")))
    assert (baseline, unfit) == ({"a": 5}, {"b": "it cannot be read: the driver did not answer within 0.05 s"})
    assert asyncio.run(watch(Meter()).check(("a",))) == ({}, {})


def test_a_check_names_a_process_on_a_gpu_and_ignores_pids_that_cannot_be_seen() -> None:
    processes: dict[str, tuple[GpuProcess, ...]] = {
        "a": (GpuProcess(7, GB, "python train.py"),),
        "b": (GpuProcess(8, GB, ""),),
    }
    _, unfit = asyncio.run(watch(FakeMeter({"a": GB, "b": GB}, processes)).check(("a", "b")))
    assert unfit.keys() == {"a"}
    assert "pid 7 (python train.py)" in unfit["a"]


def test_a_check_names_the_fault_of_a_gpu_and_its_remedy() -> None:
    fault = GpuFault(FaultKind.UNCORRECTED, "GPU-a", 3)
    baseline, unfit = asyncio.run(watch(FakeMeter({"a": 5, "b": 5}, faults={"a": fault})).check(("a", "b")))
    assert (baseline, list(unfit)) == ({"b": 5}, ["a"])
    assert "3 uncorrected errors" in unfit["a"]
    assert "nvidia-smi --gpu-reset -i GPU-a" in unfit["a"]


def as_is(gpu_id: str, **fields: Any) -> Gpu:
    return Gpu(gpu_id, 0, "A", 80.0, **{"is_as_is": True, **fields})


def test_what_is_on_a_card_taken_as_it_is_is_no_leak_and_what_comes_later_is() -> None:
    browser, train = GpuProcess(7, GB, "firefox"), GpuProcess(8, GB, "python train.py")
    meter = FakeMeter({"a": GB}, {"a": (browser,)})
    watched = GpuWatch(meter, FakeClock(), (as_is("a"),), poll_s=0.0, wait_s=0.0)
    baseline, unfit = asyncio.run(watched.check(("a",)))
    assert (baseline, unfit) == ({"a": GB}, {})
    assert asyncio.run(watched.not_back(("a",), baseline)) == {}
    meter.processes["a"] = (browser, train)
    held = asyncio.run(watched.not_back(("a",), baseline))["a"]
    assert "pid 8 (python train.py)" in held
    assert "firefox" not in held


def test_a_card_with_a_display_may_miss_its_baseline_by_more() -> None:
    meter = FakeMeter({"a": GB, "b": GB})
    gpus = (as_is("a", is_as_is=False, idle_bytes=2 * GB), as_is("b", is_as_is=False))
    watched = GpuWatch(meter, FakeClock(), gpus, poll_s=0.0, wait_s=0.0)
    assert asyncio.run(watched.not_back(("a", "b"), {"a": 0, "b": 0})).keys() == {"b"}


def test_a_check_finds_memory_that_came_after_the_inventory_without_a_process() -> None:
    gpus = tuple(as_is(name, is_as_is=False, used_bytes=10**7) for name in "abc")
    watched = GpuWatch(FakeMeter({"a": 2 * GB, "b": 10**7 + STRANGER_BYTES}), FakeClock(), gpus)
    _, unfit = asyncio.run(watched.check(("a", "b", "c")))
    assert unfit == {
        "a": "busy before the lease: 2.0 GB more in use than when the run began, by no process that can be named"
    }


def test_an_error_that_the_driver_reported_between_leases_makes_a_card_unfit_if_it_is_a_fatal_one() -> None:
    meter = FakeMeter({"a": 0, "b": 0}, xids={"a": [31, 79], "b": [31]})
    watched = watch(meter)
    _, unfit = asyncio.run(watched.check(("a", "b")))
    assert unfit == {"a": "found before the lease: the driver reported Xid 79 (it has fallen off the bus)"}
    meter.xids = {"b": [13]}
    assert asyncio.run(watched.new_xids(("a", "b"))) == {"b": (13,)}


def test_cards_that_are_back_at_once_are_asked_once() -> None:
    meter = Story(FakeClock(), 0)
    assert asyncio.run(watch(meter).not_back(("a", "b"), {"a": 0, "b": 0})) == {}
    assert meter.clock.monotonic_s() == 2.0


def test_memory_that_comes_back_in_time_is_waited_for() -> None:
    clock = FakeClock()
    story = Story(clock, GB, GB, GB, 0)
    assert asyncio.run(watch(story, clock, wait_s=20.0).not_back(("a",), {"a": 0})) == {}
    assert clock.monotonic_s() == 4.0


def test_memory_that_does_not_is_given_up_on() -> None:
    clock = FakeClock()
    held = asyncio.run(watch(Story(clock, GB), clock, wait_s=20.0).not_back(("a",), {"a": 0}))
    assert held.keys() == {"a"}
    assert "1.0 GB above its baseline" in held["a"]
    assert 20.0 <= clock.monotonic_s() <= 21.0


def test_in_a_hurry_it_waits_for_what_a_killed_process_takes_to_free_its_memory() -> None:
    clock = FakeClock()
    assert asyncio.run(watch(Story(clock, GB), clock).not_back(("a",), {"a": 0}, hurry=lambda: True)).keys() == {"a"}
    assert HURRIED_WAIT_S <= clock.monotonic_s() <= HURRIED_WAIT_S + 1
    assert asyncio.run(watch(Story(clock, GB, 0)).not_back(("a",), {"a": 0}, hurry=lambda: True)) == {}


def test_only_cards_that_are_not_back_are_asked_again() -> None:
    class Two(FakeMeter):
        asked: list[str]

        def used_memory_bytes(self, gpu_ids: Sequence[str]) -> dict[str, int]:
            self.asked.extend(gpu_ids)
            return {"a": 0, "b": GB if self.asked.count("b") < 3 else 0}

    meter = Two()
    meter.asked = []
    assert asyncio.run(watch(meter).not_back(("a", "b"), {"a": 0, "b": 0})) == {}
    assert (meter.asked.count("a"), meter.asked.count("b")) == (1, 3)


def test_a_card_that_does_not_answer_is_asked_once_and_holds_up_no_other() -> None:
    meter = FakeMeter({"a": 0, "b": 0}, silent={"b"})
    before = set(threading.enumerate())
    held = asyncio.run(watch(meter, wait_s=100.0, answer_s=0.05).not_back(("a", "b"), {"a": 0, "b": 0}))
    assert held == {"b": "it cannot be read: the driver did not answer within 0.05 s"}
    assert len(set(threading.enumerate()) - before) == 1, "one thread was left to the driver"


def test_a_process_that_can_be_named_holds_a_card_without_memory() -> None:
    meter = FakeMeter({"a": 0}, {"a": (GpuProcess(7, None, "python train.py"),)})
    held = asyncio.run(watch(meter, wait_s=0.0).not_back(("a",), {"a": 0}))
    assert "pid 7 (python train.py)" in held["a"]
