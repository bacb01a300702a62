"""Dispatch tables are checked when the class is defined: against its methods, their arguments, and themselves."""

from collections.abc import Mapping
from functools import partial
from typing import Any

import pytest

from rlcore.data.microbatches import balanced_microbatches
from rlcore.distributed.dispatch import (
    Broadcast,
    Collect,
    Entry,
    Mesh,
    Padding,
    Partition,
    Shard,
    public_methods,
)
from rlcore.distributed.worker import Worker
from rlcore.errors import InvalidValueError
from tests.rlcore.distributed.workers import Adder


def define(table: Mapping[str, Any], **methods: Any) -> type[Worker]:
    """Define a worker class with this table and these methods."""
    return type("PolicyWorker", (Worker,), {"dispatch_table": table, **methods})


def score(self: object, batch: object, scale: float = 1.0) -> None:
    """A method."""


SCORE = Entry({"batch": Shard(), "scale": Broadcast()})


def test_a_table_that_matches_is_accepted() -> None:
    worker = define({"score": SCORE}, score=score, _private=score)
    assert list(public_methods(worker, Worker)) == ["score"]
    assert list(public_methods(worker, Worker)["score"].parameters) == ["batch", "scale"]


@pytest.mark.parametrize(
    ("table", "methods", "what", "remedy"),
    [
        ({"scoer": SCORE}, {"score": score}, "entry 'scoer'", "did you mean 'score'?"),
        ({"score": SCORE}, {}, "no public method of this name", ""),
        ({}, {"score": score}, "no entry for the public method 'score'", '"score": Entry(...)'),
        ({"score": SCORE, "_hidden": SCORE}, {"score": score, "_hidden": score}, "entry '_hidden'", ""),
        ({"score": Entry({"bacth": Shard(), "scale": Broadcast()})}, {"score": score}, "'bacth'", "'batch'?"),
        ({"score": Entry({"batch": Shard()})}, {"score": score}, "does not say how scale is divided", ""),
        ({"score": Shard()}, {"score": score}, "is Shard(", ""),
        ({"score": SCORE}, {"score": staticmethod(score)}, "is a staticmethod", "leading underscore"),
        ({"score": Entry()}, {"score": lambda self, *given: None}, "argument *given", ""),
    ],
)
def test_a_table_that_differs_is_refused(
    table: Mapping[str, Any], methods: dict[str, Any], what: str, remedy: str
) -> None:
    with pytest.raises(InvalidValueError) as caught:
        define(table, **methods)
    assert what in caught.value.what
    assert remedy in caught.value.remedy


def test_a_coroutine_function_is_refused() -> None:
    async def score(self: object) -> None: ...

    with pytest.raises(InvalidValueError, match="is a coroutine function") as caught:
        define({"score": Entry()}, score=score)
    assert "one call after the other" in caught.value.legal


def test_a_subclass_is_checked_with_the_table_that_it_inherits_or_extends() -> None:
    with pytest.raises(InvalidValueError, match="no entry for the public method 'more'"):

        class Forgot(Adder):
            def more(self) -> None: ...

    class Extended(Adder):
        dispatch_table = Adder.dispatch_table | {"more": Entry()}  # type: ignore[operator]

        def more(self) -> None: ...

    assert Extended.dispatch_table.keys() - Adder.dispatch_table.keys() == {"more"}


def test_the_methods_of_the_base_are_not_called_by_controllers() -> None:
    assert "close" not in public_methods(define({}, close=lambda self: None), Worker)


@pytest.mark.parametrize(
    ("build", "what"),
    [
        (partial(Entry, {"a": Shard(), "b": Shard(Padding.WRAP)}), "several ways"),
        (partial(Entry, {"a": Shard(), "b": Partition(balanced_microbatches)}), "several ways"),
        (partial(Entry, {"a": Broadcast()}, collect=Collect.ROWS), "no argument is divided"),
        (partial(Mesh, (0, 0), (True, True)), r"\[0, 0\] are collected"),
        (partial(Mesh, (0, 1), (True, False)), r"\[0\] are collected"),
        (partial(Mesh, (), ()), r"\[\] are collected"),
    ],
)
def test_an_entry_or_a_mesh_that_contradicts_itself_is_refused(build: Any, what: str) -> None:
    with pytest.raises(InvalidValueError, match=what):
        build()
