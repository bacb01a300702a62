"""A GPU in the host's memory: it counts what batches ask of it, and reads their tables as the kernels do.

It is a second implementation of the table, by Python's loops, for machines without Triton. `kernel_in_interpreter.py`
runs the kernels themselves.
"""

from array import array
from collections import Counter
from ctypes import string_at
from itertools import product

import pytest
import torch

from harness.bits.digests import BLOCK_WORDS
from harness.recording import digest_cache, names, sharded_digest, tensors
from harness.recording.gpu_batch import Gpu, Value, lanes_by_kernel
from harness.recording.gpu_digest import Shard, lanes_by_torch
from harness.recording.gpu_table import ROWS, Row, Runs

WORDS = {1: torch.uint8, 2: torch.int16, 4: torch.int32}


class CountedGpu(Gpu):
    """Counts uploads, launches, values summed by torch, and fetches: each of these is a wait and a copy to the host."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.num_words = 0
        """That were read by the kernel that sums."""

    def upload(self, numbers: "array[int]", device: torch.device) -> torch.Tensor:
        self.counts["uploads"] += 1
        return super().upload(numbers, device)

    def sum_runs(
        self, table: torch.Tensor, sums: torch.Tensor, *, num_programs: int, word_bytes: int, is_aligned: bool
    ) -> None:
        self.counts["launches"] += 1
        firsts = [*table[:, 0].tolist(), num_programs]
        for number, fields in enumerate(table.tolist()):
            row = Row(firsts[number + 1] - firsts[number], *fields[1:-1])
            outer_count, rest = divmod(row.num_programs, row.inner_count * row.num_parts)
            assert outer_count
            assert not rest
            for outer, inner in product(range(outer_count), range(row.inner_count)):
                first = row.first + outer * row.outer_whole + inner * row.inner_whole
                at = row.address + word_bytes * (outer * row.outer_memory + inner * row.inner_memory)
                assert row.num_parts * ROWS > (first + row.run_words - 1) // BLOCK_WORDS - first // BLOCK_WORDS
                skipped = -first % BLOCK_WORDS
                if is_aligned and skipped + BLOCK_WORDS <= row.run_words:
                    assert (at + word_bytes * skipped) % 16 == 0
                words = torch.frombuffer(bytearray(string_at(at, row.run_words * word_bytes)), dtype=WORDS[word_bytes])
                sums[row.owner] += lanes_by_torch(words, Runs(first, row.run_words, ()))
                self.num_words += row.run_words

    def copy_bytes(self, table: torch.Tensor, sums: torch.Tensor) -> None:
        self.counts["launches"] += 1
        for owner, address, num_bytes, _ in table.tolist():
            value = bytearray(string_at(address, num_bytes).ljust(16, b"\0"))
            sums[owner] = torch.frombuffer(value, dtype=torch.int64)

    def sum_by_torch(self, shard: Shard) -> torch.Tensor:
        self.counts["by torch"] += 1
        return super().sum_by_torch(shard)

    def fetch(self, sums: torch.Tensor) -> torch.Tensor:
        self.counts["waits"] += 1
        return sums.clone()

    def taken(self) -> dict[str, int]:
        """The counts since they were taken last."""
        counts, self.counts = self.counts, Counter()
        return {name: counts[name] for name in ("launches", "uploads", "waits", "by torch")}


def pretend_gpu(monkeypatch: pytest.MonkeyPatch) -> CountedGpu:
    """Have every tensor of this process count as one on a GPU."""
    gpu = CountedGpu()

    def lanes_of(values: list[Value], device: torch.device) -> torch.Tensor:
        return lanes_by_kernel(values, device, gpu)

    for module in (tensors, sharded_digest, digest_cache, names):
        monkeypatch.setattr(module, "on_host", lambda tensor: False)
    monkeypatch.setattr(sharded_digest, "lanes_of", lanes_of)
    return gpu
