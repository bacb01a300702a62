"""The digest on a real GPU: the reference to the bit, at half the memory's bandwidth, nothing copied to the host.

One command on a machine that has a GPU: `rlharness run tests/gpu --gpus auto`. What it measures is printed with `-s`.
"""

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from harness.bits.digests import add_shards, shardsum  # noqa: E402
from harness.recording import gpu_digest, gpu_memory  # noqa: E402
from harness.recording.gpu_batch import GPU, kernel_problem, lanes_by_kernel  # noqa: E402
from harness.recording.gpu_digest import Shard  # noqa: E402
from harness.recording.sharded_digest import digest_placed  # noqa: E402
from harness.recording.tensors import tensor_bytes  # noqa: E402

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


def digest_of(shard: gpu_digest.Shard) -> bytes:
    return digest_placed([shard])[0].digest


@pytest.mark.parametrize("name", ["uint8", "int16", "bfloat16", "float32", "int64", "complex128"])
def test_the_reference_to_the_bit(name: str) -> None:
    for shape in SHAPES:
        tensor = bits(getattr(torch, name), shape)
        expected = shardsum(tensor_bytes(tensor), tensor.element_size())
        assert digest_of(gpu_digest.shard_of(tensor.cuda())) == expected, shape


def test_both_ways_agree_on_what_is_too_long_for_the_reference() -> None:
    words = bits(torch.int32, (5_000_011,)).cuda()
    shards = [Shard(words, (first + 5_000_011,), (first,)) for first in (0, 1023, *NEAR_2_31)]
    shards.append(Shard(words[:5_000_000].view(50, 100_000), (50, 300_000), (0, 100_001)))
    shards.append(gpu_digest.shard_of(words[:5_000_000].view(50, 100_000).t()))
    by_kernel = lanes_by_kernel(shards, words.device, GPU)
    for shard, lanes in zip(shards, by_kernel, strict=True):
        assert gpu_digest.lanes_of_shard(shard).tolist() == lanes.tolist()


def test_a_whole_value_of_more_than_2_31_words() -> None:
    words = torch.randint(256, (2**31 + 5_000,), dtype=torch.uint8, device="cuda")
    whole = lanes_by_kernel([words], words.device, GPU)[0]
    cut = 2**31 - 2_000
    parts = [Shard(words[:cut], tuple(words.shape), (0,)), Shard(words[cut:], tuple(words.shape), (cut,))]
    assert lanes_by_kernel(parts, words.device, GPU).sum(0).tolist() == whole.tolist()


def test_300_small_tensors_take_one_launch_and_one_copy() -> None:
    from torch.profiler import ProfilerActivity, profile

    values = [torch.randn(1000 + number, device="cuda") for number in range(300)]
    digest_placed(values)
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiler:
        digest_placed(values)
        torch.cuda.synchronize()
    names = [event.name for event in profiler.events()]
    assert names.count("sum_runs") <= 2, "those that 16 bytes divide, and the others"
    assert sum("DtoH" in name for name in names) == 1
    seconds = seconds_of(lambda: digest_placed(values))
    print(f"{torch.cuda.get_device_name()}: 300 small tensors in {seconds * 1e3:.2f} ms")


def test_memory_that_is_not_there_is_not_read() -> None:
    """A storage that was given back, and an address that the driver has not mapped."""
    freed = torch.randn(1000, device="cuda")
    freed.untyped_storage().resize_(0)
    assert digest_placed([freed])[0].dtype == "freed"
    there = torch.randn(2**20, device="cuda")
    assert gpu_memory.is_mapped(there.data_ptr()) is True
    assert gpu_memory.is_mapped(2**46) is False
    assert digest_placed([there])[0].algorithm == "shardsum_128"


def test_shards_add_up() -> None:
    whole = bits(torch.bfloat16, (64, 3000)).cuda()
    for dim, cut in ((0, 17), (1, 1111)):
        first, second = whole.split([cut, whole.shape[dim] - cut], dim)
        parts = [
            gpu_digest.Shard(first, tuple(whole.shape), (0, 0)),
            gpu_digest.Shard(second, tuple(whole.shape), (cut, 0) if dim == 0 else (0, cut)),
        ]
        added = add_shards(digest_of(part) for part in parts)
        assert added == digest_of(gpu_digest.shard_of(whole))


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
    shard = gpu_digest.shard_of(tensor)
    reached = GIB / seconds_of(lambda: lanes_by_kernel([shard], tensor.device, GPU)) / 1e9
    by_torch = GIB / seconds_of(lambda: gpu_digest.lanes_of_shard(shard), 2) / 1e9
    gpu = torch.cuda.get_device_name()
    print(f"{gpu}, {name}: digest {reached:,.0f} GB/s of {bandwidth:,.0f} GB/s; by torch {by_torch:,.0f} GB/s")
    assert reached >= bandwidth / 2


def test_nothing_is_copied_to_the_host() -> None:
    from torch.profiler import ProfilerActivity, profile

    shard = gpu_digest.shard_of(torch.randn(2**20, device="cuda"))
    digest_of(shard)
    torch.cuda.synchronize()
    copies = []
    for read in (gpu_digest.lanes_of_shard, digest_of):
        with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiler:
            read(shard)
            torch.cuda.synchronize()
        copies.append(sum("DtoH" in event.name for event in profiler.events()))
    assert copies == [0, 1], "only the 16 bytes of the digest, where they are asked for"
