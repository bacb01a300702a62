"""Compares the kernel with the reference, on the host, in Triton's interpreter; prints how many digests were equal."""

import torch

from harness.recording.gpu_digest import lanes_by_kernel, lanes_digest
from harness.recording.tensors import tensor_bytes
from harness.trace.digests import add_shards, shardsum

RANGES = ((0, 1), (0, 1024), (0, 3000), (1, 1025), (1023, 1025), (1000, 3000), (2048, 3072), (5, 700))


def main() -> None:
    """Ranges of one run, in each size of word, then many runs; AssertionError where one differs."""
    num_equal = 0
    generator = torch.Generator().manual_seed(1)
    for dtype in (torch.uint8, torch.int16, torch.int32):
        size = torch.empty(0, dtype=dtype).element_size()
        words = torch.randint(256, (3072 * size,), dtype=torch.uint8, generator=generator).view(dtype)
        for first, last in RANGES:
            part = words[first:last]
            expected = shardsum(tensor_bytes(part), size, first)
            assert lanes_digest(lanes_by_kernel(part.clone(), [first], len(part))) == expected, (dtype, first, last)
            num_equal += 1
        for starts in ([0, 1500], [700, 40_000]):
            runs = [words[:1100], words[1100:2200]]
            parts = [shardsum(tensor_bytes(run), size, start) for run, start in zip(runs, starts, strict=True)]
            assert lanes_digest(lanes_by_kernel(words[:2200].clone(), starts, 1100)) == add_shards(parts), starts
            num_equal += 1
    print(num_equal, "equal")


if __name__ == "__main__":
    main()
