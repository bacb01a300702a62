"""What `harness.bits.gpu_kernels` computes, in torch's operations on a CPU: for machines without Triton."""

from collections.abc import Sequence

import torch
from torch import Tensor

from harness.bits.digests import PRIME32_1, xxh3_table

SECRET, START = torch.tensor(xxh3_table()[:24]), torch.tensor(xxh3_table()[24:])


def _shifted(x: Tensor, count: int) -> Tensor:
    return (x >> count) & ((1 << (64 - count)) - 1)


def block_sums(content: Tensor, count: int) -> Tensor:
    """As the kernel's."""
    words = content[: count * 1024].clone().view(torch.int64).view(count, 16, 8)
    mixed = words ^ SECRET.unfold(0, 8, 1)[:16]
    added = (mixed & 0xFFFFFFFF) * _shifted(mixed, 32) + words[..., [1, 0, 3, 2, 5, 4, 7, 6]]
    sums: Tensor = added.sum(1)
    return sums


def chained(sums: Tensor, counts: Sequence[int]) -> Tensor:
    """As the kernel's."""
    found = []
    for own in torch.split(sums, list(counts)):
        state = START.clone()
        for row in own:
            state += row
            state = (state ^ _shifted(state, 47) ^ SECRET[16:]) * PRIME32_1
        found.append(state)
    return torch.stack(found)
