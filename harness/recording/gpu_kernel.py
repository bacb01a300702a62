"""`shardsum_128` as a Triton kernel: one pass over the words of a tensor on a GPU.

A program takes ROWS blocks of one run. It sums columns first: v of the block is one number for a whole row of 1024
words, u of the position is needed once, at the end. A word has 32 bits: a product with 64 modulo 2^64 is one wide
multiplication with the key's lower half and a plain one with its upper half; the 1 that is added to every word is added
as one v for each whole row.
"""

from collections.abc import Sequence
from contextlib import nullcontext

import torch
import triton
import triton.language as tl

from harness.trace.digests import BLOCK_WORDS

BLOCK = tl.constexpr(BLOCK_WORDS)
ROWS = tl.constexpr(32)


def lanes(words: torch.Tensor, starts: Sequence[int], run_words: int, keys: torch.Tensor) -> torch.Tensor:
    """Return both hash halves of consecutive runs of words as int64 [2], on their device; run i begins at `starts[i]`.

    `keys` are u of both halves, then v of both halves for each block: int64 [2 * 1024 + 2 * blocks].
    """
    most_blocks = max((start + run_words - 1) // BLOCK_WORDS - start // BLOCK_WORDS for start in starts) + 1
    num_parts = triton.cdiv(most_blocks, ROWS.value)
    sums = torch.empty((len(starts) * num_parts, 2), dtype=torch.int64, device=words.device)
    begins = torch.tensor(starts, dtype=torch.int64, device=words.device) if len(starts) > 1 else words
    with torch.cuda.device(words.device) if words.is_cuda else nullcontext():  # Triton launches on the current one
        sum_words[(len(sums),)](
            words, begins, keys, sums, starts[0], run_words, num_parts, HAS_ONE_RUN=len(starts) == 1
        )
    return sums.sum(0)


@triton.jit  # type: ignore[untyped-decorator]
def sum_words(  # type: ignore[no-untyped-def]  # noqa: PLR0917
    words,
    begins,
    keys,
    sums,
    first,
    run_words,
    num_parts,
    HAS_ONE_RUN: tl.constexpr,
):
    """The two sums of ROWS blocks of one run."""
    run = tl.program_id(0).to(tl.int64) // num_parts
    start = first if HAS_ONE_RUN else tl.load(begins + run)
    columns = tl.arange(0, BLOCK)
    low_0 = tl.zeros([BLOCK], dtype=tl.uint64)
    low_1 = tl.zeros([BLOCK], dtype=tl.uint64)
    high_0 = tl.zeros([BLOCK], dtype=tl.uint32)
    high_1 = tl.zeros([BLOCK], dtype=tl.uint32)
    ones_0 = tl.full([], 0, dtype=tl.uint64)
    ones_1 = tl.full([], 0, dtype=tl.uint64)
    first_block = start // BLOCK + tl.program_id(0).to(tl.int64) % num_parts * ROWS
    for row in range(ROWS):
        block = first_block + row
        place = block * BLOCK - start + columns
        is_there = (place >= 0) & (place < run_words)
        word = tl.load(words + run * run_words + place, mask=is_there, other=0).to(tl.uint32)
        word &= (1 << words.dtype.element_ty.primitive_bitwidth) - 1  # a narrow one has brought its sign along
        is_used = block * BLOCK < start + run_words
        v = keys + 2 * BLOCK + 2 * block
        key_0 = tl.load(v, mask=is_used, other=0).to(tl.uint64, bitcast=True)
        key_1 = tl.load(v + 1, mask=is_used, other=0).to(tl.uint64, bitcast=True)
        low_0 += word.to(tl.uint64) * (key_0 & 0xFFFFFFFF)
        low_1 += word.to(tl.uint64) * (key_1 & 0xFFFFFFFF)
        high_0 += word * (key_0 >> 32).to(tl.uint32)
        high_1 += word * (key_1 >> 32).to(tl.uint32)
        if (block * BLOCK >= start) & (block * BLOCK + BLOCK <= start + run_words):
            ones_0 += key_0
            ones_1 += key_1
        else:
            low_0 += tl.where(is_there, key_0, 0)
            low_1 += tl.where(is_there, key_1, 0)
    u_0 = tl.load(keys + columns).to(tl.uint64, bitcast=True)
    u_1 = tl.load(keys + BLOCK + columns).to(tl.uint64, bitcast=True)
    sum_0 = tl.sum((low_0 + ones_0 + (high_0.to(tl.uint64) << 32)) * u_0, axis=0)
    sum_1 = tl.sum((low_1 + ones_1 + (high_1.to(tl.uint64) << 32)) * u_1, axis=0)
    out = sums + 2 * tl.program_id(0).to(tl.int64)
    tl.store(out, sum_0.to(tl.int64, bitcast=True))
    tl.store(out + 1, sum_1.to(tl.int64, bitcast=True))
