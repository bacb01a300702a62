"""Sums of tensors where they lie: the reference's to the bit, whole and in shards, of every dtype."""

import json
from itertools import product
from math import prod
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.bits import shard_sums
from harness.bits.digests import BLOCK_WORDS, DIGEST_BYTES, PACKSUM_128, SHARDSUM_128, add_shards, packsum, shardsum
from harness.bits.errors import TraceError
from harness.bits.shard_sums import Shard, shard_of_all
from harness.fixtures import StartRanks
from harness.recording.tensors import digest_placed, shard_of, tensor_bytes
from tests.recording.counted_gpu import pretend_gpu
from tests.support.triton_interpreter import run_interpreted

ROOT = Path(__file__).resolve().parents[2]
VECTORS = json.loads((ROOT / "harness" / "trace" / "vectors.json").read_text("utf-8"))
DTYPES = {
    "u8": torch.uint8,
    "bool": torch.bool,
    "f8": torch.float8_e4m3fn,
    "i16": torch.int16,
    "f16": torch.float16,
    "bf16": torch.bfloat16,
    "i32": torch.int32,
    "f32": torch.float32,
    "i64": torch.int64,
    "f64": torch.float64,
    "c64": torch.complex64,
    "c128": torch.complex128,
}


def random_tensor(dtype: torch.dtype, shape: tuple[int, ...], seed: int = 1) -> torch.Tensor:
    """Of any bits: NaN, infinities and both zeros come up."""
    size = torch.empty(0, dtype=dtype).element_size()
    generator = torch.Generator().manual_seed(seed)
    high = 2 if dtype is torch.bool else 256
    return torch.randint(high, (prod(shape) * size,), dtype=torch.uint8, generator=generator).view(dtype).view(shape)


def reference(tensor: torch.Tensor, is_packed: bool = False) -> bytes:
    if tensor.nbytes <= DIGEST_BYTES and is_packed:
        return bytes(tensor_bytes(tensor)).ljust(DIGEST_BYTES, b"\0")
    return (packsum if is_packed else shardsum)(tensor_bytes(tensor), tensor.element_size())


def digest_of(value: torch.Tensor | Shard) -> bytes:
    return bytes(digest_placed([value])[0].digest)


