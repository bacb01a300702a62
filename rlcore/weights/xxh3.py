"""The parts of xxh3_128 that the library computes in one piece: constants, and how the words of all blocks end. Pure.

Names are those of the specification: https://github.com/Cyan4973/xxHash/blob/dev/doc/xxhash_spec.md
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from xxhash import xxh3_128_digest

Words = NDArray[np.uint64]

STRIPE, BLOCK = 64, 1024
"""Bytes."""
SECRET = bytes.fromhex(
    "b8fe6c3923a44bbe7c01812cf721ad1cded46de9839097db7240a4a4b7b3671fcb79e64eccc0e578825ad07dccff7221"
    "b8084674f743248ee03590e6813a264c3c2852bb91c300cb88d0658b1b532ea371644897a20df94e3819ef46a9deacd8"
    "a8fa763fe39c343ff9dcbbc7c70b4f1d8a51e04bcdb45931c89f7ec9d9787364eac5ac8334d3ebc3c581a0fffa1363eb"
    "170ddd51b7f0da49d316552629d4689e2b16be587d47a1fc8ff8b8d17ad031ce45cb3a8f95160428afd7fbcabb4b407e"
)
PRIME32_1, PRIME32_2, PRIME32_3 = 0x9E3779B1, 0x85EBCA77, 0xC2B2AE3D
PRIME64_1, PRIME64_2, PRIME64_3 = 0x9E3779B185EBCA87, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9
PRIME64_4, PRIME64_5 = 0x85EBCA77C2B2AE63, 0x27D4EB2F165667C5
START = (PRIME32_3, PRIME64_1, PRIME64_2, PRIME64_3, PRIME64_4, PRIME32_2, PRIME64_5, PRIME32_1)
"""The eight words before the first block."""
_LOW, _HALF = np.uint64(2**32 - 1), np.uint64(32)
_SWAPPED = [1, 0, 3, 2, 5, 4, 7, 6]
_LAST_STRIPE, _MERGE_LOW, _MERGE_HIGH = 121, 11, 117
"""Where in the secret its words for the last stripe begin, and those for both halves of the result."""


def table() -> list[int]:
    """Return what the kernel reads, as int64: 24 words of the secret, then those of the start."""
    secret = np.frombuffer(SECRET, "<i8").tolist()
    return [*secret, *np.array(START, np.uint64).astype(np.int64).tolist()]


def finished(accumulators: Words, lengths: Sequence[int], tails: Sequence[NDArray[np.uint8]]) -> list[bytes]:
    """Fold the last bytes of each content in: words [contents, 8] after all blocks but the last -> 16 bytes each.

    Contents of one block have rules of their own, and are whole in their tails.
    """
    stripes = np.zeros((len(lengths), 17, 8), np.uint64)
    is_there = np.zeros((len(lengths), 17, 1), bool)
    for index, (length, tail) in enumerate(zip(lengths, tails, strict=True)):
        if length <= BLOCK:
            continue
        rest = _rest(length)
        count = (rest - 1) // STRIPE
        first = len(tail) - rest
        stripes[index, :count] = tail[first : first + count * STRIPE].view("<u8").reshape(count, 8)
        stripes[index, 16] = tail[-STRIPE:].view("<u8")
        is_there[index, :count] = is_there[index, 16] = True
    keys = np.stack([*(_secret(8 * stripe, 8) for stripe in range(16)), _secret(_LAST_STRIPE, 8)])
    mixed = stripes ^ keys
    added = (mixed & _LOW) * (mixed >> _HALF) + stripes[..., _SWAPPED]
    words = accumulators + np.where(is_there, added, np.uint64(0)).sum(1, dtype=np.uint64)
    sizes = np.array(lengths, np.uint64)
    low = _merged(words, _MERGE_LOW, sizes * np.uint64(PRIME64_1))
    high = _merged(words, _MERGE_HIGH, ~(sizes * np.uint64(PRIME64_2)))
    return [
        xxh3_128_digest(tail.tobytes()) if length <= BLOCK else int(a).to_bytes(8, "big") + int(b).to_bytes(8, "big")
        for length, tail, a, b in zip(lengths, tails, high, low, strict=True)
    ]


def num_blocks(length: int) -> int:
    """Return the number of blocks but the last, which are read on the GPU."""
    return max(0, length - 1) // BLOCK


def _rest(length: int) -> int:
    """Return the bytes after all blocks but the last: 1 to 1,024."""
    return (length - 1) % BLOCK + 1


def tail_length(length: int) -> int:
    """Return the last bytes that the host needs; the last stripe may begin in the block before."""
    return length if length <= BLOCK else max(_rest(length), STRIPE)


def _secret(offset: int, count: int) -> Words:
    return np.frombuffer(SECRET[offset : offset + 8 * count], "<u8")


def _merged(words: Words, offset: int, start: Words) -> Words:
    """Fold eight words into one, and let each of its bits depend on all."""
    mixed = words ^ _secret(offset, 8)
    result: Any = start + _folded(mixed[:, 0::2], mixed[:, 1::2]).sum(1, dtype=np.uint64)
    result = (result ^ (result >> np.uint64(37))) * np.uint64(0x165667919E3779F9)
    merged: Words = result ^ (result >> _HALF)
    return merged


def _folded(a: Words, b: Words) -> Words:
    """Multiply to 128 bits, and xor the halves."""
    low, across = (a & _LOW) * (b & _LOW), (a & _LOW) * (b >> _HALF)
    other, high = (a >> _HALF) * (b & _LOW), (a >> _HALF) * (b >> _HALF)
    middle = (low >> _HALF) + (across & _LOW) + (other & _LOW)
    upper = high + (across >> _HALF) + (other >> _HALF) + (middle >> _HALF)
    folded: Words = ((low & _LOW) | (middle << _HALF)) ^ upper
    return folded
