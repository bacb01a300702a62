"""Whether the GPUs of a lease are back, asked of meters that are slow, silent or contradict themselves."""

import asyncio
import threading
from collections.abc import Sequence

from harness.machine.gpu_health import FaultKind, GpuFault
from harness.machine.gpu_watch import HURRIED_WAIT_S, GpuWatch
from harness.machine.meter import GpuProcess, NoMeter
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


def watch(meter: FakeMeter | NoMeter, clock: FakeClock | None = None, **limits: float) -> GpuWatch:
    return GpuWatch(meter, clock or FakeClock(), (), **{"poll_s": 0.0, **limits})


def test_a_check_leaves_out_memory_that_cannot_be_read_and_names_a_gpu_that_does_not_answer() -> None:
    meter = FakeMeter({"a": 5}, silent={"b"})
    baseline, unfit = asyncio.run(watch(meter, answer_s=0.05).check(("a", "b", "c")))
    assert (baseline, unfit) == ({"a": 5}, {"b": "it cannot be read: the driver did not answer within 0.05 s"})
    assert asyncio.run(watch(NoMeter()).check(("a",))) == ({}, {})


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
