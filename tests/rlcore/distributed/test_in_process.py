"""The default backend: workers in this process; and what groups check before any backend starts."""

import os
from collections.abc import Iterator

import pytest

from rlcore.distributed.dispatch import Broadcast, Entry
from rlcore.distributed.mesh import data_parallel
from rlcore.distributed.worker import Worker, WorkerSpec
from rlcore.distributed.worker_group import WorkerGroup, start_colocated, start_group
from rlcore.errors import InvalidValueError, StepError, WorkerError
from tests.rlcore.distributed.conformance import *  # noqa: F403  # the tests of every backend
from tests.rlcore.distributed.workers import Adder, Faulty


@pytest.fixture(scope="module")
def adder() -> Iterator[WorkerGroup[Adder]]:
    specs = [WorkerSpec("adder", Adder, (5,)), WorkerSpec("other", Adder, (100,))]
    with start_colocated(specs, size=3)["adder"] as group:
        yield group


@pytest.fixture(scope="module")
def faulty() -> Iterator[WorkerGroup[Faulty]]:
    with start_group(Faulty, role="faulty", size=2) as group:
        yield group


def test_an_error_of_this_process_is_raised_itself(faulty: WorkerGroup[Faulty]) -> None:
    with pytest.raises(StepError) as caught:
        faulty.handle.raise_error("step", 0)
    assert caught.traceback[-1].name == "raise_error", "the debugger shows the worker's own frame"
    assert len(caught.value.__notes__) == 1


def test_the_environment_must_be_that_of_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RLCORE_TEST", "1")
    start_group(Adder, role="adder", environment={"RLCORE_TEST": "1"}).close()
    with pytest.raises(InvalidValueError, match="RLCORE_TEST='1' in this process") as caught:
        start_group(Adder, role="adder", environment={"RLCORE_TEST": "2"})
    assert caught.value.legal == "RLCORE_TEST='2'"


class Meshed(Worker):
    """Names a mesh."""

    dispatch_table = {"ask": Entry({"value": Broadcast()}, mesh="train")}  # noqa: RUF012

    def ask(self, value: int) -> int:
        return value


def test_what_cannot_be_started_is_refused() -> None:
    for options, what in (
        ({"size": 0}, "size 0"),
        ({"backend": "in_proces"}, "backend 'in_proces'"),
        ({"environment": {"RANK": "3"}}, "RANK in the environment"),
        ({"meshes": {"data": data_parallel(2)}}, "mesh 'data' of role adder has 2 ranks"),
    ):
        with pytest.raises(InvalidValueError, match=what):
            start_group(Adder, role="adder", **options)
    with pytest.raises(InvalidValueError, match="divides by mesh 'train'"):
        start_group(Meshed, role="meshed")
    assert start_group(Meshed, role="meshed", meshes={"train": data_parallel(1)}).handle.ask(3) == 3
    with pytest.raises(InvalidValueError, match=r"roles \['a', 'a'\]"):
        start_colocated([WorkerSpec("a", Adder), WorkerSpec("a", Adder)])


def test_the_nearest_backend_is_named() -> None:
    with pytest.raises(InvalidValueError) as caught:
        start_group(Adder, role="adder", backend="in_proces")
    assert caught.value.remedy == "did you mean 'in_process'?"


def test_a_closed_group_is_not_called() -> None:
    with start_group(Adder, role="adder") as group:
        assert group.handle.first(1) == 1
        assert group.process_ids == (os.getpid(),)
    group.close()
    with pytest.raises(WorkerError, match="method first of role adder: its group is closed"):
        group.handle.first(1)


class Closing(Worker):
    """Notes when it is closed."""

    closed: list[str] = []  # noqa: RUF012

    def close(self) -> None:
        self.closed.append(self.context.role)


def test_colocated_workers_are_closed_together_last_one_first_and_not_after_an_error() -> None:
    Closing.closed.clear()
    groups = start_colocated([WorkerSpec("a", Closing), WorkerSpec("b", Closing)])
    groups["a"].close()
    groups["b"].close()
    assert Closing.closed == ["b", "a"]
    with pytest.raises(KeyError), start_group(Closing, role="c"):
        raise KeyError
    assert Closing.closed == ["b", "a"]


class WrongMethod:
    """A view with a method that does not exist."""

    def frist(self, value: int) -> int:
        raise AssertionError


class WrongArgument:
    """A view with an argument that does not exist."""

    def first(self, vlaue: int) -> int:
        raise AssertionError


def test_a_view_is_compared_with_the_worker(adder: WorkerGroup[Adder]) -> None:
    with pytest.raises(InvalidValueError, match=r"WrongMethod\.frist is no method of role 'adder'"):
        adder.view(WrongMethod)
    with pytest.raises(InvalidValueError, match=r"WrongArgument\.first has arguments \['vlaue'\]"):
        adder.view(WrongArgument)
