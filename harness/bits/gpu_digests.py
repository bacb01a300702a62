"""xxh3_128 of tensors on a GPU, computed there: the value that their bytes have on the host, which never gets them.

    bytes ──add──▶ 8 words of each block of 1,024 bytes ──take──▶ 8 words of each tensor, with its last bytes ──▶ host
                   sums, all blocks at once                       a chain of blocks

Within a block xxh3 adds products, in any order. Only eight words are folded from block to block, so one program per
tensor is enough for the chain. What leaves the GPU is 64 bytes of each tensor, and the at most 1,024 bytes of its last
block, all of them in one copy.
"""

import warnings
from collections.abc import Iterable, Sequence
from functools import cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from xxhash import xxh3_128_digest

from harness.bits.digests import BLOCK, PRIME64_1, PRIME64_2, SECRET, STRIPE

Words = NDArray[np.uint64]

_LOW, _HALF = np.uint64(2**32 - 1), np.uint64(32)
_SWAPPED = [1, 0, 3, 2, 5, 4, 7, 6]
_LAST_STRIPE, _MERGE_LOW, _MERGE_HIGH = 121, 11, 117
"""Where in the secret its words for the last stripe begin, and those for both halves of the result."""


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


class Contents:
    """Bytes on one GPU that are read as they are added, and whose digests come together."""

    def __init__(self) -> None:
        self.num_bytes = 0
        """Of the contents added since the last `take`."""
        self._lengths: list[int] = []
        self._sums: list[Tensor] = []
        self._tails: list[Tensor] = []

    def add(self, *parts: Tensor) -> None:
        """Read one content, in parts of uint8 [n]; they may be overwritten afterwards. Raises ImportError."""
        self.add_parts(parts)

    def add_parts(self, parts: Iterable[Tensor]) -> None:
        """The same for parts that come one by one; each is read before the next comes."""
        from harness.bits.gpu_kernels import block_sums

        length, sums = 0, list[Tensor]()
        kept: Tensor | None = None  # the bytes after the blocks that were read, and up to 64 bytes before them
        num_before = 0  # of these 64
        for part in parts:
            length += len(part)
            joined = part if kept is None else torch.cat([kept, part])
            unread = joined[num_before:]
            count = num_blocks(len(unread))
            sums.append(block_sums(unread, count))
            end = num_before + count * BLOCK
            first = max(0, end - STRIPE)
            kept, num_before = joined[first:].clone(), end - first
        if kept is None:
            return
        self._sums.append(torch.cat(sums))
        self._tails.append(kept[len(kept) - tail_length(length) :])
        self._lengths.append(length)
        self.num_bytes += length

    def take(self) -> list[bytes]:
        """Return xxh3_128 of each content added since the last call, in their order; waits for the GPU once."""
        lengths, sums, tails = self._lengths, self._sums, self._tails
        self._lengths, self._sums, self._tails, self.num_bytes = [], [], [], 0
        if not lengths:
            return []
        from harness.bits.gpu_kernels import chained

        words = chained(torch.cat(sums), [num_blocks(length) for length in lengths])
        packed = torch.cat([words.view(torch.uint8).flatten(), *tails]).cpu().numpy()
        on_host = np.split(packed, np.cumsum([words.nbytes, *map(len, tails[:-1])]))
        return finished(on_host[0].view("<u8").reshape(-1, 8), lengths, on_host[1:])


@cache
def problem(device: torch.device) -> str:
    """Say why tensors of a GPU are copied to the host for their digests; empty if they are not.

    Tried once on each GPU: some bytes must have the digest that the host computes. Said once, as a warning.
    """
    content = (torch.arange(70_001, device=device) * 167 % 251).to(torch.uint8)
    host, parts, contents = content.cpu().numpy(), [slice(0, 70_001), slice(0, 2048), slice(1, 5)], Contents()
    try:
        for part in parts:
            contents.add(content[part])
        found = contents.take()
    except torch.OutOfMemoryError:  # may not be there at the next try
        raise
    except Exception as error:  # no Triton, no compiler for it, a GPU that it does not know
        why = f"{type(error).__name__}: {error}"
    else:
        expected = [xxh3_128_digest(host[part].tobytes()) for part in parts]
        why = "" if found == expected else "its kernel gives other digests than the host"
    if why:
        warnings.warn(
            f"weights on {device} are copied to the host for their digests: {why}", RuntimeWarning, stacklevel=2
        )
    return why
