"""The Triton kernels of both digests of tensors on a GPU.

`xxh3_128`      sum_blocks: sums of all blocks at once; chain_blocks: the chain of their sums, one program a content
`packsum_128`   sum_tiles: many tensors in one launch, each word read once; `shardsum_128` of elements above 2 bytes

A program of `sum_tiles` takes one tile of one row of a table (`shard_sums.py`). It sums columns first: v of the block
is one number for a whole row of 1024 words, u of the position is needed once, at the end. A word has 32 bits: a product
with 64 modulo 2^64 is one wide multiplication with the key's lower half and a plain one with its upper half; what is
added to every word is added as one v for each whole row. Sums of integers are the same in any order: programs add
theirs to those of the value.
"""

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from itertools import accumulate

import torch
import triton
import triton.language as tl
from torch import Tensor

from harness.bits.digests import BLOCK, BLOCK_WORDS, PRIME32_1, TILE_BYTES, xxh3_table

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
TILE = tl.constexpr(TILE_BYTES)
ROWS = tl.constexpr(TILE_BYTES // (BLOCK_WORDS * 4))
AT_ONCE = tl.constexpr(4)
"""Blocks that are loaded before they are used: more bytes are in flight."""


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


def launch_tiles(rows: Tensor, owners: Tensor, keys: tuple[Tensor, Tensor], sums: Tensor) -> None:
    """Add both halves of the digest of each row to its row of int64 `sums` [values, 2].

    Shapes: rows int64 [n, 7]: number of the first tile, row of `sums`, and what `shard_sums` says of a part; owners
    int32 [tiles]; keys int64 [2, 1024] of places and [blocks, 2] of blocks.
    """
    with _current(rows.device):
        sum_tiles[(len(owners),)](rows, owners, *keys, sums, FIELDS=rows.shape[1])


@triton.jit  # type: ignore[untyped-decorator]
def sum_tiles(rows, owners, u, v, sums, FIELDS: tl.constexpr):  # type: ignore[no-untyped-def]  # noqa: PLR0917
    """The two sums of one tile, or the bytes of a small value. Whole words are read, 16 bytes a thread at once."""
    tile = tl.program_id(0).to(tl.int64)
    row = rows + tl.load(owners + tile).to(tl.int64) * FIELDS
    number = tile - tl.load(row)
    out = sums + 2 * tl.load(row + 1)
    address = tl.load(row + 2) + number * TILE
    begin = tl.load(row + 3) - number * TILE
    end = tl.minimum(tl.load(row + 4) - number * TILE, TILE)
    key = v + 2 * (tl.load(row + 5) + number * ROWS)
    ones = tl.load(row + 6).to(tl.uint32)
    if ones == 0:
        _copy_bytes(address, end, out)
    else:
        columns = tl.arange(0, _BLOCK)
        low_0, low_1 = tl.zeros([_BLOCK], tl.uint64), tl.zeros([_BLOCK], tl.uint64)
        high_0, high_1 = tl.zeros([_BLOCK], tl.uint32), tl.zeros([_BLOCK], tl.uint32)
        keys_0, keys_1 = tl.full([], 0, tl.uint64), tl.full([], 0, tl.uint64)
        at = begin * 0
        whole = tl.where(begin > 0, 0, end - end % (_BLOCK * 4 * AT_ONCE))
        while at < whole:
            for step in tl.static_range(AT_ONCE):
                place = (address + at + _BLOCK * 4 * step).to(tl.pointer_type(tl.uint32)) + columns
                word = tl.load(tl.multiple_of(place, 16))
                key_0 = tl.load(key + 2 * step).to(tl.uint64, bitcast=True)
                key_1 = tl.load(key + 2 * step + 1).to(tl.uint64, bitcast=True)
                low_0 += word.to(tl.uint64) * (key_0 & 0xFFFFFFFF)
                low_1 += word.to(tl.uint64) * (key_1 & 0xFFFFFFFF)
                high_0 += word * (key_0 >> 32).to(tl.uint32)
                high_1 += word * (key_1 >> 32).to(tl.uint32)
                keys_0 += key_0
                keys_1 += key_1
            at += _BLOCK * 4 * AT_ONCE
            key += 2 * AT_ONCE
        low_0 += keys_0 * ones.to(tl.uint64)
        low_1 += keys_1 * ones.to(tl.uint64)
        while at < end:
            place = at + 4 * columns
            is_there = (place + 4 > begin) & (place < end)
            word = tl.load((address + place).to(tl.pointer_type(tl.uint32)), mask=is_there, other=0)
            rest = (32 - 8 * tl.minimum(tl.maximum(end - place, 1), 4)).to(tl.uint32)  # bits after the last byte
            value = ((word << rest) >> rest).to(tl.uint64) + ((ones << rest) >> rest).to(tl.uint64)
            value = tl.where(is_there, value, 0)
            low_0 += value * tl.load(key).to(tl.uint64, bitcast=True)
            low_1 += value * tl.load(key + 1).to(tl.uint64, bitcast=True)
            at += _BLOCK * 4
            key += 2
        u_0 = tl.load(u + columns).to(tl.uint64, bitcast=True)
        u_1 = tl.load(u + _BLOCK + columns).to(tl.uint64, bitcast=True)
        sum_0 = tl.sum((low_0 + (high_0.to(tl.uint64) << 32)) * u_0, axis=0)
        sum_1 = tl.sum((low_1 + (high_1.to(tl.uint64) << 32)) * u_1, axis=0)
        tl.atomic_add(out, sum_0.to(tl.int64, bitcast=True), sem="relaxed")
        tl.atomic_add(out + 1, sum_1.to(tl.int64, bitcast=True), sem="relaxed")


@triton.jit
def _copy_bytes(address, num_bytes, out):  # type: ignore[no-untyped-def]
    """At most 16 bytes, filled up with zeros, as two numbers."""
    columns = tl.arange(0, 16)
    byte = tl.load(address.to(tl.pointer_type(tl.uint8)) + columns, mask=columns < num_bytes, other=0).to(tl.uint64)
    shifted = byte << ((columns % 8) * 8).to(tl.uint64)
    tl.store(out, tl.sum(tl.where(columns < 8, shifted, 0), axis=0).to(tl.int64, bitcast=True))
    tl.store(out + 1, tl.sum(tl.where(columns >= 8, shifted, 0), axis=0).to(tl.int64, bitcast=True))
