"""Compares the kernel with the reference, on the host, in Triton's interpreter; prints how many digests were equal.

The values lie in the host's memory, which the interpreter reads by address as a GPU would.
"""

import torch

from harness.bits import shard_sums
from harness.bits.digests import PACKSUM_128, RAW, SHARDSUM_128, packsum, shardsum
from harness.bits.shard_sums import Gpu, Shard, digests, kernel_problem, shard_of_all
from harness.recording.tensors import tensor_bytes

HOST = torch.device("cpu")
GENERATOR = torch.Generator().manual_seed(1)
RANGES = ((0, 1024), (0, 3000), (4, 1025), (1020, 1025), (1000, 3000), (2048, 3072), (8, 700))
NEAR_2_31 = (2**31 - 1500, 2**31 - 4, 2**31, 2**32 - 700)
"""First words of shards: sums of 32-bit numbers would wrap within them."""
BY_KERNEL = list[int]()


class Interpreted(Gpu):
    devices = ("cpu",)

    def launch(
        self, rows: torch.Tensor, owners: torch.Tensor, keys: tuple[torch.Tensor, torch.Tensor], sums: torch.Tensor
    ) -> None:
        BY_KERNEL.append(len(rows))
        super().launch(rows, owners, keys, sums)


def elements(dtype: torch.dtype, *shape: int) -> torch.Tensor:
    """A tensor of any bits, at an address that 16 bytes divide."""
    size = torch.empty(0, dtype=dtype).element_size()
    count = torch.Size(shape).numel() * size
    return torch.randint(256, (count,), dtype=torch.uint8, generator=GENERATOR).view(dtype).view(shape)


def algorithm_of(tensor: torch.Tensor) -> str:
    return PACKSUM_128 if tensor.element_size() < 4 else SHARDSUM_128


def ranges_of_every_size() -> int:
    """Parts of one run, in one launch: each has its own sums."""
    parts, expected = [], []
    for dtype in (torch.uint8, torch.bfloat16, torch.float32, torch.float64, torch.complex128):
        for first, last in RANGES:
            raw = elements(dtype, 3072 + 16)
            skipped = first * raw.element_size() % 16 // raw.element_size()  # as the kernel reads it
            local = raw[skipped : skipped + last - first]
            algorithm = algorithm_of(local)
            parts.append((Shard(local, (last + 7,), (first,)), algorithm))
            reference = packsum if algorithm == PACKSUM_128 else shardsum
            expected.append(reference(tensor_bytes(local), local.element_size(), first))
    assert (list(map(bytes, digests(parts, HOST))), BY_KERNEL[-1]) == (expected, len(parts))
    return len(parts)


def shards_across_word_2_31() -> int:
    """Index arithmetic has 64 bits: of the first word, and of its sum with the words of a run."""
    words = elements(torch.int32, 5000)
    parts = [(Shard(words, (first + 5000,), (first,)), SHARDSUM_128) for first in NEAR_2_31]
    assert list(map(bytes, digests(parts, HOST))) == [shardsum(tensor_bytes(words), 4, first) for first in NEAR_2_31]
    return BY_KERNEL[-1]


def values_of_several_tiles_and_layouts() -> int:
    """Whole tiles, their rest, small values, and what is copied."""
    cut = elements(torch.bfloat16, 6, 5, 300)
    values = [
        elements(torch.float32, 40_000),
        elements(torch.bfloat16, 70_001),
        elements(torch.uint8, 131_075),
        cut[:, 1:3],
        cut.permute(2, 0, 1),
        cut[:, :, ::3],
        torch.randn(40, dtype=torch.complex64, generator=GENERATOR).conj(),
        elements(torch.float32, 4)[:3].reshape(3, 1).t(),
        elements(torch.uint8, 40)[3:14],
        torch.tensor(True),
    ]
    parts = [(shard_of_all(value), RAW if value.nbytes <= 16 else algorithm_of(value)) for value in values]
    for value, (_, algorithm), found in zip(values, parts, digests(parts, HOST), strict=True):
        data, summed = bytes(tensor_bytes(value)), packsum if algorithm == PACKSUM_128 else shardsum
        expected = data.ljust(16, b"\0") if algorithm == RAW else summed(data, value.element_size())
        assert bytes(found) == expected, value.shape
    return BY_KERNEL[-1]


def main() -> None:
    """AssertionError where one differs."""
    shard_sums.GPU = Interpreted()
    assert kernel_problem(HOST) == "", kernel_problem(HOST)
    print(ranges_of_every_size() + shards_across_word_2_31() + values_of_several_tiles_and_layouts(), "equal")


if __name__ == "__main__":
    main()
