"""The Triton kernels of both digests of tensors on a GPU.

`xxh3_128`      sum_blocks: sums of all blocks at once; chain_blocks: the chain of their sums, one program a content
`shardsum_128`  sum_runs: many tensors in one launch, each word read once; copy_bytes: values of at most 16 bytes

A program of `sum_runs` takes some blocks of one run of one row of a table (`harness/recording/gpu_table.py`). It sums
columns first: v of the block is one number for a whole row of 1024 words, u of the position is needed once, at the end.
A word has 32 bits: a product with 64 modulo 2^64 is one wide multiplication with the key's lower half and a plain one
with its upper half; the 1 that is added to every word is added as one v for each whole row. Sums of integers are the
same in any order: programs add theirs to those of the row's owner.
"""

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from itertools import accumulate

import torch
import triton
import triton.language as tl
from torch import Tensor

from harness.bits.digests import BLOCK, BLOCK_WORDS, GAMMA, PRIME32_1, V_SEEDS, xxh3_table

BLOCKS_AT_ONCE = 16
"""Blocks of one program: 16 KiB."""
AHEAD = 32
"""Blocks whose sums are asked for before the chain needs them: memory is slower than a link of the chain."""
WORDS = tl.constexpr(BLOCK // 8)
SECRET_WORDS = tl.constexpr(24)
KEYS = tl.constexpr(16)
"""Of the secret's words, the first that is mixed in after a block."""
PRIME = tl.constexpr(PRIME32_1)
_BLOCK = tl.constexpr(BLOCK_WORDS)
_GAMMA = tl.constexpr(GAMMA)
_V_0 = tl.constexpr((V_SEEDS[0] + GAMMA) % 2**64)
_V_1 = tl.constexpr((V_SEEDS[1] + GAMMA) % 2**64)
_MIX_0 = tl.constexpr(0xBF58476D1CE4E5B9)
_MIX_1 = tl.constexpr(0x94D049BB133111EB)
_NOT_SPECIALIZED = ["num_rows"]
"""Arguments for whose divisibility Triton compiles no variants."""


def block_sums(content: Tensor, count: int) -> Tensor:
    """Return the eight sums of each of the first blocks: uint8 [n] -> int64 [count, 8]. Nothing waits for the GPU."""
    sums = torch.empty((count, 8), dtype=torch.int64, device=content.device)
    if count:
        with _current(content.device):
            words = _words(content[: count * BLOCK])
            sum_blocks[(triton.cdiv(count, BLOCKS_AT_ONCE),)](
                words, _table(content.device), sums, count, BLOCKS=BLOCKS_AT_ONCE
            )
    return sums


def chained(sums: Tensor, counts: Sequence[int]) -> Tensor:
    """Return the eight words of each content after its blocks: int64 [all blocks, 8] -> int64 [contents, 8]."""
    device = sums.device
    firsts = [0, *accumulate(counts)][:-1]
    spans = torch.tensor([*zip(firsts, counts, strict=True)], dtype=torch.int64, device=device)
    found = torch.empty((len(counts), 8), dtype=torch.int64, device=device)
    with _current(device):
        chain_blocks[(len(counts),)](sums, spans, _table(device), found, AHEAD=AHEAD, num_warps=1)
    return found


def _current(device: torch.device) -> AbstractContextManager[object]:
    """Make a GPU the one that Triton launches on."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()


@cache
def _table(device: torch.device) -> Tensor:
    return torch.tensor(xxh3_table(), dtype=torch.int64, device=device)


def _words(content: Tensor) -> Tensor:
    """Bytes as words of eight; copied where they do not begin at a word."""
    is_aligned = content.data_ptr() % 8 == content.storage_offset() % 8 == 0
    return (content if is_aligned else content.clone()).view(torch.int64)


@triton.jit  # type: ignore[untyped-decorator]
def sum_blocks(words, secret, sums, num_blocks, BLOCKS: tl.constexpr):  # type: ignore[no-untyped-def]
    """The eight sums of each of BLOCKS blocks, over its sixteen stripes."""
    block = tl.program_id(0).to(tl.int64) * BLOCKS + tl.arange(0, BLOCKS)
    lane = tl.arange(0, 8)
    stripe = tl.arange(0, 16)[None, :, None]
    is_there = (block < num_blocks)[:, None, None]
    place = (block * WORDS)[:, None, None] + stripe * 8
    word = tl.load(words + place + lane[None, None, :], mask=is_there, other=0).to(tl.uint64, bitcast=True)
    beside = tl.load(words + place + (lane ^ 1)[None, None, :], mask=is_there, other=0).to(tl.uint64, bitcast=True)
    mixed = word ^ tl.load(secret + stripe + lane[None, None, :]).to(tl.uint64, bitcast=True)
    total = tl.sum((mixed & 0xFFFFFFFF) * (mixed >> 32) + beside, axis=1)
    out = sums + (block * 8)[:, None] + lane[None, :]
    tl.store(out, total.to(tl.int64, bitcast=True), mask=(block < num_blocks)[:, None])


@triton.jit  # type: ignore[untyped-decorator]
def chain_blocks(sums, spans, secret, found, AHEAD: tl.constexpr):  # type: ignore[no-untyped-def]
    """The sums of one content's blocks, folded one after another."""
    content = tl.program_id(0)
    first = tl.load(spans + 2 * content)
    count = tl.load(spans + 2 * content + 1)
    lane = tl.arange(0, 8)
    key = tl.load(secret + KEYS + lane).to(tl.uint64, bitcast=True)
    state = tl.load(secret + SECRET_WORDS + lane).to(tl.uint64, bitcast=True)
    own = sums + first * 8 + lane
    whole = count // AHEAD * AHEAD
    for block in range(0, whole, AHEAD):
        for ahead in tl.static_range(AHEAD):
            state += tl.load(own + (block + ahead) * 8).to(tl.uint64, bitcast=True)
            state = (state ^ (state >> 47) ^ key) * PRIME
    for block in range(whole, count):
        state += tl.load(own + block * 8).to(tl.uint64, bitcast=True)
        state = (state ^ (state >> 47) ^ key) * PRIME
    tl.store(found + content * 8 + lane, state.to(tl.int64, bitcast=True))


def launch_sums(
    table: Tensor, sums: Tensor, u: Tensor, *, num_programs: int, num_blocks: int, word_bytes: int, is_aligned: bool
) -> None:
    """Add both hash halves of every row of `table` to int64 `sums` [owners, 2]; u are the keys of positions [2, 1024].

    Shapes: table int64 [rows, fields], whose first column is the number of each row's first program; a program sums
    `num_blocks` blocks.
    """
    with _current(table.device):
        sum_runs[(num_programs,)](
            table,
            sums,
            u,
            len(table),
            FIELDS=table.shape[1],
            ROWS=num_blocks,
            WORD_BYTES=word_bytes,
            IS_ALIGNED=is_aligned,
        )


def launch_copies(table: Tensor, sums: Tensor) -> None:
    """Copy up to 16 bytes to row `owner` of `sums`, for each row (owner, address, number of bytes, 0) of `table`."""
    with _current(table.device):
        copy_bytes[(len(table),)](table, sums)


@triton.jit(do_not_specialize=_NOT_SPECIALIZED)  # type: ignore[untyped-decorator]
def sum_runs(  # type: ignore[no-untyped-def]  # noqa: PLR0917
    table,
    sums,
    u,
    num_rows,
    FIELDS: tl.constexpr,
    ROWS: tl.constexpr,
    WORD_BYTES: tl.constexpr,
    IS_ALIGNED: tl.constexpr,
):
    """The two sums of ROWS blocks of one run. All arithmetic on indices has 64 bits."""
    number = tl.program_id(0).to(tl.int64)
    row, end = number * 0, num_rows + number * 0
    while end - row > 1:
        middle = (row + end) // 2
        is_after = tl.load(table + middle * FIELDS) <= number
        row = tl.where(is_after, middle, row)
        end = tl.where(is_after, end, middle)
    entry = table + row * FIELDS
    number -= tl.load(entry)
    first, run_words, num_parts = tl.load(entry + 3), tl.load(entry + 4), tl.load(entry + 5)
    run, part = number // num_parts, number % num_parts
    outer, inner = run // tl.load(entry + 6), run % tl.load(entry + 6)
    start = first + inner * tl.load(entry + 7) + outer * tl.load(entry + 9)
    offset = inner * tl.load(entry + 8) + outer * tl.load(entry + 10) - start
    if WORD_BYTES == 1:
        words = tl.load(entry + 2).to(tl.pointer_type(tl.uint8))
    elif WORD_BYTES == 2:
        words = tl.load(entry + 2).to(tl.pointer_type(tl.uint16))
    else:
        words = tl.load(entry + 2).to(tl.pointer_type(tl.uint32))
    columns, last = tl.arange(0, _BLOCK), start + run_words
    low_0 = tl.zeros([_BLOCK], dtype=tl.uint64)
    low_1 = tl.zeros([_BLOCK], dtype=tl.uint64)
    high_0 = tl.zeros([_BLOCK], dtype=tl.uint32)
    high_1 = tl.zeros([_BLOCK], dtype=tl.uint32)
    ones_0 = tl.full([], 0, dtype=tl.uint64)
    ones_1 = tl.full([], 0, dtype=tl.uint64)
    block = start // _BLOCK + part * ROWS
    end_block = tl.minimum(block + ROWS, (last - 1) // _BLOCK + 1)
    while block < end_block:
        at = block * _BLOCK
        key_0, key_1 = _v(block, _V_0), _v(block, _V_1)
        if (at >= start) & (at + _BLOCK <= last):
            places = words + (offset + at) + columns
            if IS_ALIGNED:
                places = tl.multiple_of(places, 16)
            word = tl.load(places).to(tl.uint32)
            ones_0 += key_0
            ones_1 += key_1
        else:
            is_there = (at + columns >= start) & (at + columns < last)
            word = tl.load(words + (offset + at) + columns, mask=is_there, other=0).to(tl.uint32)
            low_0 += tl.where(is_there, key_0, 0)
            low_1 += tl.where(is_there, key_1, 0)
        low_0 += word.to(tl.uint64) * (key_0 & 0xFFFFFFFF)
        low_1 += word.to(tl.uint64) * (key_1 & 0xFFFFFFFF)
        high_0 += word * (key_0 >> 32).to(tl.uint32)
        high_1 += word * (key_1 >> 32).to(tl.uint32)
        block += 1
    u_0 = tl.load(u + columns).to(tl.uint64, bitcast=True)
    u_1 = tl.load(u + _BLOCK + columns).to(tl.uint64, bitcast=True)
    sum_0 = tl.sum((low_0 + ones_0 + (high_0.to(tl.uint64) << 32)) * u_0, axis=0)
    sum_1 = tl.sum((low_1 + ones_1 + (high_1.to(tl.uint64) << 32)) * u_1, axis=0)
    out = sums + 2 * tl.load(entry + 1)
    tl.atomic_add(out, sum_0.to(tl.int64, bitcast=True), sem="relaxed")
    tl.atomic_add(out + 1, sum_1.to(tl.int64, bitcast=True), sem="relaxed")


@triton.jit
def _v(block, seed):  # type: ignore[no-untyped-def]
    """mix(seed + block * GAMMA) | 1: the key of a block."""
    state = block.to(tl.uint64) * tl.full([], _GAMMA, tl.uint64) + tl.full([], seed, tl.uint64)
    state = (state ^ (state >> 30)) * tl.full([], _MIX_0, tl.uint64)
    state = (state ^ (state >> 27)) * tl.full([], _MIX_1, tl.uint64)
    return (state ^ (state >> 31)) | 1


@triton.jit
def copy_bytes(table, sums):  # type: ignore[no-untyped-def]
    """The bytes of one small value, filled up with zeros, as two numbers."""
    entry = table + tl.program_id(0) * 4
    columns = tl.arange(0, 16)
    source = tl.load(entry + 1).to(tl.pointer_type(tl.uint8)) + columns
    byte = tl.load(source, mask=columns < tl.load(entry + 2), other=0).to(tl.uint64)
    shifted = byte << ((columns % 8) * 8).to(tl.uint64)
    out = sums + 2 * tl.load(entry)
    tl.store(out, tl.sum(tl.where(columns < 8, shifted, 0), axis=0).to(tl.int64, bitcast=True))
    tl.store(out + 1, tl.sum(tl.where(columns >= 8, shifted, 0), axis=0).to(tl.int64, bitcast=True))
