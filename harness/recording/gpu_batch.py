"""The digests of many values on one GPU: one launch for each word size, one copy back.

    add, add_bytes, add_sample: rows of a table ─▶ fetch: upload ─▶ launch, launch, ... ─▶ sums [values, 2] to the host

| a hook with n values | launches | uploads | waits and copies to the host |
|---|---|---|---|
| by the kernel | 1 for values of at most 16 bytes, 1 for each word size and alignment: up to 7 | 1 | 1 |
| by torch's operations | some 12 for each value and each 1M words of it | 0 | 1 |

Values whose memory has another order than their elements are copied first, in pieces: each full budget of copies is
summed before the next.
"""

from array import array
from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple

import torch

from harness.bits.digests import BLOCK_WORDS, DIGEST_BYTES, WORD_BYTES
from harness.recording.gpu_digest import (
    PIECE_BYTES,
    Shard,
    check_dense,
    contiguous_strides,
    is_readable_in_place,
    keys_of_places,
    lanes_by_torch,
    lanes_of_shard,
    pieces_of,
    words_of,
)
from harness.recording.gpu_table import NUM_FIELDS, ROWS, Level, Row, Runs, is_aligned, rows_of, runs_of
from harness.recording.notices import say_once

MIN_RUN_WORDS = 32
"""Shorter runs are summed by torch: a program of the kernel takes a run, however short."""
NUM_SAMPLES, SAMPLE_WORDS = 32, 16
"""Runs that a sample of a value has, and the words of each."""


class Gpu:
    """What a batch does on a GPU. Tests count it in a stand-in."""

    def upload(self, numbers: "array[int]", device: torch.device) -> torch.Tensor:
        """int64 numbers, one dimension, to a GPU; without waiting: the driver keeps a copy of its own."""
        return torch.frombuffer(numbers, dtype=torch.int64).to(device, non_blocking=True)

    def sum_runs(
        self, table: torch.Tensor, sums: torch.Tensor, *, num_programs: int, word_bytes: int, is_aligned: bool
    ) -> None:
        """Launch the kernel that sums; ImportError where Triton is not installed."""
        from harness.bits import gpu_kernels

        u = keys_of_places(table.device)
        gpu_kernels.launch_sums(
            table, sums, u, num_programs=num_programs, num_blocks=ROWS, word_bytes=word_bytes, is_aligned=is_aligned
        )

    def copy_bytes(self, table: torch.Tensor, sums: torch.Tensor) -> None:
        """Launch the kernel that copies small values."""
        from harness.bits import gpu_kernels

        gpu_kernels.launch_copies(table, sums)

    def sum_by_torch(self, shard: Shard) -> torch.Tensor:
        """Both hash halves of a shard by torch's operations."""
        return lanes_of_shard(shard)

    def fetch(self, sums: torch.Tensor) -> torch.Tensor:
        """The sums on the host; waits for the GPU."""
        return sums.cpu()


class Sample(NamedTuple):
    """A value of which some words are digested: enough to notice most writes that torch does not count."""

    tensor: torch.Tensor
    """Contiguous."""


Value = torch.Tensor | Shard | Sample


