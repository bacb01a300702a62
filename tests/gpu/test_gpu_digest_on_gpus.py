"""The digest on a real GPU: the reference to the bit, at half the memory's bandwidth, nothing copied to the host.

One command on a machine that has a GPU: `rlharness run tests/gpu --gpus auto`. What it measures is printed with `-s`.
"""

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from harness.recording import gpu_digest  # noqa: E402
from harness.recording.sharded_digest import digest_placed  # noqa: E402
from harness.recording.tensors import tensor_bytes  # noqa: E402
from harness.trace.digests import add_shards, shardsum  # noqa: E402

pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device is visible"),
    pytest.mark.gpus(1),
]

GIB = 2**30
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
    for starts, run_words in (([0], 5_000_011), ([1023], 5_000_011), ([7, 4_000_000], 2_500_005)):
        by_torch = gpu_digest.lanes_by_torch(words[: len(starts) * run_words], starts, run_words)
        by_kernel = gpu_digest.lanes_by_kernel(words[: len(starts) * run_words], starts, run_words)
        assert by_torch.tolist() == by_kernel.tolist()


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
    assert gpu_digest.kernel_problem() == ""


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
    reached = GIB / seconds_of(lambda: gpu_digest.shardsum_lanes(shard)) / 1e9
    by_torch = GIB / seconds_of(lambda: gpu_digest.lanes_by_torch(tensor.view(torch.int32), [0], GIB // 4), 2) / 1e9
    gpu = torch.cuda.get_device_name()
    print(f"{gpu}, {name}: digest {reached:,.0f} GB/s of {bandwidth:,.0f} GB/s; by torch {by_torch:,.0f} GB/s")
    assert reached >= bandwidth / 2


def test_nothing_is_copied_to_the_host() -> None:
    from torch.profiler import ProfilerActivity, profile

    shard = gpu_digest.shard_of(torch.randn(2**20, device="cuda"))
    gpu_digest.shardsum_lanes(shard)
    torch.cuda.synchronize()
    copies = []
    for read in (gpu_digest.shardsum_lanes, digest_of):
        with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiler:
            read(shard)
            torch.cuda.synchronize()
        copies.append(sum("DtoH" in event.name for event in profiler.events()))
    assert copies == [0, 1], "only the 16 bytes of the digest, where they are asked for"
