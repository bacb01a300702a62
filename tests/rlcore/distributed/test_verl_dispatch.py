"""What verl 0.9.1's own tests of dispatch ask, in our words, against dispatch tables.

Each test names the file of verl's `tests/single_controller` (or `tests/test_protocol_on_cpu.py`) that asks the same.
`rlcore/DISTRIBUTED.md` lists what differs, and why.
"""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor

from rlcore.data.batch import Batch
from rlcore.distributed.dispatch import (
    Broadcast,
    Collect,
    Entry,
    Execute,
    Function,
    Padding,
    PerWorker,
    Shard,
    Table,
)
from rlcore.distributed.mesh import Mesh, build_mesh
from rlcore.distributed.rows import concatenate, num_rows, select
from rlcore.distributed.scatter import divide_rows
from rlcore.distributed.worker import Worker, WorkerSpec
from rlcore.distributed.worker_group import start_colocated, start_group
from rlcore.errors import InvalidValueError, ShapeError
from tests.rlcore.distributed.workers import double

ROWS = Entry({"data": Shard(Padding.WRAP)}, collect=Collect.ROWS)


class Actor(Worker):
    """Adds its rank to the column "a"; `Actor` of verl's tests of padding and of colocated workers."""

    dispatch_table: ClassVar[Table] = {"add": ROWS}

    def add(self, data: Batch) -> Batch:
        return data.extended(a=data["a"] + self.context.rank)