class GpuBatch:
    """Collects values of one device, and digests them at once."""

    def __init__(self, device: torch.device, num_values: int, gpu: Gpu) -> None:
        self._device = device
        self._num_values = num_values
        self._gpu = gpu
        self._rows: dict[tuple[int, bool], list[Row]] = {}
        """By word size and alignment."""
        self._small: list[tuple[int, int, int]] = []
        """(owner, address, number of bytes)."""
        self._held: list[torch.Tensor] = []
        """Copies, until they are summed."""
        self._sums: torch.Tensor | None = None
        self._added: list[tuple[int, torch.Tensor]] = []

    def add(self, owner: int, value: Value) -> None:
        """Digest a value as number `owner`."""
        if isinstance(value, Sample):
            local = value.tensor
            self._add_runs(owner, local, sample_runs(local), min_run_words=SAMPLE_WORDS)
        elif isinstance(value, Shard):
            self._add_shard(owner, value)
        elif value.nbytes <= DIGEST_BYTES:
            local = self._in_place(value)
            self._small.append((owner, local.data_ptr(), local.nbytes))
        else:
            self._add_shard(owner, Shard(value, tuple(value.shape), (0,) * value.dim()))

    def fetch(self) -> torch.Tensor:
        """int64 [values, 2] on the host: hash halves, or the bytes of small values; waits for the GPU."""
        self._flush()
        assert self._sums is not None
        for owner, lanes in self._added:
            self._sums[owner] += lanes
        return self._gpu.fetch(self._sums)

    def _add_shard(self, owner: int, shard: Shard) -> None:
        check_dense(shard.local)
        runs = runs_of(shard.local, shard.shape, shard.offset, shard.local.stride())
        if not shard.local.numel():
            return
        if is_readable_in_place(shard.local) and self._add_runs(owner, shard.local, runs):
            return
        if is_readable_in_place(shard.local) and shard.local.is_contiguous():  # its runs are too short
            self._added.append((owner, self._gpu.sum_by_torch(shard)))
            return
        for piece in pieces_of(shard, PIECE_BYTES):
            local = self._in_place(piece.local, is_copied=True)
            runs = runs_of(local, piece.shape, piece.offset, contiguous_strides(local.shape))
            if not self._add_runs(owner, local, runs):
                self._added.append((owner, self._gpu.sum_by_torch(piece)))

    def _add_runs(self, owner: int, local: torch.Tensor, runs: Runs, min_run_words: int = MIN_RUN_WORDS) -> bool:
        """Add rows to the table; False where the runs are too short or too many for the kernel."""
        word_bytes = min(local.element_size(), WORD_BYTES)
        is_long = not runs.levels or runs.run_words >= min_run_words
        rows = rows_of(runs, owner, local.data_ptr(), word_bytes) if is_long else None
        for row in rows or ():
            self._rows.setdefault((word_bytes, is_aligned(row, word_bytes)), []).append(row)
        return rows is not None

    def _in_place(self, tensor: torch.Tensor, *, is_copied: bool = False) -> torch.Tensor:
        """A tensor, or a copy of it whose memory has its elements in C order."""
        if not is_copied and tensor.is_contiguous() and is_readable_in_place(tensor):
            return tensor
        if sum(copy.nbytes for copy in self._held) + tensor.nbytes > PIECE_BYTES:
            self._flush()
        self._held.append(tensor.detach().resolve_conj().resolve_neg().contiguous())
        return self._held[-1]

    def _flush(self) -> None:
        """Sum what was collected; the memory of copies is free for what is launched later."""
        numbers = array("q", bytes(16 * self._num_values if self._sums is None else 0))
        ends = [len(numbers)]
        for small in self._small:
            numbers.extend((*small, 0))
        ends.append(len(numbers))
        groups = sorted(self._rows.items())
        for _, rows in groups:
            for first, row in zip(_firsts(rows), rows, strict=True):
                numbers.extend((first, *row[1:], 0))
            ends.append(len(numbers))
        if not numbers:
            return
        uploaded = self._gpu.upload(numbers, self._device)
        if self._sums is None:
            self._sums = uploaded[: ends[0]].view(-1, 2)
        if self._small:
            self._gpu.copy_bytes(uploaded[ends[0] : ends[1]].view(-1, 4), self._sums)
        for ((word_bytes, aligned), rows), first, last in zip(groups, ends[1:-1], ends[2:], strict=True):
            self._gpu.sum_runs(
                uploaded[first:last].view(-1, NUM_FIELDS),
                self._sums,
                num_programs=sum(row.num_programs for row in rows),
                word_bytes=word_bytes,
                is_aligned=aligned,
            )
        self._rows, self._small, self._held = {}, [], []


