"""A GPU in the host's memory: it counts what batches ask of it, and reads their tables as the kernel does.

It is a second implementation of the table, by Python's loops, for machines without Triton. `kernel_in_interpreter.py`
runs the kernel itself.
"""

from collections import Counter
from ctypes import string_at
from typing import Any

import pytest
import torch

from harness.bits import shard_sums
from harness.bits.digests import BLOCK_WORDS, PACKSUM_128, SHARDSUM_128, TILE_BYTES
from harness.bits.shard_sums import Fetched, Gpu, Shard, sums_by_torch
from harness.recording import names, tensors

KINDS = {
    1: (torch.int32, SHARDSUM_128),
    0x00010001: (torch.int16, PACKSUM_128),
    0x01010101: (torch.uint8, PACKSUM_128),
}
"""By what is added to each word: elements, and their algorithm."""


class CountedGpu(Gpu):
    """Counts uploads, launches and copies to the host; a wait is a copy that somebody has asked for."""

    devices = ("cpu",)

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.num_words = 0
        """That the kernel has read."""

    def upload(self, numbers: Any, device: torch.device) -> torch.Tensor:
        self.counts["uploads"] += 1
        return super().upload(numbers, device)

    def launch(
        self, rows: torch.Tensor, owners: torch.Tensor, keys: tuple[torch.Tensor, torch.Tensor], sums: torch.Tensor
    ) -> None:
        self.counts["launches"] += 1
        tiles = Counter(owners.tolist())
        for number, (first_tile, owner, address, begin, end, block, ones) in enumerate(rows.tolist()):
            assert owners[first_tile] == number
            assert tiles[number] == -(-end // TILE_BYTES)
            data = bytearray(string_at(address + begin, end - begin))
            if not ones:
                sums[owner] = torch.frombuffer(data.ljust(16, b"\0"), dtype=torch.int64)
                continue
            assert address % 16 == begin % 4 == 0
            self.num_words += -(-len(data) // 4)
            dtype, algorithm = KINDS[ones]
            local = torch.frombuffer(data, dtype=dtype)
            first = block * BLOCK_WORDS * 4 // local.element_size() + begin // local.element_size()
            sums[owner] += sums_by_torch(Shard(local, (first + len(local),), (first,)), algorithm)
            assert len(keys[1]) * BLOCK_WORDS * 4 >= first * local.element_size() + len(data)

    def fetch(self, sums: torch.Tensor) -> Fetched:
        self.counts["copies"] += 1
        gpu = self

        class Counted(Fetched):
            def read(self) -> list[list[int]]:
                gpu.counts["waits"] += self._read is None
                return super().read()

        return Counted(sums)

    def taken(self) -> dict[str, int]:
        """The counts since they were taken last."""
        counts, self.counts = self.counts, Counter()
        return {name: counts[name] for name in ("launches", "uploads", "copies", "waits")}


def pretend_gpu(monkeypatch: pytest.MonkeyPatch, gpu: CountedGpu | None = None) -> CountedGpu:
    """Have every tensor of this process count as one on a GPU."""
    gpu = gpu or CountedGpu()
    for module in (shard_sums, tensors, names):
        monkeypatch.setattr(module, "on_host", lambda tensor: False)
    monkeypatch.setattr(shard_sums, "GPU", gpu)
    monkeypatch.setattr(shard_sums, "_problems", {torch.device("cpu"): ""})
    monkeypatch.setattr(shard_sums, "_tables", type(shard_sums._tables)())
    return gpu
