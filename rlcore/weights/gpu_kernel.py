"""The parts of xxh3_128 that read all of a tensor, as Triton kernels: sums of blocks, and the chain of their sums."""

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from itertools import accumulate

import torch
import triton
import triton.language as tl
from torch import Tensor

from rlcore.weights.xxh3 import BLOCK, PRIME32_1, table

ROWS = 16
"""Blocks of one program: 16 KiB."""
AHEAD = 32
"""Blocks whose sums are asked for before the chain needs them: memory is slower than a link of the chain."""
WORDS = tl.constexpr(BLOCK // 8)
SECRET_WORDS = tl.constexpr(24)
KEYS = tl.constexpr(16)
"""Of the secret's words, the first that is mixed in after a block."""
PRIME = tl.constexpr(PRIME32_1)


def block_sums(content: Tensor, count: int) -> Tensor:
    """Return the eight sums of each of the first blocks: uint8 [n] -> int64 [count, 8]. Nothing waits for the GPU."""
    sums = torch.empty((count, 8), dtype=torch.int64, device=content.device)
    if count:
        with _current(content.device):
            words = _words(content[: count * BLOCK])
            sum_blocks[(triton.cdiv(count, ROWS),)](words, _table(content.device), sums, count, ROWS=ROWS)
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
    return torch.tensor(table(), dtype=torch.int64, device=device)


def _words(content: Tensor) -> Tensor:
    """Bytes as words of eight; copied where they do not begin at a word."""
    is_aligned = content.data_ptr() % 8 == content.storage_offset() % 8 == 0
    return (content if is_aligned else content.clone()).view(torch.int64)


@triton.jit  # type: ignore[untyped-decorator]
def sum_blocks(words, secret, sums, num_blocks, ROWS: tl.constexpr):  # type: ignore[no-untyped-def]
    """The eight sums of each of ROWS blocks, over its sixteen stripes."""
    block = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
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