class Critic(Worker):
    """Subtracts a number from the column "a"."""

    dispatch_table: ClassVar[Table] = {"sub": ROWS}

    def __init__(self, config: Mapping[str, int]) -> None:
        self.config = config

    def sub(self, data: Batch) -> Batch:
        return data.extended(a=data["a"] - self.config["b"])


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

    with start_group(Named, role="actor", size=4) as group:
        for output in (group.handle.add(named(size)), group.handle.add(data=named(size))):
            each = -(-size // 4)
            assert output["a"].tolist() == [row // each for row in range(size)]
            assert output["na"] == named(size)["na"]


# ---------------------------------------------------------------------------------------------- test_decorator_on_cpu


class Decorated(Worker):
    """Adds its rank and an initial value: `DecoratorTestWorker`."""

    dispatch_table: ClassVar[Table] = {
        "dp_compute": ROWS,
        "async_dp_compute": Entry({"data": Shard(Padding.WRAP)}, collect=Collect.ROWS, is_blocking=False),
        "dp_compute_train": Entry({"data": Shard()}, collect=Collect.ROWS, is_blocking=False, mesh="train"),
    }

    def __init__(self, initial_value: int = 0) -> None:
        self.value = initial_value

    def dp_compute(self, data: Batch) -> Batch:
        return data.extended(output=data["input"] + self.value + self.context.rank)

    def async_dp_compute(self, data: Batch) -> Batch:
        return data.extended(output_async=data["input"] * 2 + self.value + self.context.rank)

    def dp_compute_train(self, data: dict[str, Any]) -> dict[str, Any]:
        begin = 4 + 2 * self.context.rank
        assert [len(each) for each in data["position_ids"]] == [begin, begin + 1]
        return {"output": data["input"] + self.value + self.context.rank}


def test_rows_are_computed_by_their_rank_and_concatenated() -> None:
    with start_group(Decorated, initial_value=10, role="train", size=2, meshes=TRAIN) as group:
        output = group.handle.dp_compute(Batch({"input": torch.arange(4.0)}))
    assert output["output"].tolist() == [0 + 10, 1 + 10, 2 + 11, 3 + 11]


def test_a_call_that_does_not_block_returns_a_future_of_the_same() -> None:
    with start_group(Decorated, initial_value=5, role="train", size=2, meshes=TRAIN) as group:
        future: Any = group.handle.async_dp_compute(Batch({"input": torch.arange(4.0)}))
        assert future.result()["output_async"].tolist() == [0 + 5, 2 + 5, 4 + 6, 6 + 6]


def test_ragged_rows_are_a_list_of_tensors() -> None:
    ragged = [torch.arange(4 + row) for row in range(4)]
    with start_group(Decorated, initial_value=10, role="train", size=2, meshes=TRAIN) as group:
        future: Any = group.handle.dp_compute_train({"input": torch.arange(4.0), "position_ids": ragged})
        assert future.result()["output"].tolist() == [10, 11, 13, 14]


TRAIN = {"train": build_mesh({"data": 2})}


# ------------------------------------------------------------------------------------------- test_worker_group_basics


class Basic(Worker):
    """Adds its arguments: `TestActor`."""

    dispatch_table: ClassVar[Table] = {
        "foo": Entry({"y": Broadcast()}, collect=Collect.LIST),
        "foo_rank_zero": Entry({"x": Broadcast(), "y": Broadcast()}, execute=Execute.RANK_ZERO),
        "foo_one_to_all": Entry({"x": Broadcast(), "y": Broadcast()}, collect=Collect.LIST, is_blocking=False),
        "foo_all_to_all": Entry({"x": PerWorker(), "y": PerWorker()}, collect=Collect.LIST, is_blocking=False),
        "apply": Entry({"function": Function(), "values": Broadcast()}, execute=Execute.RANK_ZERO),
    }

    def __init__(self, x: int) -> None:
        self._x = x

    def foo(self, y: int) -> int:
        return self._x + y

    def foo_rank_zero(self, x: int, y: int) -> int:
        return self._x + y + x

    def foo_one_to_all(self, x: int, y: int) -> int:
        return self._x + y + x

    def foo_all_to_all(self, x: int, y: int) -> int:
        return self._x + y + x

    def apply(self, function: Any, values: Tensor) -> Any:
        return function(values)


def test_one_to_all_all_to_all_and_rank_zero() -> None:
    with start_group(Basic, x=2, role="basic", size=4) as group:
        handle: Any = group.handle
        assert handle.foo(y=3) == [5, 5, 5, 5]
        assert handle.foo_one_to_all(x=1, y=2).result() == [5, 5, 5, 5]
        assert handle.foo_all_to_all(x=[1, 2, 3, 4], y=[5, 6, 7, 8]).result() == [8, 10, 12, 14]
        assert handle.foo_rank_zero(x=1, y=2) == 5
        interleaved = [[1, 2][rank % 2] for rank in range(4)], [[5, 6][rank % 2] for rank in range(4)]
        assert handle.foo_all_to_all(*interleaved).result() == [8, 10, 8, 10], "two_to_all_dispatch_fn"
        assert torch.equal(handle.apply(double, torch.ones(2, 2)), torch.full((2, 2), 2.0)), "execute_func_rank_zero"


# ------------------------------------------------------------------------------------------ test_device_mesh_register


class Meshed(Worker):
    """Adds what its coordinates on two meshes say: `TestActor` of 8 ranks."""

    dispatch_table: ClassVar[Table] = {
        "generate": Entry({"data": Shard()}, collect=Collect.ROWS, mesh="infer"),
        "train": Entry({"data": Shard()}, collect=Collect.ROWS, mesh="train"),
    }

    def generate(self, data: Tensor) -> Tensor:
        data_rank, tensor_rank = divmod(self.context.rank, 4)
        return data + (tensor_rank + 1) * data_rank

    def train(self, data: Tensor) -> Tensor:
        stage, rest = divmod(self.context.rank, 4)
        data_rank, tensor_rank = divmod(rest, 2)
        return data + (tensor_rank + 1) * (data_rank + 2) * (stage + 3)


MESHES: Mapping[str, Mesh] = {
    "infer": build_mesh({"data": 2, "tensor": 4}),
    "train": build_mesh({"pipeline": 2, "data": 2, "tensor": 2}),
}


def test_two_meshes_of_one_worker_divide_and_collect() -> None:
    assert list(MESHES["infer"].data_ranks) == [part for part in range(2) for _ in range(4)]
    assert list(MESHES["train"].data_ranks) == [part for _ in range(2) for part in range(2) for _ in range(2)]
    with start_group(Meshed, role="actor", size=8, meshes=MESHES) as group:
        assert group.handle.generate(torch.tensor([1, 2])).tolist() == [1, 3]
        assert group.handle.train(torch.tensor([3, 4])).tolist() == [11, 16]


# ---------------------------------------------------------------------------------- test_get_set_dispatch_collect_cpu


def test_meshes_of_colocated_roles_are_their_own_and_checked() -> None:
    collects_first = Mesh((0, 0), (True, False))
    specs = [WorkerSpec("actor", Actor), WorkerSpec("ref", Actor)]
    groups = start_colocated(specs, size=2, meshes={"actor": {"data": collects_first}})
    assert groups["actor"].meshes["data"].data_ranks == (0, 0)
    assert groups["ref"].meshes["data"].data_ranks == (0, 1)
    data = Batch({"a": torch.zeros(2)})
    assert [group.handle.add(data)["a"].tolist() for group in groups.values()] == [[0, 0], [0, 1]]
    with pytest.raises(InvalidValueError, match=r"\[0, 0\] are collected"):
        Mesh((0, 0), (True, True))
    groups["actor"].close()


# ------------------------------------------- test_colocated_workers, test_colocated_workers_fused, test_nested_worker


def test_colocated_roles_compute_what_separate_ones_do() -> None:
    data, config = Batch({"a": torch.zeros(10)}), {"b": 10}
    with (
        start_group(Actor, role="actor", size=2) as actor,
        start_group(Critic, config, role="critic", size=2) as critic,
    ):
        separate = actor.handle.add(data)["a"].tolist(), critic.handle.sub(data)["a"].tolist()
    groups = start_colocated([WorkerSpec("actor", Actor), WorkerSpec("critic", Critic, (config,))], size=2)
    assert (groups["actor"].handle.add(data)["a"].tolist(), groups["critic"].handle.sub(data)["a"].tolist()) == separate
    assert separate == ([0] * 5 + [1] * 5, [-10] * 10)


class Nested(Worker):
    """Calls the role that it is colocated with: `TestHighLevelActor`, and `HybridWorker` of the fused workers."""

    dispatch_table: ClassVar[Table] = {"foo": Entry({"x": Broadcast()}, collect=Collect.LIST)}

    def foo(self, x: float) -> float:
        basic = self.colocated["basic"]
        assert isinstance(basic, Basic)
        return basic.foo(0) + self.context.rank + x


def test_a_worker_calls_the_one_it_is_colocated_with() -> None:
    groups = start_colocated([WorkerSpec("basic", Basic, (2,)), WorkerSpec("nested", Nested)], size=4)
    assert groups["nested"].handle.foo(0) == [2, 3, 4, 5]


# ------------------------------------------------------------------------------------------- test_ray_local_envs_on_cpu


@pytest.mark.parametrize("name", ["WORLD_SIZE", "RANK", "LOCAL_RANK", "MASTER_PORT"])
def test_variables_of_the_group_cannot_be_overridden(name: str) -> None:
    with pytest.raises(InvalidValueError, match=f"{name} in the environment of group actor"):
        start_group(Actor, role="actor", size=2, environment={name: "100"})


# ----------------------------------------------------------------------------------------- test_driverfunc_to_worker


def decode_counts(values: Tensor) -> Tensor:
    """A function of the controller that every rank applies to its rows."""
    return torch.tensor([len(row) for row in values])


def test_a_function_of_the_controller_runs_on_rows() -> None:
    class Model(Worker):
        dispatch_table: ClassVar[Table] = {
            "run": Entry({"function": Function(), "values": Shard()}, collect=Collect.ROWS)
        }

        def run(self, function: Any, values: Tensor) -> Tensor:
            result: Tensor = function(values)
            return result

    values = torch.ones(8, 2048, dtype=torch.int64)
    with start_group(Model, role="model", size=2) as group:
        assert torch.equal(group.handle.run(decode_counts, values), decode_counts(values))


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
        dispatch_table: ClassVar[Table] = {"measure": Entry({"data": Shard()}, collect=Collect.METRICS)}

        def measure(self, data: Tensor) -> dict[str, float]:
            return {"loss": 0.5 + self.context.rank, "size": float(len(data))}

    with start_group(Metered, role="actor", size=3) as group:
        found: Any = group.handle.measure(torch.zeros(6))
    assert found == [{"loss": 0.5 + rank, "size": 2.0} for rank in range(3)]
