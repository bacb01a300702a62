"""The digest on a real GPU: the reference to the bit, at half the memory's bandwidth, with no wait.

One command on a machine that has a GPU: `rlharness run tests/gpu --gpus auto`. What it measures is printed with `-s`.
"""

import warnings
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from harness.bits import shard_sums  # noqa: E402
from harness.bits.digests import add_shards, packsum, shardsum  # noqa: E402
from harness.bits.shard_sums import Shard, digests, kernel_problem, shard_of_all, sums_by_torch  # noqa: E402
from harness.recording import tensors  # noqa: E402
from harness.recording.tensors import digest_placed, tensor_bytes  # noqa: E402

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device is visible"),
    pytest.mark.gpus(1),
]

GIB = 2**30
NEAR_2_31 = (2**31 - 5_000_000, 2**31 - 1, 2**31)
SHAPES = ((), (1,), (1023,), (3, 700), (5, 3, 1031))


def bits(dtype: Any, shape: tuple[int, ...]) -> Any:
    """A tensor of any bits, on the host."""
    generator = torch.Generator().manual_seed(1)
    size = torch.empty(0, dtype=dtype).element_size()
    count = torch.Size(shape).numel() * size
    return torch.randint(256, (count,), dtype=torch.uint8, generator=generator).view(dtype).view(shape)


def digest_of(value: Any) -> bytes:
    return bytes(digest_placed([value])[0].digest)


def algorithm_of(shard: Shard) -> str:
    return shard_sums.algorithm_of(shard, is_whole=False)


def by_kernel(shards: list[Shard]) -> list[bytes]:
    """Digests of parts that the kernel can read where they are."""
    assert all(shard_sums._row(shard, algorithm_of(shard), []) for shard in shards)
    return [bytes(each) for each in digests([(shard, algorithm_of(shard)) for shard in shards], shards[0].local.device)]


def by_torch(shard: Shard) -> bytes:
    halves = sums_by_torch(shard, algorithm_of(shard)).tolist()
    return b"".join((half % 2**64).to_bytes(8, "big") for half in halves)


@pytest.mark.parametrize("name", ["uint8", "int16", "bfloat16", "float32", "int64", "complex128"])
def test_the_reference_to_the_bit(name: str) -> None:
    for shape in SHAPES:
        tensor = bits(getattr(torch, name), shape)
        data, size = tensor_bytes(tensor), tensor.element_size()
        summed = (packsum if size < 4 else shardsum)(data, size)
        expected = bytes(data).ljust(16, b"\0") if tensor.nbytes <= 16 else summed
        assert digest_of(tensor.cuda()) == expected, shape
        assert digest_of(shard_of_all(tensor.cuda())) == summed, shape


def test_both_ways_agree_on_what_is_too_long_for_the_reference() -> None:
    words = bits(torch.int32, (5_000_011,)).cuda()
    for first in (0, 1024, *NEAR_2_31):
        shard = Shard(words[first % 4 :], (first + 5_000_011,), (first,))
        assert by_kernel([shard]) == [by_torch(shard)], first
    for shard in (
        Shard(words[:5_000_000].view(50, 100_000), (50, 300_000), (0, 100_001)),
        shard_of_all(words[:5_000_000].view(50, 100_000).t()),
    ):
        assert digest_of(shard) == by_torch(shard)


def test_a_whole_value_of_more_than_2_31_words() -> None:
    words = torch.randint(256, (2**33 + 20_000,), dtype=torch.uint8, device="cuda")
    cut = 2**33 - 8_192
    parts = [Shard(words[:cut], tuple(words.shape), (0,)), Shard(words[cut:], tuple(words.shape), (cut,))]
    assert add_shards(by_kernel(parts)) == by_kernel([shard_of_all(words)])[0]


def test_300_small_tensors_take_one_launch_and_one_copy_and_wait_for_nothing() -> None:
    from torch.profiler import ProfilerActivity, profile

    values = [torch.randn(1000 + number, device="cuda") for number in range(300)]
    [bytes(each.digest) for each in digest_placed(values)]
    torch.cuda.synchronize()
    with (
        warnings.catch_warnings(action="ignore"),
        profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiler,
    ):
        torch.cuda.set_sync_debug_mode("error")
        try:
            found = digest_placed(values)
        finally:
            torch.cuda.set_sync_debug_mode("default")
        [bytes(each.digest) for each in found]
    names = [event.name for event in profiler.events()]
    assert names.count("sum_tiles") == 1
    assert sum("DtoH" in name for name in names) == 1
    seconds = seconds_of(lambda: digest_placed(values))
    print(f"{torch.cuda.get_device_name()}: 300 small tensors in {seconds * 1e3:.2f} ms")


def test_memory_that_is_not_there_is_not_read() -> None:
    """A storage that was given back, and an address that the driver has not mapped."""
    freed = torch.randn(1000, device="cuda")
    freed.untyped_storage().resize_(0)
    assert digest_placed([freed])[0].dtype == "freed"
    there = torch.randn(2**20, device="cuda")
    assert tensors.is_mapped(there.data_ptr()) is True
    assert tensors.is_mapped(2**46) is False
    assert digest_placed([there])[0].algorithm == "shardsum_128"


def test_the_kernel_is_what_runs() -> None:
    pytest.importorskip("triton")
    assert kernel_problem(torch.device("cuda", torch.cuda.current_device())) == ""


def seconds_of(function: Any, num_times: int = 10) -> float:
    """Of one call, the best of several, by the GPU's own clock."""
    function()
    best = float("inf")
    for _ in range(num_times):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        function()
        end.record()
        end.synchronize()
        best = min(best, begin.elapsed_time(end) / 1e3)
    return best


@pytest.mark.parametrize("name", ["float32", "bfloat16"])
def test_half_of_the_memorys_bandwidth(name: str) -> None:
    """Against what copying on the GPU reaches, reads and writes counted."""
    pytest.importorskip("triton")
    tensor = torch.empty(GIB, dtype=torch.uint8, device="cuda").random_().view(getattr(torch, name))
    target = torch.empty_like(tensor)
    bandwidth = 2 * GIB / seconds_of(lambda: target.copy_(tensor)) / 1e9
    reached = GIB / seconds_of(lambda: digest_placed([tensor])) / 1e9
    slow = GIB / seconds_of(lambda: by_torch(shard_of_all(tensor)), 2) / 1e9
    gpu = torch.cuda.get_device_name()
    print(f"{gpu}, {name}: digest {reached:,.0f} GB/s of {bandwidth:,.0f} GB/s; by torch {slow:,.0f} GB/s")
    assert reached >= bandwidth / 2