@pytest.mark.parametrize("name", DTYPES)
def test_a_whole_tensor_of_every_dtype(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a part on the host, and on a GPU by the kernel's table and by torch's operations."""
    shapes = ((), (1,), (BLOCK_WORDS + 1,), (3, 700), (40_001,))
    tensors = [random_tensor(DTYPES[name], shape) for shape in shapes]
    assert [digest_of(shard_of(tensor)) for tensor in tensors] == [reference(tensor) for tensor in tensors]
    gpu = pretend_gpu(monkeypatch)
    expected = [reference(tensor, is_packed=True) for tensor in tensors]
    assert [digest_of(tensor) for tensor in tensors] == expected
    assert gpu.taken()["launches"] == len(tensors)
    monkeypatch.setattr(gpu, "devices", ())
    assert [digest_of(tensor) for tensor in tensors] == expected
    assert gpu.taken()["launches"] == 0


def test_the_vectors_of_the_format() -> None:
    seen = 0
    for vector in VECTORS["digests"]:
        if vector["algorithm"] in (SHARDSUM_128, PACKSUM_128) and vector["dtype"] in DTYPES and vector["bytes"]:
            data = bytearray.fromhex(vector["bytes"])
            local = torch.frombuffer(data, dtype=DTYPES[vector["dtype"]])
            first = vector["first_index"]
            shard = Shard(local, (first + len(local),), (first,))
            (found,) = shard_sums.digests([(shard, vector["algorithm"])], local.device)
            assert bytes(found).hex() == vector["digest"]
            seen += 1
    assert seen >= 6


@settings(derandomize=True, max_examples=40)
@given(
    st.sampled_from(sorted(DTYPES)),
    st.lists(st.tuples(st.integers(1, 40), st.integers(1, 3)), min_size=1, max_size=3),
    st.integers(0, 5),
)
def test_shards_add_up_however_they_are_cut(name: str, dims: list[tuple[int, int]], seed: int) -> None:
    value = random_tensor(DTYPES[name], tuple(size for size, _ in dims), seed)
    cuts = [[(at, min(-(-size // n), size - at)) for at in range(0, size, -(-size // n))] for size, n in dims]
    shards = list[Shard]()
    for block in product(*cuts):
        local = value
        for dim, (first, size) in enumerate(block):
            local = local.narrow(dim, first, size)
        shards.append(Shard(local, tuple(value.shape), tuple(first for first, _ in block)))
    assert add_shards(map(digest_of, shards)) == reference(value)
    with pytest.MonkeyPatch.context() as patch:
        pretend_gpu(patch)
        packed = (packsum if value.element_size() < 4 else shardsum)(tensor_bytes(value), value.element_size())
        assert add_shards(map(digest_of, shards)) == packed


@settings(derandomize=True, max_examples=40)
@given(
    st.lists(st.integers(1, 3), min_size=1, max_size=4),
    st.permutations(range(4)),
    st.lists(st.integers(1, 3), min_size=4, max_size=4),
    st.sampled_from(sorted(DTYPES)),
)
def test_views_of_any_strides_are_their_elements_in_c_order(
    sizes: list[int], order: list[int], steps: list[int], name: str
) -> None:
    base = random_tensor(DTYPES[name], (*(3 * size for size in sizes[:-1]), 24 * sizes[-1]))
    view = base[tuple(slice(None, None, step) for step in steps[: len(sizes)])]
    view = view.permute([dim for dim in order if dim < len(sizes)])
    assert digest_of(shard_of(view)) == reference(view)
    with pytest.MonkeyPatch.context() as patch:
        pretend_gpu(patch)
        assert digest_of(view) == reference(view, is_packed=True)


def test_large_copies_are_made_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shard_sums, "PIECE_BYTES", 40_000)
    turned = random_tensor(torch.float32, (100, 1000)).t()
    pieces = list(shard_sums._pieces(shard_of_all(turned)))
    assert max(piece.local.nbytes for piece in pieces) <= 40_000
    gpu = pretend_gpu(monkeypatch)
    assert digest_of(turned) == reference(turned)
    assert gpu.taken() == {"launches": 0, "uploads": 0, "copies": 1, "waits": 1}


@pytest.mark.parametrize(
    ("shard", "what"),
    [
        (Shard(torch.zeros(3), (4,), (2,)), "lies outside of"),
        (Shard(torch.zeros(3), (4, 1), (0, 0)), "lies outside of"),
        (Shard(torch.zeros(3).to_sparse(), (3,), (0,)), "sparse"),
    ],
)
def test_what_is_no_part_is_refused(shard: Shard, what: str) -> None:
    with pytest.raises(TraceError, match=what):
        digest_placed([shard])


# ----------------------------------------------------------------------------------------------- distributed tensors


def shards_of_a_module() -> dict[str, tuple[str, bool, str]]:
    """By parameter: the digest of this rank's shard, whether it counts, and the digest of the whole."""
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard
    from torch.distributed.tensor import Replicate, distribute_tensor
    from torch.distributed.tensor import Shard as ShardOf

    torch.manual_seed(3)
    first = torch.nn.Linear(37, 51)
    module = torch.nn.Sequential(first, torch.nn.Linear(51, 3))
    wholes = {name: reference(parameter.detach()).hex() for name, parameter in module.named_parameters()}
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    columns = distribute_tensor(first.weight.detach().clone(), mesh, [ShardOf(1)])
    copies = distribute_tensor(first.weight.detach().clone(), mesh, [Replicate()])
    fully_shard(module, mesh=mesh)
    tensors: dict[str, Any] = dict(module.named_parameters())
    wholes |= {"columns": wholes["0.weight"], "copies": wholes["0.weight"]}
    shards = {
        name: shard_of(tensor.detach()) for name, tensor in {**tensors, "columns": columns, "copies": copies}.items()
    }
    return {name: (digest_of(shard).hex(), shard.is_counted, wholes[name]) for name, shard in shards.items()}


@pytest.mark.full
@pytest.mark.timeout(120)
def test_fsdp2_and_dtensor_shards_add_up(distributed: StartRanks) -> None:
    ranks = distributed(2).run(shards_of_a_module)
    assert len(ranks[0]) == 6
    for name, (_, _, expected) in ranks[0].items():
        parts = [bytes.fromhex(found[name][0]) for found in ranks if found[name][1]]
        assert add_shards(parts).hex() == expected, name
    assert [found["copies"][1] for found in ranks] == [True, False]


# ------------------------------------------------------------------------------------------------------- the kernel


def test_the_kernel_is_the_reference_to_the_bit() -> None:
    done = run_interpreted(Path(__file__).with_name("kernel_in_interpreter.py"))
    assert (done.returncode, done.stdout) == (0, "49 equal\n"), done.stderr
