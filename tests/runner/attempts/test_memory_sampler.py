"""Samples of GPU memory while attempts run: whose a process is, drivers that hang, and the end of sampling."""

import asyncio
import subprocess
import sys
import threading
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

import pytest

from harness.runner.attempts.memory_sampler import MemorySampler
from harness.runner.units import GpuMemoryUse, Unmeasured
from tests.support.fake_meter import FakeMeter

T = TypeVar("T")
CHILD = "import os; print(os.getpid(), flush=True); input()"
PARENT = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {CHILD!r}])"


@dataclass
class RealMeter(FakeMeter):
    """A meter of GPUs that exist; `listed` is what the driver lists at each question."""

    listed: Mapping[str, Mapping[int, int | None]] = field(default_factory=dict)
    num_asked: int = 0

    is_simulated = False

    def memory_by_pid(self, gpu_id: str) -> Mapping[int, int | None]:
        if gpu_id in self.silent:
            threading.Event().wait()
        self.num_asked += 1
        return self.listed.get(gpu_id, {})


@pytest.fixture
def tree() -> Iterator[tuple[int, int]]:
    """A process and its grandchild, by their pids."""
    command = [sys.executable, "-c", PARENT]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield process.pid, int(process.stdout.readline())
        process.communicate("\n")


async def until_asked(meter: RealMeter, number: int) -> None:
    """Return once the driver has been asked so often again."""
    number += meter.num_asked
    while meter.num_asked < number:
        await asyncio.sleep(0.001)


def sampled(meter: RealMeter, *steps: Callable[[MemorySampler], Awaitable[T]], answer_s: float = 10.0) -> list[T]:
    async def story() -> list[T]:
        sampler = MemorySampler(meter, poll_s=0.001, answer_s=answer_s)
        found = [await step(sampler) for step in steps]
        others = asyncio.all_tasks() - {asyncio.current_task()}
        assert not others, "sampling ends with the last attempt"
        return found

    return asyncio.run(story())


def test_a_test_that_changes_during_a_sample_has_no_part_in_it(tree: tuple[int, int]) -> None:
    parent, child = tree
    meter = RealMeter(listed={"a": {child: 5}})
    names = iter(f"t{number}" for number in range(10**6))

    async def one(sampler: MemorySampler) -> GpuMemoryUse | None:
        sampler.begin(0, ("a",), lambda: parent, lambda: next(names))
        await until_asked(meter, 3)
        return await sampler.end(0)

    assert sampled(meter, one) == [GpuMemoryUse(5, None, "", {})]


def test_a_driver_that_hangs_is_asked_no_more(tree: tuple[int, int]) -> None:
    meter = RealMeter(silent={"a"})

    async def one(sampler: MemorySampler) -> GpuMemoryUse | None:
        sampler.begin(0, ("a",), lambda: tree[0], lambda: "t")
        while not sampler.is_silent:
            await asyncio.sleep(0.001)
        return await sampler.end(0)

    assert sampled(meter, one, one, answer_s=0.05) == [GpuMemoryUse(None, Unmeasured.NO_ANSWER)] * 2


def test_nothing_is_asked_without_gpus_and_of_simulated_ones() -> None:
    real, simulated = RealMeter(), FakeMeter()
    for meter, gpu_ids in ((real, ()), (simulated, ("a",))):

        async def one(gpu_ids: tuple[str, ...] = gpu_ids, meter: FakeMeter = meter) -> GpuMemoryUse | None:
            sampler = MemorySampler(meter, poll_s=0.0)
            sampler.begin(0, gpu_ids, lambda: 1, lambda: "t")
            assert len(asyncio.all_tasks()) == 1
            return await sampler.end(0)

        assert asyncio.run(one()) is None
