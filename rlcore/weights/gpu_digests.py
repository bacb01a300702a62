"""xxh3_128 of tensors on a GPU, computed there: the value that their bytes have on the host, which never gets them.

    bytes ──add──▶ 8 words of each block of 1,024 bytes ──take──▶ 8 words of each tensor, with its last bytes ──▶ host
                   sums, all blocks at once                       a chain of blocks

Within a block xxh3 adds products, in any order. Only eight words are folded from block to block, so one program per
tensor is enough for the chain. What leaves the GPU is 64 bytes of each tensor, and the at most 1,024 bytes of its last
block, all of them in one copy.
"""

import warnings
from collections.abc import Iterable
from functools import cache

import numpy as np
import torch
from torch import Tensor
from xxhash import xxh3_128_digest

from rlcore.weights.xxh3 import BLOCK, STRIPE, finished, num_blocks, tail_length


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
        from rlcore.weights.gpu_kernel import block_sums

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
        from rlcore.weights.gpu_kernel import chained

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
