"""What the record of operations says of the tensors that they read and wrote."""

import math
import threading
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch._subclasses import FakeTensorMode
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.testing._internal.two_tensor import TwoTensor

from harness.fixtures import StartRanks
from harness.recording.operations import OpLog, OpMode, OpValues
from harness.recording.tensors import digest_tensor
from harness.trace.ops import compare_ops, read_ops
from tests.recording.counted_gpu import pretend_gpu
from tests.recording.op_records import named, only, record


def digest_text(tensor: torch.Tensor) -> str:
    return digest_tensor(tensor).digest.hex()


LARGE = (256, 128)
"""Of float32: large enough for its digest to be used again."""


def test_a_write_in_place_is_seen_before_and_after() -> None:
    values = torch.arange(6.0)
    before = digest_text(values)
    found = only(record(lambda mode: values.add_(1)), "add_")
    assert (found.inputs[0].digest, found.outputs[0].digest) == (before, digest_text(values))
    assert len(found.outputs) == 1


def test_out_and_several_written_arguments() -> None:
    a, b = torch.ones(3), torch.ones(2)
    target = torch.full((3,), 7.0)
    found = record(lambda mode: (torch.mul(a, 2, out=target), torch._foreach_add_([a, b], 1)))
    multiplied, added = found.operations
    assert [each.digest for each in multiplied.inputs] == [digest_text(torch.ones(3)), "overwritten"]
    assert [each.digest for each in multiplied.outputs] == [digest_text(target)]
    assert [each.digest for each in added.outputs] == [digest_text(a), digest_text(b)]


def test_memory_that_is_given_out_again_unseen_is_another_value() -> None:
    numpy = pytest.importorskip("numpy")

    def program(_: OpMode) -> None:
        values = numpy.zeros(LARGE, "float32")
        for number in range(50):
            values[0, 1] = number
            made: list[torch.Tensor] = []
            thread = threading.Thread(target=lambda made=made: made.append(torch.from_numpy(values)))
            thread.start()
            thread.join()
            tensor = made.pop()
            result = tensor.exp()
            del result, tensor  # in this order, so that the next storage is given the place of this one

    found = named(record(program), "exp")
    assert len({each.inputs[0].digest for each in found}) == 50


def test_memory_that_nobody_has_written_to_is_no_value() -> None:
    def program(_: OpMode) -> None:
        empty = torch.empty(5)
        empty.fill_(2)
        torch.zeros_like(empty)

    created, filled, zeros = record(program).operations
    assert (created.outputs[0].algorithm, created.outputs[0].digest) == ("none", "unwritten")
    assert (filled.inputs[0].digest, filled.outputs[0].digest) == ("overwritten", digest_text(torch.full((5,), 2.0)))
    assert zeros.inputs[0].digest == "shape_only"


def test_python_values_are_seen_where_they_become_tensors() -> None:
    def program(_: OpMode) -> None:
        torch.tensor([3.0, 1.0]).sum().item()

    found = record(program)
    assert only(found, "lift_fresh").inputs[0].digest == digest_text(torch.tensor([3.0, 1.0]))
    assert only(found, "_local_scalar_dense").outputs[0].digest == (4.0).hex()


def test_a_random_operation_tells_the_state_it_drew_from() -> None:
    def program(_: OpMode) -> None:
        torch.manual_seed(1)
        torch.rand(3)
        torch.rand(3)
        torch.rand(3, generator=torch.Generator().manual_seed(1))

    first, second, own = named(record(program), "rand")
    assert first.random and len({first.random, second.random}) == 2
    assert own.random == first.random
    assert own.outputs[0].digest == first.outputs[0].digest


def test_running_statistics_are_written_though_no_schema_says_so() -> None:
    norm = nn.BatchNorm1d(3)
    found = [each for each in record(lambda mode: norm(torch.randn(4, 3))).operations if "batch_norm" in each.name]
    written = {each.digest for each in found[0].outputs}
    assert norm.running_mean is not None
    assert digest_text(norm.running_mean) in written


def test_tensors_that_cannot_be_read_are_named() -> None:
    def program(_: OpMode) -> None:
        torch.zeros(3, device="meta").exp()
        torch.eye(3).to_sparse().sum()

    found = record(program)
    assert only(found, "exp").inputs[0].digest == "meta"
    assert "sparse_coo" in {value.digest for each in found.operations for value in each.inputs}


def test_the_parts_of_a_subclass_are_recorded() -> None:
    pair: Any = TwoTensor(torch.ones(2), torch.zeros(2))  # type: ignore[no-untyped-call]
    found = named(record(lambda mode: pair + 1), "add")
    assert [each.inputs[0].digest for each in found] == [digest_text(torch.ones(2)), digest_text(torch.zeros(2))]


