"""Where the words of a shard lie in memory, and where in the global value: the rows of a table for one kernel launch.

    Shard ─▶ runs_of ─▶ Runs: consecutive words, repeated at two strides ─▶ rows ─▶ table of int64 on the GPU

A run is consecutive both in memory and in the global value. A contiguous tensor is one run, a shard of columns one run
for each row of the whole, a slice of columns likewise. Strides say where runs begin: no list grows with the tensor.
"""

from collections.abc import Sequence
from itertools import product
from math import prod
from typing import NamedTuple

import torch

from harness.bits.digests import BLOCK_WORDS, WORD_BYTES
from harness.bits.errors import TraceError

ROWS = 32
"""Blocks of a run that one program of the kernel sums."""
NUM_FIELDS = 12
"""int64 of a row, the last of which is not used: 16 bytes divide a row."""
MAX_ROWS = 64
"""Of one value; a layout that needs more is copied first."""
ALIGNMENT = 16
"""Bytes that a thread loads at once where addresses allow it."""


class Level(NamedTuple):
    """A repetition of what is below it."""

    repeats: int
    whole: int
    """From one to the next, in words of the global value."""
    memory: int
    """From one to the next, in words of memory."""


class Runs(NamedTuple):
    """The words of a shard."""

    first: int
    """Index of its first word in the global value."""
    run_words: int
    """Words that are consecutive in memory and in the global value."""
    levels: tuple[Level, ...]
    """Outermost first; () for one run."""

    @property
    def num_runs(self) -> int:
        return prod(level.repeats for level in self.levels)


class Row(NamedTuple):
    """Runs at two strides at most, as the kernel reads them. All in words but the address."""

    num_programs: int
    """In the table, the number of the row's first program instead."""
    owner: int
    """Which sums it adds to."""
    address: int
    first: int
    run_words: int
    num_parts: int
    """Programs of one run."""
    inner_count: int
    inner_whole: int
    inner_memory: int
    outer_whole: int
    outer_memory: int


def words_per_element(element_bytes: int) -> int:
    """How many words make an element; TraceError for elements that are not of 1, 2, 4, 8 or 16 bytes."""
    if element_bytes not in (1, 2, 4, 8, 16):
        raise TraceError(f"elements of {element_bytes} bytes", legal="dense elements of up to 16 bytes")
    return max(1, element_bytes // WORD_BYTES)


def runs_of(local: torch.Tensor, shape: Sequence[int], offset: Sequence[int], strides: Sequence[int]) -> Runs:
    """The words of a part that begins at `offset` of a value of `shape`, and lies in memory by `strides`.

    TraceError for a part that lies outside.
    """
    sizes, whole = tuple(local.shape), tuple(shape)
    if len(sizes) != len(whole) or any(at + size > all_ for at, size, all_ in zip(offset, sizes, whole, strict=True)):
        raise TraceError(f"a part of {sizes} at {tuple(offset)} lies outside of {whole}")
    num_words = words_per_element(local.element_size())
    first, run, levels = 0, num_words, list[Level]()
    whole_stride = num_words
    for size, all_, at, stride in reversed(list(zip(sizes, whole, offset, strides, strict=True))):
        first += at * whole_stride
        level = Level(size, whole_stride, stride * num_words)
        whole_stride *= all_
        if size == 1:
            continue
        below = levels[-1] if levels else Level(run, 1, 1)
        if (level.whole, level.memory) != (below.repeats * below.whole, below.repeats * below.memory):
            levels.append(level)
        elif levels:
            levels[-1] = below._replace(repeats=below.repeats * size)
        else:
            run *= size
    return Runs(first, run, tuple(reversed(levels)))


def rows_of(runs: Runs, owner: int, address: int, word_bytes: int) -> list[Row] | None:
    """The rows of a shard; None where they are too many. Levels above the two that a row has are written out."""
    above, levels = runs.levels[:-2], runs.levels[-2:]
    if prod(level.repeats for level in above) > MAX_ROWS:
        return None
    outer, inner = ((Level(1, 0, 0),) * (2 - len(levels)) + levels)[-2:]
    num_blocks = max_blocks(runs)
    num_parts = -(-num_blocks // ROWS)
    found = []
    for indices in product(*(range(level.repeats) for level in above)):
        whole = sum(index * level.whole for index, level in zip(indices, above, strict=True))
        memory = sum(index * level.memory for index, level in zip(indices, above, strict=True))
        found.append(
            Row(
                outer.repeats * inner.repeats * num_parts,
                owner,
                address + memory * word_bytes,
                runs.first + whole,
                runs.run_words,
                num_parts,
                *inner,
                outer.whole,
                outer.memory,
            )
        )
    return found


def max_blocks(runs: Runs) -> int:
    """In how many blocks a run of these lies at most."""
    if not runs.levels:
        return (runs.first + runs.run_words - 1) // BLOCK_WORDS - runs.first // BLOCK_WORDS + 1
    return (runs.run_words + BLOCK_WORDS - 2) // BLOCK_WORDS + 1


def is_aligned(row: Row, word_bytes: int) -> bool:
    """Whether every whole block of the row, if it has any, begins at an address that is a multiple of ALIGNMENT."""
    if row.run_words < BLOCK_WORDS:
        return True
    words = (row.first, row.inner_whole, row.inner_memory, row.outer_whole, row.outer_memory)
    return not row.address % ALIGNMENT and not any(each * word_bytes % ALIGNMENT for each in words)
