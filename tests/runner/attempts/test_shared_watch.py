"""A GPU that units share is checked before the first of them and after the last, however they follow each other."""

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from hypothesis import given
from hypothesis import strategies as st

from harness.machine.gpu_watch import GpuWatch
from harness.runner.attempts.gpu_checks import SharedWatch

GPU = ("ID-0",)
PATIENCE_S = 20.0


@dataclass
class Driver:
    """A `GpuWatch` that answers as its fields say; it polls until the memory is back or there is a hurry."""

    level: int = 0
    unfit: dict[str, str] = field(default_factory=dict)
    is_held: bool = False
    num_checks: int = 0
    baselines: list[Mapping[str, int]] = field(default_factory=list)
    """Those with which it was asked whether memory is back."""

    async def check(self, gpu_ids: Sequence[str]) -> tuple[dict[str, int], dict[str, str]]:
        self.num_checks += 1
        found = dict.fromkeys(gpu_ids, self.level), dict(self.unfit)
        await asyncio.sleep(0)
        return found

    async def not_back(
        self, gpu_ids: Sequence[str], baseline: Mapping[str, int], hurry: Callable[[], bool] = lambda: False
    ) -> dict[str, str]:
        self.baselines.append(baseline)
        while self.is_held and not hurry():
            await asyncio.sleep(0)
        return {gpu_id: "held" for gpu_id in gpu_ids if self.is_held}


def shared(driver: Driver) -> SharedWatch:
    return SharedWatch(cast(GpuWatch, driver))


def carry_out(scenario: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(scenario, PATIENCE_S))


async def turns() -> None:
    """Let every other task come to where it waits."""
    for _ in range(10):
        await asyncio.sleep(0)


def test_units_that_start_at_once_wait_for_one_check() -> None:
    async def scenario() -> None:
        driver = Driver(level=7)
        watch = shared(driver)
        found = await asyncio.gather(*(watch.check(GPU) for _ in range(3)))
        assert found == [({"ID-0": 7}, {})] * 3
        assert driver.num_checks == 1

    carry_out(scenario())


def test_an_unfit_gpu_is_refused_to_all_that_wait_and_checked_anew_later() -> None:
    async def scenario() -> None:
        driver = Driver(unfit={"ID-0": "busy"})
        watch = shared(driver)
        assert [unfit for _, unfit in await asyncio.gather(watch.check(GPU), watch.check(GPU))] == [
            {"ID-0": "busy"}
        ] * 2
        driver.unfit = {}
        driver.level = 3
        assert await watch.check(GPU) == ({"ID-0": 3}, {})
        assert await watch.not_back(GPU, {"ID-0": 3}) == {}
        assert driver.baselines == [{"ID-0": 3}], "the refused units hold nothing"

    carry_out(scenario())


def test_a_unit_alone_on_its_gpu_is_named_as_the_only_cause() -> None:
    async def scenario() -> None:
        driver = Driver(is_held=True)
        watch = shared(driver)
        level, _ = await watch.check(GPU)
        assert await watch.not_back(GPU, level, hurry=lambda: True) == {"ID-0": "held"}
        await watch.check(GPU)
        await watch.check(GPU)
        await watch.not_back(GPU, level)
        found = await watch.not_back(GPU, level, hurry=lambda: True)
        assert found["ID-0"].startswith("held; 2 units")
        driver.level = 9
        assert await watch.check(GPU) == ({"ID-0": 9}, {}), "after the last unit there is a new level"

    carry_out(scenario())


def test_a_unit_that_came_and_went_while_another_is_polled_answers_alone() -> None:
    async def scenario() -> None:
        driver = Driver(is_held=True)
        watch = shared(driver)
        level, _ = await watch.check(GPU)
        first = asyncio.create_task(watch.not_back(GPU, level))
        await turns()
        is_over = False

        async def come_and_go() -> dict[str, str]:
            await watch.check(GPU)  # without a turn of the loop, so that the polling does not notice
            return await watch.not_back(GPU, level, hurry=lambda: is_over)

        second = asyncio.create_task(come_and_go())
        await turns()
        assert not first.done()
        is_over = True
        assert list(await second) == ["ID-0"]
        driver.is_held = False
        assert await first == {}, "the GPU would be quarantined twice"

    carry_out(scenario())


@given(st.lists(st.booleans(), max_size=30))
def test_of_any_sequence_of_units_the_last_alone_is_asked(steps: list[bool]) -> None:
    """True starts a unit, False ends one; the memory is never back, and each time the GPU is left it is reported."""

    async def scenario() -> None:
        driver = Driver(is_held=True)
        watch = shared(driver)
        num_on = 0
        for starts in steps:
            if starts:
                await watch.check(GPU)
                num_on += 1
            elif num_on:
                num_on -= 1
                held = await watch.not_back(GPU, {}, hurry=lambda: True)
                assert bool(held) is (num_on == 0)
        num_left = sum(num_on == 0 for num_on in _numbers(steps))
        assert len(driver.baselines) == num_left

    carry_out(scenario())


def _numbers(steps: Sequence[bool]) -> list[int]:
    """The number of units on the GPU after each end of one."""
    found, num_on = [], 0
    for starts in steps:
        if starts:
            num_on += 1
        elif num_on:
            num_on -= 1
            found.append(num_on)
    return found
