"""What verl 0.9.1's own tests of dispatch ask, in our words, against dispatch tables.

Each test names the file of verl's `tests/single_controller` (or `tests/test_protocol_on_cpu.py`) that asks the same.
`rlcore/DISTRIBUTED.md` lists what differs, and why.
"""

from collections.abc import Sequence
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor

from rlcore.data.batch import Batch
from rlcore.distributed.dispatch import Broadcast, Collect, Entry, Mesh, Padding, Shard, Table
from rlcore.distributed.rows import concatenate, num_rows, select
from rlcore.distributed.scatter import divide_rows
from rlcore.distributed.worker import Worker
from rlcore.errors import ShapeError
from tests.rlcore.distributed.workers import run_here

ROWS = Entry({"data": Shard(Padding.WRAP)}, collect=Collect.ROWS)


def named(size: int) -> dict[str, Any]:
    """Tensors beside texts: verl's DataProto with a non-tensor batch."""
    return {"a": torch.zeros(size), "na": [str(row) for row in range(size)]}


# ------------------------------------------------------------------------------------------- test_auto_padding_on_cpu


@pytest.mark.parametrize("size", range(4, 20))
def test_padded_parts_have_equal_sizes(size: int) -> None:
    parts = divide_rows(size, 4, Padding.WRAP)
    assert [len(rows) for rows in parts] == [size // 4 + bool(size % 4)] * 4


@pytest.mark.parametrize("size", [10, 1, 8])
def test_a_padded_call_returns_as_many_rows_as_it_was_given(size: int) -> None:
    class Named(Worker):
        dispatch_table: ClassVar[Table] = {"add": ROWS}

        def add(self, data: dict[str, Any]) -> dict[str, Any]:
            return {**data, "a": data["a"] + self.context.rank}

    output = run_here(Named, "add", size=4, data=named(size))
    each = -(-size // 4)
    assert output["a"].tolist() == [row // each for row in range(size)]
    assert output["na"] == named(size)["na"]


# ---------------------------------------------------------------------------------------------- test_decorator_on_cpu


class Decorated(Worker):
    """Adds its rank and an initial value: `DecoratorTestWorker`."""

    dispatch_table: ClassVar[Table] = {
        "dp_compute": ROWS,
        "dp_compute_train": Entry({"data": Shard()}, collect=Collect.ROWS),
    }

    def __init__(self, initial_value: int = 0) -> None:
        self.value = initial_value

    def dp_compute(self, data: Batch) -> Batch:
        return data.extended(output=data["input"] + self.value + self.context.rank)

    def dp_compute_train(self, data: dict[str, Any]) -> dict[str, Any]:
        begin = 4 + 2 * self.context.rank
        assert [len(each) for each in data["position_ids"]] == [begin, begin + 1]
        return {"output": data["input"] + self.value + self.context.rank}


def test_rows_are_computed_by_their_rank_and_concatenated() -> None:
    output = run_here(Decorated, "dp_compute", 10, size=2, data=Batch({"input": torch.arange(4.0)}))
    assert output["output"].tolist() == [0 + 10, 1 + 10, 2 + 11, 3 + 11]


def test_ragged_rows_are_a_list_of_tensors() -> None:
    ragged = [torch.arange(4 + row) for row in range(4)]
    data = {"input": torch.arange(4.0), "position_ids": ragged}
    assert run_here(Decorated, "dp_compute_train", 10, size=2, data=data)["output"].tolist() == [10, 11, 13, 14]


# ------------------------------------------------------------------------------------------- test_worker_group_basics


class Basic(Worker):
    """Adds its arguments: `TestActor`."""

    dispatch_table: ClassVar[Table] = {
        "foo": Entry({"y": Broadcast()}, collect=Collect.LIST),
        "foo_rank_zero": Entry({"x": Broadcast(), "y": Broadcast()}),
    }

    def __init__(self, x: int) -> None:
        self._x = x

    def foo(self, y: int) -> int:
        return self._x + y

    def foo_rank_zero(self, x: int, y: int) -> int:
        return self._x + y + x + self.context.rank


def test_one_to_all_and_rank_zero() -> None:
    assert run_here(Basic, "foo", 2, size=4, y=3) == [5, 5, 5, 5]
    assert run_here(Basic, "foo_rank_zero", 2, size=4, x=1, y=2) == 5


# ------------------------------------------------------------------------------------------ test_device_mesh_register


class Meshed(Worker):
    """Adds what its coordinates say: `TestActor` of 8 ranks."""

    dispatch_table: ClassVar[Table] = {
        "generate": Entry({"data": Shard()}, collect=Collect.ROWS),
        "train": Entry({"data": Shard()}, collect=Collect.ROWS),
    }

    def generate(self, data: Tensor) -> Tensor:
        data_rank, tensor_rank = divmod(self.context.rank, 4)
        return data + (tensor_rank + 1) * data_rank

    def train(self, data: Tensor) -> Tensor:
        stage, rest = divmod(self.context.rank, 4)
        data_rank, tensor_rank = divmod(rest, 2)
        return data + (tensor_rank + 1) * (data_rank + 2) * (stage + 3)


INFER = Mesh((0, 0, 0, 0, 1, 1, 1, 1), (True, False, False, False) * 2)
"""Two data-parallel ranks of four tensor-parallel ones, of which the first collects."""
TRAIN = Mesh((0, 0, 1, 1, 0, 0, 1, 1), (False,) * 4 + (True, False) * 2)
"""Two pipeline stages, of which the last collects, of two data-parallel ranks of two tensor-parallel ones."""


def test_a_mesh_divides_and_collects_by_its_mask() -> None:
    assert run_here(Meshed, "generate", mesh=INFER, data=torch.tensor([1, 2])).tolist() == [1, 3]
    assert run_here(Meshed, "train", mesh=TRAIN, data=torch.tensor([3, 4])).tolist() == [11, 16]


# ----------------------------------------------------------------------------------------- test_driverfunc_to_worker


def decode_counts(values: Tensor) -> Tensor:
    """A function of the controller that every rank applies to its rows."""
    return torch.tensor([len(row) for row in values])


def test_a_function_of_the_controller_runs_on_rows() -> None:
    class Model(Worker):
        dispatch_table: ClassVar[Table] = {
            "run": Entry({"function": Broadcast(), "values": Shard()}, collect=Collect.ROWS)
        }

        def run(self, function: Any, values: Tensor) -> Tensor:
            result: Tensor = function(values)
            return result

    values = torch.ones(8, 2048, dtype=torch.int64)
    found = run_here(Model, "run", size=2, function=decode_counts, values=values)
    assert torch.equal(found, decode_counts(values))


# ------------------------------------------------------------------------------------------------ test_protocol_on_cpu


def test_chunk_and_concat() -> None:
    data = {"obs": torch.arange(1, 7), "labels": list("abcdef")}
    with pytest.raises(ShapeError, match="6 rows for 5"):
        divide_rows(6, 5, Padding.REFUSE)
    parts = [select(data, rows) for rows in divide_rows(6, 2, Padding.REFUSE)]
    assert [part["labels"] for part in parts] == [["a", "b", "c"], ["d", "e", "f"]]
    assert [part["obs"].tolist() for part in parts] == [[1, 2, 3], [4, 5, 6]]
    assert concatenate(parts)["labels"] == data["labels"]


@pytest.mark.parametrize(("divisor", "labels"), [(2, "abca"), (3, "abc"), (7, "abcabca")], ids=["by 2", "by 3", "by 7"])
def test_pad_and_unpad(divisor: int, labels: str) -> None:
    data = {"obs": torch.tensor([[1, 2], [3, 4], [5, 6]]), "labels": ["a", "b", "c"]}
    rows: Sequence[int] = [row for part in divide_rows(3, divisor, Padding.WRAP) for row in part]
    padded = select(data, rows)
    assert "".join(padded["labels"]) == labels
    assert torch.equal(padded["obs"], data["obs"][torch.arange(len(labels)) % 3])  # type: ignore[index]


def test_lengths_must_agree() -> None:
    assert num_rows(Batch({"a": torch.zeros(3), "b": torch.zeros(3, 2)})) == 3
    with pytest.raises(ShapeError):
        num_rows({"a": torch.zeros(3), "b": torch.zeros(2)})


def test_metrics_of_workers_are_a_list_and_never_merged_under_a_key() -> None:
    class Metered(Worker):
        dispatch_table: ClassVar[Table] = {"measure": Entry({"data": Shard()}, collect=Collect.LIST)}

        def measure(self, data: Tensor) -> dict[str, float]:
            return {"loss": 0.5 + self.context.rank, "size": float(len(data))}

    found = run_here(Metered, "measure", size=3, data=torch.zeros(6))
    assert found == [{"loss": 0.5 + rank, "size": 2.0} for rank in range(3)]