@pytest.fixture
def one_rank() -> Iterator[None]:
    store = dist.HashStore()  # type: ignore[attr-defined]
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.usefixtures("one_rank")
def test_a_collective_is_not_read_before_it_is_there() -> None:
    values = torch.ones(3)

    def program(_: OpMode) -> None:
        dist.all_reduce(values)
        values.exp()

    reduced, exponential = record(program).operations
    assert reduced.name.startswith("c10d.allreduce_")
    assert {each.digest for each in reduced.outputs} == {"unfinished"}
    assert exponential.inputs[0].digest == digest_text(values)
    assert exponential.makers == (reduced.index,)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_tensors_without_data_are_not_read() -> None:
    def program(_: OpMode) -> None:
        with FakeTensorMode():
            (torch.ones(3) + 1).exp()
        torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]) * 2

    found = record(program)
    given_back = torch.ones(100)
    given_back.untyped_storage().resize_(0)
    assert OpValues().read(given_back) == ("f32 100 none freed", -1)
    assert named(found, "exp") == [], "traced, not computed"
    assert "nested" in {value.digest for each in found.operations for value in each.inputs}


def sharded_step(directory: str | None) -> list[str]:
    """Two steps of a module under FSDP2, the second recorded; the digests of this rank's weights."""
    torch.manual_seed(1)
    module = nn.Sequential(nn.Linear(30, 31), nn.ReLU(), nn.Linear(31, 7))
    fully_shard(module, mesh=init_device_mesh("cpu", (dist.get_world_size(),)))
    optimizer = torch.optim.AdamW(module.parameters(), lr=1e-2)
    for step in range(2):
        is_recorded = step == 1 and directory is not None
        log = OpLog(Path(directory or ""), rank=dist.get_rank(), step=step, say=print) if is_recorded else None
        with nullcontext() if log is None else OpMode(log):
            module(torch.ones(4, 30)).pow(2).mean().backward()
            nn.utils.clip_grad_norm_(module.parameters(), 1.0)
            optimizer.step()
    parameters: Any = module.parameters()
    return [digest_text(parameter.to_local()) for parameter in parameters]


@pytest.mark.full
@pytest.mark.timeout(200)
def test_sharded_training_is_recorded_and_left_as_it_is(distributed: StartRanks, tmp_path: Path) -> None:
    ranks = distributed(2)
    plain, first, second = (
        ranks.run(sharded_step, None if name is None else str(tmp_path / name)) for name in (None, "a", "b")
    )
    assert plain == first == second
    for rank in range(2):
        a, b = (read_ops(tmp_path / name, rank, 1) for name in "ab")
        assert a is not None
        assert b is not None
        verdict = compare_ops(a, b, rank, 1)
        assert (verdict.first, verdict.problems, verdict.num_a > 40) == (None, (), True)
        assert any(each.name.startswith("fsdp.all_gather") for each in a.operations)


# -------------------------------------------------------------------------------------------------- what is not finite


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16, torch.complex64])
@pytest.mark.parametrize("size", [17, 2**16])
@pytest.mark.parametrize(
    ("put", "words"),
    [((), ()), ((math.nan,), ("nan",)), ((-math.inf,), ("inf",)), ((math.inf, math.nan), ("nan", "inf"))],
)
def test_a_large_value_is_told_with_what_is_not_finite_in_it(
    dtype: torch.dtype, size: int, put: tuple[float, ...], words: tuple[str, ...]
) -> None:
    tensor = torch.full((size,), 6e4, dtype=dtype)  # whose sum no float16 holds
    tensor[1 : 1 + len(put)] = torch.tensor(put, dtype=dtype)
    values = OpValues()
    for _ in range(2):  # the second time it may be remembered
        assert tuple(values.read(tensor)[0].split(" ")[4:]) == words
    assert tuple(values.read(tensor[1:])[0].split(" ")[4 : 4 + len(words)]) == words
    assert values.read(tensor.to(torch.int64) if not dtype.is_complex else tensor.real.long())[0].count(" ") == 3


# ----------------------------------------------------------------------------------------------------- on a GPU


def test_tensors_of_an_operation_on_a_gpu_are_digested_together(monkeypatch: pytest.MonkeyPatch) -> None:
    inputs = {
        "plain": torch.randn(50, 4),
        "turned": torch.randn(50, 4).t(),
        "nan": torch.tensor([1.0, float("nan"), float("inf")] * 9),
        "small": torch.tensor([2.0]),
        "integers": torch.arange(100),
        "narrow": torch.ones(100).to(torch.float8_e4m3fn),
        "complex": torch.randn(20, dtype=torch.complex64),
        "none": torch.empty(0),
    }
    on_host = [OpValues().read(tensor)[0].split() for tensor in inputs.values()]
    gpu = pretend_gpu(monkeypatch)
    monkeypatch.setattr("harness.recording.operations.on_host", lambda tensor: False)
    values = OpValues()
    values.fetch(inputs.values())
    texts = [values.read(tensor)[0].split() for tensor in inputs.values()]
    assert gpu.taken() == {"launches": 1, "uploads": 2, "copies": 1, "waits": 1}
    for (*head, algorithm, digest), words, found in [
        (each[:4], [word for word in each[4:] if not word.startswith("align=")], text)
        for each, text in zip(on_host, texts, strict=True)
    ]:
        assert found[:2] == head
        assert found[4:] == words
        assert found[2:4] == [algorithm, digest] if algorithm == "raw" else found[2] in ("shardsum_128", "packsum_128")
    values.fetch([])
    assert values.read(inputs["plain"])[0].split() == texts[0], "one that was not fetched is digested alone"
    assert gpu.taken()["waits"] == 1
