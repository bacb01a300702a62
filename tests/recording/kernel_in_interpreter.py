"""Compares the kernels with the reference, on the host, in Triton's interpreter; prints how many digests were equal.

The values lie in the host's memory, which the interpreter reads by address as a GPU would.
"""

from collections.abc import Sequence

import torch

from harness.bits.digests import add_shards, shardsum
from harness.recording.gpu_batch import GPU, Sample, Value, kernel_problem, lanes_by_kernel, sample_runs
from harness.recording.gpu_digest import Shard, lanes_by_torch, lanes_digest, lanes_of_shard, words_of
from harness.recording.tensors import tensor_bytes

HOST = torch.device("cpu")
GENERATOR = torch.Generator().manual_seed(1)
RANGES = ((0, 1), (0, 1024), (0, 3000), (1, 1025), (1023, 1025), (1000, 3000), (2048, 3072), (5, 700))
NEAR_2_31 = (2**31 - 1500, 2**31 - 1, 2**31, 2**32 - 700)
"""First words of shards: sums of 32-bit numbers would wrap within them."""


def digests(values: Sequence[Value]) -> list[bytes]:
    """The digests that one launch gives, of small values their bytes."""
    return [lanes_digest(lanes) for lanes in lanes_by_kernel(values, HOST, GPU)]


def part(local: torch.Tensor, first: int) -> Shard:
    """Elements in one dimension, from `first` of a value that goes on after them."""
    return Shard(local, (first + len(local) + 7,), (first,))


def elements(dtype: torch.dtype, *shape: int) -> torch.Tensor:
    """A tensor of any bits."""
    size = torch.empty(0, dtype=dtype).element_size()
    count = torch.Size(shape).numel() * size
    return torch.randint(256, (count,), dtype=torch.uint8, generator=GENERATOR).view(dtype).view(shape)


def ranges_of_every_word_size() -> int:
    """Parts of one run, in one batch: launched together, each has its own sums."""
    shards, expected = [], []
    for dtype in (torch.uint8, torch.bfloat16, torch.float32, torch.float64, torch.complex128):
        whole = elements(dtype, 3072)
        for first, last in RANGES:
            local = whole[first:last]  # most of them at addresses that 16 bytes do not divide
            shards.append(part(local, first))
            expected.append(shardsum(tensor_bytes(local), local.element_size(), first))
    assert digests(shards) == expected
    return len(shards)


def shards_across_word_2_31() -> int:
    """Index arithmetic has 64 bits: of the first word, and of its sum with the words of a run."""
    words = elements(torch.int32, 5000)
    columns = elements(torch.int32, 3, 1500)
    for first in NEAR_2_31:
        assert digests([part(words, first)]) == [shardsum(tensor_bytes(words), 4, first)], first
        shard = Shard(columns, (3, first + 1500), (0, first))
        runs = [shardsum(tensor_bytes(row), 4, index * (first + 1500) + first) for index, row in enumerate(columns)]
        assert digests([shard]) == [add_shards(runs)], first
    return 2 * len(NEAR_2_31)


def layouts() -> int:
    """Views, shards of columns, repeated and turned elements: by strides where the kernel can, else by a copy."""
    whole = elements(torch.bfloat16, 6, 5, 300)
    values: list[torch.Tensor | Shard] = [
        whole[:, 1:3],  # runs at one stride
        whole[1:4, 1:3, 40:200],  # at two
        whole.permute(2, 0, 1),  # copied
        whole[:, :, ::3],
        whole[:1].expand(4, 5, 300),
        Shard(whole[1:3, :, 100:200], (6, 5, 300), (1, 0, 100)),
        Shard(whole[1:3, 2:4, 100:110], (6, 5, 300), (1, 2, 100)),  # its runs are summed by torch
        torch.randn(40, dtype=torch.complex64, generator=GENERATOR).conj(),
        elements(torch.float32, 4)[:3].reshape(3, 1).t(),  # its bytes
        torch.tensor(True),
    ]
    for value, found in zip(values, digests(values), strict=True):
        if isinstance(value, Shard):
            assert found == lanes_digest(lanes_of_shard(value))
        elif value.nbytes > 16:
            assert found == shardsum(tensor_bytes(value), value.element_size()), value.shape
        else:
            lanes = torch.frombuffer(bytearray(bytes(tensor_bytes(value)).ljust(16, b"\0")), dtype=torch.int64)
            assert found == lanes_digest(lanes)
    return len(values)


def samples() -> int:
    """A sample is the same by the kernel and by torch, and has the beginning and the end of its value."""
    tensor = elements(torch.float64, 40_000)
    (level,) = (runs := sample_runs(tensor)).levels
    words = words_of(tensor).as_strided((level.repeats, runs.run_words), (level.memory, 1)).reshape(-1)
    assert digests([Sample(tensor)]) == [lanes_digest(lanes_by_torch(words, runs))]
    for index in (0, (level.repeats - 1) * level.memory):
        changed = tensor.clone()
        changed.view(torch.int32)[index] ^= 1
        assert digests([Sample(changed)]) != digests([Sample(tensor)])
    return 3


def main() -> None:
    """AssertionError where one differs."""
    assert kernel_problem(HOST) == "", kernel_problem(HOST)
    print(ranges_of_every_word_size() + shards_across_word_2_31() + layouts() + samples(), "equal")


if __name__ == "__main__":
    main()
