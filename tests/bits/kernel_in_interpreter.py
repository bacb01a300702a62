"""Digests bytes by the kernel, on the host, in Triton's interpreter; prints how many are those of the library."""

import torch
from xxhash import xxh3_128_digest

from harness.bits.gpu_digests import Contents, problem

LENGTHS = (0, 5, 240, 241, 1023, 1024, 1025, 1026, 1087, 1088, 1089, 2047, 2048, 2049, 16_385, 40_000)


def main() -> None:
    """One `take` for all lengths, then one for each alignment; AssertionError where one differs."""
    assert problem(torch.device("cpu")) == ""
    content = torch.randint(256, (40_008,), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))
    num_equal, contents = 0, Contents()
    for parts in ([content[:length] for length in LENGTHS], [content[first:] for first in (1, 2, 4, 8)]):
        for part in parts:
            contents.add(part)
        for part, found in zip(parts, contents.take(), strict=True):
            assert found == xxh3_128_digest(part.numpy().tobytes()), len(part)
            num_equal += 1
    print(num_equal, "equal")


if __name__ == "__main__":
    main()
