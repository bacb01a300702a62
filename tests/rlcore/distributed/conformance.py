"""What every backend promises. A module of tests imports these functions, and has the fixtures `adder` and `faulty`.

`adder` is a group of three `Adder(5)` colocated with "other", an `Adder(100)`; `faulty` is a group of two `Faulty`.
"""

import threading
from typing import Any, Protocol

import pytest
import torch
from torch import Tensor

from rlcore.distributed.futures import Future
from rlcore.distributed.worker_group import WorkerGroup
from rlcore.errors import InvalidValueError, RlcoreError, ShapeError, StepError, WorkerError
from tests.rlcore.distributed.workers import Adder, Faulty, OwnError, double

Adders = WorkerGroup[Adder]
LARGE = 50_000
"""Elements of a tensor that does not travel in the message itself."""


class AdderView(Protocol):
    """An Adder as its caller sees it."""

    def later(self, values: Tensor) -> Future[Tensor]: ...
    def each(self, value: list[int]) -> list[int]: ...
    def total(self, values: dict[str, Tensor], scale: float = 1.0) -> list[float]: ...
    def sizes(self, values: Tensor) -> list[int]: ...
    def ask_colocated(self, role: str, value: int) -> list[int]: ...


def test_rows_are_divided_padded_and_come_back_in_order(adder: Adders) -> None:
    assert adder.handle.add(torch.arange(7)).tolist() == [5, 6, 7, 9, 10, 11, 13]
    assert adder.handle.add(values=torch.arange(3)).tolist() == [5, 7, 9]
    assert adder.handle.add_uneven(torch.zeros(5)).tolist() == [0, 0, 1, 1, 2]
    assert adder.handle.add_uneven(torch.zeros(2)).tolist() == [0, 1], "rank 2 has no row"
    assert adder.handle.lengths(["a", "bbb", "cc", "dddd", ""]) == [1, 3, 2, 4, 0]


def test_a_function_travels_beside_rows(adder: Adders) -> None:
    assert adder.handle.apply(double, torch.arange(6)).tolist() == [0, 2, 4, 6, 8, 10]
    with pytest.raises(InvalidValueError, match="function is <function") as caught:
        adder.handle.apply(lambda values: values, torch.arange(6))
    assert caught.value.__notes__ == ["in the controller, calling apply of role adder"]


def test_values_are_broadcast_given_to_each_or_asked_of_rank_zero(adder: Adders) -> None:
    caller: AdderView = adder.view(AdderView)
    assert caller.total({"a": torch.ones(LARGE), "b": torch.ones(3)}, scale=2.0) == [2.0 * (LARGE + 3)] * 3
    assert caller.total({"a": torch.ones(2)}) == [2.0] * 3, "the method's own default"
    assert caller.each([1, 2, 3]) == [10, 21, 32]
    assert adder.handle.first(1) == 6
    with pytest.raises(ShapeError, match="value has 2 values"):
        caller.each([1, 2])


def test_metrics_come_back_unmerged(adder: Adders) -> None:
    caller: AdderView = adder.view(AdderView)
    assert caller.sizes(torch.zeros(7)) == [3, 2, 2]


def test_large_tensors_keep_their_bits_and_belong_to_the_worker(adder: Adders) -> None:
    values = torch.randn(3 * LARGE)
    given = values.clone()
    result = adder.handle.add_uneven(values)
    parts = [values[begin : begin + LARGE] for begin in range(0, 3 * LARGE, LARGE)]
    assert torch.equal(result, torch.cat([part + rank for rank, part in enumerate(parts)]))
    assert torch.equal(values, given)


def test_a_call_that_does_not_block_returns_a_future(adder: Adders) -> None:
    caller: AdderView = adder.view(AdderView)
    futures = [caller.later(torch.full((4,), number)) for number in range(5)]
    blocking = adder.handle.first(1)
    assert (blocking, [future.result().tolist() for future in futures]) == (6, [[n, n, n + 1, n + 1] for n in range(5)])
    assert futures[0].is_done()
    assert futures[0].result() is futures[0].result()


def test_a_future_is_no_argument(adder: Adders) -> None:
    caller: AdderView = adder.view(AdderView)
    future = caller.later(torch.zeros(3))
    for value in (future, [future], {"a": future}):
        with pytest.raises(InvalidValueError, match="argument values is a Future") as caught:
            adder.handle.total(value)  # type: ignore[arg-type]
        assert caught.value.remedy == "give values.result(): the controller waits there"


def test_calls_of_several_threads_reach_all_ranks_in_one_order(adder: Adders) -> None:
    found: list[Any] = []

    def call(number: int) -> None:
        found.extend((number, adder.handle.add(torch.full((3,), number)).tolist()) for _ in range(5))

    threads = [threading.Thread(target=call, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 20
    assert all(result == [number + 5, number + 6, number + 7] for number, result in found)


def test_colocated_roles_share_processes_and_reach_each_other(adder: Adders) -> None:
    caller: AdderView = adder.view(AdderView)
    assert caller.ask_colocated("other", 1) == [106] * 3


def test_a_handle_names_the_nearest_method(adder: Adders) -> None:
    with pytest.raises(AttributeError, match=r"role 'adder' has no method 'frist': did you mean 'first'\?"):
        adder.handle.frist(1)  # type: ignore[attr-defined]
    assert set(dir(adder.handle)) == set(Adder.dispatch_table)
    assert adder.handle.first.__doc__ == Adder.first.__doc__


def test_arguments_are_bound_as_the_method_takes_them(adder: Adders) -> None:
    with pytest.raises(TypeError, match="unexpected keyword argument 'vlaue'") as caught:
        adder.handle.first(1, vlaue=1)  # type: ignore[call-arg]
    assert caught.value.__notes__ == ["in the controller, calling first of role adder"]


def test_an_error_keeps_class_and_fields_and_names_the_worker(faulty: WorkerGroup[Faulty]) -> None:
    with pytest.raises(StepError) as caught:
        faulty.handle.raise_error("step", 1)
    error = caught.value
    assert (error.what, error.legal, error.remedy, error.phases) == (
        "update or sync: the sum is odd",
        "even",
        "add one",
        ("update", "sync"),
    )
    pid = faulty.process_ids[1]
    assert error.__notes__[0] == f"in worker faulty, rank 1 of 2 (pid {pid}), method raise_error"
    with pytest.raises(ValueError, match="not a number") as builtin:
        faulty.handle.raise_error("value", 0)
    assert builtin.value.__notes__[0].startswith("in worker faulty, rank 0 of 2")
    assert not isinstance(builtin.value, RlcoreError)


def test_after_an_error_the_group_still_works(faulty: WorkerGroup[Faulty]) -> None:
    with pytest.raises(StepError):
        faulty.handle.raise_error("step", 0)
    assert tuple(faulty.handle.pid()) == faulty.process_ids  # type: ignore[arg-type]
    faulty.check()


def in_other_processes_an_error_that_cannot_travel_is_described(faulty: WorkerGroup[Faulty]) -> None:
    """For backends with processes: exceptions and results that pickle refuses."""
    for kind, text in (("own", "OwnError: 3 of a"), ("local", "LocalError: of a function")):
        with pytest.raises(WorkerError, match=text) as caught:
            faulty.handle.raise_error(kind, 1)
        assert (caught.value.role, caught.value.rank) == ("faulty", 1)
        assert any("Traceback" in note for note in caught.value.__notes__)
    with pytest.raises(WorkerError, match="cannot be pickled or read"):
        faulty.handle.result()
    assert OwnError("a", 3).args == ("3 of a",)