def sample_runs(local: torch.Tensor) -> Runs:
    """Which words of a contiguous tensor a sample has: runs at equal distances, from its beginning to about its end."""
    num_words = local.nbytes // min(local.element_size(), WORD_BYTES)
    return Runs(0, SAMPLE_WORDS, (Level(NUM_SAMPLES, BLOCK_WORDS, (num_words - SAMPLE_WORDS) // (NUM_SAMPLES - 1)),))


def _sample_by_torch(sample: Sample) -> torch.Tensor:
    runs = sample_runs(sample.tensor)
    (level,) = runs.levels
    words = words_of(sample.tensor).as_strided((level.repeats, runs.run_words), (level.memory, 1))
    return lanes_by_torch(words.reshape(-1), runs)


def _small_by_torch(tensor: torch.Tensor) -> torch.Tensor:
    """The bytes of a small tensor, filled up with zeros, as int64 [2] on its device."""
    filled = torch.zeros(DIGEST_BYTES, dtype=torch.uint8, device=tensor.device)
    whole = tensor.detach().resolve_conj().resolve_neg().contiguous().reshape(-1).view(torch.uint8)
    filled[: whole.numel()] = whole
    return filled.view(torch.int64)


def _firsts(rows: list[Row]) -> list[int]:
    """The number of each row's first program."""
    return list(accumulate([0, *(row.num_programs for row in rows[:-1])]))


# ------------------------------------------------------------------------------------------------ of which way it goes

GPU = Gpu()
_problems: dict[torch.device, str] = {}


def lanes_of(values: Sequence[Value], device: torch.device, gpu: Gpu = GPU) -> torch.Tensor:
    """int64 [values, 2] on the host: the hash halves of each, or its bytes; all values lie on `device`."""
    if device.type == "cuda" and not kernel_problem(device, gpu):
        try:
            return lanes_by_kernel(values, device, gpu)
        except torch.OutOfMemoryError:
            raise
        except Exception as error:  # a variant that Triton cannot compile: torch's operations do it too
            _note_problem(device, f"{type(error).__name__}: {error}")
    return gpu.fetch(torch.stack([_by_torch(value, gpu) for value in values]))


def kernel_problem(device: torch.device, gpu: Gpu = GPU) -> str:
    """Why the kernel is not used on a GPU, tried once for each; empty where it is used. A lack of memory is forgotten.

    The trial waits for the GPU, and compares the kernel's sums with torch's.
    """
    if device not in _problems:
        words = torch.arange(3 * BLOCK_WORDS, dtype=torch.int32, device=device)
        shard = Shard(words, (4 * BLOCK_WORDS,), (1000,))
        try:
            found = lanes_by_kernel([shard], device, gpu)
            if not torch.equal(found[0], lanes_of_shard(shard).cpu()):
                _note_problem(device, "its sums are wrong")
        except torch.OutOfMemoryError as error:
            return f"{type(error).__name__}: {error}"
        except Exception as error:  # no Triton, no compiler for it, a GPU it does not know
            _note_problem(device, f"{type(error).__name__}: {error}")
    return _problems.setdefault(device, "")


def _note_problem(device: torch.device, problem: str) -> None:
    _problems[device] = problem
    say_once(
        f"digests on {device} take about 0.5 s for 10^9 parameters, since the Triton kernel does not run:"
        f" {problem}; install triton and a C compiler"
    )


def lanes_by_kernel(values: Sequence[Value], device: torch.device, gpu: Gpu) -> torch.Tensor:
    """The same by the kernel alone."""
    batch = GpuBatch(device, len(values), gpu)
    for owner, value in enumerate(values):
        batch.add(owner, value)
    return batch.fetch()


def _by_torch(value: Value, gpu: Gpu) -> torch.Tensor:
    if isinstance(value, Sample):
        return _sample_by_torch(value)
    if isinstance(value, Shard):
        return gpu.sum_by_torch(value)
    if value.nbytes <= DIGEST_BYTES:
        return _small_by_torch(value)
    return gpu.sum_by_torch(Shard(value, tuple(value.shape), (0,) * value.dim()))
