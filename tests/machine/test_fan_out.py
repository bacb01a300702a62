"""The bounded map over asyncio_pool: a test for each thing the library does not do."""

import asyncio
import gc
from collections.abc import Callable, Coroutine, Iterator
from typing import Any, TypeVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.machine.fan_out import fan_out

R = TypeVar("R")
LATE_S = 10.0


@pytest.fixture(scope="module", autouse=True)
def _only_what_is_new() -> Iterator[None]:
    """Every run below collects garbage: what other tests have left in this process would take a second each time."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


def run(make: Callable[[], Coroutine[Any, Any, R]]) -> tuple[R, list[str]]:
    """The result of a coroutine, and what asyncio complained about; RuntimeError where it hangs past the deadline.

    The loop is stopped from outside: a hanging coroutine may be one that swallows its cancellation.
    """
    complaints: list[str] = []
    loop = asyncio.new_event_loop()
    loop.set_exception_handler(lambda _, context: complaints.append(context["message"]))
    late = loop.call_later(LATE_S, loop.stop)
    try:
        result = loop.run_until_complete(make())
    finally:
        late.cancel()
        loop.close()
    gc.collect()  # futures whose failure nobody saw complain when they are collected
    return result, complaints


class Children:
    """Coroutines that report what happens to them and end when they are told to."""

    def __init__(self) -> None:
        self.begun: list[int] = []
        self.ended: list[int] = []
        self.cancelled: list[int] = []
        self.most = 0
        self.may_end = asyncio.Event()

    async def __call__(self, number: int) -> int:
        self.begun.append(number)
        self.most = max(self.most, len(self.begun) - len(self.ended))
        try:
            await self.may_end.wait()
        except asyncio.CancelledError:
            self.cancelled.append(number)
            raise
        finally:
            self.ended.append(number)
        return number


async def reached(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0)


@given(st.lists(st.integers(0, 5), max_size=30), st.integers(1, 8))
def test_results_come_in_the_order_of_the_items(turns: list[int], limit: int) -> None:
    async def after(item: tuple[int, int]) -> int:
        for _ in range(item[1]):
            await asyncio.sleep(0)
        return item[0]

    results, complaints = run(lambda: fan_out(after, enumerate(turns), limit=limit))
    assert results == list(range(len(turns)))
    assert not complaints


@given(st.integers(1, 20), st.integers(1, 6))
def test_no_more_than_the_limit_run_and_no_fewer_where_there_is_work(num_items: int, limit: int) -> None:
    async def main() -> Children:
        children = Children()
        whole = asyncio.create_task(fan_out(children, range(num_items), limit=limit))
        await reached(lambda: len(children.begun) == min(limit, num_items))
        children.may_end.set()
        await whole
        return children

    children, _ = run(main)
    assert children.most == min(limit, num_items)
    assert sorted(children.ended) == list(range(num_items))


@pytest.mark.parametrize("num_items", [2, 3, 20])
def test_a_failure_is_raised_and_ends_the_others(num_items: int) -> None:
    async def main() -> Children:
        children = Children()

        async def first_fails(number: int) -> int:
            if number == 0:
                raise RuntimeError("first")
            return await children(number)

        with pytest.raises(RuntimeError, match="first"):
            await fan_out(first_fails, range(num_items), limit=3)
        return children

    children, complaints = run(main)
    assert children.cancelled == children.begun == children.ended
    assert len(children.begun) <= 3  # the failure was noticed, not waited for behind the others
    assert not complaints


LONG = 50
"""Turns of the loop after which all that may run does."""


@pytest.mark.parametrize(("num_items", "num_turns"), [(1, LONG), (2, LONG), (50, LONG), *((5, n) for n in range(6))])
def test_cancelling_at_any_moment_ends_every_child_at_once(num_items: int, num_turns: int) -> None:
    async def main() -> Children:
        children = Children()
        whole = asyncio.create_task(fan_out(children, range(num_items), limit=2))
        for _ in range(num_turns):
            await asyncio.sleep(0)
        whole.cancel()
        with pytest.raises(asyncio.CancelledError):
            await whole
        assert asyncio.all_tasks() == {asyncio.current_task()}
        return children

    children, complaints = run(main)
    assert children.cancelled == children.ended == children.begun
    assert num_turns < LONG or len(children.begun) == min(2, num_items)
    assert not complaints


def test_a_second_cancellation_does_not_leave_children_behind() -> None:
    async def main() -> None:
        cleaning, cleaned = asyncio.Event(), asyncio.Event()
        may_finish = asyncio.Event()

        async def cleans_up(number: int) -> None:
            try:
                await asyncio.Event().wait()
            finally:
                cleaning.set()
                await may_finish.wait()
                cleaned.set()

        whole = asyncio.create_task(fan_out(cleans_up, [0], limit=1))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        whole.cancel()
        await cleaning.wait()
        whole.cancel()
        await asyncio.sleep(0)
        assert not whole.done()
        may_finish.set()
        with pytest.raises(asyncio.CancelledError):
            await whole
        assert cleaned.is_set()

    assert run(main) == (None, [])
